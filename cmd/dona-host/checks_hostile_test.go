package main

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/health"
	"google.golang.org/grpc/health/grpc_health_v1"

	donav1 "github.com/dodona-project/dodona/proto/dona/v1"
	"github.com/dodona-project/dodona/sdk/dona"
)

// listen serves each connection by a function, and returns where.
func listen(t *testing.T, serve func(net.Conn)) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var all sync.WaitGroup
	var mu sync.Mutex
	open := map[net.Conn]bool{}
	closed := false
	all.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			mu.Lock()
			if closed {
				_ = c.Close()
			}
			open[c] = true
			mu.Unlock()
			all.Go(func() {
				serve(c)
				_ = c.Close()
				mu.Lock()
				defer mu.Unlock()
				delete(open, c)
			})
		}
	})
	t.Cleanup(func() {
		_ = l.Close()
		mu.Lock()
		closed = true
		for c := range open {
			_ = c.Close()
		}
		mu.Unlock()
		all.Wait()
	})
	return l.Addr().String()
}

// says sends a beginning and then a text again and again, until the other side goes.
func says(first, again string, every time.Duration) func(net.Conn) {
	return func(c net.Conn) {
		gone := make(chan struct{})
		go func() { defer close(gone); _, _ = io.Copy(io.Discard, c) }()
		defer func() { _ = c.Close(); <-gone }()
		_, err := io.WriteString(c, first)
		for err == nil {
			if every > 0 {
				select {
				case <-time.After(every):
				case <-gone:
					return
				}
			}
			_, err = io.WriteString(c, again)
		}
	}
}

