package rollout_test

import (
	"math"
	"strings"
	"testing"
	"time"

	donav1 "github.com/dodona-project/dodona/proto/dona/v1"

	"github.com/dodona-project/dodona/host/rollout"
)

func TestGate(t *testing.T) {
	for _, c := range []struct {
		percent, least   uint32
		requests, errors uint64
		want             rollout.Verdict
		detail           string
	}{
		{5, 20, 0, 0, rollout.Missing, "need 20 more"},
		{5, 20, 19, 0, rollout.Missing, "have 19, need 20: need 1 more"},
		{5, 20, 19, 1, rollout.Missing, "need 1 more"}, // 1 of 20 would pass
		{5, 20, 2, 2, rollout.Breach, "already"},       // 2 of 20 cannot pass
		{5, 20, 20, 1, rollout.Pass, ""},               // equal passes
		{5, 20, 20, 2, rollout.Breach, "above 5 %"},
		{5, 20, 39, 2, rollout.Breach, ""},
		{5, 20, 40, 2, rollout.Pass, ""},
		{0, 20, 19, 0, rollout.Missing, ""},
		{0, 20, 1, 1, rollout.Breach, ""}, // 0 % is legal: the first error dooms
		{0, 20, 20, 0, rollout.Pass, ""},
		{100, 1, 1, 1, rollout.Pass, ""},
		{5, 0, 0, 0, rollout.Missing, "need 1 more"}, // 0 reads as 1
		{5, 0, 1, 0, rollout.Pass, ""},
		{5, 0, 1, 1, rollout.Breach, ""},
		{5, 1, math.MaxUint64, math.MaxUint64 / 20, rollout.Pass, ""},
		{5, 1, math.MaxUint64, math.MaxUint64/20 + 1, rollout.Breach, ""},
	} {
		got := rollout.Gate{MaxErrorPercent: c.percent, MinRequests: c.least}.Judge(rollout.Counts{Requests: c.requests, Errors: c.errors})
		if got.Verdict != c.want || !strings.Contains(got.Detail, c.detail) {
			t.Errorf("%d of %d, at most %d %%, at least %d: %s %q, want %s %q", c.errors, c.requests, c.percent, c.least, got.Verdict, got.Detail, c.want, c.detail)
		}
	}
}

// A gate that leaves the rate to a query asks for requests and nothing else.
func TestGateOfCountsOnly(t *testing.T) {
	g := rollout.Gate{MaxErrorPercent: 5, MinRequests: 20, CountsOnly: true}
	for _, c := range []struct {
		requests, errors uint64
		want             rollout.Verdict
		detail           string
	}{
		{0, 0, rollout.Missing, "need 20 more"},
		{19, 0, rollout.Missing, "have 19, need 20: need 1 more"},
		{19, 19, rollout.Missing, "need 1 more"}, // doomed, but not for it to say
		{20, 0, rollout.Pass, "sequential"},
		{20, 20, rollout.Pass, "sequential"},
	} {
		got := g.Judge(rollout.Counts{Requests: c.requests, Errors: c.errors})
		if got.Verdict != c.want || !strings.Contains(got.Detail, c.detail) || got.Bound != "at least 20 requests" {
			t.Errorf("%d of %d: %s %q (%s), want %s %q", c.errors, c.requests, got.Verdict, got.Detail, got.Bound, c.want, c.detail)
		}
	}
}

// judge has Step judge one query's result, 10 s into a step that never ends.
func judge(q rollout.Query, r rollout.Result) rollout.Check {
	start := time.UnixMilli(1_700_000_000_000)
	s := rollout.State{
		ID: "r1", Phase: rollout.Progressing, Step: 1, StepStarted: start, LastTick: start,
		Plan: rollout.Plan{Canary: "v2", Stable: "v1", Steps: []uint32{5, 50, 100}, Dwell: time.Hour, Queries: []rollout.Query{q}},
	}
	d := rollout.Step(s, rollout.Evidence{Endpoints: 1, Heartbeat: time.Second, Results: []rollout.Result{r}}, start.Add(10*time.Second))
	if (d.Event == rollout.Rollback) != (d.Checks[0].Verdict == rollout.Breach) {
		panic("a breach that does not roll back, or the reverse")
	}
	return d.Checks[0]
}

