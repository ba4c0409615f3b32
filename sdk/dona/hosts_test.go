package dona_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"pgregory.net/rapid"

	donav1 "github.com/dodona-project/dodona/proto/dona/v1"
	"github.com/dodona-project/dodona/sdk/dona"
)

// deployment is hosts in memory, by address, each with what it has to tell.
type deployment struct {
	links map[string]*network
	hosts map[string]*fakeHost
	stops map[string]func()
}

func deploy(addresses ...string) *deployment {
	d := &deployment{links: map[string]*network{}, hosts: map[string]*fakeHost{}, stops: map[string]func(){}}
	for _, a := range addresses {
		d.links[a] = &network{}
	}
	return d
}

func (d *deployment) dial(ctx context.Context, address string) (net.Conn, error) {
	return d.links[address].dial(ctx, address)
}

// up starts a host, which has s.
func (d *deployment) up(address string, s *donav1.ConfigSnapshot) {
	d.stops[address] = d.links[address].serveFrame(s, func(h *fakeHost) donav1.ControlPlaneServer {
		d.hosts[address] = h
		return h
	})
}

// down kills a host, if it is there.
func (d *deployment) down(address string) {
	if stop := d.stops[address]; stop != nil {
		stop()
		delete(d.stops, address)
		delete(d.hosts, address)
	}
}

func (d *deployment) downAll() {
	for a := range d.links {
		d.down(a)
	}
}

func (d *deployment) dialed(address string) int {
	n := d.links[address]
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.dialed
}

func (d *deployment) watches(address string) []*donav1.WatchConfigRequest {
	h := d.hosts[address]
	return look(h, func() []*donav1.WatchConfigRequest { return append([]*donav1.WatchConfigRequest(nil), h.watches...) })
}

const (
	hostA, hostB = "a:7600", "b:7600"
	pair         = hostA + "," + hostB
)

