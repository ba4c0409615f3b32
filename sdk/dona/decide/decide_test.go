package decide_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	donav1 "github.com/dodona-project/dodona/proto/dona/v1"
	"github.com/dodona-project/dodona/sdk/dona/bucket"
	"github.com/dodona-project/dodona/sdk/dona/decide"
)

const (
	none      = donav1.Reason_REASON_UNSPECIFIED
	targeted  = donav1.Reason_REASON_TARGETING_MATCH
	split     = donav1.Reason_REASON_SPLIT
	byDefault = donav1.Reason_REASON_DEFAULT
)

// endpoints reads "id variant region weight", one a line.
func endpoints(t testing.TB, lines ...string) []*donav1.Endpoint {
	t.Helper()
	var out []*donav1.Endpoint
	for _, l := range lines {
		e := &donav1.Endpoint{}
		if _, err := fmt.Sscan(l, &e.Id, &e.Variant, &e.Region, &e.LbWeight); err != nil {
			t.Fatalf("%q: %v", l, err)
		}
		if e.Region == "-" {
			e.Region = ""
		}
		e.Address = e.Id + ".test:80"
		out = append(out, e)
	}
	return out
}

func snapshot(t testing.TB) *donav1.ConfigSnapshot {
	return &donav1.ConfigSnapshot{
		Service: "checkout", Version: 7,
		Endpoints: endpoints(t, "a v1 eu 100", "b v1 us 100", "c v2 eu 100"),
		Weights:   []*donav1.VariantWeight{{Variant: "v2", Weight: 0}, {Variant: "v1", Weight: 100}},
	}
}

func targeting(key, attribute string, op donav1.TargetingRule_Operator, variant string, values ...string) *donav1.FlagRule {
	return &donav1.FlagRule{Flag: key, Targeting: []*donav1.TargetingRule{{Attribute: attribute, Operator: op, Values: values, Variant: variant}}}
}

func rollout(key string, percent uint32, variant string) *donav1.FlagRule {
	return &donav1.FlagRule{Flag: key, RolloutPercent: percent, RolloutVariant: variant}
}

const (
	opIn     = donav1.TargetingRule_OPERATOR_IN
	opNotIn  = donav1.TargetingRule_OPERATOR_NOT_IN
	opExists = donav1.TargetingRule_OPERATOR_EXISTS
)

