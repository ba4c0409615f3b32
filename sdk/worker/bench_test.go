package worker_test

import (
	"context"
	"net"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/test/bufconn"

	controlplanev1 "github.com/dodona-project/dodona/proto/controlplane/v1"
	donav1 "github.com/dodona-project/dodona/proto/dona/v1"
	"github.com/dodona-project/dodona/sdk/worker"
)

// serve runs a worker with real time.
func serve(b testing.TB, plan *donav1.Plan, n int) (*worker.Worker, *worker.Routing) {
	b.Helper()
	p := newPlane()
	r := routing("all", "eu")
	r.Plan = plan
	p.routings, p.proxies = []*controlplanev1.Routing{r}, proxies("eu", n)
	for _, x := range p.proxies {
		x.Capacity = 1000
	}
	l := bufconn.Listen(1 << 20)
	g := grpc.NewServer()
	controlplanev1.RegisterWorkerControlPlaneServer(g, &server{plane: p})
	served := make(chan error, 1)
	go func() { served <- g.Serve(l) }()
	serving := make(chan struct{})
	w, err := worker.New(worker.Config{Target: hostA, ClusterID: cluster, WorkerID: "w", InstanceID: "i",
		Dialer:  func(ctx context.Context, _ string) (net.Conn, error) { return l.DialContext(ctx) },
		OnState: func(worker.State) { close(serving) },
	})
	if err != nil {
		b.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- w.Run(ctx) }()
	b.Cleanup(func() {
		cancel()
		<-ended
		g.Stop()
		<-served
	})
	select {
	case <-serving:
	case <-time.After(time.Minute):
		b.Fatal("it does not serve")
	}
	return w, w.View().Route(&worker.Request{})
}

var algorithms = map[string]*donav1.Plan{
	"round-robin":       {Algorithm: donav1.Algorithm_ALGORITHM_ROUND_ROBIN},
	"random":            {Algorithm: donav1.Algorithm_ALGORITHM_RANDOM},
	"least-connections": {Algorithm: donav1.Algorithm_ALGORITHM_LEAST_CONNECTIONS},
	"tiered":            {Algorithm: donav1.Algorithm_ALGORITHM_TIERED},
	"consistent-hash":   {Algorithm: donav1.Algorithm_ALGORITHM_CONSISTENT_HASH, Hash: &donav1.HashPolicy{Source: donav1.HashPolicy_SOURCE_CLIENT_ID}},
	"peak-ewma":         {Algorithm: donav1.Algorithm_ALGORITHM_PEAK_EWMA},
}

// A pick and its release, of 1,000 slots, on all cores.
func BenchmarkPick(b *testing.B) {
	for name, p := range algorithms {
		b.Run(name, func(b *testing.B) {
			w, r := serve(b, p, 1000)
			b.ReportAllocs()
			b.ResetTimer()
			b.RunParallel(func(pb *testing.PB) {
				key := uint64(0)
				for pb.Next() {
					key += 0x9e3779b97f4a7c15
					l, err := w.Pick(r, key, nil)
					if err != nil {
						b.Error(err)
						return
					}
					l.Release()
				}
			})
		})
	}
}

func TestPickAllocatesNothing(t *testing.T) {
	for name, p := range algorithms {
		w, r := serve(t, p, 100)
		tried := []string{"eu-001", "eu-002"}
		if n := testing.AllocsPerRun(1000, func() {
			l, err := w.Pick(r, 7, tried)
			if err != nil {
				t.Error(err)
				return
			}
			l.Activate()
			l.Release()
		}); n != 0 {
			t.Errorf("%s: %v allocations a pick", name, n)
		}
	}
}

func BenchmarkReport(b *testing.B) {
	w, _ := serve(b, nil, 10)
	o := worker.Outcome{ProxyID: "eu-001", Routing: "all", Stage: controlplanev1.Outcome_STAGE_TUNNEL, Success: true, At: time.UnixMilli(1)}
	b.ReportAllocs()
	b.ResetTimer()
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			w.Report(o)
		}
	})
}
