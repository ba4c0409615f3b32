package forward_test

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/dodona-project/dodona/cmd/proxy-gateway/internal/forward"
	controlplanev1 "github.com/dodona-project/dodona/proto/controlplane/v1"
	"github.com/dodona-project/dodona/sdk/worker"
	"github.com/dodona-project/dodona/sdk/worker/proxytest"
	"github.com/dodona-project/dodona/sdk/worker/target"
)

const postShop = "POST http://shop.example/ HTTP/1.1\r\nHost: shop.example\r\nContent-Length: 3\r\n\r\nabc"

func (g *gateway) seen() []string {
	g.mu.Lock()
	defer g.mu.Unlock()
	var out []string
	for _, o := range g.outcomes {
		out = append(out, fmt.Sprintf("%s %s %d %v", strings.TrimPrefix(o.Stage.String(), "STAGE_"), strings.TrimPrefix(o.Class.String(), "ERROR_CLASS_"), o.Status, o.Success))
	}
	return out
}

// Another proxy is tried while nothing went out, at most twice, and never after.
func TestRetries(t *testing.T) {
	refuses := proxytest.Start(t, proxytest.Options{Protocol: httpProxy, Status: 403})
	for _, c := range []struct {
		name, text string
		first      []*proxytest.Server
		want       int
		outcomes   string
		tries      int64 // of the last proxy, which works
	}{
		{"the second", postShop, []*proxytest.Server{closedPort(t)}, 200, "[DIAL REFUSED 0 false RESPONSE_HEADERS UNSPECIFIED 200 true]", 1},
		{"the third", postShop, []*proxytest.Server{closedPort(t), closedPort(t)}, 200, "[DIAL REFUSED 0 false DIAL REFUSED 0 false RESPONSE_HEADERS UNSPECIFIED 200 true]", 1},
		{"not the fourth", getShop, []*proxytest.Server{closedPort(t), closedPort(t), closedPort(t)}, 502, "[DIAL REFUSED 0 false DIAL REFUSED 0 false DIAL REFUSED 0 false]", 0},
		{"a refused tunnel", connectShop, []*proxytest.Server{refuses, closedPort(t)}, 502, "[PROXY_HANDSHAKE PROXY_STATUS 403 false DIAL REFUSED 0 false DIAL REFUSED 0 false]", 1},
		{"not what went out", getShop, []*proxytest.Server{scripted(t).Server}, 502, "[RESPONSE_HEADERS RESET 0 false]", 0},
		{"not a body that went out", postShop, []*proxytest.Server{scripted(t).Server}, 502, "[RESPONSE_HEADERS RESET 0 false]", 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			last := scripted(t, ok).Server
			if c.text == connectShop {
				last = closedPort(t)
			}
			r := through(t, append(slices.Clone(c.first), last)...)
			g := start(t, nil, r)
			conn := g.dial()
			method := http.MethodGet
			if c.text == connectShop {
				method = http.MethodConnect
			}
			if got := talk(t, conn, bufio.NewReader(conn), method, c.text); got.status != c.want {
				t.Errorf("answered %+v", got)
			}
			if got := fmt.Sprint(g.seen()); got != c.outcomes {
				t.Errorf("outcomes are %s, want %s", got, c.outcomes)
			}
			if got := r.proxies[len(r.proxies)-1].picked.Load(); got != c.tries {
				t.Errorf("the last proxy was picked %d times, want %d", got, c.tries)
			}
		})
	}
}

