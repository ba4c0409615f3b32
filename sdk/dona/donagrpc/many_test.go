package donagrpc_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/url"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"

	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/balancer"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/resolver"
	"google.golang.org/grpc/stats"

	donav1 "github.com/dodona-project/dodona/proto/dona/v1"
	"github.com/dodona-project/dodona/sdk/dona"
	"github.com/dodona-project/dodona/sdk/dona/digest"
	"github.com/dodona-project/dodona/sdk/dona/donagrpc"
	"github.com/dodona-project/dodona/sdk/dona/internal/donatest"
)

// oneSnapshot is a host that has one snapshot, for every watch.
type oneSnapshot struct {
	donav1.UnimplementedControlPlaneServer
	snapshot *donav1.ConfigSnapshot
}

func (h *oneSnapshot) WatchConfig(_ *donav1.WatchConfigRequest, stream grpc.ServerStreamingServer[donav1.ConfigSnapshot]) error {
	if err := stream.Send(h.snapshot); err != nil {
		return err
	}
	<-stream.Context().Done()
	return nil
}

// many is the balancer over so many endpoints of one variant, none connected yet.
// The connections are in the endpoints' order.
func many(t *testing.T, endpoints int) *subchannels {
	t.Helper()
	s := &donav1.ConfigSnapshot{Service: "checkout", Version: 1, Form: donav1.ConfigSnapshot_FORM_FULL}
	for i := range endpoints {
		s.Endpoints = append(s.Endpoints, &donav1.Endpoint{Id: fmt.Sprintf("e%05d", i), Address: fmt.Sprint("127.0.0.1:", 10_000+i), Variant: "v1", LbWeight: 100})
	}
	sum := digest.OfSnapshot(s)
	s.Checksum = sum[:]
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer()
	donav1.RegisterControlPlaneServer(server, &oneSnapshot{snapshot: s})
	served := make(chan struct{})
	go func() { defer close(served); _ = server.Serve(l) }()
	t.Cleanup(func() { server.Stop(); <-served })
	client, err := dona.Dial(t.Context(), l.Addr().String(), dona.WithoutCache())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = client.Close() })
	if err := client.Service("checkout").Ready(t.Context()); err != nil {
		t.Fatal(err)
	}
	resolved := &channel{states: make(chan resolver.State, 1)}
	target, err := url.Parse("dona:///checkout")
	if err != nil {
		t.Fatal(err)
	}
	r, err := donagrpc.Resolver(client, donagrpc.Config{}).Build(resolver.Target{URL: *target}, resolved, resolver.BuildOptions{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(r.Close)
	cc := &subchannels{}
	lb := balancer.Get(donagrpc.Scheme).Build(cc, balancer.BuildOptions{})
	t.Cleanup(lb.Close)
	if err := lb.UpdateClientConnState(balancer.ClientConnState{ResolverState: <-resolved.states}); err != nil {
		t.Fatal(err)
	}
	if len(cc.listeners) != endpoints {
		t.Fatalf("%d connections to %d endpoints", len(cc.listeners), endpoints)
	}
	return cc
}

func (c *subchannels) set(i int, state connectivity.State) {
	c.listeners[i](balancer.SubConnState{ConnectivityState: state, ConnectionError: errors.New("refused")})
}

// A connection that becomes ready costs the same among 5,000 as among a few.
func TestConnectionsCostTheSameAmongMany(t *testing.T) {
	const endpoints, most = 5000, 4096
	cc := many(t, endpoints)
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	for i := range endpoints {
		cc.set(i, connectivity.Connecting)
		cc.set(i, connectivity.Ready)
	}
	runtime.ReadMemStats(&after)
	each := (after.TotalAlloc - before.TotalAlloc) / endpoints
	t.Logf("%d bytes for each of %d connections", each, endpoints)
	if each > most {
		t.Errorf("each of %d connections cost %d bytes, want at most %d", endpoints, each, most)
	}
	if _, err := cc.picker.Pick(balancer.PickInfo{Ctx: t.Context(), FullMethodName: "/a/B"}); err != nil {
		t.Error(err)
	}
}

// However many endpoints are away, calls go to those that are connected.
func TestFewAreConnected(t *testing.T) {
	const endpoints, connected = 1000, 10
	cc := many(t, endpoints)
	for i := range endpoints {
		state := connectivity.TransientFailure
		if i < connected {
			state = connectivity.Ready
		}
		cc.set(i, state)
	}
	pick := func() (balancer.PickResult, error) {
		return cc.picker.Pick(balancer.PickInfo{Ctx: t.Context(), FullMethodName: "/a/B"})
	}
	seen := map[balancer.SubConn]int{}
	for range 300 {
		result, err := pick()
		if err != nil {
			t.Fatalf("%d of %d endpoints are connected: %v", connected, endpoints, err)
		}
		seen[result.SubConn]++
		result.Done(balancer.DoneInfo{BytesSent: true, BytesReceived: true})
	}
	for i, sub := range cc.all {
		if n := seen[sub]; (n > 0) != (i < connected) {
			t.Errorf("endpoint %d got %d calls", i, n)
		}
	}
	// One comes, one goes, and the last ones go.
	cc.set(connected, connectivity.Ready)
	for i := range connected {
		cc.set(i, connectivity.Idle)
		cc.set(i, connectivity.TransientFailure)
	}
	if result, err := pick(); err != nil || result.SubConn != cc.all[connected] {
		t.Errorf("the only one that is connected: %v, %v", result.SubConn, err)
	}
	cc.set(connected, connectivity.Connecting)
	if _, err := pick(); !errors.Is(err, balancer.ErrNoSubConnAvailable) {
		t.Errorf("while one may come back: %v", err)
	}
	cc.set(connected, connectivity.TransientFailure)
	if _, err := pick(); err == nil || errors.Is(err, balancer.ErrNoSubConnAvailable) {
		t.Errorf("while all are away: %v", err)
	}
}

// connsOf counts a server's connections.
type connsOf struct {
	stats.Handler
	began, open atomic.Int64
}

func (c *connsOf) TagConn(ctx context.Context, _ *stats.ConnTagInfo) context.Context { return ctx }
func (c *connsOf) TagRPC(ctx context.Context, _ *stats.RPCTagInfo) context.Context   { return ctx }
func (c *connsOf) HandleRPC(context.Context, stats.RPCStats)                         {}
func (c *connsOf) HandleConn(_ context.Context, s stats.ConnStats) {
	switch s.(type) {
	case *stats.ConnBegin:
		c.began.Add(1)
		c.open.Add(1)
	case *stats.ConnEnd:
		c.open.Add(-1)
	}
}

// Connections to services, by one client or several, share one connection to the
// host; nothing of them is left when they and the clients are closed.
func TestConnectionsShareTheHost(t *testing.T) {
	before := goleak.IgnoreCurrent()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	hosts := &connsOf{}
	host := grpc.NewServer(grpc.StatsHandler(hosts))
	i := &instance{id: "a", variant: "v1", server: grpc.NewServer()}
	grpc_testing.RegisterTestServiceServer(i.server, i)
	at, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := &donav1.ConfigSnapshot{Service: "checkout", Version: 1, Form: donav1.ConfigSnapshot_FORM_FULL,
		Endpoints: []*donav1.Endpoint{{Id: "a", Address: at.Addr().String(), Variant: "v1", LbWeight: 100}}}
	sum := digest.OfSnapshot(s)
	s.Checksum = sum[:]
	donav1.RegisterControlPlaneServer(host, &oneSnapshot{snapshot: s})
	var served sync.WaitGroup
	served.Go(func() { _ = host.Serve(l) })
	served.Go(func() { _ = i.server.Serve(at) })

	var closers []io.Closer
	for range 2 {
		client, err := dona.Dial(t.Context(), l.Addr().String(), dona.WithoutCache())
		if err != nil {
			t.Fatal(err)
		}
		closers = append(closers, client)
		donagrpc.Use(client, donagrpc.Config{})
		for range 3 {
			conn, err := grpc.NewClient("dona:///checkout", grpc.WithTransportCredentials(insecure.NewCredentials()))
			if err != nil {
				t.Fatal(err)
			}
			closers = append(closers, conn)
			if _, id, err := ask(t.Context(), grpc_testing.NewTestServiceClient(conn), grpc.WaitForReady(true)); err != nil || id != "a" {
				t.Errorf("got %q, %v", id, err)
			}
		}
	}
	if n := hosts.began.Load(); n != 1 {
		t.Errorf("the host has seen %d connections, want 1", n)
	}
	for n := len(closers) - 1; n >= 0; n-- { // connections before their client
		if err := closers[n].Close(); err != nil {
			t.Error(err)
		}
	}
	donatest.Until(t, "the host has no connection left", func() bool { return hosts.open.Load() == 0 })
	donagrpc.Forget()
	host.Stop()
	i.server.Stop()
	served.Wait()
	if err := goleak.Find(before); err != nil {
		t.Error(err)
	}
}
