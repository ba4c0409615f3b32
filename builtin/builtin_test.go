package builtin_test

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/dodona-project/dodona/builtin"
	"github.com/dodona-project/dodona/plugins"
	"github.com/dodona-project/dodona/plugins/analysis"
	"github.com/dodona-project/dodona/plugins/strategy"
	donav1 "github.com/dodona-project/dodona/proto/dona/v1"
	pluginv1 "github.com/dodona-project/dodona/proto/plugin/v1"
)

// The test binary is the host's program: built-ins run as processes of it.
func TestMain(m *testing.M) {
	builtin.Dispatch()
	goleak.VerifyTestMain(m)
}

func startHost(t *testing.T) *plugins.Host {
	t.Helper()
	dir, err := os.MkdirTemp("", "b")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	h, err := plugins.New(plugins.Options{RunDir: filepath.Join(dir, "r"), Builtins: builtin.All()})
	if err != nil {
		t.Fatal(err)
	}
	if err := h.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { h.Stop(context.Background()) })
	return h
}

func await(t *testing.T, h *plugins.Host, kind plugins.Kind, name string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if err := h.Await(ctx, kind, name); err != nil {
		t.Fatal(err)
	}
}

func config(t *testing.T, fields map[string]any) *structpb.Struct {
	t.Helper()
	s, err := structpb.NewStruct(fields)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func TestEveryBuiltinStarts(t *testing.T) {
	h := startHost(t)
	for _, s := range h.List() {
		await(t, h, plugins.Kind(s.GetKind()), s.GetName())
	}
	for _, s := range h.List() {
		if s.GetState() != "ready" || s.GetVersion() == "" || s.GetExits() != 0 {
			t.Errorf("%v", s)
		}
	}
}

func TestEveryBuiltinHasAPage(t *testing.T) {
	h, err := plugins.New(plugins.Options{Builtins: builtin.All()})
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range h.List() {
		page := filepath.Join("..", "docs", "plugins", s.GetKind()+"-"+s.GetName()+".md")
		if text, err := os.ReadFile(page); err != nil || !strings.Contains(string(text), "`"+s.GetName()+"`") {
			t.Errorf("%s/%s: %v: each built-in has a page that names it", s.GetKind(), s.GetName(), err)
		}
	}
}

func TestHiddenArgumentsNeedTheHost(t *testing.T) {
	for _, args := range [][]string{{"__dona-plugin", "strategy/round-robin"}, {"__dona-watchdog"}} {
		cmd := exec.Command(os.Args[0], args...)
		cmd.Env = []string{}
		out, err := cmd.CombinedOutput()
		var exit *exec.ExitError
		if !errors.As(err, &exit) || exit.ExitCode() != 2 || !strings.Contains(string(out), "for the host itself") {
			t.Errorf("%v: %v, %s", args, err, out)
		}
	}
}

func TestStrategies(t *testing.T) {
	h := startHost(t)
	f := strategy.New(h)
	zones := []*pluginv1.Candidate{
		{Id: "a", Group: "near", Weight: 100, Priority: 5}, {Id: "b", Group: "near", Weight: 5, Priority: 9},
		{Id: "c", Group: "far", Weight: 100, Priority: 7}, {Id: "d", Group: "", Weight: 100, Priority: 5},
	}
	tiers := func(groups ...any) map[string]any { return map[string]any{"tiers": groups} }
	list := func(groups ...any) []any { return groups }
	hash := func(source donav1.HashPolicy_Source, name string, maxLoad uint32) *donav1.Plan {
		return &donav1.Plan{Algorithm: donav1.Algorithm_ALGORITHM_CONSISTENT_HASH, Hash: &donav1.HashPolicy{Source: source, Name: name}, MaxLoadPercent: maxLoad}
	}
	tiered := func(tiers map[string]uint32) *donav1.Plan {
		return &donav1.Plan{Algorithm: donav1.Algorithm_ALGORITHM_TIERED, GroupTiers: tiers}
	}
	for _, tc := range []struct {
		name   string
		config map[string]any
		scope  string
		want   *donav1.Plan
	}{
		{"round-robin", nil, "service/shop", &donav1.Plan{Algorithm: donav1.Algorithm_ALGORITHM_ROUND_ROBIN}},
		{"random", nil, "service/shop", &donav1.Plan{Algorithm: donav1.Algorithm_ALGORITHM_RANDOM}},
		{"least-connections", nil, "service/shop", &donav1.Plan{Algorithm: donav1.Algorithm_ALGORITHM_LEAST_CONNECTIONS}},
		{"least-connections", map[string]any{"choices": 4}, "service/shop", &donav1.Plan{Algorithm: donav1.Algorithm_ALGORITHM_LEAST_CONNECTIONS, Choices: 4}},
		{"peak-ewma", nil, "service/shop", &donav1.Plan{Algorithm: donav1.Algorithm_ALGORITHM_PEAK_EWMA}},
		{"peak-ewma", map[string]any{"choices": 32}, "service/shop", &donav1.Plan{Algorithm: donav1.Algorithm_ALGORITHM_PEAK_EWMA, Choices: 32}},
		{"consistent-hash", nil, "service/shop", hash(donav1.HashPolicy_SOURCE_UNIT, "", 0)},
		{"consistent-hash", map[string]any{"source": "attribute", "name": "cart", "max_load_percent": 150}, "service/shop", hash(donav1.HashPolicy_SOURCE_ATTRIBUTE, "cart", 150)},
		{"consistent-hash", map[string]any{"source": "header", "name": "x-cart"}, "routing/shop", hash(donav1.HashPolicy_SOURCE_HEADER, "x-cart", 0)},
		{"consistent-hash", map[string]any{"source": "client_ip"}, "routing/shop", hash(donav1.HashPolicy_SOURCE_CLIENT_IP, "", 0)},
		{"consistent-hash", map[string]any{"source": "client_id"}, "routing/shop", hash(donav1.HashPolicy_SOURCE_CLIENT_ID, "", 0)},
		{"consistent-hash", map[string]any{"source": "target_host"}, "routing/shop", hash(donav1.HashPolicy_SOURCE_TARGET_HOST, "", 0)},
		{"priority", nil, "service/shop", tiered(map[string]uint32{"far": 1})}, // by priorities 5, 5, 7
		{"priority", tiers(list("near"), list("far", "")), "service/shop", tiered(map[string]uint32{"far": 1, "": 1})},
		{"priority", tiers(list("nowhere"), list("near")), "service/shop", tiered(map[string]uint32{"far": 1, "": 1})},
		{"priority", tiers(list("far"), list("near")), "service/shop", tiered(map[string]uint32{"near": 1, "": 2})},
	} {
		await(t, h, plugins.KindStrategy, tc.name)
		c := config(t, tc.config)
		if err := f.Validate(t.Context(), tc.name, c); err != nil {
			t.Errorf("%s: %v", tc.name, err)
		}
		tc.want.Strategy = tc.name
		req := &pluginv1.CompileRequest{Scope: tc.scope, Seed: 1, Candidates: slices.Clone(zones)}
		for range 2 { // again the other way round: the same candidates, the same plan
			r, err := f.CompileWith(t.Context(), tc.name, c, req)
			if err != nil || !proto.Equal(r.Plan, tc.want) || r.RefreshAfter != 0 {
				t.Errorf("%s %v: %v, %v, want %v", tc.name, tc.config, r, err, tc.want)
			}
			slices.Reverse(req.Candidates)
		}
	}
	// What only a proxy knows is refused for a service, before a client sees it.
	_, err := f.CompileWith(t.Context(), "consistent-hash", config(t, map[string]any{"source": "client_ip"}),
		&pluginv1.CompileRequest{Scope: "service/shop", Candidates: zones})
	var bad *plugins.AnswerError
	if !errors.As(err, &bad) || bad.Reason != "hash" || !strings.Contains(err.Error(), "UNIT and ATTRIBUTE") {
		t.Errorf("a service by client address: %v", err)
	}
}

func TestConfigurations(t *testing.T) {
	h := startHost(t)
	for _, tc := range []struct {
		kind   plugins.Kind
		name   string
		config map[string]any
		want   string
	}{
		{plugins.KindStrategy, "round-robin", map[string]any{"choices": 2}, "takes no configuration"},
		{plugins.KindStrategy, "least-connections", map[string]any{"choices": 1}, "/choices"},
		{plugins.KindStrategy, "least-connections", map[string]any{"choices": 33}, "/choices"},
		{plugins.KindStrategy, "least-connections", map[string]any{"choices": "2"}, "/choices"},
		{plugins.KindStrategy, "least-connections", map[string]any{"chioces": 2}, "chioces"},
		{plugins.KindStrategy, "random", map[string]any{"seed": 1}, "takes no configuration"},
		{plugins.KindStrategy, "peak-ewma", map[string]any{"choices": 33}, "/choices"},
		{plugins.KindStrategy, "consistent-hash", map[string]any{"source": "cookie"}, "/source"},
		{plugins.KindStrategy, "consistent-hash", map[string]any{"source": "attribute"}, "name is empty: set it to the name of the attribute"},
		{plugins.KindStrategy, "consistent-hash", map[string]any{"source": "header"}, "name of the header"},
		{plugins.KindStrategy, "consistent-hash", map[string]any{"source": "unit", "name": "x"}, "name is set"},
		{plugins.KindStrategy, "consistent-hash", map[string]any{"name": "x"}, "name is set"},
		{plugins.KindStrategy, "consistent-hash", map[string]any{"source": "attribute", "name": strings.Repeat("x", 129)}, "/name"},
		{plugins.KindStrategy, "consistent-hash", map[string]any{"source": "attribute", "name": strings.Repeat("ü", 65)}, "name has 130 bytes"},
		{plugins.KindStrategy, "consistent-hash", map[string]any{"max_load_percent": 100}, "/max_load_percent"},
		{plugins.KindStrategy, "consistent-hash", map[string]any{"max_load_percent": 10_001}, "/max_load_percent"},
		{plugins.KindStrategy, "priority", map[string]any{"tiers": []any{"near"}}, "/tiers/0"},
		{plugins.KindStrategy, "priority", map[string]any{"tiers": []any{[]any{}}}, "tiers[0] has 0 groups"},
		{plugins.KindStrategy, "priority", map[string]any{"tiers": []any{[]any{"a"}, []any{"b", "a"}}}, `tiers[1][1] is "a", which is tiers[0][0] already`},
		{plugins.KindStrategy, "priority", map[string]any{"tiers": []any{[]any{strings.Repeat("x", 129)}}}, "tiers[0][0] has 129 bytes"},
		{plugins.KindStrategy, "priority", map[string]any{"tiers": slices.Repeat([]any{[]any{"a"}}, 17)}, "/tiers"},
		{plugins.KindAnalysis, "prometheus", map[string]any{}, ""},
		{plugins.KindAnalysis, "prometheus", map[string]any{"numerator": "a", "denominator": "b", "min_denominator": 10}, ""},
		{plugins.KindAnalysis, "prometheus", map[string]any{"numerator": "a"}, "go together"},
		{plugins.KindAnalysis, "prometheus", map[string]any{"min_denominator": -1}, "/min_denominator"},
		{plugins.KindAnalysis, "prometheus", map[string]any{"min_denominator": 1}, "set all three, or not this one"},
		{plugins.KindAnalysis, "webhook", map[string]any{}, "url"},
		{plugins.KindAnalysis, "webhook", map[string]any{"url": "http://127.0.0.1:1/x"}, ""},
		{plugins.KindAnalysis, "webhook", map[string]any{"url": "file:///etc/passwd"}, "http:// or https://"},
		{plugins.KindAnalysis, "webhook", map[string]any{"url": "http://127.0.0.1:1/x", "headers": map[string]any{"X": "HOME"}}, "WEBHOOK_HOSTS"},
		{plugins.KindAnalysis, "webhook", map[string]any{"url": "http://127.0.0.1:1/x", "headers": []any{"X"}}, "/headers"},
		{plugins.KindAnalysis, "webhook", map[string]any{"url": "http://127.0.0.1:1/x", "method": "PUT"}, "method"},
		{plugins.KindProbe, "http", map[string]any{}, ""},
		{plugins.KindProbe, "http", map[string]any{"path": "/healthz", "method": "HEAD", "expect_status": []any{204}, "tls": map[string]any{"server_name": "x", "skip_verify": true}, "allow": []any{"loopback"}}, ""},
		{plugins.KindProbe, "http", map[string]any{"path": "healthz"}, "begins with one /"},
		{plugins.KindProbe, "http", map[string]any{"method": "POST"}, "/method"},
		{plugins.KindProbe, "http", map[string]any{"expect_status": []any{404}}, "/expect_status/0"},
		{plugins.KindProbe, "http", map[string]any{"tls": map[string]any{"cert": "x"}}, "cert"},
		{plugins.KindProbe, "http", map[string]any{"allow": []any{"everything"}}, "/allow/0"},
		{plugins.KindProbe, "http", map[string]any{"url": "http://x/"}, "url"},
		{plugins.KindProbe, "tcp", map[string]any{"send": "x", "expect": "y"}, ""},
		{plugins.KindProbe, "tcp", map[string]any{"expect": strings.Repeat("x", 4097)}, "/expect"},
		{plugins.KindProbe, "grpc", map[string]any{"service": "shop", "tls": map[string]any{}}, ""},
		{plugins.KindProbe, "grpc", map[string]any{"tls": map[string]any{"ca": "x"}}, "no PEM certificate"},
		{plugins.KindProbe, "tls", map[string]any{"server_name": "x", "min_days": 14}, ""},
		{plugins.KindProbe, "tls", map[string]any{"min_days": -1}, "/min_days"},
		{plugins.KindProbe, "tls", map[string]any{"min_days": 3651}, "/min_days"},
		{plugins.KindProbe, "proxy", map[string]any{}, ""},
		{plugins.KindProbe, "proxy", map[string]any{"basic_target": "shop.example:443", "proxy_tls": map[string]any{"skip_verify": true}, "tls": map[string]any{}, "allow": []any{"loopback"}}, ""},
		{plugins.KindProbe, "proxy", map[string]any{"basic_target": "shop.example"}, "basic_target"},
		{plugins.KindProbe, "proxy", map[string]any{"proxy_tls": map[string]any{"ca": "x"}}, "no PEM certificate"},
		{plugins.KindProbe, "proxy", map[string]any{"allow": []any{"private"}}, "/allow/0"},
		{plugins.KindAnalysis, "sequential", map[string]any{}, ""},
		{plugins.KindAnalysis, "sequential", map[string]any{"limit": 0.5, "alpha": 0.001, "beta": 0.5}, ""},
		{plugins.KindAnalysis, "sequential", map[string]any{"limit": 0}, "/limit"},
		{plugins.KindAnalysis, "sequential", map[string]any{"limit": 100}, "/limit"},
		{plugins.KindAnalysis, "sequential", map[string]any{"limit": "5 %"}, "/limit"},
		{plugins.KindAnalysis, "sequential", map[string]any{"alpha": 0}, "/alpha"},
		{plugins.KindAnalysis, "sequential", map[string]any{"beta": 0.6}, "/beta"},
		{plugins.KindAnalysis, "sequential", map[string]any{"gamma": 0.6}, "gamma"},
	} {
		err := h.Validate(t.Context(), plugins.ID{Kind: tc.kind, Name: tc.name}, config(t, tc.config))
		var refused *plugins.ConfigError
		switch {
		case tc.want == "" && err != nil:
			t.Errorf("%s %v: %v", tc.name, tc.config, err)
		case tc.want != "" && (!errors.As(err, &refused) || !strings.Contains(err.Error(), tc.want)):
			t.Errorf("%s %v: %v, want %q", tc.name, tc.config, err, tc.want)
		}
	}
}

// What the host counted goes through the process and comes back as a verdict.
func TestSequential(t *testing.T) {
	h := startHost(t)
	await(t, h, plugins.KindAnalysis, "sequential")
	f := analysis.New(h)
	await(t, h, plugins.KindAnalysis, "webhook")
	if !f.OwnVerdict("sequential") || !f.OwnVerdict("webhook") || f.OwnVerdict("prometheus") {
		t.Error("all but prometheus need no bounds")
	}
	q := &donav1.AnalysisQuery{Name: "errors", NoMaxValue: true, Config: config(t, map[string]any{"limit": 5})}
	for errors, want := range map[uint64]donav1.Verdict{0: donav1.Verdict_VERDICT_PASS, 10: donav1.Verdict_VERDICT_MISSING, 40: donav1.Verdict_VERDICT_BREACH} {
		m, err := f.Evaluate(t.Context(), "sequential", &pluginv1.EvaluateRequest{Service: "shop", Query: q, Canary: &pluginv1.Window{Requests: 200, Errors: errors}})
		if err != nil || m.Verdict != want || len(m.State) == 0 || len(m.Evidence) == 0 {
			t.Errorf("%d of 200: %+v, %v", errors, m, err)
		}
	}
}

// Nobody listens where the query points: that is not measured, and not a pass.
func TestServersAway(t *testing.T) {
	h := startHost(t)
	for provider, q := range map[string]*donav1.AnalysisQuery{
		"prometheus": {Name: "p99", PrometheusUrl: "http://127.0.0.1:1", Query: "up", MaxValue: 1},
		"webhook":    {Name: "p99", Config: config(t, map[string]any{"url": "http://127.0.0.1:1"}), MaxValue: 1},
	} {
		await(t, h, plugins.KindAnalysis, provider)
		m, err := analysis.New(h).Evaluate(t.Context(), provider, &pluginv1.EvaluateRequest{Service: "shop", Query: q})
		if err != nil || m.Verdict != donav1.Verdict_VERDICT_MISSING || m.Plugin != provider || !strings.HasPrefix(m.Detail, "unreachable: ") {
			t.Errorf("%s: %+v, %v", provider, m, err)
		}
	}
}
