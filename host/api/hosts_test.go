package api_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	donav1 "github.com/dodona-project/dodona/proto/dona/v1"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/dodona-project/dodona/host/store"
	"github.com/dodona-project/dodona/host/store/embedded"
	"github.com/dodona-project/dodona/sdk/dona"
)

// gate is one host's way to the store. Shut, the host is as good as dead: it reads
// and writes nothing any more.
type gate struct {
	store.Store
	shut atomic.Bool
}

func (g *gate) Update(ctx context.Context, d store.Durability, fn func(store.Tx) error) error {
	if g.shut.Load() {
		return store.ErrClosed
	}
	return g.Store.Update(ctx, d, fn)
}

func (g *gate) View(ctx context.Context, fn func(store.ReadTx) error) error {
	if g.shut.Load() {
		return store.ErrClosed
	}
	return g.Store.View(ctx, fn)
}

// twin is one of two hosts on one store.
type twin struct {
	*edge
	way *gate
}

func twins(t *testing.T) [2]twin {
	t.Helper()
	st := embedded.OpenMemory(embedded.Options{})
	t.Cleanup(func() { _ = st.Close() })
	var both [2]twin
	for i := range both {
		way := &gate{Store: st}
		both[i] = twin{newEdge(t, onStore(way)), way}
	}
	return both
}

// kill ends the host as kill -9 does, as far as others can see.
func (h twin) kill() {
	h.way.shut.Store(true) // before its streams break: the dead take no leave
	h.server.Stop()
}

// at is where clients find the host.
func (h twin) at() string { return h.conn.Target() }

// always watches a service at a host and demands that an endpoint is in each
// snapshot after the first that it was in. newest is the last of them.
func (h twin) always(service, endpoint string) (newest func() uint64, stop func()) {
	h.t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	watch, err := h.client.WatchConfig(ctx, &donav1.WatchConfigRequest{Service: service, ClientId: "always"})
	fatal(h.t, err)
	var last atomic.Uint64
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			frame, err := watch.Recv()
			if err != nil {
				return
			}
			has := slices.ContainsFunc(frame.GetEndpoints(), func(p *donav1.Endpoint) bool { return p.GetId() == endpoint })
			if !has && last.Load() > 0 {
				h.t.Errorf("version %d is without %s, which was there at version %d", frame.GetVersion(), endpoint, last.Load())
			}
			if has {
				last.Store(frame.GetVersion())
			}
		}
	}()
	stop = sync.OnceFunc(func() { cancel(); <-done })
	h.t.Cleanup(stop)
	return last.Load, stop
}

// eventually waits for a condition, with a patience that only a hang uses up.
func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	late := time.NewTimer(30 * time.Second)
	defer late.Stop()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for !ok() {
		select {
		case <-tick.C:
		case <-late.C:
			t.Fatalf("waited in vain until %s", what)
		}
	}
}

// clientOf is a client of both, and which one it is at.
func clientOf(t *testing.T, hosts [2]twin) (c *dona.Client, web *dona.Service, on, other twin) {
	t.Helper()
	c, err := dona.Dial(t.Context(), hosts[0].at()+","+hosts[1].at(), dona.WithReportInterval(50*time.Millisecond))
	fatal(t, err)
	t.Cleanup(func() { _ = c.Close() })
	web = c.Service("web")
	fatal(t, web.Ready(ctx(t)))
	if web.Status().Host == hosts[0].at() {
		return c, web, hosts[0], hosts[1]
	}
	return c, web, hosts[1], hosts[0]
}

// An endpoint whose host stops or dies is at the other one long before its lease is
// over, and no snapshot in between is without it.
func TestEndpointMovesToTheOtherHost(t *testing.T) {
	for how, end := range map[string]func(twin){
		"stopped": func(h twin) { h.leave() },
		"killed":  twin.kill,
	} {
		t.Run(how, func(t *testing.T) {
			c, _, on, other := clientOf(t, twins(t))
			newest, stop := other.always("web", "own")
			own, err := c.Register(t.Context(), dona.OwnEndpoint{Service: "web", ID: "own", Address: "127.0.0.1:81", Variant: "v1"})
			fatal(t, err)
			fatal(t, own.Wait(ctx(t)))
			eventually(t, "the other host shows it", func() bool { return newest() > 0 })
			lease := own.LeaseID()
			began := time.Now()
			end(on)
			eventually(t, "it is registered again", func() bool { return own.LeaseID() != lease })
			t.Logf("registered again after %v", time.Since(began).Round(time.Millisecond))
			// What comes later shows it too.
			before := newest()
			_, err = other.client.SetFlag(ctx(t), flagRule(func(r *donav1.FlagRule) { r.RolloutPercent = 10 }))
			fatal(t, err)
			eventually(t, "a change shows it", func() bool { return newest() > before })
			stop()
			fatal(t, own.Close(ctx(t)))
		})
	}
}

// Two hosts hear of one endpoint: the newest stream has it, and the end of the
// older one, whose host learns of it with a heartbeat, takes nothing away.
func TestNewestStreamWinsAcrossHosts(t *testing.T) {
	hosts := twins(t)
	newest, stop := hosts[0].always("web", "a")
	defer stop()
	var streams []donav1.ControlPlane_RegisterEndpointClient
	for _, h := range hosts {
		s, err := h.client.RegisterEndpoint(ctx(t))
		fatal(t, err)
		fatal(t, s.Send(endpoint(nil)))
		_, err = s.Header() // accepted
		fatal(t, err)
		streams = append(streams, s)
	}
	eventually(t, "it is there", func() bool { return newest() > 0 })
	if err := streams[0].Send(endpoint(func(b *donav1.EndpointHeartbeat) { b.Sequence = 2 })); err != nil && !errors.Is(err, io.EOF) {
		t.Fatal(err)
	}
	if err := streams[0].RecvMsg(&donav1.RegisterAck{}); status.Code(err) != codes.Aborted {
		t.Errorf("the older stream ends with %v", err)
	}
	before := newest()
	_, err := hosts[1].client.SetFlag(ctx(t), flagRule(func(r *donav1.FlagRule) { r.RolloutPercent = 10 }))
	fatal(t, err)
	eventually(t, "a change shows it", func() bool { return newest() > before })
	stop()
	ack, err := streams[1].CloseAndRecv()
	fatal(t, err)
	if ack.GetLeaseId() == "" {
		t.Error("the newer stream has no lease at its end")
	}
}

