package delivery_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	donav1 "github.com/dodona-project/dodona/proto/dona/v1"
	"pgregory.net/rapid"

	"github.com/dodona-project/dodona/host/delivery"
)

const (
	recreate  = donav1.StartDeploymentRequest_STRATEGY_RECREATE
	blueGreen = donav1.StartDeploymentRequest_STRATEGY_BLUE_GREEN
	canary    = donav1.StartDeploymentRequest_STRATEGY_CANARY
)

var began = time.UnixMilli(1_700_000_000_000)

func waiting(strategy donav1.StartDeploymentRequest_Strategy) delivery.State {
	return delivery.State{ID: "d1", Phase: delivery.Waiting, LastTick: began,
		Plan: delivery.Plan{Variant: "v2", Strategy: strategy, Timeout: 10 * time.Second}}
}

func running() delivery.State {
	s := waiting(canary)
	s.Phase, s.Rollout = delivery.Running, "r1"
	return s
}

func ended(p delivery.Phase) delivery.State {
	s := running()
	s.Phase, s.Reason = p, "before"
	return s
}

// late is a state whose time to wait is over at the next tick.
func late(s delivery.State) delivery.State {
	s.Waited = s.Plan.Timeout - time.Second
	return s
}

// TestStep takes every state through every event.
func TestStep(t *testing.T) {
	var (
		ready    = delivery.Evidence{Holder: "v1"}
		missing  = delivery.Evidence{Holder: "v1", Missing: []string{"no endpoint of v2 in eu"}}
		blocked  = delivery.Evidence{Holder: "v1", Blocked: "a rollout is under way"}
		both     = delivery.Evidence{Holder: "v1", Blocked: "a rollout is under way", Missing: []string{"no endpoint of v2 in eu"}}
		away     = delivery.Evidence{Holder: "v1", Away: "its plugin is away"}
		replaced = delivery.Evidence{Replaced: "d2"}
		none     = delivery.Evidence{Holder: ""}
		follows  = func(id string, end delivery.End) delivery.Evidence {
			return delivery.Evidence{Rollout: id, RolloutEnd: end, RolloutWhy: "because"}
		}
	)
	for _, c := range []struct {
		name   string
		from   delivery.State
		e      delivery.Evidence
		event  delivery.Event
		to     delivery.Phase
		split  string
		reason string // in it
	}{
		{"RECREATE ready", waiting(recreate), ready, delivery.Switch, delivery.Succeeded, "v2=100", "all traffic goes to v2"},
		{"RECREATE ready, nothing served", waiting(recreate), none, delivery.Switch, delivery.Succeeded, "v2=100", "v2"},
		{"RECREATE not ready", waiting(recreate), missing, delivery.None, delivery.Waiting, "", "no endpoint of v2 in eu"},
		{"RECREATE not ready, blocked", waiting(recreate), both, delivery.None, delivery.Waiting, "", "no endpoint of v2 in eu"},
		{"RECREATE blocked", waiting(recreate), blocked, delivery.Finish, delivery.Failed, "", "a rollout is under way"},
		{"RECREATE too late", late(waiting(recreate)), missing, delivery.Finish, delivery.Failed, "", "not ready within 10s: no endpoint of v2 in eu"},
		{"RECREATE ready at the last moment", late(waiting(recreate)), ready, delivery.Switch, delivery.Succeeded, "v2=100", ""},
		{"RECREATE replaced", waiting(recreate), replaced, delivery.Finish, delivery.Failed, "", "deployment d2 took its place"},
		{"BLUE_GREEN ready", waiting(blueGreen), ready, delivery.Switch, delivery.Succeeded, "v2=100 v1=0", "v1 is at 0"},
		{"BLUE_GREEN ready, nothing served", waiting(blueGreen), none, delivery.Switch, delivery.Succeeded, "v2=100", ""},
		{"BLUE_GREEN ready, it serves already", waiting(blueGreen), delivery.Evidence{Holder: "v2"}, delivery.Switch, delivery.Succeeded, "v2=100", ""},
		{"BLUE_GREEN not ready", waiting(blueGreen), missing, delivery.None, delivery.Waiting, "", "eu"},
		{"BLUE_GREEN blocked", waiting(blueGreen), blocked, delivery.Finish, delivery.Failed, "", "under way"},
		{"BLUE_GREEN too late", late(waiting(blueGreen)), missing, delivery.Finish, delivery.Failed, "", "not ready"},
		{"BLUE_GREEN replaced", waiting(blueGreen), replaced, delivery.Finish, delivery.Failed, "", "d2"},
		{"CANARY ready", waiting(canary), ready, delivery.Begin, delivery.Running, "", "rollout"},
		{"CANARY not ready", waiting(canary), missing, delivery.None, delivery.Waiting, "", "eu"},
		{"CANARY blocked", waiting(canary), blocked, delivery.Finish, delivery.Failed, "", "under way"},
		{"CANARY, plugin away", waiting(canary), away, delivery.None, delivery.Waiting, "", "its plugin is away"},
		{"CANARY, plugin away too long", late(waiting(canary)), away, delivery.Finish, delivery.Failed, "", "not ready within 10s: its plugin is away"},
		{"CANARY too late", late(waiting(canary)), missing, delivery.Finish, delivery.Failed, "", "not ready"},
		{"CANARY replaced", waiting(canary), replaced, delivery.Finish, delivery.Failed, "", "d2"},
		{"RUNNING", running(), follows("r1", delivery.NotEnded), delivery.None, delivery.Running, "", ""},
		{"RUNNING, promoted", running(), follows("r1", delivery.Promoted), delivery.Finish, delivery.Succeeded, "", "rollout r1 was promoted: because"},
		{"RUNNING, rolled back", running(), follows("r1", delivery.Worse), delivery.Finish, delivery.RolledBack, "", "rollout r1 was rolled back: because"},
		{"RUNNING, stopped", running(), follows("r1", delivery.Stopped), delivery.Finish, delivery.Failed, "", "rollout r1 was stopped: because"},
		{"RUNNING, another rollout", running(), follows("r2", delivery.NotEnded), delivery.Finish, delivery.Failed, "", "r1 is not the service's newest"},
		{"RUNNING, another was promoted", running(), follows("r2", delivery.Promoted), delivery.Finish, delivery.Failed, "", "r1 is not the service's newest"},
		{"RUNNING, no rollout", running(), follows("", delivery.NotEnded), delivery.Finish, delivery.Failed, "", "r1"},
		{"RUNNING, endpoints gone", running(), delivery.Evidence{Rollout: "r1", Missing: []string{"x"}, Blocked: "x"}, delivery.None, delivery.Running, "", ""},
		{"RUNNING, replaced", running(), delivery.Evidence{Rollout: "r1", Replaced: "d2"}, delivery.None, delivery.Running, "", ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			d := delivery.Step(c.from, c.e, began.Add(time.Second))
			if d.Event != c.event || d.Next.Phase != c.to || split(d) != c.split || !strings.Contains(d.Next.Reason, c.reason) {
				t.Errorf("%q, %s, weights %q: %s; want %q, %s, %q: %s", d.Event, d.Next.Phase, split(d), d.Next.Reason, c.event, c.to, c.split, c.reason)
			}
		})
	}
	for _, p := range []delivery.Phase{delivery.Succeeded, delivery.Failed, delivery.RolledBack} {
		for _, e := range []delivery.Evidence{ready, missing, blocked, both, away, replaced, follows("r1", delivery.Promoted), follows("r2", delivery.Worse)} {
			if d := delivery.Step(ended(p), e, began.Add(time.Hour)); d.Event != delivery.None || d.Next != ended(p) || d.Weights != nil {
				t.Errorf("%s is an end, and %+v made it %+v", p, e, d)
			}
		}
	}
}

