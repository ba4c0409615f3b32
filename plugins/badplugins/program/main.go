// Command program is every plugin of package badplugins in one file: its first
// argument says which one, its second as what. Tests build it; nobody runs it
// by hand.
package main

import "github.com/dodona-project/dodona/plugins/badplugins"

func main() { badplugins.Main() }
