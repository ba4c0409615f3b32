//go:build linux

package plugins_test

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"
)

// A service manager signals every process of a host at once. What is in flight
// is finished all the same, and the host ends everything in order.
func TestG18SignalToEveryProcess(t *testing.T) {
	beside(t)
	for _, tc := range []struct {
		name string
		cast cast
		lost int // calls that cannot be finished
	}{
		{"well-behaved", cast{"a": "sdk", "b": "sdk", "forks": "sdk"}, 0},
		{"stopped, stubborn and hanging too", cast{"a": "sdk", "stops": "sdk", "stubborn": "stubborn", "drain-hangs": "drain-hangs"}, 1},
	} {
		t.Run(tc.name, func(t *testing.T) {
			host := startHostProcess(t, ownProgram(t), hostSetup{Cast: tc.cast})
			pids := []int{host.must("watchdog").PID}
			for name := range tc.cast {
				pids = append(pids, host.must("await "+name).PID)
			}
			calls := 0
			for range 5 {
				host.must("go a slow 700ms")
				calls++
			}
			if _, ok := tc.cast["b"]; ok {
				host.must("go b slow 700ms")
				calls++
			}
			if _, ok := tc.cast["forks"]; ok {
				host.must("do forks fork")
				host.must("do forks fork-setsid")
			}
			if _, ok := tc.cast["stops"]; ok {
				host.must("go stops stop")
				calls++
				stopped := host.must("status stops").PID
				until(t, "one plugin stopped", nil, func() bool { return processState(stopped) == "T" })
			}
			until(t, "every call is in flight", nil, func() bool { return host.must("begun").OK == calls })
			for _, pid := range processesOf(t, host.runDir) {
				_ = syscall.Kill(pid, syscall.SIGTERM)
			}
			signalled := time.Now()
			if err := syscall.Kill(-host.Process.Pid, syscall.SIGTERM); err != nil {
				t.Fatal(err)
			}
			r := host.terminated()
			took := time.Since(signalled)
			t.Logf("the host ended %v after the signal, its stop took %v: %d calls finished, %d failed %s", took, r.Stop, r.OK, r.Failed, r.Error)
			if r.OK+r.Failed != calls || r.Failed != tc.lost {
				t.Errorf("%d calls finished and %d failed (%s), want %d and %d", r.OK, r.Failed, r.Error, calls-tc.lost, tc.lost)
			}
			if r.Stop > stopPromise {
				t.Errorf("the host took %v to stop: promised are %v", r.Stop, stopPromise)
			}
			host.nothingLeft(pids...)
		})
	}
}

// An upgrade replaces the host's file while the old host runs. Its built-ins
// restart from the program that runs, and not from the file.
func TestG17BuiltinsOfAReplacedProgram(t *testing.T) {
	exe := filepath.Join(t.TempDir(), "host")
	copyFile(t, ownProgram(t), exe)
	host := startHostProcess(t, exe, hostSetup{})
	first := host.must("await builtin")

	upgrade := exe + ".new"
	if err := os.WriteFile(upgrade, []byte("#!/bin/sh\necho upgraded >&2\nexit 1\n"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(upgrade, exe); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Kill(first.PID, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	var second hostReply
	until(t, "the built-in back", nil, func() bool {
		second = host.tell("status builtin")
		return second.State == "ready" && second.Generation == 2
	})
	host.must("do builtin")
	var old, now syscall.Stat_t
	if err := syscall.Stat(fmt.Sprintf("/proc/%d/exe", host.Process.Pid), &old); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Stat(fmt.Sprintf("/proc/%d/exe", second.PID), &now); err != nil {
		t.Fatal(err)
	}
	if old.Ino != now.Ino || old.Dev != now.Dev {
		t.Error("the built-in runs another file than the host")
	}
	// The watchdog too.
	dog := host.must("watchdog").PID
	if err := syscall.Kill(dog, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	until(t, "another watchdog", nil, func() bool { pid := host.must("watchdog").PID; return pid != 0 && pid != dog })
	_ = host.Process.Kill()
	_ = host.Wait()
	host.nothingLeft(second.PID)
}

func copyFile(t testing.TB, from, to string) {
	t.Helper()
	in, err := os.Open(from)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = in.Close() }()
	out, err := os.OpenFile(to, os.O_CREATE|os.O_WRONLY, 0o700)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := io.Copy(out, in); err != nil {
		t.Fatal(err)
	}
	if err := out.Close(); err != nil {
		t.Fatal(err)
	}
}