// Each row changes the base snapshot (v1 in eu and us with all the weight, v2 in eu
// with none) and says what a request comes to.
func TestPipeline(t *testing.T) {
	type change = func(*donav1.ConfigSnapshot)
	flags := func(f ...*donav1.FlagRule) change { return func(s *donav1.ConfigSnapshot) { s.Flags = f } }
	both := func(cs ...change) change {
		return func(s *donav1.ConfigSnapshot) {
			for _, c := range cs {
				c(s)
			}
		}
	}
	quarantine := func(v ...string) change {
		return func(s *donav1.ConfigSnapshot) { s.QuarantinedVariants = v }
	}
	noWeights := func(s *donav1.ConfigSnapshot) { s.Weights = nil }
	weights := func(pairs ...any) change {
		return func(s *donav1.ConfigSnapshot) {
			s.Weights = nil
			for i := 0; i < len(pairs); i += 2 {
				s.Weights = append(s.Weights, &donav1.VariantWeight{Variant: pairs[i].(string), Weight: uint32(pairs[i+1].(int))})
			}
		}
	}
	policy := func(regions ...string) change {
		return func(s *donav1.ConfigSnapshot) {
			s.Residency = &donav1.ResidencyPolicy{AllowedRegions: regions, RuleId: "gdpr"}
		}
	}
	list := func(lines ...string) change {
		return func(s *donav1.ConfigSnapshot) { s.Endpoints = endpoints(t, lines...) }
	}
	ch := []decide.Attribute{decide.String("country", "CH")}

	for _, c := range []struct {
		name    string
		change  change
		req     decide.Request
		kind    decide.Kind
		reason  donav1.Reason
		variant string // or part of the error
		flag    string
		ids     string // endpoints that may come; empty = any of the variant
	}{
		// Residency.
		{"no constraint", nil, decide.Request{}, decide.KindWeight, split, "v1", "", "a b"},
		{"policy", policy("us"), decide.Request{}, decide.KindWeight, split, "v1", "", "b"},
		{"request", nil, decide.Request{Regions: []string{"us"}}, decide.KindWeight, split, "v1", "", "b"},
		{"policy and request", policy("us", "eu"), decide.Request{Regions: []string{"eu", "mars"}}, decide.KindWeight, split, "v1", "", "a"},
		{"empty intersection", policy("eu"), decide.Request{Regions: []string{"us"}}, decide.KindDenied, none, "residency: no endpoint in both eu (policy, rule gdpr) and us (request)", "", ""},
		{"nothing in the region", nil, decide.Request{Regions: []string{"mars"}}, decide.KindDenied, none, "residency: no endpoint in mars", "", ""},
		{"an ingress rule joins in", nil, decide.Request{IngressRegions: []string{"us"}}, decide.KindWeight, split, "v1", "", "b"},
		{"ingress rule and request", nil, decide.Request{Regions: []string{"eu", "us"}, IngressRegions: []string{"us", "mars"}}, decide.KindWeight, split, "v1", "", "b"},
		{"nothing in ingress rule and request", nil, decide.Request{Regions: []string{"eu"}, IngressRegions: []string{"us"}}, decide.KindDenied, none, "both eu (request) and us (ingress rule)", "", ""},
		{"nothing in ingress rule and policy", policy("eu"), decide.Request{IngressRegions: []string{"us"}}, decide.KindDenied, none, "both eu (policy, rule gdpr) and us (ingress rule)", "", ""},
		{"nothing in all three", policy("eu", "us"), decide.Request{Regions: []string{"us"}, IngressRegions: []string{"eu"}}, decide.KindDenied, none, "all of eu, us (policy, rule gdpr) and us (request) and eu (ingress rule)", "", ""},
		{"a region in all three", policy("eu", "us"), decide.Request{Regions: []string{"us"}, IngressRegions: []string{"us"}}, decide.KindWeight, split, "v1", "", "b"},
		{"policy without endpoint", policy("mars", "venus"), decide.Request{}, decide.KindDenied, none, "residency: no endpoint in mars, venus", "", ""},
		{"all draining under a policy", both(policy("us"), list("a v1 eu 100", "b v1 us 0")), decide.Request{}, decide.KindDenied, none, "residency: no endpoint in us", "", ""},
		{"an empty region is in no list", both(list("a v1 - 100"), noWeights), decide.Request{Regions: []string{""}}, decide.KindDenied, none, "residency: no endpoint in", "", ""},
		{"an empty region without a list", both(list("a v1 - 100"), noWeights), decide.Request{}, decide.KindOnlyVariant, byDefault, "v1", "", "a"},
		{"no flag relaxes residency", both(policy("us"), flags(rollout("f", 100, "v2"))), decide.Request{Unit: "u"}, decide.KindWeight, split, "v1", "", "b"},
		{"no endpoint at all", list(), decide.Request{}, decide.KindUnavailable, none, "unavailable: service checkout: it has no endpoint", "", ""},
		{"all draining", list("a v1 eu 0"), decide.Request{}, decide.KindUnavailable, none, "no endpoint that takes requests", "", ""},

		// Flags: targeting.
		{"IN", flags(targeting("f", "country", opIn, "v2", "DE", "CH")), decide.Request{Attributes: ch}, decide.KindFlagTargeting, targeted, "v2", "f", "c"},
		{"unspecified reads as IN", flags(targeting("f", "country", 0, "v2", "CH")), decide.Request{Attributes: ch}, decide.KindFlagTargeting, targeted, "v2", "f", "c"},
		{"IN among many", flags(targeting("f", "country", opIn, "v2", strings.Fields("1 2 3 4 5 6 7 8 9 CH")...)), decide.Request{Attributes: ch}, decide.KindFlagTargeting, targeted, "v2", "f", "c"},
		{"IN, another value", flags(targeting("f", "country", opIn, "v2", "ch")), decide.Request{Attributes: ch}, decide.KindWeight, split, "v1", "", ""},
		{"NOT_IN", flags(targeting("f", "country", opNotIn, "v2", "DE")), decide.Request{Attributes: ch}, decide.KindFlagTargeting, targeted, "v2", "f", "c"},
		{"NOT_IN, missing attribute", flags(targeting("f", "country", opNotIn, "v2", "DE")), decide.Request{}, decide.KindWeight, split, "v1", "", ""},
		{"NOT_IN, wrong type", flags(targeting("f", "country", opNotIn, "v2", "DE")), decide.Request{Attributes: []decide.Attribute{decide.Int("country", 41)}}, decide.KindWeight, split, "v1", "", ""},
		{"EXISTS", flags(targeting("f", "beta", opExists, "v2")), decide.Request{Attributes: []decide.Attribute{decide.Bool("beta", false)}}, decide.KindFlagTargeting, targeted, "v2", "f", "c"},
		{"EXISTS, missing", flags(targeting("f", "beta", opExists, "v2")), decide.Request{Attributes: ch}, decide.KindWeight, split, "v1", "", ""},
		{"an unknown operator gives nothing", flags(targeting("a", "country", 99, "v2", "CH"), targeting("b", "country", opIn, "v2", "CH")), decide.Request{Attributes: ch}, decide.KindFlagTargeting, targeted, "v2", "b", "c"},
		{"an unknown operator spoils the whole flag", flags(&donav1.FlagRule{Flag: "a", RolloutPercent: 100, RolloutVariant: "v2", Targeting: []*donav1.TargetingRule{
			{Attribute: "country", Values: []string{"CH"}, Variant: "v2"}, {Attribute: "x", Operator: 99, Values: []string{"y"}, Variant: "v2"}}}), decide.Request{Unit: "u", Attributes: ch}, decide.KindWeight, split, "v1", "", ""},
		{"a broken rule spoils the whole flag", flags(&donav1.FlagRule{Flag: "a", RolloutPercent: 100, RolloutVariant: "v2", Targeting: []*donav1.TargetingRule{
			{Attribute: "x", Operator: donav1.TargetingRule_OPERATOR_MATCHES, Values: []string{"("}, Variant: "v2"}}}), decide.Request{Unit: "u", Attributes: ch}, decide.KindWeight, split, "v1", "", ""},
		{"MATCHES, then IN", flags(&donav1.FlagRule{Flag: "a", Targeting: []*donav1.TargetingRule{
			{Attribute: "country", Operator: donav1.TargetingRule_OPERATOR_MATCHES, Values: []string{"^D"}, Variant: "v1"}, {Attribute: "country", Values: []string{"CH"}, Variant: "v2"}}}), decide.Request{Attributes: ch}, decide.KindFlagTargeting, targeted, "v2", "a", "c"},
		{"the first of a name counts", flags(targeting("f", "age", donav1.TargetingRule_OPERATOR_NUM_GE, "v2", "18")), decide.Request{Attributes: []decide.Attribute{decide.Int("age", 17), decide.Int("age", 18)}}, decide.KindWeight, split, "v1", "", ""},
		{"first hit wins", flags(&donav1.FlagRule{Flag: "a", Targeting: []*donav1.TargetingRule{
			{Attribute: "country", Values: []string{"CH"}, Variant: "v1"}, {Attribute: "country", Values: []string{"CH"}, Variant: "v2"}}}), decide.Request{Attributes: ch}, decide.KindFlagTargeting, targeted, "v1", "a", ""},

		// Flags: order and rollout.
		{"order of key bytes", flags(rollout("b", 100, "v1"), rollout("B", 100, "v2")), decide.Request{Unit: "u"}, decide.KindFlagRollout, split, "v2", "B", "c"},
		{"in the cohort", flags(rollout("use-v2", 21, "v2")), decide.Request{Unit: "user-2"}, decide.KindFlagRollout, split, "v2", "use-v2", "c"},
		{"out of the cohort", flags(rollout("use-v2", 20, "v2")), decide.Request{Unit: "user-2"}, decide.KindWeight, split, "v1", "", ""},
		{"no unit below 100", flags(rollout("use-v2", 99, "v2")), decide.Request{}, decide.KindWeight, split, "v1", "", ""},
		{"no unit at 100", flags(rollout("use-v2", 100, "v2")), decide.Request{}, decide.KindFlagRollout, split, "v2", "use-v2", "c"},
		{"disabled", flags(&donav1.FlagRule{Flag: "a", RolloutPercent: 100, RolloutVariant: "v2", Disabled: true}), decide.Request{Unit: "u"}, decide.KindWeight, split, "v1", "", ""},
		{"unknown hash version", flags(&donav1.FlagRule{Flag: "a", RolloutPercent: 100, RolloutVariant: "v2", HashVersion: 2}), decide.Request{Unit: "u"}, decide.KindWeight, split, "v1", "", ""},
		{"a percentage above 100", flags(rollout("a", 101, "v2")), decide.Request{Unit: "u"}, decide.KindWeight, split, "v1", "", ""},
		{"a percentage of no variant", flags(rollout("a", 100, "")), decide.Request{Unit: "u"}, decide.KindWeight, split, "v1", "", ""},
		{"variant without endpoint", flags(rollout("a", 100, "v9"), rollout("b", 100, "v2")), decide.Request{Unit: "u"}, decide.KindFlagRollout, split, "v2", "b", "c"},
		{"variant without legal endpoint", flags(rollout("a", 100, "v2")), decide.Request{Unit: "u", Regions: []string{"us"}}, decide.KindWeight, split, "v1", "", "b"},
		{"quarantined variant", both(quarantine("v2"), flags(rollout("a", 100, "v2"))), decide.Request{Unit: "u"}, decide.KindWeight, split, "v1", "", ""},

		// Weights.
		{"no weights, one variant", both(noWeights, list("a v1 eu 100")), decide.Request{}, decide.KindOnlyVariant, byDefault, "v1", "", "a"},
		{"no weights, one not quarantined", both(noWeights, quarantine("v1")), decide.Request{}, decide.KindOnlyVariant, byDefault, "v2", "", "c"},
		{"no weights, all quarantined", both(noWeights, quarantine("v1", "v2")), decide.Request{}, decide.KindUnavailable, byDefault, "quarantined", "", ""},
		{"weight 0 is never picked", weights("v1", 0, "v2", 0), decide.Request{}, decide.KindUnavailable, split, "no variant with weight", "", ""},
		{"renormalised: the other has no endpoint", weights("v9", 90, "v2", 10), decide.Request{Unit: "u"}, decide.KindWeight, split, "v2", "", "c"},
		{"renormalised: the other is quarantined", both(weights("v1", 90, "v2", 10), quarantine("v1")), decide.Request{Unit: "u"}, decide.KindWeight, split, "v2", "", "c"},
		{"renormalised: the other is illegal", weights("v2", 90, "v1", 10), decide.Request{Unit: "u", Regions: []string{"us"}}, decide.KindWeight, split, "v1", "", "b"},
		{"sticky, first of the list", weights("v2", 46, "v1", 54), decide.Request{Unit: "user-1"}, decide.KindWeight, split, "v2", "", "c"}, // bucket 4503
		{"sticky, second of the list", weights("v2", 45, "v1", 55), decide.Request{Unit: "user-1"}, decide.KindWeight, split, "v1", "", ""},
		{"only the quarantined has weight", quarantine("v1"), decide.Request{}, decide.KindUnavailable, split, "no variant with weight", "", ""},

		// Pick.
		{"tried is left out", nil, decide.Request{Tried: []string{"a"}}, decide.KindWeight, split, "v1", "", "b"},
		{"all tried", nil, decide.Request{Tried: []string{"b", "a"}}, decide.KindUnavailable, split, "tried", "", ""},
		{"the plan gives nothing", func(s *donav1.ConfigSnapshot) {
			s.Plan = &donav1.Plan{Algorithm: donav1.Algorithm_ALGORITHM_ROUND_ROBIN, Weights: map[string]uint32{"a": 0, "b": 0}}
		}, decide.Request{}, decide.KindUnavailable, split, "the plan gives them nothing", "", ""},
		{"a zero byte in the unit", nil, decide.Request{Unit: "a\x00b"}, decide.KindUnavailable, none, "zero byte", "", ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := snapshot(t)
			if c.change != nil {
				c.change(s)
			}
			p, err := decide.Compile(s, nil)
			if err != nil {
				t.Fatal(err)
			}
			for range 30 {
				res := p.Decide(&c.req)
				if res.Kind != c.kind || res.Reason != c.reason || p.Flag(res.Flag) != c.flag {
					t.Fatalf("got %v, %v, flag %q, error %v; want %v, %v, flag %q", res.Kind, res.Reason, p.Flag(res.Flag), res.Err, c.kind, c.reason, c.flag)
				}
				if failed := c.kind == decide.KindDenied || c.kind == decide.KindUnavailable; failed != (res.Err != nil) || failed != (res.Endpoint < 0) {
					t.Fatalf("got endpoint %d, error %v", res.Endpoint, res.Err)
				}
				if res.Err != nil {
					if !strings.Contains(res.Err.Error(), c.variant) {
						t.Fatalf("got error %q, want %q in it", res.Err, c.variant)
					}
					continue
				}
				e := p.Endpoint(res.Endpoint)
				if e.Variant != c.variant || c.ids != "" && !strings.Contains(c.ids, e.ID) {
					t.Fatalf("got %s of %s, want %s of %s", e.ID, e.Variant, c.ids, c.variant)
				}
			}
			// The same code explains.
			tr, err := decide.Explain(s, c.req)
			if err != nil {
				t.Fatal(err)
			}
			if r := tr.Result; r.Kind != c.kind || r.Flag != c.flag || r.Reason != c.reason || (r.Error == "") != (r.Variant != "") {
				t.Errorf("explained as %+v", r)
			}
		})
	}
}

