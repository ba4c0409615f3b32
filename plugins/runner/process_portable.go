//go:build !linux

package runner

import "syscall"

// processAttributes puts the child at the head of its own process group. The
// lifeline and the watchdog end it when the host goes.
func processAttributes() *syscall.SysProcAttr { return &syscall.SysProcAttr{Setpgid: true} }

func lockThread() (unlock func()) { return func() {} }

func limitProcess(int, uint64) {}

// LimitFiles does nothing here: limits of a running process cannot be set.
func LimitFiles(int, uint64) {}

// awaitExit returns false at once: a process cannot be waited for without
// reaping it, so its group is killed a moment after.
func awaitExit(int) bool { return false }

// KillStrays does nothing here: environments of other processes cannot be read.
func KillStrays(string) {}

// KillStraysBelow does nothing here, for the same reason.
func KillStraysBelow(string) {}
