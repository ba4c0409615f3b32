// Package roundrobin is the built-in strategy that takes candidates in turn, by
// their own weights. It is the plan a service falls back to, made by a plugin.
package roundrobin

import (
	"context"

	donav1 "github.com/dodona-project/dodona/proto/dona/v1"
	pluginv1 "github.com/dodona-project/dodona/proto/plugin/v1"
)

// Name is the plugin's name.
const Name = "round-robin"

// Compile returns smooth weighted round robin. Candidates keep their weights,
// so the plan names none: one endpoint's change changes no plan.
func Compile(context.Context, *pluginv1.CompileRequest) (*pluginv1.CompileReply, error) {
	return &pluginv1.CompileReply{Plan: &donav1.Plan{
		Strategy:  Name,
		Algorithm: donav1.Algorithm_ALGORITHM_ROUND_ROBIN,
	}}, nil
}
