package rollout_test

import (
	"errors"
	"math"
	"strings"
	"testing"
	"time"

	donav1 "github.com/dodona-project/dodona/proto/dona/v1"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/dodona-project/dodona/host/limits"
	"github.com/dodona-project/dodona/host/refusal"
	"github.com/dodona-project/dodona/host/rollout"
)

func text(n int) string { return strings.Repeat("x", n) }

// Each rule of a StartRollout, just inside and just outside.
func TestStartRefusals(t *testing.T) {
	q := func(change func(*donav1.AnalysisQuery)) func(*donav1.StartRolloutRequest) {
		query := latency()
		change(query)
		return withQuery(query)
	}
	percents := func(n int) (steps []uint32) {
		for i := range n {
			steps = append(steps, uint32(100-n+i+1))
		}
		return steps
	}
	big, err := structpb.NewStruct(map[string]any{"a": text(limits.PluginConfigLen)})
	if err != nil {
		t.Fatal(err)
	}
	fields := func(m map[string]any) *structpb.Struct {
		s, err := structpb.NewStruct(m)
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	for _, c := range []struct {
		name   string
		change func(*donav1.StartRolloutRequest)
		kind   refusal.Kind // 0 = accepted
		field  string
	}{
		{name: "as it is", change: func(*donav1.StartRolloutRequest) {}},
		{"no service", func(r *donav1.StartRolloutRequest) { r.Service = "" }, refusal.Invalid, "service"},
		{"upper case", func(r *donav1.StartRolloutRequest) { r.Service = "Checkout" }, refusal.Invalid, "service"},
		{"no canary", func(r *donav1.StartRolloutRequest) { r.CanaryVariant = "" }, refusal.Invalid, "canary_variant"},
		{"no stable", func(r *donav1.StartRolloutRequest) { r.StableVariant = "" }, refusal.Invalid, "stable_variant"},
		{"a bad variant", func(r *donav1.StartRolloutRequest) { r.CanaryVariant = "v 2" }, refusal.Invalid, "canary_variant"},
		{"equal variants", func(r *donav1.StartRolloutRequest) { r.CanaryVariant = "v1" }, refusal.Invalid, "canary_variant"},
		{"no steps", func(r *donav1.StartRolloutRequest) { r.Steps = nil }, refusal.Invalid, "steps"},
		{"a step of 0", func(r *donav1.StartRolloutRequest) { r.Steps = []uint32{0, 100} }, refusal.Invalid, "steps[0]"},
		{"a step over 100", func(r *donav1.StartRolloutRequest) { r.Steps = []uint32{50, 101} }, refusal.Invalid, "steps[1]"},
		{"falling", func(r *donav1.StartRolloutRequest) { r.Steps = []uint32{50, 25, 100} }, refusal.Invalid, "steps[1]"},
		{"twice the same", func(r *donav1.StartRolloutRequest) { r.Steps = []uint32{50, 50, 100} }, refusal.Invalid, "steps[1]"},
		{"not to 100", func(r *donav1.StartRolloutRequest) { r.Steps = []uint32{50, 99} }, refusal.Invalid, "steps[1]"},
		{"only 100", func(r *donav1.StartRolloutRequest) { r.Steps = []uint32{100} }, 0, ""},
		{"most steps", func(r *donav1.StartRolloutRequest) { r.Steps = percents(limits.RolloutSteps) }, 0, ""},
		{"one more", func(r *donav1.StartRolloutRequest) { r.Steps = percents(limits.RolloutSteps + 1) }, refusal.Invalid, "steps"},
		{"no dwell", func(r *donav1.StartRolloutRequest) { r.StepSeconds = 0 }, refusal.Invalid, "step_seconds"},
		{"a day", func(r *donav1.StartRolloutRequest) { r.StepSeconds = limits.MaxStepSeconds }, 0, ""},
		{"more than a day", func(r *donav1.StartRolloutRequest) { r.StepSeconds = limits.MaxStepSeconds + 1 }, refusal.Invalid, "step_seconds"},
		{"0 %", func(r *donav1.StartRolloutRequest) { r.MaxErrorPercent = 0 }, 0, ""},
		{"100 %", func(r *donav1.StartRolloutRequest) { r.MaxErrorPercent = 100 }, 0, ""},
		{"101 %", func(r *donav1.StartRolloutRequest) { r.MaxErrorPercent = 101 }, refusal.Invalid, "max_error_percent"},
		{"min_requests 0", func(r *donav1.StartRolloutRequest) { r.MinRequests = 0 }, 0, ""},
		{"too many requests", func(r *donav1.StartRolloutRequest) { r.MinRequests = limits.MaxMinRequests + 1 }, refusal.Invalid, "min_requests"},

		{"a query", q(func(*donav1.AnalysisQuery) {}), 0, ""},
		{"no name", q(func(q *donav1.AnalysisQuery) { q.Name = "" }), refusal.Invalid, "analysis[0].name"},
		{"the gate's name", q(func(q *donav1.AnalysisQuery) { q.Name = rollout.GateName }), refusal.Invalid, "analysis[0].name"},
		{"a long name", q(func(q *donav1.AnalysisQuery) { q.Name = text(limits.NameLen + 1) }), refusal.Invalid, "analysis[0].name"},
		{"a name of two lines", q(func(q *donav1.AnalysisQuery) { q.Name = "a\nb" }), refusal.Invalid, "analysis[0].name"},
		{"duplicate names", func(r *donav1.StartRolloutRequest) { withQuery(latency())(r); withQuery(latency())(r) }, refusal.Invalid, "analysis[1].name"},
		{"too many", func(r *donav1.StartRolloutRequest) {
			for i := range limits.AnalysisQueries + 1 {
				query := latency()
				query.Name = text(i + 1)
				withQuery(query)(r)
			}
		}, refusal.Invalid, "analysis"},
		{"a nil query", func(r *donav1.StartRolloutRequest) { r.Analysis = []*donav1.AnalysisQuery{nil} }, refusal.Invalid, "analysis[0]"},
		{"NaN", q(func(q *donav1.AnalysisQuery) { q.MaxValue = math.NaN() }), refusal.Invalid, "analysis[0].max_value"},
		{"Inf", q(func(q *donav1.AnalysisQuery) { q.MaxValue = math.Inf(1) }), refusal.Invalid, "analysis[0].max_value"},
		{"-Inf below", q(func(q *donav1.AnalysisQuery) { q.HasMinValue, q.MinValue = true, math.Inf(-1) }), refusal.Invalid, "analysis[0].min_value"},
		{"NaN in a bound that does not count", q(func(q *donav1.AnalysisQuery) { q.MinValue = math.NaN() }), refusal.Invalid, "analysis[0].min_value"},
		{"nothing can pass", q(func(q *donav1.AnalysisQuery) { q.HasMinValue, q.MinValue = true, 1 }), refusal.Invalid, "analysis[0].min_value"},
		{"only a lower bound", q(func(q *donav1.AnalysisQuery) { q.HasMinValue, q.MinValue, q.NoMaxValue = true, 1, true }), 0, ""},
		{"no bound", q(func(q *donav1.AnalysisQuery) { q.NoMaxValue = true }), refusal.Invalid, "analysis[0].no_max_value"},
		{"no bound, own verdict", q(func(q *donav1.AnalysisQuery) { q.NoMaxValue, q.Provider = true, "judge" }), 0, ""},
		{"empty query", q(func(q *donav1.AnalysisQuery) { q.Query = "" }), refusal.Invalid, "analysis[0].query"},
		{"empty query, a pair instead", q(func(q *donav1.AnalysisQuery) {
			q.Query, q.Config = "", fields(map[string]any{"numerator": "a", "denominator": "b"})
		}), 0, ""},
		{"a query that a pair makes idle", q(func(q *donav1.AnalysisQuery) { q.Config = fields(map[string]any{"numerator": "a", "denominator": "b"}) }), 0, ""},
		{"empty query, an empty pair", q(func(q *donav1.AnalysisQuery) {
			q.Query, q.Config = "", fields(map[string]any{"numerator": "", "denominator": ""})
		}), refusal.Invalid, "analysis[0].query"},
		{"empty query, a pair of another kind", q(func(q *donav1.AnalysisQuery) {
			q.Query, q.Config = "", fields(map[string]any{"numerator": 1, "denominator": 2})
		}), refusal.Invalid, "analysis[0].query"},
		{"empty query of another provider", q(func(q *donav1.AnalysisQuery) { q.Query, q.PrometheusUrl, q.Provider = "", "", "judge" }), 0, ""},
		{"a long query", q(func(q *donav1.AnalysisQuery) { q.Query = text(limits.QueryLen + 1) }), refusal.Invalid, "analysis[0].query"},
		{"the longest query", q(func(q *donav1.AnalysisQuery) { q.Query = text(limits.QueryLen) }), 0, ""},
		{"no URL", q(func(q *donav1.AnalysisQuery) { q.PrometheusUrl = "" }), refusal.Invalid, "analysis[0].prometheus_url"},
		{"file URL", q(func(q *donav1.AnalysisQuery) { q.PrometheusUrl = "file:///etc/passwd" }), refusal.Invalid, "analysis[0].prometheus_url"},
		{"no scheme", q(func(q *donav1.AnalysisQuery) { q.PrometheusUrl = "127.0.0.1:9090" }), refusal.Invalid, "analysis[0].prometheus_url"},
		{"no host", q(func(q *donav1.AnalysisQuery) { q.PrometheusUrl = "http:///x" }), refusal.Invalid, "analysis[0].prometheus_url"},
		{"https", q(func(q *donav1.AnalysisQuery) { q.PrometheusUrl = "https://prometheus.example/x" }), 0, ""},
		{"a password", q(func(q *donav1.AnalysisQuery) { q.PrometheusUrl = "http://me:secret@host" }), refusal.Invalid, "analysis[0].prometheus_url"},
		{"a long URL", q(func(q *donav1.AnalysisQuery) { q.PrometheusUrl = "http://h/" + text(limits.URLLen) }), refusal.Invalid, "analysis[0].prometheus_url"},
		{"5 s", q(func(q *donav1.AnalysisQuery) { q.TimeoutMs = limits.QueryTimeoutMS }), 0, ""},
		{"over 5 s", q(func(q *donav1.AnalysisQuery) { q.TimeoutMs = limits.QueryTimeoutMS + 1 }), refusal.Invalid, "analysis[0].timeout_ms"},
		{"a big config", q(func(q *donav1.AnalysisQuery) { q.Config = big }), refusal.Invalid, "analysis[0].config"},
		{"unknown provider", q(func(q *donav1.AnalysisQuery) { q.Provider = "datadog" }), refusal.Invalid, "analysis[0].provider"},
		{"config against the schema", q(func(q *donav1.AnalysisQuery) { q.Provider = "strict" }), refusal.Invalid, "analysis[0].config"},
		{"a provider never seen", q(func(q *donav1.AnalysisQuery) { q.Provider = "away" }), refusal.Unavailable, "analysis[0].provider"},

		{"stable without endpoint", func(r *donav1.StartRolloutRequest) { r.StableVariant = "v0" }, refusal.Precondition, "stable_variant"},
		{"unknown service", func(r *donav1.StartRolloutRequest) { r.Service = "nobody" }, refusal.Precondition, "stable_variant"},
		{"invalid before precondition", func(r *donav1.StartRolloutRequest) { r.Service, r.StepSeconds = "nobody", 0 }, refusal.Invalid, "step_seconds"},
		{"precondition before unavailable", func(r *donav1.StartRolloutRequest) {
			q(func(q *donav1.AnalysisQuery) { q.Provider = "away" })(r)
			r.StableVariant = "v0"
		}, refusal.Precondition, "stable_variant"},
		{"unknown canary waits", func(r *donav1.StartRolloutRequest) { r.CanaryVariant = "v99" }, 0, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			st := newMemStore(time.Now)
			w := newWorld(t, st, time.Now)
			w.analyzer.check = map[string]error{
				"prometheus": nil, "judge": nil, "away": rollout.ErrProviderAway,
				"strict": &rollout.ConfigError{Violations: []rollout.Violation{{Path: "/window", Message: "is not a duration"}}},
			}
			w.analyzer.own["judge"] = true
			wrote := st.wrote
			err := w.c.Start(w.ctx, "local:dev", request(c.change))
			if c.kind == 0 {
				if err != nil {
					t.Fatal(err)
				}
				if st.wrote != wrote+1 || st.hard != 1 {
					t.Fatalf("%d transactions, %d hard: a start is one hard transaction", st.wrote-wrote, st.hard)
				}
				return
			}
			var no *refusal.Error
			if !errors.As(err, &no) || no.Kind != c.kind || no.Field != c.field {
				t.Fatalf("%v, want kind %d for %s", err, c.kind, c.field)
			}
			if st.wrote != wrote {
				t.Error("a refused request was stored")
			}
			if strict := strings.Contains(no.Error(), `"strict"`); strict && !strings.Contains(no.Error(), `"/window" "is not a duration"`) {
				t.Errorf("the answer does not say what of the config is wrong: %s", no)
			}
			if len(no.Error()) > 1024 || strings.Contains(no.Error(), text(65)) || strings.Contains(no.Error(), "secret") {
				t.Errorf("the answer repeats too much: %d bytes: %s", len(no.Error()), no)
			}
		})
	}
}

