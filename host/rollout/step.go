package rollout

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/dodona-project/dodona/host/limits"
)

const (
	// maxTick is the most dwell one tick adds: a host that was away, or a clock
	// that stepped, serves no more than that.
	maxTick = 2 * time.Second
	// goneBeats is how many heartbeats a canary may be without a legal endpoint.
	goneBeats = 3
	// maxReason bounds the line that says what a rollout waits for, in bytes.
	maxReason = 1 << 10
)

// Plan is what an operator asked for. It never changes while a rollout lives.
type Plan struct {
	Canary  string
	Stable  string
	Steps   []uint32 // percents, strictly rising, the last is 100
	Dwell   time.Duration
	Gate    Gate
	Queries []Query
}

// State is a rollout between two ticks. Times are of the store's clock.
type State struct {
	ID          string
	Plan        Plan // shared: not to be changed
	Phase       Phase
	PausedFrom  Phase // Paused: where Resume goes back to
	Step        int   // index into Plan.Steps; means nothing before the first step
	StepStarted time.Time
	Dwell       time.Duration // served in this step
	LastTick    time.Time
	GoneSince   time.Time     // when a tick first saw no legal canary endpoint; zero = there is one
	Gone        time.Duration // ticked since
	Reason      string        // why this phase; one line
	Unverified  bool          // promoted without the evidence
}

// inStep reports whether a step has begun and is being judged.
func (s State) inStep() bool {
	return s.Phase == Progressing || s.Phase == Holding || s.Phase == Paused && s.PausedFrom != Pending
}

// Percent is the canary's share of the traffic in this state.
func (s State) Percent() uint32 {
	switch {
	case s.Phase == Promoted:
		return 100
	case s.inStep():
		return s.Plan.Steps[s.Step]
	default:
		return 0
	}
}

func (s State) last() bool { return s.Step == len(s.Plan.Steps)-1 }

// Evidence is everything a decision rests on, read at one instant.
type Evidence struct {
	Op        Op     // what an operator asks; NoOp at a tick
	OpReason  string // the operator's own words
	Endpoints int    // legal endpoints of the canary
	Heartbeat time.Duration
	Counts    Counts
	Results   []Result // the newest of each query, in the plan's order; may be short
}

// Decision is what Step decided. With Event None and Refused empty, Next
// differs from the state before only in its timers.
type Decision struct {
	Next    State
	Event   Event
	Refused string // an operator's verb that this state does not allow, and why

	Checks     []Check // the queries in the plan's order, then the gate; empty before the first step
	Missing    []Check // those of them that kept it from going on
	Cause      string  // what moved it: breach, canary gone, evidence, dwell, operator, endpoint
	Decisive   *Check  // the check that breached; nil when none did
	NewStep    bool    // Next begins a step: counts and dwell start at nothing
	Quarantine bool    // the canary must not be picked any more
	Verified   bool    // dwell served and every check passed when it moved
}

// Step decides what happens to a rollout now: at most one transition, in the
// order operator, breach, dwell, missing, advance. It is pure: it reads nothing
// but its arguments and changes none of them.
func Step(s State, e Evidence, now time.Time) Decision {
	d := Decision{Next: s}
	if !s.Phase.Live() {
		if e.Op != NoOp {
			d.Refused = fmt.Sprintf("the rollout is %s: it has ended", s.Phase)
		}
		return d
	}
	if s.inStep() {
		d.Checks = s.judge(e, now)
	}
	if e.Op != NoOp {
		d.operate(s, e, now)
		return d
	}

	n := &d.Next
	served := min(maxTick, max(0, now.Sub(s.LastTick)))
	n.LastTick = now
	if s.Phase == Pending {
		if e.Endpoints > 0 {
			d.begin(0, now, "endpoint", "the canary has a legal endpoint")
		}
		return d
	}
	if !s.inStep() {
		return d // paused before its first step
	}
	n.countGone(e.Endpoints, served, now)

	if d.breached(e) {
		return d
	}
	if s.Phase == Paused {
		return d
	}
	if s.Phase == Progressing {
		n.Dwell += served
	}
	d.Missing = missing(d.Checks, e)
	switch {
	case s.Phase == Holding:
		if len(d.Missing) == 0 {
			d.move(Resumed, Progressing, "evidence", "nothing is missing any more")
		}
	case n.Dwell < s.Plan.Dwell:
	case len(d.Missing) > 0:
		d.move(Held, Holding, "evidence", "the dwell is served, evidence is missing: "+clip(listMissing(d.Missing), maxReason))
	case s.last():
		d.Verified = true
		d.move(Promote, Promoted, "dwell", "every step served its dwell and passed its checks")
	default:
		d.Verified = true
		d.begin(s.Step+1, now, "dwell", "the dwell is served and every check passed")
	}
	return d
}

// judge looks at every check of the step.
func (s State) judge(e Evidence, now time.Time) []Check {
	checks := make([]Check, 0, len(s.Plan.Queries)+1)
	for i, q := range s.Plan.Queries {
		var r Result
		if i < len(e.Results) {
			r = e.Results[i]
		}
		checks = append(checks, q.judge(r, s.ID, s.Step, now))
	}
	return append(checks, s.Plan.Gate.Judge(e.Counts))
}

