package main

import (
	"context"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	donav1 "github.com/dodona-project/dodona/proto/dona/v1"
	"github.com/dodona-project/dodona/sdk/dona"
)

// patient is an endpoint with a real HTTP server whose health the test decides.
type patient struct {
	id      string
	address string
	sick    atomic.Bool
	hangs   atomic.Bool
	asked   atomic.Int64
}

// ward is a host whose service "shop" has patients.
type ward struct {
	t        *testing.T
	ctx      context.Context
	p        *process
	conn     *grpc.ClientConn
	api      donav1.ControlPlaneClient
	svc      *dona.Service
	patients []*patient
}

// admit starts the host with an environment beside the interval of checks, 600 ms.
func admit(t *testing.T, n int, env ...string) *ward {
	t.Helper()
	p := newProcess(t)
	p.env = append([]string{"DONA_CHECK_INTERVAL=600ms", "DONA_CHECK_TIMEOUT=5s"}, env...)
	p.start()
	ctx, cancel := context.WithCancel(context.Background())
	t.Cleanup(cancel)
	w := &ward{t: t, ctx: ctx, p: p, conn: p.dial()}
	w.api = donav1.NewControlPlaneClient(w.conn)
	client, err := dona.Dial(ctx, p.grpc, dona.WithoutCache())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = client.Close() })
	for i := range n {
		e := &patient{id: string(rune('a' + i))}
		server := httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
			if r.URL.Path != "/healthz" {
				rw.WriteHeader(http.StatusNotFound)
				return
			}
			e.asked.Add(1)
			if e.hangs.Load() {
				<-r.Context().Done()
			}
			if e.sick.Load() {
				rw.WriteHeader(http.StatusServiceUnavailable)
			}
		}))
		t.Cleanup(server.Close)
		e.address = server.Listener.Addr().String()
		if _, err := client.Register(ctx, dona.OwnEndpoint{Service: "shop", ID: e.id, Address: e.address, Variant: "v1", Region: "eu"}); err != nil {
			t.Fatal(err)
		}
		w.patients = append(w.patients, e)
	}
	w.svc = client.Service("shop")
	until(t, "the endpoints", func() bool { return len(w.in()) == n })
	return w
}

func (w *ward) status() *donav1.StatusReply {
	return statusOf(w.ctx, w.api, "shop")
}

// in are the endpoints in the snapshot.
func (w *ward) in() (ids []string) {
	for _, e := range w.status().GetConfig().GetEndpoints() {
		ids = append(ids, e.Id)
	}
	return ids
}

func (w *ward) health(id string) *donav1.EndpointHealth {
	for _, e := range w.status().GetChecks().GetEndpoints() {
		if e.EndpointId == id {
			return e
		}
	}
	return nil
}

func (w *ward) probe(config map[string]any) {
	w.t.Helper()
	if _, err := w.api.SetServicePolicy(w.ctx, &donav1.SetServicePolicyRequest{Service: "shop", Probe: "http", ProbeConfig: settings(w.t, config)}); err != nil {
		w.t.Fatal(err)
	}
}

func (w *ward) plugin() *donav1.PluginStatus {
	w.t.Helper()
	s := pluginOf(w.ctx, w.t, w.conn, "probe", "http")
	if s == nil {
		w.t.Fatal("there is no probe http")
	}
	return s
}

// allAvailable waits until each endpoint was found well.
func (w *ward) allAvailable() {
	w.t.Helper()
	until(w.t, "all to be found well", func() bool {
		for _, e := range w.patients {
			if w.health(e.id).GetState() != donav1.EndpointHealth_STATE_AVAILABLE {
				return false
			}
		}
		return true
	})
}

