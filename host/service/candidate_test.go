package service_test

import (
	"context"
	"math"
	"testing"
	"time"

	donav1 "github.com/dodona-project/dodona/proto/dona/v1"
	pluginv1 "github.com/dodona-project/dodona/proto/plugin/v1"
	statev1 "github.com/dodona-project/dodona/proto/state/v1"
	"github.com/hashicorp/go-hclog"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/dodona-project/dodona/host/service"
	"github.com/dodona-project/dodona/host/store"
)

// candidates runs a planner until it asks for a plan, and returns what it asks with.
func (w *world) candidates() []*pluginv1.Candidate {
	w.tb.Helper()
	c := &compiler{changed: make(chan struct{}, 1)}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { defer close(done); _ = service.NewPlanner(w.plane, c, hclog.NewNullLogger()).Run(ctx) }()
	defer func() { cancel(); <-done }()
	eventually(w.tb, func() bool { return c.count() > 0 }, func() string { return "no plan is asked for" })
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.calls[0].Candidates
}

// A strategy is told of each endpoint what it registered, what its heartbeats say
// and what clients reported of it.
func TestCandidates(t *testing.T) {
	w := newWorld(t)
	b := beat("a", "v1", "eu")
	b.Zone, b.Capacity, b.Labels = "eu-1", 50, map[string]string{"rack": "7"}
	w.register(b)
	w.register(beat("b", "v1", "eu"))
	w.update(func(tx store.Tx) error {
		return store.Save(tx, "lease/service/web/a", &statev1.Lease{Plane: "service", Scope: "web", Id: "a", InFlight: 12, Utilization: 0.25})
	})
	now := time.Now()
	call := func(id string, ms uint64, count uint32, success bool) *donav1.CallOutcome {
		return &donav1.CallOutcome{Service: "web", Variant: "v1", EndpointId: id, Success: success, LatencyUs: 1000 * ms, Count: count, UnixMs: now.UnixMilli()}
	}
	reports := service.NewReports(w.plane, &counted{}, func() time.Time { return now }, nil)
	for _, calls := range [][]*donav1.CallOutcome{
		{call("a", 10, 3, true), call("a", 50, 1, false), call("gone", 5, 1, true)},
		{call("a", 0, 4, true)}, // not measured
	} {
		if ack, _, err := reports.Take(context.Background(), service.Reporter{Actor: "local:dev"}, &donav1.StatsBatch{Calls: calls}); err != nil || ack.Dropped != 0 {
			t.Fatalf("%v, %v", ack, err)
		}
	}
	got := w.candidates()
	want := []*pluginv1.Candidate{
		{Id: "a", Group: "eu-1", Region: "eu", Weight: 10, Capacity: 50, Active: 12, Utilization: 0.25,
			ErrorRate: 0.125, Requests: 8, Latency: durationpb.New(20 * time.Millisecond), Labels: map[string]string{"rack": "7"}},
		{Id: "b", Region: "eu", Weight: 10},
	}
	if len(got) != len(want) {
		t.Fatalf("%d candidates, want %d", len(got), len(want))
	}
	for i, c := range got {
		if age := c.Age.AsDuration(); age < 0 || age > time.Minute {
			t.Errorf("%s is %v old", c.Id, age)
		}
		c.Age = nil
		if !proto.Equal(c, want[i]) {
			t.Errorf("candidate %v, want %v", c, want[i])
		}
	}
}

// Reports at the limit of what is taken add up to their mean, and never wrap.
func TestCallsAddUp(t *testing.T) {
	var c service.Calls
	for range 3 {
		c.Add(&donav1.CallOutcome{LatencyUs: 1<<53 - 1, Count: 1 << 31})
	}
	if want := (service.Calls{Requests: math.MaxUint32, Errors: math.MaxUint32, Measured: math.MaxUint32, LatencyUs: math.MaxUint64}); c != want {
		t.Errorf("got %+v, want %+v", c, want)
	}
	w := newWorld(t)
	w.register(beat("a", "v1", "eu"))
	for range 3 {
		w.update(func(tx store.Tx) error {
			return w.plane.CountCalls(tx, "web", "a", service.Calls{Requests: 1 << 31, Errors: 1 << 31, Measured: 1, LatencyUs: 1<<53 - 1})
		})
	}
	got := w.candidates()[0]
	if got.Requests != math.MaxUint32 || got.ErrorRate != 1 || got.Latency.AsDuration() != (1<<53-1)*time.Microsecond {
		t.Errorf("candidate %v", got)
	}
}

// What was reported of an endpoint counts for 30 s.
func TestCallsArePast(t *testing.T) {
	w, advance := newWorldWithClock(t)
	w.register(beat("a", "v1", "eu"))
	w.update(func(tx store.Tx) error {
		return w.plane.CountCalls(tx, "web", "a", service.Calls{Requests: 4, Measured: 4, LatencyUs: 4000})
	})
	advance(15 * time.Second)
	w.update(func(tx store.Tx) error {
		return w.plane.CountCalls(tx, "web", "a", service.Calls{Requests: 4, Measured: 4, LatencyUs: 12_000})
	})
	for _, step := range []struct {
		after    time.Duration
		requests uint32
		latency  time.Duration
	}{{0, 8, 2 * time.Millisecond}, {15 * time.Second, 4, 3 * time.Millisecond}, {20 * time.Second, 0, 0}} {
		advance(step.after)
		if c := w.candidates()[0]; c.Requests != step.requests || c.Latency.AsDuration() != step.latency {
			t.Errorf("%v later: %d requests of %v, want %d of %v", step.after, c.Requests, c.Latency.AsDuration(), step.requests, step.latency)
		}
	}
}
