package pool_test

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	controlplanev1 "github.com/dodona-project/dodona/proto/controlplane/v1"

	"github.com/dodona-project/dodona/host/audit"
	"github.com/dodona-project/dodona/host/check"
	"github.com/dodona-project/dodona/host/pool"
	"github.com/dodona-project/dodona/host/pool/ownership"
	"github.com/dodona-project/dodona/host/pool/secret"
	"github.com/dodona-project/dodona/host/refusal"
	"github.com/dodona-project/dodona/host/store"
	"github.com/dodona-project/dodona/host/store/redis/redistest"
)

// checkedDocument has an upstream that is checked at all levels, four at once.
const checkedDocument = `
cluster: {id: c1}
upstreams:
  - name: dc
    protocol: http
    source: {type: static, proxies: []}
    check: {egress: {url: "https://ip.example/"}, maxInFlight: 4}
routings:
  - {name: site, upstreams: [{name: dc}], check: {targets: [{url: "https://site.example/", expectStatus: [204]}]}}
  - {name: all, upstreams: [{name: dc}]}
`

const (
	basic  = controlplanev1.CheckLevel_CHECK_LEVEL_BASIC
	egress = controlplanev1.CheckLevel_CHECK_LEVEL_EGRESS
	aim    = controlplanev1.CheckLevel_CHECK_LEVEL_TARGET

	good = controlplanev1.HealthObservation_RESULT_SUCCESS
	bad  = controlplanev1.HealthObservation_RESULT_FAILURE
	none = controlplanev1.HealthObservation_RESULT_INCONCLUSIVE
)

var allLevels = []controlplanev1.CheckLevel{basic, egress, aim}

// clinic is a pool with brokers of checks, one for each host, and a clock that is set by
// hand.
type clinic struct {
	*world
	brokers []*check.Broker
	pools   []*pool.Pool
}

// lazy is the broker that a pool gets before it is made.
type lazy struct{ b *check.Broker }

func (l *lazy) Hurry(tx store.Tx, plane, scope string, ids []string) error {
	return l.b.Hurry(tx, plane, scope, ids)
}

func (l *lazy) Again(tx store.Tx, plane, scope string, ids []string) error {
	return l.b.Again(tx, plane, scope, ids)
}

func (l *lazy) Braked(tx store.ReadTx, plane, scope string) (bool, error) {
	return l.b.Braked(tx, plane, scope)
}

// onEachStore runs a test with two hosts over one store in memory, and with two that have
// a store each, over one Redis.
func onEachStore(t *testing.T, document string, run func(t *testing.T, c *clinic), edit ...func(*pool.Options)) {
	t.Run("embedded", func(t *testing.T) {
		clk := newClock()
		st := memory(clk)
		t.Cleanup(func() { _ = st.Close() })
		run(t, newClinic(t, clk, document, edit, st, st))
	})
	t.Run("redis", func(t *testing.T) {
		clk, server := newClock(), redistest.Start(t, redistest.Safe...)
		run(t, newClinic(t, clk, document, edit, byHand{openShared(t, server, "checks", "one"), clk}, byHand{openShared(t, server, "checks", "two"), clk}))
	})
}

func newClinic(t *testing.T, clk *clock, document string, edit []func(*pool.Options), stores ...store.Store) *clinic {
	c := &clinic{world: &world{t: t, ctx: t.Context(), clock: clk, store: stores[0], log: audit.New("example.org")}}
	for i, st := range stores {
		l := &lazy{}
		o := pool.Options{Store: st, Audit: c.log, HostID: fmt.Sprint("h", i), Coalesce: 5 * time.Millisecond, Checks: l}
		for _, f := range edit {
			f(&o)
		}
		p := pool.New(o)
		l.b = check.New(check.Options{
			Store: st, Planes: map[string]check.Plane{pool.CheckPlane: p}, Rules: check.DefaultRules(30*time.Second, 5*time.Second),
			Random: func() float64 { return 0.5 }, // no jitter
		})
		c.pools, c.brokers = append(c.pools, p), append(c.brokers, l.b)
	}
	c.p = c.pools[0]
	c.publish(document)
	return c
}

