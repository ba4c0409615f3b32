package worker_test

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	controlplanev1 "github.com/dodona-project/dodona/proto/controlplane/v1"
	donav1 "github.com/dodona-project/dodona/proto/dona/v1"
	"github.com/dodona-project/dodona/sdk/worker"
	"github.com/dodona-project/dodona/sdk/worker/target"
)

// serving runs a worker with a snapshot, in a bubble.
func serving(t *testing.T, routings []*controlplanev1.Routing, list []*controlplanev1.Proxy) (*deployment, *running) {
	t.Helper()
	d := deploy(t, hostA)
	d.give(routings, list)
	w := d.start(t, func(c *worker.Config) { c.Target = hostA })
	after(t, time.Second, "it serves", func() bool { return d.ackedVersion() == 1 })
	return d, w
}

// change has the worker use another snapshot.
func (d *deployment) change(t *testing.T, f func()) {
	t.Helper()
	before := d.ackedVersion()
	d.with(f)
	d.push()
	after(t, time.Second, "the change is in use", func() bool { return d.ackedVersion() > before })
}

// all picks until nothing is left, and returns what it got.
func all(t *testing.T, w *running, r *worker.Routing) (leases []worker.Lease, err error) {
	t.Helper()
	for {
		l, err := w.Pick(r, 0, nil)
		if err != nil {
			return leases, err
		}
		if leases = append(leases, l); len(leases) > 1_000_000 {
			t.Fatal("there is no end")
		}
	}
}

func TestAdmission(t *testing.T) {
	strategies := map[string]*donav1.Plan{
		"none":              nil,
		"round robin":       {Algorithm: donav1.Algorithm_ALGORITHM_ROUND_ROBIN},
		"random":            {Algorithm: donav1.Algorithm_ALGORITHM_RANDOM},
		"least connections": {Algorithm: donav1.Algorithm_ALGORITHM_LEAST_CONNECTIONS},
		"tiered":            {Algorithm: donav1.Algorithm_ALGORITHM_TIERED, GroupTiers: map[string]uint32{"us": 1}},
		"consistent hash":   {Algorithm: donav1.Algorithm_ALGORITHM_CONSISTENT_HASH, Hash: &donav1.HashPolicy{Source: donav1.HashPolicy_SOURCE_CLIENT_ID}},
		"peak ewma":         {Algorithm: donav1.Algorithm_ALGORITHM_PEAK_EWMA},
	}
	for name, p := range strategies {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := routing("all", "eu", "us")
				r.Plan = p
				list := append(proxies("eu", 60), proxies("us", 60)...)
				for _, x := range list {
					x.Capacity = 2
				}
				list[0].Health = controlplanev1.Health_HEALTH_UNHEALTHY
				list[1].Health = controlplanev1.Health_HEALTH_UNSPECIFIED
				list[2].Health = controlplanev1.Health_HEALTH_SUSPECT
				list[3].DeniedRoutings = []string{"other", "all"}
				list[4].Capacity = 0
				list[5].Host = "not a host"
				list[6].SecretRef = "env:NOBODY"
				list[7].UsableUntil = timestamppb.New(time.Now().Add(-time.Second))
				list = append(list, proxies("ap", 5)...) // of an upstream that the routing has not
				_, w := serving(t, []*controlplanev1.Routing{r}, list)
				if n := len(w.View().Skipped()); n != 2 {
					t.Errorf("%d are skipped: %v", n, w.View().Skipped())
				}
				found := w.View().Route(&worker.Request{})
				leases, err := all(t, w, found)
				if !errors.Is(err, worker.ErrFull) {
					t.Errorf("it ends with %v", err)
				}
				got := map[string]int{}
				for _, l := range leases {
					got[l.Proxy.ID]++
				}
				// All but the eight of above, each as often as it has room.
				if len(got) != 112 || len(leases) != 224 {
					t.Errorf("%d proxies in %d leases", len(got), len(leases))
				}
				for _, x := range list[:8] {
					if got[x.ProxyId] > 0 {
						t.Errorf("%s is used", x.ProxyId)
					}
				}
				if w.InUse() != 224 {
					t.Errorf("%d in use", w.InUse())
				}
				// The place that is given back is found, however the plan chooses.
				leases[100].Release()
				leases[100].Release()
				if w.InUse() != 223 {
					t.Errorf("%d in use after one was released twice", w.InUse())
				}
				again, err := w.Pick(found, 0, nil)
				if err != nil || again.Proxy.ID != leases[100].Proxy.ID {
					t.Errorf("%v, %v, want %s", again.Proxy, err, leases[100].Proxy.ID)
				}
				again.Release()
				if _, err := w.Pick(found, 0, []string{again.Proxy.ID}); !errors.Is(err, worker.ErrFull) {
					t.Errorf("what was tried is picked again, or it ends with %v", err)
				}
			})
		})
	}
}

