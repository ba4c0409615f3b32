package check_test

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/structpb"

	"github.com/dodona-project/dodona/host/check"
	"github.com/dodona-project/dodona/host/store"
	"github.com/dodona-project/dodona/host/store/embedded"
	controlplanev1 "github.com/dodona-project/dodona/proto/controlplane/v1"
	donav1 "github.com/dodona-project/dodona/proto/dona/v1"
	statev1 "github.com/dodona-project/dodona/proto/state/v1"
)

// fleet is a plane whose scopes and targets the test sets.
type fleet struct {
	mu     sync.Mutex
	scopes map[string]*members
	asked  func() // after each Scope

	damaged string // this one's policy does not parse
}

type members struct {
	check.Scope
	targets map[string]check.Target
}

func newFleet() *fleet { return &fleet{scopes: map[string]*members{}} }

// put makes targets of a scope, or registers them anew.
func (f *fleet) put(scope string, registered int64, ids ...string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	s := f.scopes[scope]
	if s == nil {
		s = &members{Scope: check.Scope{Probe: "http"}, targets: map[string]check.Target{}}
		f.scopes[scope] = s
	}
	s.Version++
	for _, id := range ids {
		s.targets[id] = check.Target{ID: id, Address: scope + "-" + id + ":80", RegisteredMs: registered}
	}
}

func (f *fleet) remove(scope, id string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.scopes[scope].Version++
	delete(f.scopes[scope].targets, id)
}

func (f *fleet) probe(scope, name string, config map[string]any) {
	f.mu.Lock()
	defer f.mu.Unlock()
	s := f.scopes[scope]
	s.Version++
	s.Probe = name
	s.Config, _ = structpb.NewStruct(config)
}

func (f *fleet) out(scope string) (ids []string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for id, t := range f.scopes[scope].targets {
		if t.Out {
			ids = append(ids, id)
		}
	}
	slices.Sort(ids)
	return ids
}

func (f *fleet) Scopes(store.ReadTx) (names []string, _ error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for name, s := range f.scopes {
		if s.Probe != "" {
			names = append(names, name)
		}
	}
	return names, nil
}

func (f *fleet) Scope(_ store.ReadTx, scope string) (check.Scope, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if scope == f.damaged {
		return check.Scope{}, fmt.Errorf("%s: %w", scope, store.ErrDamaged)
	}
	var how check.Scope
	if s := f.scopes[scope]; s != nil {
		how = s.Scope
	}
	if f.asked != nil {
		defer func(then func()) { f.mu.Unlock(); then(); f.mu.Lock() }(f.asked)
	}
	return how, nil
}

func (f *fleet) Targets(_ store.ReadTx, scope string) (all []check.Target, _ error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, t := range f.scopes[scope].targets {
		all = append(all, t)
	}
	slices.SortFunc(all, func(a, b check.Target) int { return cmp.Compare(a.ID, b.ID) })
	return all, nil
}

func (f *fleet) SetOut(_ store.Tx, scope, id string, registered int64, out bool) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if t, ok := f.scopes[scope].targets[id]; ok && t.RegisteredMs == registered && t.Out != out {
		t.Out = out
		f.scopes[scope].targets[id] = t
		f.scopes[scope].Version++
	}
	return nil
}

// desk is a broker over a store in memory whose clock the test moves.
type desk struct {
	t      *testing.T
	store  *embedded.Store
	fleet  *fleet
	broker *check.Broker

	mu  sync.Mutex
	now time.Time
}

func newDesk(t *testing.T) *desk {
	d := &desk{t: t, fleet: newFleet(), now: time.UnixMilli(now)}
	d.store = embedded.OpenMemory(embedded.Options{Clock: func() time.Time { d.mu.Lock(); defer d.mu.Unlock(); return d.now }})
	t.Cleanup(func() { _ = d.store.Close() })
	d.broker = d.open()
	return d
}

// open returns another host's broker over the same store.
func (d *desk) open() *check.Broker {
	return check.New(check.Options{Store: d.store, Planes: map[string]check.Plane{"service": d.fleet}, Rules: rules, Random: func() float64 { return 0.5 }})
}

func (d *desk) advance(by time.Duration) { d.mu.Lock(); defer d.mu.Unlock(); d.now = d.now.Add(by) }

func (d *desk) look() {
	d.t.Helper()
	if err := d.broker.Look(context.Background(), false); err != nil {
		d.t.Fatal(err)
	}
	d.scheduled()
}

