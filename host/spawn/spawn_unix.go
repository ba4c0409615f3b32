//go:build unix

package spawn

import (
	"os/exec"
	"syscall"
)

// Errors of a signal say that the process has ended, which is what was wanted.

func killGroup(cmd *exec.Cmd) { _ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }

func interrupt(cmd *exec.Cmd) { _ = cmd.Process.Signal(syscall.SIGTERM) }

// Kill is kill -9 of one process.
func Kill(pid int) error { return syscall.Kill(pid, syscall.SIGKILL) }
