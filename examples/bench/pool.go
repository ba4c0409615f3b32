package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"runtime"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/dodona-project/dodona/host/audit"
	"github.com/dodona-project/dodona/host/pool"
	"github.com/dodona-project/dodona/host/pool/ownership"
	"github.com/dodona-project/dodona/host/store"
	"github.com/dodona-project/dodona/host/store/embedded"
	controlplanev1 "github.com/dodona-project/dodona/proto/controlplane/v1"
	donav1 "github.com/dodona-project/dodona/proto/dona/v1"
	"github.com/dodona-project/dodona/sdk/worker"
	"github.com/dodona-project/dodona/sdk/worker/digest"
)

const (
	benchProxies  = 10_000
	benchWorkers  = 100
	reporters     = 64 // workers that report at once
	extractors    = 16 // callers at once
	poolTurn      = 2 * time.Second
	poolTurns     = 5
	benchOperator = "spiffe://bench.local/admin/bench"
)

// poolJob measures the egress plane: what it costs to tell workers of changes, how many
// reports and extractions it takes, and how a worker picks.
func poolJob() ([]row, error) {
	var rows []row
	for _, part := range []func() ([]row, error){pushViews, reportRows, extractRows, proxyPicks} {
		r, err := part()
		if err != nil {
			return nil, err
		}
		rows = append(rows, r...)
	}
	return rows, nil
}

// plane is an egress plane with a published configuration.
type plane struct {
	*pool.Pool
	store   store.Store
	server  func() (time.Duration, error) // CPU time that the server has used; nil = there is none
	spare   bool                          // the second upstream is on
	reports [reporters]uint64
}

func openPlane(st store.Store) (*plane, error) {
	p := &plane{store: st, spare: true, Pool: pool.New(pool.Options{Store: st, Audit: audit.New("bench.local"), HostID: "bench"})}
	_, err := p.Publish(context.Background(), benchOperator, &controlplanev1.PublishConfigRequest{Yaml: `
cluster: {id: bench}
upstreams:
  - {name: dc, protocol: http, ttl: 24h, source: {type: static, proxies: [192.0.2.250:3128]}}
  - {name: spare, protocol: socks5, source: {type: static, proxies: [192.0.2.251:1080]}}
routings:
  - {name: all, upstreams: [{name: dc, weight: 3}, {name: spare, weight: 1}]}
`})
	return p, err
}

// add imports n available proxies, the addresses from first on, and returns their ids.
func (p *plane) add(first, n int) error {
	ctx := context.Background()
	const part = 1000
	for ; n > 0; first, n = first+part, n-part {
		var list strings.Builder
		for i := first; i < first+min(n, part); i++ {
			fmt.Fprintf(&list, "198.18.%d.%d:%d\n", i/250%250, 1+i%250, 1024+i/62_500)
		}
		if _, err := p.Import(ctx, benchOperator, &controlplanev1.ImportProxiesRequest{Upstream: "dc", List: list.String()}); err != nil {
			return err
		}
	}
	var fresh []string
	for token := ""; ; {
		resp, err := p.ListProxies(ctx, &controlplanev1.ListProxiesRequest{Upstream: "dc", State: "NEW", PageSize: 1000, PageToken: token})
		if err != nil {
			return err
		}
		for _, s := range resp.Proxies {
			fresh = append(fresh, s.Proxy.ProxyId)
		}
		if token = resp.NextPageToken; token == "" {
			break
		}
	}
	for len(fresh) > 0 {
		now := fresh[:min(len(fresh), 128)]
		fresh = fresh[len(now):]
		if err := p.find(ownership.Available, now...); err != nil {
			return err
		}
	}
	return nil
}

// find says what a check found.
func (p *plane) find(state controlplanev1.ProxyStatus_State, ids ...string) error {
	return p.store.Update(context.Background(), store.Soft, func(tx store.Tx) error {
		for _, id := range ids {
			if err := p.Find(tx, id, ownership.Finding{State: state, AtMs: tx.Now().UnixMilli()}); err != nil {
				return err
			}
		}
		return nil
	})
}

// change switches an upstream, which is in every worker's view.
func (p *plane) change() error {
	p.spare = !p.spare
	_, err := p.SetUpstream(context.Background(), benchOperator, &controlplanev1.SetUpstreamEnabledRequest{Upstream: "spare", Enabled: p.spare})
	return err
}

// proxyWorker is a worker that takes what it is sent, and looks at its size.
type proxyWorker struct {
	id, session string
	seen        chan *controlplanev1.SnapshotUpdate
}