// SUSPECT proxies are for when nothing else can be used, and not for when all is full.
func TestSuspect(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		list := proxies("eu", 3)
		list[0].Capacity = 1
		list[1].Health, list[2].Health = controlplanev1.Health_HEALTH_SUSPECT, controlplanev1.Health_HEALTH_SUSPECT
		d, w := serving(t, []*controlplanev1.Routing{routing("all", "eu")}, list)
		r := w.View().Route(&worker.Request{})
		leases, err := all(t, w, r)
		if len(leases) != 1 || leases[0].Proxy.ID != "eu-000" || !errors.Is(err, worker.ErrFull) {
			t.Errorf("%d leases, %v", len(leases), err)
		}
		if l, err := w.Pick(r, 0, []string{"eu-000"}); err != nil || l.Proxy.ID == "eu-000" {
			t.Errorf("after the only one was tried: %v", err)
		}
		d.change(t, func() { d.proxies = d.proxies[1:] })
		if _, err := w.Pick(r, 0, nil); err != nil {
			t.Errorf("only suspect ones: %v", err)
		}
		if _, err := w.Pick(r, 0, []string{"eu-001", "eu-002"}); !errors.Is(err, worker.ErrNoProxy) {
			t.Errorf("all tried: %v", err)
		}
	})
}

func TestUsableUntil(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		list := proxies("eu", 2)
		for _, p := range list {
			p.Capacity = math.MaxUint32
		}
		end := time.Now().Add(20 * time.Second)
		list[0].UsableUntil = timestamppb.New(end)
		_, w := serving(t, []*controlplanev1.Routing{routing("all", "eu")}, list)
		r := w.View().Route(&worker.Request{})
		time.Sleep(time.Until(end.Add(-100 * time.Millisecond)))
		got := map[string]int{}
		for range 1000 {
			id, _ := pick(w, r)
			got[id]++
		}
		if len(got) != 2 {
			t.Errorf("just before the end %v are used", got)
		}
		time.Sleep(200 * time.Millisecond)
		for range 100_000 {
			if id, err := pick(w, r); id == "eu-000" || err != nil {
				t.Fatalf("%s, %v after its end", id, err)
			}
		}
	})
}

func TestRoute(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		match := func(name string, m *controlplanev1.RoutingMatch) *controlplanev1.Routing {
			r := routing(name, "eu")
			r.Match = m
			return r
		}
		_, w := serving(t, []*controlplanev1.Routing{
			match("address", &controlplanev1.RoutingMatch{Hosts: []string{"8.8.8.8"}}),
			match("shop", &controlplanev1.RoutingMatch{Hosts: []string{"shop.example", "*.shop.example"}, Ports: []uint32{443, 8443}}),
			match("client", &controlplanev1.RoutingMatch{Clients: []string{"a", "b"}, Methods: []string{"GET"}}),
			match("tunnels", &controlplanev1.RoutingMatch{Methods: []string{"CONNECT"}}),
		}, proxies("eu", 1))
		for _, c := range []struct{ target, method, client, want string }{
			{"shop.example:443", "GET", "", "shop"},
			{"SHOP.example.:8443", "CONNECT", "a", "shop"},
			{"a.b.shop.example:443", "GET", "a", "shop"},
			{"shop.example:80", "GET", "a", "client"},
			{"other.example:80", "CONNECT", "a", "tunnels"},
			{"xshop.example:443", "CONNECT", "", "tunnels"},
			{"other.example:80", "GET", "c", ""},
			{"8.8.8.8:1", "POST", "", "address"},
			{"[2001:db8::1]:1", "POST", "", ""},
		} {
			to, err := target.Parse(c.target, 0)
			if err != nil {
				t.Fatal(err)
			}
			got := ""
			if r := w.View().Route(&worker.Request{Target: to, Method: c.method, Client: c.client}); r != nil {
				got = r.Name
			}
			if got != c.want {
				t.Errorf("%+v: %q", c, got)
			}
		}
	})
}

