package snapshot_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"runtime"
	"slices"
	"sync"
	"testing"
	"time"

	donav1 "github.com/dodona-project/dodona/proto/dona/v1"
	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/dodona-project/dodona/host/refusal"
	"github.com/dodona-project/dodona/host/snapshot"
)

// planeServer serves WatchConfig from feeds, as host/api does.
type planeServer struct {
	donav1.UnimplementedControlPlaneServer
	feeds *snapshot.Feeds
	ended chan error // what Serve returned, when there is room
}

func (s *planeServer) WatchConfig(req *donav1.WatchConfigRequest, stream grpc.ServerStreamingServer[donav1.ConfigSnapshot]) error {
	sub, err := s.feeds.Subscribe(req.Service, snapshot.Watcher{
		Client: req.ClientId, LastVersion: req.LastVersion, LastChecksum: req.LastChecksum, AcceptDelta: req.AcceptDelta,
	})
	if err != nil {
		return err
	}
	err = s.feeds.Serve(stream.Context(), stream, sub)
	select {
	case s.ended <- err:
	default:
	}
	if refusal.Is(err, refusal.Exhausted) {
		return status.Error(codes.ResourceExhausted, err.Error())
	}
	return err
}

func (s *planeServer) GetStatus(_ context.Context, req *donav1.GetStatusRequest) (*donav1.StatusReply, error) {
	return &donav1.StatusReply{PlanNote: "about " + req.Service}, nil
}

// serve starts a server on loopback and returns it with its address.
func serve(tb testing.TB, feeds *snapshot.Feeds) (srv *planeServer, addr string) {
	tb.Helper()
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		tb.Fatal(err)
	}
	g := grpc.NewServer(snapshot.ServerOptions()...)
	srv = &planeServer{feeds: feeds, ended: make(chan error, 16)}
	donav1.RegisterControlPlaneServer(g, srv)
	done := make(chan struct{})
	go func() { defer close(done); _ = g.Serve(lis) }()
	tb.Cleanup(func() { g.Stop(); <-done })
	return srv, lis.Addr().String()
}

func dial(tb testing.TB, addr string, window int32) *grpc.ClientConn {
	tb.Helper()
	conn, err := grpc.NewClient(addr, grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithStaticStreamWindowSize(window), grpc.WithStaticConnWindowSize(max(window, 1<<20)),
		grpc.WithReadBufferSize(4<<10), grpc.WithWriteBufferSize(4<<10))
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { _ = conn.Close() })
	return conn
}

func watch(tb testing.TB, ctx context.Context, conn *grpc.ClientConn, req *donav1.WatchConfigRequest) grpc.ServerStreamingClient[donav1.ConfigSnapshot] {
	tb.Helper()
	stream, err := donav1.NewControlPlaneClient(conn).WatchConfig(ctx, req)
	if err != nil {
		tb.Fatal(err)
	}
	return stream
}

// TestEncodedOncePerVersion has 1,000 watchers read five versions over gRPC.
func TestEncodedOncePerVersion(t *testing.T) {
	const watchers, versions = 1000, 4
	reg := prometheus.NewRegistry()
	st := openStore(t)
	feeds := newFeeds(t, st, &services{}, func(o *snapshot.Options) { o.Registerer = reg })
	defer feeds.Close()
	_, addr := serve(t, feeds)
	version := apply(t, st, "a", change{put: ids(200)})

	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var group sync.WaitGroup
	arrived := make(chan uint64, watchers)
	conns := make([]*grpc.ClientConn, 10)
	for i := range conns {
		conns[i] = dial(t, addr, 1<<20)
	}
	for i := range watchers {
		group.Go(func() {
			stream, err := donav1.NewControlPlaneClient(conns[i%len(conns)]).WatchConfig(ctx, &donav1.WatchConfigRequest{Service: "a"})
			if err != nil {
				t.Error(err)
				return
			}
			for last := uint64(0); ; {
				c, err := stream.Recv()
				if err != nil {
					if ctx.Err() == nil {
						t.Error(err)
					}
					cancel()
					return
				}
				verify(t, c)
				if c.Version <= last {
					t.Errorf("version %d after %d", c.Version, last)
				}
				last = c.Version
				select {
				case arrived <- last:
				case <-ctx.Done():
				}
			}
		})
	}
	for n := range versions + 1 {
		if n > 0 {
			version = apply(t, st, "a", change{put: ids(1)})
		}
		for n := 0; n < watchers; {
			select {
			case v := <-arrived:
				if v == version {
					n++
				}
			case <-ctx.Done():
				group.Wait()
				t.Fatalf("a watch broke at version %d", version)
			}
		}
	}
	if n := count(t, reg, "dona_snapshot_encodings_total", "full"); n != versions+1 {
		t.Errorf("%v encodings for %d versions and %d watchers", n, versions+1, watchers)
	}
	if n := count(t, reg, "dona_snapshot_watchers", ""); n != watchers {
		t.Errorf("%v watchers counted", n)
	}
	cancel()
	group.Wait()
}

