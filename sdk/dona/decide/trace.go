package decide

import (
	"fmt"
	"strings"

	donav1 "github.com/dodona-project/dodona/proto/dona/v1"
	"github.com/dodona-project/dodona/sdk/dona/bucket"
	"github.com/dodona-project/dodona/sdk/dona/match"
)

// Trace is what each stage of one decision saw, for people.
type Trace struct {
	Service string
	Version uint64
	Stages  []Stage
	Result  Explanation
}

// Stage is one stage of a decision.
type Stage struct {
	Name   string   // residency, flag <key>, weights, pick
	Result string   // one line: what came out
	Detail []string // what it was made of; may be empty
}

// Explanation is the outcome of an explained decision.
type Explanation struct {
	Kind     Kind
	Reason   donav1.Reason
	Variant  string // empty when there is no endpoint
	Flag     string // the deciding flag, or empty
	Endpoint Endpoint
	Error    string // empty when there is an endpoint
}

// Explain decides a request on a snapshot by the code that serves requests and
// says what each stage did. It touches no state: the same snapshot and request
// give the same variant for the same unit; without a unit the weights are drawn
// anew, and which of several equal endpoints is picked is chance. An error means
// that a client would refuse the snapshot.
func Explain(s *donav1.ConfigSnapshot, req Request) (*Trace, error) {
	p, err := Compile(s, nil)
	if err != nil {
		return nil, fmt.Errorf("explain: %w", err)
	}
	return p.Explain(req), nil
}

// Explain is Decide with a trace. It moves a round robin by one turn, as a
// decision does.
func (p *Program) Explain(req Request) *Trace {
	t := &Trace{Service: p.service, Version: p.version}
	var res Result
	p.decide(&req, &res, t)
	t.Result = Explanation{Kind: res.Kind, Reason: res.Reason, Flag: p.Flag(res.Flag)}
	if res.Err != nil {
		t.Result.Error = res.Err.Error()
		return t
	}
	t.Result.Endpoint = p.endpoints[res.Endpoint]
	t.Result.Variant = t.Result.Endpoint.Variant
	return t
}

func (t *Trace) add(name, result string, detail ...string) {
	t.Stages = append(t.Stages, Stage{Name: name, Result: result, Detail: detail})
}

func (t *Trace) residency(p *Program, v *View) {
	var detail []string
	if len(p.policy) > 0 {
		line := "policy allows " + strings.Join(p.policy, ", ")
		if p.ruleID != "" {
			line += " (rule " + p.ruleID + ")"
		}
		detail = append(detail, line)
	}
	if len(v.requested) > 0 {
		detail = append(detail, "request allows "+strings.Join(v.requested, ", "))
	}
	if len(v.ingress) > 0 {
		detail = append(detail, "ingress rule allows "+strings.Join(v.ingress, ", "))
	}
	draining := 0
	for _, d := range p.details {
		if d.weight == 0 {
			draining++
		}
	}
	if draining > 0 {
		detail = append(detail, fmt.Sprintf("%d draining", draining))
	}
	for i, pool := range v.pools {
		if pool != nil {
			line := fmt.Sprintf("%s: %d", p.variants[i].name, len(pool.members))
			if p.variants[i].quarantined {
				line += ", quarantined"
			}
			detail = append(detail, line)
		}
	}
	t.add("residency", fmt.Sprintf("%d of %d endpoints may serve", v.legal, len(p.endpoints)), detail...)
}

func (t *Trace) flagOff(f *flag) {
	if f.off == offDisabled {
		t.add("flag "+f.key, "disabled: REASON_DISABLED")
		return
	}
	t.add("flag "+f.key, "broken: REASON_ERROR", f.why)
}

// passed notes flags that do not take the request.
func (t *Trace) passed(flags []flag, req *Request) {
	for i := range flags {
		if f := &flags[i]; f.off != offNot {
			t.flagOff(f)
		} else {
			t.flagMissed(f, req)
		}
	}
}

func (t *Trace) flagMissed(f *flag, req *Request) {
	t.add("flag "+f.key, "does not take the request: REASON_DEFAULT", append(f.mistyped(req), f.cohort(req))...)
}

