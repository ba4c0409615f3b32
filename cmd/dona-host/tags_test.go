//go:build !faults

package main

const (
	buildTags = "-tags="
	rounds    = 2
	flips     = 10
)