// list imports proxies, which have tasks then that are due.
func (c *clinic) list(n int) (ids []string) {
	c.t.Helper()
	var listed []pool.Listed
	for i := range n {
		listed = append(listed, pool.Listed{Protocol: controlplanev1.Proxy_PROTOCOL_HTTP, Host: "192.0.2.1", Port: uint16(1000 + i)})
	}
	_, _, err := c.p.List(c.ctx, "dc", listed, time.Hour, nil)
	c.must(err)
	for _, l := range listed {
		ids = append(ids, pool.ProxyID("dc", l))
	}
	c.look()
	c.clock.advance(2 * time.Second)
	return ids
}

func (c *clinic) look() {
	c.t.Helper()
	c.must(c.brokers[0].Look(c.ctx, false))
}

// checker has a checker there that is outside the hosts, while nothing is due.
func (c *clinic) checker(id string, levels ...controlplanev1.CheckLevel) {
	c.t.Helper()
	_, err := c.brokers[0].Register(c.ctx, check.Registration{Checker: id, Instance: id, Levels: levels, Probes: []string{"proxy"}, Window: 256})
	c.must(err)
	_, _, err = c.brokers[0].Claim(c.ctx, check.Claim{Checker: id, Instance: id})
	if err != nil {
		refusedAs(c.t, "with nothing to check", err, refusal.Unavailable)
	}
}

// claim takes what is due through a host; most 0 = all that the window has room for.
func (c *clinic) claim(host int, id string, most int) []check.Task {
	c.t.Helper()
	tasks, _, err := c.brokers[host].Claim(c.ctx, check.Claim{Checker: id, Instance: id, Most: most})
	c.must(err)
	return tasks
}

// tell reports a result of tasks, and returns the first reason of a refusal.
func (c *clinic) tell(id string, result controlplanev1.HealthObservation_Result, tasks ...check.Task) (refused string) {
	c.t.Helper()
	for _, task := range tasks {
		if r := c.send(id, c.seen(task, result)); refused == "" {
			refused = r
		}
	}
	return refused
}

func (c *clinic) seen(t check.Task, result controlplanev1.HealthObservation_Result) check.Report {
	r := check.Report{Plane: t.Plane, Scope: t.Scope, ID: t.ID, Token: t.Token, Subject: t.Subject(), Result: result}
	if result == bad {
		r.ErrorClass = controlplanev1.ErrorClass_ERROR_CLASS_TIMEOUT
	}
	return r
}

func (c *clinic) send(id string, r check.Report) (refused string) {
	c.t.Helper()
	receipts, err := c.brokers[0].ReportOutside(c.ctx, id, []check.Report{r})
	c.must(err)
	return receipts[0].Reason
}

// round has a checker say of each task that is due, until none is, what says returns.
func (c *clinic) round(id string, says func(check.Task) controlplanev1.HealthObservation_Result) (n int) {
	c.t.Helper()
	for {
		tasks := c.claim(0, id, 0)
		if len(tasks) == 0 {
			return n
		}
		for _, t := range tasks {
			if reason := c.tell(id, says(t), t); reason != "" {
				c.t.Fatalf("an observation is refused: %s", reason)
			}
			n++
		}
	}
}

func always(r controlplanev1.HealthObservation_Result) func(check.Task) controlplanev1.HealthObservation_Result {
	return func(check.Task) controlplanev1.HealthObservation_Result { return r }
}

func (c *clinic) states() map[controlplanev1.ProxyStatus_State]int {
	c.t.Helper()
	n := map[controlplanev1.ProxyStatus_State]int{}
	for _, s := range c.proxies() {
		n[s.State]++
	}
	return n
}

func (c *clinic) wantStates(what string, want map[controlplanev1.ProxyStatus_State]int) {
	c.t.Helper()
	if got := c.states(); !maps.Equal(got, want) {
		c.t.Fatalf("%s: %v, want %v", what, got, want)
	}
}

