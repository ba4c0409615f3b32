package rollout_test

import (
	"testing"
	"time"

	"github.com/dodona-project/dodona/host/rollout"
	"github.com/dodona-project/dodona/host/service"
	"github.com/dodona-project/dodona/host/store"
	"github.com/dodona-project/dodona/host/store/embedded"
	donav1 "github.com/dodona-project/dodona/proto/dona/v1"
)

// BenchmarkReport is one batch of 1,024 calls of two variants, with a step
// running and a full window.
func BenchmarkReport(b *testing.B) {
	st, err := embedded.Open(b.TempDir()+"/data", embedded.Options{})
	if err != nil {
		b.Fatal(err)
	}
	defer st.Close()
	c := rollout.New(rollout.Options{Store: st, Service: service.New(st, nil, "h1")})
	now := time.Now()
	batch := func(at time.Time) (calls []*donav1.CallOutcome) {
		for i := range 1024 {
			calls = append(calls, &donav1.CallOutcome{Service: svc, Variant: []string{"v1", "v2"}[i%2], Success: i%50 != 0, LatencyUs: uint64(i * 97), UnixMs: at.UnixMilli()})
		}
		return calls
	}
	report := func(at time.Time) {
		calls := batch(at)
		if err := st.Update(b.Context(), store.Soft, func(tx store.Tx) error { return c.Report(tx, svc, calls, now) }); err != nil {
			b.Fatal(err)
		}
	}
	for age := range 60 {
		report(now.Add(-time.Duration(age) * time.Second))
	}
	b.ReportAllocs()
	for b.Loop() {
		report(now)
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/1024, "ns/call")
}
