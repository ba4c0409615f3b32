//go:build unix && !linux

package demo

import (
	"os/exec"
	"syscall"
)

// detach puts the child into a group of its own, so that a Ctrl-C on the
// terminal reaches the demo alone.
func detach(cmd *exec.Cmd) { cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} }

// parentOf is unknown here.
func parentOf(int) int { return 0 }

func alive(pid int) bool { return syscall.Kill(pid, 0) == nil }