func TestQueryVerdicts(t *testing.T) {
	atMost := rollout.Query{Name: "q", HasMax: true, Max: 0.5, MaxGiven: true, Timeout: time.Second}
	atLeast := rollout.Query{Name: "q", HasMin: true, Min: 0.9, Timeout: time.Second}
	between := rollout.Query{Name: "q", HasMin: true, Min: 1, HasMax: true, Max: 2, MaxGiven: true, Timeout: time.Second}
	zero := rollout.Query{Name: "q", HasMax: true, Timeout: time.Second} // max_value left out
	own := rollout.Query{Name: "q", Timeout: time.Second}
	value := func(v float64) rollout.Measurement { return rollout.Measurement{Value: v, HasValue: true} }
	says := func(v rollout.Verdict, value float64) rollout.Measurement {
		return rollout.Measurement{Verdict: v, Value: value, HasValue: true}
	}
	for _, c := range []struct {
		name   string
		q      rollout.Query
		m      rollout.Measurement
		want   rollout.Verdict
		detail string
	}{
		{"equal to the bound", atMost, value(0.5), rollout.Pass, "0.5 is within"},
		{"above", atMost, value(math.Nextafter(0.5, 1)), rollout.Breach, "is above 0.5"},
		{"far below", atMost, value(-1e300), rollout.Pass, ""},
		{"equal to the lower bound", atLeast, value(0.9), rollout.Pass, "within bounds: at least 0.9"},
		{"below", atLeast, value(0.8999), rollout.Breach, "is below 0.9"},
		{"between", between, value(1.5), rollout.Pass, "within bounds: 1 to 2"},
		{"below both", between, value(0), rollout.Breach, ""},
		{"above both", between, value(3), rollout.Breach, ""},
		{"the bound left out is 0", zero, value(0.001), rollout.Breach, ""},
		{"NaN", atMost, value(math.NaN()), rollout.Missing, "nan"},
		{"NaN above a lower bound", atLeast, value(math.NaN()), rollout.Missing, "nan"},
		{"plus infinity", atMost, value(math.Inf(1)), rollout.Breach, ""},
		{"plus infinity without upper bound", atLeast, value(math.Inf(1)), rollout.Missing, "nan"},
		{"minus infinity", atMost, value(math.Inf(-1)), rollout.Missing, "nan"},
		{"minus infinity below a lower bound", atLeast, value(math.Inf(-1)), rollout.Missing, "nan"},
		{"no value", atMost, rollout.Measurement{}, rollout.Missing, "no value"},
		{"an unknown verdict", atMost, rollout.Measurement{Verdict: 77}, rollout.Missing, "no value"},
		{"a value without a bound", own, value(1), rollout.Missing, "no bound"},
		{"own pass", own, rollout.Measurement{Verdict: rollout.Pass, Detail: "fine"}, rollout.Pass, "fine"},
		{"own breach", own, rollout.Measurement{Verdict: rollout.Breach, Detail: "bad"}, rollout.Breach, "bad"},
		{"own missing", own, rollout.Measurement{Verdict: rollout.Missing, Detail: "no series"}, rollout.Missing, "no series"},
		{"own missing with a good value", atMost, says(rollout.Missing, 0.1), rollout.Missing, ""},
		{"a pass above the bound", atMost, says(rollout.Pass, 0.7), rollout.Missing, "contradictory"},
		{"a pass below the bound", atLeast, says(rollout.Pass, 0.7), rollout.Missing, "contradictory"},
		{"a pass with a value, bounds left out", zero, says(rollout.Pass, 0.7), rollout.Pass, ""},
		{"a pass with NaN", own, says(rollout.Pass, math.NaN()), rollout.Missing, "nan"},
		{"a pass with infinity", own, says(rollout.Pass, math.Inf(1)), rollout.Missing, "nan"},
		{"a breach within bounds", atMost, says(rollout.Breach, 0.1), rollout.Breach, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			at := time.UnixMilli(1_700_000_009_000)
			got := judge(c.q, rollout.Result{Rollout: "r1", Step: 1, Began: at, Wall: at, Took: c.m})
			if got.Verdict != c.want || !strings.Contains(got.Detail, c.detail) {
				t.Errorf("%s %q, want %s %q", got.Verdict, got.Detail, c.want, c.detail)
			}
			if math.IsNaN(got.Value) || math.IsInf(got.Value, 0) {
				t.Errorf("value %v would be shown", got.Value)
			}
		})
	}
}

func TestFreshness(t *testing.T) {
	now := time.UnixMilli(1_700_000_010_000)
	for _, c := range []struct {
		name    string
		timeout time.Duration
		rollout string
		step    int
		age     time.Duration
		never   bool
		want    rollout.Verdict
		detail  string
	}{
		{name: "now", timeout: time.Second, rollout: "r1", step: 1, want: rollout.Breach},
		{name: "5 s with a short timeout", timeout: time.Second, rollout: "r1", step: 1, age: 5 * time.Second, want: rollout.Breach},
		{name: "a little more", timeout: time.Second, rollout: "r1", step: 1, age: 5001 * time.Millisecond, want: rollout.Missing, detail: "stale"},
		{name: "twice a long timeout", timeout: 4 * time.Second, rollout: "r1", step: 1, age: 8 * time.Second, want: rollout.Breach},
		{name: "a little more than that", timeout: 4 * time.Second, rollout: "r1", step: 1, age: 8001 * time.Millisecond, want: rollout.Missing, detail: "stale"},
		{name: "the step before", timeout: time.Second, rollout: "r1", step: 0, want: rollout.Missing, detail: "another step"},
		{name: "a step to come", timeout: time.Second, rollout: "r1", step: 2, want: rollout.Missing, detail: "another step"},
		{name: "another rollout", timeout: time.Second, rollout: "r0", step: 1, want: rollout.Missing, detail: "another step"},
		{name: "never", timeout: time.Second, never: true, want: rollout.Missing, detail: "not measured yet"},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := rollout.Result{Rollout: c.rollout, Step: c.step, Began: now.Add(-c.age), Took: rollout.Measurement{Verdict: rollout.Breach}}
			if c.never {
				r = rollout.Result{}
			}
			got := judge(rollout.Query{Name: "q", Timeout: c.timeout}, r)
			if got.Verdict != c.want || !strings.Contains(got.Detail, c.detail) {
				t.Errorf("%s %q, want %s %q", got.Verdict, got.Detail, c.want, c.detail)
			}
		})
	}
}

// Our numbers are those of the published enums, and every one has a name.
func TestEnums(t *testing.T) {
	for n, name := range donav1.RolloutStatus_State_name {
		if got := rollout.Phase(n).String(); "STATE_"+got != name {
			t.Errorf("phase %d is %s, the contract says %s", n, got, name)
		}
	}
	for n, name := range donav1.Verdict_name {
		if got := rollout.Verdict(n).String(); n != 0 && "VERDICT_"+got != name {
			t.Errorf("verdict %d is %s, the contract says %s", n, got, name)
		}
	}
}