// client is a client of d that begins where luck says, with long waits from then on.
func (d *deployment) client(t *testing.T, target string, luck float64) *dona.Client {
	t.Helper()
	first := true
	var mu sync.Mutex
	c, err := dona.Dial(t.Context(), target, dona.WithDialer(d.dial), dona.WithReportInterval(time.Minute), dona.WithRandom(func() float64 {
		mu.Lock()
		defer mu.Unlock()
		if first {
			first = false
			return luck
		}
		return 0.99
	}))
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// after waits in virtual time and returns how long the condition took.
func after(t *testing.T, most time.Duration, what string, ok func() bool) time.Duration {
	t.Helper()
	began := time.Now()
	for synctest.Wait(); !ok(); synctest.Wait() {
		if time.Since(began) > most {
			t.Fatalf("after %v not yet: %s", most, what)
		}
		time.Sleep(10 * time.Millisecond)
	}
	return time.Since(began)
}

// A client begins at a random host and, when that one dies, is at the other within
// half a second; it says there what it holds and does not go back by itself.
func TestMovesToTheOtherHost(t *testing.T) {
	for luck, from := range map[float64]string{0.1: hostA, 0.9: hostB} {
		synctest.Test(t, func(t *testing.T) {
			to := map[string]string{hostA: hostB, hostB: hostA}[from]
			d := deploy(hostA, hostB)
			d.up(hostA, moved(7))
			d.up(hostB, moved(7))
			defer d.downAll()
			c := d.client(t, pair, luck)
			defer c.Close()
			svc := c.Service("checkout")
			after(t, time.Second, "ready", func() bool { return svc.Status().Version == 7 })
			if st := svc.Status(); st.Host != from || d.dialed(to) != 0 {
				t.Errorf("began at %s, dialed the other %d times", st.Host, d.dialed(to))
			}
			d.down(from)
			took := after(t, time.Second, "the other host serves", func() bool { st := svc.Status(); return st.Host == to && !st.Stale })
			if took > 510*time.Millisecond {
				t.Errorf("it took %v", took)
			}
			if w := d.watches(to); len(w) != 1 || w[0].LastVersion != 7 || len(w[0].LastChecksum) != 32 {
				t.Errorf("the other host was asked %v", w)
			}
			d.up(from, moved(7))
			time.Sleep(time.Minute)
			if st := svc.Status(); st.Host != to || len(d.watches(from)) != 0 {
				t.Errorf("it left %s, which works, for %s", to, st.Host)
			}
		})
	}
}

// With nobody else there, a client stays with a host that is behind: it keeps what
// it has, has said so, and goes on when the host has caught up, on the same stream.
func TestWaitsForAHostThatIsBehind(t *testing.T) {
	for _, target := range []string{pair, hostB} {
		synctest.Test(t, func(t *testing.T) {
			d := deploy(hostA, hostB)
			d.up(hostB, moved(9))
			if target == pair {
				d.up(hostA, moved(9))
			}
			defer d.downAll()
			c := d.client(t, target, 0.1)
			defer c.Close()
			svc := c.Service("checkout")
			after(t, time.Second, "ready", func() bool { return svc.Status().Version == 9 })
			d.down(svc.Status().Host)
			d.down(hostB)
			d.up(hostB, moved(5))
			after(t, 40*time.Second, "the host that is behind is asked", func() bool { return len(d.watches(hostB)) > 0 })
			b := d.hosts[hostB]
			synctest.Wait()
			for version := uint64(6); version <= 8; version++ {
				b.push(moved(version), step(version-1, version))
				synctest.Wait()
				st := svc.Status()
				if st.Version != 9 || !st.Stale || st.Problem == nil || !strings.Contains(st.Problem.Error(), "version 5 is lower than 9") {
					t.Fatalf("at %d: %+v", version, st)
				}
			}
			b.push(moved(9), step(8, 9))
			synctest.Wait()
			if st := svc.Status(); st.Version != 9 || st.Stale || st.Host != hostB || st.Problem != nil {
				t.Errorf("when it has caught up: %+v", st)
			}
			b.push(moved(10), step(9, 10))
			synctest.Wait()
			if st := svc.Status(); st.Version != 10 || st.Stale {
				t.Errorf("then: %+v", st)
			}
			if w := d.watches(hostB); len(w) != 1 || w[0].LastVersion != 9 {
				t.Errorf("watches: %v", w)
			}
			time.Sleep(time.Minute)
			if w := d.watches(hostB); len(w) != 1 {
				t.Errorf("a host that has caught up was left: %d watches", len(w))
			}
		})
	}
}

// A host that falls back under a watch is left at once and told what the client
// has seen: only a new watch says that.
func TestTellsAHostThatFellBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := deploy(hostA)
		d.up(hostA, moved(7))
		defer d.downAll()
		c := d.client(t, hostA, 0)
		defer c.Close()
		svc := c.Service("checkout")
		after(t, time.Second, "ready", func() bool { return svc.Status().Version == 7 })
		d.hosts[hostA].publish(moved(3))
		after(t, 6*time.Second, "it is told", func() bool { w := d.watches(hostA); return len(w) == 2 && w[1].LastVersion == 7 })
		time.Sleep(time.Minute)
		if w := d.watches(hostA); len(w) != 2 || svc.Status().Version != 7 {
			t.Errorf("%d watches, %+v", len(w), svc.Status())
		}
		d.hosts[hostA].publish(moved(8))
		synctest.Wait()
		if st := svc.Status(); st.Version != 8 || st.Stale {
			t.Errorf("then: %+v", st)
		}
	})
}

// When another host is there, a client does not wait for the one that is behind.
func TestLeavesAHostThatIsBehind(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := deploy(hostA, hostB)
		d.up(hostA, moved(9))
		d.up(hostB, moved(5))
		defer d.downAll()
		c := d.client(t, pair, 0.1)
		defer c.Close()
		svc := c.Service("checkout")
		after(t, time.Second, "ready", func() bool { return svc.Status().Version == 9 })
		time.Sleep(time.Minute)
		d.hosts[hostA].cutStreams() // it is there, and rests for a second
		synctest.Wait()
		took := after(t, 5*time.Second, "back at the host that has it all", func() bool { st := svc.Status(); return st.Host == hostA && !st.Stale })
		t.Logf("back after %v", took)
		if n := len(d.watches(hostB)); n != 1 {
			t.Errorf("the host that is behind was asked %d times", n)
		}
	})
}