// TestChecks: an endpoint whose health check fails leaves the snapshot, also for
// clients that watch, and comes back; a host that restarts knows it; a probe plugin
// that is killed changes nothing; all endpoints that fail at once stay, with an
// alarm; without a probe all are back.
func TestChecks(t *testing.T) {
	t.Parallel()
	w := admit(t, 4)
	for name, req := range map[string]*donav1.SetServicePolicyRequest{
		"an unknown probe":    {Service: "shop", Probe: "nope"},
		"a config of no kind": {Service: "shop", Probe: "http", ProbeConfig: settings(t, map[string]any{"pfad": "/"})},
		"a config of none":    {Service: "shop", ProbeConfig: settings(t, map[string]any{"path": "/"})},
	} {
		_, err := w.api.SetServicePolicy(w.ctx, req)
		if status.Code(err) != codes.InvalidArgument || !strings.Contains(err.Error(), "probe") {
			t.Errorf("%s: %v", name, err)
		}
	}
	if s := w.status(); s.Checks != nil || s.Policy.Probe != "" {
		t.Errorf("refused, and there are checks: %v", s)
	}
	w.probe(map[string]any{"path": "/healthz"})
	w.allAvailable()
	if got := w.status().Checks.LiveCheckers; got != 1 {
		t.Errorf("%d live checkers", got)
	}

	b := w.patients[1]
	b.sick.Store(true)
	began := time.Now()
	until(t, "b to leave", func() bool { return !slices.Contains(w.in(), "b") })
	t.Logf("b left after %v", time.Since(began).Round(time.Millisecond))
	if h := w.health("b"); !h.GetOut() || h.GetState() != donav1.EndpointHealth_STATE_UNHEALTHY || !strings.Contains(h.GetReason(), "503") || h.GetFailures() < 3 {
		t.Errorf("the status says of it: %v", h)
	}
	until(t, "the clients to hear of it", func() bool { return w.svc.Status().Endpoints == 3 })
	for range 100 {
		pick, err := w.svc.Pick(w.ctx, dona.Request{})
		if err != nil || pick.Endpoint.ID == "b" {
			t.Fatalf("picked %v, %v", pick, err)
		}
		pick.Done(dona.Outcome{Success: true})
	}

	// A stop and a start, with its endpoints still there.
	if code := w.p.signal(syscall.SIGTERM); code != 0 {
		t.Fatalf("exit code %d", code)
	}
	w.p.start()
	until(t, "the others to be back", func() bool { return len(w.in()) == 3 })
	if h := w.health("b"); !h.GetOut() {
		t.Errorf("forgotten over the restart: %v", h)
	}
	b.sick.Store(false)
	began = time.Now()
	until(t, "b to come back", func() bool { return slices.Contains(w.in(), "b") })
	t.Logf("b came back after %v", time.Since(began).Round(time.Millisecond))
	w.allAvailable()

	// The plugin dies again and again while one is sick and all the others are well.
	b.sick.Store(true)
	until(t, "b to leave again", func() bool { return !slices.Contains(w.in(), "b") })
	for range 3 {
		pid := w.plugin().Pid
		if pid > 0 {
			_ = syscall.Kill(int(pid), syscall.SIGKILL)
		}
		until(t, "another process", func() bool { now := w.plugin(); return now.Pid > 0 && now.Pid != pid && now.State == "ready" })
		if got := w.in(); !slices.Equal(got, []string{"a", "c", "d"}) {
			t.Fatalf("with the plugin killed, the snapshot has %v", got)
		}
		asked := w.patients[0].asked.Load()
		until(t, "checks to go on", func() bool { return w.patients[0].asked.Load() > asked+1 })
	}
	if got := w.in(); !slices.Equal(got, []string{"a", "c", "d"}) {
		t.Errorf("the snapshot has %v", got)
	}
	b.sick.Store(false)
	w.allAvailable()
	until(t, "b to be back again", func() bool { return len(w.in()) == 4 })

	// Everybody fails at once.
	for _, e := range w.patients {
		e.sick.Store(true)
	}
	until(t, "the alarm", func() bool { return w.status().GetChecks().GetAlarm() != "" })
	until(t, "four verdicts", func() bool {
		for _, e := range w.patients {
			if w.health(e.id).GetState() != donav1.EndpointHealth_STATE_UNHEALTHY {
				return false
			}
		}
		return true
	})
	// On a machine that stands still their checks may lie more than a round apart: then
	// half of them may have left before the rest failed.
	alarm, least := w.status().GetChecks().GetAlarm(), 2
	if strings.Contains(alarm, "within one round") {
		least = 4
	}
	t.Logf("the alarm: %s", alarm)
	if got := w.in(); len(got) < least {
		t.Errorf("all failed at once, and the snapshot has %v; the alarm is %q", got, alarm)
	}
	host, err := donav1.NewHostAdminClient(w.conn).GetHost(w.ctx, &donav1.GetHostRequest{})
	if err != nil || !slices.ContainsFunc(host.Alarms, func(a string) bool { return strings.Contains(a, "checks of service shop") }) {
		t.Errorf("the host's alarms are %v, %v", host.GetAlarms(), err)
	}
	for _, e := range w.patients {
		e.sick.Store(false)
	}
	w.allAvailable()
	until(t, "the end of the alarm", func() bool { return w.status().GetChecks().GetAlarm() == "" })

	b.sick.Store(true)
	until(t, "b to leave once more", func() bool { return !slices.Contains(w.in(), "b") })
	if _, err := w.api.SetServicePolicy(w.ctx, &donav1.SetServicePolicyRequest{Service: "shop", Probe: "none"}); err != nil {
		t.Fatal(err)
	}
	until(t, "all to be back without a probe", func() bool { return len(w.in()) == 4 && w.status().GetChecks() == nil })
	if code := w.p.signal(syscall.SIGTERM); code != 0 {
		t.Errorf("exit code %d", code)
	}
	w.p.ledger()
}