// What one host has counted of a reporter the other one knows: the same batch is
// acknowledged and counts once, and other content under its number is not taken.
func TestReportAtTheOtherHost(t *testing.T) {
	hosts := twins(t)
	_, err := hosts[0].client.SetFlag(ctx(t), flagRule(func(*donav1.FlagRule) {}))
	fatal(t, err)
	now := time.Now().UnixMilli()
	batch := func(sequence uint64, exposures int) *donav1.StatsBatch {
		b := &donav1.StatsBatch{ReporterId: "r", Sequence: sequence}
		for range exposures {
			b.Exposures = append(b.Exposures, &donav1.Exposure{Service: "web", Flag: flagRule(func(*donav1.FlagRule) {}).Rule.Flag,
				Variant: "v1", Reason: donav1.Reason_REASON_SPLIT, ConfigVersion: 1, UnixMs: now})
		}
		return b
	}
	for i, step := range []struct {
		host  int
		batch *donav1.StatsBatch
		code  codes.Code
		count uint64 // in all
	}{
		{0, batch(1, 3), codes.OK, 3},
		{1, batch(1, 3), codes.OK, 3}, // its answer was lost
		{1, batch(2, 4), codes.OK, 7},
		{0, batch(2, 4), codes.OK, 7},
		{0, batch(2, 5), codes.AlreadyExists, 7},
		{0, batch(1, 3), codes.Aborted, 7},
	} {
		_, err := hosts[step.host].client.ReportStats(ctx(t), step.batch)
		if status.Code(err) != step.code {
			t.Errorf("step %d: %v, want %v", i, err, step.code)
		}
		for n, h := range hosts {
			reply, err := h.client.GetStatus(ctx(t), &donav1.GetStatusRequest{Service: "web"})
			fatal(t, err)
			var count uint64
			for _, e := range reply.GetExposures() {
				count += e.GetCount()
			}
			if count != step.count {
				t.Errorf("step %d: host %d has counted %d, want %d", i, n, count, step.count)
			}
		}
	}
}

// Watchers of two hosts have the same versions with the same content. When one host
// dies, its clients are at the other; each decision meanwhile is made.
func TestClientsOfTwoHosts(t *testing.T) {
	hosts := twins(t)
	const clients = 8
	var services [clients]*dona.Service
	var on [2]int
	var dead, alive twin
	var first *dona.Client
	for i := range services {
		c, web, at, other := clientOf(t, hosts)
		services[i] = web
		if i == 0 {
			first, dead, alive = c, at, other
		}
		if at.edge == hosts[1].edge {
			on[1]++
		} else {
			on[0]++
		}
	}
	own, err := first.Register(t.Context(), dona.OwnEndpoint{Service: "web", ID: "own", Address: "127.0.0.1:81", Variant: "v1"})
	fatal(t, err)
	fatal(t, own.Wait(ctx(t)))
	all := func(what string, ok func(dona.Status) bool) {
		t.Helper()
		eventually(t, what, func() bool {
			return !slices.ContainsFunc(services[:], func(s *dona.Service) bool { return !ok(s.Status()) })
		})
	}
	all("all have the endpoint", func(st dona.Status) bool { return st.Endpoints == 1 })
	done := make(chan struct{})
	var picking sync.WaitGroup
	var picks, failed atomic.Int64
	for _, s := range services {
		picking.Go(func() {
			tick := time.NewTicker(time.Millisecond)
			defer tick.Stop()
			for {
				p, err := s.Pick(context.Background(), dona.Request{Unit: "user-1"})
				picks.Add(1)
				if err != nil {
					failed.Add(1)
					t.Errorf("pick: %v", err)
					return
				}
				p.Done(dona.Outcome{Success: true})
				select {
				case <-tick.C:
				case <-done:
					return
				}
			}
		})
	}
	change := func(h twin, percent uint32) {
		t.Helper()
		_, err := h.client.SetFlag(ctx(t), flagRule(func(r *donav1.FlagRule) { r.RolloutPercent = percent }))
		fatal(t, err)
	}
	same := func(h twin) {
		t.Helper()
		reply, err := h.client.GetStatus(ctx(t), &donav1.GetStatusRequest{Service: "web"})
		fatal(t, err)
		want := reply.GetConfig().GetVersion()
		began := time.Now()
		all(fmt.Sprintf("all are at version %d", want), func(st dona.Status) bool { return st.Version >= want && !st.Stale })
		t.Logf("all at version %d after %v", want, time.Since(began).Round(time.Millisecond))
	}
	change(dead, 10)
	same(dead)
	began := time.Now()
	dead.kill()
	all("all are at the host that is left", func(st dona.Status) bool { return st.Host == alive.at() && !st.Stale })
	t.Logf("of %d and %d clients all at one host after %v", on[0], on[1], time.Since(began).Round(time.Millisecond))
	change(alive, 20)
	same(alive)
	for _, s := range services {
		if p := s.Status().Problem; p != nil {
			t.Errorf("%v", p)
		}
	}
	close(done)
	picking.Wait()
	t.Logf("%d picks, %d failed", picks.Load(), failed.Load())
}