// An explanation says what the weights came to, and which of them do not count.
func TestExplainWeights(t *testing.T) {
	given := func(w ...*donav1.VariantWeight) func(*donav1.ConfigSnapshot) {
		return func(s *donav1.ConfigSnapshot) { s.Weights = w }
	}
	weight := func(variant string, w uint32) *donav1.VariantWeight {
		return &donav1.VariantWeight{Variant: variant, Weight: w}
	}
	for _, c := range []struct {
		change func(*donav1.ConfigSnapshot)
		unit   string
		want   decide.Stage
	}{
		{given(), "", decide.Stage{Result: "none set: all variants that can serve"}},
		{func(s *donav1.ConfigSnapshot) { s.Weights, s.QuarantinedVariants = nil, []string{"v1"} }, "", decide.Stage{Result: "none set; only v2 can serve"}},
		{func(s *donav1.ConfigSnapshot) { s.Weights, s.QuarantinedVariants = nil, []string{"v1", "v2"} }, "", decide.Stage{Result: "none set; no variant can serve"}},
		{given(weight("v2", 46), weight("v1", 54)), "user-1", decide.Stage{Result: "gives v2",
			Detail: []string{"v2 46", "v1 54", "place 4503 of 10000, by bucket of @weights/checkout"}}},
		{given(weight("v9", 90), weight("v2", 0), weight("v1", 10)), "user-1", decide.Stage{Result: "gives v1",
			Detail: []string{"v9 90: no endpoint that may serve", "v2 0: never by weight", "v1 10", "place 4503 of 10000, by bucket of @weights/checkout"}}},
		{func(s *donav1.ConfigSnapshot) { s.QuarantinedVariants = []string{"v1"} }, "", decide.Stage{Result: "none usable",
			Detail: []string{"v2 0: never by weight", "v1 100: quarantined"}}},
	} {
		s := snapshot(t)
		c.change(s)
		trace, err := decide.Explain(s, decide.Request{Unit: c.unit})
		if err != nil {
			t.Fatal(err)
		}
		i := slices.IndexFunc(trace.Stages, func(s decide.Stage) bool { return s.Name == "weights" })
		if i < 0 || trace.Stages[i].Result != c.want.Result || !slices.Equal(trace.Stages[i].Detail, c.want.Detail) {
			t.Errorf("the stages are %q, want weights: %q", trace.Stages, c.want)
		}
	}
}