// TestImportChecksAtOnce: what is listed is checked at once, at all levels, and available
// when BASIC is good.
func TestImportChecksAtOnce(t *testing.T) {
	onEachStore(t, checkedDocument, func(t *testing.T, c *clinic) {
		c.checker("one", allLevels...)
		ids := c.list(3)
		seen := map[controlplanev1.CheckLevel]int{}
		c.round("one", func(task check.Task) controlplanev1.HealthObservation_Result {
			seen[task.Level]++
			if task.Proxy.Host != "192.0.2.1" || !slices.Contains(ids, task.Proxy.ProxyId) {
				t.Errorf("the task has the proxy %v", task.Proxy)
			}
			switch {
			case task.Level == egress && task.URL != "https://ip.example/",
				task.Level == aim && (task.URL != "https://site.example/" || task.Routing != "site" || !slices.Equal(task.ExpectStatus, []uint32{204})),
				task.Level == basic && task.URL+task.Routing != "":
				t.Errorf("a task of %s has %q, %q, %v", task.Level, task.Routing, task.URL, task.ExpectStatus)
			}
			return good
		})
		if !maps.Equal(seen, map[controlplanev1.CheckLevel]int{basic: 3, egress: 3, aim: 3}) {
			t.Errorf("checked were %v", seen)
		}
		c.wantStates("after good checks", map[controlplanev1.ProxyStatus_State]int{ownership.Available: 3})
		// One more comes, and one is extracted: nobody checks that any longer.
		_, err := c.p.Extract(c.ctx, operator, &controlplanev1.ExtractRequest{IdempotencyKey: "k", Upstream: "dc", Count: 1})
		c.must(err)
		c.clock.advance(40 * time.Second)
		n := c.round("one", func(task check.Task) controlplanev1.HealthObservation_Result { return good })
		if n != 2 {
			t.Errorf("%d were checked after a BASIC interval, and two are left", n)
		}
	})
}

// TestLevelsShareTheCap: however many checkers ask, on whichever host, no more tasks of
// an upstream are out than it allows, over all levels together.
func TestLevelsShareTheCap(t *testing.T) {
	onEachStore(t, checkedDocument, func(t *testing.T, c *clinic) {
		for i := range 6 {
			c.checker(fmt.Sprint("c", i), allLevels...)
		}
		c.list(10)
		var mu sync.Mutex
		out := map[string]bool{}
		var all sync.WaitGroup
		for i := range 6 {
			all.Go(func() {
				tasks, _, err := c.brokers[i%2].Claim(c.ctx, check.Claim{Checker: fmt.Sprint("c", i), Instance: fmt.Sprint("c", i)})
				if err != nil {
					t.Error(err)
				}
				mu.Lock()
				defer mu.Unlock()
				for _, task := range tasks {
					if out[task.Name()] {
						t.Errorf("%s is out twice", task.Name())
					}
					out[task.Name()] = true
				}
			})
		}
		all.Wait()
		if n := len(out); n != 4 {
			t.Errorf("%d tasks are out, allowed are 4", n)
		}
		c.clock.advance(time.Minute) // all leases run out
		if n := len(c.claim(1, "c0", 0)); n != 4 {
			t.Errorf("%d tasks after the leases have run out, want 4", n)
		}
		if n := len(c.claim(0, "c1", 0)); n != 0 {
			t.Errorf("%d more while 4 are out", n)
		}
	})
}

// TestOnlyWhatACheckerCan: it gets tasks of its levels and probes only.
func TestOnlyWhatACheckerCan(t *testing.T) {
	onEachStore(t, strings.Replace(checkedDocument, "maxInFlight: 4", "maxInFlight: 100", 1), func(t *testing.T, c *clinic) {
		c.checker("exits", egress)
		c.list(2)
		c.clock.advance(time.Minute)
		for _, task := range c.claim(0, "exits", 0) {
			if task.Level != egress {
				t.Errorf("it got a task of %s", task.Level)
			}
		}
		_, err := c.brokers[0].Register(c.ctx, check.Registration{Checker: "other", Instance: "other", Levels: allLevels, Probes: []string{"http"}, Window: 10})
		c.must(err)
		if tasks := c.claim(0, "other", 0); len(tasks) != 0 {
			t.Errorf("one without the probe got %d tasks", len(tasks))
		}
		_, _, err = c.brokers[0].Claim(c.ctx, check.Claim{Checker: "exits", Instance: "exits", Levels: []controlplanev1.CheckLevel{aim}})
		refusedAs(t, "a level that it did not register", err, refusal.Invalid)
	})
}

