package spawn

import (
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
)

// detach puts the child into a group of its own, so that a Ctrl-C on the
// terminal reaches the demo alone, and has the kernel kill it when the demo dies.
func detach(cmd *exec.Cmd) {
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
}

// ParentOf is the parent of a process; 0 = unknown or gone.
func ParentOf(pid int) int {
	raw, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return 0
	}
	// The name in parentheses may hold anything; what follows the last one is
	// the state and then the parent.
	_, rest, _ := strings.Cut(string(raw[strings.LastIndexByte(string(raw), ')')+1:]), " ")
	fields := strings.Fields(rest)
	if len(fields) < 2 {
		return 0
	}
	parent, err := strconv.Atoi(fields[1])
	if err != nil {
		return 0
	}
	return parent
}

// Alive reports whether a process runs; one that only waits to be reaped does
// not.
func Alive(pid int) bool {
	raw, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return false
	}
	i := strings.LastIndexByte(string(raw), ')')
	return i >= 0 && len(raw) > i+2 && raw[i+2] != 'Z' && raw[i+2] != 'X'
}
