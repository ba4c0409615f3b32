package rollout

import (
	"crypto/sha256"
	"fmt"
	"math"
	"math/bits"
	"strconv"
	"time"

	donav1 "github.com/dodona-project/dodona/proto/dona/v1"
)

// GateName is the name under which status and audit show the built-in gate.
// A query cannot have it.
const GateName = "built-in gate"

// gateProvider stands where a query's check has its plugin.
const gateProvider = "built-in"

// Gate is the built-in check of the canary's error rate.
type Gate struct {
	MaxErrorPercent uint32 // 0..100; a rate equal to it passes
	MinRequests     uint32 // below, nothing is known; 0 reads as 1
	// CountsOnly leaves the rate to a query that tests it better, and asks for
	// MinRequests only: two tests of one rate would roll back when either errs.
	CountsOnly bool
}

// Counts is what clients reported of the canary in the current step.
type Counts struct {
	Requests uint64
	Errors   uint64
}

func (g Gate) needed() uint64 { return uint64(max(g.MinRequests, 1)) }

// Needs is how many more requests the gate waits for; 0 = enough.
func (g Gate) Needs(c Counts) uint64 {
	if need := g.needed(); c.Requests < need {
		return need - c.Requests
	}
	return 0
}

// Judge compares the counts with the gate, in integers: no rounding stands
// between a rate and its bound. Below the minimum it says BREACH only when even
// flawless requests up to the minimum could not bring the rate back.
func (g Gate) Judge(c Counts) Check {
	check := Check{Name: GateName, Provider: gateProvider, Bound: fmt.Sprintf("at most %d %% errors", g.MaxErrorPercent)}
	if g.CountsOnly {
		check.Bound = fmt.Sprintf("at least %d requests", g.needed())
	}
	if c.Requests > 0 {
		check.Value, check.HasValue = 100*float64(c.Errors)/float64(c.Requests), true
	}
	short := g.Needs(c)
	switch {
	case short > 0 && !g.CountsOnly && exceeds(c.Errors, g.MaxErrorPercent, g.needed()):
		check.Verdict = Breach
		check.Detail = fmt.Sprintf("%d errors already exceed %d %% of the %d requests needed (have %d)", c.Errors, g.MaxErrorPercent, g.needed(), c.Requests)
	case short > 0:
		check.Verdict = Missing
		check.Detail = fmt.Sprintf("requests: have %d, need %d: need %d more", c.Requests, g.needed(), short)
	case g.CountsOnly:
		check.Verdict = Pass
		check.Detail = fmt.Sprintf("requests: have %d, need %d; their error rate is for %s to judge", c.Requests, g.needed(), sequentialProvider)
	case exceeds(c.Errors, g.MaxErrorPercent, c.Requests):
		check.Verdict = Breach
		check.Detail = fmt.Sprintf("%d of %d requests failed: above %d %%", c.Errors, c.Requests, g.MaxErrorPercent)
	default:
		check.Verdict = Pass
		check.Detail = fmt.Sprintf("%d of %d requests failed: within %d %%", c.Errors, c.Requests, g.MaxErrorPercent)
	}
	return check
}

// exceeds reports errors/requests > percent/100, exactly.
func exceeds(errors uint64, percent uint32, requests uint64) bool {
	eh, el := bits.Mul64(errors, 100)
	rh, rl := bits.Mul64(requests, uint64(percent))
	return eh > rh || eh == rh && el > rl
}

// Query is one external check of a rollout.
type Query struct {
	Name     string
	Provider string // the analysis plugin
	Max      float64
	HasMax   bool
	Min      float64
	HasMin   bool
	// MaxGiven tells a bound that was asked for from the zero that an absent
	// max_value reads as; only the first can contradict a plugin's verdict.
	MaxGiven bool
	Timeout  time.Duration
}

// fresh is how long ago an answer may have been asked for and still count.
func (q Query) fresh() time.Duration { return max(5*time.Second, 2*q.Timeout) }

func (q Query) bound() string {
	switch {
	case q.HasMin && q.HasMax:
		return number(q.Min) + " to " + number(q.Max)
	case q.HasMin:
		return "at least " + number(q.Min)
	case q.HasMax:
		return "at most " + number(q.Max)
	default:
		return "by its provider"
	}
}

// Result is what one evaluation of a query brought, tagged with what it was
// asked for. The zero value is "nothing was measured yet".
type Result struct {
	Rollout string    // id
	Step    int       // index
	Began   time.Time // store clock, when it was asked; zero = never
	Wall    time.Time // the same instant on the wall clock, for people
	Took    Measurement
}