// TestObservationFences: an observation that does not fit its task changes nothing, and
// the same one again counts once.
func TestObservationFences(t *testing.T) {
	onEachStore(t, strings.Replace(checkedDocument, "maxInFlight: 4", "maxInFlight: 100", 1), func(t *testing.T, c *clinic) {
		c.list(1)
		_, err := c.brokers[0].Register(c.ctx, check.Registration{Checker: "one", Instance: "one", Levels: allLevels, Probes: []string{"proxy"}, Window: 256})
		c.must(err)
		tasks := map[controlplanev1.CheckLevel]check.Task{}
		for _, task := range c.claim(0, "one", 0) {
			tasks[task.Level] = task
		}
		if len(tasks) != 3 {
			t.Fatalf("%d tasks", len(tasks))
		}
		for _, tc := range []struct {
			what  string
			level controlplanev1.CheckLevel
			edit  func(*check.Report)
			want  string
		}{
			{"another token", basic, func(r *check.Report) { r.Token = strings.Repeat("0", 32) }, "overtaken"},
			{"no token", basic, func(r *check.Report) { r.Token = "" }, "overtaken"},
			{"the token of another task", basic, func(r *check.Report) { r.Token = tasks[egress].Token }, "overtaken"},
			{"another proxy", basic, func(r *check.Report) { r.Subject.Proxy = "other" }, "proxy"},
			{"no proxy", basic, func(r *check.Report) { r.Subject.Proxy = "" }, "proxy"},
			{"another level", basic, func(r *check.Report) { r.Subject.Level = egress }, "level"},
			{"BASIC with a URL", basic, func(r *check.Report) { r.Subject.URL = "https://ip.example/" }, "target"},
			{"BASIC with an exit address", basic, func(r *check.Report) { r.Subject.EgressIP = "192.0.2.7" }, "target"},
			{"EGRESS with its URL", egress, func(r *check.Report) { r.Subject.URL = "https://ip.example/" }, "target"},
			{"EGRESS with a routing", egress, func(r *check.Report) { r.Subject.Routing = "site" }, "target"},
			{"EGRESS with no address", egress, func(r *check.Report) { r.Subject.EgressIP = "here" }, "bad result"},
			{"TARGET without its routing", aim, func(r *check.Report) { r.Subject.Routing = "" }, "target"},
			{"TARGET of another routing", aim, func(r *check.Report) { r.Subject.Routing = "all" }, "target"},
			{"TARGET of another URL", aim, func(r *check.Report) { r.Subject.URL = "https://other.example/" }, "target"},
			{"an unknown result", basic, func(r *check.Report) { r.Result = 99 }, "bad result"},
			{"an unknown error class", basic, func(r *check.Report) { r.ErrorClass = 99 }, "bad result"},
			{"an unknown task", basic, func(r *check.Report) { r.ID = "other" }, "gone"},
		} {
			r := c.seen(tasks[tc.level], good)
			tc.edit(&r)
			if got := c.send("one", r); got != tc.want {
				t.Errorf("%s: %q, want %q", tc.what, got, tc.want)
			}
		}
		c.checker("two", allLevels...)
		if got := c.tell("two", good, tasks[basic]); got != "foreign" {
			t.Errorf("of a task that another one holds: %q", got)
		}
		c.wantStates("after what was refused", map[controlplanev1.ProxyStatus_State]int{ownership.New: 1})
		exit := c.seen(tasks[egress], good)
		exit.Subject.EgressIP = "192.0.2.7"
		for range 2 {
			if got := c.send("one", exit); got != "" {
				t.Errorf("EGRESS: %q", got)
			}
		}
		for what, edit := range map[string]func(*check.Report){
			"another proxy":        func(r *check.Report) { r.Subject.Proxy = "other" },
			"a routing":            func(r *check.Report) { r.Subject.Routing = "site" },
			"another exit address": func(r *check.Report) { r.Subject.EgressIP = "192.0.2.8" },
		} {
			r := exit
			edit(&r)
			if got := c.send("one", r); got != "overtaken" {
				t.Errorf("the same again, with %s: %q", what, got)
			}
		}
		for range 3 { // once is SUSPECT, three times would be UNHEALTHY
			if got := c.tell("one", bad, tasks[basic]); got != "" {
				t.Errorf("the same again: %q", got)
			}
		}
		if got := c.tell("one", good, tasks[basic]); got != "overtaken" {
			t.Errorf("another fact of the same lease: %q", got)
		}
		for _, s := range c.proxies() {
			// One of one that fails: the brake is on, and it stays what it was.
			if s.State != ownership.New || s.EgressIp != "" && s.EgressIp != "192.0.2.7" {
				t.Errorf("it is %s, exit %q", s.State, s.EgressIp)
			}
		}
		// The lease runs out: who comes late has another's task.
		c.clock.advance(time.Minute)
		again := c.claim(1, "two", 0)
		if got := c.tell("one", good, tasks[aim]); got != "overtaken" {
			t.Errorf("after its lease: %q", got)
		}
		for _, task := range again {
			if task.Level == aim && task.Token == tasks[aim].Token {
				t.Error("the token is not new")
			}
		}
	})
}