func TestControlRefusals(t *testing.T) {
	for _, c := range []struct {
		name  string
		req   *donav1.ControlRolloutRequest
		kind  refusal.Kind
		field string
	}{
		{"no service", &donav1.ControlRolloutRequest{Action: 1}, refusal.Invalid, "service"},
		{"no action", &donav1.ControlRolloutRequest{Service: svc}, refusal.Invalid, "action"},
		{"an unknown action", &donav1.ControlRolloutRequest{Service: svc, Action: 99}, refusal.Invalid, "action"},
		{"a long reason", &donav1.ControlRolloutRequest{Service: svc, Action: 1, Reason: text(limits.ReasonLen + 1)}, refusal.Invalid, "reason"},
		{"a reason of two lines", &donav1.ControlRolloutRequest{Service: svc, Action: 1, Reason: "a\nb"}, refusal.Invalid, "reason"},
		{"lift without variant", &donav1.ControlRolloutRequest{Service: svc, Action: donav1.ControlRolloutRequest_ACTION_LIFT_QUARANTINE}, refusal.Invalid, "variant"},
		{"lift what is not quarantined", &donav1.ControlRolloutRequest{Service: svc, Action: donav1.ControlRolloutRequest_ACTION_LIFT_QUARANTINE, Variant: "v2"}, refusal.Precondition, "variant"},
		{"unknown service", &donav1.ControlRolloutRequest{Service: "nobody", Action: 1}, refusal.NotFound, ""},
		{"no rollout", &donav1.ControlRolloutRequest{Service: svc, Action: 1}, refusal.NotFound, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			st := newMemStore(time.Now)
			w := newWorld(t, st, time.Now)
			wrote := st.wrote
			_, err := w.c.Control(w.ctx, "local:dev", c.req)
			var no *refusal.Error
			if !errors.As(err, &no) || no.Kind != c.kind || no.Field != c.field {
				t.Fatalf("%v, want kind %d for %q", err, c.kind, c.field)
			}
			if st.wrote != wrote {
				t.Error("a refused request was stored")
			}
		})
	}
	w := newWorld(t, newMemStore(time.Now), time.Now)
	w.start(request())
	longest := &donav1.ControlRolloutRequest{Service: svc, Action: donav1.ControlRolloutRequest_ACTION_PAUSE, Reason: text(limits.ReasonLen)}
	if _, err := w.c.Control(w.ctx, "local:dev", longest); err != nil {
		t.Errorf("the longest reason: %v", err)
	}
}
