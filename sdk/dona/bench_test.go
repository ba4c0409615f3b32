package dona_test

import (
	"fmt"
	"testing"
	"time"

	donav1 "github.com/dodona-project/dodona/proto/dona/v1"
	"github.com/dodona-project/dodona/sdk/dona"
)

// BenchmarkPickDone is what an application pays for a request: decision, exposure
// and outcome queued. Queues that run over drop, which costs less; the metric says
// how often.
func BenchmarkPickDone(b *testing.B) {
	h := startHost(b)
	s := checkout(7)
	for i := range 1000 {
		s.Endpoints = append(s.Endpoints, &donav1.Endpoint{Id: fmt.Sprint("e", i), Address: "10.0.0.1:80", Variant: "v1", Region: "eu", LbWeight: 100})
	}
	h.publish(s)
	c := dial(b, h.address)
	svc := c.Service("checkout")
	ready(b, svc)
	ctx := b.Context()
	one := func() {
		p, err := svc.Pick(ctx, dona.Request{Unit: "user-1", Regions: []string{"eu"}})
		if err != nil {
			b.Fatal(err)
		}
		p.Done(dona.Outcome{Success: true, Latency: time.Millisecond, Code: "200"})
	}
	b.Run("serial", func(b *testing.B) {
		b.ReportAllocs()
		before := c.Stats().Dropped
		for b.Loop() {
			one()
		}
		b.ReportMetric(float64(c.Stats().Dropped-before)/float64(b.N), "dropped/op")
	})
	b.Run("parallel", func(b *testing.B) {
		b.RunParallel(func(pb *testing.PB) {
			for pb.Next() {
				one()
			}
		})
	})
}