// TestBrake: when more than half of an upstream fails by one checker's word, nobody is
// judged worse until a second one agrees, or, while there is one checker, after three
// intervals in a row. An alarm says so.
func TestBrake(t *testing.T) {
	document := strings.Replace(checkedDocument, "maxInFlight: 4", "maxInFlight: 100", 1)
	// fail has a checker say for a time that all are down, looking every ten seconds.
	fail := func(c *clinic, id string, long time.Duration) {
		for range long / (10 * time.Second) {
			c.clock.advance(10 * time.Second)
			c.round(id, func(task check.Task) controlplanev1.HealthObservation_Result {
				if task.Level == basic {
					return bad
				}
				return none
			})
			c.look()
		}
	}
	t.Run("one checker", func(t *testing.T) {
		onEachStore(t, document, func(t *testing.T, c *clinic) {
			c.checker("one", allLevels...)
			c.list(10)
			c.round("one", always(good))
			fail(c, "one", 70*time.Second)
			if n := c.states(); n[ownership.Unhealthy] != 0 || n[ownership.Available] != 5 {
				t.Fatalf("within three intervals: %v", n)
			}
			if alarms := c.brokers[0].Alarms(); len(alarms) != 1 || !strings.Contains(alarms[0], "10 of 10 fail ") {
				t.Errorf("alarms are %q", alarms)
			}
			resp, err := c.p.Availability(c.ctx)
			c.must(err)
			if !resp.Upstreams[0].Brake {
				t.Error("the brake is not shown")
			}
			fail(c, "one", 70*time.Second)
			c.wantStates("after three intervals", map[controlplanev1.ProxyStatus_State]int{ownership.Unhealthy: 10})
			// All are well again: the brake lifts.
			for range 80 {
				c.clock.advance(10 * time.Second)
				c.round("one", always(good))
			}
			c.look()
			c.wantStates("after good checks", map[controlplanev1.ProxyStatus_State]int{ownership.Available: 10})
			if alarms := c.brokers[0].Alarms(); len(alarms) != 0 {
				t.Errorf("alarms are %q", alarms)
			}
		})
	})
	t.Run("a second one does not agree", func(t *testing.T) {
		onEachStore(t, document, func(t *testing.T, c *clinic) {
			c.checker("one", allLevels...)
			c.checker("two", allLevels...)
			c.list(10)
			c.round("one", always(good))
			for range 30 {
				c.clock.advance(10 * time.Second)
				c.round("one", always(bad))
				if n := c.states(); n[ownership.Unhealthy] != 0 || n[ownership.Suspect] > 5 {
					t.Fatalf("by one's word: %v", n)
				}
				c.round("two", always(good))
				c.look()
			}
		})
	})
	t.Run("a second one agrees", func(t *testing.T) {
		onEachStore(t, document, func(t *testing.T, c *clinic) {
			c.checker("one", allLevels...)
			c.checker("two", allLevels...)
			c.list(10)
			c.round("one", always(good))
			for range 6 {
				c.clock.advance(10 * time.Second)
				c.round("one", always(bad))
				c.round("two", always(bad))
			}
			c.wantStates("by both", map[controlplanev1.ProxyStatus_State]int{ownership.Unhealthy: 10})
		})
	})
}

