package runner

import (
	"bytes"
	"os"
	"strconv"
)

// Strays returns the processes other than pgid itself that are of its process
// group or were started with dir as their socket directory, and are not dead.
func Strays(pgid int, dir string) (pids []int) {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil
	}
	mark := []byte("\x00" + socketDirEnv + "=" + dir + "\x00")
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil || pid == pgid || pid == os.Getpid() {
			continue
		}
		stat := statOf(pid)
		if stat.state == 'Z' || stat.state == 'X' || stat.state == 0 {
			continue
		}
		if stat.group == pgid || look(pid, mark) == isMarked {
			pids = append(pids, pid)
		}
	}
	return pids
}

// A stat is what /proc says of a process (proc(5)).
type stat struct {
	state  byte // 0 = there is none
	group  int
	kernel bool // it is a thread of the kernel's own
}

const kernelThread = 0x00200000 // PF_KTHREAD

func statOf(pid int) (s stat) {
	text, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return s
	}
	// The name of the program stands in parentheses and may have any in it.
	fields := bytes.Fields(text[bytes.LastIndexByte(text, ')')+1:])
	if len(fields) < 7 {
		return s
	}
	s.group, _ = strconv.Atoi(string(fields[2]))
	flags, _ := strconv.ParseUint(string(fields[6]), 10, 64)
	s.state, s.kernel = fields[0][0], flags&kernelThread != 0
	return s
}
