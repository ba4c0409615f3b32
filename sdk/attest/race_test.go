//go:build race

package attest

const raceEnabled = true