func (p *plane) register(id string) (*proxyWorker, error) {
	resp, err := p.Register(context.Background(), &controlplanev1.RegisterWorkerRequest{
		ClusterId: "bench", WorkerId: id, InstanceId: id, SupportedProtocolVersion: pool.Protocol, MaxConnections: 100_000})
	if err != nil {
		return nil, err
	}
	return &proxyWorker{id: id, session: resp.SessionId, seen: make(chan *controlplanev1.SnapshotUpdate, 64)}, nil
}

// watch opens a stream over the client and takes snapshots in the background.
func (w *proxyWorker) watch(ctx context.Context, c controlplanev1.WorkerControlPlaneClient, delta bool) error {
	stream, err := c.WatchSnapshots(ctx, &controlplanev1.WatchSnapshotsRequest{WorkerId: w.id, SessionId: w.session, AcceptDelta: delta})
	if err != nil {
		return err
	}
	go func() {
		for {
			u, err := stream.Recv()
			if err != nil {
				return
			}
			w.seen <- u
		}
	}()
	return nil
}

// watchPool serves a pool's streams, and nothing else.
type watchPool struct {
	controlplanev1.UnimplementedWorkerControlPlaneServer
	pool *pool.Pool
}

func (s *watchPool) WatchSnapshots(req *controlplanev1.WatchSnapshotsRequest, stream grpc.ServerStreamingServer[controlplanev1.SnapshotUpdate]) error {
	return s.pool.Watch(stream.Context(), req, stream.Send)
}

// await waits until the worker has got something that holds.
func (w *proxyWorker) await(holds func(*controlplanev1.SnapshotUpdate) bool) (*controlplanev1.SnapshotUpdate, error) {
	for timeout := time.After(2 * time.Minute); ; {
		select {
		case u := <-w.seen:
			if holds(u) {
				return u, nil
			}
		case <-timeout:
			return nil, errors.New("a worker gets no snapshot")
		}
	}
}

// accept acknowledges a whole snapshot and reports that nothing is used.
func (p *plane) accept(w *proxyWorker, s *controlplanev1.WorkerSnapshot, sequence uint64) error {
	ctx := context.Background()
	if err := p.Acknowledge(ctx, &controlplanev1.AcknowledgeSnapshotRequest{
		WorkerId: w.id, SessionId: w.session, Version: s.Version, OwnershipEpoch: s.OwnershipEpoch, Checksum: s.Checksum, Accepted: true,
	}); err != nil {
		return err
	}
	_, err := p.ReportRuntime(ctx, w.id, &controlplanev1.ReportRuntimeRequest{
		WorkerId: w.id, SessionId: w.session, ReportSequence: sequence, SnapshotVersion: s.Version, OwnershipEpoch: s.OwnershipEpoch})
	return err
}

