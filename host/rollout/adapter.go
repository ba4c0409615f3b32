package rollout

import (
	"context"
	"errors"
	"fmt"

	pluginv1 "github.com/dodona-project/dodona/proto/plugin/v1"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/dodona-project/dodona/plugins"
	"github.com/dodona-project/dodona/plugins/analysis"
)

// Facade is the checked way to the analysis plugins; *analysis.Facade is one.
type Facade interface {
	Validate(ctx context.Context, plugin string, config *structpb.Struct) error
	Evaluate(ctx context.Context, plugin string, req *pluginv1.EvaluateRequest) (analysis.Measurement, error)
}

// OverPlugins makes an Analyzer of the plugins' facade. ownVerdict reports
// whether a plugin gives verdicts without bounds; nil means that none does.
func OverPlugins(f Facade, ownVerdict func(plugin string) bool) Analyzer {
	if ownVerdict == nil {
		ownVerdict = func(string) bool { return false }
	}
	return &overPlugins{facade: f, ownVerdict: ownVerdict}
}

type overPlugins struct {
	facade     Facade
	ownVerdict func(string) bool
}

func (a *overPlugins) Validate(ctx context.Context, provider string, config *structpb.Struct) (bool, error) {
	err := a.facade.Validate(ctx, provider, config)
	var bad *plugins.ConfigError
	switch {
	case err == nil:
		return a.ownVerdict(provider), nil
	case errors.As(err, &bad):
		out := &ConfigError{}
		for _, v := range bad.Violations {
			out.Violations = append(out.Violations, Violation{Path: v.Path, Message: v.Message})
		}
		return false, out
	case errors.Is(err, plugins.ErrUnknown):
		return false, fmt.Errorf("%w: %w", ErrUnknownProvider, err)
	default:
		return false, fmt.Errorf("%w: %w", ErrProviderAway, err)
	}
}

func (a *overPlugins) Evaluate(ctx context.Context, provider string, req *pluginv1.EvaluateRequest) (Measurement, error) {
	m, err := a.facade.Evaluate(ctx, provider, req)
	switch {
	case errors.Is(err, plugins.ErrAway), errors.Is(err, plugins.ErrUnknown), errors.Is(err, plugins.ErrExhausted):
		return Measurement{}, fmt.Errorf("%w: %w", ErrProviderAway, err)
	case errors.Is(err, plugins.ErrDeadline):
		return Measurement{}, fmt.Errorf("%w: %w", context.DeadlineExceeded, err)
	case err != nil:
		return Measurement{}, err
	}
	return Measurement{
		Verdict: Verdict(m.Verdict), Value: m.Value, HasValue: m.HasValue, Detail: m.Detail, Evidence: m.Evidence,
		State: m.State, RetryAfter: m.RetryAfter, Plugin: m.Plugin, Version: m.Version, Digest: m.Digest,
	}, nil
}
