package rollout

import (
	"context"
	"errors"
	"fmt"
	"strings"

	pluginv1 "github.com/dodona-project/dodona/proto/plugin/v1"
	"google.golang.org/protobuf/types/known/structpb"
)

// Analyzer is the way to the analysis plugins. Its implementation has checked
// the form of every answer; it may be called concurrently.
type Analyzer interface {
	// Validate checks config against what provider accepts, by its last known
	// schema when it is not running, and reports whether provider gives verdicts
	// of its own, so that a query needs no bounds. Errors: ErrUnknownProvider,
	// ErrProviderAway (never seen, or not now), a *ConfigError.
	Validate(ctx context.Context, provider string, config *structpb.Struct) (ownVerdict bool, err error)

	// Evaluate measures one signal. Any error means that nothing was measured.
	Evaluate(ctx context.Context, provider string, req *pluginv1.EvaluateRequest) (Measurement, error)
}

var (
	// ErrUnknownProvider means that no analysis plugin has that name.
	ErrUnknownProvider = errors.New("rollout: no such analysis plugin")
	// ErrProviderAway means that the plugin exists and cannot answer now.
	ErrProviderAway = errors.New("rollout: the analysis plugin is away")
)

// Violation is one thing a provider does not accept in a query's config.
type Violation struct {
	Path    string // JSON Pointer into config
	Message string
}

// ConfigError says what a provider does not accept.
type ConfigError struct {
	Violations []Violation
}

func (e *ConfigError) Error() string {
	parts := make([]string, len(e.Violations))
	for i, v := range e.Violations {
		parts[i] = fmt.Sprintf("%s: %s", v.Path, v.Message)
	}
	return "rollout: config refused: " + strings.Join(parts, "; ")
}
