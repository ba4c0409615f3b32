package rollout_test

import (
	"bytes"
	"context"
	"errors"
	"maps"
	"strings"
	"testing"
	"time"

	donav1 "github.com/dodona-project/dodona/proto/dona/v1"
	"github.com/hashicorp/go-hclog"
	"github.com/prometheus/client_golang/prometheus"

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

// TestTransitionsAreTold: each entry of a rollout in the audit chain is counted, and
// logged, once; what changed nothing or was refused is not.
func TestTransitionsAreTold(t *testing.T) {
	now := time.UnixMilli(1_700_000_000_000)
	w := newWorld(t, newMemStore(func() time.Time { return now }), func() time.Time { return now })
	told, lines := prometheus.NewRegistry(), &bytes.Buffer{}
	w.c = rollout.New(rollout.Options{Store: w.store, Service: w.plane, Audit: w.log, Analyzer: w.analyzer, HostID: "h1", WallClock: w.wall,
		Registerer: told, Logger: hclog.New(&hclog.LoggerOptions{Output: lines})})
	pass := func(d time.Duration) {
		for ; d > 0; d -= time.Second {
			now = now.Add(time.Second)
			w.tick(w.c)
		}
	}
	must := func(action donav1.ControlRolloutRequest_Action) {
		t.Helper()
		if _, err := w.control(action); err != nil {
			t.Fatal(err)
		}
	}
	w.endpoints("v2", 1)
	w.endpoints("v3", 1)
	w.start(request())
	w.start(request()) // the same: no entry
	if err := w.c.Start(w.ctx, "local:dev", request(func(r *donav1.StartRolloutRequest) { r.CanaryVariant = "v3" })); err == nil {
		t.Fatal("a second rollout was taken")
	}
	pass(time.Second)
	must(donav1.ControlRolloutRequest_ACTION_PAUSE)
	must(donav1.ControlRolloutRequest_ACTION_RESUME)
	pass(12 * time.Second) // holds
	w.start(request(func(r *donav1.StartRolloutRequest) { r.CanaryVariant, r.Supersede = "v3", true }))
	pass(time.Second)
	_, version := w.weights()
	w.report("v3", 20, 20, version)
	pass(time.Second) // rolls back
	w.start(request())
	must(donav1.ControlRolloutRequest_ACTION_ABORT)
	w.start(request())
	pass(time.Second)
	must(donav1.ControlRolloutRequest_ACTION_PROMOTE_ALL)

	want := map[string]float64{}
	for _, e := range w.chain() {
		if event, ok := strings.CutPrefix(e.Kind, "rollout."); ok {
			want[event]++
		}
	}
	for _, event := range []string{"start", "step", "hold", "resume", "pause", "promote", "rollback", "abort", "supersede"} {
		if want[event] == 0 {
			t.Errorf("the test has no %s", event)
		}
		if n := strings.Count(lines.String(), " event="+event+" "); float64(n) != want[event] {
			t.Errorf("%s: %d lines of log, %v entries", event, n, want[event])
		}
	}
	got := map[string]float64{}
	families, err := told.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		if f.GetName() == "dona_rollout_transitions_total" {
			for _, m := range f.GetMetric() {
				got[m.GetLabel()[0].GetValue()] = m.GetCounter().GetValue()
			}
		}
	}
	if !maps.Equal(got, want) {
		t.Errorf("the metric has %v, the chain %v", got, want)
	}
}