// A kept connection is used again, but not after it was closed, not with another version
// of the credential, and not to a proxy that is gone.
func TestIdleConnections(t *testing.T) {
	s := scripted(t, slices.Repeat([]string{ok}, 20)...)
	r := through(t, s.Server)
	g := start(t, nil, r)
	conn := g.dial()
	in := bufio.NewReader(conn)
	get := func(accepted int) {
		t.Helper()
		if got := talk(t, conn, in, http.MethodGet, getShop); got.status != 200 {
			t.Fatalf("answered %+v", got)
		}
		if s.Accepted() != accepted {
			t.Errorf("%d connections were made, want %d", s.Accepted(), accepted)
		}
	}
	get(1)
	get(1)
	// A new version: the old one's connection closes at once and is not used.
	p := r.proxies[0]
	turned := &rule{Routing: r.Routing, proxies: []*proxy{{id: p.id, version: 2, at: p.at, capacity: 10}}}
	turned.proxies[0].at.Username, turned.proxies[0].at.Password = "new", "secret"
	g.view.set(turned)
	g.Changed()
	get(2)
	get(2)
	if got := s.received(); strings.Contains(got[1], "Authorization") || !strings.Contains(got[2], "Proxy-Authorization: Basic bmV3OnNlY3JldA==") {
		t.Errorf("the proxy got %q", got)
	}
	g.view.set(r)
	g.Changed()
	get(3)
	if got := g.Stats.Reused.Load(); got != 2 {
		t.Errorf("%d requests were on a kept connection, want 2", got)
	}
}

// A request on its way while the credential's version changes does not leave its connection
// behind.
func TestConnectionOfThePast(t *testing.T) {
	asked, answer, ended := make(chan struct{}), make(chan struct{}), make(chan struct{})
	s := proxytest.Start(t, proxytest.Options{Protocol: httpProxy, Talk: func(c net.Conn) {
		defer close(ended)
		r := bufio.NewReader(c)
		if _, err := http.ReadRequest(r); err == nil {
			close(asked)
			<-answer
			_, _ = io.WriteString(c, ok)
			_, _ = io.Copy(io.Discard, r)
		}
	}})
	r := through(t, s)
	g := start(t, nil, r)
	conn := g.dial()
	if _, err := io.WriteString(conn, getShop); err != nil {
		t.Fatal(err)
	}
	<-asked
	g.view.set(&rule{Routing: r.Routing, proxies: []*proxy{{id: r.proxies[0].id, version: 2, at: r.proxies[0].at, capacity: 10}}})
	g.Changed()
	close(answer)
	if got := listenTo(t, bufio.NewReader(conn), http.MethodGet, getShop); got.status != 200 {
		t.Errorf("answered %+v", got)
	}
	select {
	case <-ended:
	case <-time.After(patience):
		t.Error("the connection with the old credential is kept")
	}
}

// So many connections to a proxy are kept, and the others close.
func TestIdlePerProxy(t *testing.T) {
	s := holdingProxy(t)
	r := through(t, s.Server)
	g := start(t, func(o *forward.Options) { o.Limits.IdlePerProxy = 1 }, r)
	first, second := g.dial(), g.dial()
	for round, accepted := range []int{2, 3} { // of two, one is used again
		for _, conn := range []net.Conn{first, second} {
			if _, err := io.WriteString(conn, getPath("hold", oneLogin)); err != nil {
				t.Fatal(err)
			}
		}
		eventually(t, "both are on their way", func() bool { return len(s.served()) == 2*(round+1) })
		s.let <- struct{}{}
		s.let <- struct{}{}
		for _, conn := range []net.Conn{first, second} {
			if got := listenTo(t, bufio.NewReader(conn), http.MethodGet, "hold"); got.status != 200 {
				t.Errorf("answered %+v", got)
			}
		}
		eventually(t, "both have ended", func() bool { return r.proxies[0].held.Load() == 0 })
		if s.Accepted() != accepted {
			t.Errorf("%d connections were made, want %d", s.Accepted(), accepted)
		}
	}
}

// A connection that nobody used for its time closes.
func TestIdleUpstream(t *testing.T) {
	ended := make(chan struct{})
	s := proxytest.Start(t, proxytest.Options{Protocol: httpProxy, Talk: func(c net.Conn) {
		defer close(ended)
		r := bufio.NewReader(c)
		if _, err := http.ReadRequest(r); err == nil {
			_, _ = io.WriteString(c, ok)
			_, _ = io.Copy(io.Discard, r)
		}
	}})
	const keep = 200 * time.Millisecond
	g := start(t, func(o *forward.Options) { o.Limits.IdleUpstream = keep }, through(t, s))
	conn := g.dial()
	began := time.Now()
	if got := talk(t, conn, bufio.NewReader(conn), http.MethodGet, getShop); got.status != 200 {
		t.Fatalf("answered %+v", got)
	}
	select {
	case <-ended:
		if took := time.Since(began); took < keep {
			t.Errorf("it was kept for %v, want %v at least", took, keep)
		}
	case <-time.After(patience):
		t.Error("it is kept for ever")
	}
}

