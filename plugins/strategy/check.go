package strategy

import (
	"fmt"
	"strings"
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
	reasonUnknownID    = "unknown_id"
	reasonUnknownGroup = "unknown_group"
	reasonTooLarge     = "too_large"
	reasonAllZero      = "all_zero"
	reasonField        = "field_of_other_algorithm"
	reasonChoices      = "choices"
	reasonHash         = "hash"
	reasonMaxLoad      = "max_load_percent"
	reasonRefresh      = "refresh_after"
)

// executed are the algorithms that clients of this version execute, with the fields
// of a plan that belong to them beside weights and group weights. A client refuses
// a snapshot whose plan it cannot follow, so no other may leave the host.
var executed = map[donav1.Algorithm]struct{ choices, tiers, hash bool }{
	donav1.Algorithm_ALGORITHM_ROUND_ROBIN:       {},
	donav1.Algorithm_ALGORITHM_RANDOM:            {},
	donav1.Algorithm_ALGORITHM_LEAST_CONNECTIONS: {choices: true},
	donav1.Algorithm_ALGORITHM_TIERED:            {tiers: true},
	donav1.Algorithm_ALGORITHM_CONSISTENT_HASH:   {hash: true},
	donav1.Algorithm_ALGORITHM_PEAK_EWMA:         {choices: true},
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
	hash, bad := checkHash(req.GetScope(), p)
	if bad != nil {
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
			Strategy:       plugin,
			Algorithm:      p.GetAlgorithm(),
			Weights:        p.GetWeights(),
			GroupWeights:   p.GetGroupWeights(),
			GroupTiers:     p.GetGroupTiers(),
			Hash:           hash,
			Choices:        p.GetChoices(),
			MaxLoadPercent: p.GetMaxLoadPercent(),
		},
		RefreshAfter: refresh,
	}, nil
}

func checkAlgorithm(p *donav1.Plan) *fault {
	a := p.GetAlgorithm()
	has, known := executed[a]
	switch {
	case !known:
		return refuse(reasonAlgorithm, "algorithm is %s (%d): clients of this version execute those from ROUND_ROBIN (1) to PEAK_EWMA (6)", a, a)
	case len(p.GetGroupTiers()) > 0 && !has.tiers:
		return refuse(reasonField, "group_tiers belongs to TIERED")
	case p.GetHash() != nil && !has.hash:
		return refuse(reasonField, "hash belongs to CONSISTENT_HASH")
	case p.GetMaxLoadPercent() != 0 && !has.hash:
		return refuse(reasonField, "max_load_percent belongs to CONSISTENT_HASH")
	case p.GetChoices() != 0 && !has.choices:
		return refuse(reasonField, "choices belongs to LEAST_CONNECTIONS and PEAK_EWMA")
	case p.GetChoices() > MaxChoices:
		return refuse(reasonChoices, "choices is %d: allowed are 0 (2) to %d", p.GetChoices(), MaxChoices)
	}
	return nil
}

// checkHash returns what a consistent hash goes by, nil for another algorithm.
func checkHash(scope string, p *donav1.Plan) (*donav1.HashPolicy, *fault) {
	if !executed[p.GetAlgorithm()].hash {
		return nil, nil
	}
	if m := p.GetMaxLoadPercent(); m != 0 && (m < MinLoadPercent || m > MaxLoadPercent) {
		return nil, refuse(reasonMaxLoad, "max_load_percent is %d: allowed are 0 (125) and %d to %d", m, MinLoadPercent, MaxLoadPercent)
	}
	source, name := p.GetHash().GetSource(), p.GetHash().GetName()
	named := false
	switch source {
	case donav1.HashPolicy_SOURCE_ATTRIBUTE, donav1.HashPolicy_SOURCE_HEADER:
		named = true
	case donav1.HashPolicy_SOURCE_UNIT, donav1.HashPolicy_SOURCE_CLIENT_IP, donav1.HashPolicy_SOURCE_CLIENT_ID, donav1.HashPolicy_SOURCE_TARGET_HOST:
	default:
		return nil, refuse(reasonHash, "hash.source is %s (%d): allowed are UNIT (1) to TARGET_HOST (6)", source, source)
	}
	switch {
	case strings.HasPrefix(scope, "service/") && source != donav1.HashPolicy_SOURCE_UNIT && source != donav1.HashPolicy_SOURCE_ATTRIBUTE:
		return nil, refuse(reasonHash, "hash.source is %s: clients of a service know UNIT and ATTRIBUTE; the others are for routings", source)
	case named && (name == "" || len(name) > MaxHashName):
		return nil, refuse(reasonHash, "hash.name has %d bytes: %s takes 1 to %d", len(name), source, MaxHashName)
	case !named && name != "":
		return nil, refuse(reasonHash, "hash.name is set: %s takes none", source)
	}
	return &donav1.HashPolicy{Source: source, Name: name}, nil
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

// checkGroups refuses shares and tiers for groups without candidates. A group that
// is not named has no share, if others have, and is in tier 0.
func checkGroups(req *pluginv1.CompileRequest, p *donav1.Plan) *fault {
	shares, tiers := p.GetGroupWeights(), p.GetGroupTiers()
	if len(shares)+len(tiers) == 0 {
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
	for group := range tiers {
		if _, known := left[group]; !known {
			return refuse(reasonUnknownGroup, "a tier is for a group without candidates")
		}
	}
	if len(shares) == 0 {
		return nil
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
