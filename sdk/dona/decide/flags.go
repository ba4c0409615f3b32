package decide

import (
	"fmt"

	donav1 "github.com/dodona-project/dodona/proto/dona/v1"
	"github.com/dodona-project/dodona/sdk/dona/bucket"
)

// flag is a prepared flag rule.
type flag struct {
	key     string
	off     off
	why     string // why it is broken
	rules   []rule
	percent uint32
	variant int32 // of the rollout; -1 = a variant that no endpoint has
	name    string
}

// off says that a flag takes no part.
type off uint8

const (
	offNot      off = iota
	offDisabled     // switched off
	offBroken       // it has a rule this client cannot follow; reason ERROR
)

// rule is a prepared targeting rule.
type rule struct {
	attribute string
	operator  donav1.TargetingRule_Operator
	values    []string
	set       map[string]struct{} // instead of values when there are many
	variant   int32
	name      string
}

// scanned is the number of values up to which comparing one by one is faster than
// a map.
const scanned = 8

// hit is what a flag gave.
type hit struct {
	kind    Kind // KindNone, KindFlagTargeting, KindFlagRollout
	variant int32
	rule    int32
}

// evaluate gives the first targeting rule that matches, else the rollout.
func (f *flag) evaluate(req *Request, unit bucket.Unit, typeErrors *uint16) hit {
	for i := range f.rules {
		if r := &f.rules[i]; r.matches(req.Attributes, typeErrors) {
			return hit{KindFlagTargeting, r.variant, int32(i)}
		}
	}
	if f.percent >= 100 || f.percent > 0 && req.Unit != "" && unit.Bucket(f.key) < f.percent*bucket.PerPercent {
		return hit{KindFlagRollout, f.variant, -1}
	}
	return hit{}
}

// matches applies one rule. A missing attribute matches nothing, NOT_IN included;
// so does one of the wrong type, which is counted.
func (r *rule) matches(attributes []Attribute, typeErrors *uint16) bool {
	a := find(attributes, r.attribute)
	if a == nil {
		return false
	}
	if r.operator == donav1.TargetingRule_OPERATOR_EXISTS {
		return true
	}
	if a.kind != attributeString {
		if *typeErrors < 1<<16-1 {
			*typeErrors++
		}
		return false
	}
	return r.has(a.text) == (r.operator == donav1.TargetingRule_OPERATOR_IN)
}

func (r *rule) has(text string) bool {
	if r.set != nil {
		_, ok := r.set[text]
		return ok
	}
	for _, v := range r.values {
		if v == text {
			return true
		}
	}
	return false
}

// prepareFlag never fails: a rule that cannot be followed switches its flag off
// and leaves the others alone.
func prepareFlag(f *donav1.FlagRule, variant func(string) int32) flag {
	out := flag{key: f.GetFlag(), percent: f.GetRolloutPercent(), name: f.GetRolloutVariant(), variant: variant(f.GetRolloutVariant())}
	if f.GetDisabled() {
		out.off = offDisabled
		return out
	}
	broken := func(format string, args ...any) flag {
		return flag{key: f.GetFlag(), off: offBroken, why: fmt.Sprintf(format, args...)}
	}
	switch {
	case f.GetHashVersion() > 1:
		return broken("hash_version %d is unknown: this client has 1", f.GetHashVersion())
	case f.GetRolloutPercent() > 100:
		return broken("rollout_percent is %d: allowed are 0 to 100", f.GetRolloutPercent())
	case f.GetRolloutPercent() > 0 && f.GetRolloutVariant() == "":
		return broken("rollout_variant is empty at %d %%", f.GetRolloutPercent())
	}
	for i, t := range f.GetTargeting() {
		r := rule{attribute: t.GetAttribute(), operator: t.GetOperator(), values: t.GetValues(),
			name: t.GetVariant(), variant: variant(t.GetVariant())}
		if r.operator == donav1.TargetingRule_OPERATOR_UNSPECIFIED {
			r.operator = donav1.TargetingRule_OPERATOR_IN
		}
		switch r.operator {
		case donav1.TargetingRule_OPERATOR_IN, donav1.TargetingRule_OPERATOR_NOT_IN, donav1.TargetingRule_OPERATOR_EXISTS:
		default:
			return broken("targeting[%d] has operator %s, which this client does not know", i, r.operator)
		}
		if r.attribute == "" || r.name == "" {
			return broken("targeting[%d] needs an attribute and a variant", i)
		}
		if len(r.values) > scanned {
			r.set = make(map[string]struct{}, len(r.values))
			for _, v := range r.values {
				r.set[v] = struct{}{}
			}
		}
		out.rules = append(out.rules, r)
	}
	return out
}
