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
		state, group := stateOf(pid)
		if state == 'Z' || state == 'X' || state == 0 {
			continue
		}
		if is, _ := marked(pid, mark); is || group == pgid {
			pids = append(pids, pid)
		}
	}
	return pids
}

// stateOf reads the state and the process group of a process (proc(5)), 0 when
// there is none.
func stateOf(pid int) (state byte, group int) {
	stat, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return 0, 0
	}
	// The name of the program stands in parentheses and may have any in it.
	fields := bytes.Fields(stat[bytes.LastIndexByte(stat, ')')+1:])
	if len(fields) < 3 {
		return 0, 0
	}
	group, _ = strconv.Atoi(string(fields[2]))
	return fields[0][0], group
}