// A connection that the upstream closed while it was kept is seen before it is used.
func TestClosedIdleConnection(t *testing.T) {
	var conns atomic.Int32
	s := proxytest.Start(t, proxytest.Options{Protocol: httpProxy, Talk: func(c net.Conn) {
		if _, err := http.ReadRequest(bufio.NewReader(c)); err == nil {
			_, _ = io.WriteString(c, ok)
		}
		_ = c.Close() // on loopback it has arrived when this returns
		conns.Add(1)
	}})
	g := start(t, nil, through(t, s))
	conn := g.dial()
	in := bufio.NewReader(conn)
	for n := range 20 {
		if got := talk(t, conn, in, http.MethodGet, getShop); got.status != 200 {
			t.Fatalf("request %d is answered %+v", n, got)
		}
		eventually(t, "the upstream closed", func() bool { return int(conns.Load()) == n+1 })
	}
}

// resolver knows names, and may say something else each time.
type resolver struct {
	mu     sync.Mutex
	asked  []string
	answer func(n int, host string) []netip.Addr
}

func (r *resolver) LookupNetIP(_ context.Context, _, host string) ([]netip.Addr, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.asked = append(r.asked, host)
	a := r.answer(len(r.asked), host)
	if len(a) == 0 {
		return nil, &net.DNSError{Err: "no such host", Name: host, IsNotFound: true}
	}
	return a, nil
}

func addresses(texts ...string) (out []netip.Addr) {
	for _, text := range texts {
		out = append(out, netip.MustParseAddr(text))
	}
	return out
}

// PINNED: the gateway resolves, judges and sends the address, and the target's server
// still learns its name.
func TestPinned(t *testing.T) {
	at := origin(t, func(w http.ResponseWriter, r *http.Request) { _, _ = io.WriteString(w, r.Host) })
	for _, protocol := range protocols {
		p := proxytest.Start(t, proxytest.Options{Protocol: protocol, Hosts: map[string]string{"192.0.2.7:80": at, "192.0.2.7:443": at}})
		r := through(t, p)
		r.Resolve = controlplanev1.Resolve_RESOLVE_PINNED
		names := &resolver{answer: func(n int, host string) []netip.Addr {
			switch host {
			case "shop.example.":
				return addresses("192.0.2.7")
			case "half.example.":
				return addresses("192.0.2.7", "10.0.0.1")
			case "bad.example.":
				return addresses("::ffff:127.0.0.1")
			}
			return nil
		}}
		g := start(t, func(o *forward.Options) { trust(p)(o); o.Direct.Resolver = names }, r)
		conn := g.dial()
		in := bufio.NewReader(conn)
		for range 2 {
			if got := talk(t, conn, in, http.MethodGet, getShop); got.status != 200 || got.body != "shop.example" {
				t.Errorf("%v: answered %+v", protocol, got)
			}
		}
		for host, want := range map[string]int{"half.example": 403, "bad.example": 403, "none.example": 502} {
			if got := talk(t, conn, in, http.MethodGet, "GET http://"+host+"/ HTTP/1.1\r\nHost: x\r\n\r\n"); got.status != want {
				t.Errorf("%v %s: answered %+v, want %d", protocol, host, got, want)
			}
		}
		if got := talk(t, conn, in, http.MethodConnect, connectShop); got.status != 200 {
			t.Errorf("%v: CONNECT answered %+v", protocol, got)
		}
		if n := p.Accepted(); n != 2 { // two requests share a tunnel, which is told by where it leads
			t.Errorf("%v: %d connections", protocol, n)
		}
		for _, sent := range p.Received() {
			if strings.Contains(string(sent[:min(len(sent), 40)]), "shop.example:") {
				t.Errorf("%v: the proxy is told a name: %q", protocol, sent)
			}
		}
	}
}