// mistyped names the rules that found an attribute of another type than they take.
func (f *flag) mistyped(req *Request) (lines []string) {
	for i := range f.rules {
		r := &f.rules[i]
		a := find(req.Attributes, r.attribute)
		if a == nil {
			continue
		}
		takes := ""
		switch {
		case r.matcher != nil:
			if r.verdict(a) == match.WrongType {
				takes = r.matcher.Takes()
			}
		case r.operator != donav1.TargetingRule_OPERATOR_EXISTS && a.kind != attributeString:
			takes = "a text"
		}
		if takes != "" {
			lines = append(lines, fmt.Sprintf("targeting[%d]: %s is not %s, which %s takes", i, r.attribute, takes, r.operatorName()))
		}
	}
	return lines
}

func (r *rule) operatorName() string { return strings.TrimPrefix(r.operator.String(), "OPERATOR_") }

func (t *Trace) flagUnusable(p *Program, f *flag, h hit) {
	t.add("flag "+f.key, fmt.Sprintf("gives %s, which %s: REASON_ERROR, the next flag decides", f.given(h), p.unusable(h)))
}

func (t *Trace) flagHit(p *Program, f *flag, h hit, req *Request) {
	name := p.variants[h.variant].name
	if h.kind == KindFlagTargeting {
		r := &f.rules[h.rule]
		rule := fmt.Sprintf("targeting[%d]: %s %s", h.rule, r.attribute, r.operatorName())
		if len(r.texts) > 0 {
			rule += " " + strings.Join(r.texts, ", ")
		}
		t.add("flag "+f.key, "gives "+name+": REASON_TARGETING_MATCH", rule)
		return
	}
	t.add("flag "+f.key, "gives "+name+": REASON_SPLIT", f.cohort(req))
}

func (f *flag) cohort(req *Request) string {
	if req.Unit == "" {
		return fmt.Sprintf("no unit; cohort of %d %%", f.percent)
	}
	return fmt.Sprintf("unit has bucket %d; cohort of %d %% is below %d",
		bucket.Bucket(req.Unit, f.key), f.percent, f.percent*bucket.PerPercent)
}

func (t *Trace) unweighted(p *Program, v *View) {
	switch {
	case v.only >= 0:
		t.add("weights", "none set; only "+p.variants[v.only].name+" can serve")
	case v.all != nil:
		t.add("weights", "none set: all variants that can serve")
	default:
		t.add("weights", "none set; no variant can serve")
	}
}

func (t *Trace) weighted(p *Program, v *View, chosen *share, place uint64, sticky bool) {
	var detail []string
	for _, w := range p.weights {
		line := fmt.Sprintf("%s %d", w.name, w.weight)
		switch {
		case w.weight == 0:
			line += ": never by weight"
		case w.variant < 0 || v.pools[w.variant] == nil:
			line += ": no endpoint that may serve"
		case p.variants[w.variant].quarantined:
			line += ": quarantined"
		}
		detail = append(detail, line)
	}
	if chosen == nil {
		t.add("weights", "none usable", detail...)
		return
	}
	how := "drawn at random"
	if sticky {
		how = "by bucket of " + p.weightsKey
	}
	t.add("weights", fmt.Sprintf("gives %s", p.variants[chosen.variant].name),
		append(detail, fmt.Sprintf("place %d of %d, %s", place, bucket.Buckets, how))...)
}

func (t *Trace) picked(p *Program, from *pool, key uint64, endpoint int32) {
	algorithm := "ROUND_ROBIN"
	if p.plan != nil {
		algorithm = strings.TrimPrefix(p.plan.GetAlgorithm().String(), "ALGORITHM_")
	}
	detail := fmt.Sprintf("%s%s among %d of %d", algorithm, p.hashedBy(key), from.picker.Len(), len(from.members))
	if s := p.plan.GetStrategy(); s != "" {
		detail += ", plan of strategy " + s
	}
	if endpoint < 0 {
		t.add("pick", "none left", detail)
		return
	}
	e := p.endpoints[endpoint]
	t.add("pick", e.ID+" at "+e.Address, detail)
}
