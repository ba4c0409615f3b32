package forward_test

import (
	"bufio"
	"bytes"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/dodona-project/dodona/cmd/proxy-gateway/internal/forward"
	controlplanev1 "github.com/dodona-project/dodona/proto/controlplane/v1"
	"github.com/dodona-project/dodona/sdk/worker"
	"github.com/dodona-project/dodona/sdk/worker/proxytest"
	"github.com/dodona-project/dodona/sdk/worker/target"
	"github.com/dodona-project/dodona/sdk/worker/upstream"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const (
	httpProxy  = controlplanev1.Proxy_PROTOCOL_HTTP
	httpsProxy = controlplanev1.Proxy_PROTOCOL_HTTPS
	socksProxy = controlplanev1.Proxy_PROTOCOL_SOCKS5

	fail   = controlplanev1.OnUnavailable_ON_UNAVAILABLE_FAIL
	wait   = controlplanev1.OnUnavailable_ON_UNAVAILABLE_WAIT
	direct = controlplanev1.OnUnavailable_ON_UNAVAILABLE_DIRECT

	// patience is for what is not a measurement.
	patience = 30 * time.Second
)

var protocols = []controlplanev1.Proxy_Protocol{httpProxy, httpsProxy, socksProxy}

// proxy is a proxy in a fake view, with so much room.
type proxy struct {
	id       string
	version  uint32
	at       upstream.Proxy
	capacity int64

	held, begun, picked atomic.Int64
}

// rule is a routing of a fake view.
type rule struct {
	worker.Routing
	match   func(*worker.Request) bool // nil = all
	proxies []*proxy
}

func (r *rule) pick(tried []string) forward.Lease {
	for _, p := range r.proxies {
		if slices.Contains(tried, p.id) {
			continue
		}
		if !p.take() {
			continue
		}
		p.picked.Add(1)
		return &lease{proxy: p}
	}
	return nil
}

// take holds a place if there is one, and never for a moment one more than there are.
func (p *proxy) take() bool {
	for {
		n := p.held.Load()
		if n >= p.capacity {
			return false
		}
		if p.held.CompareAndSwap(n, n+1) {
			return true
		}
	}
}

type lease struct {
	*proxy
	state atomic.Int32
}

func (l *lease) ProxyID() string           { return l.id }
func (l *lease) CredentialVersion() uint32 { return l.version }
func (l *lease) Via() upstream.Proxy       { return l.at }
func (l *lease) Observe(time.Duration, bool) {
	if l.state.Load() == 2 {
		panic("observed after its release")
	}
}

func (l *lease) Activate() {
	if l.state.Swap(1) != 0 {
		panic("begun twice")
	}
	l.begun.Add(1)
}

func (l *lease) Release() {
	switch l.state.Swap(2) {
	case 1:
		l.begun.Add(-1)
	case 2:
		panic("released twice")
	}
	l.held.Add(-1)
}

// routes is a fake view; nil rules are none yet.
type routes struct{ rules atomic.Pointer[[]*rule] }

func (v *routes) set(rules ...*rule) { v.rules.Store(&rules) }

func (v *routes) Route(q *worker.Request) (*worker.Routing, bool) {
	rules := v.rules.Load()
	if rules == nil {
		return nil, false
	}
	for _, r := range *rules {
		if r.match == nil || r.match(q) {
			return &r.Routing, true
		}
	}
	return nil, true
}

func (v *routes) Pick(routing *worker.Routing, _ *worker.Request, tried []string) forward.Lease {
	rules := v.rules.Load()
	if rules == nil {
		return nil
	}
	for _, r := range *rules {
		if r.Name == routing.Name {
			return r.pick(tried)
		}
	}
	return nil
}

func (v *routes) PickProxy(routing *worker.Routing, id string) (forward.Lease, bool) {
	for _, r := range *v.rules.Load() {
		if r.Name != routing.Name {
			continue
		}
		for _, p := range r.proxies {
			if p.id == id {
				l := (&rule{proxies: []*proxy{p}}).pick(nil)
				return l, false
			}
		}
	}
	return nil, true
}

func (v *routes) Current(id string, version uint32) bool {
	rules := v.rules.Load()
	if rules == nil {
		return false
	}
	for _, r := range *rules {
		for _, p := range r.proxies {
			if p.id == id && p.version == version {
				return true
			}
		}
	}
	return false
}

// gateway is a running server.
type gateway struct {
	*forward.Server
	t        testing.TB
	address  string
	listener net.Listener
	view     *routes
	mu       sync.Mutex
	outcomes []worker.Outcome
}

func start(t testing.TB, change func(*forward.Options), rules ...*rule) *gateway {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	g := &gateway{t: t, address: l.Addr().String(), listener: l, view: &routes{}}
	g.view.set(rules...)
	o := forward.Options{
		Routes: g.view, Dialer: &upstream.Dialer{Allow: []target.Class{target.Loopback}}, Log: slog.New(slog.DiscardHandler),
		Report: func(o worker.Outcome) {
			g.mu.Lock()
			defer g.mu.Unlock()
			g.outcomes = append(g.outcomes, o)
		},
	}
	if change != nil {
		change(&o)
	}
	g.Server = forward.New(o)
	var done sync.WaitGroup
	done.Go(func() {
		if err := g.Serve(l); err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(func() {
		_ = l.Close()
		g.Close()
		done.Wait()
		for _, r := range rules { // set later or not
			for _, p := range r.proxies {
				if p.held.Load() != 0 || p.begun.Load() != 0 {
					t.Errorf("proxy %s is held %d times at the end, %d in use", p.id, p.held.Load(), p.begun.Load())
				}
			}
		}
	})
	return g
}

// through is a rule that leads everything through these proxies.
func through(t testing.TB, servers ...*proxytest.Server) *rule {
	t.Helper()
	r := &rule{Routing: worker.Routing{Name: "all", OnUnavailable: fail}}
	for _, s := range servers {
		at, err := upstream.Of(s.Proxy(), s.Credential())
		if err != nil {
			t.Fatal(err)
		}
		r.proxies = append(r.proxies, &proxy{id: s.Proxy().GetProxyId(), version: 1, at: at, capacity: 1000})
	}
	return r
}

// trust has the gateway trust HTTPS proxies of tests.
func trust(s *proxytest.Server) func(*forward.Options) {
	return func(o *forward.Options) {
		if c := s.TLS(); c != nil {
			o.Dialer.TLS = c
		}
	}
}

// script is an upstream HTTP proxy that answers each request with the next text, and
// keeps what it got.
type script struct {
	*proxytest.Server
	mu  sync.Mutex
	got []string
}

// scripted reads requests with their bodies and answers them. After a text that says
// close-after it closes the connection.
func scripted(t testing.TB, answers ...string) *script {
	s := &script{}
	s.Server = proxytest.Start(t, proxytest.Options{Protocol: httpProxy, Talk: func(c net.Conn) {
		r := bufio.NewReader(c)
		for {
			var seen bytes.Buffer
			q, err := http.ReadRequest(bufio.NewReaderSize(io.TeeReader(oneByte{r}, &seen), 16))
			if err != nil {
				return
			}
			_, _ = io.Copy(io.Discard, q.Body)
			s.mu.Lock()
			i := len(s.got)
			s.got = append(s.got, seen.String())
			s.mu.Unlock()
			if i >= len(answers) {
				return
			}
			if _, err := io.WriteString(c, answers[i]); err != nil || strings.Contains(answers[i], "close-after") {
				return
			}
		}
	}})
	return s
}

func (s *script) received() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.got)
}

// oneByte gives one byte at once, so that nothing behind a request is read with it.
type oneByte struct{ io.Reader }

func (r oneByte) Read(p []byte) (int, error) { return r.Reader.Read(p[:min(len(p), 1)]) }

// dialRaw connects without a deadline, and is its caller's to close.
func (g *gateway) dialRaw() net.Conn {
	g.t.Helper()
	conn, err := net.Dial("tcp", g.address)
	if err != nil {
		g.t.Fatal(err)
	}
	return conn
}

// dial connects to the gateway.
func (g *gateway) dial() *net.TCPConn {
	g.t.Helper()
	conn, err := net.Dial("tcp", g.address)
	if err != nil {
		g.t.Fatal(err)
	}
	g.t.Cleanup(func() { _ = conn.Close() })
	_ = conn.SetDeadline(time.Now().Add(patience))
	return conn.(*net.TCPConn)
}

// proxyOf has Go's client use the gateway.
func proxyOf(g *gateway) func(*http.Request) (*url.URL, error) {
	return http.ProxyURL(&url.URL{Scheme: "http", Host: g.address})
}

// say sends a text, ends, and returns all that comes back.
func (g *gateway) say(text string) string {
	g.t.Helper()
	conn := g.dial()
	if _, err := io.WriteString(conn, text); err != nil {
		g.t.Fatal(err)
	}
	got, err := io.ReadAll(conn)
	if err != nil && !errors.Is(err, os.ErrDeadlineExceeded) {
		got = append(got, "\n!"+err.Error()...)
	}
	if errors.Is(err, os.ErrDeadlineExceeded) {
		g.t.Errorf("no end after %.200q: %.200q", text, got)
	}
	return string(got)
}

// reply is a response that was read.
type reply struct {
	status      int
	header      http.Header
	body        string
	trailer     http.Header
	close       bool
	err         error // of reading the body
	proxyStatus string
}

// talk sends a text and reads the response that follows; of CONNECT only its head.
func talk(t testing.TB, conn net.Conn, r *bufio.Reader, method, text string) reply {
	t.Helper()
	if _, err := io.WriteString(conn, text); err != nil {
		t.Fatal(err)
	}
	return listenTo(t, r, method, text)
}

// listenTo reads a response.
func listenTo(t testing.TB, r *bufio.Reader, method, after string) reply {
	t.Helper()
	answer, err := http.ReadResponse(r, &http.Request{Method: method})
	if err != nil {
		t.Fatalf("after %.100q: %v", after, err)
	}
	defer func() { _ = answer.Body.Close() }()
	out := reply{status: answer.StatusCode, header: answer.Header, close: answer.Close, proxyStatus: answer.Header.Get("Proxy-Status")}
	if method == http.MethodConnect && out.status == 200 {
		return out
	}
	text, err := io.ReadAll(answer.Body)
	out.body, out.err, out.trailer = string(text), err, answer.Trailer
	return out
}

// origin is a target's server.
func origin(t testing.TB, h http.HandlerFunc) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := &http.Server{Handler: h}
	var done sync.WaitGroup
	done.Go(func() { _ = s.Serve(l) })
	t.Cleanup(func() {
		_ = s.Close()
		done.Wait()
	})
	return l.Addr().String()
}