// A host that is away for long is asked less and less while another one is there,
// however often that one's streams break.
func TestAHostThatIsAwayIsAskedLess(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := deploy(hostA, hostB)
		d.up(hostB, moved(7))
		defer d.downAll()
		c := d.client(t, pair, 0.1)
		defer c.Close()
		var services []*dona.Service
		for _, name := range []string{"checkout", "one", "two", "three"} {
			services = append(services, c.Service(name))
		}
		after(t, 2*time.Second, "ready", func() bool { return services[0].Status().Version == 7 })
		before := d.dialed(hostA)
		for range 60 {
			time.Sleep(10 * time.Second)
			if st := services[0].Status(); st.Stale || st.Host != hostB {
				t.Fatalf("not back after 10 s: %+v", st)
			}
			d.hosts[hostB].cutStreams()
		}
		if n := d.dialed(hostA) - before; n > 60 {
			t.Errorf("in ten minutes the host that is away was dialed %d times", n)
		} else {
			t.Logf("in ten minutes the host that is away was dialed %d times", n)
		}
		// It is not forgotten.
		d.up(hostA, moved(8))
		d.down(hostB)
		after(t, time.Minute, "the host that is back serves", func() bool { return services[0].Status().Version == 8 })
	})
}

// halfOpen is a connection of which one way or the other gets lost, without anybody
// being told.
type halfOpen struct {
	net.Conn
	in, out atomic.Bool // lost
}

func (h *halfOpen) Read(p []byte) (int, error) {
	for {
		n, err := h.Conn.Read(p)
		if err != nil || !h.in.Load() {
			return n, err
		}
	}
}

func (h *halfOpen) Write(p []byte) (int, error) {
	if h.out.Load() {
		return len(p), nil
	}
	return h.Conn.Write(p)
}

// TestHalfOpen (N2) loses one way of the connection to a host, or both: pings find it, and the
// watch and the registration are at the other host 40 s later, plus the wait.
func TestHalfOpen(t *testing.T) {
	for name, lose := range map[string]func(*halfOpen){
		"to the client": func(h *halfOpen) { h.in.Store(true) },
		"to the host":   func(h *halfOpen) { h.out.Store(true) },
		"both":          func(h *halfOpen) { h.in.Store(true); h.out.Store(true) },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				d := deploy(hostA, hostB)
				d.up(hostA, moved(7))
				d.up(hostB, moved(7))
				defer d.downAll()
				var first *halfOpen
				c, err := dona.Dial(t.Context(), pair, dona.WithReportInterval(time.Minute), dona.WithRandom(func() float64 { return 0.1 }),
					dona.WithDialer(func(ctx context.Context, address string) (net.Conn, error) {
						conn, err := d.dial(ctx, address)
						if err == nil && address == hostA && first == nil {
							first = &halfOpen{Conn: conn}
							return first, nil
						}
						return conn, err
					}))
				if err != nil {
					t.Fatal(err)
				}
				defer c.Close()
				svc := c.Service("checkout")
				r := register(t, c, own)
				after(t, time.Second, "all is at the first host", func() bool { return svc.Status().Host == hostA && r.LeaseID() != "" })
				lose(first)
				took := after(t, time.Minute, "all is at the other host", func() bool {
					return svc.Status().Host == hostB && !svc.Status().Stale && d.hosts[hostB].last(own.ID).GetEndpointId() == own.ID
				})
				if t.Logf("after %v", took); took > 41*time.Second {
					t.Errorf("it took %v", took)
				}
			})
		})
	}
}

