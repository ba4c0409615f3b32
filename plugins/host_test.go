//go:build linux

package plugins_test

import (
	"context"
	"errors"
	"os"
	"strings"
	"testing"

	"google.golang.org/protobuf/types/known/structpb"

	"github.com/dodona-project/dodona/plugins"
	"github.com/dodona-project/dodona/plugins/analysis"
	"github.com/dodona-project/dodona/plugins/strategy"
	donav1 "github.com/dodona-project/dodona/proto/dona/v1"
	pluginv1 "github.com/dodona-project/dodona/proto/plugin/v1"
)

func config(t testing.TB, fields map[string]any) *structpb.Struct {
	t.Helper()
	s, err := structpb.NewStruct(fields)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func request(t testing.TB, do string) *pluginv1.EvaluateRequest {
	return &pluginv1.EvaluateRequest{
		Service: "shop",
		Query:   &donav1.AnalysisQuery{Name: "q", Query: do, Config: config(t, map[string]any{"word": "hi"})},
	}
}

func TestFirstUseStartsAndAnswers(t *testing.T) {
	h := startHost(t, newOptions(t))
	f := analysis.New(h)

	if _, err := f.Evaluate(t.Context(), "acts", request(t, "")); !errors.Is(err, plugins.ErrAway) {
		t.Fatalf("first call before the start: %v, want ErrAway", err)
	}
	await(t, h, plugins.KindAnalysis, "acts")
	if !f.OwnVerdict("acts") || f.OwnVerdict("env") || f.OwnVerdict("none") {
		t.Error("only acts was seen and gives verdicts")
	}
	m, err := f.Evaluate(t.Context(), "acts", request(t, ""))
	if err != nil {
		t.Fatal(err)
	}
	if m.Verdict != donav1.Verdict_VERDICT_PASS || m.Detail != "hi" || m.Plugin != "acts" || m.Version != "1.2.3" || !strings.HasPrefix(m.Digest, "sha256:") {
		t.Fatalf("measurement %+v", m)
	}
	s := stateOf(t, h, "acts")
	if s.GetState() != "ready" || s.GetPid() == 0 || s.GetInstances() != 1 || s.GetSource() != "builtin" || s.GetGeneration() != 1 {
		t.Fatalf("status %v", s)
	}

	await(t, h, plugins.KindStrategy, "turns")
	r, err := strategy.New(h).Compile(t.Context(), "turns", &pluginv1.CompileRequest{
		Scope: "service/shop", Candidates: []*pluginv1.Candidate{{Id: "a", Weight: 100}},
	})
	if err != nil || r.Plan.GetStrategy() != "turns" || r.Plan.GetAlgorithm() != donav1.Algorithm_ALGORITHM_ROUND_ROBIN {
		t.Fatalf("plan %v, %v", r.Plan, err)
	}
}

func TestUnknownPlugin(t *testing.T) {
	h := startHost(t, newOptions(t))
	if err := h.Ensure(plugins.KindAnalysis, "none"); !errors.Is(err, plugins.ErrUnknown) {
		t.Errorf("Ensure: %v", err)
	}
	if _, err := analysis.New(h).Evaluate(t.Context(), "turns", request(t, "")); !errors.Is(err, plugins.ErrUnknown) {
		t.Errorf("a strategy is no analysis: %v", err)
	}
	if err := strategy.New(h).Validate(t.Context(), "none", nil); !errors.Is(err, plugins.ErrUnknown) {
		t.Errorf("Validate: %v", err)
	}
}

func TestStopLeavesNothing(t *testing.T) {
	o := newOptions(t)
	h := startHost(t, o)
	await(t, h, plugins.KindAnalysis, "acts")
	pid := int(stateOf(t, h, "acts").GetPid())
	h.Stop(context.Background())
	if alive(pid) {
		t.Errorf("process %d lives", pid)
	}
	left, err := os.ReadDir(o.RunDir)
	if err != nil || len(left) != 0 {
		t.Errorf("left in the run directory: %v, %v", left, err)
	}
	if s := stateOf(t, h, "acts"); s.GetState() != "stopped" {
		t.Errorf("state %s", s.GetState())
	}
}
