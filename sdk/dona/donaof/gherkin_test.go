package donaof_test

import (
	"context"
	"encoding/json"
	"fmt"
	"reflect"
	"strconv"
	"sync/atomic"
	"testing"

	"github.com/cucumber/godog"
	of "github.com/open-feature/go-sdk/openfeature"

	donav1 "github.com/dodona-project/dodona/proto/dona/v1"
	"github.com/dodona-project/dodona/sdk/dona"
	"github.com/dodona-project/dodona/sdk/dona/donaof"
	"github.com/dodona-project/dodona/sdk/dona/internal/donatest"
)

func TestMain(m *testing.M) { donatest.Main(m) }

// service gives a service whose variants have an endpoint each and which has the
// given flags, all known to its client.
func service(t *testing.T, h *donatest.Host, variants []string, flags ...*donav1.FlagRule) (*dona.Service, *dona.Client) {
	t.Helper()
	client := h.Dial(t)
	for i, v := range variants {
		donatest.Register(t, client, dona.OwnEndpoint{Service: "shop", ID: v, Address: fmt.Sprint("127.0.0.1:", 20_000+i), Variant: v, Region: "eu"})
	}
	for _, f := range flags {
		f.Service = "shop"
		if _, err := h.Admin.SetFlag(t.Context(), &donav1.SetFlagRequest{Rule: f}); err != nil {
			t.Fatal(err)
		}
	}
	s := client.Service("shop")
	donatest.Until(t, "the client knows flags and endpoints", func() bool {
		all, err := s.Endpoints()
		if err != nil || len(all) != len(variants) {
			return false
		}
		for _, f := range flags {
			if _, err := s.Flag(t.Context(), f.Flag, dona.Request{}); err != nil {
				return false
			}
		}
		return true
	})
	return s, client
}

func everyone(flag, variant string, rules ...*donav1.TargetingRule) *donav1.FlagRule {
	return &donav1.FlagRule{Flag: flag, RolloutPercent: 100, RolloutVariant: variant, Targeting: rules}
}

// everything gives a provider with the flags that the scenarios ask for.
func everything(t *testing.T, h *donatest.Host) (*dona.Service, donaof.Config) {
	t.Helper()
	ballmer := func(variant string) *donav1.TargetingRule {
		return &donav1.TargetingRule{Attribute: "email", Values: []string{"ballmer@macrosoft.com"}, Variant: variant}
	}
	types := map[string]map[string]any{
		"boolean": {"on": true, "zero": false},
		"string":  {"greeting": "hi", "zero": ""},
		"integer": {"ten": 10, "zero": 0},
		"float":   {"half": 0.5, "zero": 0.0},
		"object":  {"template": map[string]any{"showImages": true, "title": "Check out these pics!", "imagesPerPage": 100}, "zero": map[string]any{}},
	}
	values := map[string]map[string]any{
		"wrong-flag":       {"one": "uno"},
		"context-aware":    {"internal": "INTERNAL", "external": "EXTERNAL"},
		"complex-targeted": {"internal": "INTERNAL", "external": "EXTERNAL"},
	}
	flags := []*donav1.FlagRule{
		everyone("wrong-flag", "one"),
		everyone("context-aware", "external", &donav1.TargetingRule{Attribute: "fn", Values: []string{"Sulisław"}, Variant: "internal"}),
		everyone("complex-targeted", "external", ballmer("internal")),
	}
	variants := []string{"one", "internal", "external", "zero"}
	for kind, all := range types {
		for variant := range all {
			if variant != "zero" {
				variants = append(variants, variant)
				flags = append(flags, everyone(kind+"-flag", variant))
			}
		}
		disabled := everyone(kind+"-disabled-flag", "zero")
		disabled.Disabled = true
		flags = append(flags, disabled, everyone(kind+"-zero-flag", "zero"), everyone(kind+"-targeted-zero-flag", "zero", ballmer("zero")))
		for _, name := range []string{"-flag", "-zero-flag", "-targeted-zero-flag", "-disabled-flag"} {
			values[kind+name] = all
		}
	}
	s, _ := service(t, h, variants, flags...)
	return s, donaof.Config{Values: values}
}

