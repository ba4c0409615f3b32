// Command dns-answers is an example of a probe plugin: an endpoint is well when its
// host name has addresses, or those that the configuration asks for.
package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"

	controlplanev1 "github.com/dodona-project/dodona/proto/controlplane/v1"
	pluginv1 "github.com/dodona-project/dodona/proto/plugin/v1"
	"github.com/dodona-project/dodona/sdk/plugin"
)

type config struct {
	Server string   `json:"server,omitempty" jsonschema:"description=host:port of the DNS server; the system's without it"`
	Expect []string `json:"expect,omitempty" jsonschema:"maxItems=16,description=addresses of which one has to be among the answers"`
}

type answers struct{}

func main() { plugin.Serve(plugin.ProbeOf("dns-answers", "0.1.0", answers{})) }

// Configure refuses what the schema cannot see.
func (answers) Configure(_ context.Context, c config) error {
	for _, text := range c.Expect {
		if _, err := netip.ParseAddr(text); err != nil {
			return fmt.Errorf("expect: %q is not an IP address", text)
		}
	}
	return nil
}

func (answers) Check(ctx context.Context, req *pluginv1.CheckRequest) (*pluginv1.CheckReply, error) {
	c, _ := plugin.Config[config](ctx)
	host, _, err := net.SplitHostPort(req.GetEndpointAddress())
	if err != nil {
		return nil, err // not the endpoint's fault: INCONCLUSIVE
	}
	resolver := net.DefaultResolver
	if c.Server != "" {
		resolver = &net.Resolver{PreferGo: true, Dial: func(ctx context.Context, network, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, network, c.Server)
		}}
	}
	got, err := resolver.LookupHost(ctx, host)
	var unknown *net.DNSError
	switch {
	case ctx.Err() != nil:
		return failed(controlplanev1.ErrorClass_ERROR_CLASS_TIMEOUT, "no answer in time"), nil //nolint:nilerr // that is what was seen
	case errors.As(err, &unknown) && unknown.IsNotFound:
		return failed(controlplanev1.ErrorClass_ERROR_CLASS_DNS, "no such name"), nil
	case err != nil:
		return nil, err // the server is away: that says nothing of the endpoint
	case len(c.Expect) > 0 && !slices.ContainsFunc(c.Expect, func(a string) bool { return slices.Contains(got, a) }):
		return failed(controlplanev1.ErrorClass_ERROR_CLASS_DNS, fmt.Sprintf("none of %d answers is expected", len(got))), nil
	}
	return &pluginv1.CheckReply{Result: controlplanev1.HealthObservation_RESULT_SUCCESS, Detail: fmt.Sprintf("%d answers", len(got))}, nil
}

func failed(class controlplanev1.ErrorClass, detail string) *pluginv1.CheckReply {
	return &pluginv1.CheckReply{Result: controlplanev1.HealthObservation_RESULT_FAILURE, ErrorClass: class, Detail: detail}
}
