//go:build faults

package scaffold

// whole ends the look at a new plugin: all of its own tests.
const whole = "make test"
