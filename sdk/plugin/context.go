package plugin

import (
	"context"

	"github.com/hashicorp/go-hclog"
)

type callKey struct{}

// call is the context of a handler's call, and what it can be asked for.
type call struct {
	context.Context

	logger    hclog.Logger // the plugin's
	instance  string
	rolloutID string
	config    any
}

// Value returns the call itself for callKey.
func (c *call) Value(key any) any {
	if key == (callKey{}) {
		return c
	}
	return c.Context.Value(key)
}

func fromContext(ctx context.Context) *call {
	c, _ := ctx.Value(callKey{}).(*call)
	return c
}

// Logger returns a logger whose lines reach the host's log with the plugin's
// name, and with the instance and rollout of the call. It never is nil.
func Logger(ctx context.Context) hclog.Logger {
	c := fromContext(ctx)
	if c == nil || c.logger == nil {
		return hclog.NewNullLogger()
	}
	// Made here and not for every call: most calls log nothing.
	l := c.logger
	if c.instance != "" {
		l = l.With("instance", c.instance)
	}
	if c.rolloutID != "" {
		l = l.With("rollout", c.rolloutID)
	}
	return l
}

// Instance returns the instance that is called: one configured use of the
// plugin. One process serves many. Empty outside of a call.
func Instance(ctx context.Context) string {
	if c := fromContext(ctx); c != nil {
		return c.instance
	}
	return ""
}

// RolloutID returns the rollout an analysis is for, empty for other calls.
func RolloutID(ctx context.Context) string {
	if c := fromContext(ctx); c != nil {
		return c.rolloutID
	}
	return ""
}

// Config returns the configuration of the instance that is called, and whether
// it has one of type T: the type that the plugin's Configure takes. The value
// is shared by all calls of the instance and must not be changed.
func Config[T any](ctx context.Context) (T, bool) {
	if c := fromContext(ctx); c != nil {
		if config, ok := c.config.(T); ok {
			return config, true
		}
	}
	var none T
	return none, false
}