// pushViews measures how workers learn of changes, the way from the store to the
// message that a worker has parsed, with host and workers in this process.
func pushViews() ([]row, error) {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	still := time.Now() // sessions do not end meanwhile
	st := embedded.OpenMemory(embedded.Options{Clock: func() time.Time { return still }})
	defer func() { _ = st.Close() }()
	p, err := openPlane(st)
	if err != nil {
		return nil, err
	}
	if err := p.add(0, benchProxies); err != nil {
		return nil, err
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	server := grpc.NewServer()
	controlplanev1.RegisterWorkerControlPlaneServer(server, &watchPool{pool: p.Pool})
	go func() { _ = server.Serve(listener) }()
	defer server.Stop()
	conn, err := grpc.NewClient(listener.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return nil, err
	}
	defer func() { _ = conn.Close() }()
	client := controlplanev1.NewWorkerControlPlaneClient(conn)
	fleet := make([]*proxyWorker, benchWorkers)
	anything := func(*controlplanev1.SnapshotUpdate) bool { return true }
	for i := range fleet {
		w, err := p.register(fmt.Sprint("w", i))
		if err != nil {
			return nil, err
		}
		fleet[i] = w
		if err := w.watch(ctx, client, false); err != nil {
			return nil, err
		}
		u, err := w.await(anything)
		if err == nil {
			err = p.accept(w, u.GetFull(), 1)
		}
		if err != nil {
			return nil, err
		}
	}
	share := benchProxies / benchWorkers
	for range 2 * benchProxies / 2048 { // as much as one look gives, and more
		if err := p.Allocate(ctx); err != nil {
			return nil, err
		}
	}
	var whole *controlplanev1.SnapshotUpdate
	for _, w := range fleet {
		if whole, err = w.await(func(u *controlplanev1.SnapshotUpdate) bool { return len(u.GetFull().GetProxies()) == share }); err != nil {
			return nil, err
		}
	}
	// Every view changes.
	push := func() (each, ms float64, err error) {
		before, begin := cpu(), time.Now()
		if err := p.change(); err != nil {
			return 0, 0, err
		}
		want := 1
		if p.spare {
			want = 2
		}
		for _, w := range fleet {
			if _, err := w.await(func(u *controlplanev1.SnapshotUpdate) bool {
				routings := u.GetFull().GetRoutings()
				if d := u.GetDelta(); d != nil {
					routings = d.Routings
				}
				return len(routings) == 1 && len(routings[0].Upstreams) == want
			}); err != nil {
				return 0, 0, err
			}
		}
		return float64(cpu()-before) / float64(time.Microsecond) / benchWorkers, float64(time.Since(begin)) / float64(time.Millisecond), nil
	}
	work := fmt.Sprintf("%d proxies, %d workers: a change that is in every view, ", benchProxies, benchWorkers)
	measure := func(how string) (rows []row, err error) {
		var took []float64
		m, err := turns(poolTurns, func() (float64, error) {
			each, ms, err := push()
			took = append(took, ms)
			return each, err
		})
		if err != nil {
			return nil, err
		}
		return []row{
			{work: work + how, ours: m[0], unit: "µs CPU a worker, both ends"},
			{work: "the same", ours: median(took), unit: "ms until all have it, 50 of them to coalesce"},
		}, nil
	}
	rows, err := measure("whole")
	if err != nil {
		return nil, err
	}
	for _, w := range fleet { // the same sessions, on new streams
		if err := w.watch(ctx, client, true); err != nil {
			return nil, err
		}
		if _, err := w.await(anything); err != nil {
			return nil, err
		}
	}
	more, err := measure("as deltas")
	if err != nil {
		return nil, err
	}
	rows = append(rows, more...)
	one := whole.GetFull().Proxies[0].ProxyId // of the last worker
	if err := p.find(ownership.Suspect, one); err != nil {
		return nil, err
	}
	u, err := fleet[len(fleet)-1].await(func(u *controlplanev1.SnapshotUpdate) bool { return len(u.GetDelta().GetUpsertProxies()) == 1 })
	if err != nil {
		return nil, err
	}
	rows = append(rows, row{fmt.Sprintf("the state of one of a worker's %d proxies changes", share), float64(proto.Size(u)), float64(proto.Size(whole)), "bytes", "the whole snapshot", 0.02, false, nil})
	return rows, nil
}

// oneView serves one snapshot to one worker.
type oneView struct {
	controlplanev1.UnimplementedWorkerControlPlaneServer
	snapshot *controlplanev1.WorkerSnapshot
}

func (s *oneView) RegisterWorker(context.Context, *controlplanev1.RegisterWorkerRequest) (*controlplanev1.RegisterWorkerResponse, error) {
	return &controlplanev1.RegisterWorkerResponse{SessionId: "s", ProtocolVersion: worker.ProtocolVersion, OwnershipEpoch: 1, RuntimeInterval: durationpb.New(time.Minute),
		SessionTtl: durationpb.New(time.Hour), MaxStaleAge: durationpb.New(time.Hour), MaxRuntimeCounters: 4096, MaxOutcomeBatch: 512}, nil
}

func (s *oneView) WatchSnapshots(_ *controlplanev1.WatchSnapshotsRequest, stream grpc.ServerStreamingServer[controlplanev1.SnapshotUpdate]) error {
	if err := stream.Send(&controlplanev1.SnapshotUpdate{Update: &controlplanev1.SnapshotUpdate_Full{Full: s.snapshot}}); err != nil {
		return err
	}
	<-stream.Context().Done()
	return nil
}

func (s *oneView) AcknowledgeSnapshot(context.Context, *controlplanev1.AcknowledgeSnapshotRequest) (*controlplanev1.AcknowledgeSnapshotResponse, error) {
	return &controlplanev1.AcknowledgeSnapshotResponse{}, nil
}

func (s *oneView) ReportRuntime(_ context.Context, req *controlplanev1.ReportRuntimeRequest) (*controlplanev1.ReportRuntimeResponse, error) {
	return &controlplanev1.ReportRuntimeResponse{AcceptedSequence: req.ReportSequence}, nil
}

// proxyPicks measures how a worker picks one of 1,000 proxies and gives it back: with
// the look at the clock, the reservation and the second look at its view.
func proxyPicks() ([]row, error) {
	const slots = 1000
	var rows []row
	for _, a := range []donav1.Algorithm{
		donav1.Algorithm_ALGORITHM_ROUND_ROBIN, donav1.Algorithm_ALGORITHM_RANDOM, donav1.Algorithm_ALGORITHM_LEAST_CONNECTIONS,
		donav1.Algorithm_ALGORITHM_TIERED, donav1.Algorithm_ALGORITHM_CONSISTENT_HASH, donav1.Algorithm_ALGORITHM_PEAK_EWMA,
	} {
		w, r, stop, err := proxyView(a, slots)
		if err != nil {
			return nil, err
		}
		op := func() func() {
			key := uint64(1)
			return func() {
				key += 0x9e3779b97f4a7c15
				l, err := w.Pick(r, key, nil)
				if err != nil {
					panic(err)
				}
				l.Release()
			}
		}
		var allocs uint64
		m, err := turns(repeats, nsPerOp(300_000, op()), func() (float64, error) {
			var before, after runtime.MemStats
			done := make(chan float64, 2)
			runtime.ReadMemStats(&before)
			for range 2 {
				go func() {
					took, _ := nsPerOp(300_000, op())()
					done <- took
				}()
			}
			took := (<-done + <-done) / 2
			runtime.ReadMemStats(&after)
			allocs = max(allocs, (after.Mallocs-before.Mallocs)/600_000)
			return took, nil
		})
		stop()
		if err != nil {
			return nil, err
		}
		name := a.String()[len("ALGORITHM_"):]
		rows = append(rows,
			row{fmt.Sprintf("%s: pick and release, %d proxies, 2 goroutines, each", name, slots), m[1], goalOfPick, "ns", "the goal", 1, false, nil},
			row{fmt.Sprintf("the same, 1 goroutine: %d allocations; picks a second of one core", allocs), 1e9 / m[0], 1e6, "/s", "the goal", 1, true, nil})
	}
	return rows, nil
}

// proxyView runs a worker with a view of n proxies.
func proxyView(a donav1.Algorithm, n int) (_ *worker.Worker, _ *worker.Routing, stop func(), err error) {
	p := &donav1.Plan{Algorithm: a}
	switch a {
	case donav1.Algorithm_ALGORITHM_CONSISTENT_HASH:
		p.Hash = &donav1.HashPolicy{Source: donav1.HashPolicy_SOURCE_CLIENT_ID}
	case donav1.Algorithm_ALGORITHM_TIERED:
		p.GroupTiers = map[string]uint32{"dc": 0}
	}
	now := time.Now()
	s := &controlplanev1.WorkerSnapshot{Version: 1, OwnershipEpoch: 1, ClusterId: "bench", GeneratedAt: timestamppb.New(now), ValidUntil: timestamppb.New(now.Add(time.Hour)),
		Routings: []*controlplanev1.Routing{{Name: "all", OnUnavailable: controlplanev1.OnUnavailable_ON_UNAVAILABLE_FAIL, Plan: p,
			Upstreams: []*controlplanev1.UpstreamRef{{Name: "dc", Weight: 1}}}}}
	for i := range n {
		s.Proxies = append(s.Proxies, &controlplanev1.Proxy{ProxyId: fmt.Sprintf("dc-%05d", i), Upstream: "dc", Protocol: controlplanev1.Proxy_PROTOCOL_HTTP,
			Host: fmt.Sprintf("198.18.%d.%d", i/250, 1+i%250), Port: 3128, Capacity: 1000, AssignmentEpoch: 1, Health: controlplanev1.Health_HEALTH_AVAILABLE})
	}
	sum := digest.OfSnapshot(s)
	s.Checksum = sum[:]
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, nil, nil, err
	}
	server := grpc.NewServer()
	controlplanev1.RegisterWorkerControlPlaneServer(server, &oneView{snapshot: s})
	go func() { _ = server.Serve(listener) }()
	serving := make(chan struct{})
	var once sync.Once
	w, err := worker.New(worker.Config{Target: listener.Addr().String(), ClusterID: "bench", WorkerID: "w", InstanceID: "i",
		OnState: func(s worker.State) { once.Do(func() { close(serving) }) }})
	if err != nil {
		server.Stop()
		return nil, nil, nil, err
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- w.Run(ctx) }()
	stop = func() {
		cancel()
		<-ended
		server.Stop()
	}
	select {
	case <-serving:
		return w, w.View().Route(&worker.Request{}), stop, nil
	case err = <-ended:
		ended <- err
	case <-time.After(time.Minute):
	}
	stop()
	return nil, nil, nil, cmp.Or(err, errors.New("a worker does not serve"))
}