func TestErrorTypes(t *testing.T) {
	s := snapshot(t)
	p, err := decide.Compile(s, nil)
	if err != nil {
		t.Fatal(err)
	}
	var denied *decide.DeniedError
	if res := p.Decide(&decide.Request{Regions: []string{"mars"}}); !errors.As(res.Err, &denied) || denied.Allowed[0] != "mars" {
		t.Errorf("got %v", res.Err)
	}
	var unavailable *decide.UnavailableError
	if res := p.Decide(&decide.Request{Tried: []string{"a", "b"}}); !errors.As(res.Err, &unavailable) || unavailable.Service != "checkout" {
		t.Errorf("got %v", res.Err)
	}
	if res := p.Decide(&decide.Request{Unit: "\x00"}); !errors.Is(res.Err, bucket.ErrUnit) {
		t.Errorf("got %v", res.Err)
	}
}

func TestExposures(t *testing.T) {
	s := snapshot(t)
	s.Flags = []*donav1.FlagRule{
		rollout("a-out", 0, ""), targeting("b-broken", "x", 99, "v2"), rollout("c-unusable", 100, "v9"),
		{Flag: "d-disabled", Disabled: true}, rollout("e-out", 0, ""), rollout("f-in", 100, "v2"), rollout("g-after", 0, ""),
	}
	p, err := decide.Compile(s, nil)
	if err != nil {
		t.Fatal(err)
	}
	res := p.Decide(&decide.Request{Unit: "u"})
	if p.Flag(res.Flag) != "f-in" || res.Missed != 1<<0|1<<4 {
		t.Errorf("flag %q, missed %b: want f-in, and a-out and e-out alone", p.Flag(res.Flag), res.Missed)
	}
}

