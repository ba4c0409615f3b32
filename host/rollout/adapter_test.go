package rollout_test

import (
	"context"
	"errors"
	"testing"

	donav1 "github.com/dodona-project/dodona/proto/dona/v1"
	pluginv1 "github.com/dodona-project/dodona/proto/plugin/v1"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/dodona-project/dodona/host/rollout"
	"github.com/dodona-project/dodona/plugins"
	"github.com/dodona-project/dodona/plugins/analysis"
)

var _ rollout.Facade = (*analysis.Facade)(nil)

type fakeFacade struct {
	m   analysis.Measurement
	err error
}

func (f fakeFacade) Validate(context.Context, string, *structpb.Struct) error { return f.err }
func (f fakeFacade) Evaluate(context.Context, string, *pluginv1.EvaluateRequest) (analysis.Measurement, error) {
	return f.m, f.err
}

func TestOverPlugins(t *testing.T) {
	config := &plugins.ConfigError{Violations: []plugins.Violation{{Path: "/a", Message: "is not a number"}}}
	for _, c := range []struct {
		name               string
		err                error
		validate, evaluate error // what errors.Is must find
	}{
		{"unknown", plugins.ErrUnknown, rollout.ErrUnknownProvider, rollout.ErrProviderAway},
		{"away", plugins.ErrAway, rollout.ErrProviderAway, rollout.ErrProviderAway},
		{"busy", plugins.ErrExhausted, rollout.ErrProviderAway, rollout.ErrProviderAway},
		{"late", plugins.ErrDeadline, rollout.ErrProviderAway, context.DeadlineExceeded},
		{"refused", &plugins.AnswerError{Reason: "detail"}, rollout.ErrProviderAway, nil},
	} {
		a := rollout.OverPlugins(fakeFacade{err: c.err}, nil)
		if _, err := a.Validate(t.Context(), "p", nil); !errors.Is(err, c.validate) {
			t.Errorf("%s: Validate: %v, want %v", c.name, err, c.validate)
		}
		_, err := a.Evaluate(t.Context(), "p", nil)
		if err == nil || c.evaluate != nil && !errors.Is(err, c.evaluate) {
			t.Errorf("%s: Evaluate: %v, want %v", c.name, err, c.evaluate)
		}
	}
	_, err := rollout.OverPlugins(fakeFacade{err: config}, nil).Validate(t.Context(), "p", nil)
	var bad *rollout.ConfigError
	if !errors.As(err, &bad) || len(bad.Violations) != 1 || bad.Violations[0].Path != "/a" {
		t.Errorf("config: %v", err)
	}
	own, err := rollout.OverPlugins(fakeFacade{}, func(p string) bool { return p == "judge" }).Validate(t.Context(), "judge", nil)
	if !own || err != nil {
		t.Errorf("own verdict: %v, %v", own, err)
	}
	m, err := rollout.OverPlugins(fakeFacade{m: analysis.Measurement{
		Verdict: donav1.Verdict_VERDICT_BREACH, Value: 3, HasValue: true, Detail: "d", Evidence: []byte("e"), State: []byte("s"), RetryAfter: 7, Plugin: "p", Version: "1", Digest: "x",
	}}, nil).Evaluate(t.Context(), "p", nil)
	if err != nil || m.Verdict != rollout.Breach || m.Value != 3 || !m.HasValue || m.Detail != "d" || string(m.Evidence) != "e" ||
		string(m.State) != "s" || m.RetryAfter != 7 || m.Plugin != "p" || m.Version != "1" || m.Digest != "x" {
		t.Errorf("%+v, %v", m, err)
	}
}
