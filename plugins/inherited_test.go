//go:build linux

package plugins_test

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"
)

// What a host was started with, a shell's descriptors say, stays its own.
func TestInheritedDescriptorsStayWithTheHost(t *testing.T) {
	file, err := os.Create(filepath.Join(t.TempDir(), "inherited"))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = file.Close() }()
	dir, err := os.MkdirTemp("", "p")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	host, pids := runHost(t, filepath.Join(dir, "run"), file)
	holds := func(pid int) bool {
		fds, err := filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", pid))
		if err != nil || len(fds) == 0 {
			t.Fatalf("descriptors of process %d: %v, %v", pid, fds, err)
		}
		for _, fd := range fds {
			if to, err := os.Readlink(fd); err == nil && to == file.Name() {
				return true
			}
		}
		return false
	}
	if !holds(host.Process.Pid) {
		t.Fatal("the host was not given the file, so this test shows nothing")
	}
	for _, pid := range pids {
		if holds(pid) {
			t.Errorf("process %d has a descriptor that the host inherited", pid)
		}
	}
}
