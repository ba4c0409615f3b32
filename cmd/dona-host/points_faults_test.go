//go:build faults

package main

import (
	"fmt"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"
)

// points are where the host is made to die, and at which of its visits there. A
// transition of a rollout goes through all of them: decided, written, in the
// store, published. The fifth is the first rollback.
var points = []struct {
	name string
	hits []int
}{
	{"rollout.before-step", []int{1, 2, 3, 5}},
	{"rollout.inside-step", []int{1, 2, 3, 5}},
	{"rollout.after-step", []int{1, 2, 3, 5}},
	{"store.before-commit", []int{1, 2, 3, 5, 10, 25, 60, 120}}, // the first are at its start
	{"store.after-commit", []int{1, 2, 3, 5, 10, 25, 60, 120}},
	{"snapshot.before-publish", []int{1, 2, 5, 20}},
	{"snapshot.while-sending", []int{1, 7, 20, 60}},
}

// TestCrashPoints (H2, C5): the host dies at each point of its work, and afterwards
// every action is there with its audit entry or not at all, no rollout is half
// moved, and a restart goes on.
func TestCrashPoints(t *testing.T) {
	for _, point := range points {
		if os.Getenv("REPEAT") != "" {
			apart := 7
			if strings.HasPrefix(point.name, "rollout.") {
				apart = 1 // a second or so lies between two of them
			}
			for n := range 10 {
				point.hits = append(point.hits, 6+apart*n)
			}
		}
		for _, hit := range point.hits {
			t.Run(fmt.Sprintf("%s:%d", point.name, hit), func(t *testing.T) {
				t.Parallel()
				dieAt(t, fmt.Sprintf("%s:%d", point.name, hit))
			})
		}
	}
}

func dieAt(t *testing.T, point string) {
	p := newProcess(t)
	p.env = []string{"DONA_CRASH_POINT=" + point}
	p.spawn()
	tr := begin(p, load{endpoints: 3, flags: 1, watchers: 3})
	select {
	case <-p.exited:
	case <-time.After(2 * time.Minute):
		t.Fatalf("the host never came to %s", point)
	}
	if s := p.cmd.ProcessState.Sys().(syscall.WaitStatus); s.Signal() != syscall.SIGKILL {
		t.Fatalf("the host ended otherwise than at %s: %v", point, p.cmd.ProcessState)
	}
	tr.holds(p)
	p.env = nil
	p.start()
	before := tr.rollouts()
	until(t, "two rollouts to end after the restart", func() bool { return tr.rollouts() >= before+2 })
	tr.settled("every client to see every endpoint", 6)
	tr.end()
	p.kill()
	tr.holds(p)
}
