package decide_test

import (
	"fmt"
	"slices"
	"testing"

	"pgregory.net/rapid"

	donav1 "github.com/dodona-project/dodona/proto/dona/v1"
	"github.com/dodona-project/dodona/sdk/dona/decide"
)

var (
	someVariants = rapid.SampledFrom([]string{"v1", "v2", "v3"})
	someRegions  = rapid.SampledFrom([]string{"", "eu", "us", "ap"})
)

func drawSnapshot(t *rapid.T) *donav1.ConfigSnapshot {
	s := &donav1.ConfigSnapshot{Service: "checkout", Version: 1}
	for i := range rapid.IntRange(0, 8).Draw(t, "endpoints") {
		s.Endpoints = append(s.Endpoints, &donav1.Endpoint{Id: fmt.Sprint("e", i), Variant: someVariants.Draw(t, "variant"),
			Region: someRegions.Draw(t, "region"), LbWeight: rapid.SampledFrom([]uint32{0, 5, 100}).Draw(t, "lb_weight")})
	}
	for _, v := range rapid.SliceOfNDistinct(someVariants, 0, 3, rapid.ID[string]).Draw(t, "weighted") {
		s.Weights = append(s.Weights, &donav1.VariantWeight{Variant: v, Weight: rapid.SampledFrom([]uint32{0, 0, 5, 95}).Draw(t, "weight")})
	}
	for i := range rapid.IntRange(0, 4).Draw(t, "flags") {
		s.Flags = append(s.Flags, &donav1.FlagRule{Flag: fmt.Sprint("flag-", i), RolloutVariant: someVariants.Draw(t, "rollout"),
			RolloutPercent: rapid.Uint32Range(0, 100).Draw(t, "percent")})
	}
	s.Residency = &donav1.ResidencyPolicy{AllowedRegions: rapid.SliceOfN(someRegions, 0, 2).Draw(t, "policy")}
	s.QuarantinedVariants = rapid.SliceOfNDistinct(someVariants, 0, 2, rapid.ID[string]).Draw(t, "quarantined")
	if rapid.Bool().Draw(t, "planned") {
		s.Plan = &donav1.Plan{Algorithm: donav1.Algorithm(rapid.Int32Range(1, 6).Draw(t, "algorithm"))}
		if s.Plan.Algorithm == donav1.Algorithm_ALGORITHM_CONSISTENT_HASH {
			s.Plan.Hash = &donav1.HashPolicy{Source: donav1.HashPolicy_Source(rapid.Int32Range(1, 6).Draw(t, "source")), Name: "country"}
		}
	}
	return s
}

// What holds for every snapshot and request.
func TestLaws(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := drawSnapshot(t)
		p, err := decide.Compile(s, nil)
		if err != nil {
			t.Fatal(err)
		}
		req := decide.Request{
			Unit:    rapid.SampledFrom([]string{"", "user-1", "user-2", "user-3", "user-4"}).Draw(t, "unit"),
			Regions: rapid.SliceOfN(someRegions, 0, 2).Draw(t, "regions"),
			Tried:   rapid.SliceOfN(rapid.SampledFrom([]string{"e0", "e1", "e2"}), 0, 2).Draw(t, "tried"),
		}
		inAll := func(region string) bool {
			return (len(s.Residency.AllowedRegions) == 0 || region != "" && slices.Contains(s.Residency.AllowedRegions, region)) &&
				(len(req.Regions) == 0 || region != "" && slices.Contains(req.Regions, region))
		}
		legal := 0
		serve := map[string]bool{} // variants with a legal endpoint, not quarantined
		for _, e := range s.Endpoints {
			if e.LbWeight > 0 && inAll(e.Region) {
				legal++
				serve[e.Variant] = !slices.Contains(s.QuarantinedVariants, e.Variant)
			}
		}
		// What must not fail: something may serve, and it is known that it is asked.
		answers := serve["v1"] || serve["v2"] || serve["v3"]
		if len(s.Weights) > 0 {
			answers = slices.ContainsFunc(s.Weights, func(w *donav1.VariantWeight) bool { return w.Weight > 0 && serve[w.Variant] })
		}
		constrained := len(s.Residency.AllowedRegions)+len(req.Regions) > 0
		for range 10 {
			res := p.Decide(&req)
			if denied := res.Kind == decide.KindDenied; denied != (legal == 0 && constrained) {
				t.Fatalf("denied %v with %d legal endpoints", denied, legal)
			}
			if res.Err != nil {
				if answers && len(req.Tried) == 0 {
					t.Fatalf("%v, and there is what may serve", res.Err)
				}
				continue
			}
			if !answers && (res.Kind == decide.KindWeight || res.Kind == decide.KindOnlyVariant) {
				t.Fatalf("%s serves without a weight", s.Endpoints[res.Endpoint].Id)
			}
			e := s.Endpoints[res.Endpoint]
			switch {
			case !inAll(e.Region):
				t.Fatalf("%s in %q left the allowed regions", e.Id, e.Region)
			case e.LbWeight == 0:
				t.Fatalf("%s drains", e.Id)
			case slices.Contains(s.QuarantinedVariants, e.Variant):
				t.Fatalf("%s is of the quarantined %s", e.Id, e.Variant)
			case slices.Contains(req.Tried, e.Id):
				t.Fatalf("%s was tried", e.Id)
			}
			if res.Kind == decide.KindWeight && len(s.Weights) > 0 {
				i := slices.IndexFunc(s.Weights, func(w *donav1.VariantWeight) bool { return w.Variant == e.Variant })
				if i < 0 || s.Weights[i].Weight == 0 {
					t.Fatalf("weights picked %s, which has none", e.Variant)
				}
			}
		}
	})
}

