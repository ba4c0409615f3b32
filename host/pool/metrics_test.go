package pool_test

import (
	"fmt"
	"maps"
	"testing"
	"time"

	controlplanev1 "github.com/dodona-project/dodona/proto/controlplane/v1"
	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/protobuf/proto"

	"github.com/dodona-project/dodona/host/pool"
)

// shown are the metrics of a registry, by name and labels; of a histogram how often it
// observed. What is 0 is left out.
func shown(t *testing.T, reg *prometheus.Registry) map[string]float64 {
	t.Helper()
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	all := map[string]float64{}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			name := f.GetName()
			for _, l := range m.GetLabel() {
				name += " " + l.GetValue()
			}
			if v := m.GetCounter().GetValue() + m.GetGauge().GetValue() + float64(m.GetHistogram().GetSampleCount()); v != 0 {
				all[name] = v
			}
		}
	}
	return all
}

// TestMetrics: each of them says what happened, and the gauges what the store holds.
func TestMetrics(t *testing.T) {
	w := newWorld(t)
	reg := prometheus.NewRegistry()
	w.p = w.host("h1", func(o *pool.Options) { o.Registerer = reg })
	ids := w.add("dc", 5)
	extract := func(key string, n uint32, upstream string) {
		t.Helper()
		_, _ = w.p.Extract(w.ctx, operator, &controlplanev1.ExtractRequest{IdempotencyKey: key, Upstream: upstream, Count: n})
	}
	extract("a", 2, "dc")    // given
	extract("a", 2, "dc")    // replayed
	extract("a", 1, "dc")    // refused
	extract("b", 1, "nope")  // refused
	extract("c", 1, "spare") // none: it has no proxies
	no := func(what string, err error) {
		t.Helper()
		if err == nil {
			t.Errorf("%s is taken", what)
		}
	}
	x := w.join("w1")
	w.allocate()
	x.accept(x.until("with the proxies", func(s *controlplanev1.WorkerSnapshot) bool { return len(s.Proxies) == 3 }))
	x.report()
	report := &controlplanev1.ReportRuntimeRequest{WorkerId: "w1", SessionId: "another", ReportSequence: 9}
	_, err := w.p.ReportRuntime(w.ctx, "worker", report)
	no("a report of another session", err)
	batch := &controlplanev1.OutcomeBatch{WorkerId: "w1", SessionId: x.session, Sequence: 5}
	_, err = w.p.TakeOutcomes(w.ctx, batch)
	w.must(err)
	other := proto.CloneOf(batch)
	other.Outcomes = []*controlplanev1.Outcome{{Routing: "all"}}
	_, err = w.p.TakeOutcomes(w.ctx, other)
	no("another content", err)
	other.Sequence = 4
	_, err = w.p.TakeOutcomes(w.ctx, other)
	no("a lower sequence", err)
	w.clock.advance(3 * time.Second)
	for _, id := range ids {
		_, _ = w.p.BeginDrain(w.ctx, operator, &controlplanev1.BeginDrainRequest{ProxyId: id}) // of those that it owns
	}
	w.must(w.p.Count(w.ctx))
	got := shown(t, reg)
	full, delta := got["dona_pool_snapshot_bytes full"], got["dona_pool_snapshot_bytes delta"]
	if full < 1 || got["dona_pool_drains pending"]+got["dona_pool_drains bound"] != 3 {
		t.Errorf("%v full snapshots, drains: %v", full, got)
	}
	for _, name := range []string{"snapshot_bytes full", "snapshot_bytes delta", "drains pending", "drains bound"} {
		delete(got, "dona_pool_"+name)
	}
	want := map[string]float64{
		"dona_pool_extractions_total given": 1, "dona_pool_extractions_total replayed": 1, "dona_pool_extractions_total refused": 2, "dona_pool_extractions_total none": 1,
		"dona_pool_reports_refused_total session": 1, "dona_pool_reports_refused_total conflict": 1, "dona_pool_reports_refused_total overtaken": 1,
		"dona_pool_workers live": 1, "dona_pool_proxies available dc": 3, "dona_pool_proxies extracted dc": 2,
		"dona_pool_snapshot_age_seconds": 3,
	}
	if age := got["dona_pool_snapshot_age_seconds"]; age >= 3 && age < 60 { // over a store that has a clock of its own
		want["dona_pool_snapshot_age_seconds"] = age
	}
	if !maps.Equal(got, want) {
		t.Errorf("the metrics are %s,\nwant %s (and %v deltas)", fmt.Sprint(got), fmt.Sprint(want), delta)
	}
	w.clock.advance(time.Minute)
	w.must(w.p.Count(w.ctx))
	if got := shown(t, reg); got["dona_pool_workers silent"] != 1 || got["dona_pool_workers live"] != 0 {
		t.Errorf("of a silent worker: %v", got)
	}
}
