package api_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	controlplanev1 "github.com/dodona-project/dodona/proto/controlplane/v1"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/dodona-project/dodona/sdk/worker"
	"github.com/dodona-project/dodona/sdk/worker/target"
)

// supervised runs the SDK's worker against the edge until the test ends.
func (f *fleet) supervised(id string) *worker.Worker {
	f.t.Helper()
	w, err := worker.New(worker.Config{Target: f.address, ClusterID: "c1", WorkerID: id, InstanceID: id + "-1", Zone: "z1"})
	fatal(f.t, err)
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- w.Run(ctx) }()
	f.t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			f.t.Errorf("worker %s: %v", id, err)
		}
	})
	return w
}

// TestWorkerOfTheSDK: the SDK's worker and the host's side of the contract, together: it
// is given proxies, picks, drains, follows a publication, reports outcomes, and takes its
// session back.
func TestWorkerOfTheSDK(t *testing.T) {
	f := newFleet(t)
	w := f.supervised("w2")
	f.available(6)
	shop := &worker.Request{Target: target.Target{Name: "shop.example", Port: 443}, Method: "CONNECT"}
	route := func() *worker.Routing {
		if v := w.View(); v != nil {
			return v.Route(shop)
		}
		return nil
	}
	eventually(t, "it has all proxies", func() bool { v := w.View(); return v != nil && v.Proxies() == 6 })

	lease, err := w.Pick(route(), 0, nil)
	fatal(t, err)
	lease.Activate()
	busy := lease.Proxy.ID
	_, err = f.pools.BeginDrain(ctx(t), &controlplanev1.BeginDrainRequest{ProxyId: busy, Reason: "test"})
	fatal(t, err)
	eventually(t, "the drained proxy has left the view", func() bool { return w.View().Proxy(busy) == nil })
	acked := w.View().Version()
	eventually(t, "it is acknowledged and reported", func() bool {
		list, err := f.pools.ListWorkers(ctx(t), &controlplanev1.ListWorkersRequest{})
		fatal(t, err)
		for _, x := range list.Workers {
			if x.WorkerId == "w2" {
				return x.AcknowledgedVersion >= acked && x.DrainingProxies == 1 && !x.Fenced
			}
		}
		return false
	})
	for range 100 {
		other, err := w.Pick(route(), 0, nil)
		fatal(t, err)
		if other.Proxy.ID == busy {
			t.Fatal("a proxy that drains is picked")
		}
		other.Release()
	}
	owner := func() string {
		list, err := f.pools.ListProxies(ctx(t), &controlplanev1.ListProxiesRequest{PageSize: 1000})
		fatal(t, err)
		for _, x := range list.Proxies {
			if x.Proxy.ProxyId == busy {
				return x.OwnerWorkerId
			}
		}
		return "nobody knows it"
	}
	// Two more reports come and go while it is in use.
	for until := time.Now().Add(5 * time.Second); time.Now().Before(until); time.Sleep(100 * time.Millisecond) {
		if got := owner(); got != "w2" || w.View().Proxy(busy) != nil {
			t.Fatalf("while it is in use it is owned by %q", got)
		}
	}
	lease.Release()
	eventually(t, "it is released, and given out again", func() bool { return w.View().Proxy(busy) != nil })

	document := strings.ReplaceAll(poolDocument, "name: all", "name: other")
	began := time.Now()
	_, err = f.pools.PublishConfig(ctx(t), &controlplanev1.PublishConfigRequest{Yaml: document})
	fatal(t, err)
	eventually(t, "the publication is in force", func() bool { r := route(); return r != nil && r.Name == "other" })
	t.Logf("a publication is in force after %v", time.Since(began).Round(time.Millisecond))

	for range 1000 {
		w.Report(worker.Outcome{ProxyID: busy, Routing: "other", Stage: controlplanev1.Outcome_STAGE_TUNNEL, Success: true})
	}
	eventually(t, "the outcomes have arrived", func() bool { return w.Stats().Reported == 1000 })

	held := w.View().Version()
	_, err = f.workers.RegisterWorker(ctx(t), workerNamed("w2"))
	fatal(t, err)
	eventually(t, "it has its session back", func() bool { return w.Stats().Sessions >= 2 })
	eventually(t, "and gets snapshots in it", func() bool { return w.View().Version() > held })
	if s := w.Stats(); s.Refused != 0 || s.Dropped != 0 || w.State() != worker.Serving {
		t.Errorf("%+v, %v", s, w.State())
	}
}

// A worker of another cluster ends with what the host says.
func TestWorkerOfAnotherCluster(t *testing.T) {
	f := newFleet(t)
	w, err := worker.New(worker.Config{Target: f.address, ClusterID: "c2", WorkerID: "w2", InstanceID: "i"})
	fatal(t, err)
	err = w.Run(ctx(t))
	if status.Code(err) != codes.FailedPrecondition || !strings.Contains(err.Error(), "c2") || !strings.Contains(err.Error(), "c1") {
		t.Errorf("it ends with %v", err)
	}
	if _, err := w.Pick(nil, 0, nil); !errors.Is(err, worker.ErrNoView) {
		t.Errorf("picked: %v", err)
	}
}
