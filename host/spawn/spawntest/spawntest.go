// Package spawntest looks for what demonstrations leave behind: processes, by /proc, and
// files. Their tests use it.
package spawntest

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// Build builds programs of this module, side by side, and returns their directory,
// which is the test's own: each of them is built once for all tests of a process, and
// linked into it. Who writes another file in the place of one removes it first. A test
// that runs a demonstration is skipped with -short, and where there is no /proc.
func Build(t *testing.T, packages ...string) string {
	t.Helper()
	if testing.Short() {
		t.Skip("runs a demonstration with real processes")
	}
	if runtime.GOOS != "linux" {
		t.Skip("looks for processes left behind in /proc")
	}
	dir := t.TempDir()
	if err := built.into(dir, packages); err != nil {
		t.Fatal(err)
	}
	return dir
}

// Clean removes what was built. TestMain calls it once all tests have ended.
func Clean() { built.clean() }

// built has the programs that were built.
var built programs

type programs struct {
	mu   sync.Mutex
	dir  string          // empty = nothing was built yet
	done map[string]bool // by package
}

// into builds what was not yet, and links all of packages into dir.
func (b *programs) into(dir string, packages []string) (err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.dir == "" {
		if b.dir, err = os.MkdirTemp("", "spawntest-*"); err != nil {
			return err
		}
		b.done = map[string]bool{}
	}
	args := []string{"build", "-ldflags=-s -w", "-o", b.dir + "/"}
	missing := slices.DeleteFunc(slices.Clone(packages), func(p string) bool { return b.done[p] })
	for _, p := range missing {
		args = append(args, "github.com/dodona-project/dodona/"+p)
	}
	if len(missing) > 0 {
		if out, err := exec.Command("go", args...).CombinedOutput(); err != nil {
			return fmt.Errorf("build: %w\n%s", err, out)
		}
	}
	for _, p := range packages {
		b.done[p] = true
		if err := os.Link(filepath.Join(b.dir, path.Base(p)), filepath.Join(dir, path.Base(p))); err != nil {
			return err
		}
	}
	return nil
}

func (b *programs) clean() {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.dir != "" {
		_ = os.RemoveAll(b.dir)
	}
	b.dir = ""
}

// Run is a demonstration with a temporary directory of its own. What it starts has a mark
// in its environment.
type Run struct {
	*exec.Cmd
	Temp string
	dir  string
	mark string
}

// Command makes one that is not started yet. program is a file of what Build returned.
func Command(t *testing.T, program string, args ...string) *Run {
	t.Helper()
	// Short: paths of sockets have little room.
	temp, err := os.MkdirTemp("/tmp", "d")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(temp) })
	r := &Run{Cmd: exec.Command(program, args...), Temp: temp, dir: filepath.Dir(program), mark: "SPAWNTEST_MARK=" + temp}
	r.Env = append(os.Environ(), "TMPDIR="+temp, r.mark)
	return r
}

// Processes finds what runs of it, and of the programs beside it.
func (r *Run) Processes() (found []string) {
	entries, _ := filepath.Glob("/proc/[0-9]*")
	for _, p := range entries {
		exe, _ := os.Readlink(filepath.Join(p, "exe"))
		environ, _ := os.ReadFile(filepath.Join(p, "environ"))
		if strings.HasPrefix(exe, r.dir+"/") || bytes.Contains(environ, []byte(r.mark)) {
			command, _ := os.ReadFile(filepath.Join(p, "cmdline"))
			found = append(found, filepath.Base(p)+" "+string(bytes.ReplaceAll(command, []byte{0}, []byte{' '})))
		}
	}
	return found
}

// Interrupted starts it, sends it SIGINT once it prints a line with part while processes of
// it run, as many as least at least, and wants it to end with code, one line on stderr and
// nothing left.
func (r *Run) Interrupted(t *testing.T, part string, least, code int, line string) {
	t.Helper()
	var stderr bytes.Buffer
	r.Stderr = &stderr
	stdout, err := r.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := r.Start(); err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewScanner(stdout)
	for lines.Scan() && !strings.Contains(lines.Text(), part) {
	}
	if n := len(r.Processes()); n < least {
		t.Errorf("%d processes run in the middle of it: the search for what it leaves is blind", n)
	}
	if err := r.Process.Signal(syscall.SIGINT); err != nil {
		t.Fatal(err)
	}
	_, _ = io.Copy(io.Discard, stdout)
	var exit *exec.ExitError
	if err := r.Wait(); !errors.As(err, &exit) || exit.ExitCode() != code {
		t.Errorf("interrupted: %v, want exit code %d", err, code)
	}
	if got := stderr.String(); got != line+"\n" {
		t.Errorf("stderr is %q", got)
	}
	r.NothingLeft(t)
}

// NoProcess waits until no process of it lives.
func (r *Run) NoProcess(t *testing.T) {
	t.Helper()
	for limit := time.Now().Add(10 * time.Second); ; {
		left := r.Processes()
		if len(left) == 0 {
			return
		}
		if time.Now().After(limit) {
			t.Errorf("processes left: %v", left)
			return
		}
		<-time.After(20 * time.Millisecond)
	}
}

// NothingLeft waits until no process of it lives, and wants its temporary directory
// empty.
func (r *Run) NothingLeft(t *testing.T) {
	t.Helper()
	r.NoProcess(t)
	entries, err := os.ReadDir(r.Temp)
	if err != nil || len(entries) != 0 {
		t.Errorf("left in the temporary directory: %v %v", entries, err)
	}
}
