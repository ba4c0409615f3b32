// Package spawntest looks for what demonstrations leave behind: processes, by /proc, and
// files. Their tests use it.
package spawntest

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"
)

// Build builds programs of this module, side by side, and returns their directory. A
// test that runs a demonstration is skipped with -short, and where there is no /proc.
func Build(t *testing.T, packages ...string) string {
	t.Helper()
	if testing.Short() {
		t.Skip("runs a demonstration with real processes")
	}
	if runtime.GOOS != "linux" {
		t.Skip("looks for processes left behind in /proc")
	}
	dir := t.TempDir()
	args := []string{"build", "-o", dir + "/"}
	for _, p := range packages {
		args = append(args, "github.com/dodona-project/dodona/"+p)
	}
	if out, err := exec.Command("go", args...).CombinedOutput(); err != nil {
		t.Fatalf("build: %v\n%s", err, out)
	}
	return dir
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
