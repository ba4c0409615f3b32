package pool_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	controlplanev1 "github.com/dodona-project/dodona/proto/controlplane/v1"

	"github.com/dodona-project/dodona/host/check"
	"github.com/dodona-project/dodona/host/pool"
	"github.com/dodona-project/dodona/host/pool/ownership"
	"github.com/dodona-project/dodona/host/store"
	"github.com/dodona-project/dodona/host/store/redis/redistest"
)

// roomy is checkedDocument with a bound that is never reached.
var roomy = strings.Replace(checkedDocument, "maxInFlight: 4", "maxInFlight: 100", 1)

// lease is how long a task of these tests may be held: its deadline, and its way.
const lease = 5*time.Second + 5*time.Second

// register has a checker there that may hold so many tasks.
func (c *clinic) register(host int, id string, window uint32) {
	c.t.Helper()
	_, err := c.brokers[host].Register(c.ctx, check.Registration{Checker: id, Instance: id, Levels: allLevels, Probes: []string{"proxy"}, Window: window})
	c.must(err)
}

// TestKilledCheckersTasks: what a checker held that says nothing any more is given away
// again when the lease is over, not sooner, by any host, with another token; what the
// first one reports then is refused, and changes nothing.
func TestKilledCheckersTasks(t *testing.T) {
	onEachStore(t, roomy, func(t *testing.T, c *clinic) {
		c.checker("one", allLevels...)
		c.checker("two", allLevels...)
		c.list(3)
		held := c.claim(0, "one", 0)
		if len(held) != 9 {
			t.Fatalf("it holds %d tasks", len(held))
		}
		c.clock.advance(lease - 10*time.Millisecond)
		if n := len(c.claim(1, "two", 0)); n != 0 {
			t.Errorf("%d tasks are given away within their lease", n)
		}
		c.clock.advance(20 * time.Millisecond)
		again := c.claim(1, "two", 0)
		if len(again) != 9 {
			t.Fatalf("%d tasks are given away when their lease is over", len(again))
		}
		for _, old := range held {
			i := slices.IndexFunc(again, func(n check.Task) bool { return n.Name() == old.Name() })
			if i < 0 || again[i].Token == old.Token || again[i].Generation != old.Generation+1 {
				t.Errorf("%s: it was %d, and is %v", old.Name(), old.Generation, again)
			}
			if got := c.tell("one", bad, old); got != "overtaken" {
				t.Errorf("a report of a lease that is over: %q", got)
			}
		}
		c.wantStates("after what came too late", map[controlplanev1.ProxyStatus_State]int{ownership.New: 3})
		if got := c.tell("two", good, again...); got != "" {
			t.Errorf("the second holder's reports: %q", got)
		}
		c.wantStates("after the second holder's", map[controlplanev1.ProxyStatus_State]int{ownership.Available: 3})
	})
}

