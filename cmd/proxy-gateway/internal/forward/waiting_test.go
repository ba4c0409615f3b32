package forward_test

import (
	"bufio"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
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

// holding is an upstream proxy that answers /hold when it is told to, and all else at once.
type holding struct {
	*proxytest.Server
	let   chan struct{} // lets one /hold go
	mu    sync.Mutex
	order []string // the paths, as requests came
}

func holdingProxy(t testing.TB) *holding {
	h := &holding{let: make(chan struct{})}
	h.Server = proxytest.Start(t, proxytest.Options{Protocol: httpProxy, Talk: func(c net.Conn) {
		r := bufio.NewReader(c)
		for {
			q, err := http.ReadRequest(r)
			if err != nil {
				return
			}
			h.mu.Lock()
			h.order = append(h.order, q.URL.Path)
			h.mu.Unlock()
			if q.URL.Path == "/hold" {
				select {
				case <-h.let:
				case <-t.Context().Done():
					return
				}
			}
			if _, err := io.WriteString(c, ok); err != nil {
				return
			}
		}
	}})
	return h
}

func (h *holding) served() []string {
	h.mu.Lock()
	defer h.mu.Unlock()
	return slices.Clone(h.order)
}

func getPath(path, login string) string {
	return "GET http://shop.example/" + path + " HTTP/1.1\r\nHost: x\r\nProxy-Authorization: Basic " + login + "\r\n\r\n"
}

const manyLogin, oneLogin = "bWFueTp4", "b25lOng="

// dialFrom connects from an address of this machine.
func (g *gateway) dialFrom(address string) *net.TCPConn {
	g.t.Helper()
	conn, err := (&net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(address)}}).Dial("tcp", g.address)
	if err != nil {
		g.t.Fatal(err)
	}
	g.t.Cleanup(func() { _ = conn.Close() })
	_ = conn.SetDeadline(time.Now().Add(patience))
	return conn.(*net.TCPConn)
}

// Who comes while somebody waits has to wait too, even if there is room at this very moment:
// it is for who came first.
func TestNobodyGoesAhead(t *testing.T) {
	s := holdingProxy(t)
	r := through(t, s.Server)
	r.OnUnavailable, r.WaitTimeout = wait, patience
	r.proxies[0].capacity = 0
	g := start(t, func(o *forward.Options) { o.Clients = passwords{"many": "x", "one": "x"} }, r)
	first, second := g.dial(), g.dial()
	if _, err := io.WriteString(first, getPath("first", manyLogin)); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the first one waits", func() bool { return g.Stats.Waiting.Load() == 1 })
	room := &rule{Routing: r.Routing, proxies: []*proxy{{id: r.proxies[0].id, version: 1, at: r.proxies[0].at, capacity: 1}}}
	g.view.set(room) // and nobody was woken for it
	if _, err := io.WriteString(second, getPath("second", oneLogin)); err != nil {
		t.Fatal(err)
	}
	for _, conn := range []net.Conn{first, second} {
		if got := listenTo(t, bufio.NewReader(conn), http.MethodGet, "first and second"); got.status != 200 {
			t.Errorf("answered %+v", got)
		}
	}
	if got := strings.Join(s.served(), " "); got != "/first /second" {
		t.Errorf("served were %s", got)
	}
}