// DIRECT is where nothing is available and the routing says so, at an address that was
// judged when it was dialled; a name that changes its address between does not help.
func TestDirect(t *testing.T) {
	at := origin(t, func(w http.ResponseWriter, r *http.Request) { _, _ = io.WriteString(w, "direct "+r.Host+r.URL.Path) })
	port := addrPort(t, at).Port()
	private := func(p *controlplanev1.TargetPolicy) *target.Policy {
		p.AllowPorts = []uint32{uint32(port), 80}
		c, err := target.Compile(p, target.Own{})
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	names := &resolver{answer: func(n int, _ string) []netip.Addr { return addresses("127.0.0.1") }}
	url := fmt.Sprintf("http://shop.example:%d/x", port)
	for _, c := range []struct {
		name   string
		on     controlplanev1.OnUnavailable
		policy *target.Policy
		dead   int // proxies with room that cannot be reached: no reason to go without one
		want   int
	}{
		{"allowed", direct, private(&controlplanev1.TargetPolicy{AllowPrivate: true}), 0, 200},
		{"denied by its address", direct, private(&controlplanev1.TargetPolicy{}), 0, 403},
		{"not configured", fail, private(&controlplanev1.TargetPolicy{AllowPrivate: true}), 0, 503},
		{"one proxy that fails", direct, private(&controlplanev1.TargetPolicy{AllowPrivate: true}), 1, 502},
		{"as many that fail as are tried", direct, private(&controlplanev1.TargetPolicy{AllowPrivate: true}), 3, 502},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := through(t, closedPort(t)) // one without room
			r.OnUnavailable, r.Policy = c.on, c.policy
			r.proxies[0].capacity = 0
			for range c.dead {
				r.proxies = append(r.proxies, through(t, closedPort(t)).proxies...)
			}
			g := start(t, func(o *forward.Options) { o.Direct.Resolver = names }, r)
			conn := g.dial()
			in := bufio.NewReader(conn)
			got := talk(t, conn, in, http.MethodGet, "GET "+url+" HTTP/1.1\r\nHost: other\r\n\r\n")
			if got.status != c.want || c.want == 200 && got.body != fmt.Sprintf("direct shop.example:%d/x", port) {
				t.Errorf("answered %+v, want %d", got, c.want)
			}
			if (g.Stats.Direct.Load() == 1) != (c.want == 200) {
				t.Errorf("%d requests went without a proxy", g.Stats.Direct.Load())
			}
		})
	}
	// One address for the judge, another one for the dialler.
	turns := &resolver{answer: func(n int, _ string) []netip.Addr {
		if n%2 == 1 {
			return addresses("192.0.2.1")
		}
		return addresses("127.0.0.1")
	}}
	r := &rule{Routing: worker.Routing{Name: "direct", OnUnavailable: direct, Policy: private(&controlplanev1.TargetPolicy{})}}
	g := start(t, func(o *forward.Options) { o.Direct.Resolver = turns; o.Dialer.DialTimeout = 200 * time.Millisecond }, r)
	for range 4 {
		conn := g.dial()
		if got := talk(t, conn, bufio.NewReader(conn), http.MethodConnect, fmt.Sprintf("CONNECT shop.example:%d HTTP/1.1\r\nHost: x\r\n\r\n", port)); got.status == 200 {
			t.Fatal("it is led to a loopback address")
		}
	}
}

