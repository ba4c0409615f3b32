package worker_test

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/test/bufconn"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	controlplanev1 "github.com/dodona-project/dodona/proto/controlplane/v1"
	"github.com/dodona-project/dodona/sdk/worker"
	"github.com/dodona-project/dodona/sdk/worker/digest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const (
	cluster = "prod"
	hostA   = "a:7600"
	hostB   = "b:7600"

	validity = 60 * time.Second
	maxStale = 120 * time.Second
	margin   = 10 * time.Second
	interval = 2 * time.Second
	ttl      = 30 * time.Second
)

// plane is what the hosts of a deployment share: they keep to the contract, and refuse
// what does not.
type plane struct {
	mu sync.Mutex

	routings    []*controlplanev1.Routing
	proxies     []*controlplanev1.Proxy
	credentials []*controlplanev1.Credential
	epoch       uint64

	session string // of the one worker
	began   int
	expires time.Time
	version uint64
	issued  map[string]bool                            // version/epoch/checksum
	acked   *controlplanev1.AcknowledgeSnapshotRequest // nil = the fence is shut
	lowest  uint64                                     // an acknowledgement opens the fence only above it
	report  uint64
	batch   uint64
	sum     [32]byte
	change  chan struct{} // closed at each push
	deltas  bool

	// What the worker did.
	registers []*controlplanev1.RegisterWorkerRequest
	watches   []*controlplanev1.WatchSnapshotsRequest
	acks      []*controlplanev1.AcknowledgeSnapshotRequest
	reports   []*controlplanev1.ReportRuntimeRequest
	batches   []*controlplanev1.OutcomeBatch
	wrong     []string // what no worker does

	// What goes wrong. They are called with the lock held.
	fail   func(method string) error
	spoil  func(*controlplanev1.SnapshotUpdate) // before it is sent
	revoke []string
	stamp  func() time.Time // the host's clock

	safety *durationpb.Duration // what it says of the margin; nil = nothing
}

func newPlane() *plane {
	return &plane{epoch: 1, issued: map[string]bool{}, change: make(chan struct{}), stamp: time.Now}
}

func (p *plane) with(f func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	f()
}

// push has every stream get a snapshot.
func (p *plane) push() {
	p.with(func() {
		close(p.change)
		p.change = make(chan struct{})
	})
}

func (p *plane) failing(method string) error {
	if p.fail != nil {
		return p.fail(method)
	}
	return nil
}

func (p *plane) of(session string) error {
	if session != p.session || p.session == "" {
		return status.Errorf(codes.FailedPrecondition, "session %q is not %q", session, p.session)
	}
	if time.Now().After(p.expires) {
		return status.Error(codes.FailedPrecondition, "the session has expired")
	}
	return nil
}

// server is one host.
type server struct {
	controlplanev1.UnimplementedWorkerControlPlaneServer
	*plane
}

func (s *server) RegisterWorker(_ context.Context, r *controlplanev1.RegisterWorkerRequest) (*controlplanev1.RegisterWorkerResponse, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.registers = append(s.registers, r)
	if err := s.failing("RegisterWorker"); err != nil {
		return nil, err
	}
	if r.GetClusterId() != cluster || r.GetSupportedProtocolVersion() != worker.ProtocolVersion {
		return nil, status.Error(codes.FailedPrecondition, "another cluster or version")
	}
	s.began++
	s.session, s.issued, s.acked, s.lowest, s.report, s.batch = fmt.Sprintf("session-%d", s.began), map[string]bool{}, nil, 0, 0, 0
	s.expires = time.Now().Add(ttl)
	return &controlplanev1.RegisterWorkerResponse{
		SessionId: s.session, OwnershipEpoch: s.epoch, MaxStaleAge: durationpb.New(maxStale), SessionTtl: durationpb.New(ttl),
		RuntimeInterval: durationpb.New(interval), MaxRuntimeCounters: 4096, MaxOutcomeBatch: 512, ProtocolVersion: worker.ProtocolVersion, SafetyMargin: s.safety,
	}, nil
}

func reference(version, epoch uint64, sum []byte) string {
	return fmt.Sprintf("%d/%d/%x", version, epoch, sum)
}

