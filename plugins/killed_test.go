//go:build linux

package plugins_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// runHost starts a host process with a plugin that has two children, one in a
// session of its own, and returns the processes: plugin, child, the other
// child, watchdog.
func runHost(t *testing.T, runDir string, inherit ...*os.File) (host *hostProc, pids []int) {
	t.Helper()
	host = startHostProcess(t, ownProgram(t), hostSetup{RunDir: runDir, Cast: cast{"forks": "sdk"}}, inherit...)
	pids = append(pids, host.must("await forks").PID)
	for _, deed := range []string{"fork", "fork-setsid"} {
		pid, err := strconv.Atoi(host.must("do forks " + deed).Detail)
		if err != nil {
			t.Fatal(err)
		}
		pids = append(pids, pid)
	}
	return host, append(pids, host.must("watchdog").PID)
}

func gone(pids []int) func() bool {
	return func() bool {
		for _, pid := range pids {
			if alive(pid) {
				return false
			}
		}
		return true
	}
}

func empty(t testing.TB, dir string) func() bool {
	return func() bool {
		left, err := os.ReadDir(dir)
		if err != nil {
			t.Fatal(err)
		}
		return len(left) == 0
	}
}

// A host that is killed takes everything along: ten plugins, among them one that
// is stopped, one with children, one that ignores all hints, and calls in
// flight.
func TestG4KilledHostLeavesNothing(t *testing.T) {
	c := cast{"forks": "sdk", "raw-forks": "raw", "stops": "sdk", "stubborn": "stubborn", "drain-hangs": "drain-hangs"}
	for i := len(c); i < 10; i++ {
		c[fmt.Sprint("p", i)] = []string{"sdk", "raw"}[i%2]
	}
	host := startHostProcess(t, ownProgram(t), hostSetup{Cast: c})
	for name := range c {
		host.must("ensure " + name)
	}
	pids := []int{host.must("watchdog").PID}
	for name := range c {
		pids = append(pids, host.must("await "+name).PID)
	}
	for _, line := range []string{"do forks fork", "do forks fork-setsid", "do raw-forks fork", "do raw-forks fork-setsid"} {
		pid, err := strconv.Atoi(host.must(line).Detail)
		if err != nil {
			t.Fatal(err)
		}
		pids = append(pids, pid)
	}
	host.must("go stops stop")
	for name := range c {
		host.must("go " + name + " hang")
	}
	stopped := host.must("status stops").PID
	until(t, "one plugin stopped", nil, func() bool { return processState(stopped) == "T" })
	if n := len(processesOf(t, host.runDir)); n < 14 {
		t.Errorf("%d processes before the kill, want ten plugins and their children", n)
	}
	killed := time.Now()
	_ = host.Process.Kill()
	_ = host.Wait()
	host.nothingLeft(pids...)
	took := time.Since(killed)
	t.Logf("%d processes gone %v after the kill", len(pids), took)
	if took > stopPromise {
		t.Errorf("that took %v: promised are %v", took, stopPromise)
	}
}

// processState is the letter of /proc, empty when there is no such process.
func processState(pid int) string {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return ""
	}
	_, rest, _ := strings.Cut(string(stat), ") ")
	return rest[:min(1, len(rest))]
}

// A stopped plugin can do nothing for itself, and without the watchdog only the
// kernel ends it; the next host sweeps the rest.
func TestKilledHostWithoutWatchdog(t *testing.T) {
	runDir := newOptions(t).RunDir
	host, pids := runHost(t, runDir)
	plugin, dog := pids[0], pids[3]
	for _, pid := range []int{host.Process.Pid, dog, plugin} {
		if err := syscall.Kill(pid, syscall.SIGSTOP); err != nil {
			t.Fatal(err)
		}
	}
	for _, pid := range []int{dog, host.Process.Pid} {
		if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
	}
	_ = host.Wait()
	until(t, "plugin gone", nil, func() bool { return !alive(plugin) })
	if empty(t, runDir)() {
		t.Fatal("nobody was left to remove the run directory, and it is gone")
	}

	o := newOptions(t)
	o.RunDir = runDir
	h := startHost(t, o)
	until(t, "children gone", nil, gone(pids))
	left, err := os.ReadDir(runDir)
	if err != nil || len(left) != 1 {
		t.Errorf("run directory has %v, %v: want that of this host only", left, err)
	}
	h.Stop(context.Background())
	if !empty(t, runDir)() {
		t.Error("run directory is not empty after the stop")
	}
}

// Only the watchdog can end a child in a session of its own and remove the
// directory: that both go shows that a new one was told what the old one knew.
func TestKilledWatchdogIsReplacedAndToldAgain(t *testing.T) {
	runDir := newOptions(t).RunDir
	host, pids := runHost(t, runDir)
	first := pids[3]
	if err := syscall.Kill(first, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	var second int
	until(t, "another watchdog", nil, func() bool {
		second = watchdogOf(t, host.Process.Pid)
		return second != 0 && second != first
	})
	if err := syscall.Kill(host.Process.Pid, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	_ = host.Wait()
	until(t, "everything gone", nil, gone(append(pids[:3:3], second)))
	until(t, "run directory empty", nil, empty(t, runDir))
}

// watchdogOf finds the watchdog process of a host, 0 when there is none.
func watchdogOf(t *testing.T, host int) int {
	t.Helper()
	all, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range all {
		line, err := os.ReadFile(path)
		if err != nil || !strings.HasPrefix(string(line), "dona-watchdog\x00") {
			continue
		}
		stat, err := os.ReadFile(filepath.Join(filepath.Dir(path), "stat"))
		_, rest, _ := strings.Cut(string(stat), ") ")
		fields := strings.Fields(rest)
		pid, _ := strconv.Atoi(filepath.Base(filepath.Dir(path)))
		if err == nil && len(fields) > 1 && fields[1] == strconv.Itoa(host) && alive(pid) {
			return pid
		}
	}
	return 0
}
