package badplugins

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	pluginv1 "github.com/dodona-project/dodona/proto/plugin/v1"
)

// A deed is what a serving plugin does in one call. arg is the rest of the
// query; the reply is a good one, to be spoiled.
type deed func(ctx context.Context, arg string, reply *pluginv1.EvaluateReply) error

var deeds = map[string]deed{
	"":       func(context.Context, string, *pluginv1.EvaluateReply) error { return nil },
	"slow":   slow,
	"late":   late,
	"cancel": cancelLate,

	"panic":           func(context.Context, string, *pluginv1.EvaluateReply) error { panic("deliberate") },
	"panic-goroutine": panicInGoroutine,
	"exit":            func(context.Context, string, *pluginv1.EvaluateReply) error { os.Exit(7); return nil },
	"hang":            func(context.Context, string, *pluginv1.EvaluateReply) error { forever(); return nil },
	"stop":            stopItself,

	"fork":        fork,
	"fork-setsid": forkSetsid,
	"fork-exit":   forkExit,

	"bombs": func(context.Context, string, *pluginv1.EvaluateReply) error { writeBombs(); return nil },
	"stderr": func(_ context.Context, arg string, _ *pluginv1.EvaluateReply) error {
		floodStderr(number(arg))
		return nil
	},
	"stdout": func(_ context.Context, arg string, _ *pluginv1.EvaluateReply) error {
		printStdout(number(arg))
		return nil
	},
	"lines": func(context.Context, string, *pluginv1.EvaluateReply) error { longLines(); return nil },

	"hog":   hog,
	"spin":  spin,
	"files": openFiles,
	"leave": leaveFiles,
	"env":   environment,

	"large":  large,
	"nested": nested,
	"error":  largeError,
	"answer": spoil,

	"broker":       dialBroker,
	"broker-flood": floodBroker,
}

func number(arg string) int {
	n, err := strconv.Atoi(arg)
	if err != nil {
		panic(err)
	}
	return n
}

// slow takes the time it is given.
func slow(ctx context.Context, arg string, _ *pluginv1.EvaluateReply) error {
	d, err := time.ParseDuration(arg)
	if err != nil {
		return err
	}
	select {
	case <-time.After(d):
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// late answers ten milliseconds before its deadline, or as much earlier as it
// is told.
func late(ctx context.Context, arg string, _ *pluginv1.EvaluateReply) error {
	early := 10 * time.Millisecond
	if arg != "" {
		var err error
		if early, err = time.ParseDuration(arg); err != nil {
			return err
		}
	}
	deadline, _ := ctx.Deadline()
	time.Sleep(time.Until(deadline.Add(-early)))
	return nil
}

// cancelLate ends the call a moment before its deadline, as a clock that is a
// little ahead of the host's does.
func cancelLate(ctx context.Context, _ string, _ *pluginv1.EvaluateReply) error {
	deadline, _ := ctx.Deadline()
	time.Sleep(time.Until(deadline.Add(-5 * time.Millisecond)))
	return status.Error(codes.Canceled, "out of time")
}

func panicInGoroutine(ctx context.Context, _ string, _ *pluginv1.EvaluateReply) error {
	go func() { panic("deliberate, elsewhere") }()
	<-ctx.Done()
	return ctx.Err()
}

func stopItself(ctx context.Context, _ string, _ *pluginv1.EvaluateReply) error {
	_ = syscall.Kill(os.Getpid(), syscall.SIGSTOP)
	<-ctx.Done()
	return ctx.Err()
}

// child starts a process that holds stdout and stderr, and ignores SIGTERM.
func child(attributes *syscall.SysProcAttr) (int, error) {
	cmd := exec.Command("/bin/sh", "-c", "trap '' TERM HUP; sleep 600 & wait; sleep 600")
	cmd.Stdout, cmd.Stderr = os.NewFile(1, "1"), os.NewFile(2, "2")
	cmd.SysProcAttr = attributes
	if err := cmd.Start(); err != nil {
		return 0, err
	}
	return cmd.Process.Pid, nil
}

// fork answers with the number of its child.
func fork(_ context.Context, _ string, reply *pluginv1.EvaluateReply) error {
	pid, err := child(nil)
	reply.Detail = fmt.Sprint(pid)
	return err
}

// forkSetsid has a child that has left the process group.
func forkSetsid(_ context.Context, _ string, reply *pluginv1.EvaluateReply) error {
	pid, err := child(&syscall.SysProcAttr{Setsid: true})
	reply.Detail = fmt.Sprint(pid)
	return err
}

// forkExit leaves children behind.
func forkExit(context.Context, string, *pluginv1.EvaluateReply) error {
	_, _ = child(nil)
	_, _ = child(&syscall.SysProcAttr{Setsid: true})
	os.Exit(8)
	return nil
}

// hog takes memory until there is none. It needs the host to have limited it: how
// the machine ends such a process is not what the test is about.
func hog(context.Context, string, *pluginv1.EvaluateReply) error {
	var most unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_AS, &most); err != nil {
		return err
	}
	if most.Cur > 16<<30 {
		return errors.New("nothing limits the address space")
	}
	var all [][]byte
	for {
		all = append(all, make([]byte, 512<<20)) // reserved, not touched
		runtime.KeepAlive(all)
	}
}

// spin burns every processor it gets and looks at no deadline.
func spin(context.Context, string, *pluginv1.EvaluateReply) error {
	for range runtime.GOMAXPROCS(0) {
		go func() {
			for n := uint64(1); n != 0; n++ {
			}
		}()
	}
	forever()
	return nil
}

// openFiles opens files until it gets no more, and answers with how many.
func openFiles(_ context.Context, _ string, reply *pluginv1.EvaluateReply) error {
	var open []*os.File
	defer func() {
		for _, f := range open {
			_ = f.Close()
		}
	}()
	for len(open) < 100_000 {
		f, err := os.Open("/dev/null")
		if err != nil {
			break
		}
		open = append(open, f)
	}
	reply.Detail = fmt.Sprint(len(open))
	return nil
}

// leaveFiles fills its directories with what is hard to remove.
func leaveFiles(context.Context, string, *pluginv1.EvaluateReply) error {
	for _, root := range []string{os.Getenv("TMPDIR"), os.Getenv("PLUGIN_UNIX_SOCKET_DIR")} {
		deep := filepath.Join(root, strings.Repeat("d/", 50))
		if err := os.MkdirAll(deep, 0o700); err != nil {
			return err
		}
		for i := range 100 {
			if err := os.WriteFile(filepath.Join(root, fmt.Sprint("file", i)), make([]byte, 1<<10), 0o400); err != nil {
				return err
			}
		}
		if err := syscall.Mkfifo(filepath.Join(deep, "fifo"), 0o600); err != nil {
			return err
		}
		if err := os.Symlink("/etc", filepath.Join(root, "link")); err != nil {
			return err
		}
	}
	return nil
}

// environment answers with all it was given, a NUL byte between.
func environment(_ context.Context, _ string, reply *pluginv1.EvaluateReply) error {
	reply.Evidence = []byte(strings.Join(os.Environ(), "\x00"))
	return nil
}