// TestCheckedFromLoopbackOnly: what the configuration of the host does not allow is
// not asked, changes nothing, and the status says so.
func TestCheckedFromLoopbackOnly(t *testing.T) {
	t.Parallel()
	p := newProcess(t)
	p.configure("plugins:\n  probe:\n    http:\n      env:\n        PROBE_ALLOW: \"\"\n")
	p.env = append(p.env, "DONA_CHECK_INTERVAL=300ms")
	p.start()
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var connected atomic.Int64
	accepted := make(chan struct{})
	go func() {
		defer close(accepted)
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			connected.Add(1)
			_ = c.Close()
		}
	}()
	t.Cleanup(func() { _ = l.Close(); <-accepted })
	client, err := dona.Dial(ctx, p.grpc, dona.WithoutCache())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = client.Close() })
	for _, id := range []string{"a", "b", "c"} {
		if _, err := client.Register(ctx, dona.OwnEndpoint{Service: "shop", ID: id, Address: l.Addr().String(), Variant: "v1", Region: "eu"}); err != nil {
			t.Fatal(err)
		}
	}
	api := donav1.NewControlPlaneClient(p.dial())
	if _, err := api.SetServicePolicy(ctx, &donav1.SetServicePolicyRequest{Service: "shop", Probe: "http"}); err != nil {
		t.Fatal(err)
	}
	until(t, "the reason to show", func() bool {
		s, err := api.GetStatus(ctx, &donav1.GetStatusRequest{Service: "shop"})
		if err != nil || len(s.GetChecks().GetEndpoints()) != 3 {
			return false
		}
		for _, e := range s.Checks.Endpoints {
			if e.State != 0 || e.Out {
				t.Fatalf("judged by what was not asked: %v", e)
			}
			if !strings.Contains(e.Reason, "loopback address") {
				return false
			}
		}
		return len(s.Config.Endpoints) == 3
	})
	if n := connected.Load(); n != 0 {
		t.Errorf("%d connections were made", n)
	}
}