// scheduled demands that each task is where it is found when it is due, and each
// scope where its first task is.
func (d *desk) scheduled() {
	d.t.Helper()
	d.scheduledIn(d.store)
}

func (d *desk) scheduledIn(st store.Store) {
	d.t.Helper()
	if err := st.View(context.Background(), func(tx store.ReadTx) error {
		scopes, err := tx.Scan("check-scope", 0, store.MaxScore, 0)
		for _, s := range scopes {
			ids, err := tx.Scan("check/"+s.Member, 0, store.MaxScore, 0)
			if err != nil {
				return err
			}
			if err := store.Fetch(tx, ids, func(id string) string { return "check/" + s.Member + "/" + id }); err != nil {
				return err
			}
			due, err := tx.Scan("check-due/"+s.Member, 0, store.MaxScore, 0)
			if err != nil {
				return err
			}
			at := map[string]uint64{}
			for _, e := range due {
				at[e.Member] = e.Score
			}
			first := uint64(store.MaxScore)
			for _, id := range ids {
				var c statev1.Check
				version, err := store.Load(tx, "check/"+s.Member+"/"+id.Member, &c)
				if err != nil {
					return err
				}
				if version == 0 {
					d.t.Errorf("%s/%s has no record", s.Member, id.Member)
				}
				want := c.DueMs
				if c.Token != "" {
					want = c.LeaseMs
				}
				if at[id.Member] != uint64(want) {
					d.t.Errorf("%s/%s is looked at at %d, want %d", s.Member, id.Member, at[id.Member], want)
				}
				first = min(first, uint64(want))
			}
			if len(due) != len(ids) || s.Score != first {
				d.t.Errorf("%s has %d tasks and %d places, the first at %d; it is looked at at %d", s.Member, len(ids), len(due), first, s.Score)
			}
		}
		return err
	}); err != nil {
		d.t.Fatal(err)
	}
}

func (d *desk) claim(c check.Claim) []check.Task {
	d.t.Helper()
	c.Most, c.Scope = cmp.Or(c.Most, 1000), cmp.Or(c.Scope, 1000)
	tasks, _, err := d.broker.Claim(context.Background(), c)
	if err != nil {
		d.t.Fatal(err)
	}
	return tasks
}

func report(task check.Task, r check.Report) check.Report {
	r.Plane, r.Scope, r.ID, r.Token = task.Plane, task.Scope, task.ID, task.Token
	r.Subject.Level = controlplanev1.CheckLevel_CHECK_LEVEL_BASIC
	return r
}

func (d *desk) report(checker string, r check.Report) check.Receipt {
	d.t.Helper()
	receipts, err := d.broker.Report(context.Background(), checker, []check.Report{r})
	if err != nil || len(receipts) != 1 {
		d.t.Fatalf("%v, %v", receipts, err)
	}
	return receipts[0]
}

func (d *desk) status(scope string) (s *donav1.CheckStatus) {
	d.t.Helper()
	if err := d.store.View(context.Background(), func(tx store.ReadTx) (err error) {
		s, err = d.broker.Status(tx, "service", scope)
		return err
	}); err != nil {
		d.t.Fatal(err)
	}
	return s
}

// round lets a checker do all that is due now; down are the ids that fail.
func (d *desk) round(checker string, down ...string) (checked int) {
	d.t.Helper()
	for _, task := range d.claim(check.Claim{Checker: checker}) {
		r := check.Report{Result: good}
		if slices.Contains(down, task.ID) || slices.Contains(down, "*") {
			r = check.Report{Result: bad, ErrorClass: 2, Detail: "connection refused"}
		}
		if got := d.report(checker, report(task, r)); !got.Accepted {
			d.t.Fatalf("%v: %v", task, got)
		}
		checked++
	}
	d.look()
	return checked
}

// rounds goes on for a while, ten seconds a time.
func (d *desk) rounds(duration time.Duration, checkers []string, down ...string) {
	d.t.Helper()
	for range int(duration / (10 * time.Second)) {
		for _, c := range checkers {
			d.round(c, down...)
		}
		d.advance(10 * time.Second)
	}
}

