// Package decide is the decision pipeline of the service plane: a pure function
// from a snapshot and a request to an endpoint. Package dona calls it for every
// request, the command line to explain a decision.
//
// Compile turns a snapshot into a Program: flat arrays, prepared rules, and for
// each set of legal endpoints the tables to choose from. Deciding reads a Program
// and nothing else. It takes no lock, allocates nothing, and costs the same at ten
// thousand endpoints as at ten.
//
// The stages, in order:
//
//	residency  which endpoints may serve the request at all; never relaxed later
//	flags      in order of their keys: the first that gives a usable variant
//	weights    among the variants with weight, by bucket or at random
//	pick       one endpoint of the variant, by the plan
package decide

import (
	"math/rand/v2"

	donav1 "github.com/dodona-project/dodona/proto/dona/v1"
	"github.com/dodona-project/dodona/sdk/dona/bucket"
	"github.com/dodona-project/dodona/sdk/dona/plan"
)

// Request is what a decision depends on besides the snapshot. Nothing of it is
// kept: its slices may live on the caller's stack and be used again.
type Request struct {
	// Unit is who the request is for (a user, a session): the same unit gets the
	// same variant and, under a plan that hashes by unit, the same endpoint while
	// that has room. Empty is anonymous. At most 1,024 bytes, no zero byte.
	Unit string
	// Attributes are what targeting rules look at, and a plan that hashes by one.
	// The first of a name counts.
	Attributes []Attribute
	// Regions, when not empty, are the only regions that may serve this request,
	// on top of the service's own policy.
	Regions []string
	// IngressRegions, when not empty, are the only regions that the ingress rule
	// allows by which the request came in, on top of all others.
	IngressRegions []string
	// Tried are ids of endpoints that are left out, usually because an attempt on
	// them failed.
	Tried []string
	// ID, when set, names this request in audit events. Events with an ID are not
	// folded together. At most 128 bytes.
	ID string
}

// Kind says what decided the variant.
type Kind uint8

// The kinds of decision.
const (
	KindNone          Kind = iota
	KindFlagTargeting      // a targeting rule of a flag
	KindFlagRollout        // the unit is in a flag's cohort
	KindWeight             // the variant weights, or the endpoints' own when there are none
	KindOnlyVariant        // no weights, and one variant that can serve
	KindDenied             // residency left no endpoint
	KindUnavailable        // nothing usable for another reason
)

var kindNames = [...]string{"none", "flag_targeting", "flag_rollout", "weight", "only_variant", "denied", "unavailable"}

// String returns the name of the kind as metrics and traces show it.
func (k Kind) String() string {
	if int(k) < len(kindNames) {
		return kindNames[k]
	}
	return "unknown"
}

// Endpoint is an instance that can serve requests.
type Endpoint struct {
	ID      string
	Address string // host:port
	Variant string
	Region  string
	Zone    string
}

// Result is the outcome of one decision. When Err is not nil there is no
// endpoint; Err is then a *DeniedError, an *UnavailableError or bucket.ErrUnit.
type Result struct {
	View     *View // which endpoints were legal; nil only for bucket.ErrUnit
	Err      error
	Load     *plan.Load // of the endpoint; nil = none
	Endpoint int32      // index for Program.Endpoint; -1 = none
	Flag     int32      // index of the deciding flag for Program.Flag; -1 = none
	Kind     Kind
	Reason   donav1.Reason
	// Missed has a bit for each of the first 64 flags that was evaluated and did
	// not take the request: out of the cohort and no targeting rule hit.
	Missed uint64
	// TypeErrors counts attributes that had another type than a rule asks for.
	TypeErrors uint16
}

// Decide decides one request. Safe for concurrent use.
func (p *Program) Decide(req *Request) (res Result) {
	p.decide(req, &res, nil)
	return res
}

// DecideInto is Decide for callers that have a place for the result.
func (p *Program) DecideInto(req *Request, res *Result) { p.decide(req, res, nil) }

