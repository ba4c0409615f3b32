//go:build linux

package watchdog_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	"go.uber.org/goleak"

	"github.com/dodona-project/dodona/plugins/watchdog"
)

func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == watchdog.Arg {
		watchdog.Main()
		return
	}
	goleak.VerifyTestMain(m)
}

// group starts a process at the head of a group of its own; the channel is
// closed when it is gone.
func group(t *testing.T) (pgid int, gone <-chan struct{}) {
	t.Helper()
	cmd := exec.Command("sleep", "600")
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() { _ = cmd.Wait(); close(done) }()
	t.Cleanup(func() { _ = cmd.Process.Kill(); <-done })
	return cmd.Process.Pid, done
}

func within(t *testing.T, what string, done <-chan struct{}) {
	t.Helper()
	select {
	case <-done:
	case <-time.After(time.Minute):
		t.Fatalf("not in time: %s", what)
	}
}

func exists(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}

func TestEndOfFileEndsWhatIsWatched(t *testing.T) {
	one, oneGone := group(t)
	two, twoGone := group(t)
	dir, kept := filepath.Join(t.TempDir(), "a dir"), t.TempDir()
	if err := os.MkdirAll(filepath.Join(dir, "deep"), 0o700); err != nil {
		t.Fatal(err)
	}
	c, err := watchdog.Start(os.Args[0], hclog.NewNullLogger())
	if err != nil {
		t.Fatal(err)
	}
	c.Add(one, dir)
	c.Add(two, kept)
	c.Remove(two)
	c.Close()
	within(t, "group one killed", oneGone)
	if exists(dir) || !exists(kept) {
		t.Errorf("watched directory there: %v, forgotten directory there: %v", exists(dir), exists(kept))
	}
	select {
	case <-twoGone:
		t.Error("a group that was taken back was killed")
	default:
	}
	c.Close() // a second time is nothing
}

// A watchdog that does not read is no watchdog: it is replaced, and the host
// does not wait for it.
func TestStoppedWatchdogIsReplaced(t *testing.T) {
	c, err := watchdog.Start(os.Args[0], hclog.NewNullLogger())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	first, _ := c.PID()
	if err := syscall.Kill(first, syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	long := "/" + strings.Repeat("d", 4000)
	deadline := time.Now().Add(time.Minute)
	for {
		for range 20 { // more than a pipe holds
			c.Add(0, long)
		}
		c.Add(0, "")
		if pid, starts := c.PID(); starts > 1 && pid != 0 && pid != first {
			return
		}
		if time.Now().After(deadline) {
			t.Fatal("the stopped watchdog was not replaced")
		}
	}
}

func TestNonsenseIsIgnored(t *testing.T) {
	dir := t.TempDir()
	lines := strings.Join([]string{"", "+", "-", "+x " + dir, "+1 " + dir, "+-5 " + dir, "*7 " + dir, "+0 relative", "- 3"}, "\n")
	watchdog.Watch(strings.NewReader(lines))
	if !exists(dir) {
		t.Error("a directory of a line that is none was removed")
	}
}
