// Command apiref writes docs/api-control-plane.md and docs/api-egress.md: the references
// of the dona.v1 and of the controlplane.v1 services. What the calls are comes from the
// compiled contract, what they promise from the comments in the .proto files, who may
// call them and how often from the table of host/api, the limits from host/limits and
// host/pool/poolconfig, and which action a rollout takes in which state from the code that
// decides it. "make docs" runs it at the root of the tree, and a test fails when a page is
// older than any of them.
package main

import (
	"fmt"
	"os"
)

func main() {
	for _, p := range pages {
		text, err := reference(".", p)
		if err == nil {
			err = os.WriteFile(p.path, text, 0o644)
		}
		if err != nil {
			fmt.Fprintln(os.Stderr, "apiref: "+err.Error())
			os.Exit(1)
		}
	}
}