// decide is the pipeline. With a trace it also notes what each stage saw; there
// is no second implementation for explaining.
func (p *Program) decide(req *Request, res *Result, trace *Trace) {
	*res = Result{Endpoint: -1, Flag: -1}
	unit, err := bucket.Parse(req.Unit)
	if err != nil {
		res.Kind, res.Err = KindUnavailable, err
		return
	}
	v := p.view(req.Regions, req.IngressRegions)
	res.View = v
	if trace != nil {
		trace.residency(p, v)
	}
	if v.legal == 0 {
		res.Kind, res.Err = v.nothing.kind, v.nothing.err
		return
	}

	row := p.keys.Row(unit)
	variant := p.byFlags(req, &row, v, res, trace)
	var from *pool
	if variant >= 0 {
		from = v.pools[variant]
	} else {
		from = p.byWeights(req, &row, v, res, trace)
	}
	if from == nil {
		res.Kind, res.Err = KindUnavailable, v.noVariant
		return
	}
	key := p.hashKey(req)
	i, load := from.picker.Choose(key, req.Tried)
	if load == nil {
		res.Kind, res.Err = KindUnavailable, v.noneLeft
		if trace != nil {
			trace.picked(p, from, key, -1)
		}
		return
	}
	res.Endpoint, res.Load = from.members[i], load
	if trace != nil {
		trace.picked(p, from, key, res.Endpoint)
	}
}

// byFlags evaluates the flags in order and returns the variant of the first that
// gives a usable one, or -1.
func (p *Program) byFlags(req *Request, row *bucket.Row, v *View, res *Result, trace *Trace) int32 {
	if len(p.flags) == 0 {
		return -1
	}
	var facts [maxFacts]fact
	p.facts(req.Attributes, &facts)
	begin := 0
	if w, ok := p.screen.begin(&facts, len(p.names)); ok {
		for begin < w.flags {
			i := w.next(row, req.Unit != "")
			// The flags in between do not take the request.
			between := (uint64(1)<<i - 1) &^ (uint64(1)<<begin - 1)
			res.Missed |= between & w.on
			if trace != nil {
				trace.passed(p.flags[begin:i], req)
			}
			if begin = i; i == w.flags {
				break
			}
			if variant := p.byFlag(i, req, &facts, row, v, res, trace); variant >= 0 {
				return variant
			}
			begin++
		}
	}
	for i := begin; i < len(p.flags); i++ {
		if variant := p.byFlag(i, req, &facts, row, v, res, trace); variant >= 0 {
			return variant
		}
	}
	return -1
}

// byFlag evaluates one flag and returns the usable variant it gives, or -1.
func (p *Program) byFlag(i int, req *Request, facts *[maxFacts]fact, row *bucket.Row, v *View, res *Result, trace *Trace) int32 {
	f := &p.flags[i]
	if f.off != offNot {
		if trace != nil {
			trace.flagOff(f)
		}
		return -1
	}
	hit := p.evaluate(f, req, facts, row, &res.TypeErrors)
	switch {
	case hit.kind == KindNone:
		if i < 64 {
			res.Missed |= 1 << i
		}
		if trace != nil {
			trace.flagMissed(f, req)
		}
	case hit.variant < 0 || p.variants[hit.variant].quarantined || v.pools[hit.variant] == nil:
		// The flag named a variant that cannot serve: the next flag decides.
		if trace != nil {
			trace.flagUnusable(p, f, hit)
		}
	default:
		res.Flag, res.Kind, res.Reason = int32(i), hit.kind, donav1.Reason_REASON_TARGETING_MATCH
		if hit.kind == KindFlagRollout {
			res.Reason = donav1.Reason_REASON_SPLIT
		}
		if trace != nil {
			trace.flagHit(p, f, hit, req)
		}
		return hit.variant
	}
	return -1
}

// byWeights returns the endpoints to pick from when no flag decided, or nil when
// weights are given and none of them can be used.
func (p *Program) byWeights(req *Request, row *bucket.Row, v *View, res *Result, trace *Trace) *pool {
	res.Reason = donav1.Reason_REASON_DEFAULT
	if len(p.weights) == 0 {
		res.Kind = KindWeight
		if v.only >= 0 {
			res.Kind = KindOnlyVariant
		}
		if trace != nil {
			trace.unweighted(p, v)
		}
		return v.all
	}
	res.Kind, res.Reason = KindWeight, donav1.Reason_REASON_SPLIT
	if v.shareTotal == 0 {
		if trace != nil {
			trace.weighted(p, v, nil, 0, false)
		}
		return nil
	}
	// A place on the line of all usable weights: sticky for a unit, in list order.
	sticky := req.Unit != ""
	var place uint64
	if sticky {
		place = uint64(row.Bucket(weightsSlot)) * v.shareTotal
	} else {
		place = rand.Uint64N(bucket.Buckets * v.shareTotal)
	}
	for i := range v.shares {
		if s := &v.shares[i]; place < s.end*bucket.Buckets {
			if trace != nil {
				trace.weighted(p, v, s, place/v.shareTotal, sticky)
			}
			return v.pools[s.variant]
		}
	}
	return nil // unreachable: the last end is the total
}