// Requests that wait: one place, two clients with 19 and one request. Everybody is
// served, the one is not last, and nothing is held at the end.
func TestWaiting(t *testing.T) {
	gate := make(chan struct{})
	var order []string
	var mu sync.Mutex
	s := proxytest.Start(t, proxytest.Options{Protocol: httpProxy, Talk: func(c net.Conn) {
		r := bufio.NewReader(c)
		for {
			q, err := http.ReadRequest(r)
			if err != nil {
				return
			}
			<-gate
			mu.Lock()
			order = append(order, q.URL.Path[1:])
			mu.Unlock()
			_, _ = io.WriteString(c, ok)
		}
	}})
	r := through(t, s)
	r.OnUnavailable, r.WaitTimeout = wait, patience
	r.proxies[0].capacity = 1
	g := start(t, func(o *forward.Options) {
		o.Clients = passwords{"many": "x", "one": "x"}
		o.Limits.Waiting = 19
	}, r)
	var all sync.WaitGroup
	send := func(client, login string) {
		conn := g.dial()
		all.Go(func() {
			if got := talk(t, conn, bufio.NewReader(conn), http.MethodGet, "GET http://shop.example/"+client+" HTTP/1.1\r\nHost: x\r\nProxy-Authorization: Basic "+login+"\r\n\r\n"); got.status != 200 {
				t.Errorf("%s is answered %+v", client, got)
			}
		})
	}
	const many, one = "bWFueTp4", "b25lOng="
	send("many", many)
	eventually(t, "the first has the place", func() bool { return r.proxies[0].begun.Load() == 1 })
	for range 18 {
		send("many", many)
	}
	eventually(t, "18 wait", func() bool { return g.Stats.Waiting.Load() == 18 })
	send("one", one)
	eventually(t, "19 wait", func() bool { return g.Stats.Waiting.Load() == 19 })
	conn := g.dial()
	if got := talk(t, conn, bufio.NewReader(conn), http.MethodGet, "GET http://shop.example/ HTTP/1.1\r\nHost: x\r\nProxy-Authorization: Basic "+one+"\r\n\r\n"); got.status != 503 || got.header.Get("Retry-After") == "" {
		t.Errorf("who finds the queue full is answered %+v", got)
	}
	close(gate)
	all.Wait()
	if at := slices.Index(order, "one"); len(order) != 20 || at < 1 || at > 2 {
		t.Errorf("served in the order %v", order)
	}
	eventually(t, "nothing is held and nobody waits", func() bool {
		return r.proxies[0].held.Load() == 0 && g.Stats.Waiting.Load() == 0
	})
}

// Who waits is served when a snapshot brings a proxy, answered 503 at his deadline, and
// leaves his place when he goes; who waits for a routing that is no more learns that.
func TestWaitingEnds(t *testing.T) {
	s := scripted(t, ok, ok, ok)
	r := through(t, s.Server)
	r.OnUnavailable, r.WaitTimeout = wait, 300*time.Millisecond
	r.proxies[0].capacity = 0
	g := start(t, nil, r)
	conn := g.dial()
	in := bufio.NewReader(conn)
	begin := time.Now()
	if got := talk(t, conn, in, http.MethodGet, getShop); got.status != 503 || got.close {
		t.Errorf("at the deadline: %+v", got)
	}
	if took := time.Since(begin); took < 300*time.Millisecond {
		t.Errorf("it waited %v, less than it may", took)
	}
	patient := &rule{Routing: r.Routing, proxies: r.proxies}
	patient.WaitTimeout = patience
	g.view.set(patient)
	waits := func() {
		t.Helper()
		eventually(t, "it waits", func() bool { return g.Stats.Waiting.Load() == 1 })
	}
	// A snapshot brings a proxy with room.
	if _, err := io.WriteString(conn, getShop); err != nil {
		t.Fatal(err)
	}
	waits()
	roomy := &rule{Routing: patient.Routing, proxies: []*proxy{{id: "roomy", at: r.proxies[0].at, capacity: 1}}}
	g.view.set(roomy)
	g.Changed()
	if got := listenTo(t, in, http.MethodGet, getShop); got.status != 200 {
		t.Errorf("with a new proxy: %+v", got)
	}
	g.view.set(patient)
	// The client leaves.
	if _, err := io.WriteString(conn, getShop); err != nil {
		t.Fatal(err)
	}
	waits()
	_ = conn.Close()
	eventually(t, "its place is free", func() bool { return g.Stats.Waiting.Load() == 0 })
	// The client leaves after it sent what is not read yet.
	conn = g.dial()
	if _, err := io.WriteString(conn, getShop+getShop); err != nil {
		t.Fatal(err)
	}
	waits()
	_ = conn.Close()
	eventually(t, "its place is free", func() bool { return g.Stats.Waiting.Load() == 0 })
	// The routing goes.
	conn = g.dial()
	in = bufio.NewReader(conn)
	if _, err := io.WriteString(conn, getShop); err != nil {
		t.Fatal(err)
	}
	waits()
	g.view.set()
	g.Changed()
	if got := listenTo(t, in, http.MethodGet, getShop); got.status != 421 {
		t.Errorf("without its routing: %+v", got)
	}
	eventually(t, "nothing is held", func() bool { return roomy.proxies[0].held.Load() == 0 })
}

