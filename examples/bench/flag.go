package main

import (
	"context"
	"fmt"
	"hash/fnv"
	"log/slog"

	growthbook "github.com/growthbook/growthbook-golang"
	"github.com/open-feature/go-sdk/openfeature"
	"github.com/open-feature/go-sdk/openfeature/memprovider"

	donav1 "github.com/dodona-project/dodona/proto/dona/v1"
	"github.com/dodona-project/dodona/sdk/dona/decide"
)

const manyFlags = 100

// flagJob measures one flag: a rule that does not hit, then a bucket. It is the
// evaluation alone on all sides, without a record of the exposure.
func flagJob() ([]row, error) {
	ours, err := ourFlag()
	if err != nil {
		return nil, err
	}
	growth, err := growthbookFlag()
	if err != nil {
		return nil, err
	}
	open, err := openFeatureFlag()
	if err != nil {
		return nil, err
	}
	m, err := turns(repeats, nsPerOp(200_000, ours), nsPerOp(20_000, growth), nsPerOp(20_000, open))
	if err != nil {
		return nil, err
	}
	return []row{
		{"a rule and a bucket, 100 flags loaded", m[0], m[1], "ns", "GrowthBook, a rule and an experiment of 4", 0.1, false, nil},
		{"the same", m[0], m[2], "ns", "OpenFeature's provider in memory, a rule and a bucket in its evaluator", 0, false, nil},
	}, nil
}

// units1024 are whom the flags are evaluated for, by turns.
func units1024() (next func() string) {
	units := make([]string, 1024)
	for i := range units {
		units[i] = fmt.Sprintf("user-%d", i)
	}
	n := 0
	return func() string {
		n++
		return units[n%len(units)]
	}
}

func flagName(i int) string { return fmt.Sprintf("flag-%02d", i) }

func ourFlag() (op func(), err error) {
	s := snapshotOf(100)
	s.Flags = nil
	for i := range manyFlags {
		s.Flags = append(s.Flags, &donav1.FlagRule{Flag: flagName(i), Service: "checkout", RolloutPercent: 25, RolloutVariant: "v2", Version: 1,
			Targeting: []*donav1.TargetingRule{{Attribute: "country", Operator: donav1.TargetingRule_OPERATOR_IN, Values: []string{"CH", "DE"}, Variant: "v2"}}})
	}
	p, err := decide.Compile(s, nil)
	if err != nil {
		return nil, err
	}
	unit, attributes, key := units1024(), []decide.Attribute{decide.String("country", "FR")}, flagName(manyFlags/2)
	return func() {
		r, err := p.EvaluateFlag(key, &decide.Request{Unit: unit(), Attributes: attributes})
		if err != nil || r.Reason == donav1.Reason_REASON_ERROR {
			panic(fmt.Sprint("our flag gave nothing: ", r, err))
		}
	}, nil
}

func growthbookFlag() (op func(), err error) {
	features := "{"
	for i := range manyFlags {
		if i > 0 {
			features += ","
		}
		features += fmt.Sprintf(`%q: {"defaultValue": "a", "rules": [
			{"condition": {"country": {"$in": ["CH", "DE"]}}, "force": "b"},
			{"variations": ["a", "b", "c", "d"], "hashAttribute": "id", "weights": [0.25, 0.25, 0.25, 0.25]}]}`, flagName(i))
	}
	ctx := context.Background()
	client, err := growthbook.NewClient(ctx, growthbook.WithJsonFeatures(features+"}"), growthbook.WithLogger(slog.New(slog.DiscardHandler)))
	if err != nil {
		return nil, err
	}
	unit, key := units1024(), flagName(manyFlags/2)
	return func() {
		user, err := client.WithAttributes(growthbook.Attributes{"id": unit(), "country": "FR"})
		if err != nil {
			panic(err)
		}
		if r := user.EvalFeature(ctx, key); r.Source != growthbook.ExperimentResultSource {
			panic("GrowthBook's experiment did not decide: " + string(r.Source))
		}
	}, nil
}

func openFeatureFlag() (op func(), err error) {
	flags := map[string]memprovider.InMemoryFlag{}
	for i := range manyFlags {
		name := flagName(i)
		evaluator := func(_ memprovider.InMemoryFlag, flat openfeature.FlattenedContext) (any, openfeature.ProviderResolutionDetail) {
			if country := flat["country"]; country == "CH" || country == "DE" {
				return "b", openfeature.ProviderResolutionDetail{Reason: openfeature.TargetingMatchReason, Variant: "b"}
			}
			h := fnv.New64a()
			unit, _ := flat[openfeature.TargetingKey].(string)
			_, _ = h.Write([]byte(unit))
			_, _ = h.Write([]byte(name))
			variant := []string{"a", "b", "c", "d"}[h.Sum64()%4]
			return variant, openfeature.ProviderResolutionDetail{Reason: openfeature.SplitReason, Variant: variant}
		}
		flags[name] = memprovider.InMemoryFlag{Key: name, State: memprovider.Enabled, DefaultVariant: "a",
			Variants: map[string]any{"a": "a", "b": "b", "c": "c", "d": "d"}, ContextEvaluator: &evaluator}
	}
	if err := openfeature.SetProviderAndWait(memprovider.NewInMemoryProvider(flags)); err != nil {
		return nil, err
	}
	client := openfeature.NewDefaultClient()
	ctx, unit, key := context.Background(), units1024(), flagName(manyFlags/2)
	return func() {
		_, err := client.StringValue(ctx, key, "", openfeature.NewEvaluationContext(unit(), map[string]any{"country": "FR"}))
		if err != nil {
			panic(err)
		}
	}, nil
}