// TestGherkin runs OpenFeature's own scenarios: evaluation in both versions, hooks,
// and how contexts are merged. Left out is what this provider does not do: it caches
// nothing, and flags have no metadata of their own.
func TestGherkin(t *testing.T) {
	s, config := everything(t, donatest.Start(t))
	host := donatest.Start(t) // the one that goes away
	stale, _ := service(t, host, []string{"on"})
	away, err := dona.Dial(t.Context(), "127.0.0.1:1", dona.WithoutCache())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = away.Close() })
	t.Cleanup(of.Shutdown)
	providers := &providers{t: t, stable: donaof.New(s, config), stale: stale, host: host, away: away, config: config, service: s}
	var ran atomic.Int64
	suite := godog.TestSuite{
		Name: "openfeature",
		ScenarioInitializer: func(c *godog.ScenarioContext) {
			ran.Add(1)
			n := &scenario{providers: providers, domain: fmt.Sprint("gherkin-", ran.Load())}
			n.steps(c)
			n.more(c)
			n.merging(c)
		},
		Options: &godog.Options{Format: "progress", Paths: []string{"testdata/openfeature"}, Tags: "~@reason-codes-cached && ~@metadata",
			Strict: true, NoColors: true, TestingT: t},
	}
	if suite.Run() != 0 {
		t.Error("a scenario failed")
	}
	t.Logf("%d scenarios", ran.Load())
	if ran.Load() < 120 {
		t.Errorf("only %d scenarios ran", ran.Load())
	}
}

// scenario is the state that the steps of one scenario share.
type scenario struct {
	*providers
	domain   string
	client   *of.Client
	kind     string // of what is evaluated next
	flag     string
	hooks    []*hook
	async    chan struct{}
	seen     of.FlattenedContext // by the provider
	level    []string            // of contexts, from the one that yields
	atAPI    map[string]any
	context  of.EvaluationContext
	options  []of.Option
	value    any
	details  of.EvaluationDetails
	fallback any
}

