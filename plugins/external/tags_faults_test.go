//go:build linux && faults

package external_test

// swaps is how often a file is swapped between its check and its start.
const swaps = 100