// build makes the next snapshot.
func (p *plane) build() *controlplanev1.WorkerSnapshot {
	p.version++
	now := p.stamp()
	s := &controlplanev1.WorkerSnapshot{
		Version: p.version, OwnershipEpoch: p.epoch, ClusterId: cluster, GeneratedAt: timestamppb.New(now), ValidUntil: timestamppb.New(now.Add(validity)),
		Routings: p.routings, Proxies: p.proxies, Credentials: p.credentials,
	}
	s = proto.CloneOf(s)
	sum := digest.OfSnapshot(s)
	s.Checksum = sum[:]
	return s
}

func (s *server) WatchSnapshots(r *controlplanev1.WatchSnapshotsRequest, stream grpc.ServerStreamingServer[controlplanev1.SnapshotUpdate]) error {
	s.mu.Lock()
	s.watches = append(s.watches, r)
	err := s.failing("WatchSnapshots")
	s.mu.Unlock()
	if err != nil {
		return err
	}
	var base *controlplanev1.WorkerSnapshot
	for {
		s.mu.Lock()
		change := s.change
		err := s.of(r.GetSessionId())
		if err == nil {
			err = s.failing("snapshot")
		}
		if err != nil {
			s.mu.Unlock()
			return err
		}
		next := s.build()
		update := &controlplanev1.SnapshotUpdate{Update: &controlplanev1.SnapshotUpdate_Full{Full: next}}
		if s.deltas && base != nil {
			update = &controlplanev1.SnapshotUpdate{Update: &controlplanev1.SnapshotUpdate_Delta{Delta: difference(base, next)}}
		}
		base = proto.CloneOf(next)
		update = proto.CloneOf(update)
		if s.spoil != nil {
			s.spoil(update)
		}
		sum, version, epoch := next.GetChecksum(), next.GetVersion(), next.GetOwnershipEpoch()
		if f := update.GetFull(); f != nil {
			sum, version, epoch = f.GetChecksum(), f.GetVersion(), f.GetOwnershipEpoch()
			s.version = max(s.version, version)
		}
		s.issued[reference(version, epoch, sum)] = true
		s.mu.Unlock()
		if err := stream.Send(update); err != nil {
			return err
		}
		refresh := time.NewTimer(validity * 2 / 5)
		select {
		case <-change:
		case <-refresh.C:
		case <-stream.Context().Done():
			refresh.Stop()
			return stream.Context().Err()
		}
		refresh.Stop()
	}
}

// difference makes a delta.
func difference(a, b *controlplanev1.WorkerSnapshot) *controlplanev1.SnapshotDelta {
	d := &controlplanev1.SnapshotDelta{
		BaseVersion: a.Version, Version: b.Version, OwnershipEpoch: b.OwnershipEpoch, GeneratedAt: b.GeneratedAt, ValidUntil: b.ValidUntil,
		Checksum: b.Checksum, ClusterId: b.ClusterId,
	}
	if !slices.EqualFunc(a.Routings, b.Routings, func(x, y *controlplanev1.Routing) bool { return proto.Equal(x, y) }) {
		d.Routings, d.RoutingsChanged = b.Routings, true
	}
	old := map[string]*controlplanev1.Proxy{}
	for _, p := range a.Proxies {
		old[p.ProxyId] = p
	}
	for _, p := range b.Proxies {
		if !proto.Equal(old[p.ProxyId], p) {
			d.UpsertProxies = append(d.UpsertProxies, p)
		}
		delete(old, p.ProxyId)
	}
	for id := range old {
		d.RemovedProxyIds = append(d.RemovedProxyIds, id)
	}
	keys := map[string]*controlplanev1.Credential{}
	for _, c := range a.Credentials {
		keys[digest.CredentialID(c.SecretRef, c.CredentialVersion)] = c
	}
	for _, c := range b.Credentials {
		id := digest.CredentialID(c.SecretRef, c.CredentialVersion)
		if !proto.Equal(keys[id], c) {
			d.UpsertCredentials = append(d.UpsertCredentials, c)
		}
		delete(keys, id)
	}
	for _, c := range keys {
		d.RemovedCredentials = append(d.RemovedCredentials, &controlplanev1.CredentialRef{SecretRef: c.SecretRef, CredentialVersion: c.CredentialVersion})
	}
	return d
}