// TestReconnectsNeverWiden: a checker that registers and asks again and again, on either
// host, at once or one after the other, for all levels or for some, never holds more than
// its window.
func TestReconnectsNeverWiden(t *testing.T) {
	document := roomy + `  - {name: more, upstreams: [{name: other}]}
`
	document = strings.Replace(document, "routings:", `  - name: other
    protocol: http
    source: {type: static, proxies: []}
    check: {egress: {url: "https://ip.example/"}, maxInFlight: 100}
routings:`, 1)
	onEachStore(t, document, func(t *testing.T, c *clinic) {
		const window = 6
		c.register(0, "one", window)
		c.list(20)
		var listed []pool.Listed
		for i := range 20 {
			listed = append(listed, pool.Listed{Protocol: controlplanev1.Proxy_PROTOCOL_HTTP, Host: "192.0.2.2", Port: uint16(1000 + i)})
		}
		_, _, err := c.p.List(c.ctx, "other", listed, time.Hour, nil)
		c.must(err)
		c.look()
		c.clock.advance(2 * time.Second)
		for round := range 10 {
			var mu sync.Mutex
			held := map[string]check.Task{}
			var all sync.WaitGroup
			for i := range 10 {
				all.Go(func() {
					b := c.brokers[i%2]
					if round%2 == 0 { // else it stayed registered
						if _, err := b.Register(c.ctx, check.Registration{Checker: "one", Instance: "one", Levels: allLevels, Probes: []string{"proxy"}, Window: window}); err != nil {
							t.Error(err)
						}
					}
					tasks, _, err := b.Claim(c.ctx, check.Claim{Checker: "one", Instance: "one", Levels: allLevels[i%3 : i%3+1]})
					if err != nil {
						t.Error(err)
					}
					mu.Lock()
					defer mu.Unlock()
					for _, task := range tasks {
						held[task.Name()] = task
					}
				})
			}
			all.Wait()
			for i := range 10 {
				c.register(i%2, "one", window)
				for _, task := range c.claim(i%2, "one", 0) {
					held[task.Name()] = task
				}
			}
			if len(held) != window {
				t.Fatalf("round %d: after twenty connections it holds %d tasks, allowed are %d", round, len(held), window)
			}
			for _, task := range held {
				if got := c.tell("one", good, task); got != "" {
					t.Errorf("round %d: %s", round, got)
				}
			}
		}
	})
}

// paused is a store that, once armed, waits in one run of its next update: before that
// commits, or is run again with what it did not know.
type paused struct {
	store.Store
	armed bool
	at    int           // the run, from 1
	there chan struct{} // closed when it waits
	goOn  chan struct{}
	runs  int
}

func (p *paused) Update(ctx context.Context, d store.Durability, do func(store.Tx) error) error {
	return p.Store.Update(ctx, d, func(tx store.Tx) error {
		if err := do(tx); err != nil || !p.armed {
			return err
		}
		if p.runs++; p.runs == p.at {
			close(p.there)
			<-p.goOn
		}
		return nil
	})
}

// TestBoundsOverTwoHosts: neither one checker that asks two hosts at the same moment, for
// tasks that have nothing in common, gets more than its window from both, nor do two
// checkers get more than the bound of an upstream.
func TestBoundsOverTwoHosts(t *testing.T) {
	server := redistest.Start(t, redistest.Safe...)
	for _, tc := range []struct {
		name, second string // the checker that asks the second host
		window       uint32
		other        string // upstream of the second host's task
		check        string // of the first one's
	}{{"window", "one", 1, "other", ""}, {"bound", "two", 10, "dc", `, check: {egress: {url: "https://ip.example/"}, maxInFlight: 1}`}} {
		for at := 1; ; at++ {
			clk, cluster := newClock(), fmt.Sprint(tc.name, "-", at)
			slow := &paused{Store: byHand{openShared(t, server, cluster, "one"), clk}, at: at, there: make(chan struct{}), goOn: make(chan struct{})}
			c := newClinic(t, clk, fmt.Sprintf(`
cluster: {id: c1}
upstreams:
  - {name: dc, protocol: http, source: {type: static, proxies: []}%s}
  - {name: other, protocol: http, source: {type: static, proxies: []}, check: {basic: false, egress: {url: "https://ip.example/"}}}
routings:
  - {name: all, upstreams: [{name: dc}, {name: other}]}
`, tc.check), nil, slow, byHand{openShared(t, server, cluster, "two"), clk})
			c.register(0, "one", tc.window)
			c.register(0, tc.second, tc.window)
			if tc.other != "dc" {
				_, _, err := c.p.List(c.ctx, tc.other, []pool.Listed{{Protocol: controlplanev1.Proxy_PROTOCOL_HTTP, Host: "192.0.2.2", Port: 1000}}, time.Hour, nil)
				c.must(err)
			}
			c.list(1)
			ask := func(host int, id string, level controlplanev1.CheckLevel) int {
				tasks, _, err := c.brokers[host].Claim(c.ctx, check.Claim{Checker: id, Instance: id, Levels: []controlplanev1.CheckLevel{level}})
				if err != nil {
					t.Error(err)
				}
				return len(tasks)
			}
			ask(1, "one", aim) // so that they count as there, and nothing has to be written for that
			ask(1, tc.second, aim)
			slow.armed = true
			first := make(chan int, 1)
			go func() { first <- ask(0, "one", basic) }()
			select {
			case <-slow.there:
			case n := <-first: // all runs were paused once
				if at < 3 || n != 1 {
					t.Errorf("%s: the first host gave %d after %d runs", tc.name, n, at-1)
				}
				at = 0
			}
			if at == 0 {
				break
			}
			second := ask(1, tc.second, egress)
			close(slow.goOn)
			n := <-first
			t.Logf("%s: paused in run %d of %d: one host gave %d and the other %d", tc.name, at, slow.runs, n, second)
			if n+second != 1 {
				t.Errorf("%s: paused in run %d of %d: one host gave %d and the other %d, allowed is 1", tc.name, at, slow.runs, n, second)
			}
		}
	}
}

