package rollout_test

import (
	"context"
	"strconv"
	"testing"
	"time"

	donav1 "github.com/dodona-project/dodona/proto/dona/v1"

	"github.com/dodona-project/dodona/host/store"
)

// overtaken is a store on which each hard transaction is too late: it has run on what
// was there when another host commits something else, and runs again.
type overtaken struct {
	*memStore
	meanwhile func()
	steps     int // runs that wrote and were thrown away
}

func (s *overtaken) Update(ctx context.Context, d store.Durability, fn func(store.Tx) error) error {
	if d == store.Hard {
		s.mu.Lock()
		old := s.transaction()
		err := fn(old)
		s.mu.Unlock()
		if err == nil && old.wrote {
			s.steps++
		}
		s.meanwhile()
	}
	return s.memStore.Update(ctx, d, fn)
}

// A step that was decided on an old version is never taken: of 1,000 that another host
// was faster with, each is in the chain once, and the rollout is where that host left
// it.
func TestStepOnAnOldVersion(t *testing.T) {
	const rollouts = 20
	decided, taken := 0, 0
	for range rollouts {
		d, n := raceForSteps(t, 50)
		decided, taken = decided+d, taken+n
	}
	t.Logf("%d steps decided on an old version, %d of them taken", decided, taken)
	if decided < 1000 || taken != 0 {
		t.Errorf("%d steps were decided on an old version and %d of them taken, want 1000 and none", decided, taken)
	}
}

// raceForSteps has two hosts tick through a rollout, of which one is always too late.
// It returns how many steps that one decided, and how many it took.
func raceForSteps(t *testing.T, n int) (decided, taken int) {
	c := newClock()
	st := newMemStore(c.now)
	w := newWorld(t, st, c.now)
	rival := w.controller("h2")
	slow := &overtaken{memStore: st, meanwhile: func() { rival.Tick(w.ctx) }}
	w.store = slow
	late := w.controller("h1")
	w.store = st
	var steps []uint32
	for i := range n {
		steps = append(steps, uint32(100*(i+1)/n))
	}
	w.endpoints("v2", 1)
	w.start(request(func(r *donav1.StartRolloutRequest) { r.Steps, r.StepSeconds, r.MinRequests = steps, 1, 1 }))
	for k := range n {
		late.Tick(w.ctx)
		if r := w.record(); int(r.GetStepIndex()) != k || r.GetState() != donav1.RolloutStatus_STATE_PROGRESSING {
			t.Fatalf("the rollout is at %s of step %d, want step %d", r.GetState(), r.GetStepIndex(), k)
		}
		_, version := w.weights()
		w.report("v2", 1, 0, version)
		c.advance(time.Second)
	}
	late.Tick(w.ctx)
	if r := w.record(); r.GetState() != donav1.RolloutStatus_STATE_PROMOTED {
		t.Fatalf("the rollout is %s", r.GetState())
	}
	next := 0
	for _, e := range w.chain() {
		if e.Actor == "host:h1" {
			taken++
		}
		if e.Kind != "rollout.step" {
			continue
		}
		if e.Detail["step"] != strconv.Itoa(next) {
			t.Errorf("entry %d is step %s, want %d", e.Seq, e.Detail["step"], next)
		}
		next++
	}
	if next != n {
		t.Errorf("%d steps in the chain, want %d", next, n)
	}
	return slow.steps, taken
}
