package main

import (
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"
)

// TestStopUnderLoad (H12): a host that is asked to stop does so in time and in
// order, with the code that says how it was asked, leaves no process, socket or
// directory, and no client notices anything but its absence.
func TestStopUnderLoad(t *testing.T) {
	t.Parallel()
	p := newProcess(t)
	tmp := p.ownTemp()
	p.start()
	tr := begin(p, load{endpoints: 10, flags: 4, watchers: 6})
	tr.settled("every client to see every endpoint", 20)
	tr.decide(p)
	for _, stop := range []struct {
		signal syscall.Signal
		code   int
	}{{syscall.SIGTERM, exitOK}, {syscall.SIGINT, exitInterrupted}} {
		group := p.group()
		before := tr.rollouts()
		until(t, "a rollout to end", func() bool { return tr.rollouts() > before })
		began := time.Now()
		code := p.signal(stop.signal)
		took := time.Since(began)
		t.Logf("%v: code %d after %v", stop.signal, code, took.Round(time.Millisecond))
		if code != stop.code {
			t.Errorf("%v ends the host with %d, want %d", stop.signal, code, stop.code)
		}
		if took > 10*time.Second { // 5 s is the promise; the rest is for a busy machine
			t.Errorf("%v: the host took %v to stop", stop.signal, took)
		}
		for _, pid := range group {
			if alive(pid) {
				t.Errorf("%v: process %d of the host is still there", stop.signal, pid)
			}
		}
		if left := leftIn(t, tmp); len(left) > 0 {
			t.Errorf("%v: left are %v", stop.signal, left)
		}
		if _, err := os.Stat(filepath.Join(p.dir, "host.json")); err == nil {
			t.Errorf("%v: host.json still says where it listens", stop.signal)
		}
		tr.holds(p)
		p.start()
		tr.settled("every client to see every endpoint again", 20)
	}
	tr.end()
	t.Logf("%d decisions, %d failed", tr.decisions.Load(), tr.failed.Load())
}

// ownTemp gives the host a directory for its plugins' sockets that nobody else
// uses: a path as short as sockets need it.
func (p *process) ownTemp() string {
	p.t.Helper()
	tmp, err := os.MkdirTemp("", "dh")
	if err != nil {
		p.t.Fatal(err)
	}
	p.t.Cleanup(func() { _ = os.RemoveAll(tmp) })
	p.env = append(p.env, "TMPDIR="+tmp)
	return tmp
}

// leftIn lists what a host keeps of its plugins in a directory from ownTemp.
func leftIn(t *testing.T, tmp string) []string {
	t.Helper()
	left, err := filepath.Glob(filepath.Join(tmp, "*", "*"))
	if err != nil {
		t.Fatal(err)
	}
	return left
}

// group is every process of the host but itself.
func (p *process) group() []int {
	p.t.Helper()
	conn := p.dial()
	until(p.t, "a plugin", func() bool { return len(plugins(p.t, conn)) > 0 })
	return append(plugins(p.t, conn), descendants(p.cmd.Process.Pid)...)
}