// Other messages go through the codec as ever, and an "unchanged" frame and a
// resume do over the wire.
func TestCodec(t *testing.T) {
	st := openStore(t)
	feeds := newFeeds(t, st, &services{}, nil)
	defer feeds.Close()
	_, addr := serve(t, feeds)
	conn := dial(t, addr, 1<<20)
	reply, err := donav1.NewControlPlaneClient(conn).GetStatus(t.Context(), &donav1.GetStatusRequest{Service: "a"})
	if err != nil || reply.PlanNote != "about a" {
		t.Fatalf("a plain call: %v, %v", reply, err)
	}
	apply(t, st, "a", change{put: ids(2000)}) // several HTTP/2 frames
	ctx, cancel := context.WithCancel(t.Context())
	full, err := watch(t, ctx, conn, &donav1.WatchConfigRequest{Service: "a"}).Recv()
	cancel()
	if err != nil || len(full.Endpoints) != 2000 {
		t.Fatalf("%d endpoints, %v", len(full.GetEndpoints()), err)
	}
	verify(t, full)
	ctx, cancel = context.WithCancel(t.Context())
	defer cancel()
	same, err := watch(t, ctx, conn, &donav1.WatchConfigRequest{Service: "a", LastVersion: full.Version, LastChecksum: full.Checksum}).Recv()
	if err != nil || same.Form != donav1.ConfigSnapshot_FORM_UNCHANGED || same.Version != full.Version || len(same.Endpoints) != 0 {
		t.Fatalf("resumed with %v, %v", same, err)
	}
	codec := snapshot.Codec()
	if _, err := codec.Marshal("no message"); err == nil || codec.Name() != "proto" {
		t.Errorf("what is no message was marshalled by %s", codec.Name())
	}
	data, err := codec.Marshal(ready("abc"))
	if err != nil || len(data) != 1 || &data[0].ReadOnlyData()[0] != &ready("abc").EncodedMessage()[0] {
		t.Errorf("ready bytes were copied: %v, %v", data, err)
	}
}

var abc = []byte("abc")

type ready string

func (ready) EncodedMessage() []byte { return abc }

// TestStoppedReaderIsCut has one client that never reads, next to one that does.
func TestStoppedReaderIsCut(t *testing.T) {
	noLeak(t)
	reg := prometheus.NewRegistry()
	st := openStore(t)
	feeds := newFeeds(t, st, &services{}, func(o *snapshot.Options) {
		o.SendTimeout, o.Registerer = 100*time.Millisecond, reg
	})
	srv, addr := serve(t, feeds)
	apply(t, st, "a", change{put: ids(2000)})

	ctx, cancel := context.WithCancel(t.Context())
	stopped := watch(t, ctx, dial(t, addr, 64<<10), &donav1.WatchConfigRequest{Service: "a"})
	reader := watch(t, ctx, dial(t, addr, 1<<20), &donav1.WatchConfigRequest{Service: "a"})
	var cut error
	for version := uint64(0); cut == nil; {
		c, err := reader.Recv()
		if err != nil {
			t.Fatalf("the one that reads: %v", err)
		}
		if c.Version <= version {
			t.Fatalf("version %d after %d", c.Version, version)
		}
		version = apply(t, st, "a", change{put: ids(1), urgent: true}) - 1
		select {
		case cut = <-srv.ended:
		default:
		}
	}
	var no *refusal.Error
	if !errors.As(cut, &no) || no.Kind != refusal.Exhausted || no.Reason != "resume" {
		t.Fatalf("the stopped one ended with %v", cut)
	}
	if n := count(t, reg, "dona_snapshot_cut_total", ""); n != 1 {
		t.Errorf("%v streams cut", n)
	}
	// What it had been sent is whole, and then it learns why it was cut.
	for {
		c, err := stopped.Recv()
		if err != nil {
			if status.Code(err) != codes.ResourceExhausted {
				t.Errorf("the stopped one was told %v", err)
			}
			break
		}
		verify(t, c)
	}
	cancel()
	feeds.Close()
}

