package decide

import (
	"fmt"

	donav1 "github.com/dodona-project/dodona/proto/dona/v1"
	"github.com/dodona-project/dodona/sdk/dona/bucket"
	"github.com/dodona-project/dodona/sdk/dona/match"
)

// flag is a prepared flag rule.
type flag struct {
	rules   []rule
	percent uint32
	variant int32 // of the rollout; -1 = a variant that no endpoint has
	slot    int32 // of the key among those prepared; -1 = hashed when asked for
	off     off

	key  string
	why  string // why it is broken
	name string
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
	slot     int // of the attribute; maxFacts = looked up by name
	operator donav1.TargetingRule_Operator
	values   []uint32
	set      map[uint32]struct{} // instead of values when there are many
	matcher  *match.Matcher      // of the operators that are more than a look-up
	variant  int32

	attribute string
	texts     []string
	name      string
}

// Attributes and the values that rules compare them with are numbered when a
// snapshot is compiled: a request's attributes are looked up once, however many
// flags ask for them.

// maxFacts is the number of attributes that are looked up once per request. Rules
// on further ones look for themselves.
const maxFacts = 16

// fact is an attribute of a request as rules see it.
type fact struct {
	kind  attributeKind
	value uint32 // number of a text; 0 = no rule names it
}

func (p *Program) fact(a *Attribute) fact {
	if a == nil {
		return fact{}
	}
	if a.kind == attributeString {
		return fact{a.kind, p.value(a.text)}
	}
	return fact{kind: a.kind}
}

// value returns the number of a text, 0 of one that no rule names.
func (p *Program) value(text string) uint32 {
	if len(p.values) > scanned {
		return p.values[text]
	}
	for i, t := range p.texts {
		if t == text {
			return uint32(i + 1)
		}
	}
	return 0
}

// facts looks up the attributes of a request that rules ask for.
func (p *Program) facts(attributes []Attribute, into *[maxFacts]fact) {
	for i := range attributes {
		a := &attributes[i]
		for slot, name := range p.names {
			if name == a.name && into[slot].kind == attributeNone {
				into[slot] = p.fact(a)
			}
		}
	}
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
func (p *Program) evaluate(f *flag, req *Request, facts *[maxFacts]fact, row *bucket.Row, typeErrors *uint16) hit {
	for i := range f.rules {
		r := &f.rules[i]
		var seen fact
		if r.slot < maxFacts {
			seen = facts[r.slot]
		} else {
			seen = p.fact(find(req.Attributes, r.attribute))
		}
		var matched bool
		if r.matcher == nil {
			matched = r.matches(seen, typeErrors)
		} else if seen.kind != attributeNone {
			matched = r.judges(find(req.Attributes, r.attribute), typeErrors)
		}
		if matched {
			return hit{KindFlagTargeting, r.variant, int32(i)}
		}
	}
	if f.percent >= 100 || f.percent > 0 && req.Unit != "" && f.bucket(row) < f.percent*bucket.PerPercent {
		return hit{KindFlagRollout, f.variant, -1}
	}
	return hit{}
}

func (f *flag) bucket(row *bucket.Row) uint32 {
	if f.slot >= 0 {
		return row.Bucket(int(f.slot))
	}
	return row.Unit().Bucket(f.key)
}

// weightsSlot is the place of the weights' key among those prepared.
const weightsSlot = 0

// maxPrepared bounds the flags whose keys are prepared: 256 KiB and a moment of
// each compilation.
const maxPrepared = 128

// keys prepares the keys of the flags that have a cohort, and of the weights.
func (c *compiler) keys() {
	p := c.p
	keys := []string{weightsSlot: p.weightsKey}
	for i := range p.flags {
		f := &p.flags[i]
		f.slot = -1
		if f.off == offNot && f.percent > 0 && f.percent < 100 && len(keys) <= maxPrepared {
			f.slot = int32(len(keys))
			keys = append(keys, f.key)
		}
	}
	p.keys = bucket.NewTable(keys)
}

// matches applies a rule without a matcher. A missing attribute matches nothing, NOT_IN
// included; so does one of the wrong type, which is counted.
func (r *rule) matches(f fact, typeErrors *uint16) bool {
	switch {
	case f.kind == attributeNone:
		return false
	case r.operator == donav1.TargetingRule_OPERATOR_EXISTS:
		return true
	case f.kind != attributeString:
		countUp(typeErrors)
		return false
	}
	return r.has(f.value) == (r.operator == donav1.TargetingRule_OPERATOR_IN)
}

// judges applies a rule with a matcher to an attribute that is there.
func (r *rule) judges(a *Attribute, typeErrors *uint16) bool {
	verdict := r.verdict(a)
	if verdict == match.WrongType {
		countUp(typeErrors)
	}
	return verdict == match.Matched
}

func (r *rule) verdict(a *Attribute) match.Verdict {
	switch a.kind {
	case attributeString:
		return r.matcher.Text(a.text)
	case attributeInt:
		return r.matcher.Int(a.number)
	case attributeFloat:
		return r.matcher.Float(a.real)
	}
	return match.WrongType
}

func countUp(n *uint16) {
	if *n < 1<<16-1 {
		*n++
	}
}

func (r *rule) has(value uint32) bool {
	if value == 0 {
		return false
	}
	if r.set != nil {
		_, ok := r.set[value]
		return ok
	}
	for _, v := range r.values {
		if v == value {
			return true
		}
	}
	return false
}

// flag prepares a rule and never fails: a rule that cannot be followed switches its flag off
// and leaves the others alone.
func (c *compiler) flag(f *donav1.FlagRule) flag {
	out := flag{key: f.GetFlag(), percent: f.GetRolloutPercent(), name: f.GetRolloutVariant(), variant: c.variant(f.GetRolloutVariant())}
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
	matchers, err := match.Compile(f.GetTargeting())
	if err != nil {
		return broken("%s", err)
	}
	for i, t := range f.GetTargeting() {
		r := rule{attribute: t.GetAttribute(), operator: t.GetOperator(), matcher: matchers[i], texts: t.GetValues(),
			name: t.GetVariant(), variant: c.variant(t.GetVariant())}
		if r.operator == donav1.TargetingRule_OPERATOR_UNSPECIFIED {
			r.operator = donav1.TargetingRule_OPERATOR_IN
		}
		r.slot = c.slot(r.attribute)
		if r.matcher == nil {
			for _, text := range r.texts {
				r.values = append(r.values, c.value(text))
			}
		}
		if len(r.values) > scanned {
			r.set = make(map[uint32]struct{}, len(r.values))
			for _, v := range r.values {
				r.set[v] = struct{}{}
			}
		}
		out.rules = append(out.rules, r)
	}
	return out
}

// slot returns the place of an attribute among the facts.
func (c *compiler) slot(attribute string) int {
	for i, name := range c.p.names {
		if name == attribute {
			return i
		}
	}
	if len(c.p.names) == maxFacts {
		return maxFacts
	}
	c.p.names = append(c.p.names, attribute)
	return len(c.p.names) - 1
}

// value returns the number of a text, from 1.
func (c *compiler) value(text string) uint32 {
	n, ok := c.p.values[text]
	if !ok {
		n = uint32(len(c.p.values) + 1)
		c.p.values[text] = n
		c.p.texts = append(c.p.texts, text)
	}
	return n
}
