// Package random is the built-in strategy that draws each candidate at random, by
// weight. Draws of many clients need no agreement and never fall into step.
package random

import (
	"context"

	donav1 "github.com/dodona-project/dodona/proto/dona/v1"
	pluginv1 "github.com/dodona-project/dodona/proto/plugin/v1"
)

// Name is the plugin's name.
const Name = "random"

// Compile returns a weighted draw. Candidates keep their weights, so the plan
// names none: one endpoint's change changes no plan.
func Compile(context.Context, *pluginv1.CompileRequest) (*pluginv1.CompileReply, error) {
	return &pluginv1.CompileReply{Plan: &donav1.Plan{
		Strategy:  Name,
		Algorithm: donav1.Algorithm_ALGORITHM_RANDOM,
	}}, nil
}