// TestOneOfMany: a proxy that fails alone goes its way at once: suspect, unhealthy, and
// gone after half an hour.
func TestOneOfMany(t *testing.T) {
	onEachStore(t, strings.Replace(checkedDocument, "maxInFlight: 4", "maxInFlight: 100", 1), func(t *testing.T, c *clinic) {
		c.checker("one", allLevels...)
		ids := c.list(5)
		c.round("one", always(good))
		says := func(task check.Task) controlplanev1.HealthObservation_Result {
			if task.Proxy.ProxyId == ids[0] && task.Level == basic {
				return bad
			}
			return good
		}
		c.clock.advance(31 * time.Second)
		c.round("one", says)
		c.wantStates("after one failure", map[controlplanev1.ProxyStatus_State]int{ownership.Suspect: 1, ownership.Available: 4})
		for range 2 {
			c.clock.advance(11 * time.Second)
			c.round("one", says)
		}
		c.wantStates("after three", map[controlplanev1.ProxyStatus_State]int{ownership.Unhealthy: 1, ownership.Available: 4})
		if s := c.proxy(ids[0]); s.LastError == "" {
			t.Error("nothing says why")
		}
		for range 32 {
			c.clock.advance(time.Minute)
			c.must(c.p.Sweep(c.ctx))
			if len(c.proxies()) == 5 {
				c.round("one", says)
			}
		}
		if s := c.proxies()[ids[0]]; s != nil && s.State != ownership.Expired {
			t.Errorf("after half an hour it is %s", s.State)
		}
	})
}

// TestTargetDeniesItsRouting: and nothing else, from the third failure on.
func TestTargetDeniesItsRouting(t *testing.T) {
	onEachStore(t, strings.Replace(checkedDocument, "maxInFlight: 4", "maxInFlight: 100", 1), func(t *testing.T, c *clinic) {
		c.checker("one", allLevels...)
		ids := c.list(5)
		c.round("one", always(good))
		down := true
		pass := func(d time.Duration) {
			for range d / (10 * time.Second) {
				c.clock.advance(10 * time.Second)
				c.round("one", func(task check.Task) controlplanev1.HealthObservation_Result {
					if down && task.Proxy.ProxyId == ids[0] && task.Level == aim {
						return bad
					}
					return good
				})
			}
		}
		pass(2 * time.Minute)
		for id, s := range c.proxies() {
			want := []string{}
			if id == ids[0] {
				want = []string{"site"}
			}
			if s.State != ownership.Available || !slices.Equal(s.Proxy.DeniedRoutings, want) {
				t.Errorf("it is %s, denied to %v, want %v", s.State, s.Proxy.DeniedRoutings, want)
			}
		}
		down = false
		pass(3 * time.Minute)
		if s := c.proxy(ids[0]); len(s.Proxy.DeniedRoutings) != 0 {
			t.Errorf("it is still denied to %v", s.Proxy.DeniedRoutings)
		}
	})
}