// A canary that grows only adds: who has it keeps it.
func TestCanaryGrowthOnlyAdds(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		unit := rapid.StringMatching(`[a-z0-9]{1,20}`).Draw(t, "unit")
		had := false
		for canary := uint32(0); canary <= 100; canary += 5 {
			s := &donav1.ConfigSnapshot{Service: "checkout",
				Endpoints: []*donav1.Endpoint{{Id: "a", Variant: "v1", LbWeight: 100}, {Id: "b", Variant: "v2", LbWeight: 100}},
				Weights:   []*donav1.VariantWeight{{Variant: "v2", Weight: canary}, {Variant: "v1", Weight: 100 - canary}}}
			p, err := decide.Compile(s, nil)
			if err != nil {
				t.Fatal(err)
			}
			res := p.Decide(&decide.Request{Unit: unit})
			has := p.Endpoint(res.Endpoint).Variant == "v2"
			if had && !has {
				t.Fatalf("%q lost the canary at %d %%", unit, canary)
			}
			had = has
		}
		if !had {
			t.Fatal("the canary has 100 % and not everybody")
		}
	})
}

// Shares come out as the weights say, with units and without.
func TestShares(t *testing.T) {
	s := &donav1.ConfigSnapshot{Service: "checkout",
		Endpoints: []*donav1.Endpoint{{Id: "a", Variant: "v1", LbWeight: 100}, {Id: "b", Variant: "v2", LbWeight: 100}},
		Weights:   []*donav1.VariantWeight{{Variant: "v2", Weight: 25}, {Variant: "v1", Weight: 75}}}
	p, err := decide.Compile(s, nil)
	if err != nil {
		t.Fatal(err)
	}
	const n = 40_000
	sticky, random := 0, 0
	for i := range n {
		if res := p.Decide(&decide.Request{Unit: fmt.Sprint("user-", i)}); p.Endpoint(res.Endpoint).ID == "b" {
			sticky++
		}
		if res := p.Decide(&decide.Request{}); p.Endpoint(res.Endpoint).ID == "b" {
			random++
		}
	}
	for what, got := range map[string]int{"sticky": sticky, "random": random} {
		if share := float64(got) / n; share < 0.24 || share > 0.26 {
			t.Errorf("%s: share %.4f, want 0.25", what, share)
		}
	}
}