// What holds when a place is there counts, and not what held when the request came in line.
func TestRulesChangeWhileOneWaits(t *testing.T) {
	deny, err := target.Compile(&controlplanev1.TargetPolicy{DenyHosts: []string{"shop.example"}}, target.Own{})
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name   string
		change func(*rule)
		status int
	}{
		{"nothing but room", func(*rule) {}, 200},
		{"its target is denied", func(r *rule) { r.Policy = deny }, 403},
		{"no routing is for it", func(r *rule) { r.match = func(*worker.Request) bool { return false } }, 421},
		{"it is another routing's", func(r *rule) { r.Name = "another" }, 503},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := through(t, scripted(t, ok).Server)
			r.OnUnavailable, r.WaitTimeout = wait, patience
			r.proxies[0].capacity = 0
			g := start(t, nil, r)
			conn := g.dial()
			if _, err := io.WriteString(conn, getShop); err != nil {
				t.Fatal(err)
			}
			eventually(t, "it waits", func() bool { return g.Stats.Waiting.Load() == 1 })
			now := &rule{Routing: r.Routing, proxies: []*proxy{{id: r.proxies[0].id, version: 1, at: r.proxies[0].at, capacity: 1}}}
			c.change(now)
			g.view.set(now)
			g.Changed()
			if got := listenTo(t, bufio.NewReader(conn), http.MethodGet, getShop); got.status != c.status {
				t.Errorf("answered %+v, want %d", got, c.status)
			}
			eventually(t, "the place is free", func() bool { return now.proxies[0].held.Load() == 0 })
		})
	}
}

// Round after round: one place, 19 requests of one client and 1 of another, of which some
// close, half-close or reset their connection while they wait. Whoever stays is served or,
// where the place does not become free, told so at the deadline; nobody waits for ever, the
// one is not behind the many, and nothing is held after the round.
func TestWaitingRoundAfterRound(t *testing.T) {
	rounds := 32
	if raceEnabled {
		rounds = 240 // under the detector for races, which is where they show
	}
	s := holdingProxy(t)
	r := through(t, s.Server)
	r.OnUnavailable, r.WaitTimeout = wait, patience
	r.proxies[0].capacity = 1
	hopeless := &rule{Routing: r.Routing, proxies: r.proxies}
	hopeless.WaitTimeout = 50 * time.Millisecond
	g := start(t, func(o *forward.Options) { o.Clients = passwords{"many": "x", "one": "x"} }, r)
	var served, late, left atomic.Int64
	for round := range rounds {
		lasting := round%8 != 7 // in others the place is not free before the deadline
		g.view.set(hopeless)
		if lasting {
			g.view.set(r)
		}
		before := len(s.served())
		hold := g.dial()
		if _, err := io.WriteString(hold, getPath("hold", manyLogin)); err != nil {
			t.Fatal(err)
		}
		eventually(t, "the place is taken", func() bool { return r.proxies[0].begun.Load() == 1 })
		var all sync.WaitGroup
		var waiting int64
		inLine := make(chan struct{})
		send := func(path, login string, how int) {
			conn := g.dial()
			if _, err := io.WriteString(conn, getPath(path, login)); err != nil {
				t.Fatal(err)
			}
			if waiting++; lasting {
				eventually(t, "it is in line", func() bool { return g.Stats.Waiting.Load() == waiting })
			}
			all.Go(func() {
				defer func() { _ = conn.Close() }()
				if how < 3 {
					<-inLine
					time.Sleep(rand.N(2 * time.Millisecond))
				}
				switch how {
				case 0:
					left.Add(1)
					return
				case 1:
					left.Add(1)
					_ = conn.CloseWrite()
					_, _ = io.Copy(io.Discard, conn)
					return
				case 2:
					left.Add(1)
					_ = conn.SetLinger(0)
					return
				}
				got := listenTo(t, bufio.NewReader(conn), http.MethodGet, path)
				switch {
				case lasting && got.status == 200:
					served.Add(1)
				case !lasting && got.status == 503 && got.header.Get("Retry-After") != "" && strings.Contains(got.proxyStatus, "connection_limit_reached"):
					late.Add(1)
				default:
					t.Errorf("round %d, %s: answered %+v", round, path, got)
				}
			})
		}
		how := []int{0, 1, 2, 3, 3, 3}
		for n := range 19 {
			send(fmt.Sprint("many", n), manyLogin, how[n%6]+3*(round%2)) // in every other round nobody leaves
		}
		send("one", oneLogin, 3)
		close(inLine)
		if !lasting {
			all.Wait()
		}
		s.let <- struct{}{}
		all.Wait()
		if got := listenTo(t, bufio.NewReader(hold), http.MethodGet, "hold"); got.status != 200 {
			t.Errorf("round %d: who held the place is answered %+v", round, got)
		}
		_ = hold.Close()
		if at := slices.Index(s.served()[before:], "/one"); lasting && (at < 1 || at > 2) { // after /hold and one of the many
			t.Errorf("round %d: served in the order %v", round, s.served()[before:])
		}
		eventually(t, "nothing is held and nobody waits", func() bool {
			p := r.proxies[0]
			return p.held.Load() == 0 && p.begun.Load() == 0 && g.Stats.Waiting.Load() == 0 && g.Stats.Connections.Load() == 0
		})
		if t.Failed() {
			return
		}
	}
	t.Logf("%d served, %d told at the deadline, %d left", served.Load(), late.Load(), left.Load())
}

