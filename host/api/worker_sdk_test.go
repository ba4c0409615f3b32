package api_test

import (
	"context"
	"testing"

	controlplanev1 "github.com/dodona-project/dodona/proto/controlplane/v1"
	"google.golang.org/grpc/codes"

	"github.com/dodona-project/dodona/sdk/worker"
	"github.com/dodona-project/dodona/sdk/worker/target"
)

// TestWorkerSDK has two workers of the SDK share proxies of a host, and one of them
// leave while it still uses one.
func TestWorkerSDK(t *testing.T) {
	f := newFleet(t)
	ids := f.available(6)
	begin := func(id string) (*worker.Worker, func()) {
		t.Helper()
		w, err := worker.New(worker.Config{Target: f.address, ClusterID: "c1", WorkerID: id, InstanceID: id + "-1", Zone: id, MaxConnections: 100})
		fatal(t, err)
		ctx, cancel := context.WithCancel(context.Background())
		done := make(chan error, 1)
		go func() { done <- w.Run(ctx) }()
		end := func() {
			cancel()
			if err := <-done; err != nil && ctx.Err() == nil {
				t.Errorf("%s: %v", id, err)
			}
		}
		return w, end
	}
	one, endOne := begin("one")
	defer endOne()
	two, endTwo := begin("two")
	defer endTwo()
	owns := func(w *worker.Worker) int {
		if v := w.View(); v != nil {
			return v.Proxies()
		}
		return 0
	}
	eventually(t, "all proxies to be owned, by both", func() bool { return owns(one) > 0 && owns(two) > 0 && owns(one)+owns(two) == len(ids) })
	for _, id := range ids {
		if one.View().Proxy(id) != nil && two.View().Proxy(id) != nil {
			t.Errorf("%s is in both views", id)
		}
	}
	to, err := target.Parse("example.com:443", 0)
	fatal(t, err)
	lease, err := one.Pick(one.View().Route(&worker.Request{Target: to, Method: "CONNECT"}), 1, nil)
	fatal(t, err)
	lease.Activate()
	one.Report(worker.Outcome{ProxyID: lease.Proxy.ID, Routing: "all", Stage: controlplanev1.Outcome_STAGE_TUNNEL, Success: true})
	one.Drain()
	used := lease.Proxy.ID
	eventually(t, "what one does not use to be two's", func() bool { return owns(two) == len(ids)-1 })
	extract := func(key string, n uint32) (*controlplanev1.ExtractResponse, error) {
		return f.pools.Extract(ctx(t), &controlplanev1.ExtractRequest{IdempotencyKey: key, Upstream: "dc", Count: n})
	}
	_, err = extract("a", 1)
	refused(t, "extracted while all are owned or in use", err, codes.ResourceExhausted, "")
	listed, err := f.pools.ListProxies(ctx(t), &controlplanev1.ListProxiesRequest{})
	fatal(t, err)
	for _, s := range listed.Proxies {
		if s.Proxy.ProxyId == used && s.OwnerWorkerId != "one" {
			t.Errorf("the one in use is owned by %q", s.OwnerWorkerId)
		}
	}
	lease.Release()
	eventually(t, "an extraction of what was drained", func() bool {
		got, err := extract("b", 1)
		return err == nil && len(got.Proxies) == 1
	})
	eventually(t, "the outcome to be sent", func() bool { return one.Stats().Reported > 0 })
}
