package decide

import (
	"errors"
	"fmt"

	donav1 "github.com/dodona-project/dodona/proto/dona/v1"
	"github.com/dodona-project/dodona/sdk/dona/bucket"
)

// ErrNoFlag says that the snapshot has no flag of that name.
var ErrNoFlag = errors.New("no such flag")

// FlagResult is what one flag gives a request, whatever the flags before it give.
type FlagResult struct {
	Variant    string        // empty when the flag gives none that can serve
	Reason     donav1.Reason // TARGETING_MATCH, SPLIT, DEFAULT, DISABLED or ERROR
	Everyone   bool          // no rule decided, and the flag gives the variant at 100 percent
	Ruled      bool          // the flag has rules
	Why        string        // of REASON_ERROR
	Broken     bool          // this client cannot follow the flag
	Index      int32         // of the flag
	Endpoint   int32         // one that has the variant; -1 without a variant
	TypeErrors uint16        // as in Result
}

// EvaluateFlag evaluates one flag by the code of decisions. The error is ErrNoFlag or
// bucket.ErrUnit. Safe for concurrent use.
func (p *Program) EvaluateFlag(key string, req *Request) (FlagResult, error) {
	res := FlagResult{Index: -1, Endpoint: -1}
	unit, err := bucket.Parse(req.Unit)
	if err != nil {
		return res, err
	}
	i, found := p.byKey[key]
	if !found {
		return res, ErrNoFlag
	}
	res.Index = i
	f := &p.flags[i]
	switch f.off {
	case offDisabled:
		res.Reason = donav1.Reason_REASON_DISABLED
		return res, nil
	case offBroken:
		res.Reason, res.Why, res.Broken = donav1.Reason_REASON_ERROR, f.why, true
		return res, nil
	}
	var facts [maxFacts]fact
	p.facts(req.Attributes, &facts)
	row := p.keys.Row(unit)
	v := p.view(req.Regions, req.IngressRegions)
	hit := p.evaluate(f, req, &facts, &row, &res.TypeErrors)
	switch {
	case hit.kind == KindNone:
		res.Reason = donav1.Reason_REASON_DEFAULT
		return res, nil
	case hit.variant < 0 || p.variants[hit.variant].quarantined || v.pools[hit.variant] == nil:
		res.Reason = donav1.Reason_REASON_ERROR
		res.Why = fmt.Sprintf("its variant %s %s", f.given(hit), p.unusable(hit))
		return res, nil
	}
	res.Reason = donav1.Reason_REASON_TARGETING_MATCH
	if hit.kind == KindFlagRollout {
		res.Reason = donav1.Reason_REASON_SPLIT
	}
	res.Variant = p.variants[hit.variant].name
	res.Endpoint = v.pools[hit.variant].members[0]
	res.Everyone = hit.kind == KindFlagRollout && f.percent == 100
	res.Ruled = len(f.rules) > 0
	return res, nil
}

// given is the name of the variant that a flag gave.
func (f *flag) given(h hit) string {
	if h.rule >= 0 {
		return f.rules[h.rule].name
	}
	return f.name
}

// unusable says why a flag's variant cannot serve.
func (p *Program) unusable(h hit) string {
	if h.variant >= 0 && p.variants[h.variant].quarantined {
		return "is quarantined"
	}
	return "has no endpoint that may serve"
}
