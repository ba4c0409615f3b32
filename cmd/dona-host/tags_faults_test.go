//go:build faults

package main

import "os"

// The binary of these runs has its crash points.
const buildTags = "-tags=faults"

// rounds of kill -9 at another instant each.
var rounds = func() int {
	if os.Getenv("REPEAT") != "" {
		return 100
	}
	return 10
}()
