package check_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/dodona-project/dodona/host/check"
	"github.com/dodona-project/dodona/host/limits"
	"github.com/dodona-project/dodona/host/refusal"
	"github.com/dodona-project/dodona/host/store"
	controlplanev1 "github.com/dodona-project/dodona/proto/controlplane/v1"
)

const basic = controlplanev1.CheckLevel_CHECK_LEVEL_BASIC

// register registers a checker outside the hosts; its instance is called as it is.
func (d *desk) register(id string, window uint32, probes ...string) {
	d.t.Helper()
	r := check.Registration{Checker: id, Instance: id, Levels: []controlplanev1.CheckLevel{basic}, Probes: probes, Window: window}
	if got, err := d.broker.Register(context.Background(), r); err != nil || got != window {
		d.t.Fatalf("a window of %d, %v", got, err)
	}
}

func (d *desk) outside(id string) []check.Task {
	d.t.Helper()
	tasks, _, err := d.broker.Claim(context.Background(), check.Claim{Checker: id, Instance: id})
	if err != nil {
		d.t.Fatal(err)
	}
	return tasks
}

func (d *desk) tell(id string, tasks []check.Task, r check.Report) {
	d.t.Helper()
	for _, task := range tasks {
		receipts, err := d.broker.ReportOutside(context.Background(), id, []check.Report{report(task, r)})
		if err != nil || !receipts[0].Accepted {
			d.t.Fatalf("%v: %v, %v", task, receipts, err)
		}
	}
}

// What a checker outside holds fills its window, wherever it asks from, and what it
// finished, lost or was too late for does not.
func TestWindow(t *testing.T) {
	d := newDesk(t)
	d.fleet.put("web", 1, targets(20)...)
	d.fleet.put("shop", 1, targets(20)...)
	d.look()
	d.advance(time.Second)
	d.register("out", 6, "http")
	first := d.outside("out")
	perScope := map[string]int{}
	for _, task := range first {
		perScope[task.Scope]++
	}
	if len(first) != 6 || perScope["web"] != 3 || perScope["shop"] != 3 {
		t.Fatalf("a window of 6 over two services took %v", perScope)
	}
	d.fleet.put("pay", 1, targets(20)...) // of which it holds nothing
	d.look()
	d.advance(time.Second)
	d.broker = d.open() // on another host
	if again := d.outside("out"); len(again) != 0 {
		t.Errorf("a second stream was given %d tasks more", len(again))
	}
	d.tell("out", first[:2], check.Report{Result: good})
	if more := d.outside("out"); len(more) != 2 {
		t.Errorf("two were finished and %d given", len(more))
	}
	if fewer, _, err := d.broker.Claim(context.Background(), check.Claim{Checker: "out", Instance: "out", Most: 3}); err != nil || len(fewer) != 0 {
		t.Errorf("a stream that asks for 3 while 6 are held got %d, %v", len(fewer), err)
	}
	// Targets that go take their tasks with them.
	for _, task := range first[2:] {
		d.fleet.remove(task.Scope, task.ID)
	}
	d.look()
	if more := d.outside("out"); len(more) != 4 {
		t.Errorf("four targets went and %d were given", len(more))
	}
	// Leases that run out leave it too, and are nobody's.
	d.advance(rules.Timeout + 6*time.Second)
	late := d.outside("out")
	if len(late) != 6 {
		t.Errorf("all leases ran out and %d were given", len(late))
	}
	d.advance(rules.Timeout + 6*time.Second)
	d.claim(check.Claim{Checker: "c1", Probes: []string{"http"}}) // a host takes what was not done
	receipts, err := d.broker.ReportOutside(context.Background(), "out", []check.Report{report(late[0], check.Report{Result: bad, ErrorClass: 2})})
	if err != nil || receipts[0].Accepted || receipts[0].Reason != "overtaken" {
		t.Errorf("a report after the lease: %v, %v", receipts, err)
	}
	// Nothing is left of what was held once all is reported.
	d.advance(time.Minute)
	for range 20 {
		d.tell("out", d.outside("out"), check.Report{Result: good})
	}
	if err := d.store.View(context.Background(), func(tx store.ReadTx) error {
		held, err := tx.Scan("check-held/out", 0, store.MaxScore, 0)
		if len(held) != 0 {
			t.Errorf("held are still %v", held)
		}
		return err
	}); err != nil {
		t.Fatal(err)
	}
	d.scheduled()
	// A stream may ask for less, and a host may give less than another one granted.
	d.advance(time.Minute)
	claim := func(most int) []check.Task {
		tasks, _, err := d.broker.Claim(context.Background(), check.Claim{Checker: "out", Instance: "out", Most: most})
		if err != nil {
			t.Fatal(err)
		}
		return tasks
	}
	some := claim(2)
	if len(some) != 2 {
		t.Errorf("a stream that asks for 2 got %d", len(some))
	}
	d.broker = check.New(check.Options{Store: d.store, Planes: map[string]check.Plane{"service": d.fleet}, Rules: rules, Window: 4, Random: func() float64 { return 0.5 }})
	if some = append(some, claim(0)...); len(some) != 4 {
		t.Errorf("under a host whose window is 4, %d of 6 are held", len(some))
	}
}

