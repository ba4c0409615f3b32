//go:build !faults

package builtin_test

// everyCall has the conformance suite make all of its calls.
const everyCall = false
