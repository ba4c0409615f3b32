//go:build race

package plugins_test

// raceDetector multiplies what a process takes of memory and time.
const raceDetector = true