// echo is a target that sends back what it gets, and "bye" after its end.
func echo(t testing.TB) string {
	t.Helper()
	return listen(t, func(c net.Conn) {
		_, _ = io.Copy(c, c)
		_, _ = io.WriteString(c, "bye")
	})
}

// listen serves each connection with a function, and ends them all with the test.
func listen(t testing.TB, serve func(net.Conn)) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var mu sync.Mutex
	open := map[net.Conn]bool{}
	var work sync.WaitGroup
	work.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			mu.Lock()
			open[c] = true
			mu.Unlock()
			work.Go(func() {
				serve(c)
				_ = c.Close()
				mu.Lock()
				delete(open, c)
				mu.Unlock()
			})
		}
	})
	t.Cleanup(func() {
		_ = l.Close()
		mu.Lock()
		for c := range open {
			_ = c.Close()
		}
		mu.Unlock()
		work.Wait()
	})
	return l.Addr().String()
}

// eventually waits for something that is true sooner or later.
func eventually(t testing.TB, what string, is func() bool) {
	t.Helper()
	for end := time.Now().Add(patience); !is(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("not in %v: %s", patience, what)
		}
	}
}

func addrPort(t testing.TB, text string) netip.AddrPort {
	t.Helper()
	a, err := netip.ParseAddrPort(text)
	if err != nil {
		t.Fatal(err)
	}
	return a
}