// A host that stands still is found by the first report that it does not answer: the
// watch and the registration need not wait for pings.
func TestReportsFindASilentHost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := deploy(hostA, hostB)
		d.up(hostA, moved(7))
		d.up(hostB, moved(7))
		defer d.downAll()
		var silent atomic.Pointer[halfOpen]
		c, err := dona.Dial(t.Context(), pair, dona.WithReportInterval(time.Second), dona.WithRandom(func() float64 { return 0.1 }),
			dona.WithDialer(func(ctx context.Context, address string) (net.Conn, error) {
				conn, err := d.dial(ctx, address)
				if err != nil || address != hostA {
					return conn, err
				}
				silent.Store(&halfOpen{Conn: conn})
				return silent.Load(), nil
			}))
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		svc := c.Service("checkout")
		r := register(t, c, own)
		after(t, time.Second, "all is at the first host", func() bool { return svc.Status().Host == hostA && r.LeaseID() != "" })
		time.Sleep(5 * time.Second) // what was to be reported is
		silent.Load().in.Store(true)
		silent.Load().out.Store(true)
		pick, err := svc.Pick(t.Context(), dona.Request{Unit: "u"})
		if err != nil {
			t.Fatal(err)
		}
		pick.Done(dona.Outcome{Success: true})
		took := after(t, time.Minute, "all is at the other host", func() bool {
			return svc.Status().Host == hostB && !svc.Status().Stale && d.hosts[hostB].last(own.ID).GetEndpointId() == own.ID
		})
		if t.Logf("after %v", took); took > 13*time.Second {
			t.Errorf("it took %v", took)
		}
	})
}

// A client whose reports need a new name watches by it too, so that a host knows
// which version it is on. Nothing becomes stale by that.
func TestWatchesByTheNameOfItsReports(t *testing.T) {
	h := startHost(t)
	h.publish(checkout(7))
	h.reportErr = []error{status.Error(codes.Aborted, "another process has this name")}
	svc := dial(t, h.address).Service("checkout")
	ready(t, svc)
	until(t, "the new name watches and reports version 7", func() bool {
		if svc.Status().Stale {
			t.Fatal("stale while the host is there")
		}
		return look(h, func() bool {
			if len(h.watches) < 2 || len(h.batches) < 2 {
				return false
			}
			again, last := h.watches[1], h.batches[len(h.batches)-1]
			return again.ClientId == last.ReporterId && again.LastVersion == 7 && len(last.Applied) == 1 && last.Applied[0].Version == 7
		})
	})
	if look(h, func() bool { return len(h.watches) != 2 || h.watches[0].ClientId == h.watches[1].ClientId }) {
		t.Errorf("watches %v", h.watches)
	}
}

// A report whose answer was lost goes to another host as it was.
func TestReportMovesAsItIs(t *testing.T) {
	one, two := startHost(t), startHost(t)
	one.publish(checkout(7))
	two.publish(checkout(7))
	one.reportErr = []error{status.Error(codes.Unavailable, "the answer is lost")}
	svc := dial(t, one.address+","+two.address).Service("checkout")
	ready(t, svc)
	p, err := svc.Pick(t.Context(), dona.Request{Unit: "user-2"})
	if err != nil {
		t.Fatal(err)
	}
	p.Done(dona.Outcome{Success: true, Code: "200"})
	first := func(h *fakeHost) *donav1.StatsBatch {
		return look(h, func() *donav1.StatsBatch {
			if len(h.batches) == 0 {
				return nil
			}
			return h.batches[0]
		})
	}
	until(t, "the other host has the report", func() bool { return first(two) != nil })
	if a, b := first(one), first(two); !proto.Equal(a, b) || a.Sequence == 0 {
		t.Errorf("sent %v, then %v", a, b)
	}
	if n := look(one, func() int { return len(one.batches) }); n != 1 {
		t.Errorf("the first host got %d batches", n)
	}
}

