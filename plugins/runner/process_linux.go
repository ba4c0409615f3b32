package runner

import (
	"bytes"
	"errors"
	"io/fs"
	"os"
	"runtime"
	"strconv"
	"syscall"

	"golang.org/x/sys/unix"
)

// processAttributes puts the child at the head of its own process group, and
// has the kernel kill it when the thread that started it ends.
func processAttributes() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
}

func lockThread() (unlock func()) {
	runtime.LockOSThread()
	return runtime.UnlockOSThread
}

// limitProcess keeps the child from writing core files, and from having more
// than so many bytes of address space; 0 is no limit.
func limitProcess(pid int, addressSpace uint64) {
	_ = unix.Prlimit(pid, unix.RLIMIT_CORE, &unix.Rlimit{}, nil)
	if addressSpace > 0 {
		_ = unix.Prlimit(pid, unix.RLIMIT_AS, &unix.Rlimit{Cur: addressSpace, Max: addressSpace}, nil)
	}
}

// LimitFiles sets how many descriptors the process may have open. It can only
// be lowered.
func LimitFiles(pid int, files uint64) {
	var now unix.Rlimit
	if unix.Prlimit(pid, unix.RLIMIT_NOFILE, nil, &now) == nil && now.Max > files {
		_ = unix.Prlimit(pid, unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: files, Max: files}, nil)
	}
}

// awaitExit returns true when the process is dead and was left unreaped, so
// that its number cannot be given away before its group was killed.
func awaitExit(pid int) bool {
	for {
		err := unix.Waitid(unix.P_PID, pid, nil, unix.WEXITED|unix.WNOWAIT, nil)
		if !errors.Is(err, unix.EINTR) {
			return err == nil
		}
	}
}

// KillStrays kills processes that were started with dir as their socket
// directory and have left the process group (setsid). It finds them by their
// environment, which they could have changed: best effort.
func KillStrays(dir string) { killStrays([]byte(dir + "\x00")) }

// KillStraysBelow does the same for every socket directory below dir.
func KillStraysBelow(dir string) {
	if dir != "" {
		killStrays([]byte(dir + "/"))
	}
}

// maxSweeps bounds how often the processes are looked through.
const maxSweeps = 20

// killStrays looks until it finds none: a process may start another, and be gone,
// while the list of processes is read.
func killStrays(value []byte) {
	mark := append([]byte("\x00"+socketDirEnv+"="), value...)
	for sweep := range maxSweeps {
		found, missed := killMarked(mark)
		if !found && (!missed || sweep > 0) {
			return
		}
	}
}

// killMarked kills the processes with mark in their environment. It reports
// whether there were any, and whether one was gone before it was looked at.
func killMarked(mark []byte) (found, missed bool) {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return false, false
	}
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil || pid == os.Getpid() {
			continue
		}
		is, gone := marked(pid, mark)
		found, missed = found || is, missed || gone
		if !is {
			continue
		}
		// Between looking and killing the number could be given to another
		// process; a descriptor of the process cannot.
		fd, err := unix.PidfdOpen(pid, 0)
		if err != nil {
			continue
		}
		if is, _ := marked(pid, mark); is {
			_ = unix.PidfdSendSignal(fd, unix.SIGKILL, nil, 0)
		}
		_ = unix.Close(fd)
	}
	return found, missed
}

// marked reports whether a process has mark in its environment, or is gone.
func marked(pid int, mark []byte) (is, gone bool) {
	env, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/environ")
	if err != nil {
		return false, errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ESRCH)
	}
	return bytes.Contains(append([]byte{0}, env...), mark), false
}
