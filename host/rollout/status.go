package rollout

import (
	"fmt"
	"strings"
	"time"

	donav1 "github.com/dodona-project/dodona/proto/dona/v1"
	statev1 "github.com/dodona-project/dodona/proto/state/v1"
	"google.golang.org/protobuf/proto"

	"github.com/dodona-project/dodona/host/store"
)

// Status shows a service's newest rollout, live or ended; nil when it never had
// one. Its analysis lists each query, in the order they were asked for, and last
// the built-in gate. A check is PASS only while a fresh measurement of this step
// says so: what was not measured, or too long ago, is MISSING.
func (c *Controller) Status(tx store.ReadTx, service string) (*donav1.RolloutStatus, error) {
	var r statev1.Rollout
	version, err := store.Load(tx, recordKey(service), &r)
	if err != nil || version == 0 {
		return nil, err
	}
	s, err := stateOf(&r)
	if err != nil {
		return nil, err
	}
	counts := Counts{Requests: r.GetCanaryRequests(), Errors: r.GetCanaryErrors()}
	if s.inStep() {
		reported, err := loadCounts(tx, service, &r)
		if err != nil {
			return nil, err
		}
		counts = Counts{Requests: reported.GetCanary().GetRequests(), Errors: reported.GetCanary().GetErrors()}
	}
	st := &donav1.RolloutStatus{
		Service: service, Id: s.ID, CanaryVariant: s.Plan.Canary, StableVariant: s.Plan.Stable,
		State: s.Phase.proto(), StepIndex: uint32(s.Step), Steps: s.Plan.Steps,
		StepStartedUnix: r.GetStepStartedUnixMs() / 1000, DwellMs: r.GetDwellMs(),
		CanaryRequests: counts.Requests, CanaryErrors: counts.Errors,
	}
	if !s.StepStarted.IsZero() {
		st.StepPercent = s.Plan.Steps[s.Step]
	}
	if s.Phase == Promoted {
		st.StepPercent = 100
	}
	if s.Phase.Live() {
		st.RequestsNeeded = s.Plan.Gate.Needs(counts)
	}
	for i, q := range s.Plan.Queries {
		st.Analysis = append(st.Analysis, shown(&r, s, i, q, tx.Now()))
	}
	st.Analysis = append(st.Analysis, s.Plan.Gate.Judge(counts).proto())
	st.Reason = reason(s, st)
	return st, nil
}

// shown is a query's newest check as the record has it, aged to now.
func shown(r *statev1.Rollout, s State, i int, q Query, now time.Time) *donav1.AnalysisResult {
	if i >= len(r.GetAnalysis()) || i >= len(r.GetAnalysisBeganMs()) {
		c := Check{Name: q.Name, Provider: q.Provider, Detail: "not measured yet"}
		return bounded(c.proto(), q)
	}
	result := proto.CloneOf(r.GetAnalysis()[i])
	began := fromMS(r.GetAnalysisBeganMs()[i])
	if age := now.Sub(began); s.inStep() && !began.IsZero() && age > q.fresh() && result.GetVerdict() != donav1.Verdict_VERDICT_MISSING {
		result.Verdict = donav1.Verdict_VERDICT_MISSING
		result.Detail = fmt.Sprintf("stale: asked %s ago, at most %s count", age.Round(time.Second), q.fresh())
	}
	return bounded(result, q)
}

// bounded adds the bound to the line of a check that does not name it.
func bounded(r *donav1.AnalysisResult, q Query) *donav1.AnalysisResult {
	if bound := q.bound(); !strings.Contains(r.GetDetail(), bound) {
		r.Detail = strings.TrimSpace(r.GetDetail() + " (bound: " + bound + ")")
	}
	return r
}

// reason is the one line for people: where the rollout is, what is left to
// serve, and what it lacks.
func reason(s State, st *donav1.RolloutStatus) string {
	switch {
	case s.Phase == Promoted && s.Unverified:
		return s.Reason + " (unverified: the evidence was not there)"
	case !s.Phase.Live() || s.Phase == Pending:
		return s.Reason
	case !s.inStep():
		return s.Reason + "; no step has begun"
	}
	var b strings.Builder
	if s.Phase == Paused {
		fmt.Fprintf(&b, "%s; ", s.Reason)
	}
	left := max(0, s.Plan.Dwell-s.Dwell)
	fmt.Fprintf(&b, "step %d of %d at %d %%: dwell %s of %s served, %s left", s.Step+1, len(s.Plan.Steps), s.Percent(),
		s.Dwell.Round(100*time.Millisecond), s.Plan.Dwell, left.Round(100*time.Millisecond))
	if s.Phase == Paused {
		b.WriteString(" and frozen")
	}
	for _, a := range st.GetAnalysis() {
		if a.GetVerdict() != donav1.Verdict_VERDICT_PASS {
			fmt.Fprintf(&b, "; %s: %s %s", a.GetName(), strings.TrimPrefix(a.GetVerdict().String(), "VERDICT_"), a.GetDetail())
		}
	}
	if !s.GoneSince.IsZero() {
		fmt.Fprintf(&b, "; no legal endpoint of %s for %s", s.Plan.Canary, s.Gone.Round(100*time.Millisecond))
	}
	return clip(b.String(), 2*maxReason)
}