func TestNoAllocation(t *testing.T) {
	s := big(t, 200)
	s.Flags = append(s.Flags,
		targeting("op-prefix", "path", donav1.TargetingRule_OPERATOR_STARTS_WITH, "v2", "/admin"),
		targeting("op-number", "age", donav1.TargetingRule_OPERATOR_NUM_GE, "v2", "18", "1e30"),
		targeting("op-version", "app", donav1.TargetingRule_OPERATOR_SEMVER_GE, "v2", "2.0.0-rc.1"),
		targeting("op-address", "ip", donav1.TargetingRule_OPERATOR_CIDR, "v2", "10.0.0.0/8", "2001:db8::/32"))
	p, err := decide.Compile(s, nil)
	if err != nil {
		t.Fatal(err)
	}
	for name, f := range map[string]func(){
		"plain":      func() { p.Decide(&decide.Request{}) },
		"unit":       func() { p.Decide(&decide.Request{Unit: "user-1"}) },
		"regions":    func() { p.Decide(&decide.Request{Unit: "user-1", Regions: []string{"r1", "r2"}}) },
		"attributes": func() { p.Decide(&decide.Request{Attributes: []decide.Attribute{decide.String("country", "CH")}}) },
		"operators": func() {
			p.Decide(&decide.Request{Attributes: []decide.Attribute{decide.String("path", "/"), decide.Int("age", 17), decide.String("app", "1.9.9+build"), decide.String("ip", "11.0.0.1")}})
		},
		"texts": func() {
			p.Decide(&decide.Request{Attributes: []decide.Attribute{decide.String("age", "17.5"), decide.String("ip", "2001:db9::1")}})
		},
		"tried":  func() { p.Decide(&decide.Request{Tried: []string{"endpoint-1"}}) },
		"denied": func() { p.Decide(&decide.Request{Regions: []string{"mars"}}) },
	} {
		if n := testing.AllocsPerRun(200, f); n != 0 {
			t.Errorf("%s: %v allocations", name, n)
		}
	}
}

// big is a service of n endpoints in 4 regions and 2 variants with 10 flags.
func big(t testing.TB, n int) *donav1.ConfigSnapshot {
	t.Helper()
	s := &donav1.ConfigSnapshot{Service: "checkout", Version: 1,
		Weights: []*donav1.VariantWeight{{Variant: "v2", Weight: 10}, {Variant: "v1", Weight: 90}},
		Plan:    &donav1.Plan{Strategy: "least-connections", Algorithm: donav1.Algorithm_ALGORITHM_LEAST_CONNECTIONS, Choices: 2}}
	for i := range n {
		s.Endpoints = append(s.Endpoints, &donav1.Endpoint{Id: fmt.Sprint("endpoint-", i), Address: fmt.Sprintf("10.0.%d.%d:80", i/256, i%256),
			Variant: fmt.Sprint("v", 1+i%2), Region: fmt.Sprint("r", i/2%4), LbWeight: uint32(5 + i%20*5)})
	}
	for i := range 10 {
		s.Flags = append(s.Flags, &donav1.FlagRule{Flag: fmt.Sprint("flag-", i), RolloutPercent: 1, RolloutVariant: "v2",
			Targeting: []*donav1.TargetingRule{{Attribute: "country", Values: []string{"CH", "DE"}, Variant: "v2"}}})
	}
	return s
}

// BenchmarkDecision is one whole decision: filter, 10 flags, weights, pick, done.
func BenchmarkDecision(b *testing.B) {
	for _, n := range []int{100, 1_000, 10_000} {
		p, err := decide.Compile(big(b, n), nil)
		if err != nil {
			b.Fatal(err)
		}
		attributes := []decide.Attribute{decide.String("country", "AT")}
		one := func(unit string) {
			req := decide.Request{Unit: unit, Attributes: attributes, Regions: []string{"r1"}}
			res := p.Decide(&req)
			l := res.Load
			l.Begin()
			l.End()
		}
		units := make([]string, 1024)
		for i := range units {
			units[i] = fmt.Sprint("user-", i)
		}
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			b.ReportAllocs()
			i := 0
			for b.Loop() {
				one(units[i%1024])
				i++
			}
		})
		b.Run(fmt.Sprint(n, "/parallel"), func(b *testing.B) {
			b.RunParallel(func(pb *testing.PB) {
				for i := 0; pb.Next(); i++ {
					one(units[i%1024])
				}
			})
		})
	}
}

// BenchmarkOneFlag is one rule and a bucket with 100 flags loaded; the first of
// them decides.
func BenchmarkOneFlag(b *testing.B) {
	s := big(b, 4)
	s.Flags = nil
	for i := range 100 {
		s.Flags = append(s.Flags, &donav1.FlagRule{Flag: fmt.Sprintf("flag-%02d", i), RolloutPercent: 100, RolloutVariant: "v2",
			Targeting: []*donav1.TargetingRule{{Attribute: "country", Values: []string{"CH", "DE"}, Variant: "v1"}}})
	}
	p, err := decide.Compile(s, nil)
	if err != nil {
		b.Fatal(err)
	}
	attributes := []decide.Attribute{decide.String("country", "AT")}
	b.ReportAllocs()
	for b.Loop() {
		p.Decide(&decide.Request{Unit: "user-1", Attributes: attributes})
	}
}