// TestOutcomesHurryChecks: what a worker could not use is checked soon, and suspect if it
// never could; a worker that could use nothing says nothing of others.
func TestOutcomesHurryChecks(t *testing.T) {
	onEachStore(t, strings.Replace(checkedDocument, "maxInFlight: 4", "maxInFlight: 100", 1), func(t *testing.T, c *clinic) {
		c.checker("one", allLevels...)
		ids := c.list(6)
		c.round("one", always(good))
		x := c.join("w1")
		c.allocate()
		x.accept(x.until("with the proxies", func(s *controlplanev1.WorkerSnapshot) bool { return len(s.Proxies) == 6 }))
		x.report()
		c.clock.advance(12 * time.Second)
		x.report()
		outcome := func(id string, ok bool) *controlplanev1.Outcome {
			o := &controlplanev1.Outcome{ProxyId: id, Stage: controlplanev1.Outcome_STAGE_DIAL, Success: ok}
			if !ok {
				o.ErrorClass = controlplanev1.ErrorClass_ERROR_CLASS_REFUSED
			}
			return o
		}
		batch := func(sequence uint64, outcomes ...*controlplanev1.Outcome) {
			t.Helper()
			_, err := c.p.TakeOutcomes(c.ctx, &controlplanev1.OutcomeBatch{WorkerId: "w1", SessionId: x.session, Sequence: sequence, Outcomes: outcomes})
			c.must(err)
		}
		due := func() (n int) {
			for _, task := range c.claim(0, "one", 0) {
				if task.Level == basic {
					n++
				}
				c.tell("one", none, task)
			}
			return n
		}
		if n := due(); n != 0 {
			t.Fatalf("%d are due before", n)
		}
		batch(1, outcome(ids[0], false), outcome(ids[0], false), outcome(ids[0], false))
		if s := c.proxy(ids[0]); s.State != ownership.Available {
			t.Errorf("by a worker that could use nothing it is %s", s.State)
		}
		if n := due(); n != 1 {
			t.Errorf("%d are checked sooner, want 1", n)
		}
		batch(2, outcome(ids[1], false), outcome(ids[1], false), outcome(ids[1], false), outcome(ids[2], true), outcome(ids[3], false), outcome(ids[3], true))
		if s := c.proxy(ids[1]); s.State != ownership.Suspect {
			t.Errorf("one that could never be used is %s", s.State)
		}
		if s := c.proxy(ids[3]); s.State != ownership.Available {
			t.Errorf("one that could be used once is %s", s.State)
		}
		if n := due(); n != 2 {
			t.Errorf("%d are checked sooner, want 2", n)
		}
		// Another worker's proxies are not its to speak of, and nothing makes one unhealthy.
		for i := range uint64(10) {
			batch(3+i, outcome(ids[1], false), outcome(ids[1], false), outcome(ids[1], false), outcome(ids[2], true), outcome("other", false))
		}
		c.wantStates("after many", map[controlplanev1.ProxyStatus_State]int{ownership.Suspect: 1, ownership.Available: 5})
		due()
		c.clock.advance(time.Second)
		x.report()
		due()
		// What the client or the policy ended, and what is not enough, says nothing against one.
		ended := func(class controlplanev1.ErrorClass) *controlplanev1.Outcome {
			o := outcome(ids[4], false)
			o.ErrorClass = class
			return o
		}
		for i, class := range []controlplanev1.ErrorClass{controlplanev1.ErrorClass_ERROR_CLASS_CANCELED, controlplanev1.ErrorClass_ERROR_CLASS_POLICY} {
			batch(20+uint64(i), ended(class), ended(class), ended(class), outcome(ids[2], true))
			if n := due(); n != 0 || c.proxy(ids[4]).State != ownership.Available {
				t.Errorf("after %s %d are checked sooner, and it is %s", class, n, c.proxy(ids[4]).State)
			}
		}
		twice := []*controlplanev1.Outcome{outcome(ids[4], false), outcome(ids[4], false), outcome(ids[2], true)}
		batch(30, twice...)
		if n := due(); n != 1 || c.proxy(ids[4]).State != ownership.Available {
			t.Errorf("after two failures %d are checked sooner, and it is %s", n, c.proxy(ids[4]).State)
		}
		// The same batch again is no news, of one that is well again.
		never := []*controlplanev1.Outcome{outcome(ids[5], false), outcome(ids[5], false), outcome(ids[5], false), outcome(ids[2], true)}
		batch(31, never...)
		if s := c.proxy(ids[5]); s.State != ownership.Suspect {
			t.Errorf("one that could never be used is %s", s.State)
		}
		c.find(ownership.Available, ids[5])
		y := c.join("w2")
		_, err := c.p.TakeOutcomes(c.ctx, &controlplanev1.OutcomeBatch{WorkerId: "w2", SessionId: y.session, Sequence: 1, Outcomes: never})
		c.must(err)
		if s := c.proxy(ids[5]); s.State != ownership.Available {
			t.Errorf("by a worker that does not own it it is %s", s.State)
		}
		batch(31, never...)
		if s := c.proxy(ids[5]); s.State != ownership.Available {
			t.Errorf("after the same batch again it is %s", s.State)
		}
	})
}