// Where checkers outside announced the probe they do the checks, and a host's takes
// what they do not come to: at the end of a lease, or when a round has passed.
func TestOutsideComesFirst(t *testing.T) {
	d := newDesk(t)
	d.fleet.put("web", 1, "a", "b")
	d.fleet.put("shop", 1, "x")
	d.fleet.probe("shop", "tcp", nil)
	d.look()
	d.advance(time.Second)
	inside := check.Claim{Checker: "host-1"}
	d.register("out", 10, "http")
	d.claim(inside) // it registered and asks for nothing: hosts do the checks
	d.advance(rules.Timeout + 6*time.Second)
	if got := d.outside("out"); len(got) != 2 || got[0].Scope != "web" {
		t.Fatalf("with the probe http it got %v", got)
	}
	if got := d.claim(inside); len(got) != 1 || got[0].ID != "x" {
		t.Errorf("the host's checker got %v beside one that has the probe", got)
	}
	if s := d.status("web"); s.LiveCheckers != 1 {
		t.Errorf("%d judge web", s.LiveCheckers)
	}
	// It dies with its tasks: they are the host's at the end of the lease.
	d.advance(rules.Timeout + 5*time.Second)
	got := d.claim(inside)
	if len(got) != 3 {
		t.Fatalf("after the lease the host's checker got %v", got)
	}
	d.report("host-1", report(got[0], check.Report{Result: good}))
	// It is back, and slow: what nobody took for a round is the host's too.
	d.outside("out")
	d.advance(45 * time.Second)
	late := 0
	for range 10 {
		d.outside("out") // for the lease
		d.advance(10 * time.Second)
		late += len(d.claim(inside))
	}
	if late == 0 {
		t.Error("a checker that never reports keeps the host from checking")
	}
	// Gone for good: the host's checker does all.
	d.advance(5 * time.Minute)
	if got := d.claim(inside); len(got) != 3 {
		t.Errorf("alone the host's checker got %v", got)
	}
}

// One checker outside is not contradicted by a host's, which may stand elsewhere; two
// are asked in turn.
func TestOpinionsOutside(t *testing.T) {
	for _, checkers := range [][]string{{"o1"}, {"o1", "o2"}} {
		d := newDesk(t)
		d.fleet.put("web", 1, "a", "b", "c")
		d.look()
		for _, id := range checkers {
			d.register(id, 10, "http")
		}
		saw := map[string]bool{}
		for range 12 {
			d.advance(10 * time.Second)
			for _, id := range checkers {
				for _, task := range d.outside(id) {
					r := check.Report{Result: good}
					if task.ID == "a" {
						r = check.Report{Result: bad, ErrorClass: 2}
						saw[id] = true
					}
					d.tell(id, []check.Task{task}, r)
				}
			}
			if got := d.claim(check.Claim{Checker: "host-1"}); len(got) != 0 {
				t.Fatalf("the host's checker took %v", got)
			}
			d.look()
		}
		if got := d.fleet.out("web"); !slices.Equal(got, []string{"a"}) || len(saw) != len(checkers) {
			t.Errorf("%v: out is %v, by %v", checkers, got, saw)
		}
	}
	// A second one that sees it well stands against the first.
	d := newDesk(t)
	d.fleet.put("web", 1, "a", "b", "c")
	d.look()
	d.register("liar", 10, "http")
	d.register("honest", 10, "http")
	for range 60 {
		d.advance(10 * time.Second)
		d.tell("liar", d.outside("liar"), check.Report{Result: bad, ErrorClass: 2})
		d.tell("honest", d.outside("honest"), check.Report{Result: good})
		d.look()
		if got := d.fleet.out("web"); len(got) != 0 {
			t.Fatalf("%v left on one checker's word", got)
		}
	}
}

