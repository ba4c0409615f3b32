package strategy

import (
	"fmt"
	"time"

	donav1 "github.com/dodona-project/dodona/proto/dona/v1"
	pluginv1 "github.com/dodona-project/dodona/proto/plugin/v1"
)

// fault is why an answer is refused. reason is a label of a metric.
type fault struct{ reason, detail string }

func refuse(reason, format string, args ...any) *fault {
	return &fault{reason: reason, detail: fmt.Sprintf(format, args...)}
}

// The reasons, each with its rows in the tests.
const (
	reasonEmpty        = "empty"
	reasonStrategy     = "strategy"
	reasonAlgorithm    = "algorithm"
	reasonNotExecuted  = "algorithm_not_executed"
	reasonUnknownID    = "unknown_id"
	reasonUnknownGroup = "unknown_group"
	reasonTooLarge     = "too_large"
	reasonAllZero      = "all_zero"
	reasonField        = "field_of_other_algorithm"
	reasonChoices      = "choices"
	reasonRefresh      = "refresh_after"
)

// executed are the algorithms that clients of this version execute. A client
// refuses a snapshot whose plan it cannot follow, so none may leave the host.
var executed = map[donav1.Algorithm]bool{
	donav1.Algorithm_ALGORITHM_ROUND_ROBIN:       true,
	donav1.Algorithm_ALGORITHM_LEAST_CONNECTIONS: true,
}

// check turns an answer into a plan of our own, or says why not. The answer may
// be anything that the wire can carry.
func check(plugin string, req *pluginv1.CompileRequest, reply *pluginv1.CompileReply) (Result, *fault) {
	p := reply.GetPlan()
	if p == nil {
		return Result{}, refuse(reasonEmpty, "there is no plan")
	}
	if s := p.GetStrategy(); s != "" && s != plugin {
		return Result{}, refuse(reasonStrategy, "the plan says it is of another strategy")
	}
	if bad := checkAlgorithm(p); bad != nil {
		return Result{}, bad
	}
	if bad := checkWeights(req, p); bad != nil {
		return Result{}, bad
	}
	if bad := checkGroups(req, p); bad != nil {
		return Result{}, bad
	}
	refresh, bad := checkRefresh(reply)
	if bad != nil {
		return Result{}, bad
	}
	return Result{
		Plan: &donav1.Plan{
			Strategy:     plugin,
			Algorithm:    p.GetAlgorithm(),
			Weights:      p.GetWeights(),
			GroupWeights: p.GetGroupWeights(),
			Choices:      p.GetChoices(),
		},
		RefreshAfter: refresh,
	}, nil
}

func checkAlgorithm(p *donav1.Plan) *fault {
	a := p.GetAlgorithm()
	if _, known := donav1.Algorithm_name[int32(a)]; !known || a == donav1.Algorithm_ALGORITHM_UNSPECIFIED {
		return refuse(reasonAlgorithm, "algorithm is %d: allowed are ROUND_ROBIN and LEAST_CONNECTIONS", a)
	}
	if !executed[a] {
		return refuse(reasonNotExecuted, "algorithm is %s: clients of this version execute ROUND_ROBIN and LEAST_CONNECTIONS", a)
	}
	switch {
	case len(p.GetGroupTiers()) > 0:
		return refuse(reasonField, "group_tiers belongs to TIERED")
	case p.GetHash() != nil:
		return refuse(reasonField, "hash belongs to CONSISTENT_HASH")
	case p.GetMaxLoadPercent() != 0:
		return refuse(reasonField, "max_load_percent belongs to CONSISTENT_HASH")
	case p.GetChoices() != 0 && a != donav1.Algorithm_ALGORITHM_LEAST_CONNECTIONS:
		return refuse(reasonField, "choices belongs to LEAST_CONNECTIONS")
	case p.GetChoices() > MaxChoices:
		return refuse(reasonChoices, "choices is %d: allowed are 0 (2) to %d", p.GetChoices(), MaxChoices)
	}
	return nil
}

// checkWeights refuses weights for what is not a candidate, and a plan that
// leaves nobody to choose.
func checkWeights(req *pluginv1.CompileRequest, p *donav1.Plan) *fault {
	weights := p.GetWeights()
	named, sum := 0, uint64(0)
	for _, c := range req.GetCandidates() {
		w, ok := weights[c.GetId()]
		if !ok {
			sum += uint64(c.GetWeight())
			continue
		}
		named++
		if w > MaxWeight {
			return refuse(reasonTooLarge, "weight of candidate %.64q is %d: allowed are 0 to %d", c.GetId(), w, MaxWeight)
		}
		sum += uint64(w)
	}
	if named != len(weights) {
		return refuse(reasonUnknownID, "%d of %d weights are for ids that are no candidates", len(weights)-named, len(weights))
	}
	if sum == 0 && len(req.GetCandidates()) > 0 {
		return refuse(reasonAllZero, "every one of %d candidates has weight 0", len(req.GetCandidates()))
	}
	return nil
}

// checkGroups refuses shares for groups without candidates. A group that is not
// named has no share.
func checkGroups(req *pluginv1.CompileRequest, p *donav1.Plan) *fault {
	shares := p.GetGroupWeights()
	if len(shares) == 0 {
		return nil
	}
	// What is left of a group when its candidates' own weights are applied.
	left := make(map[string]uint64)
	for _, c := range req.GetCandidates() {
		w, ok := p.GetWeights()[c.GetId()]
		if !ok {
			w = c.GetWeight()
		}
		left[c.GetGroup()] += uint64(w)
	}
	sum := uint64(0)
	for group, share := range shares {
		weight, known := left[group]
		switch {
		case !known:
			return refuse(reasonUnknownGroup, "a share is for a group without candidates")
		case share > MaxWeight:
			return refuse(reasonTooLarge, "share of a group is %d: allowed are 0 to %d", share, MaxWeight)
		case weight > 0:
			sum += uint64(share)
		}
	}
	if sum == 0 {
		return refuse(reasonAllZero, "no group with a share has a candidate with a weight")
	}
	return nil
}

func checkRefresh(reply *pluginv1.CompileReply) (time.Duration, *fault) {
	r := reply.GetRefreshAfter()
	if r == nil {
		return 0, nil
	}
	if err := r.CheckValid(); err != nil || r.AsDuration() < 0 {
		return 0, refuse(reasonRefresh, "refresh_after is not a duration from 0 up")
	}
	d := r.AsDuration()
	if d == 0 {
		return 0, nil
	}
	return min(max(d, MinRefresh), MaxRefresh), nil
}