// Rules of the ingress are read from another host at once.
func TestIngressAsksTheOtherHost(t *testing.T) {
	gone, h := startHost(t), startHost(t)
	gone.stop()
	h.routes = map[string][]*donav1.Ingress{"checkout": {{Service: "checkout", Host: "shop.example", PathPrefix: "/"}}}
	c := dial(t, gone.address+","+h.address, dona.WithCaller("edge", "eu"))
	edge, err := c.Ingress(dona.IngressConfig{Services: []string{"checkout"}, Refresh: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	if err := edge.Ready(ctx); err != nil {
		t.Fatal(err)
	}
	if _, found := edge.Table().Resolve("shop.example", "/"); !found {
		t.Error("the rule is not there")
	}
}

// act is one step of a history of two hosts.
type act struct {
	What string
	Host string
	N    int
}

// TestNeverLowerNeverMixed runs a client through random histories of two hosts, each
// of which is behind the other at times, away, cut off or back with older data. The
// client's version never falls, each decision is of one version through and
// through, no version is made up, and in the end it has the newest.
func TestNeverLowerNeverMixed(t *testing.T) {
	steps := rapid.SliceOfN(rapid.Custom(func(t *rapid.T) act {
		return act{
			What: rapid.SampledFrom([]string{"write", "delta", "delta", "full", "wait", "wait", "cut", "down", "up", "older"}).Draw(t, "what"),
			Host: rapid.SampledFrom([]string{hostA, hostB}).Draw(t, "host"),
			N:    rapid.IntRange(1, 5).Draw(t, "n"),
		}
	}), 5, 40)
	rapid.Check(t, func(rt *rapid.T) {
		history := steps.Draw(rt, "history")
		luck := rapid.Uint64().Draw(rt, "luck")
		var wrong error
		synctest.Test(t, func(t *testing.T) { wrong = live(t, history, luck) })
		if wrong != nil {
			rt.Fatal(wrong)
		}
	})
}

// live runs a history and returns what went wrong.
func live(t *testing.T, history []act, luck uint64) error {
	d := deploy(hostA, hostB)
	defer d.downAll()
	newest := uint64(5)
	has := map[string]uint64{hostA: newest, hostB: newest}
	for a := range has {
		d.up(a, moved(newest))
	}
	var mu sync.Mutex
	random := rand.New(rand.NewPCG(luck, 0))
	c, err := dona.Dial(t.Context(), pair, dona.WithDialer(d.dial), dona.WithReportInterval(time.Second), dona.WithRandom(func() float64 {
		mu.Lock()
		defer mu.Unlock()
		return random.Float64()
	}))
	if err != nil {
		return err
	}
	defer c.Close()
	svc := c.Service("checkout")
	seen := uint64(0)
	check := func() error {
		synctest.Wait()
		st := svc.Status()
		if st.Version < seen || st.Version > newest {
			return fmt.Errorf("version %d after %d, the newest is %d", st.Version, seen, newest)
		}
		seen = st.Version
		for range 4 {
			p, err := svc.Pick(t.Context(), dona.Request{})
			if errors.Is(err, dona.ErrNoData) && seen == 0 {
				return nil
			}
			if err != nil {
				return err
			}
			p.Cancel()
			if at := fmt.Sprint(":", p.Decision.ConfigVersion); p.Decision.ConfigVersion != seen || !strings.HasSuffix(p.Endpoint.Address, at) {
				return fmt.Errorf("version %d picked %s of version %d", seen, p.Endpoint.Address, p.Decision.ConfigVersion)
			}
		}
		return nil
	}
	wait := func(d time.Duration) error {
		for range d / (250 * time.Millisecond) {
			time.Sleep(250 * time.Millisecond)
			if err := check(); err != nil {
				return err
			}
		}
		return nil
	}
	for i, a := range history {
		h := d.hosts[a.Host]
		switch a.What {
		case "write":
			newest += uint64(a.N)
		case "delta", "full": // the host takes in some of what is new
			if to := min(newest, has[a.Host]+uint64(a.N)); h != nil && to > has[a.Host] {
				if a.What == "full" {
					h.publish(moved(to))
				} else {
					h.push(moved(to), step(has[a.Host], to))
				}
				has[a.Host] = to
			}
		case "wait":
			err = wait(time.Duration(a.N*a.N) * time.Second)
		case "cut":
			if h != nil {
				h.cutStreams()
			}
		case "down":
			d.down(a.Host)
		case "up":
			if h == nil {
				d.up(a.Host, moved(has[a.Host]))
			}
		case "older": // it comes back with what it had before
			d.down(a.Host)
			has[a.Host] = max(1, has[a.Host]-uint64(min(a.N, int(has[a.Host]-1))))
			d.up(a.Host, moved(has[a.Host]))
		}
		if err == nil {
			err = check()
		}
		if err != nil {
			return fmt.Errorf("step %d, %+v: %w", i, a, err)
		}
	}
	for address := range has {
		if h := d.hosts[address]; h == nil {
			d.up(address, moved(newest))
		} else {
			h.publish(moved(newest))
		}
	}
	if err := wait(2 * time.Minute); err != nil {
		return fmt.Errorf("in the end: %w", err)
	}
	if st := svc.Status(); st.Version != newest || st.Stale {
		return fmt.Errorf("two minutes after all is well: %+v, the newest is %d", st, newest)
	}
	return nil
}

// proxy forwards TCP to one host and can reset what goes through it.
type proxy struct {
	listener net.Listener
	target   string
	work     sync.WaitGroup

	mu    sync.Mutex
	conns map[net.Conn]bool
}

func startProxy(t *testing.T, target string) *proxy {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p := &proxy{listener: l, target: target, conns: map[net.Conn]bool{}}
	p.work.Go(p.serve)
	t.Cleanup(func() { l.Close(); p.reset(); p.work.Wait() })
	return p
}

func (p *proxy) address() string { return p.listener.Addr().String() }

func (p *proxy) serve() {
	for {
		near, err := p.listener.Accept()
		if err != nil {
			return
		}
		far, err := net.Dial("tcp", p.target)
		if err != nil {
			near.Close()
			continue
		}
		p.mu.Lock()
		p.conns[near], p.conns[far] = true, true
		p.mu.Unlock()
		for _, way := range [][2]net.Conn{{near, far}, {far, near}} {
			p.work.Go(func() {
				_, _ = io.Copy(way[0], way[1]) // ends with either side
				way[0].Close()
				way[1].Close()
				p.mu.Lock()
				delete(p.conns, way[0])
				p.mu.Unlock()
			})
		}
	}
}

// reset breaks all connections, as a firewall does that forgot them.
func (p *proxy) reset() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for c := range p.conns {
		_ = c.(*net.TCPConn).SetLinger(0)
		c.Close()
	}
}

// TestResetsBetweenTwoHosts breaks the connections to two hosts, again and again,
// while both publish, one later than the other.
func TestResetsBetweenTwoHosts(t *testing.T) {
	ahead, lags := startHost(t), startHost(t)
	proxies := []*proxy{startProxy(t, ahead.address), startProxy(t, lags.address)}
	ahead.publish(moved(1))
	lags.publish(moved(1))
	random := rand.New(rand.NewPCG(7, 7))
	c := dial(t, proxies[0].address()+","+proxies[1].address())
	r := register(t, c, own)
	svc := c.Service("checkout")
	ready(t, svc)
	var mu sync.Mutex
	var last uint64
	stop := picking(t, svc, func(p dona.Pick) {
		mu.Lock()
		defer mu.Unlock()
		last = max(last, p.Decision.ConfigVersion)
	})
	const newest = 120
	for version := uint64(2); version <= newest; version++ {
		ahead.publish(moved(version))
		if version > 4 {
			lags.publish(moved(version - 3))
		}
		if random.IntN(4) == 0 {
			proxies[random.IntN(2)].reset()
		}
		before := svc.Status().Version
		until(t, "one more version is there", func() bool {
			now := svc.Status().Version
			if now < before {
				t.Fatalf("version %d after %d", now, before)
			}
			return now+3 >= version
		})
	}
	lags.publish(moved(newest))
	until(t, "all is well", func() bool { st := svc.Status(); return st.Version == newest && !st.Stale && r.Problem() == nil })
	stop()
	watches := len(look(ahead, func() []*donav1.WatchConfigRequest { return ahead.watches })) +
		len(look(lags, func() []*donav1.WatchConfigRequest { return lags.watches }))
	t.Logf("%d watches, picks up to version %d", watches, last)
	if watches < 3 {
		t.Errorf("%d watches: nothing was broken", watches)
	}
}