func TestRegistration(t *testing.T) {
	d := newDesk(t)
	ask := func(id, instance string) error {
		_, _, err := d.broker.Claim(context.Background(), check.Claim{Checker: id, Instance: instance})
		return err
	}
	if err := ask("out", "1"); !refusal.Is(err, refusal.Precondition) {
		t.Errorf("not registered: %v", err)
	}
	if _, err := d.broker.ReportOutside(context.Background(), "out", []check.Report{{Plane: "service", Scope: "web", ID: "a"}}); !refusal.Is(err, refusal.Precondition) {
		t.Errorf("a report of one that is not registered: %v", err)
	}
	register := func(id, instance string) error {
		_, err := d.broker.Register(context.Background(), check.Registration{Checker: id, Instance: instance, Levels: []controlplanev1.CheckLevel{basic}, Probes: []string{"http"}, Window: 1000})
		return err
	}
	if err := register("host-1", "1"); !refusal.Is(err, refusal.Invalid) {
		t.Errorf("a host's id: %v", err)
	}
	if err := register("out", "1"); err != nil {
		t.Fatal(err)
	}
	if err := ask("out", "1"); !refusal.Is(err, refusal.Unavailable) {
		t.Errorf("nothing to check: %v", err)
	}
	d.fleet.put("web", 1, "first")
	d.look()
	d.advance(time.Second)
	if got := d.claim(check.Claim{Checker: "host-1"}); len(got) != 0 {
		t.Errorf("beside a checker that asked in vain, the host's took %v", got)
	}
	d.fleet.remove("web", "first")
	d.fleet.put("web", 1, targets(2000)...)
	d.look()
	d.advance(time.Second)
	if got, _, err := d.broker.Claim(context.Background(), check.Claim{Checker: "out", Instance: "1"}); err != nil || len(got) != limits.CheckWindow/2 {
		t.Errorf("of one service it got %d, %v", len(got), err)
	}
	// Another process of it: the former is not served any more.
	if err := register("out", "2"); err != nil {
		t.Fatal(err)
	}
	if err := ask("out", "1"); !refusal.Is(err, refusal.Precondition) {
		t.Errorf("a former instance: %v", err)
	}
	if err := ask("out", "2"); err != nil {
		t.Errorf("the new instance: %v", err)
	}
	for _, levels := range [][]controlplanev1.CheckLevel{{controlplanev1.CheckLevel_CHECK_LEVEL_EGRESS}} {
		if _, _, err := d.broker.Claim(context.Background(), check.Claim{Checker: "out", Instance: "2", Levels: levels}); !refusal.Is(err, refusal.Invalid) {
			t.Errorf("a level that was not registered: %v", err)
		}
	}
	for i := 0; ; i++ {
		err := register(fmt.Sprintf("c%04d", i), "1")
		if i == limits.Checkers-2 { // out and host-1 are there
			if !refusal.Is(err, refusal.Exhausted) {
				t.Errorf("one checker too many: %v", err)
			}
			break
		}
		if err != nil {
			t.Fatalf("checker %d: %v", i, err)
		}
	}
	if err := register("out", "3"); err != nil {
		t.Errorf("one that is there, again: %v", err)
	}
}

