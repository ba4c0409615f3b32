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

// BenchmarkWholeDecision is Pick and Done with a policy and ten flags that mostly
// do not hit, for many units.
func BenchmarkWholeDecision(b *testing.B) {
	h := startHost(b)
	s := &donav1.ConfigSnapshot{Service: "checkout", Version: 7,
		Weights:   []*donav1.VariantWeight{{Variant: "v2", Weight: 10}, {Variant: "v1", Weight: 90}},
		Residency: &donav1.ResidencyPolicy{AllowedRegions: []string{"r0", "r1"}},
		Plan:      &donav1.Plan{Algorithm: donav1.Algorithm_ALGORITHM_LEAST_CONNECTIONS}}
	for i := range 1000 {
		s.Endpoints = append(s.Endpoints, &donav1.Endpoint{Id: fmt.Sprint("e", i), Address: "10.0.0.1:80",
			Variant: fmt.Sprint("v", 1+i/4%2), Region: fmt.Sprint("r", i%4), LbWeight: 100})
	}
	for i := range 10 {
		s.Flags = append(s.Flags, &donav1.FlagRule{Flag: fmt.Sprint("flag-", i), RolloutPercent: 1, RolloutVariant: "v2",
			Targeting: []*donav1.TargetingRule{{Attribute: "country", Values: []string{"CH", "DE"}, Variant: "v2"}}})
	}
	h.publish(s)
	c := dial(b, h.address)
	svc := c.Service("checkout")
	ready(b, svc)
	units := make([]string, 1024)
	for i := range units {
		units[i] = fmt.Sprint("user-", i)
	}
	attributes := []dona.Attribute{dona.String("country", "FR")}
	ctx := b.Context()
	b.ReportAllocs()
	before := c.Stats().Dropped
	n := 0
	for b.Loop() {
		p, err := svc.Pick(ctx, dona.Request{Unit: units[n%1024], Attributes: attributes})
		if err != nil {
			b.Fatal(err)
		}
		p.Done(dona.Outcome{Success: true, Latency: time.Millisecond, Code: "200"})
		n++
	}
	b.ReportMetric(float64(c.Stats().Dropped-before)/float64(b.N), "dropped/op")
}