// losing is a store that has done what it was asked when it says that it has not.
type losing struct {
	store.Store
	lose bool
}

func (l *losing) Update(ctx context.Context, d store.Durability, do func(store.Tx) error) error {
	err := l.Store.Update(ctx, d, do)
	if err == nil && l.lose {
		return errors.New("the answer is lost")
	}
	return err
}

// TestLostConfirmation: a report that was reduced, and whose confirmation is lost, is
// accepted when it is sent again, and counts once; also when its task has long been leased
// to somebody else. Another fact with the same token does not.
func TestLostConfirmation(t *testing.T) {
	onEachStore(t, roomy, func(t *testing.T, c *clinic) {
		l := &losing{Store: c.store}
		b := check.New(check.Options{Store: l, Planes: map[string]check.Plane{pool.CheckPlane: c.p}, Rules: c.brokers[0].Rules(), Random: func() float64 { return 0.5 }})
		c.checker("one", allLevels...)
		ids := c.list(5)
		c.round("one", always(good))
		c.clock.advance(31 * time.Second)
		var held []check.Task
		for _, task := range c.claim(0, "one", 0) {
			if task.Level == basic {
				held = append(held, task)
			}
		}
		if len(held) != 5 {
			t.Fatalf("%d tasks are due", len(held))
		}
		i := slices.IndexFunc(held, func(t check.Task) bool { return t.Proxy.ProxyId == ids[0] })
		sick := held[i]
		for n, task := range held {
			if n != i {
				c.tell("one", good, task)
			}
		}
		l.lose = true
		for range 3 {
			if _, err := b.ReportOutside(c.ctx, "one", []check.Report{c.seen(sick, bad)}); err == nil {
				t.Fatal("nothing was lost")
			}
		}
		l.lose = false
		once := map[controlplanev1.ProxyStatus_State]int{ownership.Suspect: 1, ownership.Available: 4}
		c.wantStates("after a failure that was told three times", once)
		if got := c.tell("one", bad, sick); got != "" {
			t.Errorf("the same again: %q", got)
		}
		if got := c.tell("one", good, sick); got != "overtaken" {
			t.Errorf("another fact: %q", got)
		}
		c.checker("two", allLevels...)
		c.clock.advance(11 * time.Second)
		again := c.claim(1, "two", 0)
		if !slices.ContainsFunc(again, func(t check.Task) bool { return t.Name() == sick.Name() }) {
			t.Fatalf("the second one holds %v", again)
		}
		for range 3 {
			if got := c.tell("one", bad, sick); got != "" {
				t.Errorf("the same while somebody else holds the task: %q", got)
			}
			if got := c.tell("one", good, sick); got != "overtaken" {
				t.Errorf("another fact while somebody else holds the task: %q", got)
			}
			if got := c.tell("two", bad, sick); got != "overtaken" {
				t.Errorf("somebody else with that token: %q", got)
			}
		}
		c.wantStates("after it all", once)
		for _, task := range again {
			if task.Name() == sick.Name() {
				if got := c.tell("two", bad, task); got != "" {
					t.Errorf("who holds it: %q", got)
				}
			}
		}
		c.wantStates("after a second failure", once) // the third would be UNHEALTHY
	})
}

