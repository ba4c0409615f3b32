//go:build !faults

package scaffold

// whole ends the look at a new plugin: it says what it is.
const whole = "bin/plugin --describe"