// TestHeapOfStoppedReaders (N4): clients that stop reading while versions go by keep
// at most 64 KiB each, and share the snapshots that are on their way. A reader
// beside them gets every change.
func TestHeapOfStoppedReaders(t *testing.T) {
	noLeak(t)
	const stopped, versions = 60, 8
	reg := prometheus.NewRegistry()
	st := openStore(t)
	feeds := newFeeds(t, st, &services{}, func(o *snapshot.Options) { o.Registerer, o.History, o.SendTimeout = reg, 2, time.Hour })
	t.Cleanup(feeds.Close)
	_, addr := serve(t, feeds)
	all := ids(2000)
	apply(t, st, "a", change{put: all})
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	reader := watch(t, ctx, dial(t, addr, 1<<20), &donav1.WatchConfigRequest{Service: "a"})
	first, err := reader.Recv()
	if err != nil {
		t.Fatal(err)
	}
	before := heap()
	for range stopped {
		watch(t, ctx, dial(t, addr, 64<<10), &donav1.WatchConfigRequest{Service: "a", AcceptDelta: true})
	}
	for eventually := time.Now().Add(30 * time.Second); count(t, reg, "dona_snapshot_watchers", "") != stopped+1; {
		if time.Now().After(eventually) {
			t.Fatal("not all have come")
		}
		time.Sleep(10 * time.Millisecond)
	}
	slowest := time.Duration(0)
	for range versions {
		since := time.Now()
		want := apply(t, st, "a", change{put: all, urgent: true})
		for got := uint64(0); got != want; {
			c, err := reader.Recv()
			if err != nil {
				t.Fatal(err)
			}
			got = c.Version
		}
		slowest = max(slowest, time.Since(since))
	}
	size := int64(proto.Size(first))
	// The clients are in this process too, with what their windows let in.
	each := (heap() - before) / stopped
	t.Logf("%d KiB for each stopped client, both its sides, at snapshots of %d KiB; a change took %v at most", each>>10, size>>10, slowest.Round(time.Millisecond))
	if most := int64(64<<10) + size; each > most {
		t.Errorf("each keeps %d bytes, want at most %d", each, most)
	}
}

// noLeak checks, after all other cleanups, that no goroutine is left.
func noLeak(t *testing.T) {
	before := goleak.IgnoreCurrent()
	t.Cleanup(func() { goleak.VerifyNone(t, before) })
}

// The connection of a client that does not read goes away: nothing stays behind.
func TestNothingStaysAfterTheConnection(t *testing.T) {
	noLeak(t)
	st := openStore(t)
	feeds := newFeeds(t, st, &services{}, nil)
	t.Cleanup(feeds.Close)
	srv, addr := serve(t, feeds)
	apply(t, st, "a", change{put: ids(2000)})
	conn := dial(t, addr, 64<<10)
	stream := watch(t, t.Context(), conn, &donav1.WatchConfigRequest{Service: "a"})
	if _, err := stream.Recv(); err != nil {
		t.Fatal(err)
	}
	for range 3 {
		apply(t, st, "a", change{put: ids(1), urgent: true})
	}
	if err := conn.Close(); err != nil {
		t.Fatal(err)
	}
	if err := <-srv.ended; err == nil {
		t.Error("the watch ended without an error")
	}
}

// TestHeapPerWatcher measures what an idle subscription keeps.
func TestHeapPerWatcher(t *testing.T) {
	measure := func(endpoints int) int64 {
		const watchers = 1000
		st := openStore(t)
		feeds := newFeeds(t, st, &services{}, nil)
		defer feeds.Close()
		apply(t, st, "a", change{put: ids(endpoints)})
		first := subscribe(t, feeds, "a", snapshot.Watcher{})
		next(t, first)
		ctx, cancel := context.WithCancel(t.Context())
		subs := make([]*snapshot.Subscription, watchers)
		var idle, over sync.WaitGroup
		idle.Add(watchers)
		before := heap()
		for i := range subs {
			subs[i] = subscribe(t, feeds, "a", snapshot.Watcher{Client: fmt.Sprintf("client-%04d", i)})
			over.Go(func() {
				next(t, subs[i])
				idle.Done()
				_, _ = subs[i].Next(ctx)
			})
		}
		idle.Wait()
		each := (heap() - before) / watchers
		cancel()
		over.Wait()
		for _, sub := range append(subs, first) {
			sub.Close()
		}
		return each
	}
	middle := func(endpoints int) int64 {
		all := []int64{measure(endpoints), measure(endpoints), measure(endpoints)}
		slices.Sort(all)
		return all[1]
	}
	small, large := middle(200), middle(2000)
	t.Logf("%d bytes a watcher at 200 endpoints, %d at 2,000", small, large)
	if small > 2048 {
		t.Errorf("%d bytes a watcher", small)
	}
	if large > small+small/20+128 {
		t.Errorf("a watcher costs %d bytes at 2,000 endpoints and %d at 200", large, small)
	}
}

func heap() int64 {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}