func TestLeases(t *testing.T) {
	d := newDesk(t)
	d.fleet.put("web", 1, "a")
	d.look()
	if tasks := d.claim(check.Claim{Checker: "c1"}); len(tasks) != 0 {
		t.Fatalf("due at once, without the drawn moment: %v", tasks)
	}
	d.advance(time.Second)
	first := d.claim(check.Claim{Checker: "c1"})
	if len(first) != 1 || first[0].Address != "web-a:80" || first[0].Probe != "http" || len(first[0].Token) != 32 || first[0].Generation != 1 {
		t.Fatalf("%+v", first)
	}
	held := first[0]
	for _, c := range []string{"c1", "c2"} {
		if tasks := d.claim(check.Claim{Checker: c}); len(tasks) != 0 {
			t.Fatalf("%s has what c1 holds: %v", c, tasks)
		}
	}
	refused := func(name, checker string, r check.Report, reason string) {
		t.Helper()
		if got := d.report(checker, r); got.Accepted || got.Reason != reason {
			t.Errorf("%s: %+v, want %s", name, got, reason)
		}
		if e := d.status("web").Endpoints[0]; e.State != 0 || e.Failures != 0 || e.Reason != "" {
			t.Errorf("%s: changed %v", name, e)
		}
	}
	failure := report(held, check.Report{Result: bad, ErrorClass: 2})
	refused("another's task", "c2", failure, "foreign")
	guessed := failure
	guessed.Token = "0123456789abcdef0123456789abcdef"
	refused("a guessed token", "c1", guessed, "overtaken")
	guessed.Token = ""
	refused("no token", "c1", guessed, "overtaken")
	elsewhere := failure
	elsewhere.ID = "b"
	refused("another target", "c1", elsewhere, "gone")
	for _, result := range []controlplanev1.HealthObservation_Result{0, 4, -1} {
		odd := failure
		odd.Result = result
		refused("no result", "c1", odd, "bad result")
	}

	// The checker dies. Its task is given away again within the lease.
	d.advance(rules.Timeout + 6*time.Second)
	second := d.claim(check.Claim{Checker: "c2"})
	if len(second) != 1 || second[0].Token == held.Token || second[0].Generation != 2 {
		t.Fatalf("%+v", second)
	}
	refused("a lease that ran out", "c1", failure, "overtaken")
	if got := d.report("c2", report(second[0], check.Report{Result: bad, ErrorClass: 2, Detail: "connection refused"})); !got.Accepted {
		t.Fatal(got)
	}
	for range 2 { // the answer was lost
		if got := d.report("c2", report(second[0], check.Report{Result: bad, ErrorClass: 2})); !got.Accepted {
			t.Fatal(got)
		}
	}
	if got := d.report("c1", report(second[0], check.Report{Result: bad})); got.Accepted {
		t.Error("another's report, said again")
	}
	e := d.status("web").Endpoints[0]
	if e.Failures != 1 || e.State != donav1.EndpointHealth_STATE_SUSPECT || e.Reason != "failure (refused): connection refused" {
		t.Errorf("counted once: %v", e)
	}
}

// TestDamage: a scope that cannot be read keeps no other from being checked, and a
// record that cannot is made anew.
func TestDamage(t *testing.T) {
	d := newDesk(t)
	d.fleet.put("a", 1, "x")
	d.fleet.put("web", 1, "y", "z")
	d.look()
	d.fleet.damaged = "a"
	if err := d.store.Update(context.Background(), store.Hard, func(tx store.Tx) error {
		return tx.Put("check/service/web/y", []byte{0xff})
	}); err != nil {
		t.Fatal(err)
	}
	d.fleet.put("web", 1, "new")
	if err := d.broker.Look(context.Background(), true); !errors.Is(err, store.ErrDamaged) {
		t.Errorf("a look says %v", err)
	}
	d.advance(2 * rules.Interval)
	var ids []string
	for _, task := range d.claim(check.Claim{Checker: "c1"}) {
		ids = append(ids, task.Address)
	}
	slices.Sort(ids)
	if want := []string{"web-new:80", "web-y:80", "web-z:80"}; !slices.Equal(ids, want) {
		t.Errorf("checked are %v, want %v", ids, want)
	}
}