func TestKey(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var list []*controlplanev1.Routing
		for source := range donav1.HashPolicy_Source_name {
			if source == 0 {
				continue
			}
			r := routing(donav1.HashPolicy_Source(source).String(), "eu")
			r.Plan = &donav1.Plan{Algorithm: donav1.Algorithm_ALGORITHM_CONSISTENT_HASH, Hash: &donav1.HashPolicy{Source: donav1.HashPolicy_Source(source), Name: "x-user"}}
			r.Match = &controlplanev1.RoutingMatch{Clients: []string{r.Name}}
			list = append(list, r)
		}
		_, w := serving(t, append(list, routing("plain", "eu")), proxies("eu", 50))
		base := func(client string) *worker.Request {
			return &worker.Request{Client: client, ClientIP: "192.0.2.1", Sticky: "s", Target: target.Target{Name: "a.example", Port: 443}, Header: func(string) string { return "h" }}
		}
		for _, m := range list {
			q := base(m.Name)
			r := w.View().Route(q)
			key := r.Key(q)
			if key == 0 {
				t.Errorf("%s: no key", m.Name)
			}
			first, err := w.Pick(r, key, nil)
			if err != nil {
				t.Fatal(err)
			}
			for range 5 {
				first.Release()
				again, err := w.Pick(r, key, nil)
				if err != nil || again.Proxy.ID != first.Proxy.ID {
					t.Fatalf("%s: %v, %v, first was %s", m.Name, again.Proxy, err, first.Proxy.ID)
				}
				first = again
			}
			first.Release()
			q.ClientIP, q.Sticky, q.Target.Name, q.Header = "192.0.2.2", "t", "b.example", func(string) string { return "i" }
			if same := m.Name == "SOURCE_CLIENT_ID"; (r.Key(q) == key) != same {
				t.Errorf("%s: the key of another request is the same: %v", m.Name, !same)
			}
		}
		q := base("nobody")
		if r := w.View().Route(q); r.Name != "plain" || r.Key(q) != 0 {
			t.Errorf("%s has a key", r.Name)
		}
	})
}

// What is in use counts on, whatever snapshots come, also of a proxy that goes and comes
// back; a report says what drains, and a proxy in no snapshot and no use is not spoken of.
func TestSlotsOutliveSnapshots(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d, w := serving(t, []*controlplanev1.Routing{routing("all", "eu")}, proxies("eu", 2))
		r := w.View().Route(&worker.Request{})
		var held []worker.Lease
		for range 7 {
			l, err := w.PickProxy(r, "eu-000")
			if err != nil {
				t.Fatal(err)
			}
			held = append(held, l)
		}
		for i := range 4 {
			held[i].Activate()
			held[i].Activate()
		}
		report := func() string {
			n := d.count(func() int { return len(d.reports) })
			after(t, 3*interval, "a report", func() bool { return d.count(func() int { return len(d.reports) }) > n+1 })
			var text string
			d.with(func() {
				last := d.reports[len(d.reports)-1]
				for _, c := range last.GetCounters() {
					text += fmt.Sprintf("%s %d/%d %v;", c.GetProxyId(), c.GetActive(), c.GetReserved(), c.GetDraining())
				}
				if last.GetSnapshotVersion() != d.acked.GetVersion() {
					t.Errorf("the report names version %d", last.GetSnapshotVersion())
				}
			})
			return text
		}
		check := func(want string) {
			t.Helper()
			if got := report(); got != want {
				t.Errorf("reported %q, want %q", got, want)
			}
		}
		check("eu-000 4/3 false;")
		d.change(t, func() { d.proxies = proxies("eu", 2)[1:] })
		check("eu-000 4/3 true;")
		if _, err := w.PickProxy(r, "eu-000"); !errors.Is(err, worker.ErrNoProxy) {
			t.Errorf("a proxy that is gone: %v", err)
		}
		d.change(t, func() { d.proxies = proxies("eu", 2) })
		check("eu-000 4/3 false;")
		if more, _ := all(t, w, w.View().Route(&worker.Request{})); len(more) != 13 {
			t.Errorf("%d places were left, want 3 and 10", len(more))
		} else {
			for i := range more {
				more[i].Release()
			}
		}
		d.change(t, func() { d.proxies = nil })
		for i := range held[:6] {
			held[i].Release()
		}
		check("eu-000 0/1 true;")
		// The last one is told of at once: a drain waits for it.
		n := d.count(func() int { return len(d.reports) })
		held[6].Release()
		if took := after(t, interval, "a report", func() bool { return d.count(func() int { return len(d.reports) }) > n }); took > 50*time.Millisecond {
			t.Errorf("the end of a drain is reported after %v", took)
		}
		check("")
	})
}