// TestDoubtedOverUpstreams: a checker by which four of five proxies of three upstreams are
// down, although never more than half of one at once, makes nobody else worse: until a
// second one agrees, or, alone, after three intervals. An upstream less, and its word counts.
func TestDoubtedOverUpstreams(t *testing.T) {
	var document strings.Builder
	document.WriteString("cluster: {id: c1}\nupstreams:\n")
	for _, u := range []string{"dc", "b", "c"} {
		fmt.Fprintf(&document, "  - {name: %s, protocol: http, source: {type: static, proxies: []}, check: {maxInFlight: 100}}\n", u)
	}
	document.WriteString("routings:\n  - {name: all, upstreams: [{name: dc}, {name: b}, {name: c}]}\n")
	for _, tc := range []struct {
		name   string
		liesOf int  // upstreams
		second bool // another checker agrees in the end
	}{{"two upstreams", 2, false}, {"three upstreams", 3, false}, {"a second one agrees", 3, true}} {
		t.Run(tc.name, func(t *testing.T) {
			onEachStore(t, document.String(), func(t *testing.T, c *clinic) {
				c.checker("one", allLevels...)
				ids := c.list(10)
				down := map[string]bool{} // by upstream and number
				number := map[string]string{}
				for n, id := range ids {
					number[id] = fmt.Sprint("dc ", n)
				}
				for _, u := range []string{"b", "c"} {
					var listed []pool.Listed
					for i := range 10 {
						l := pool.Listed{Protocol: controlplanev1.Proxy_PROTOCOL_HTTP, Host: "192.0.2.1", Port: uint16(1000 + i)}
						listed = append(listed, l)
						number[pool.ProxyID(u, l)] = fmt.Sprint(u, " ", i)
					}
					_, _, err := c.p.List(c.ctx, u, listed, time.Hour, nil)
					c.must(err)
				}
				c.look()
				c.clock.advance(2 * time.Second)
				c.round("one", always(good))
				says := func(task check.Task) controlplanev1.HealthObservation_Result {
					if down[number[task.Proxy.ProxyId]] {
						return bad
					}
					return good
				}
				pass := func(long time.Duration, ids ...string) {
					for range long / (10 * time.Second) {
						c.clock.advance(10 * time.Second)
						for _, id := range ids {
							c.round(id, says)
						}
						c.look()
					}
				}
				lie := func(from, to int) {
					for _, u := range []string{"dc", "b", "c"}[:tc.liesOf] {
						for n := from; n < to; n++ {
							down[fmt.Sprint(u, " ", n)] = true
						}
					}
				}
				for _, step := range [][2]int{{0, 3}, {3, 6}, {6, 8}} {
					lie(step[0], step[1])
					pass(80*time.Second, "one")
					if resp, err := c.p.Availability(c.ctx); err != nil || slices.ContainsFunc(resp.Upstreams, func(u *controlplanev1.UpstreamAvailability) bool { return u.Brake }) {
						t.Fatalf("the brake of an upstream is on by itself: %v, %v", resp, err)
					}
				}
				before := c.states()
				if before[ownership.Available] != 30-8*tc.liesOf {
					t.Fatalf("before another one fails: %v", before)
				}
				lie(8, 9)
				pass(60*time.Second, "one")
				after := c.states()
				if worse := after[ownership.Available] != before[ownership.Available]; worse != (tc.liesOf < 3) {
					t.Fatalf("a minute later: %v, before %v", after, before)
				}
				if tc.liesOf < 3 {
					return
				}
				if tc.second {
					c.checker("two", allLevels...)
					pass(20*time.Second, "two", "one")
				} else {
					pass(80*time.Second, "one")
				}
				if after := c.states(); after[ownership.Available] != before[ownership.Available]-3 {
					t.Errorf("in the end: %v, before %v", after, before)
				}
			})
		})
	}
}