func TestSecondOpinion(t *testing.T) {
	d := newDesk(t)
	d.fleet.put("web", 1, "a", "b", "c")
	d.look()
	d.advance(time.Second)
	d.claim(check.Claim{Checker: "c2", Most: 1, Held: map[string]int{"service/web": 1000}}) // it is there
	d.round("c1", "a")
	d.advance(10 * time.Second)
	if n := d.round("c1", "a"); n != 0 {
		t.Errorf("c1 checks its own word again (%d)", n)
	}
	if n := d.round("c2", "a"); n != 1 {
		t.Errorf("c2 is not asked (%d)", n)
	}
	d.advance(10 * time.Second)
	d.round("c1", "a")
	if got := d.fleet.out("web"); !slices.Equal(got, []string{"a"}) {
		t.Errorf("out is %v after three failures that two saw", got)
	}

	// One lies: the other one's word stands against it, for ever.
	d = newDesk(t)
	d.fleet.put("web", 1, "a", "b", "c")
	d.look()
	for range 60 {
		d.advance(10 * time.Second)
		d.round("liar", "*")
		d.round("honest")
	}
	if got := d.fleet.out("web"); len(got) != 0 {
		t.Errorf("%v left on one checker's word", got)
	}
	// The honest one dies: as long as it counts as there, and then for a while under the
	// brake, nobody leaves; and never all do.
	d.rounds(10*time.Minute, []string{"liar"}, "*")
	if got := d.fleet.out("web"); len(got) != 0 {
		t.Errorf("%v left although all fail at once", got)
	}
	if s := d.status("web"); s.LiveCheckers != 1 || s.Alarm == "" || len(d.broker.Alarms()) != 1 {
		t.Errorf("status %v, alarms %v", s, d.broker.Alarms())
	}
	// All is well again.
	d.rounds(10*time.Minute, []string{"liar"})
	if s := d.status("web"); s.Alarm != "" || len(d.broker.Alarms()) != 0 || s.Endpoints[0].State != donav1.EndpointHealth_STATE_AVAILABLE {
		t.Errorf("status %v, alarms %v", s, d.broker.Alarms())
	}
}

func TestOutAndBack(t *testing.T) {
	d := newDesk(t)
	d.fleet.put("web", 1, "a", "b", "c", "d")
	d.look()
	d.advance(time.Second)
	d.rounds(time.Minute, []string{"c1"})
	d.rounds(2*time.Minute, []string{"c1"}, "a")
	if got := d.fleet.out("web"); !slices.Equal(got, []string{"a"}) {
		t.Fatalf("out is %v", got)
	}
	if e := d.status("web").Endpoints[0]; !e.Out || e.State != donav1.EndpointHealth_STATE_UNHEALTHY || e.FailingUnixMs == 0 {
		t.Errorf("status %v", e)
	}
	d.broker = d.open() // another host, or this one after a restart
	d.look()
	if got := d.fleet.out("web"); !slices.Equal(got, []string{"a"}) {
		t.Fatalf("out is %v on another host", got)
	}
	d.rounds(6*time.Minute, []string{"c1"})
	if got := d.fleet.out("web"); len(got) != 0 {
		t.Fatalf("out is %v although all are well", got)
	}

	// Inconclusive checks change nothing, for as long as they go on.
	d.rounds(2*time.Minute, []string{"c1"}, "a")
	for range 60 {
		d.advance(10 * time.Second)
		for _, task := range d.claim(check.Claim{Checker: "c1"}) {
			d.report("c1", report(task, check.Report{Result: unclear, Detail: "the plugin is away"}))
		}
		d.look()
		if got := d.fleet.out("web"); !slices.Equal(got, []string{"a"}) {
			t.Fatalf("out is %v", got)
		}
	}
	if e := d.status("web").Endpoints[1]; e.State != donav1.EndpointHealth_STATE_AVAILABLE || e.Reason != "inconclusive: the plugin is away" {
		t.Errorf("status %v", e)
	}

	// Another probe: what is out stays out until that one finds it well.
	d.fleet.probe("web", "tcp", map[string]any{"send": "x"})
	d.look()
	if got := d.fleet.out("web"); !slices.Equal(got, []string{"a"}) {
		t.Fatalf("out is %v with another probe", got)
	}
	d.advance(time.Second)
	if tasks := d.claim(check.Claim{Checker: "c1"}); len(tasks) != 4 || tasks[0].Probe != "tcp" || tasks[0].Config.Fields["send"].GetStringValue() != "x" {
		t.Fatalf("not checked at once by the other probe: %v", tasks)
	}
	// Registered anew: not what was judged.
	d.fleet.put("web", 2, "a")
	d.look()
	if got := d.fleet.out("web"); len(got) != 0 {
		t.Fatalf("out is %v", got)
	}
	if e := d.status("web").Endpoints[0]; e.State != 0 || e.Reason != "" {
		t.Errorf("status %v", e)
	}
	d.rounds(2*time.Minute, []string{"c1"}, "a")
	if got := d.fleet.out("web"); !slices.Equal(got, []string{"a"}) {
		t.Fatalf("out is %v", got)
	}
	d.fleet.remove("web", "b")
	d.look()
	if n := len(d.status("web").Endpoints); n != 3 {
		t.Errorf("%d targets", n)
	}
	// No probe: all come back, and nothing is left.
	d.fleet.probe("web", "", nil)
	d.look()
	if got := d.fleet.out("web"); len(got) != 0 || d.status("web") != nil {
		t.Fatalf("out is %v, status %v", got, d.status("web"))
	}
	d.advance(time.Hour)
	if tasks := d.claim(check.Claim{Checker: "c1"}); len(tasks) != 0 {
		t.Errorf("tasks of nobody: %v", tasks)
	}
	d.look()
	for _, index := range []string{"check-scope", "check-trouble", "check/service/web", "check-due/service/web"} {
		if err := d.store.View(context.Background(), func(tx store.ReadTx) error {
			left, err := tx.Scan(index, 0, store.MaxScore, 0)
			if len(left) != 0 {
				t.Errorf("index %s still has %v", index, left)
			}
			return err
		}); err != nil {
			t.Fatal(err)
		}
	}
}

