package plugin

import (
	"github.com/hashicorp/go-hclog"
	"google.golang.org/grpc"

	pluginv1 "github.com/dodona-project/dodona/proto/plugin/v1"
)

// NewServer returns a gRPC server with the plugin's services behind the same
// guard as in a process of its own. It is for tests that serve a plugin on a
// listener in their own process; programs call [Serve]. logger takes the
// plugin's log, nil drops it. The error says what is wrong with the definition.
func NewServer(p *Plugin, logger hclog.Logger) (*grpc.Server, error) {
	config, err := newConfigurer(p.impl)
	if err != nil {
		return nil, err
	}
	if err := p.check(); err != nil {
		return nil, err
	}
	if logger == nil {
		logger = hclog.NewNullLogger()
	}
	guard := newGuard(logger, config)
	server := grpc.NewServer(serverOptions(guard)...)
	pluginv1.RegisterLifecycleServer(server, newLifecycle(p, config, guard))
	p.register(server)
	return server, nil
}
