package api_test

import (
	"context"
	"errors"
	"io"
	"net"
	"strings"
	"testing"
	"time"

	controlplanev1 "github.com/dodona-project/dodona/proto/controlplane/v1"
	donav1 "github.com/dodona-project/dodona/proto/dona/v1"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/dodona-project/dodona/host/api"
	"github.com/dodona-project/dodona/sdk/worker"
)

func bounded(b api.Bounds, dial ...grpc.DialOption) option {
	return serving(func(o *api.Options) { o.Bounds = b }, dial...)
}

// TestMessageBound: a message of just the bound is taken, one of a byte more is not, in
// calls and on streams.
func TestMessageBound(t *testing.T) {
	const most = 1 << 16
	e := newEdge(t, bounded(api.Bounds{MessageBytes: most}))
	workers := controlplanev1.NewWorkerControlPlaneClient(e.conn)
	// padded has a text that fills a message of that length.
	padded := func(n int) string { return strings.Repeat("x", n) }
	for _, extra := range []int{0, 1} {
		want := codes.InvalidArgument // it is read, and its text is too long
		if extra > 0 {
			want = codes.ResourceExhausted
		}
		r := workerNamed("w1")
		r.Build = padded(most)
		r.Build = padded(2*most - proto.Size(r) + extra)
		if n := proto.Size(r); n != most+extra {
			t.Fatalf("the message has %d bytes", n)
		}
		if _, err := workers.RegisterWorker(ctx(t), r); status.Code(err) != want {
			t.Errorf("a call of %d bytes: %v, want %v", most+extra, err, want)
		}
		b := &controlplanev1.OutcomeBatch{WorkerId: padded(most)}
		b.WorkerId = padded(2*most - proto.Size(b) + extra)
		out, err := workers.ReportOutcomes(ctx(t))
		fatal(t, err)
		fatal(t, out.Send(b))
		if _, err := out.CloseAndRecv(); status.Code(err) != want {
			t.Errorf("a batch of %d bytes: %v, want %v", most+extra, err, want)
		}
	}
}

// TestStreamsAtOnce: a call beyond those that a connection may have at once waits for
// one of them to end, and is served then.
func TestStreamsAtOnce(t *testing.T) {
	f := newFleet(t, bounded(api.Bounds{Streams: 2}))
	open := func(session string) (grpc.ServerStreamingClient[controlplanev1.SnapshotUpdate], context.CancelFunc) {
		c, cancel := context.WithCancel(ctx(t))
		s, err := f.workers.WatchSnapshots(c, &controlplanev1.WatchSnapshotsRequest{WorkerId: "w1", SessionId: session})
		fatal(t, err)
		return s, cancel
	}
	first, end := open(f.session)
	_, err := first.Recv()
	fatal(t, err)
	out, err := f.workers.ReportOutcomes(ctx(t)) // the second
	fatal(t, err)
	fatal(t, out.Send(&controlplanev1.OutcomeBatch{WorkerId: "w1", SessionId: f.session, Sequence: 1, Outcomes: []*controlplanev1.Outcome{
		{ProxyId: "p", Routing: "all", Stage: controlplanev1.Outcome_STAGE_TUNNEL, Success: true}}}))
	short, cancel := context.WithTimeout(ctx(t), 300*time.Millisecond)
	defer cancel()
	if _, err := f.pools.GetConfig(short, &controlplanev1.GetConfigRequest{}); status.Code(err) != codes.DeadlineExceeded {
		t.Fatalf("a third call, of two at once: %v", err)
	}
	end()
	_, err = f.pools.GetConfig(ctx(t), &controlplanev1.GetConfigRequest{})
	fatal(t, err)
}

// TestStreamDuration: streams of workers and checkers end after their time, whatever
// they do, the session goes on, and the next stream is opened as the first was.
func TestStreamDuration(t *testing.T) {
	const lasts = 300 * time.Millisecond
	f := newFleet(t, bounded(api.Bounds{StreamDuration: lasts}))
	for range 2 {
		began := time.Now()
		s, err := f.workers.WatchSnapshots(ctx(t), &controlplanev1.WatchSnapshotsRequest{WorkerId: "w1", SessionId: f.session})
		fatal(t, err)
		for err == nil {
			_, err = s.Recv()
		}
		refused(t, "a stream of snapshots", err, codes.Unavailable, "has lasted 300ms")
		if took := time.Since(began); took < lasts {
			t.Errorf("the stream lasted %v", took)
		}
	}
	out, err := f.workers.ReportOutcomes(ctx(t)) // that sends nothing
	fatal(t, err)
	refused(t, "a stream of outcomes", out.RecvMsg(&controlplanev1.ReportOutcomesResponse{}), codes.Unavailable, "has lasted 300ms")
	f.checked(1)
	_, err = f.checker().RegisterChecker(ctx(t), checkerOf(nil))
	fatal(t, err)
	tasks := f.tasks(ctx(t), "i1")
	for err == nil {
		_, err = tasks.Recv()
	}
	refused(t, "a stream of tasks", err, codes.Unavailable, "has lasted 300ms")
	// Others are not bounded by it.
	status, err := f.client.WatchStatus(ctx(t), &donav1.GetStatusRequest{Service: "web"})
	fatal(t, err)
	ended := make(chan error, 1)
	go func() {
		for {
			if _, err := status.Recv(); err != nil {
				ended <- err
				return
			}
		}
	}()
	select {
	case err := <-ended:
		t.Errorf("a stream of statuses ended: %v", err)
	case <-time.After(2 * lasts):
	}
}