func split(d delivery.Decision) string {
	var parts []string
	for _, w := range d.Weights {
		parts = append(parts, fmt.Sprintf("%s=%d", w.Variant, w.Percent))
	}
	return strings.Join(parts, " ")
}

// TestPhaseNumbers: the published enum and ours are the same.
func TestPhaseNumbers(t *testing.T) {
	for n, name := range donav1.Deployment_State_name {
		if got := "STATE_" + delivery.Phase(n).String(); got != name {
			t.Errorf("phase %d is %s, the published state %s", n, got, name)
		}
	}
}

// TestStepProperties walks Step through random worlds and checks what no world may
// make it break.
func TestStepProperties(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		strategy := rapid.SampledFrom([]donav1.StartDeploymentRequest_Strategy{recreate, blueGreen, canary}).Draw(t, "strategy")
		s := waiting(strategy)
		s.Plan.Timeout = time.Duration(rapid.IntRange(1, 20).Draw(t, "timeout")) * time.Second
		now := began
		moved, over := false, false
		var most time.Duration // an upper bound of what was waited
		for range rapid.IntRange(1, 40).Draw(t, "ticks") {
			by := time.Duration(rapid.SampledFrom([]int64{0, 10, 500, 1000, 1500, 3_600_000, -5000}).Draw(t, "ms")) * time.Millisecond
			now = now.Add(by)
			most += min(2*time.Second, max(0, by))
			if by < 0 {
				most += -by // a clock that fell is waited through once more
			}
			e := delivery.Evidence{
				Holder:     rapid.SampledFrom([]string{"", "v1", "v2"}).Draw(t, "holder"),
				Missing:    rapid.SampledFrom([][]string{nil, nil, {"eu"}, {"eu", "us"}}).Draw(t, "missing"),
				Away:       rapid.SampledFrom([]string{"", "", "away"}).Draw(t, "away"),
				Blocked:    rapid.SampledFrom([]string{"", "", "", "blocked"}).Draw(t, "blocked"),
				Replaced:   rapid.SampledFrom([]string{"", "", "", "", "d2"}).Draw(t, "replaced"),
				Rollout:    rapid.SampledFrom([]string{"r1", "r1", "r1", "r2", ""}).Draw(t, "rollout"),
				RolloutEnd: delivery.End(rapid.Uint8Range(0, 3).Draw(t, "end")),
			}
			d := delivery.Step(s, e, now)
			n := d.Next
			if again := delivery.Step(s, e, now); again.Event != d.Event || again.Next != n {
				t.Fatalf("the same question, another answer: %+v and %+v", d, again)
			}
			if over && (d.Event != delivery.None || n != s) {
				t.Fatalf("%s after the end", d.Event)
			}
			if (d.Event == delivery.None) != (n.Phase == s.Phase) {
				t.Fatalf("event %q from %s to %s", d.Event, s.Phase, n.Phase)
			}
			if len(d.Weights) > 0 != (d.Event == delivery.Switch) {
				t.Fatalf("event %q with weights %v", d.Event, d.Weights)
			}
			if d.Event == delivery.Switch || d.Event == delivery.Begin {
				if moved || len(e.Missing) > 0 || e.Blocked != "" || e.Away != "" || e.Replaced != "" {
					t.Fatalf("moved %v, again %v, with %+v", d, moved, e)
				}
				moved = true
			}
			if d.Event == delivery.Switch {
				checkSplit(t, d)
			}
			if d.Event == delivery.Begin {
				if strategy != canary {
					t.Fatalf("%s began a rollout", strategy)
				}
				n.Rollout = "r1" // as the controller does
			}
			if n.Phase == delivery.RolledBack && d.Event != delivery.None && (strategy != canary || e.RolloutEnd != delivery.Worse) {
				t.Fatalf("rolled back by %+v", e)
			}
			if n.Phase == delivery.Failed && s.Phase == delivery.Waiting && e.Replaced == "" && e.Blocked == "" && most < s.Plan.Timeout {
				t.Fatalf("failed after at most %s of %s: %s", most, s.Plan.Timeout, n.Reason)
			}
			if d.Event == delivery.Finish && n.Reason == "" {
				t.Fatal("an end without a reason")
			}
			over = !n.Phase.Live()
			s = n
		}
	})
}

func checkSplit(t *rapid.T, d delivery.Decision) {
	sum := uint32(0)
	var names []string
	for _, w := range d.Weights {
		sum += w.Percent
		if slices.Contains(names, w.Variant) || w.Variant == "" {
			t.Fatalf("weights %v", d.Weights)
		}
		names = append(names, w.Variant)
	}
	if sum != 100 || d.Weights[0] != (delivery.Weight{Variant: d.Next.Plan.Variant, Percent: 100}) {
		t.Fatalf("weights %v", d.Weights)
	}
}
