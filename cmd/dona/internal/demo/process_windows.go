package demo

import (
	"os"
	"os/exec"
)

func detach(*exec.Cmd) {}

func killGroup(cmd *exec.Cmd) { _ = cmd.Process.Kill() }

// interrupt has no counterpart: the end of its stdin tells the child.
func interrupt(*exec.Cmd) {}

func killProcess(pid int) error {
	p, err := os.FindProcess(pid)
	if err != nil {
		return err
	}
	return p.Kill()
}

// parentOf is unknown here.
func parentOf(int) int { return 0 }

func alive(pid int) bool {
	p, err := os.FindProcess(pid)
	if err != nil {
		return false
	}
	_ = p.Release()
	return true
}
