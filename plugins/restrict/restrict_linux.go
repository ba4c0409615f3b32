package restrict

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// How often a copy of a program that is busy is tried again.
const (
	busyTries = 500
	busyWait  = 2 * time.Millisecond
)

// become lays the rules on this thread, and executes the program from it: the others
// end there.
func (r Rules) become(argv, env []string) error {
	runtime.LockOSThread()
	if r.Image != 0 {
		// The path of the image leads to the descriptor that it has in the host.
		if err := unix.Dup3(ImageFD, r.Image, unix.O_CLOEXEC); err != nil {
			return fmt.Errorf("take the image over: %w", err)
		}
		_ = unix.Close(ImageFD)
	}
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return fmt.Errorf("give up new privileges: %w", err)
	}
	if err := r.limit(); err != nil {
		return err
	}
	if err := r.landlock(); err != nil {
		return err
	}
	// The kernel forgets the death signal when another thread than the first
	// executes. A host that has died by now would not send it any more.
	if err := unix.Prctl(unix.PR_SET_PDEATHSIG, uintptr(unix.SIGKILL), 0, 0, 0); err != nil {
		return fmt.Errorf("set the death signal: %w", err)
	}
	if os.Getppid() != r.Parent {
		return errors.New("the host is gone")
	}
	err := syscall.Exec(r.Path, argv, env)
	for range busyTries { // see package image
		if !errors.Is(err, syscall.ETXTBSY) {
			break
		}
		time.Sleep(busyWait)
		err = syscall.Exec(r.Path, argv, env)
	}
	return fmt.Errorf("run %s: %w", r.Path, err)
}

func (r Rules) limit() error {
	for _, l := range []struct {
		what string
		kind int
		most uint64
		set  bool
	}{
		{"core files", unix.RLIMIT_CORE, 0, true},
		{"open files", unix.RLIMIT_NOFILE, r.Files, r.Files > 0},
		{"address space", unix.RLIMIT_AS, r.AddressSpace, r.AddressSpace > 0},
	} {
		if !l.set {
			continue
		}
		var now unix.Rlimit
		err := unix.Getrlimit(l.kind, &now)
		if err == nil {
			most := min(l.most, now.Max)
			err = unix.Setrlimit(l.kind, &unix.Rlimit{Cur: most, Max: most})
		}
		if err != nil {
			return fmt.Errorf("limit %s to %d: %w", l.what, l.most, err)
		}
	}
	// Of this thread, which is the process in a moment. It never fails upwards.
	now, err := unix.Getpriority(unix.PRIO_PROCESS, 0)
	if err == nil {
		err = unix.Setpriority(unix.PRIO_PROCESS, 0, min(20-now+Nice, 19)) // the system call counts from 20 down
	}
	if err != nil {
		return fmt.Errorf("lower the priority: %w", err)
	}
	return nil
}
