// Command local-first is an example of a strategy plugin: calls stay in one region as
// long as it has room, and what is more than it can bear spills over to the others.
package main

import (
	"context"

	donav1 "github.com/dodona-project/dodona/proto/dona/v1"
	pluginv1 "github.com/dodona-project/dodona/proto/plugin/v1"
	"github.com/dodona-project/dodona/sdk/plugin"
	"google.golang.org/protobuf/types/known/durationpb"
)

type config struct {
	Region string  `json:"region" jsonschema:"minLength=1,description=the region that comes first"`
	Full   float64 `json:"full,omitempty" jsonschema:"exclusiveMinimum=0,maximum=1,description=utilization from which on calls spill over; 0.7 without it"`
}

type localFirst struct{}

func main() { plugin.Serve(plugin.StrategyOf("local-first", "0.1.0", localFirst{})) }

func (localFirst) Configure(context.Context, config) error { return nil }

// Compile gives those of the region their full weight, and the others a share of
// theirs that grows from nothing, where the region is as busy as it may be, to all,
// where it has no room left. Who has nobody in the region is served by all.
func (localFirst) Compile(ctx context.Context, req *pluginv1.CompileRequest) (*pluginv1.CompileReply, error) {
	c, _ := plugin.Config[config](ctx)
	full := c.Full
	if full == 0 {
		full = 0.7
	}
	busy, weights := uint64(0), uint64(0) // of the region, in thousandths; whole numbers add up in any order
	for _, x := range req.GetCandidates() {
		if w := uint64(x.GetWeight()); x.GetRegion() == c.Region && x.GetUtilization() >= 0 {
			busy, weights = busy+w*uint64(1000*min(x.GetUtilization(), 1)), weights+w
		}
	}
	plan := &donav1.Plan{Algorithm: donav1.Algorithm_ALGORITHM_LEAST_CONNECTIONS, Weights: map[string]uint32{}}
	reply := &pluginv1.CompileReply{Plan: plan, RefreshAfter: durationpb.New(5e9)} // loads change without an event
	if weights == 0 {
		return reply, nil
	}
	spill := 0.0
	if load := float64(busy) / float64(1000*weights); load > full {
		spill = min((load-full)/max(1-full, 0.01), 1)
	}
	for _, x := range req.GetCandidates() {
		if x.GetRegion() != c.Region {
			plan.Weights[x.GetId()] = uint32(min(spill*float64(x.GetWeight()), 1_000_000))
		}
	}
	return reply, nil
}
