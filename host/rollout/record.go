package rollout

import (
	"fmt"
	"math"
	"time"

	donav1 "github.com/dodona-project/dodona/proto/dona/v1"
	statev1 "github.com/dodona-project/dodona/proto/state/v1"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"
)

// liveIndex lists the services with a live rollout, by the time it began.
const liveIndex = "rollout/live"

func recordKey(service string) string { return "svc/" + service + "/rollout" }
func countsKey(service string) string { return "svc/" + service + "/counts" }

const (
	defaultProvider = "prometheus"
	defaultTimeout  = 3 * time.Second
	// sequentialProvider tests the error rate that the built-in gate would
	// compare; limitField of its config is the bound, in percent.
	sequentialProvider = "sequential"
	limitField         = "limit"
	// keptState is the longest state of a provider that the record keeps, in
	// bytes. A longer one lives in this process only.
	keptState = 1 << 10
)

func providerOf(q *donav1.AnalysisQuery) string {
	if q.GetProvider() == "" {
		return defaultProvider
	}
	return q.GetProvider()
}

func timeoutOf(q *donav1.AnalysisQuery) time.Duration {
	if q.GetTimeoutMs() == 0 {
		return defaultTimeout
	}
	return time.Duration(q.GetTimeoutMs()) * time.Millisecond
}

// asked is query i of a rollout as its provider gets it: what was left out is
// filled in. The spec is not changed.
func asked(spec *donav1.StartRolloutRequest, i int) *donav1.AnalysisQuery {
	q := proto.CloneOf(spec.GetAnalysis()[i])
	q.Provider, q.TimeoutMs = providerOf(q), uint32(timeoutOf(q).Milliseconds())
	if limitFromGate(q) {
		if q.Config == nil {
			q.Config = &structpb.Struct{}
		}
		if q.Config.Fields == nil {
			q.Config.Fields = map[string]*structpb.Value{}
		}
		q.Config.Fields[limitField] = structpb.NewNumberValue(float64(spec.GetMaxErrorPercent()))
	}
	return q
}

// limitFromGate reports whether a query tests the rollout's max_error_percent.
func limitFromGate(q *donav1.AnalysisQuery) bool {
	return providerOf(q) == sequentialProvider && q.GetConfig().GetFields()[limitField] == nil
}

func planOf(spec *donav1.StartRolloutRequest) Plan {
	p := Plan{
		Canary: spec.GetCanaryVariant(),
		Stable: spec.GetStableVariant(),
		Steps:  spec.GetSteps(),
		Dwell:  time.Duration(spec.GetStepSeconds()) * time.Second,
		Gate:   Gate{MaxErrorPercent: spec.GetMaxErrorPercent(), MinRequests: spec.GetMinRequests()},
	}
	for _, q := range spec.GetAnalysis() {
		p.Gate.CountsOnly = p.Gate.CountsOnly || providerOf(q) == sequentialProvider
		p.Queries = append(p.Queries, Query{
			Name: q.GetName(), Provider: providerOf(q), Timeout: timeoutOf(q),
			Max: q.GetMaxValue(), HasMax: !q.GetNoMaxValue(), MaxGiven: !q.GetNoMaxValue() && q.GetMaxValue() != 0,
			Min: q.GetMinValue(), HasMin: q.GetHasMinValue(),
		})
	}
	return p
}

// stateOf reads a record. A record that no Step can act on is an error: a
// damaged rollout must stand still and not move traffic.
func stateOf(r *statev1.Rollout) (State, error) {
	s := State{
		ID: r.GetId(), Plan: planOf(r.GetSpec()),
		Phase: phaseOf(r.GetState()), PausedFrom: phaseOf(r.GetPausedFrom()),
		Step: int(r.GetStepIndex()), StepStarted: fromMS(r.GetStepStartedMs()),
		Dwell:    time.Duration(min(r.GetDwellMs(), math.MaxInt32*1000)) * time.Millisecond,
		LastTick: fromMS(r.GetLastTickMs()), GoneSince: fromMS(r.GetCanaryGoneSinceMs()),
		Gone:   time.Duration(min(r.GetCanaryGoneMs(), math.MaxInt32*1000)) * time.Millisecond,
		Reason: r.GetReason(), Unverified: r.GetUnverified(),
	}
	switch {
	case s.Phase < Pending || s.Phase > Superseded:
		return s, fmt.Errorf("rollout: record of %s has the unknown state %d", s.ID, r.GetState())
	case s.Phase == Paused && (s.PausedFrom < Pending || s.PausedFrom > Holding):
		return s, fmt.Errorf("rollout: record of %s was paused from the unknown state %d", s.ID, r.GetPausedFrom())
	case s.Step >= len(s.Plan.Steps):
		return s, fmt.Errorf("rollout: record of %s is at step %d of %d", s.ID, s.Step, len(s.Plan.Steps))
	}
	return s, nil
}

// nextRecord is the record after d. What Step does not know of (ids, versions,
// results) is carried over, or begins anew with a new step. old is not changed.
func nextRecord(old *statev1.Rollout, d Decision, counts Counts, wall, now time.Time, revision uint64) *statev1.Rollout {
	r := proto.CloneOf(old)
	n := d.Next
	r.State, r.PausedFrom = n.Phase.proto(), n.PausedFrom.proto()
	r.StepIndex, r.StepStartedMs = uint32(n.Step), toMS(n.StepStarted)
	r.DwellMs, r.LastTickMs = uint64(n.Dwell.Milliseconds()), toMS(n.LastTick)
	r.CanaryGoneSinceMs, r.CanaryGoneMs = toMS(n.GoneSince), uint64(n.Gone.Milliseconds())
	r.Reason, r.Unverified = n.Reason, n.Unverified
	r.CanaryRequests, r.CanaryErrors = counts.Requests, counts.Errors
	r.Analysis, r.AnalysisBeganMs = nil, nil
	if len(d.Checks) > 0 && len(r.AnalysisState) != len(n.Plan.Queries) {
		r.AnalysisState = make([][]byte, len(n.Plan.Queries))
	}
	for i, c := range d.Checks {
		if c.Provider == gateProvider && c.Name == GateName {
			continue
		}
		r.Analysis = append(r.Analysis, c.proto())
		r.AnalysisBeganMs = append(r.AnalysisBeganMs, toMS(c.Result.Began))
		// A step that has measured nothing yet keeps the state of the one before.
		if state := c.Result.Took.State; !c.Result.Began.IsZero() {
			if len(state) > keptState {
				state = nil
			}
			r.AnalysisState[i] = state
		}
	}
	if d.Event != None {
		r.Transitions++
	}
	if d.NewStep {
		r.StepStartedUnixMs, r.WeightsVersion = wall.UnixMilli(), revision
		r.CanaryRequests, r.CanaryErrors = 0, 0
		r.Analysis, r.AnalysisBeganMs = nil, nil
	}
	if !n.Phase.Live() && r.EndedMs == 0 {
		r.EndedMs = toMS(now)
	}
	return r
}

// fromMS and toMS keep the zero time as 0.
func fromMS(ms int64) time.Time {
	if ms == 0 {
		return time.Time{}
	}
	return time.UnixMilli(ms)
}

func toMS(t time.Time) int64 {
	if t.IsZero() {
		return 0
	}
	return t.UnixMilli()
}