func (s *server) AcknowledgeSnapshot(_ context.Context, r *controlplanev1.AcknowledgeSnapshotRequest) (*controlplanev1.AcknowledgeSnapshotResponse, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.failing("AcknowledgeSnapshot"); err != nil {
		return nil, err
	}
	if err := s.of(r.GetSessionId()); err != nil {
		return nil, err
	}
	s.acks = append(s.acks, r)
	if !s.issued[reference(r.GetVersion(), r.GetOwnershipEpoch(), r.GetChecksum())] {
		s.wrong = append(s.wrong, fmt.Sprintf("acknowledged %d, which was not issued", r.GetVersion()))
		return nil, status.Error(codes.FailedPrecondition, "not issued")
	}
	switch {
	case !r.GetAccepted():
		s.acked, s.lowest = nil, max(s.lowest, r.GetVersion())
	case r.GetVersion() > s.lowest && (s.acked == nil || r.GetVersion() > s.acked.GetVersion()):
		s.acked = r
	}
	return &controlplanev1.AcknowledgeSnapshotResponse{}, nil
}

func (s *server) ReportRuntime(ctx context.Context, r *controlplanev1.ReportRuntimeRequest) (*controlplanev1.ReportRuntimeResponse, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.failing("ReportRuntime"); err != nil {
		return nil, err
	}
	if err := s.of(r.GetSessionId()); err != nil {
		return nil, err
	}
	switch {
	case s.acked == nil || r.GetSnapshotVersion() != s.acked.GetVersion() || r.GetOwnershipEpoch() != s.acked.GetOwnershipEpoch():
		s.wrong = append(s.wrong, fmt.Sprintf("report %d names version %d, acknowledged is %v", r.GetReportSequence(), r.GetSnapshotVersion(), s.acked.GetVersion()))
		return nil, status.Error(codes.FailedPrecondition, "not the acknowledged snapshot")
	case r.GetReportSequence() <= s.report:
		if ctx.Err() == nil { // what was given up may come late
			s.wrong = append(s.wrong, fmt.Sprintf("report %d after %d", r.GetReportSequence(), s.report))
		}
		return nil, status.Error(codes.Aborted, "lower")
	}
	s.report = r.GetReportSequence()
	s.expires = time.Now().Add(ttl)
	s.reports = append(s.reports, r)
	return &controlplanev1.ReportRuntimeResponse{AcceptedSequence: s.report, RevokeProxyIds: s.revoke}, nil
}

func (s *server) ReportOutcomes(stream grpc.ClientStreamingServer[controlplanev1.OutcomeBatch, controlplanev1.ReportOutcomesResponse]) error {
	n := 0
	for {
		b, err := stream.Recv()
		s.mu.Lock()
		if errors.Is(err, io.EOF) {
			err := s.failing("outcomes answered")
			accepted := s.batch
			s.mu.Unlock()
			if err != nil {
				return err
			}
			return stream.SendAndClose(&controlplanev1.ReportOutcomesResponse{AcceptedSequence: accepted})
		}
		if err == nil {
			err = s.failing("ReportOutcomes")
		}
		if err == nil {
			err = s.of(b.GetSessionId())
		}
		if err == nil {
			err = s.takeBatch(b)
		}
		if n++; n > 16 {
			s.wrong = append(s.wrong, "17 batches in a call")
		}
		s.mu.Unlock()
		if err != nil {
			return err
		}
	}
}

func (s *server) takeBatch(b *controlplanev1.OutcomeBatch) error {
	bytes, err := proto.MarshalOptions{Deterministic: true}.Marshal(b)
	if err != nil {
		return err
	}
	sum := sha256.Sum256(bytes)
	switch {
	case len(b.GetOutcomes()) > 512:
		s.wrong = append(s.wrong, fmt.Sprintf("a batch of %d", len(b.GetOutcomes())))
	case b.GetSequence() == s.batch && sum == s.sum:
		return nil
	case b.GetSequence() == s.batch:
		s.wrong = append(s.wrong, fmt.Sprintf("batch %d has another content", b.GetSequence()))
		return status.Error(codes.AlreadyExists, "another content")
	case b.GetSequence() < s.batch:
		return status.Error(codes.Aborted, "lower")
	}
	s.batch, s.sum = b.GetSequence(), sum
	s.batches = append(s.batches, b)
	return nil
}

