package rollout_test

import (
	"context"
	"fmt"
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
	c := newClock()
	st := newMemStore(c.now)
	w := newWorld(t, st, c.now)
	rival := w.controller("h2")
	slow := &overtaken{memStore: st, meanwhile: func() { rival.Tick(w.ctx) }}
	w.store = slow
	late := w.controller("h1")
	w.store = st
	steps := make([]uint32, 50)
	for i := range steps {
		steps[i] = uint32(2 * (i + 1))
	}
	for n := range rollouts {
		stable, canary := fmt.Sprint("v", n+1), fmt.Sprint("v", n+2)
		w.endpoints(canary, 1)
		w.start(request(func(r *donav1.StartRolloutRequest) {
			r.StableVariant, r.CanaryVariant, r.Steps, r.StepSeconds, r.MinRequests = stable, canary, steps, 1, 1
		}))
		for k := range len(steps) {
			late.Tick(w.ctx)
			r := w.record()
			if int(r.GetStepIndex()) != k || r.GetState() != donav1.RolloutStatus_STATE_PROGRESSING {
				t.Fatalf("rollout %d is at %s of step %d, want step %d", n, r.GetState(), r.GetStepIndex(), k)
			}
			_, version := w.weights()
			w.report(canary, 1, 0, version)
			c.advance(time.Second)
		}
		late.Tick(w.ctx)
		if r := w.record(); r.GetState() != donav1.RolloutStatus_STATE_PROMOTED {
			t.Fatalf("rollout %d is %s", n, r.GetState())
		}
	}
	if slow.steps < rollouts*len(steps) {
		t.Errorf("only %d steps were decided on an old version", slow.steps)
	}
	next, by := 0, map[string]int{}
	for _, e := range w.chain() {
		switch e.Kind {
		case "rollout.step":
			if want := next % len(steps); e.Detail["step"] != strconv.Itoa(want) {
				t.Errorf("entry %d is step %s, want %d", e.Seq, e.Detail["step"], want)
			}
			next++
			by[e.Actor]++
		case "rollout.promote":
			by[e.Actor]++
		}
	}
	if next != rollouts*len(steps) || by["host:h1"] != 0 {
		t.Errorf("%d steps of %d, by %v: those of host:h1 rest on old versions", next, rollouts*len(steps), by)
	}
	t.Logf("%d steps decided on an old version, %d of them taken", slow.steps, by["host:h1"])
}
