// Package leastconnections is the built-in strategy that compares a few
// candidates, drawn by weight, and takes the one with the fewest calls in
// flight per weight. It is the default of services.
package leastconnections

import (
	"context"

	donav1 "github.com/dodona-project/dodona/proto/dona/v1"
	pluginv1 "github.com/dodona-project/dodona/proto/plugin/v1"
	"github.com/dodona-project/dodona/sdk/plugin"
)

// Name is the plugin's name.
const Name = "least-connections"

// Config is what an operator can set.
type Config struct {
	// Choices is how many candidates a client compares for each call.
	Choices uint32 `json:"choices,omitempty" jsonschema:"minimum=2,maximum=32,default=2,description=candidates compared for each call"`
}

// Strategy implements the plugin.
type Strategy struct{}

// Configure accepts every configuration that fits the schema.
func (Strategy) Configure(context.Context, Config) error { return nil }

// Compile returns least connections. Candidates keep their weights, so the plan
// names none: one endpoint's change changes no plan.
func (Strategy) Compile(ctx context.Context, _ *pluginv1.CompileRequest) (*pluginv1.CompileReply, error) {
	config, _ := plugin.Config[Config](ctx)
	return &pluginv1.CompileReply{Plan: &donav1.Plan{
		Strategy:  Name,
		Algorithm: donav1.Algorithm_ALGORITHM_LEAST_CONNECTIONS,
		Choices:   config.Choices,
	}}, nil
}