// A report is refused for the first thing that is wrong with it, in this order.
func TestOrderOfRefusals(t *testing.T) {
	d := newDesk(t)
	d.fleet.put("web", 1, "a")
	d.look()
	d.advance(time.Second)
	d.register("out", 10, "http")
	d.register("other", 10, "http")
	task := d.outside("out")[0]
	whole := check.Report{
		Plane: "pool", Scope: "web", ID: "b", Token: "guessed", Result: 9,
		Subject: check.Subject{Level: controlplanev1.CheckLevel_CHECK_LEVEL_TARGET, Proxy: "p", Routing: "r", URL: "http://x", EgressIP: "203.0.113.7"},
	}
	by := "other"
	for _, step := range []struct {
		reason string
		right  func()
	}{
		{"gone", func() { whole.Plane = "service" }},
		{"gone", func() { whole.ID = "a" }},
		{"overtaken", func() { whole.Token = task.Token }},
		{"foreign", func() { by = "out" }},
		{"proxy", func() { whole.Subject.Proxy = "" }},
		{"level", func() { whole.Subject.Level = basic }},
		{"target", func() { whole.Subject.Routing = "" }},
		{"target", func() { whole.Subject.URL = "" }},
		{"target", func() { whole.Subject.EgressIP = "" }},
		{"bad result", func() { whole.Result = bad; whole.ErrorClass = 99 }},
		{"bad result", func() { whole.ErrorClass = 2; whole.Status = 99 }},
		{"bad result", func() { whole.Status = 503 }},
		{"", func() {}},
		{"", func() { whole.Result = good }}, // the answer was lost
		{"overtaken", func() {}},             // another fact under the same lease
	} {
		receipts, err := d.broker.ReportOutside(context.Background(), by, []check.Report{whole})
		if err != nil || len(receipts) != 1 || receipts[0].Accepted != (step.reason == "") || receipts[0].Reason != step.reason {
			t.Errorf("%+v by %s: %v, %v, want %q", whole, by, receipts, err, step.reason)
		}
		step.right()
	}
	if e := d.status("web").Endpoints[0]; e.Failures != 1 {
		t.Errorf("counted %d times", e.Failures)
	}
}

// How late tasks are leased is measured for all checkers, those outside too.
func TestOverdueIsMeasured(t *testing.T) {
	d := newDesk(t)
	registry := prometheus.NewRegistry()
	d.broker = check.New(check.Options{Store: d.store, Planes: map[string]check.Plane{"service": d.fleet}, Rules: rules, Registerer: registry, Random: func() float64 { return 0.5 }})
	d.fleet.put("web", 1, "a", "b", "c")
	d.register("out", 10, "http")
	d.look()
	d.advance(4 * time.Second)
	if n := len(d.outside("out")); n != 3 {
		t.Fatalf("%d tasks", n)
	}
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		if f.GetName() == "dona_check_overdue_seconds" {
			h := f.GetMetric()[0].GetHistogram()
			if h.GetSampleCount() != 3 || h.GetSampleSum() < 3*3 || h.GetSampleSum() > 3*4 {
				t.Errorf("%d tasks that are 3.5 s late are measured as %v s of %d", 3, h.GetSampleSum(), h.GetSampleCount())
			}
			return
		}
	}
	t.Error("there is no dona_check_overdue_seconds")
}

// An alarm names a probe that no checker has, also of a service, and for as long as it
// has none; a scope that is damaged keeps no other from being named.
func TestProbeThatNobodyHas(t *testing.T) {
	d := newDesk(t)
	d.fleet.put("web", 1, "a", "b")
	d.fleet.put("shop", 1, "x")
	d.fleet.probe("web", "mine", nil)
	d.look()
	d.claim(check.Claim{Checker: "host-1", Probes: []string{"http"}})
	if alarms := d.broker.Alarms(); len(alarms) != 0 {
		t.Errorf("before anything is late: %q", alarms)
	}
	d.advance(rules.Interval + 2*time.Second)
	d.fleet.damaged = "shop"
	d.claim(check.Claim{Checker: "host-1", Probes: []string{"http"}})
	_ = d.broker.Look(context.Background(), false) // says that shop is damaged
	if alarms := d.broker.Alarms(); len(alarms) != 1 || !strings.Contains(alarms[0], `probe "mine" at BASIC`) {
		t.Errorf("alarms are %q", alarms)
	}
	d.fleet.damaged = ""
	d.register("out", 10, "mine")
	if n := len(d.outside("out")); n != 2 {
		t.Errorf("one that has it gets %d tasks", n)
	}
	d.look()
	if alarms := d.broker.Alarms(); len(alarms) != 0 {
		t.Errorf("alarms are %q although a checker has it", alarms)
	}
}
