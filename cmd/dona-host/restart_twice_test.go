package main

import (
	"context"
	"fmt"
	"testing"

	"google.golang.org/grpc"

	donav1 "github.com/dodona-project/dodona/proto/dona/v1"
)

// TestRestartTwice (D1): the host dies again while its endpoints are on their way
// back from the first time, with some of them written down. Clients that have seen
// all of them still lose none.
func TestRestartTwice(t *testing.T) {
	t.Parallel()
	const endpoints = 100
	p := newProcess(t)
	p.start()
	ctx, cancel := context.WithCancel(context.Background())
	wrong := make(problems, 100)
	streams, watches := p.dial(), p.dial()
	client := donav1.NewControlPlaneClient(streams)
	fleets := fleet(ctx, client, "v1", endpoints)
	tr := &traffic{t: t, cancel: cancel, problems: wrong}
	t.Cleanup(tr.end)
	tr.wg.Go(fleets.Wait)
	for i := range 5 {
		w := &watcher{least: endpoints * 9 / 10, problems: wrong}
		tr.watchers = append(tr.watchers, w)
		tr.wg.Go(func() { w.run(ctx, donav1.NewControlPlaneClient(watches), fmt.Sprint("c", i)) })
	}
	// All of them registered within less than a second: soft, and not yet on disk.
	tr.settled("every client to see every endpoint", endpoints)
	p.kill()
	p.start()
	// A durable write takes the first few to come back to the disk with it.
	until(t, "some endpoints to be back", func() bool {
		s, err := client.GetStatus(ctx, &donav1.GetStatusRequest{Service: "web"})
		return err == nil && len(s.Config.Endpoints) >= 10
	})
	if _, err := client.SetFlag(ctx, &donav1.SetFlagRequest{Rule: &donav1.FlagRule{Service: "web", Flag: "f"}}, grpc.WaitForReady(true)); err != nil {
		t.Fatal(err)
	}
	p.kill()
	t.Logf("killed again with %d of %d endpoints written down", len(p.ledger().endpoints), endpoints)
	p.start()
	versions := make([]uint64, len(tr.watchers))
	for i, w := range tr.watchers {
		versions[i] = w.version.Load()
	}
	until(t, "every client to move on", func() bool {
		for i, w := range tr.watchers {
			if w.version.Load() <= versions[i] {
				return false
			}
		}
		return true
	})
	tr.settled("every client to see every endpoint again", endpoints)
}
