package report

import (
	"fmt"
	"testing"
	"time"

	donav1 "github.com/dodona-project/dodona/proto/dona/v1"
	"github.com/dodona-project/dodona/sdk/dona/decide"
)

// BenchmarkOutcome is the whole cost of one outcome up to a finished batch: noted
// by the request, folded, and turned into messages, on one goroutine and with
// nothing dropped.
func BenchmarkOutcome(b *testing.B) {
	s := &donav1.ConfigSnapshot{Service: "checkout", Version: 7}
	for i := range 50 {
		s.Endpoints = append(s.Endpoints, &donav1.Endpoint{Id: fmt.Sprint("e", i), Variant: "v1", LbWeight: 100})
	}
	p, err := decide.Compile(s, nil)
	if err != nil {
		b.Fatal(err)
	}
	r := &Reporter{next: newGather(), due: make(chan struct{}, 1)}
	for i := range r.rings {
		r.rings[i] = newRing(ringSize)
	}
	const batch = 1024
	i := 0
	for b.Loop() {
		r.Outcome(p, int32(i%50), Outcome{Success: true, Latency: time.Duration(i%8) * time.Millisecond, Code: "OK"})
		if i++; i%batch == 0 {
			r.drain()
			g := r.next
			r.next = newGather()
			g.fill(&donav1.StatsBatch{}, "shop")
		}
	}
	if n := r.dropped.Load(); n > 0 {
		b.Fatalf("%d dropped", n)
	}
}
