package health_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	controlplanev1 "github.com/dodona-project/dodona/proto/controlplane/v1"
	statev1 "github.com/dodona-project/dodona/proto/state/v1"
	"google.golang.org/protobuf/proto"
	"pgregory.net/rapid"

	"github.com/dodona-project/dodona/host/check"
	"github.com/dodona-project/dodona/host/pool/health"
	"github.com/dodona-project/dodona/host/pool/ownership"
)

var rules = check.DefaultRules(30*time.Second, 5*time.Second)

const (
	success      = controlplanev1.HealthObservation_RESULT_SUCCESS
	failure      = controlplanev1.HealthObservation_RESULT_FAILURE
	inconclusive = controlplanev1.HealthObservation_RESULT_INCONCLUSIVE
)

var both = []controlplanev1.CheckLevel{health.Basic, health.Egress}

// patient is a proxy with the runs of its tasks, as host/check counts them.
type patient struct {
	health.Proxy
	runs map[string]*statev1.CheckHealth
	now  int64
}

func newPatient() *patient {
	return &patient{Proxy: health.Proxy{State: ownership.New}, runs: map[string]*statev1.CheckHealth{}, now: 1_000_000}
}

// see takes an observation that was issued at a time.
func (p *patient) see(level controlplanev1.CheckLevel, routing string, result controlplanev1.HealthObservation_Result, issued int64, believed bool) {
	key := fmt.Sprint(level, routing)
	before := p.runs[key]
	run := check.Reduce(rules, before, check.Observation{Checker: "c", Result: result, IssuedMs: issued, AtMs: p.now})
	counts := result != inconclusive && issued >= before.GetIssuedMs()
	p.runs[key] = run
	p.Proxy = health.Reduce(rules, both, p.Proxy, health.Seen{
		Level: level, Routing: routing, URL: routing, Counts: counts, Good: result == success, Run: run, Believed: believed, AtMs: p.now, Reason: "r",
	})
}

// do takes one conclusive observation after the other: B and E for good ones, b and e for
// failures of BASIC and EGRESS, t and T of the target of a routing.
func (p *patient) do(steps string) *patient {
	for _, step := range steps {
		p.now += 1_000
		level, result, routing := health.Basic, failure, ""
		switch step {
		case 'B', 'b':
		case 'E', 'e':
			level = health.Egress
		case 'T', 't':
			level, routing = health.Target, "site"
		}
		if step < 'a' {
			result = success
		}
		p.see(level, routing, result, p.now, true)
	}
	return p
}

func TestReduce(t *testing.T) {
	for _, tc := range []struct {
		steps  string
		state  controlplanev1.ProxyStatus_State
		denied int
	}{
		{"", ownership.New, 0},
		{"E", ownership.New, 0},
		{"B", ownership.Available, 0},
		{"b", ownership.Suspect, 0},
		{"Bb", ownership.Suspect, 0},
		{"Be", ownership.Suspect, 0},
		{"Bbb", ownership.Suspect, 0},
		{"Bbbb", ownership.Unhealthy, 0},
		{"Beee", ownership.Unhealthy, 0},
		{"Bbebe", ownership.Suspect, 0},    // three, and of no level in a row
		{"BbBbBb", ownership.Suspect, 0},   // nor in a row at all
		{"BEEbBB", ownership.Suspect, 0},   // EGRESS was good before, and not since
		{"BbBBEE", ownership.Available, 0}, // two of each
		{"BbBBE", ownership.Suspect, 0},    //
		{"BbbbBBEE", ownership.Available, 0},
		{"BbbbBBEbE", ownership.Suspect + 1, 0}, // one that fails begins the count anew
		{"Bttt", ownership.Available, 1},        // TARGET denies its routing, and nothing else
		{"Btt", ownership.Available, 0},
		{"BtttT", ownership.Available, 1},
		{"BtttTT", ownership.Available, 0},
		{"ttt", ownership.New, 0}, // of a proxy that does not work it says nothing
	} {
		p := newPatient().do(tc.steps)
		if p.State != tc.state || len(p.Health.GetDenied()) != tc.denied {
			t.Errorf("%q: %s, %d denied; want %s, %d", tc.steps, p.State, len(p.Health.GetDenied()), tc.state, tc.denied)
		}
	}
}

var levels = map[controlplanev1.CheckLevel]string{health.Basic: "", health.Egress: "", health.Target: "site"}

