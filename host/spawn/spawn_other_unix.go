//go:build unix && !linux

package spawn

import (
	"os/exec"
	"syscall"
)

// detach puts the child into a group of its own, so that a Ctrl-C on the
// terminal reaches the demo alone.
func detach(cmd *exec.Cmd) { cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} }

// ParentOf is unknown here.
func ParentOf(int) int { return 0 }

// Alive reports whether a process runs.
func Alive(pid int) bool { return syscall.Kill(pid, 0) == nil }