func (s *scenario) steps(c *godog.ScenarioContext) {
	// What is evaluated.
	c.Step(`^an? (boolean|string|integer|float) flag with key "([^"]*)" is evaluated with (?:details and )?default value "?([^"]*)"?$`, s.evaluate)
	c.Step(`^an object flag with key "([^"]*)" is evaluated with (?:details and )?a null default value$`, func(ctx context.Context, flag string) error {
		return s.evaluate(ctx, "object", flag, "")
	})
	c.Step(`^a flag with key "([^"]*)" is evaluated with default value "([^"]*)"$`, func(ctx context.Context, flag, fallback string) error {
		return s.evaluate(ctx, "string", flag, fallback)
	})
	c.Step(`^a non-existent string flag with key "([^"]*)" is evaluated with details and a fallback value "([^"]*)"$`, func(ctx context.Context, flag, fallback string) error {
		return s.evaluate(ctx, "string", flag, fallback)
	})
	c.Step(`^a string flag with key "([^"]*)" is evaluated as an integer, with details and a fallback value (\d+)$`, func(ctx context.Context, flag, fallback string) error {
		return s.evaluate(ctx, "integer", flag, fallback)
	})
	c.Step(`^context contains keys "([^"]*)", "([^"]*)", "([^"]*)", "([^"]*)" with values "([^"]*)", "([^"]*)", (\d+), "([^"]*)"$`,
		func(k1, k2, k3, k4, v1, v2 string, v3 int64, v4 string) error {
			s.context = of.NewEvaluationContext("", map[string]any{k1: v1, k2: v2, k3: v3, k4: v4 == "true"})
			return nil
		})
	// What came out.
	c.Step(`^the resolved (boolean|string|integer|float) (?:value|response) should be "?([^"]*)"?$`, s.is)
	c.Step(`^the resolved (boolean|string|integer|float) details value should be "?([^"]*)"?, the variant should be "([^"]*)", and the reason should be "([^"]*)"$`,
		func(kind, want, variant, reason string) error {
			if err := s.is(kind, want); err != nil {
				return err
			}
			return s.because(variant, reason)
		})
	c.Step(`^the resolved object (?:details )?value should be contain fields "([^"]*)", "([^"]*)", and "([^"]*)", with values "([^"]*)", "([^"]*)" and (\d+), respectively$`,
		func(k1, k2, k3, v1, v2 string, v3 int) error {
			return same(s.value, map[string]any{k1: v1 == "true", k2: v2, k3: v3})
		})
	c.Step(`^the variant should be "([^"]*)", and the reason should be "([^"]*)"$`, s.because)
	c.Step(`^the resolved flag value is "([^"]*)" when the context is empty$`, func(ctx context.Context, want string) error {
		s.context = of.EvaluationContext{}
		if err := s.evaluate(ctx, "string", s.flag, "none"); err != nil {
			return err
		}
		return same(s.value, want)
	})
	c.Step(`^the default (?:string|integer) value should be returned$`, func() error { return same(s.value, s.fallback) })
	c.Step(`^the reason should indicate an error and the error code should indicate a (?:missing flag|type mismatch) with "([^"]*)"$`, func(code string) error {
		if err := same(s.details.Reason, of.ErrorReason); err != nil {
			return err
		}
		return same(string(s.details.ErrorCode), code)
	})
}

// parse turns what a scenario says into a value of the kind.
func parse(kind, text string) (any, error) {
	switch kind {
	case "boolean":
		return strconv.ParseBool(text)
	case "integer":
		return strconv.ParseInt(text, 10, 64)
	case "float":
		return strconv.ParseFloat(text, 64)
	case "object":
		var v any
		if text == "" {
			return nil, nil
		}
		err := json.Unmarshal([]byte(text), &v)
		return v, err
	}
	return text, nil
}

// evaluate keeps the outcome; that it is an error is for later steps to judge.
func (s *scenario) evaluate(ctx context.Context, kind, flag, fallback string) (err error) {
	s.flag = flag
	if s.fallback, err = parse(kind, fallback); err != nil {
		return err
	}
	switch f := s.fallback.(type) {
	case bool:
		d, _ := s.client.BooleanValueDetails(ctx, flag, f, s.context, s.options...)
		s.value, s.details = d.Value, d.EvaluationDetails
	case int64:
		d, _ := s.client.IntValueDetails(ctx, flag, f, s.context, s.options...)
		s.value, s.details = d.Value, d.EvaluationDetails
	case float64:
		d, _ := s.client.FloatValueDetails(ctx, flag, f, s.context, s.options...)
		s.value, s.details = d.Value, d.EvaluationDetails
	case string:
		d, _ := s.client.StringValueDetails(ctx, flag, f, s.context, s.options...)
		s.value, s.details = d.Value, d.EvaluationDetails
	default:
		d, _ := s.client.ObjectValueDetails(ctx, flag, s.fallback, s.context, s.options...)
		s.value, s.details = d.Value, d.EvaluationDetails
	}
	return nil
}

func (s *scenario) is(kind, text string) error {
	want, err := parse(kind, text)
	if err != nil {
		return err
	}
	return same(s.value, want)
}

func (s *scenario) because(variant, reason string) error {
	return same([]string{s.details.Variant, string(s.details.Reason)}, []string{variant, reason})
}

func same(got, want any) error {
	if !reflect.DeepEqual(got, want) {
		return fmt.Errorf("got %#v, want %#v", got, want)
	}
	return nil
}