// TestReduceProperties: whatever is observed, in whatever order.
func TestReduceProperties(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p := newPatient()
		for range rapid.IntRange(1, 60).Draw(t, "n") {
			p.now += int64(rapid.IntRange(0, 20_000).Draw(t, "passed"))
			level := rapid.SampledFrom(slices.Sorted(func(yield func(controlplanev1.CheckLevel) bool) {
				for l := range levels {
					if !yield(l) {
						return
					}
				}
			})).Draw(t, "level")
			result := rapid.SampledFrom([]controlplanev1.HealthObservation_Result{success, failure, inconclusive}).Draw(t, "result")
			issued := p.now - int64(rapid.IntRange(0, 30_000).Draw(t, "late"))
			believed := rapid.Bool().Draw(t, "believed")
			stale := issued < p.runs[fmt.Sprint(level, levels[level])].GetIssuedMs()
			before := health.Proxy{State: p.State, Health: proto.CloneOf(p.Health)}
			p.see(level, levels[level], result, issued, believed)
			denied := func(h *statev1.ProxyHealth) int { return len(h.GetDenied()) }
			worse := p.State != before.State && (p.State == ownership.Suspect && before.State != ownership.Unhealthy || p.State == ownership.Unhealthy)
			switch {
			case (result == inconclusive || stale) && (p.State != before.State || denied(p.Health) != denied(before.Health)):
				t.Fatalf("%s of %s, stale %v, made %s of %s", result, level, stale, p.State, before.State)
			case level == health.Target && p.State != before.State:
				t.Fatalf("TARGET made %s of %s", p.State, before.State)
			case worse && (result != failure || !believed):
				t.Fatalf("%s, believed %v, made %s of %s", result, believed, p.State, before.State)
			case p.State == ownership.Available && before.State != ownership.Available && result != success:
				t.Fatalf("%s made it available", result)
			case before.State == ownership.New && p.State == ownership.Available && level != health.Basic:
				t.Fatalf("%s made a new one available", level)
			case p.State == ownership.New && before.State != ownership.New:
				t.Fatalf("it is new again")
			case denied(p.Health) > denied(before.Health) && (level != health.Target || !believed):
				t.Fatalf("a routing is denied by %s, believed %v", level, believed)
			}
			if w := health.Wait(rules, p.Proxy, level, p.runs[fmt.Sprint(level, levels[level])]); w < rules.Suspect || w > rules.Longest {
				t.Fatalf("the next check is %s away", w)
			}
		}
	})
}

// TestDoubt: outcomes make an available proxy suspect, and nothing else.
func TestDoubt(t *testing.T) {
	for _, s := range []controlplanev1.ProxyStatus_State{ownership.New, ownership.Available, ownership.Suspect, ownership.Unhealthy, ownership.Extracted, ownership.Expired} {
		want := s
		if s == ownership.Available {
			want = ownership.Suspect
		}
		had := health.Proxy{State: s, Health: &statev1.ProxyHealth{BasicGood: 2, EgressGood: 2}}
		got := health.Doubt(had)
		if got.State != want {
			t.Errorf("%s becomes %s", s, got.State)
		}
		good := uint32(2)
		if s == ownership.Available {
			good = 0 // it has to be seen well anew
		}
		if got.Health.BasicGood != good || got.Health.EgressGood != good || had.Health.BasicGood != 2 {
			t.Errorf("%s has been well %d and %d times, want %d", s, got.Health.BasicGood, got.Health.EgressGood, good)
		}
	}
}

// TestWait: a check follows sooner where something is wrong, and later the longer a
// proxy does not work.
func TestWait(t *testing.T) {
	p := newPatient().do("B")
	wait := func(level controlplanev1.CheckLevel, routing string) time.Duration {
		return health.Wait(rules, p.Proxy, level, p.runs[fmt.Sprint(level, routing)])
	}
	if w := wait(health.Basic, ""); w != 30*time.Second {
		t.Errorf("one that is well is checked after %s", w)
	}
	p.do("b")
	if w := wait(health.Basic, ""); w != 10*time.Second {
		t.Errorf("a suspect is checked after %s", w)
	}
	last := time.Duration(0)
	for range 12 {
		p.do("b")
		w := wait(health.Basic, "")
		if w < last {
			t.Errorf("after %s it is checked after %s", last, w)
		}
		last = w
	}
	if last != 5*time.Minute {
		t.Errorf("one that never works is checked after %s", last)
	}
}