// All of a service down at once: everybody stays and an alarm shows. What left
// before stays out.
func TestMassGuard(t *testing.T) {
	d := newDesk(t)
	d.fleet.put("web", 1, "a", "b", "c", "d", "e")
	d.fleet.put("other", 1, "a", "b")
	d.look()
	d.advance(time.Second)
	d.rounds(time.Minute, []string{"c1"})
	d.rounds(3*time.Minute, []string{"c1"}, "a")
	if got := d.fleet.out("web"); !slices.Equal(got, []string{"a"}) {
		t.Fatalf("out is %v", got)
	}
	d.rounds(time.Hour, []string{"c1"}, "a", "b", "c", "d", "e")
	if got := d.fleet.out("web"); !slices.Equal(got, []string{"a"}) {
		t.Errorf("out is %v when all failed at once", got)
	}
	if s := d.status("web"); s.Alarm == "" {
		t.Errorf("no alarm: %v", s)
	}
	// One that failed by itself long after the others leaves up to half.
	d.rounds(20*time.Minute, []string{"c1"})
	for i, down := range [][]string{{"a"}, {"a", "b"}, {"a", "b", "c"}, {"a", "b", "c", "d"}} {
		d.rounds(5*time.Minute, []string{"c1"}, down...)
		want := min(i+1, 2)
		if got := d.fleet.out("web"); len(got) != want {
			t.Errorf("%v down: out is %v, want %d", down, got, want)
		}
	}
	if got := d.status("other").Alarm; got == "" {
		t.Error("both of other fail, and there is no alarm")
	}
}

// A checker that fails everything of three services is doubted: its word alone takes
// three intervals more.
func TestDoubtedChecker(t *testing.T) {
	d := newDesk(t)
	for i := range 3 {
		d.fleet.put(fmt.Sprintf("s%d", i), 1, "a", "b", "c", "d", "e")
	}
	d.fleet.put("web", 1, "x", "y", "z")
	d.look()
	d.advance(time.Second)
	d.rounds(time.Minute, []string{"c1"})
	d.rounds(30*time.Second, []string{"c1"}, "a", "b", "c", "d", "e")
	d.rounds(40*time.Second, []string{"c1"}, "a", "b", "c", "d", "e", "x")
	if got := d.fleet.out("web"); len(got) != 0 {
		t.Errorf("%v left on a doubted word", got)
	}
	d.rounds(5*time.Minute, []string{"c1"}, "a", "b", "c", "d", "e", "x")
	if got := d.fleet.out("web"); !slices.Equal(got, []string{"x"}) {
		t.Errorf("out is %v after three intervals more", got)
	}
}

