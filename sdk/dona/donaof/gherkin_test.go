package donaof_test

import (
	"context"
	"fmt"
	"reflect"
	"strconv"
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

// TestGherkin runs OpenFeature's own scenarios of evaluation.
func TestGherkin(t *testing.T) {
	s, _ := service(t, donatest.Start(t), []string{"on", "greeting", "ten", "half", "template", "one", "internal", "external"},
		everyone("boolean-flag", "on"), everyone("string-flag", "greeting"), everyone("integer-flag", "ten"),
		everyone("float-flag", "half"), everyone("object-flag", "template"), everyone("wrong-flag", "one"),
		everyone("context-aware", "external", &donav1.TargetingRule{Attribute: "fn", Values: []string{"Sulisław"}, Variant: "internal"}))
	provider := donaof.New(s, donaof.Config{Values: map[string]map[string]any{
		"boolean-flag":  {"on": true, "off": false},
		"string-flag":   {"greeting": "hi", "parting": "bye"},
		"integer-flag":  {"one": 1, "ten": 10},
		"float-flag":    {"tenth": 0.1, "half": 0.5},
		"object-flag":   {"template": map[string]any{"showImages": true, "title": "Check out these pics!", "imagesPerPage": 100}},
		"wrong-flag":    {"one": "uno"},
		"context-aware": {"internal": "INTERNAL", "external": "EXTERNAL"},
	}})
	t.Cleanup(of.Shutdown)
	suite := godog.TestSuite{
		Name:                "evaluation",
		ScenarioInitializer: func(c *godog.ScenarioContext) { (&scenario{provider: provider}).steps(c) },
		Options:             &godog.Options{Format: "progress", Paths: []string{"testdata/evaluation.feature"}, Strict: true, NoColors: true, TestingT: t},
	}
	if suite.Run() != 0 {
		t.Error("a scenario failed")
	}
}

// scenario is the state that the steps of one scenario share.
type scenario struct {
	provider *donaof.Provider
	client   *of.Client
	flag     string
	context  of.EvaluationContext
	value    any
	details  of.EvaluationDetails
	fallback any
}

func (s *scenario) steps(c *godog.ScenarioContext) {
	c.Step(`^a stable provider$`, func(ctx context.Context) error {
		s.client = of.NewClient("gherkin")
		return of.SetProviderWithContextAndWait(ctx, s.provider)
	})
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
		return nil, nil
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
		d, _ := s.client.BooleanValueDetails(ctx, flag, f, s.context)
		s.value, s.details = d.Value, d.EvaluationDetails
	case int64:
		d, _ := s.client.IntValueDetails(ctx, flag, f, s.context)
		s.value, s.details = d.Value, d.EvaluationDetails
	case float64:
		d, _ := s.client.FloatValueDetails(ctx, flag, f, s.context)
		s.value, s.details = d.Value, d.EvaluationDetails
	case string:
		d, _ := s.client.StringValueDetails(ctx, flag, f, s.context)
		s.value, s.details = d.Value, d.EvaluationDetails
	default:
		d, _ := s.client.ObjectValueDetails(ctx, flag, nil, s.context)
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
