package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	donav1 "github.com/dodona-project/dodona/proto/dona/v1"
)

// arrivals are when a watcher of one host first had each of numbered changes.
type arrivals struct {
	mu sync.Mutex
	at []time.Time // by number
}

// follow reads frames until the stream ends.
func (a *arrivals) follow(stream donav1.ControlPlane_WatchConfigClient) {
	for {
		f, err := stream.Recv()
		if err != nil {
			return
		}
		now := time.Now()
		for _, rule := range f.Flags {
			n := 0
			if _, err := fmt.Sscanf(rule.RolloutVariant, "n%d", &n); err != nil {
				continue
			}
			a.mu.Lock()
			for len(a.at) <= n { // a frame may bring several
				a.at = append(a.at, now)
			}
			a.mu.Unlock()
		}
	}
}

func (a *arrivals) of(n int) (at time.Time, ok bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if n >= len(a.at) {
		return at, false
	}
	return a.at[n], true
}

// TestChangeReachesBothHosts makes changes at either of two hosts, one by one and close
// together, and looks at how long each takes to the watchers of both.
func TestChangeReachesBothHosts(t *testing.T) {
	t.Parallel()
	p := newPair(t)
	p.start()
	ctx, cancel := context.WithCancel(context.Background())
	var all sync.WaitGroup
	defer func() { cancel(); all.Wait() }()
	var clients [2]donav1.ControlPlaneClient
	var seen [2]arrivals
	for i := range clients {
		clients[i] = donav1.NewControlPlaneClient(p.alone(i))
		stream, err := clients[i].WatchConfig(ctx, &donav1.WatchConfigRequest{Service: "web", ClientId: fmt.Sprint("c", i)})
		if err != nil {
			t.Fatal(err)
		}
		all.Go(func() { seen[i].follow(stream) })
	}
	const changes = 40
	rng := rand.New(rand.NewPCG(3, 5))
	began := make([]time.Time, changes)
	for n := range changes {
		began[n] = time.Now()
		if _, err := clients[n%2].SetFlag(ctx, &donav1.SetFlagRequest{Rule: &donav1.FlagRule{
			Service: "web", Flag: "change", RolloutVariant: fmt.Sprint("n", n)}}); err != nil {
			t.Fatal(err)
		}
		pause(ctx, time.Duration(rng.IntN(600))*time.Millisecond)
	}
	var own, other []time.Duration
	for n := range changes {
		for i := range seen {
			until(t, fmt.Sprintf("change %d to be with host %d's watcher", n, i), func() bool { _, ok := seen[i].of(n); return ok })
			at, _ := seen[i].of(n)
			if i == n%2 {
				own = append(own, at.Sub(began[n]))
			} else {
				other = append(other, at.Sub(began[n]))
			}
		}
	}
	for _, d := range []struct {
		who string
		all []time.Duration
	}{{"that host", own}, {"the other host", other}} {
		t.Logf("a change on one host is with the watchers of %s after %v (p50), %v (p90), %v (p99); 500 ms is the goal", d.who,
			quantile(d.all, .5).Round(time.Millisecond), quantile(d.all, .9).Round(time.Millisecond), quantile(d.all, .99).Round(time.Millisecond))
	}
	// Without notices a change would wait for the re-list, after up to 30 s.
	if p50 := quantile(other, .5); p50 > 5*time.Second {
		t.Errorf("a change takes %v to the other host", p50)
	}
}