func TestWhoGetsWhat(t *testing.T) {
	d := newDesk(t)
	var many []string
	for i := range 3000 {
		many = append(many, fmt.Sprintf("e%04d", i))
	}
	d.fleet.put("big", 1, many...)
	d.fleet.put("small", 1, "a", "b")
	d.fleet.probe("small", "tcp", nil)
	d.look()
	d.advance(500 * time.Millisecond)
	count := func(tasks []check.Task) map[string]int {
		n := map[string]int{}
		for _, t := range tasks {
			n[t.Scope]++
		}
		return n
	}
	// Of a service with many tasks a checker takes its share, and reaches the others.
	if got := count(d.claim(check.Claim{Checker: "c1", Most: 100, Scope: 60, Held: map[string]int{"service/big": 50}})); got["big"] != 10 || got["small"] != 2 {
		t.Errorf("claimed %v", got)
	}
	if got := count(d.claim(check.Claim{Checker: "c2", Probes: []string{"tcp", "grpc"}})); len(got) != 0 {
		t.Errorf("a checker without the probe got %v", got)
	}
	d.advance(rules.Timeout + 6*time.Second)
	if got := count(d.claim(check.Claim{Checker: "c2", Probes: []string{"tcp", "grpc"}})); got["small"] != 2 || len(got) != 1 {
		t.Errorf("a checker with one probe got %v", got)
	}
	if s := d.status("big"); s.LiveCheckers != 1 {
		t.Errorf("%d checkers can run http", s.LiveCheckers)
	}
	if s := d.status("small"); s.LiveCheckers != 2 {
		t.Errorf("%d checkers can run tcp", s.LiveCheckers)
	}
}

// reading is a store that counts what transactions read.
type reading struct {
	store.Store
	entries, records int
}

func (s *reading) Update(ctx context.Context, d store.Durability, fn func(store.Tx) error) error {
	return s.Store.Update(ctx, d, func(tx store.Tx) error { return fn(&readingTx{tx, s}) })
}

type readingTx struct {
	store.Tx
	of *reading
}

func (t *readingTx) Scan(index string, from, to uint64, limit int) ([]store.Entry, error) {
	entries, err := t.Tx.Scan(index, from, to, limit)
	t.of.entries += len(entries)
	return entries, err
}

func (t *readingTx) GetMany(keys ...string) ([]store.Record, error) {
	t.of.records += len(keys)
	return t.Tx.GetMany(keys...)
}

// A claim reads what it takes, however much is due: also past a service of which the
// checker holds its share, and past tasks that wait for somebody else's opinion.
func TestClaimIsBounded(t *testing.T) {
	d := newDesk(t)
	var many []string
	for i := range 5000 {
		many = append(many, fmt.Sprintf("e%04d", i))
	}
	d.fleet.put("big", 1, many...)
	d.fleet.put("small", 1, "a", "b")
	d.look()
	d.advance(time.Second)
	d.claim(check.Claim{Checker: "c2", Held: map[string]int{"service/big": 1000, "service/small": 1000}}) // it is there
	counted := &reading{Store: d.store}
	b := check.New(check.Options{Store: counted, Planes: map[string]check.Plane{"service": d.fleet}, Rules: rules})
	claim := func(c check.Claim) (got map[string]int) {
		t.Helper()
		counted.entries, counted.records = 0, 0
		tasks, _, err := b.Claim(context.Background(), c)
		if err != nil {
			t.Fatal(err)
		}
		got = map[string]int{}
		for _, task := range tasks {
			got[task.Scope]++
		}
		t.Logf("%v by %d entries and %d records", got, counted.entries, counted.records)
		return got
	}
	if got := claim(check.Claim{Checker: "c1", Most: 256, Scope: 64, Held: map[string]int{"service/big": 64}}); got["small"] != 2 || len(got) != 1 || counted.entries+counted.records > 50 {
		t.Errorf("claimed %v past a full share, by %d entries and %d records", got, counted.entries, counted.records)
	}
	if got := claim(check.Claim{Checker: "c1", Most: 256, Scope: 64}); got["big"] != 64 || counted.entries+counted.records > 500 {
		t.Errorf("claimed %v by %d entries and %d records", got, counted.entries, counted.records)
	}
	d.fleet.remove("small", "a")
	d.fleet.put("sick", 1, many[:200]...)
	d.look()
	d.advance(time.Second)
	only := map[string]int{"service/big": 1000, "service/small": 1000}
	for _, task := range d.claim(check.Claim{Checker: "c1", Held: only}) {
		d.report("c1", report(task, check.Report{Result: bad, ErrorClass: 2}))
	}
	d.advance(8 * time.Second)
	d.fleet.put("sick", 2, "new1", "new2") // due after those that failed
	d.look()
	d.advance(5 * time.Second)
	if got := claim(check.Claim{Checker: "c1", Most: 256, Scope: 64, Held: only}); got["sick"] != 2 || counted.entries+counted.records > 3000 {
		t.Errorf("claimed %v past 200 that wait for c2, by %d entries and %d records", got, counted.entries, counted.records)
	}
	if got := claim(check.Claim{Checker: "c2", Most: 256, Scope: 64, Held: only}); got["sick"] != 64 {
		t.Errorf("c2 claimed %v", got)
	}
	d.scheduled()
}