// Measurement is a provider's answer after the plugin boundary checked its
// form. What it means is decided here.
type Measurement struct {
	Verdict  Verdict // 0 with HasValue: compare Value with the query's bounds
	Value    float64
	HasValue bool
	Detail   string // one line for people
	Evidence []byte // what was measured, as received; at most 64 KiB

	State      []byte        // handed back at the next evaluation; at most 64 KiB
	RetryAfter time.Duration // not asked again before; below 1 s reads as 1 s

	Plugin  string // who answered, for the audit entry: name,
	Version string // version
	Digest  string // and hash of the binary; may be empty
}

// Check is one check as judged at one tick.
type Check struct {
	Name     string
	Provider string
	Verdict  Verdict
	Value    float64
	HasValue bool
	Bound    string
	Detail   string    // one line: why this verdict. For MISSING it begins with the reason
	Began    time.Time // store clock; zero for the gate and when nothing was measured
	Result   Result    // what it was judged by; zero for the gate
}

// proto is the check as the record and status carry it.
func (c Check) proto() *donav1.AnalysisResult {
	r := &donav1.AnalysisResult{Name: c.Name, Verdict: c.Verdict.proto(), Value: c.Value, Detail: c.Detail, Provider: c.Provider}
	if !c.Began.IsZero() {
		r.CheckedUnix = c.Result.Wall.Unix()
		if len(c.Result.Took.Evidence) > 0 {
			digest := sha256.Sum256(c.Result.Took.Evidence)
			r.EvidenceDigest = digest[:]
		}
	}
	return r
}

// judge turns the newest result of a query into a check. Only an answer that
// was asked for in this step and not long ago counts.
func (q Query) judge(r Result, rollout string, step int, now time.Time) Check {
	c := Check{Name: q.Name, Provider: q.Provider, Verdict: Missing, Bound: q.bound(), Result: r}
	switch {
	case r.Began.IsZero():
		c.Detail = "not measured yet"
		return c
	case r.Rollout != rollout || r.Step != step:
		c.Result = Result{}
		c.Detail = "stale: measured in another step"
		return c
	}
	c.Began = r.Began
	if age := now.Sub(r.Began); age > q.fresh() {
		c.Detail = fmt.Sprintf("stale: asked %s ago, at most %s count", age.Round(time.Second), q.fresh())
		return c
	}
	c.Verdict, c.Detail = q.compare(r.Took)
	if v := r.Took.Value; r.Took.HasValue && !math.IsNaN(v) && !math.IsInf(v, 0) {
		c.Value, c.HasValue = v, true
	}
	return c
}

// compare gives the verdict of one answer.
func (q Query) compare(m Measurement) (Verdict, string) {
	told := func(s string) string {
		if m.Detail == "" {
			return s
		}
		return m.Detail
	}
	switch m.Verdict {
	case Breach:
		return Breach, told("breach, says its provider")
	case Pass:
		// A pass whose own value says otherwise is no pass.
		if m.HasValue && (math.IsNaN(m.Value) || math.IsInf(m.Value, 0)) {
			return Missing, "nan: a pass with the value " + number(m.Value)
		}
		if m.HasValue && (q.HasMin || q.MaxGiven) {
			if ok, why := q.within(m.Value); !ok {
				return Missing, "contradictory: a pass with a value out of bounds, " + why
			}
		}
		return Pass, told("pass, says its provider")
	case Missing:
		return Missing, told("its provider has no answer")
	}
	switch {
	case !m.HasValue:
		return Missing, told("no value")
	case math.IsNaN(m.Value) || math.IsInf(m.Value, -1):
		return Missing, "nan: the value is " + number(m.Value)
	case math.IsInf(m.Value, 1) && !q.HasMax:
		return Missing, "nan: the value is +Inf and there is no upper bound"
	case !q.HasMax && !q.HasMin:
		return Missing, "no bound: the provider gave a value and no verdict"
	}
	ok, why := q.within(m.Value)
	if !ok {
		return Breach, why
	}
	return Pass, why
}

func (q Query) within(v float64) (bool, string) {
	switch {
	case q.HasMax && v > q.Max:
		return false, number(v) + " is above " + number(q.Max)
	case q.HasMin && v < q.Min:
		return false, number(v) + " is below " + number(q.Min)
	}
	return true, number(v) + " is within bounds: " + q.bound()
}

func number(v float64) string { return strconv.FormatFloat(v, 'g', -1, 64) }
