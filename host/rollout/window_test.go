package rollout_test

import (
	"fmt"
	"math"
	"slices"
	"testing"
	"time"

	donav1 "github.com/dodona-project/dodona/proto/dona/v1"
	"pgregory.net/rapid"

	"github.com/dodona-project/dodona/host/limits"
	"github.com/dodona-project/dodona/host/store"
)

func (w *world) stats(at time.Time) (stats []*donav1.VariantStats) {
	w.t.Helper()
	w.view(func(tx store.ReadTx) (err error) {
		stats, err = w.c.Stats(tx, svc, at)
		return err
	})
	return stats
}

func (w *world) reportAt(at time.Time, calls ...*donav1.CallOutcome) {
	w.t.Helper()
	w.update(func(tx store.Tx) error { return w.c.Report(tx, svc, calls, at) })
}

// A call is in the window for a minute, by its own time, however late or out of
// order it is told.
func TestRollingWindow(t *testing.T) {
	now := time.Unix(1_700_000_000, 0)
	w := newWorld(t, newMemStore(func() time.Time { return now }), func() time.Time { return now })
	call := func(age time.Duration, n uint32, ok bool) *donav1.CallOutcome {
		return &donav1.CallOutcome{Service: svc, Variant: "v1", Success: ok, LatencyUs: 100, Count: n, UnixMs: now.Add(-age).UnixMilli()}
	}
	w.reportAt(now,
		call(30*time.Second, 3, true), call(0, 1, false), call(59*time.Second, 5, true), // out of order
		call(60*time.Second, 100, true),                                               // older than the window
		call(-5*time.Second, 7, true),                                                 // ahead, as far as allowed
		call(-5*time.Second-time.Millisecond, 1000, true),                             // too far ahead
		call(5*time.Minute+time.Millisecond, 1000, true),                              // too old
		&donav1.CallOutcome{Service: "other", Variant: "v1", UnixMs: now.UnixMilli()}, // another service
		&donav1.CallOutcome{Service: svc, Variant: "", UnixMs: now.UnixMilli()},       // no variant
		&donav1.CallOutcome{Service: svc, Variant: "v1", Count: limits.CountPerItem + 1, UnixMs: now.UnixMilli()},
	)
	for _, c := range []struct {
		after            time.Duration
		requests, errors uint64
	}{{0, 16, 1}, {time.Second, 11, 1}, {31 * time.Second, 8, 1}, {61 * time.Second, 7, 0}, {66 * time.Second, 0, 0}} {
		got := w.stats(now.Add(c.after))
		if c.requests == 0 {
			if len(got) != 0 {
				t.Errorf("after %s: %v", c.after, got)
			}
			continue
		}
		if len(got) != 1 || got[0].Requests != c.requests || got[0].Errors != c.errors || got[0].WindowSeconds != 60 {
			t.Errorf("after %s: %v, want %d requests and %d errors", c.after, got, c.requests, c.errors)
		}
	}
}

// Quantiles are within 1/8 of the true ones, over the whole range of latencies.
func TestQuantiles(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		now := time.Unix(1_700_000_000, 0)
		w := newWorld(t, newMemStore(func() time.Time { return now }), func() time.Time { return now })
		latencies := rapid.SliceOfN(rapid.Uint64Range(0, 1<<36-1), 1, 200).Draw(rt, "us")
		var calls []*donav1.CallOutcome
		for _, us := range latencies {
			calls = append(calls, &donav1.CallOutcome{Service: svc, Variant: "v1", Success: true, LatencyUs: us, UnixMs: now.UnixMilli()})
		}
		w.reportAt(now, calls...)
		got := w.stats(now)[0]
		slices.Sort(latencies)
		for _, c := range []struct {
			q   float64
			got uint64
		}{{0.5, got.P50Us}, {0.95, got.P95Us}, {0.99, got.P99Us}} {
			want := float64(latencies[int(math.Ceil(c.q*float64(len(latencies))))-1])
			if diff := math.Abs(float64(c.got) - want); diff > want/8+1 {
				rt.Fatalf("p%v is %d, truly %v", 100*c.q, c.got, want)
			}
		}
	})
	// Beyond the last bucket and at the edges of the type nothing breaks.
	now := time.Unix(1_700_000_000, 0)
	w := newWorld(t, newMemStore(func() time.Time { return now }), func() time.Time { return now })
	w.reportAt(now, &donav1.CallOutcome{Service: svc, Variant: "v1", LatencyUs: math.MaxUint64, UnixMs: now.UnixMilli()})
	if got := w.stats(now)[0].P99Us; got < 1<<35 {
		t.Errorf("p99 of an endless call is %d µs", got)
	}
}