// TestWorkerOutlivesItsStreams: a worker whose streams end again and again keeps its
// session and its snapshot.
func TestWorkerOutlivesItsStreams(t *testing.T) {
	f := newFleet(t, bounded(api.Bounds{StreamDuration: 400 * time.Millisecond}))
	f.available(2)
	w, err := worker.New(worker.Config{Target: f.address, ClusterID: "c1", WorkerID: "w1", InstanceID: "i2", MaxConnections: 100})
	fatal(t, err)
	c, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- w.Run(c) }()
	defer func() { cancel(); <-done }()
	eventually(t, "the worker has its proxies", func() bool { v := w.View(); return v != nil && v.Proxies() == 2 })
	was := w.View().Version()
	eventually(t, "another snapshot, on another stream", func() bool { return w.View().Version() > was })
	if n := w.Stats().Sessions; n != 1 {
		t.Errorf("%d sessions", n)
	}
}

// TestClaimBound: a checker is given as many tasks as the host allows, whatever it asks
// for and however often it connects.
func TestClaimBound(t *testing.T) {
	e := newEdge(t, withBounds(0, 3))
	e.checked(8)
	granted, err := e.checker().RegisterChecker(ctx(t), checkerOf(func(r *controlplanev1.RegisterCheckerRequest) { r.MaxInFlight = 200 }))
	if err != nil || granted.MaxInFlight != 3 {
		t.Fatalf("granted is %v, %v: want 3", granted, err)
	}
	for i, want := range []int{2, 0} { // one service fills half of a window
		c, cancel := context.WithCancel(ctx(t))
		s, err := e.checker().StreamCheckTasks(c, &controlplanev1.StreamCheckTasksRequest{CheckerId: "c1", InstanceId: "i1", MaxInFlight: 200})
		fatal(t, err)
		for range want {
			_, err := s.Recv()
			fatal(t, err)
		}
		late := time.AfterFunc(300*time.Millisecond, cancel)
		if task, err := s.Recv(); err == nil {
			t.Errorf("stream %d was given %v beyond %d", i, task, want)
		}
		late.Stop()
		cancel()
	}
}

// TestCounterBound: a worker is told how many proxies it owns at most and is given no
// more. A report of more, as another host allowed, has it register again.
func TestCounterBound(t *testing.T) {
	f := newFleet(t, withBounds(2, 0))
	ids := f.available(5)
	resp, err := f.workers.RegisterWorker(ctx(t), workerNamed("w1"))
	fatal(t, err)
	f.session = resp.SessionId
	if resp.MaxRuntimeCounters != 2 || resp.MaxOutcomeBatch != 2 {
		t.Errorf("the worker is told %v", resp)
	}
	fatal(t, f.pool.Allocate(ctx(t)))
	report := &controlplanev1.ReportRuntimeRequest{WorkerId: "w1", SessionId: f.session, ReportSequence: 1}
	batch := &controlplanev1.OutcomeBatch{WorkerId: "w1", SessionId: f.session, Sequence: 1}
	for _, id := range ids[:3] {
		report.Counters = append(report.Counters, &controlplanev1.RuntimeCounter{ProxyId: id, Active: 1})
		batch.Outcomes = append(batch.Outcomes, &controlplanev1.Outcome{ProxyId: id, Routing: "all", Stage: controlplanev1.Outcome_STAGE_DIAL})
	}
	_, err = f.workers.ReportRuntime(ctx(t), report)
	refused(t, "three counters", err, codes.FailedPrecondition, "counters")
	out, err := f.workers.ReportOutcomes(ctx(t))
	fatal(t, err)
	if err := out.Send(batch); err != nil && !errors.Is(err, io.EOF) {
		t.Fatal(err)
	}
	_, err = out.CloseAndRecv()
	refused(t, "three outcomes", err, codes.FailedPrecondition, "outcomes")

	s, err := f.workers.WatchSnapshots(ctx(t), &controlplanev1.WatchSnapshotsRequest{WorkerId: "w1", SessionId: f.session})
	fatal(t, err)
	for n, i := 0, uint64(1); n < 2; i++ {
		u, err := s.Recv()
		fatal(t, err)
		if n = len(u.GetFull().Proxies); n > 2 {
			t.Fatalf("it owns %d", n)
		}
		_, err = f.workers.AcknowledgeSnapshot(ctx(t), &controlplanev1.AcknowledgeSnapshotRequest{WorkerId: "w1", SessionId: f.session,
			Version: u.GetFull().Version, OwnershipEpoch: u.GetFull().OwnershipEpoch, Checksum: u.GetFull().Checksum, Accepted: true})
		fatal(t, err)
		_, err = f.workers.ReportRuntime(ctx(t), &controlplanev1.ReportRuntimeRequest{WorkerId: "w1", SessionId: f.session, ReportSequence: i,
			SnapshotVersion: u.GetFull().Version, OwnershipEpoch: u.GetFull().OwnershipEpoch})
		fatal(t, err)
		fatal(t, f.pool.Allocate(ctx(t)))
	}
	fatal(t, f.pool.Allocate(ctx(t)))
	listed, err := f.pools.ListWorkers(ctx(t), &controlplanev1.ListWorkersRequest{})
	fatal(t, err)
	if n := listed.Workers[0].OwnedProxies; n != 2 {
		t.Errorf("the worker owns %d, want 2", n)
	}
}

// TestKeepalive: a peer that asks more often than it may is hung up on.
func TestKeepalive(t *testing.T) {
	// gRPC's own client does not ask more often than every 10 s.
	conn, err := net.Dial("tcp", newEdge(t, bounded(api.Bounds{KeepaliveMinTime: 15 * time.Second})).address)
	fatal(t, err)
	r := framesOver(t, conn)
	for range 5 {
		fatal(t, r.framer.WritePing(false, [8]byte{1}))
	}
	if got := r.status(1); got != "closed" {
		t.Errorf("after five questions: %s", got)
	}
}