// A verdict rests on what the probe said that is asked for now: failures of another
// one take nobody out, although its policy came between two looks' steps.
func TestPolicyChangesWhileItIsJudged(t *testing.T) {
	d := newDesk(t)
	d.fleet.put("web", 1, "a", "b", "c")
	d.look()
	for range 3 {
		d.advance(10 * time.Second)
		for _, task := range d.claim(check.Claim{Checker: "c1"}) {
			r := check.Report{Result: good}
			if task.ID == "a" {
				r = check.Report{Result: bad, ErrorClass: 2}
			}
			d.report("c1", report(task, r))
		}
	}
	if e := d.status("web").Endpoints[0]; e.Failures != 3 || e.Out {
		t.Fatalf("before the change: %v", e)
	}
	d.fleet.asked = func() {
		d.fleet.asked = nil
		d.fleet.probe("web", "tcp", nil)
	}
	d.look() // it is asked for tasks, then judged
	if got := d.fleet.out("web"); len(got) != 0 {
		t.Errorf("%v left by a probe that is not asked for any more", got)
	}
	d.look()
	if e := d.status("web").Endpoints[0]; e.Failures != 0 || e.State != 0 {
		t.Errorf("not begun anew: %v", e)
	}
	d.rounds(2*time.Minute, []string{"c1"}, "a")
	if got := d.fleet.out("web"); !slices.Equal(got, []string{"a"}) {
		t.Errorf("out is %v by the new probe", got)
	}
}

// What a store that fails does to a report: nothing is counted, and the task comes
// back.
func TestReportFails(t *testing.T) {
	d := newDesk(t)
	d.fleet.put("web", 1, "a")
	d.look()
	d.advance(time.Second)
	task := d.claim(check.Claim{Checker: "c1"})[0]
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if _, err := d.broker.Report(ctx, "c1", []check.Report{report(task, check.Report{Result: good})}); !errors.Is(err, context.Canceled) {
		t.Fatal(err)
	}
	d.advance(time.Minute)
	if tasks := d.claim(check.Claim{Checker: "c1"}); len(tasks) != 1 {
		t.Errorf("the task is lost: %v", tasks)
	}
}

// A record whose place in the schedule was lost is found by the sweep.
func TestSweep(t *testing.T) {
	d := newDesk(t)
	d.fleet.put("web", 1, "a")
	d.look()
	if err := d.store.Update(context.Background(), store.Soft, func(tx store.Tx) error {
		return tx.IndexDelete("check-due/service/web", "a")
	}); err != nil {
		t.Fatal(err)
	}
	d.advance(time.Hour)
	if err := d.broker.Look(context.Background(), false); err != nil {
		t.Fatal(err)
	}
	if tasks := d.claim(check.Claim{Checker: "c1"}); len(tasks) != 0 {
		t.Fatalf("%v", tasks)
	}
	if err := d.broker.Look(context.Background(), true); err != nil {
		t.Fatal(err)
	}
	if tasks := d.claim(check.Claim{Checker: "c1"}); len(tasks) != 1 {
		t.Errorf("still lost: %v", tasks)
	}
}

// A checker that is not there any more is forgotten after a while.
func TestCheckersGo(t *testing.T) {
	d := newDesk(t)
	d.fleet.put("web", 1, "a")
	d.look()
	d.claim(check.Claim{Checker: "c1"})
	d.advance(time.Minute)
	d.claim(check.Claim{Checker: "c2"})
	checkers := func() (ids []string) {
		if err := d.store.View(context.Background(), func(tx store.ReadTx) error {
			entries, err := tx.Scan("checker", 0, store.MaxScore, 0)
			for _, e := range entries {
				ids = append(ids, e.Member)
			}
			return err
		}); err != nil {
			t.Fatal(err)
		}
		return ids
	}
	if n := d.status("web").LiveCheckers; n != 1 || len(checkers()) != 2 {
		t.Errorf("%d live checkers of %v", n, checkers())
	}
	for range 20 {
		d.advance(time.Minute)
		d.claim(check.Claim{Checker: "c2"})
		if err := d.broker.Look(context.Background(), true); err != nil {
			t.Fatal(err)
		}
	}
	if got := checkers(); !slices.Equal(got, []string{"c2"}) {
		t.Errorf("checkers are %v", got)
	}
}