func TestRevoke(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d, w := serving(t, []*controlplanev1.Routing{routing("all", "eu")}, proxies("eu", 2))
		r := w.View().Route(&worker.Request{})
		lease, err := w.PickProxy(r, "eu-000")
		if err != nil {
			t.Fatal(err)
		}
		d.with(func() { d.revoke = []string{"eu-000", "nobody"} })
		after(t, 3*time.Second, "nothing new goes there", func() bool { _, err := w.PickProxy(r, "eu-000"); return errors.Is(err, worker.ErrNoProxy) })
		for range 100 {
			if id, err := pick(w, r); id != "eu-001" || err != nil {
				t.Fatalf("%s, %v", id, err)
			}
		}
		lease.Release()
		// The same assignment in the next snapshot is the same that was revoked; the next one
		// is another.
		d.change(t, func() {})
		if _, err := w.PickProxy(w.View().Route(&worker.Request{}), "eu-000"); !errors.Is(err, worker.ErrNoProxy) {
			t.Errorf("the revoked assignment: %v", err)
		}
		d.change(t, func() { d.revoke, d.proxies = nil, proxies("eu", 2); d.proxies[0].AssignmentEpoch = 2 })
		if _, err := w.PickProxy(w.View().Route(&worker.Request{}), "eu-000"); err != nil {
			t.Errorf("the next assignment: %v", err)
		}
	})
}

func TestDrainIsReported(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d, w := serving(t, []*controlplanev1.Routing{routing("all", "eu")}, proxies("eu", 2))
		draining := func() (last bool) {
			d.with(func() { last = len(d.reports) > 0 && d.reports[len(d.reports)-1].GetDraining() })
			return last
		}
		time.Sleep(5 * time.Second)
		if draining() {
			t.Error("it drains by itself")
		}
		w.Drain()
		if took := after(t, interval, "it is reported", draining); took > 50*time.Millisecond {
			t.Errorf("it took %v", took)
		}
		l, err := w.Pick(w.View().Route(&worker.Request{}), 0, nil)
		if err != nil {
			t.Errorf("what still comes is served: %v", err)
		}
		time.Sleep(10 * interval)
		l.Release()
		if err := w.stop(); err != nil {
			t.Error(err)
		}
		d.with(func() {
			if last := d.reports[len(d.reports)-1]; len(last.GetCounters()) != 0 || !last.GetDraining() {
				t.Errorf("the last report is %v", last)
			}
		})
	})
}

// Under many picks and swaps at once, no proxy that is in no acknowledged snapshot is ever
// in a lease that was made after the acknowledgement, and no place is lost.
func TestPickAndSwap(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		list := proxies("eu", 8)
		d, w := serving(t, []*controlplanev1.Routing{routing("all", "eu")}, list)
		var gone sync.Map // proxy id -> in which round a snapshot without it was acknowledged
		var stop atomic.Bool
		var work sync.WaitGroup
		var picks atomic.Int64
		for range 4 {
			work.Go(func() {
				for i := 0; !stop.Load(); i++ {
					r := w.View().Route(&worker.Request{})
					before := map[any]any{}
					gone.Range(func(id, round any) bool { before[id] = round; return true })
					l, err := w.Pick(r, 0, nil)
					if err == nil {
						was, out := before[l.Proxy.ID]
						if now, still := gone.Load(l.Proxy.ID); out && still && was == now {
							t.Errorf("%s was picked after it was gone", l.Proxy.ID)
						}
						l.Activate()
						l.Release()
						picks.Add(1)
					}
					if i%50 == 0 {
						time.Sleep(time.Millisecond)
					}
				}
			})
		}
		for i := range 200 {
			out := list[i%len(list)].ProxyId
			d.change(t, func() {
				d.proxies = slices.DeleteFunc(slices.Clone(list), func(p *controlplanev1.Proxy) bool { return p.ProxyId == out })
			})
			gone.Store(out, i)
			time.Sleep(5 * time.Millisecond)
			gone.Delete(out)
		}
		stop.Store(true)
		work.Wait()
		if w.InUse() != 0 {
			t.Errorf("%d places are lost", w.InUse())
		}
		t.Logf("%d picks", picks.Load())
	})
}