// TestHostileTargets (K4, K5): endpoints that answer without end, byte by byte, with
// redirects in a circle, with headers that grow, or not in the language of the probe
// fail within their time and leave; addresses that nobody may check are not tried. The
// endpoints beside them are checked all the while, and the host and its plugins stay
// small.
func TestHostileTargets(t *testing.T) {
	t.Parallel()
	w := admit(t, 2, "DONA_CHECK_TIMEOUT=2s")
	w.probe(map[string]any{"path": "/healthz"})
	w.allAvailable()

	loop := httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) { http.Redirect(rw, r, "/loop", http.StatusFound) }))
	t.Cleanup(loop.Close)
	chunk := strings.Repeat("x", 8<<10)
	secure := httptest.NewTLSServer(http.NotFoundHandler())
	t.Cleanup(secure.Close)
	states := grpc.NewServer()
	grpc_health_v1.RegisterHealthServer(states, health.NewServer())
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan struct{})
	go func() { defer close(served); _ = states.Serve(l) }()
	t.Cleanup(func() { states.Stop(); <-served })
	plain := func(c net.Conn) { _, _ = io.WriteString(c, "220 mail.example.org ESMTP\r\n") }
	ok := httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(rw, "ready") }))
	t.Cleanup(ok.Close)

	services := []struct {
		name, probe string
		config      map[string]any
		well        string
		ill         map[string]string // address by what is said of it
	}{
		{"web", "http", map[string]any{"expect_body": "ready"}, ok.Listener.Addr().String(), map[string]string{
			"failure (timeout)":                          listen(t, says("HTTP/1.1 200 OK\r\n\r\n", "b", 20*time.Millisecond)),
			"failure (timeout): no answer":               listen(t, says("HTTP/1.1 200 OK\r\n", "A: b\r\n", 20*time.Millisecond)),
			"failure (protocol), status 200":             listen(t, says("HTTP/1.1 200 OK\r\n\r\n", chunk, 0)),
			"failure (protocol): ":                       listen(t, says("HTTP/1.1 200 OK\r\n", "A: "+chunk+"\r\n", 0)),
			"failure (protocol): it redirects more":      loop.Listener.Addr().String(),
			"inconclusive (policy): \"169.254.169.254\"": "169.254.169.254:80",
			"inconclusive (policy): \"::ffff:169.254.16": "[::ffff:169.254.169.254]:80",
			"inconclusive (policy): \"fe80::1\"":         "[fe80::1]:80",
			"inconclusive (policy): \"64:ff9b::a9fe:a9f": "[64:ff9b::a9fe:a9fe]:80",
		}},
		{"cache", "tcp", map[string]any{"expect": "PONG"}, listen(t, func(c net.Conn) { _, _ = io.WriteString(c, "+PONG\r\n") }), map[string]string{
			"failure (protocol)": listen(t, says("", chunk, 0)),
			"failure (timeout)":  listen(t, says("", "x", 20*time.Millisecond)),
		}},
		{"rpc", "grpc", nil, l.Addr().String(), map[string]string{
			"failure (timeout)":  listen(t, func(c net.Conn) { _, _ = io.Copy(io.Discard, c) }),
			"failure (protocol)": listen(t, plain),
		}},
		{"vault", "tls", map[string]any{"skip_verify": true}, secure.Listener.Addr().String(), map[string]string{
			"failure (tls)":     listen(t, plain),
			"failure (timeout)": listen(t, says("\x16", "", 20*time.Millisecond)),
		}},
	}
	client, err := dona.Dial(w.ctx, w.p.grpc, dona.WithoutCache())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = client.Close() })
	said := map[string]string{} // by service/id
	for _, s := range services {
		register := func(id, address string) {
			if _, err := client.Register(w.ctx, dona.OwnEndpoint{Service: s.name, ID: id, Address: address, Variant: "v1", Region: "eu"}); err != nil {
				t.Fatal(err)
			}
		}
		n := 0
		for says, address := range s.ill {
			n++
			id := "ill" + string(rune('0'+n))
			said[s.name+"/"+id] = says
			register(id, address)
			register("well"+string(rune('0'+n)), s.well)
		}
		register("well", s.well)
		if _, err := w.api.SetServicePolicy(w.ctx, &donav1.SetServicePolicyRequest{Service: s.name, Probe: s.probe, ProbeConfig: settings(t, s.config)}); err != nil {
			t.Fatal(err)
		}
	}
	asked := w.patients[0].asked.Load()
	began := time.Now()
	for _, s := range services {
		until(t, "the endpoints of "+s.name+" to be found out", func() bool {
			reply := statusOf(w.ctx, w.api, s.name)
			for _, h := range reply.GetChecks().GetEndpoints() {
				says, ill := said[s.name+"/"+h.EndpointId]
				switch {
				case !ill && (h.Out || h.State == donav1.EndpointHealth_STATE_UNHEALTHY):
					t.Fatalf("%s/%s is well, and the host says %v", s.name, h.EndpointId, h)
				case !ill && h.State != donav1.EndpointHealth_STATE_AVAILABLE:
					return false
				case ill && (!strings.HasPrefix(h.Reason, says) || h.Out == strings.HasPrefix(says, "inconclusive")):
					return false
				}
			}
			return reply.GetChecks().GetAlarm() == "" && len(reply.GetChecks().GetEndpoints()) == 2*len(s.ill)+1
		})
	}
	took := time.Since(began)
	for id, kb := range w.memory() {
		t.Logf("%s has %d KiB", id, kb)
		if kb > 256<<10 {
			t.Errorf("%s has grown to %d KiB", id, kb)
		}
	}
	more := w.patients[0].asked.Load() - asked
	t.Logf("all were found out in %v; an endpoint beside them was checked %d times meanwhile", took.Round(time.Millisecond), more)
	// Every 600 ms and a fifth, when the machine is free; a third of that when it is not.
	if least := int64(took / (3 * 720 * time.Millisecond)); more < least {
		t.Errorf("in %v an endpoint beside them was checked only %d times, want %d", took, more, least)
	}
	if got := w.in(); !slices.Equal(got, []string{"a", "b"}) {
		t.Errorf("the service beside them has %v", got)
	}
}

// memory is what the host and its probes hold, KiB.
func (w *ward) memory() map[string]int {
	w.t.Helper()
	all := map[string]int{"the host": residentOf(w.t, w.p.cmd.Process.Pid)}
	list, err := donav1.NewHostAdminClient(w.conn).ListPlugins(context.Background(), &donav1.ListPluginsRequest{})
	if err != nil {
		w.t.Fatal(err)
	}
	for _, s := range list.Plugins {
		if s.Pid > 0 && s.Kind == "probe" {
			all["probe "+s.Name] = residentOf(w.t, int(s.Pid))
		}
	}
	return all
}

// residentOf is the most memory that a process has held, KiB.
func residentOf(t *testing.T, pid int) (kb int) {
	t.Helper()
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(status)) {
		if n, err := fmt.Sscanf(line, "VmHWM: %d kB", &kb); err == nil && n == 1 {
			return kb
		}
	}
	t.Fatalf("process %d does not say what it holds:\n%s", pid, status)
	return 0
}
