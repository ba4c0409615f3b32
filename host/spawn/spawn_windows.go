package spawn

import (
	"os"
	"os/exec"
)

func detach(*exec.Cmd) {}

func killGroup(cmd *exec.Cmd) { _ = cmd.Process.Kill() }

// interrupt has no counterpart: the end of its stdin tells the child.
func interrupt(*exec.Cmd) {}

// Kill ends one process.
func Kill(pid int) error {
	p, err := os.FindProcess(pid)
	if err != nil {
		return err
	}
	return p.Kill()
}

// ParentOf is unknown here.
func ParentOf(int) int { return 0 }

// Alive reports whether a process runs.
func Alive(pid int) bool {
	p, err := os.FindProcess(pid)
	if err != nil {
		return false
	}
	_ = p.Release()
	return true
}