func (s *State) countGone(endpoints int, served time.Duration, now time.Time) {
	switch {
	case endpoints > 0:
		s.GoneSince, s.Gone = time.Time{}, 0
	case s.GoneSince.IsZero():
		s.GoneSince, s.Gone = now, 0
	default:
		s.Gone += served
	}
}

// breached rolls back when a check breached or the canary is gone for good.
func (d *Decision) breached(e Evidence) bool {
	if i := firstBreach(d.Checks); i >= 0 {
		c := d.Checks[i]
		d.Decisive = &c
		d.rollback("breach", c.Name+": "+c.Detail)
		return true
	}
	if !d.Next.GoneSince.IsZero() && d.Next.Gone >= goneBeats*e.Heartbeat {
		d.rollback("canary gone", fmt.Sprintf("no legal endpoint of %s for %d heartbeats", d.Next.Plan.Canary, goneBeats))
		return true
	}
	return false
}

func (d *Decision) rollback(cause, reason string) {
	d.Quarantine = true
	d.move(Rollback, RolledBack, cause, reason)
}

func (d *Decision) move(event Event, to Phase, cause, reason string) {
	d.Event, d.Cause = event, cause
	d.Next.Phase, d.Next.Reason = to, reason
	if to != Paused {
		d.Next.PausedFrom = 0
	}
}

func (d *Decision) begin(step int, now time.Time, cause, reason string) {
	d.move(Stepped, Progressing, cause, reason)
	d.newStep(step, now)
}

func (d *Decision) newStep(step int, now time.Time) {
	n := &d.Next
	d.NewStep = true
	n.Step, n.StepStarted, n.LastTick = step, now, now
	n.Dwell, n.GoneSince, n.Gone = 0, time.Time{}, 0
}

// operate does what an operator asks, or says why not.
func (d *Decision) operate(s State, e Evidence, now time.Time) {
	n := &d.Next
	words := func(otherwise string) string {
		if e.OpReason != "" {
			return e.OpReason
		}
		return otherwise
	}
	switch e.Op {
	case Pause:
		if s.Phase == Paused {
			d.Refused = "the rollout is PAUSED already"
			return
		}
		n.PausedFrom = s.Phase
		d.move(WasPaused, Paused, "operator", words("paused by an operator"))
		n.LastTick = now
	case Resume:
		if s.Phase != Paused {
			d.Refused = fmt.Sprintf("the rollout is %s, not PAUSED", s.Phase)
			return
		}
		d.move(Resumed, s.PausedFrom, "operator", words("resumed by an operator"))
		n.LastTick = now
	case PromoteStep, PromoteAll:
		d.promote(s, e, now, words("promoted by an operator"))
	case Abort:
		d.move(WasAborted, Aborted, "operator", words("aborted by an operator"))
	case Supersede:
		d.move(Replaced, Superseded, "operator", words("another rollout took its place"))
	default:
		d.Refused = fmt.Sprintf("%s is no verb for a rollout", e.Op)
	}
}

func (d *Decision) promote(s State, e Evidence, now time.Time, reason string) {
	if e.Op == PromoteStep && !s.inStep() {
		d.Refused = "no step has begun: the rollout waits for an endpoint of " + limits.Quote(s.Plan.Canary)
		if s.Phase == Paused {
			d.Refused = "no step has begun: RESUME first"
		}
		return
	}
	if i := firstBreach(d.Checks); i >= 0 {
		d.Refused = fmt.Sprintf("a BREACH stands: %s: %s", limits.Quote(d.Checks[i].Name), d.Checks[i].Detail)
		return
	}
	if e.Endpoints == 0 {
		d.Refused = fmt.Sprintf("the canary %s has no legal endpoint", limits.Quote(s.Plan.Canary))
		return
	}
	d.Missing = missing(d.Checks, e)
	d.Verified = s.inStep() && s.Dwell >= s.Plan.Dwell && len(d.Missing) == 0
	switch {
	case e.Op == PromoteAll || s.last():
		d.Verified = d.Verified && s.last()
		d.Next.Unverified = !d.Verified
		d.move(Promote, Promoted, "operator", reason)
	case s.Phase == Paused:
		d.Event, d.Cause, d.Next.Reason = Stepped, "operator", reason
		d.Next.PausedFrom = Progressing
		d.newStep(s.Step+1, now)
	default:
		d.begin(s.Step+1, now, "operator", reason)
	}
}

func firstBreach(checks []Check) int {
	return slices.IndexFunc(checks, func(c Check) bool { return c.Verdict == Breach })
}

// missing is what a rollout needs and does not have: checks without a verdict,
// and a canary to send traffic to.
func missing(checks []Check, e Evidence) []Check {
	var out []Check
	for _, c := range checks {
		if c.Verdict != Pass {
			out = append(out, c)
		}
	}
	if e.Endpoints == 0 {
		out = append(out, Check{Name: "canary endpoint", Provider: gateProvider, Verdict: Missing, Detail: "the canary has no legal endpoint"})
	}
	return out
}

func listMissing(checks []Check) string {
	parts := make([]string, len(checks))
	for i, c := range checks {
		parts[i] = fmt.Sprintf("%s (%s)", c.Name, c.Detail)
	}
	return strings.Join(parts, "; ")
}