func TestTypeErrorsAreCounted(t *testing.T) {
	s := snapshot(t)
	s.Flags = []*donav1.FlagRule{targeting("a", "country", opIn, "v2", "1"), targeting("b", "country", opNotIn, "v2", "1")}
	p, err := decide.Compile(s, nil)
	if err != nil {
		t.Fatal(err)
	}
	res := p.Decide(&decide.Request{Attributes: []decide.Attribute{decide.Float("country", 1)}})
	if res.TypeErrors != 2 {
		t.Errorf("%d type errors, want 2", res.TypeErrors)
	}
}

// More attributes than are looked up once are still found.
func TestManyAttributes(t *testing.T) {
	s := snapshot(t)
	var attributes []decide.Attribute
	for i := range 40 {
		name := fmt.Sprintf("a%02d", i)
		s.Flags = append(s.Flags, targeting("flag-"+name, name, opIn, "v2", "yes"))
		attributes = append(attributes, decide.String(name, "no"))
	}
	p, err := decide.Compile(s, nil)
	if err != nil {
		t.Fatal(err)
	}
	for i := range attributes {
		had := attributes[i]
		attributes[i] = decide.String(had.Name(), "yes")
		res := p.Decide(&decide.Request{Attributes: attributes})
		if got, want := p.Flag(res.Flag), "flag-"+had.Name(); got != want {
			t.Errorf("flag %q decides, want %q", got, want)
		}
		attributes[i] = had
	}
	twice := []decide.Attribute{decide.String("a00", "yes"), decide.String("a00", "no")}
	if res := p.Decide(&decide.Request{Attributes: twice}); p.Flag(res.Flag) != "flag-a00" {
		t.Error("the first of two attributes with one name does not count")
	}
}

