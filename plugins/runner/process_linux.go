package runner

import (
	"bytes"
	"errors"
	"io/fs"
	"os"
	"runtime"
	"strconv"
	"syscall"
	"time"

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

// Bounds of the search for strays.
const (
	sweepTime  = 2 * time.Second  // all of it
	sweepPause = time.Millisecond // between two looks
	maxQuiet   = 5                // looks in a row that found none, but missed some
)

// killStrays looks until it finds none: a process may start another, and be gone,
// while the list of processes is read. On a machine where others come and go all
// the time, some are always missed, and it looks a few times only.
func killStrays(value []byte) {
	s := straySearch{mark: append([]byte("\x00"+socketDirEnv+"="), value...)}
	quiet := 0
	for end := time.Now().Add(sweepTime); ; time.Sleep(sweepPause) {
		switch found, missed, starting := s.kill(); {
		case found || starting:
			quiet = 0
		case !missed || quiet+1 == maxQuiet:
			return
		default:
			quiet++
		}
		if time.Now().After(end) {
			return
		}
	}
}

// A straySearch looks for processes with mark in their environment.
type straySearch struct {
	mark []byte
	dead map[int]bool // those that were dead at the last look, and wait to be reaped
}

// kill kills those that it finds. It reports whether there were any, whether one
// died before it was looked at and may have left a child that this look did not
// see, and whether one is on its way into another program, so that its environment
// cannot be read yet.
func (s *straySearch) kill() (found, missed, starting bool) {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return false, false, false
	}
	dead := map[int]bool{}
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil || pid == os.Getpid() {
			continue
		}
		switch look(pid, s.mark) {
		case isMarked:
			found = true
			s.killOne(pid)
		case isGone:
			missed = true
		case isDead:
			dead[pid] = true
			missed = missed || !s.dead[pid]
		case isStarting:
			starting = true
		case isOther:
		}
	}
	s.dead = dead
	return found, missed, starting
}

// killOne kills a process that is marked. Between looking and killing its number
// could be given to another process; a descriptor of the process cannot.
func (s *straySearch) killOne(pid int) {
	fd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return
	}
	if look(pid, s.mark) == isMarked {
		_ = unix.PidfdSendSignal(fd, unix.SIGKILL, nil, 0)
	}
	_ = unix.Close(fd)
}

// What a look at a process can see.
type seen int

const (
	isOther    seen = iota
	isMarked        // mark is in its environment
	isGone          // there is none any more
	isDead          // it is not reaped yet
	isStarting      // it executes another program, whose environment is not there yet
)

// look sees whether a process has mark in its environment.
func look(pid int, mark []byte) seen {
	proc := "/proc/" + strconv.Itoa(pid)
	env, err := os.ReadFile(proc + "/environ")
	switch {
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, unix.ESRCH):
		return isGone
	case err != nil:
		return isOther // of another user
	case bytes.Contains(append([]byte{0}, env...), mark):
		return isMarked
	case len(env) > 0:
		return isOther
	}
	// Within execve(2) arguments and environment are empty until the program is
	// mapped, as they always are for the dead and the kernel's own threads.
	args, err := os.ReadFile(proc + "/cmdline")
	if err != nil || len(args) > 0 {
		return isOther
	}
	switch stat := statOf(pid); {
	case stat.state == 0:
		return isGone
	case stat.state == 'Z' || stat.state == 'X':
		return isDead
	case stat.kernel:
		return isOther
	}
	return isStarting
}
