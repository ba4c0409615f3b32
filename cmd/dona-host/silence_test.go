package main

import (
	"context"
	"fmt"
	"testing"
	"time"

	donav1 "github.com/dodona-project/dodona/proto/dona/v1"
)

// TestSilence (D2): an endpoint whose heartbeats stop while its connection lives
// is gone after three missed beats, one more or less; its neighbour stays.
func TestSilence(t *testing.T) {
	t.Parallel()
	const beat = 500 * time.Millisecond // as the harness starts the host
	p := newProcess(t)
	p.start()
	ctx, cancel := context.WithCancel(context.Background())
	client := donav1.NewControlPlaneClient(p.dial())
	fleets := fleet(ctx, client, "v1", 3)
	defer func() { cancel(); fleets.Wait() }()
	there := func(id string) bool {
		s, err := client.GetStatus(ctx, &donav1.GetStatusRequest{Service: "web"})
		if err != nil {
			t.Fatal(err)
		}
		n := 0
		for _, e := range s.Config.Endpoints {
			if e.Id == id {
				return true
			}
			n++
		}
		if n < 3 && n > 0 {
			t.Fatalf("%d of 3 endpoints that beat are there", n)
		}
		return false
	}
	// A busy machine makes single rounds later, never earlier: the quickest counts.
	quickest := time.Hour
	for round := range 3 {
		id := fmt.Sprint("silent", round)
		s, err := client.RegisterEndpoint(ctx)
		if err != nil {
			t.Fatal(err)
		}
		if err := s.Send(&donav1.EndpointHeartbeat{Service: "web", EndpointId: id, Address: "10.0.0.9:80", Variant: "v1", Region: "eu"}); err != nil {
			t.Fatal(err)
		}
		if _, err := s.Header(); err != nil {
			t.Fatal(err)
		}
		until(t, "the endpoint", func() bool { return there(id) })
		last := time.Now()
		if err := s.Send(&donav1.EndpointHeartbeat{Sequence: 1}); err != nil {
			t.Fatal(err)
		}
		until(t, "the silent endpoint to go", func() bool { return !there(id) })
		after := time.Since(last)
		t.Logf("gone %v after its last beat", after.Round(time.Millisecond))
		if after < 2*beat {
			t.Errorf("round %d: gone %v after its last beat, which is less than two beats", round, after)
		}
		quickest = min(quickest, after)
		// Its stream is told, so that the endpoint can register again.
		if err := s.RecvMsg(&donav1.RegisterAck{}); err == nil {
			t.Error("the stream of the lost lease ended as if it had said goodbye")
		}
	}
	if quickest > 4*beat {
		t.Errorf("gone %v after its last beat at best, want at most four beats of %v", quickest, beat)
	}
}
