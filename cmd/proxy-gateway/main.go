// Command proxy-gateway is the data plane of egress: a forward proxy that leads its
// clients' requests through the upstream proxies that a control plane assigns to it. See
// docs/gateway.md.
package main

import (
	"io"
	"os"

	"github.com/dodona-project/dodona/cmd/internal/startup"
	"github.com/dodona-project/dodona/cmd/proxy-gateway/internal/settings"
)

func main() { os.Exit(run(os.Args[1:], os.Environ(), os.Stdout, os.Stderr)) }

func run(args, environ []string, stdout, stderr io.Writer) int {
	s, err := settings.Read(args, environ, stdout)
	if err != nil {
		return settings.Command().Refuse(err, stdout, stderr)
	}
	ctx, stop := startup.Signals()
	defer stop()
	log := startup.Logger(stderr, s.LogLevel)
	g, err := newGateway(s, log)
	if err == nil {
		err = g.run(ctx)
	}
	return startup.Ended(ctx, log, err)
}
