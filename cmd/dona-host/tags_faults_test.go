//go:build faults

package main

import "os"

// The binary of these runs has its crash points.
const buildTags = "-tags=faults"

// flips is how many bits of a data file are turned, one at a time.
const flips = 200

// rounds of kill -9 at another instant each.
var rounds = func() int {
	if os.Getenv("REPEAT") != "" {
		return 100
	}
	return 10
}()