// deployment is hosts in memory that share a plane.
type deployment struct {
	*plane
	mu    sync.Mutex
	nets  map[string]*bufconn.Listener
	stops map[string]func()
}

func deploy(t *testing.T, addresses ...string) *deployment {
	d := &deployment{plane: newPlane(), nets: map[string]*bufconn.Listener{}, stops: map[string]func(){}}
	for _, a := range addresses {
		d.up(a)
	}
	t.Cleanup(func() {
		for _, a := range addresses {
			d.down(a)
		}
		d.with(func() {
			for _, w := range d.wrong {
				t.Errorf("the worker broke the contract: %s", w)
			}
		})
	})
	return d
}

func (d *deployment) up(address string) {
	l := bufconn.Listen(1 << 20)
	g := grpc.NewServer()
	controlplanev1.RegisterWorkerControlPlaneServer(g, &server{plane: d.plane})
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = g.Serve(l)
	}()
	d.mu.Lock()
	defer d.mu.Unlock()
	d.nets[address] = l
	d.stops[address] = func() {
		g.Stop()
		<-done
	}
}

func (d *deployment) down(address string) {
	d.mu.Lock()
	stop := d.stops[address]
	delete(d.stops, address)
	delete(d.nets, address)
	d.mu.Unlock()
	if stop != nil {
		stop()
	}
}

func (d *deployment) dial(ctx context.Context, address string) (net.Conn, error) {
	d.mu.Lock()
	l := d.nets[address]
	d.mu.Unlock()
	if l == nil {
		return nil, errors.New("nobody is there")
	}
	return l.DialContext(ctx)
}

// running is a worker that runs.
type running struct {
	*worker.Worker
	stop func() error

	mu     sync.Mutex
	states []string
}

func (r *running) seen() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return strings.Join(r.states, " ")
}

// start runs a worker until the test ends.
func (d *deployment) start(t *testing.T, change func(*worker.Config)) *running {
	t.Helper()
	r := &running{}
	config := worker.Config{
		Target: hostA + "," + hostB, ClusterID: cluster, WorkerID: "worker-1", InstanceID: "instance-1", Zone: "eu-1", Dialer: d.dial, SafetyMargin: margin,
		OnState: func(s worker.State) {
			r.mu.Lock()
			defer r.mu.Unlock()
			r.states = append(r.states, s.String())
		},
	}
	if change != nil {
		change(&config)
	}
	w, err := worker.New(config)
	if err != nil {
		t.Fatal(err)
	}
	r.Worker = w
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- w.Run(ctx) }()
	r.stop = sync.OnceValue(func() error {
		cancel()
		return <-ended
	})
	t.Cleanup(func() { _ = r.stop() })
	return r
}

// after waits in virtual time and returns how long the condition took.
func after(t *testing.T, most time.Duration, what string, ok func() bool) time.Duration {
	t.Helper()
	began := time.Now()
	for synctest.Wait(); !ok(); synctest.Wait() {
		if time.Since(began) > most {
			t.Fatalf("after %v not yet: %s", most, what)
		}
		time.Sleep(10 * time.Millisecond)
	}
	return time.Since(began)
}

// proxies makes proxies of an upstream.
func proxies(upstream string, n int) (out []*controlplanev1.Proxy) {
	for i := range n {
		out = append(out, &controlplanev1.Proxy{
			ProxyId: fmt.Sprintf("%s-%03d", upstream, i), Upstream: upstream, Protocol: controlplanev1.Proxy_PROTOCOL_HTTP, Host: fmt.Sprintf("192.0.2.%d", i%250+1), Port: 3128,
			Capacity: 10, AssignmentEpoch: 1, Health: controlplanev1.Health_HEALTH_AVAILABLE,
		})
	}
	return out
}

// routing makes a routing that takes everything to upstreams.
func routing(name string, upstreams ...string) *controlplanev1.Routing {
	r := &controlplanev1.Routing{Name: name, OnUnavailable: controlplanev1.OnUnavailable_ON_UNAVAILABLE_FAIL}
	for _, u := range upstreams {
		r.Upstreams = append(r.Upstreams, &controlplanev1.UpstreamRef{Name: u, Weight: 1})
	}
	return r
}

func (d *deployment) give(routings []*controlplanev1.Routing, list []*controlplanev1.Proxy) {
	d.with(func() { d.routings, d.proxies = routings, list })
}
