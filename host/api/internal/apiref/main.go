// Command apiref writes docs/api-control-plane.md: the reference of the dona.v1
// services. What the calls are comes from the compiled contract, what they promise
// from the comments in the .proto files, who may call them and how often from the
// table of host/api, the limits from host/limits, and which action a rollout takes
// in which state from the code that decides it. "make docs" runs it at the root of
// the tree, and a test fails when the page is older than any of them.
package main

import (
	"fmt"
	"os"
)

// Page is what it writes, from the root of the tree.
const page = "docs/api-control-plane.md"

func main() {
	text, err := reference(".")
	if err == nil {
		err = os.WriteFile(page, text, 0o644)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "apiref: "+err.Error())
		os.Exit(1)
	}
}
