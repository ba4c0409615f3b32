package rollout_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/dodona-project/dodona/host/rollout"
)

// tick has a controller look at every live rollout once, as its Run does each
// second.
func (w *world) tick(c *rollout.Controller) {
	w.t.Helper()
	c.Tick(w.ctx)
}

// A transition that the store does not take leaves everything as it was, and is
// taken when the store works again.
func TestStoreRefusesTransition(t *testing.T) {
	now := time.UnixMilli(1_700_000_000_000)
	st := newMemStore(func() time.Time { return now })
	w := newWorld(t, st, func() time.Time { return now })
	w.endpoints("v2", 1)
	w.start(request())
	w.tick(w.c)
	_, version := w.weights()
	w.report("v2", 20, 20, version)

	st.fail = errors.New("no space")
	entries := len(w.chain())
	for range 3 {
		now = now.Add(time.Second)
		w.tick(w.c)
	}
	weights, v := w.weights()
	if weights != "v2=25 v1=75" || v != version || len(w.quarantined()) != 0 || len(w.chain()) != entries {
		t.Fatalf("a transition that failed left weights %s, quarantine %v, %d entries", weights, w.quarantined(), len(w.chain())-entries)
	}
	st.fail = nil
	w.tick(w.c)
	if weights, _ := w.weights(); weights != "v2=0 v1=100" || w.record().GetState().String() != "STATE_ROLLED_BACK" {
		t.Fatalf("%s, %s", weights, w.record().GetState())
	}
}

// A cancelled Run returns, and so do the evaluations it began.
func TestRunEnds(t *testing.T) {
	w := newWorld(t, newMemStore(time.Now), time.Now)
	w.endpoints("v2", 1)
	w.analyzer.block = make(chan struct{})
	w.start(request(withQuery(latency())))
	ctx, cancel := context.WithCancel(w.ctx)
	done := make(chan error)
	go func() { done <- w.c.Run(ctx) }()
	for w.analyzer.questions() == 0 {
		w.status()
	}
	cancel()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
}
