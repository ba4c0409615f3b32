//go:build !faults

package plugins_test

import "github.com/dodona-project/dodona/plugins/plugintest"

// calls has the suite make fewer calls.
var calls = []plugintest.Option{plugintest.Quick()}