// TestCredentialsAtTheClaim: a task has the credential of the moment at which it is
// claimed, a host without it leaves the task to others, and no record ever has it.
func TestCredentialsAtTheClaim(t *testing.T) {
	v := &vault{held: map[string]secret.Credential{}}
	document := strings.Replace(checkedDocument, "protocol: http\n", "protocol: http\n    secretRef: \"file:dc\"\n", 1)
	onEachStore(t, document, func(t *testing.T, c *clinic) {
		_, _, err := c.p.List(c.ctx, "dc", []pool.Listed{{Protocol: controlplanev1.Proxy_PROTOCOL_HTTP, Host: "192.0.2.1", Port: 1000, SecretRef: "file:dc"}}, time.Hour, nil)
		c.must(err)
		c.look()
		c.clock.advance(2 * time.Second)
		_, err = c.brokers[0].Register(c.ctx, check.Registration{Checker: "one", Instance: "one", Levels: allLevels, Probes: []string{"proxy"}, Window: 256})
		c.must(err)
		clear(v.held)
		if tasks := c.claim(0, "one", 0); len(tasks) != 0 {
			t.Errorf("%d tasks from a host that does not have the credential", len(tasks))
		}
		v.put(t, "file:dc", 0, "planted-in-a-check")
		tasks := c.claim(0, "one", 0)
		if len(tasks) == 0 {
			t.Fatal("no tasks from a host that has it")
		}
		for _, task := range tasks {
			if task.Credential.GetPassword() != "planted-in-a-check" || task.Credential.GetUsername() != "ada" {
				t.Errorf("the task of %s has another credential", task.Level)
			}
			c.tell("one", good, task)
		}
		c.must(c.store.View(context.Background(), func(tx store.ReadTx) error {
			for _, scope := range []string{"dc:basic", "dc:egress", "dc:target"} {
				entries, err := tx.Scan("check/pool/"+scope, 0, 0, 0)
				if err != nil {
					return err
				}
				for _, e := range entries {
					rec, err := tx.Get("check/pool/" + scope + "/" + e.Member)
					if err != nil {
						return err
					}
					if !rec.Exists() || strings.Contains(string(rec.Value), "planted") {
						t.Errorf("the record of %s: there %v", e.Member, rec.Exists())
					}
				}
			}
			return nil
		}))
	}, func(o *pool.Options) { o.Secrets = v })
}

// TestProbeThatNobodyHas: its tasks are given to nobody, and an alarm names it.
func TestProbeThatNobodyHas(t *testing.T) {
	onEachStore(t, strings.Replace(checkedDocument, "maxInFlight: 4", "probe: mine", 1), func(t *testing.T, c *clinic) {
		c.checker("one", allLevels...)
		c.list(2)
		inside := func() int {
			tasks, _, err := c.brokers[1].Claim(c.ctx, check.Claim{Checker: check.InsidePrefix + "h1", Most: 10, Scope: 10, Probes: []string{"http", "proxy"}})
			c.must(err)
			return len(tasks)
		}
		if n := len(c.claim(0, "one", 0)) + inside(); n != 0 {
			t.Errorf("%d tasks were given out", n)
		}
		c.clock.advance(31 * time.Second)
		c.claim(0, "one", 0)
		inside()
		c.look()
		alarms := strings.Join(c.brokers[0].Alarms(), "\n")
		for _, level := range []string{"BASIC", "EGRESS", "TARGET"} {
			if !strings.Contains(alarms, `probe "mine" at `+level) {
				t.Errorf("no alarm names the probe at %s: %q", level, alarms)
			}
		}
		_, err := c.brokers[0].Register(c.ctx, check.Registration{Checker: "one", Instance: "one", Levels: allLevels, Probes: []string{"mine", "proxy"}, Window: 10})
		c.must(err)
		if n := len(c.claim(0, "one", 0)); n == 0 {
			t.Error("one that has it now gets no task")
		}
		c.look()
		if alarms := c.brokers[0].Alarms(); len(alarms) != 0 {
			t.Errorf("alarms are %q", alarms)
		}
	})
}