func BenchmarkCompile10k(b *testing.B) {
	s := big(b, 10_000)
	for b.Loop() {
		if _, err := decide.Compile(s, nil); err != nil {
			b.Fatal(err)
		}
	}
}

// valuesOf draws values that an operator takes, and seldom one that it does not.
func valuesOf(op donav1.TargetingRule_Operator) *rapid.Generator[string] {
	switch {
	case op < donav1.TargetingRule_OPERATOR_NUM_LT:
		return rapid.SampledFrom([]string{"a", "b", "c", "d"})
	case op < donav1.TargetingRule_OPERATOR_SEMVER_LT:
		return rapid.SampledFrom([]string{"6", "7", "7.5"})
	case op < donav1.TargetingRule_OPERATOR_CIDR:
		return rapid.SampledFrom([]string{"1.2.3", "1.2.4-rc.1", "0.9.0"})
	case op == donav1.TargetingRule_OPERATOR_CIDR:
		return rapid.SampledFrom([]string{"10.0.0.0/8", "::1", "a"})
	}
	return rapid.SampledFrom([]string{"^[ab]$", "z|7", "("})
}

// The screen only saves work: with it and without it a request gets the same
// variant for the same reason, and the same exposures.
func TestScreenChangesNothing(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := &donav1.ConfigSnapshot{Service: "checkout", Version: 1, QuarantinedVariants: rapid.SliceOfN(rapid.SampledFrom([]string{"v1", "v2", "v3"}), 0, 1).Draw(t, "quarantined"),
			Endpoints: []*donav1.Endpoint{{Id: "a", Variant: "v1", LbWeight: 100}, {Id: "b", Variant: "v2", LbWeight: 100}, {Id: "c", Variant: "v3", LbWeight: 100}}}
		variants := rapid.SampledFrom([]string{"v1", "v2", "v3", "gone"})
		names := rapid.SampledFrom([]string{"country", "plan", "beta"})
		for i := range rapid.SampledFrom([]int{1, 3, 20, 64, 70}).Draw(t, "flags") {
			f := &donav1.FlagRule{Flag: fmt.Sprintf("flag-%02d", i), RolloutVariant: variants.Draw(t, "variant"),
				RolloutPercent: rapid.SampledFrom([]uint32{0, 1, 5, 50, 100, 101}).Draw(t, "percent"), Disabled: rapid.IntRange(0, 9).Draw(t, "disabled") == 0}
			for range rapid.IntRange(0, 2).Draw(t, "rules") {
				op := donav1.TargetingRule_Operator(rapid.IntRange(0, 15).Draw(t, "operator"))
				f.Targeting = append(f.Targeting, &donav1.TargetingRule{Attribute: names.Draw(t, "attribute"), Variant: variants.Draw(t, "target"),
					Operator: op, Values: rapid.SliceOfN(valuesOf(op), 0, 3).Draw(t, "values")})
			}
			s.Flags = append(s.Flags, f)
		}
		p, err := decide.Compile(s, nil)
		if err != nil {
			t.Fatal(err)
		}
		plain := decide.WithoutScreen(p)
		for range 20 {
			req := decide.Request{Unit: rapid.SampledFrom([]string{"", "u1", "u2", "u3", "u4"}).Draw(t, "unit")}
			for range rapid.IntRange(0, 3).Draw(t, "attributes") {
				a := decide.String(names.Draw(t, "name"), rapid.SampledFrom([]string{"a", "b", "c", "z", "7", "1.2.3", "10.1.1.1"}).Draw(t, "text"))
				switch rapid.IntRange(0, 9).Draw(t, "number") {
				case 0:
					a = decide.Int(a.Name(), 7)
				case 1:
					a = decide.Float(a.Name(), 7.25)
				case 2:
					a = decide.Bool(a.Name(), true)
				}
				req.Attributes = append(req.Attributes, a)
			}
			got, want := p.Decide(&req), plain.Decide(&req)
			if got.Flag != want.Flag || got.Kind != want.Kind || got.Reason != want.Reason || got.Missed != want.Missed || got.TypeErrors != want.TypeErrors ||
				got.Flag >= 0 && p.Endpoint(got.Endpoint).Variant != p.Endpoint(want.Endpoint).Variant {
				t.Fatalf("with the screen %+v, without %+v", got, want)
			}
		}
	})
}