func TestSnapshotsThatAreRefused(t *testing.T) {
	for name, change := range map[string]func(*donav1.ConfigSnapshot){
		"hashes by SOURCE_UNSPECIFIED": func(s *donav1.ConfigSnapshot) {
			s.Plan = &donav1.Plan{Algorithm: donav1.Algorithm_ALGORITHM_CONSISTENT_HASH}
		},
		"has algorithm 99":              func(s *donav1.ConfigSnapshot) { s.Plan = &donav1.Plan{Algorithm: 99} },
		"ALGORITHM_UNSPECIFIED":         func(s *donav1.ConfigSnapshot) { s.Plan = &donav1.Plan{} },
		`endpoint id "a"`:               func(s *donav1.ConfigSnapshot) { s.Endpoints = append(s.Endpoints, s.Endpoints[0]) },
		`variant "v1" is twice`:         func(s *donav1.ConfigSnapshot) { s.Weights = append(s.Weights, s.Weights[1]) },
		`flag "f" is there twice`:       func(s *donav1.ConfigSnapshot) { s.Flags = []*donav1.FlagRule{{Flag: "f"}, {Flag: "f"}} },
		`endpoint id "" is empty or th`: func(s *donav1.ConfigSnapshot) { s.Endpoints[0].Id = "" },
	} {
		s := snapshot(t)
		change(s)
		if _, err := decide.Compile(s, nil); err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("%s: got %v", name, err)
		}
	}
}

func TestMoreRegionListsThanAreKept(t *testing.T) {
	p, err := decide.Compile(snapshot(t), nil)
	if err != nil {
		t.Fatal(err)
	}
	for i := range 600 {
		res := p.Decide(&decide.Request{Regions: []string{fmt.Sprint("r", i), "us"}})
		if res.Err != nil || p.Endpoint(res.Endpoint).ID != "b" {
			t.Fatalf("list %d: %v", i, res.Err)
		}
	}
}
