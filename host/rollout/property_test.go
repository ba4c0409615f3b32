package rollout_test

import (
	"math"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/dodona-project/dodona/host/rollout"
)

// TestStepProperties walks Step through random worlds and checks, at every tick,
// what no world may make it break.
func TestStepProperties(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		plan := rollout.Plan{
			Canary: "v2", Stable: "v1",
			Steps: rapid.SampledFrom([][]uint32{{100}, {5, 100}, {1, 25, 50, 100}}).Draw(t, "steps"),
			Dwell: time.Duration(rapid.IntRange(1, 4).Draw(t, "dwell")) * time.Second,
			Gate: rollout.Gate{
				MaxErrorPercent: rapid.Uint32Range(0, 100).Draw(t, "max"),
				MinRequests:     rapid.Uint32Range(0, 5).Draw(t, "min"),
				CountsOnly:      rapid.Bool().Draw(t, "countsOnly"),
			},
			Queries: []rollout.Query{{Name: "q", HasMax: true, Max: 1, MaxGiven: true, Timeout: time.Second}}[:rapid.IntRange(0, 1).Draw(t, "queries")],
		}
		const beat = time.Second
		now := time.UnixMilli(1_700_000_000_000)
		s := rollout.State{ID: "r1", Plan: plan, Phase: rollout.Pending, LastTick: now}
		served := map[int]time.Duration{} // an upper bound on each step's dwell
		counted := now                    // up to when time was served, or passed over
		ended := false

		for range rapid.IntRange(1, 60).Draw(t, "ticks") {
			by := time.Duration(rapid.SampledFrom([]int64{0, 10, 500, 1000, 1500, 3_600_000, -5000}).Draw(t, "ms")) * time.Millisecond
			now = now.Add(by)
			e := rollout.Evidence{
				Heartbeat: beat,
				Endpoints: rapid.IntRange(0, 1).Draw(t, "endpoints"),
				Op:        rapid.SampledFrom([]rollout.Op{0, 0, 0, 0, 0, 0, rollout.Pause, rollout.Resume, rollout.PromoteStep, rollout.PromoteAll, rollout.Abort, rollout.Supersede}).Draw(t, "op"),
				Counts:    rollout.Counts{Requests: rapid.Uint64Range(0, 10).Draw(t, "requests")},
				Results: []rollout.Result{{
					Rollout: rapid.SampledFrom([]string{"r1", "r1", "r1", "r0"}).Draw(t, "of"),
					Step:    max(0, s.Step-rapid.IntRange(0, 1).Draw(t, "late")),
					Began:   now.Add(-time.Duration(rapid.IntRange(0, 7).Draw(t, "age")) * time.Second),
					Took: rollout.Measurement{
						Verdict:  rollout.Verdict(rapid.Uint8Range(0, 4).Draw(t, "verdict")),
						HasValue: rapid.Bool().Draw(t, "hasValue"),
						Value:    rapid.SampledFrom([]float64{0, 1, 2, -1, math.NaN(), math.Inf(1), math.Inf(-1)}).Draw(t, "value"),
					},
				}},
			}
			e.Counts.Errors = rapid.Uint64Range(0, e.Counts.Requests).Draw(t, "errors")
			d := rollout.Step(s, e, now)
			n := d.Next

			if again := rollout.Step(s, e, now); again.Event != d.Event || again.Next.Dwell != n.Dwell || again.Next.Phase != n.Phase {
				t.Fatalf("the same question, another answer: %+v and %+v", d, again)
			}
			if ended && (d.Event != rollout.None || n.Phase != s.Phase) {
				t.Fatalf("%s after the end", d.Event)
			}
			if n.Percent() > 100 || n.Phase == rollout.RolledBack && n.Percent() != 0 || n.Phase == rollout.Promoted && n.Percent() != 100 {
				t.Fatalf("%s with %d %%", n.Phase, n.Percent())
			}
			if d.Quarantine != (d.Event == rollout.Rollback) {
				t.Fatalf("event %s, quarantine %v", d.Event, d.Quarantine)
			}
			if n.Step < s.Step || n.Step > s.Step+1 {
				t.Fatalf("from step %d to %d", s.Step, n.Step)
			}
			if n.Percent() > s.Percent() && d.Event != rollout.Stepped && d.Event != rollout.Promote {
				t.Fatalf("%s raised the canary from %d to %d", d.Event, s.Percent(), n.Percent())
			}
			if s.Phase == rollout.Progressing && e.Op == rollout.NoOp {
				served[s.Step] += min(2*time.Second, max(0, now.Sub(counted)))
			}
			if d.Refused == "" { // a verb that is refused does not interrupt what is being served
				counted = now
			}
			forward := e.Op == rollout.NoOp && (d.Event == rollout.Promote || d.Event == rollout.Stepped && s.Phase != rollout.Pending)
			if forward {
				checkForward(t, s, e, d, now)
				if s.Phase == rollout.Progressing && served[s.Step] < plan.Dwell {
					t.Fatalf("step %d left after at most %s of %s", s.Step, served[s.Step], plan.Dwell)
				}
			}
			if e.Op == rollout.NoOp && s.Phase == rollout.Paused && d.Event != rollout.None && d.Event != rollout.Rollback {
				t.Fatalf("paused, and a tick did %s", d.Event)
			}
			// A second ticker at the same instant adds nothing and takes no step twice.
			if twice := rollout.Step(n, tick(e), now); e.Op == rollout.NoOp && n.Phase == rollout.Progressing && twice.Next.Dwell > n.Dwell {
				t.Fatalf("two ticks at one instant served %s and %s", n.Dwell, twice.Next.Dwell)
			}
			ended = ended || !n.Phase.Live()
			s = n
		}
	})
}

func tick(e rollout.Evidence) rollout.Evidence {
	e.Op = rollout.NoOp
	return e
}

// checkForward judges, in its own words, whether the evidence allowed a step.
func checkForward(t *rapid.T, s rollout.State, e rollout.Evidence, d rollout.Decision, now time.Time) {
	if s.Phase != rollout.Progressing || !d.Verified || e.Endpoints == 0 {
		t.Fatalf("moved on from %s, verified %v, %d endpoints", s.Phase, d.Verified, e.Endpoints)
	}
	need := max(1, uint64(s.Plan.Gate.MinRequests))
	if e.Counts.Requests < need || !s.Plan.Gate.CountsOnly && e.Counts.Errors*100 > uint64(s.Plan.Gate.MaxErrorPercent)*e.Counts.Requests {
		t.Fatalf("moved on with %+v at a gate of %+v", e.Counts, s.Plan.Gate)
	}
	if len(s.Plan.Queries) == 0 {
		return
	}
	r := e.Results[0]
	if r.Rollout != s.ID || r.Step != s.Step || now.Sub(r.Began) > 5*time.Second {
		t.Fatalf("moved on with an answer of %s step %d, asked %s ago", r.Rollout, r.Step, now.Sub(r.Began))
	}
	m := r.Took
	good := m.HasValue && m.Value <= 1 && !math.IsInf(m.Value, 0)
	switch m.Verdict {
	case rollout.Breach, rollout.Missing:
		t.Fatalf("moved on with %+v", m)
	case rollout.Pass:
		good = good || !m.HasValue
	}
	if !good {
		t.Fatalf("moved on with %+v", m)
	}
}