// Where nobody is asked for a name, clients take turns by their addresses.
func TestWaitingByAddress(t *testing.T) {
	s := holdingProxy(t)
	r := through(t, s.Server)
	r.OnUnavailable, r.WaitTimeout = wait, patience
	r.proxies[0].capacity = 1
	g := start(t, nil, r)
	var all sync.WaitGroup
	waiting := int64(-1)
	send := func(from, path string) {
		conn := g.dialFrom(from)
		if _, err := io.WriteString(conn, "GET http://shop.example/"+path+" HTTP/1.1\r\nHost: x\r\n\r\n"); err != nil {
			t.Fatal(err)
		}
		waiting++
		eventually(t, "it is in line", func() bool { return r.proxies[0].begun.Load() == 1 && g.Stats.Waiting.Load() == waiting })
		all.Go(func() {
			if got := listenTo(t, bufio.NewReader(conn), http.MethodGet, path); got.status != 200 {
				t.Errorf("%s is answered %+v", path, got)
			}
		})
	}
	send("127.0.0.1", "hold")
	for range 8 {
		send("127.0.0.1", "many")
	}
	send("127.0.0.2", "one")
	s.let <- struct{}{}
	all.Wait()
	if at := slices.Index(s.served(), "/one"); at < 1 || at > 2 {
		t.Errorf("served in the order %v", s.served())
	}
}

// A client that may use one proxy only waits for that one, and keeps nobody from another
// that has room.
func TestWaitingForOnesOwn(t *testing.T) {
	a, b := holdingProxy(t), holdingProxy(t)
	r := through(t, a.Server, b.Server)
	r.OnUnavailable, r.WaitTimeout = wait, patience
	r.Stickiness = &controlplanev1.Stickiness{Mode: controlplanev1.Stickiness_MODE_STRICT}
	for _, p := range r.proxies {
		p.capacity = 1
	}
	g := start(t, func(o *forward.Options) { o.Clients = passwords{"many": "x", "one": "x"} }, r)
	first := g.dial()
	in := bufio.NewReader(first)
	if _, err := io.WriteString(first, getPath("hold", manyLogin)); err != nil {
		t.Fatal(err)
	}
	eventually(t, "many holds its own proxy", func() bool { return r.proxies[0].begun.Load() == 1 })
	second := g.dial()
	if _, err := io.WriteString(second, getPath("second", manyLogin)); err != nil {
		t.Fatal(err)
	}
	eventually(t, "many waits for it", func() bool { return g.Stats.Waiting.Load() == 1 })
	for range 3 {
		other := g.dial()
		if got := talk(t, other, bufio.NewReader(other), http.MethodGet, getPath("other", oneLogin)); got.status != 200 {
			t.Fatalf("another client is answered %+v", got)
		}
	}
	if g.Stats.Waiting.Load() != 1 || len(b.served()) != 3 {
		t.Errorf("%d wait, the other proxy got %v", g.Stats.Waiting.Load(), b.served())
	}
	a.let <- struct{}{}
	for conn, in := range map[*net.TCPConn]*bufio.Reader{first: in, second: bufio.NewReader(second)} {
		if got := listenTo(t, in, http.MethodGet, "many"); got.status != 200 {
			t.Errorf("%v is answered %+v", conn.LocalAddr(), got)
		}
	}
	if got := fmt.Sprint(a.served()); got != "[/hold /second]" {
		t.Errorf("its own proxy got %s", got)
	}
}