// Snapshots that come all the time change nothing for the requests that run meanwhile:
// none fails, and nothing is held or kept for what is gone.
func TestChangesUnderLoad(t *testing.T) {
	at := origin(t, func(w http.ResponseWriter, r *http.Request) {
		sent, _ := io.ReadAll(r.Body)
		_, _ = w.Write(sent)
	})
	hosts := map[string]string{"shop.example:80": at}
	a := proxytest.Start(t, proxytest.Options{Protocol: socksProxy, Hosts: hosts})
	b := proxytest.Start(t, proxytest.Options{Protocol: socksProxy, Hosts: hosts})
	r := through(t, a, b)
	r.OnUnavailable, r.WaitTimeout = wait, patience
	g := start(t, nil, r)
	end := make(chan struct{})
	var swaps, work sync.WaitGroup
	swaps.Go(func() {
		tick := time.NewTicker(5 * time.Millisecond)
		defer tick.Stop()
		for n := 0; ; n++ {
			select {
			case <-tick.C:
			case <-end:
				return
			}
			// In turn each alone, none at all, and both.
			next := [][]*proxy{{r.proxies[0]}, {r.proxies[1]}, nil, r.proxies}[n%4]
			g.view.set(&rule{Routing: r.Routing, proxies: next})
			g.Changed()
		}
	})
	for n := range 4 {
		work.Go(func() {
			conn := g.dial()
			in := bufio.NewReader(conn)
			for i := range 200 {
				sent := strings.Repeat("x", n*1000+i)
				got := talk(t, conn, in, http.MethodPost, fmt.Sprintf("POST http://shop.example/ HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%s", len(sent), sent))
				if got.status != 200 || got.body != sent {
					t.Errorf("client %d, request %d: answered %d with %d bytes of %d", n, i, got.status, len(got.body), len(sent))
					return
				}
			}
		})
	}
	work.Wait()
	close(end)
	swaps.Wait()
	g.view.set()
	g.Changed()
	for _, p := range []*proxytest.Server{a, b} {
		eventually(t, "all connections to a proxy that is gone are closed", func() bool { return p.Open() == 0 })
	}
}

// A proxy that dies takes with it what was on it; every request after that is answered by
// another one, also those that would have been on its kept connections.
func TestAProxyDies(t *testing.T) {
	at := origin(t, func(w http.ResponseWriter, r *http.Request) { _, _ = io.WriteString(w, "ok") })
	hosts := map[string]string{"shop.example:80": at}
	dies := proxytest.Start(t, proxytest.Options{Protocol: socksProxy, Hosts: hosts})
	lives := proxytest.Start(t, proxytest.Options{Protocol: socksProxy, Hosts: hosts})
	r := through(t, dies, lives)
	g := start(t, nil, r)
	var clients []*bufio.ReadWriter
	for range 8 {
		conn := g.dial()
		clients = append(clients, bufio.NewReadWriter(bufio.NewReader(conn), bufio.NewWriter(conn)))
	}
	round := func() (failed int) {
		for _, c := range clients {
			_, _ = c.WriteString(getShop)
			_ = c.Flush()
		}
		for _, c := range clients {
			if got := listenTo(t, c.Reader, http.MethodGet, getShop); got.status != 200 {
				failed++
			}
		}
		return failed
	}
	for range 3 {
		if n := round(); n > 0 {
			t.Fatalf("%d requests failed with both alive", n)
		}
	}
	dies.Close() // when it returns, its connections are closed
	for i := range 10 {
		if n := round(); n > 0 {
			t.Errorf("round %d after it died: %d requests failed", i, n)
		}
	}
	if g.Stats.Retried.Load() == 0 || r.proxies[1].picked.Load() == 0 {
		t.Error("the other one was never needed")
	}
}