// What a check saw says nothing about an endpoint that went, came back as another, or
// is checked by another probe now.
func TestEndpointGoesWhileItIsChecked(t *testing.T) {
	for _, tc := range []struct {
		name, reason string
		meanwhile    func(f *fleet)
	}{
		{"it goes", "gone", func(f *fleet) { f.remove("web", "a") }},
		{"it registers anew", "overtaken", func(f *fleet) { f.put("web", 2, "a") }},
		{"another probe", "overtaken", func(f *fleet) { f.probe("web", "tcp", nil) }},
		{"another configuration", "overtaken", func(f *fleet) { f.probe("web", "http", map[string]any{"path": "/x"}) }},
		{"no probe", "gone", func(f *fleet) { f.probe("web", "", nil) }},
	} {
		d := newDesk(t)
		d.fleet.put("web", 1, "a", "b", "c")
		d.look()
		d.advance(time.Second)
		d.rounds(time.Minute, []string{"c1"})
		d.register("out", 10, "http", "tcp")
		d.advance(30 * time.Second)
		var held check.Task
		for _, task := range d.outside("out") {
			if task.ID == "a" {
				held = task
			}
		}
		tc.meanwhile(d.fleet)
		d.look()
		receipts, err := d.broker.ReportOutside(context.Background(), "out", []check.Report{report(held, check.Report{Result: bad, ErrorClass: 2})})
		if err != nil || receipts[0].Accepted || receipts[0].Reason != tc.reason {
			t.Errorf("%s: %v, %v, want %s", tc.name, receipts, err, tc.reason)
		}
		for _, e := range d.status("web").GetEndpoints() {
			if e.Failures != 0 || e.Out {
				t.Errorf("%s: %v", tc.name, e)
			}
		}
		// It fills nobody's window any more.
		if err := d.store.View(context.Background(), func(tx store.ReadTx) error {
			left, err := tx.Scan("check-held/out", 0, store.MaxScore, 0)
			if slices.ContainsFunc(left, func(e store.Entry) bool { return e.Member == held.Name() }) {
				t.Errorf("%s: it is still held", tc.name)
			}
			return err
		}); err != nil {
			t.Fatal(err)
		}
	}
}

// Health and schedule outlive the host.
func TestRestart(t *testing.T) {
	dir := t.TempDir() + "/data"
	fleet := newFleet()
	fleet.put("web", 1, "a", "b", "c", "d", "e")
	d := &desk{t: t, fleet: fleet, now: time.UnixMilli(now)}
	open := func() {
		st, err := embedded.Open(dir, embedded.Options{Clock: func() time.Time { d.mu.Lock(); defer d.mu.Unlock(); return d.now }})
		if err != nil {
			t.Fatal(err)
		}
		d.store = st
		d.broker = d.open()
	}
	open()
	d.look()
	for range 6 {
		d.advance(10 * time.Second)
		d.round("c1", "a")
	}
	if got := fleet.out("web"); !slices.Equal(got, []string{"a"}) {
		t.Fatalf("out is %v", got)
	}
	failures := func() uint32 { return d.status("web").Endpoints[1].Failures }
	for failures() < 2 { // b is a suspect
		d.advance(10 * time.Second)
		d.round("c1", "a", "b")
	}
	before := d.status("web")
	if err := d.store.Close(); err != nil {
		t.Fatal(err)
	}
	open()
	defer func() { _ = d.store.Close() }()
	d.look()
	after := d.status("web")
	if e, f := before.Endpoints[0], after.Endpoints[0]; e.Failures != f.Failures || e.State != f.State || !f.Out || e.Reason != f.Reason {
		t.Errorf("before %v, after %v", e, f)
	}
	if failures() != 2 || !slices.Equal(fleet.out("web"), []string{"a"}) {
		t.Errorf("b failed twice, and the restart made %v of it", after.Endpoints[1])
	}
	for failures() == 2 {
		d.advance(time.Second)
		d.round("c1", "a", "b")
	}
	if got := fleet.out("web"); !slices.Equal(got, []string{"a", "b"}) {
		t.Errorf("out is %v after the third failure", got)
	}
}
