package plugin_test

import (
	"context"

	pluginv1 "github.com/dodona-project/dodona/proto/plugin/v1"
	"github.com/dodona-project/dodona/sdk/plugin"
)

// A whole analysis plugin: this is its main.
func Example() {
	plugin.Serve(plugin.Analysis("error-share", "0.1.0", evaluate))
}

// evaluate measures what the host itself counted of the canary.
func evaluate(_ context.Context, req *pluginv1.EvaluateRequest) (*pluginv1.EvaluateReply, error) {
	w := req.GetCanary()
	if w.GetRequests() == 0 {
		return nil, nil // nothing measured: MISSING
	}
	share := float64(w.GetErrors()) / float64(w.GetRequests())
	return &pluginv1.EvaluateReply{Value: share, HasValue: true}, nil
}
