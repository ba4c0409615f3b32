package main

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"

	donav1 "github.com/dodona-project/dodona/proto/dona/v1"
	"github.com/dodona-project/dodona/sdk/dona"
)

// TestFlappingService has one service change about 200 times a second for 10 s, by
// endpoints that come and go and by flags, and looks at what its watchers are sent
// and how long the changes of another service take meanwhile.
func TestFlappingService(t *testing.T) {
	t.Parallel()
	p := newProcess(t)
	p.start()
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	api := donav1.NewControlPlaneClient(p.dial())
	set := func(service string, percent uint32) error {
		_, err := api.SetFlag(ctx, &donav1.SetFlagRequest{Rule: &donav1.FlagRule{Service: service, Flag: "f", RolloutPercent: percent, RolloutVariant: "v1"}})
		return err
	}
	if err := set("calm", 1); err != nil {
		t.Fatal(err)
	}
	fleets := fleet(ctx, api, "v1", 3)
	defer func() { cancel(); fleets.Wait() }()
	until(t, "the fleet", func() bool { return fleets.up.Load() == 3 })

	client, err := dona.Dial(ctx, p.grpc, dona.WithoutCache())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = client.Close() }()
	web, calm := client.Service("web"), client.Service("calm")
	for _, s := range []*dona.Service{web, calm} {
		if err := s.Ready(ctx); err != nil {
			t.Fatal(err)
		}
	}
	// frames counts what a raw watcher of the flapping service is sent.
	stream, err := donav1.NewControlPlaneClient(p.dial()).WatchConfig(ctx, &donav1.WatchConfigRequest{Service: "web", ClientId: "raw", AcceptDelta: true})
	if err != nil {
		t.Fatal(err)
	}
	var frames, deltas atomic.Int64
	watched := make(chan struct{})
	go func() {
		defer close(watched)
		for {
			f, err := stream.Recv()
			if err != nil {
				return
			}
			frames.Add(1)
			if f.Form == donav1.ConfigSnapshot_FORM_DELTA {
				deltas.Add(1)
			}
		}
	}()
	defer func() { cancel(); <-watched }()
	until(t, "the first frame", func() bool { return frames.Load() > 0 })
	last, since := int64(0), time.Now()
	until(t, "windows to be back at their shortest", func() bool {
		if n := frames.Load(); n != last {
			last, since = n, time.Now()
		}
		return time.Since(since) > 2500*time.Millisecond // without a frame; 2 s are enough
	})

	begin, frames0 := time.Now(), frames.Load()
	over := begin.Add(10 * time.Second)
	var changes atomic.Int64
	var flap sync.WaitGroup
	for n := range 4 {
		flap.Go(func() {
			for time.Now().Before(over) {
				if err := comeAndGo(ctx, api, fmt.Sprint("flap", n)); err != nil {
					t.Errorf("an endpoint that comes and goes: %v", err)
					return
				}
				changes.Add(2)
				pause(ctx, 25*time.Millisecond)
			}
		})
	}
	flap.Go(func() {
		for n := uint32(0); time.Now().Before(over); n++ {
			if err := set("web", n%100); err != nil {
				t.Errorf("a flag: %v", err)
				return
			}
			changes.Add(1)
			pause(ctx, 25*time.Millisecond)
		}
	})
	var worst time.Duration
	for n := uint32(2); time.Now().Before(over); n++ {
		before, since := calm.Status().Version, time.Now()
		if err := set("calm", n); err != nil {
			t.Fatal(err)
		}
		until(t, "the change of the calm service", func() bool { return calm.Status().Version > before })
		worst = max(worst, time.Since(since))
		pause(ctx, 700*time.Millisecond)
	}
	flap.Wait()
	took, sent := time.Since(begin), frames.Load()-frames0
	t.Logf("%d changes in %v: %d frames, %d of all were deltas; the calm service took %v at worst", changes.Load(), took.Round(time.Millisecond), sent, deltas.Load(), worst.Round(time.Millisecond))
	// Windows are never shorter than they should be, however busy the machine is.
	if most := int64(30 * took.Seconds() / 10); sent > most {
		t.Errorf("%d frames in %v, want at most %d", sent, took, most)
	}
	if changes.Load() < 200 {
		t.Errorf("only %d changes: that is no flapping", changes.Load())
	}
	if worst > 5*time.Second { // 300 ms when the machine is not busy
		t.Errorf("the calm service's change took %v", worst)
	}
	// What the flapping service is in the end, its clients see.
	status, err := api.GetStatus(ctx, &donav1.GetStatusRequest{Service: "web"})
	if err != nil {
		t.Fatal(err)
	}
	until(t, "the last version", func() bool { return web.Status().Version >= status.Config.Version && web.Status().Endpoints == 3 })
	// And the status says that they do.
	until(t, "the summary of watchers", func() bool {
		s, err := api.GetStatus(ctx, &donav1.GetStatusRequest{Service: "calm"})
		if err != nil {
			t.Fatal(err)
		}
		return s.Watchers.Connected == 1 && s.Watchers.OnCurrentVersion == 1
	})
}

// comeAndGo registers an endpoint and says goodbye.
func comeAndGo(ctx context.Context, api donav1.ControlPlaneClient, id string) error {
	s, err := api.RegisterEndpoint(ctx, grpc.WaitForReady(true))
	if err != nil {
		return err
	}
	if err := s.Send(&donav1.EndpointHeartbeat{Service: "web", EndpointId: id, Address: "10.0.0.9:80", Variant: "v1", Region: "eu"}); err != nil {
		return err
	}
	if _, err := s.Header(); err != nil {
		return err
	}
	_, err = s.CloseAndRecv()
	return err
}
