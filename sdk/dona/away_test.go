package dona_test

import (
	"context"
	"errors"
	"net"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/test/bufconn"

	donav1 "github.com/dodona-project/dodona/proto/dona/v1"
	"github.com/dodona-project/dodona/sdk/dona"
)

// network is an in-memory link to one host that can be away.
type network struct {
	mu     sync.Mutex
	l      *bufconn.Listener
	dialed int
	silent func() net.Conn // instead of a host: a peer that never speaks
}

func (n *network) dial(ctx context.Context, _ string) (net.Conn, error) {
	n.mu.Lock()
	l := n.l
	n.dialed++
	n.mu.Unlock()
	if n.silent != nil {
		return n.silent(), nil
	}
	if l == nil {
		return nil, errors.New("away")
	}
	return l.DialContext(ctx)
}

// serve brings a host up and returns how to take it down.
func (n *network) serve(version uint64) (stop func()) {
	return n.serveAs(version, func(h *fakeHost) donav1.ControlPlaneServer { return h })
}

func (n *network) serveAs(version uint64, as func(*fakeHost) donav1.ControlPlaneServer) (stop func()) {
	return n.serveFrame(checkout(version), as)
}

func (n *network) serveSnapshot(s *donav1.ConfigSnapshot) (stop func()) {
	return n.serveFrame(s, func(h *fakeHost) donav1.ControlPlaneServer { return h })
}

func (n *network) serveFrame(s *donav1.ConfigSnapshot, as func(*fakeHost) donav1.ControlPlaneServer) (stop func()) {
	h := &fakeHost{server: grpc.NewServer(), wake: make(chan struct{}), beats: map[string][]*donav1.EndpointHeartbeat{}, heartbeat: 5 * time.Second}
	h.streams, h.cut = context.WithCancel(context.Background())
	donav1.RegisterControlPlaneServer(h.server, as(h))
	l := bufconn.Listen(1 << 20)
	n.mu.Lock()
	n.l = l
	n.mu.Unlock()
	h.publish(s)
	served := make(chan struct{})
	go func() { defer close(served); h.server.Serve(l) }()
	return func() {
		n.mu.Lock()
		n.l = nil
		n.mu.Unlock()
		h.stop()
		<-served
	}
}

// All hosts are gone for ten minutes: every decision is made, marked stale, the
// same units stay where they are, and the client does not hammer at the door.
func TestHostsGoneForTenMinutes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		net := &network{}
		stop := net.serve(7)
		c, err := dona.Dial(t.Context(), "host:7600", dona.WithDialer(net.dial), dona.WithReportInterval(time.Minute))
		if err != nil {
			t.Fatal(err)
		}
		svc := c.Service("checkout")
		if err := svc.Ready(t.Context()); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Minute)
		if svc.Status().Stale {
			t.Error("stale while the host is there")
		}
		stop()
		synctest.Wait()
		gone := time.Now()
		dialed := net.dialed
		for range 600 {
			p, err := svc.Pick(t.Context(), dona.Request{Unit: "user-2"})
			if err != nil || !p.Decision.Stale || p.Decision.Variant != "v2" {
				t.Fatalf("%v after: %+v, %v", time.Since(gone), p.Decision, err)
			}
			p.Cancel()
			time.Sleep(time.Second)
		}
		if since := svc.Status().StaleSince; since.Sub(gone).Abs() > time.Second {
			t.Errorf("stale since %v, gone since %v", since, gone)
		}
		net.mu.Lock()
		tries := net.dialed - dialed
		net.mu.Unlock()
		if tries < 5 || tries > 400 {
			t.Errorf("%d connections tried in ten minutes", tries)
		}
		back := time.Now()
		stop = net.serve(9)
		for svc.Status().Version != 9 {
			if time.Since(back) > 35*time.Second {
				t.Fatal("not in sync 35 s after the host came back")
			}
			time.Sleep(100 * time.Millisecond)
		}
		p, err := svc.Pick(t.Context(), dona.Request{Unit: "user-2"})
		if err != nil || p.Decision.Stale || p.Decision.Variant != "v2" {
			t.Errorf("after: %+v, %v", p.Decision, err)
		}
		p.Cancel()
		if err := c.Close(); err != nil {
			t.Error(err)
		}
		stop()
	})
}
