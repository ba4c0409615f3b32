package plugin_test

import (
	"context"
	"errors"
	"net"
	"syscall"

	controlplanev1 "github.com/dodona-project/dodona/proto/controlplane/v1"
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

// A whole probe plugin: it dials an endpoint.
func ExampleProbe() {
	plugin.Serve(plugin.Probe("dial", "0.1.0", dial))
}

func dial(ctx context.Context, req *pluginv1.CheckRequest) (*pluginv1.CheckReply, error) {
	conn, err := new(net.Dialer).DialContext(ctx, "tcp", req.GetEndpointAddress())
	if err != nil {
		return undialled(ctx, err)
	}
	return &pluginv1.CheckReply{Result: controlplanev1.HealthObservation_RESULT_SUCCESS}, conn.Close()
}

// undialled says whose fault it is.
func undialled(ctx context.Context, err error) (*pluginv1.CheckReply, error) {
	reply := &pluginv1.CheckReply{Result: controlplanev1.HealthObservation_RESULT_FAILURE}
	switch {
	case errors.Is(err, syscall.ECONNREFUSED):
		reply.ErrorClass = controlplanev1.ErrorClass_ERROR_CLASS_REFUSED
	case ctx.Err() != nil:
		reply.ErrorClass = controlplanev1.ErrorClass_ERROR_CLASS_TIMEOUT
	default:
		return nil, err // it could not even try: INCONCLUSIVE
	}
	return reply, nil
}