// Variants beyond the cap are counted together, and the cap forgets what has
// left the window.
func TestVariantFlood(t *testing.T) {
	now := time.Unix(1_700_000_000, 0)
	w := newWorld(t, newMemStore(func() time.Time { return now }), func() time.Time { return now })
	flood := func(at time.Time, prefix string) {
		var calls []*donav1.CallOutcome
		for i := range limits.StatsVariants + 50 {
			calls = append(calls, &donav1.CallOutcome{Service: svc, Variant: fmt.Sprintf("%s%05d", prefix, i), UnixMs: at.UnixMilli()})
		}
		w.reportAt(at, calls...)
	}
	check := func(at time.Time) {
		t.Helper()
		var sum, other uint64
		stats := w.stats(at)
		for _, s := range stats {
			sum += s.Requests
			if s.Variant == "other" {
				other = s.Requests
			}
		}
		if len(stats) > limits.StatsVariants+1 || sum != limits.StatsVariants+50 || other != 50 {
			t.Errorf("%d variants, %d calls, %d of them other", len(stats), sum, other)
		}
	}
	flood(now, "a")
	check(now)
	later := now.Add(2 * time.Minute)
	flood(later, "b")
	check(later)
}

// A million variants in one minute leave a thousand windows and "other", and none
// of their calls is lost. What is kept does not grow with the flood.
func TestMillionVariants(t *testing.T) {
	const variants = 1_000_000
	now := time.Unix(1_700_000_000, 0)
	st := newMemStore(func() time.Time { return now })
	w := newWorld(t, st, func() time.Time { return now })
	w.reportAt(now, &donav1.CallOutcome{Service: svc, Variant: "v1", UnixMs: now.UnixMilli()})
	began := time.Now()
	kept := 0
	for n := 0; n < variants; {
		var calls []*donav1.CallOutcome
		for ; n < variants && len(calls) < limits.StatsItems; n++ {
			calls = append(calls, &donav1.CallOutcome{Service: svc, Variant: fmt.Sprintf("x%07d", n), UnixMs: now.UnixMilli(), Success: n%2 == 0})
		}
		w.reportAt(now, calls...)
		if kept == 0 {
			kept = len(st.records)
		}
	}
	t.Logf("%d variants in %s", variants, time.Since(began).Round(time.Millisecond))
	if len(st.records) != kept {
		t.Errorf("%d records after the first batch, %d after the last", kept, len(st.records))
	}
	stats := w.stats(now)
	var requests, errors, other uint64
	for _, s := range stats {
		requests, errors = requests+s.Requests, errors+s.Errors
		if s.Variant == "other" {
			other = s.Requests
		}
	}
	if len(stats) != limits.StatsVariants+1 || requests != variants+1 || errors != variants/2+1 || other != variants-limits.StatsVariants+1 {
		t.Errorf("%d windows with %d calls and %d errors, %d of them in other", len(stats), requests, errors, other)
	}
	// Who was there before the flood still has a window of its own.
	if i := slices.IndexFunc(stats, func(s *donav1.VariantStats) bool { return s.Variant == "v1" }); i < 0 || stats[i].Requests != 1 {
		t.Error("v1 has no window any more")
	}
}

// The step counts calls that were decided on its weights, and no others.
func TestStepCounts(t *testing.T) {
	now := time.UnixMilli(1_700_000_000_000)
	w := newWorld(t, newMemStore(func() time.Time { return now }), func() time.Time { return now })
	w.endpoints("v2", 1)
	w.start(request())
	call := func(variant string, version uint64, ms int64) *donav1.CallOutcome {
		return &donav1.CallOutcome{Service: svc, Variant: variant, Success: true, ConfigVersion: version, UnixMs: now.UnixMilli() + ms}
	}
	count := func(want uint64) {
		t.Helper()
		if got := w.status().CanaryRequests; got != want {
			t.Errorf("%d requests counted, want %d", got, want)
		}
	}
	_, pending := w.weights()
	w.reportAt(now, call("v2", pending, 0)) // no step yet
	count(0)
	w.tick(w.c)
	_, version := w.weights()
	if got := w.record().GetWeightsVersion(); got != version || version <= pending {
		t.Fatalf("the step began with version %d, its record says %d", version, got)
	}
	w.reportAt(now, call("v2", version-1, 0))
	count(0)
	w.reportAt(now, call("v2", version, 0), call("v2", version+1000, 0), call("v1", version, 0), call("v3", version, 0))
	count(2)
	w.reportAt(now, call("v2", 0, -1), call("v2", 0, 0), call("v2", 0, 1))
	count(4)
}
