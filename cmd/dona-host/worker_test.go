package main

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"
	"time"

	controlplanev1 "github.com/dodona-project/dodona/proto/controlplane/v1"
	"github.com/dodona-project/dodona/sdk/worker"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// TestWorkerWithoutItsHost (O1): the host is killed, and stays away until nothing of the
// worker's snapshot may be used; then it is back on its data, and the worker goes on.
func TestWorkerWithoutItsHost(t *testing.T) {
	t.Parallel()
	const (
		validity = 4 * time.Second
		stale    = 8 * time.Second
		margin   = 2 * time.Second
	)
	p := newProcess(t)
	p.start()
	pools := controlplanev1.NewPoolAdminClient(p.dial())
	publish(t, pools, `
cluster: {id: east}
upstreams:
  - {name: dc, protocol: http, check: {basic: false}, source: {type: static, proxies: [192.0.2.1:3128]}}
routings:
  - {name: all, upstreams: [{name: dc}]}
allocation: {snapshotValidity: 4s, maxStaleAge: 8s}
`)
	var mu sync.Mutex
	var states []worker.State
	since := map[worker.State]time.Time{}
	w, err := worker.New(worker.Config{Target: p.grpc, ClusterID: "east", WorkerID: "w1", InstanceID: "i1", SafetyMargin: margin, OnState: func(s worker.State) {
		mu.Lock()
		defer mu.Unlock()
		states = append(states, s)
		since[s] = time.Now()
	}})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- w.Run(ctx) }()
	defer func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}()
	until(t, "the worker to serve", func() bool { return w.State() == worker.Serving })
	r := w.View().Route(&worker.Request{})
	if r == nil || r.Name != "all" {
		t.Fatalf("the routing is %v", r)
	}
	first := w.View().Version()
	until(t, "the next snapshots", func() bool { return w.View().Version() > first+1 })

	p.kill()
	held := w.View().Version()
	until(t, "the snapshot to be over", func() bool { return w.State() == worker.Expired })
	if _, err := w.Pick(r, 0, nil); !errors.Is(err, worker.ErrNoView) {
		t.Errorf("picked from what is over: %v", err)
	}
	until(t, "nothing of it to be used", func() bool { return w.State() == worker.Ended })
	p.start()
	began := time.Now()
	until(t, "the worker to serve again", func() bool { return w.State() == worker.Serving })
	t.Logf("it serves %v after the host", time.Since(began).Round(time.Millisecond))
	if v := w.View().Version(); v <= held {
		t.Errorf("version %d after %d", v, held)
	}
	until(t, "it to be told", func() bool { // after the state itself
		mu.Lock()
		defer mu.Unlock()
		return states[len(states)-1] == worker.Serving
	})
	mu.Lock()
	defer mu.Unlock()
	if want := []worker.State{worker.Serving, worker.Expired, worker.Stale, worker.Ended, worker.Serving}; !slices.Equal(states, want) {
		t.Errorf("states %v, want %v", states, want)
	}
	// A busy machine makes an instant later, never earlier.
	if took := since[worker.Stale].Sub(since[worker.Expired]); took < stale-validity-time.Second {
		t.Errorf("stale %v after it was over", took)
	}
	if took := since[worker.Ended].Sub(since[worker.Stale]); took < margin-time.Second {
		t.Errorf("ended %v after it was stale", took)
	}
}

// publish publishes a configuration of the pool, as soon as the host knows the probes that
// it needs.
func publish(t *testing.T, pools controlplanev1.PoolAdminClient, yaml string) {
	t.Helper()
	until(t, "the configuration to be published", func() bool {
		_, err := pools.PublishConfig(context.Background(), &controlplanev1.PublishConfigRequest{Yaml: yaml})
		if err != nil && status.Code(err) != codes.Unavailable {
			t.Fatal(err)
		}
		return err == nil
	})
}
