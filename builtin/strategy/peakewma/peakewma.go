// Package peakewma is the built-in strategy that compares a few candidates, drawn
// by weight, and takes the one where a call is expected to cost least: latency
// times calls in flight. The estimate of latency is Finagle's peak EWMA
// (com.twitter.finagle.loadbalancer.PeakEwma), and comparing a few only is
// M. Mitzenmacher's power of two choices; both happen in clients, which measure.
package peakewma

import (
	"context"

	donav1 "github.com/dodona-project/dodona/proto/dona/v1"
	pluginv1 "github.com/dodona-project/dodona/proto/plugin/v1"
	"github.com/dodona-project/dodona/sdk/plugin"
)

// Name is the plugin's name.
const Name = "peak-ewma"

// Config is what an operator can set.
type Config struct {
	// Choices is how many candidates a client compares for each call.
	Choices uint32 `json:"choices,omitempty" jsonschema:"minimum=2,maximum=32,default=2,description=candidates compared for each call"`
}

// Strategy implements the plugin.
type Strategy struct{}

// Configure accepts every configuration that fits the schema.
func (Strategy) Configure(context.Context, Config) error { return nil }

// Compile returns peak EWMA. Candidates keep their weights, and what the host
// knows of their latency is not asked: a client measures its own way to them.
func (Strategy) Compile(ctx context.Context, _ *pluginv1.CompileRequest) (*pluginv1.CompileReply, error) {
	config, _ := plugin.Config[Config](ctx)
	return &pluginv1.CompileReply{Plan: &donav1.Plan{
		Strategy:  Name,
		Algorithm: donav1.Algorithm_ALGORITHM_PEAK_EWMA,
		Choices:   config.Choices,
	}}, nil
}
