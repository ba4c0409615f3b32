// Command proxy-checker checks upstream proxies, and endpoints of services, for a control
// plane, from where it stands. See docs/checker.md.
package main

import (
	"io"
	"os"

	"github.com/dodona-project/dodona/builtin"
	"github.com/dodona-project/dodona/cmd/internal/startup"
	"github.com/dodona-project/dodona/cmd/proxy-checker/internal/settings"
)

func main() {
	builtin.Dispatch() // a probe's process never gets past this line
	os.Exit(run(os.Args[1:], os.Environ(), os.Stdout, os.Stderr))
}

func run(args, environ []string, stdout, stderr io.Writer) int {
	s, err := settings.Read(args, environ, stdout)
	if err != nil {
		return settings.Command().Refuse(err, stdout, stderr)
	}
	ctx, stop := startup.Signals()
	defer stop()
	log := startup.Logger(stderr, s.LogLevel)
	c, err := newChecker(s, log, stderr)
	if err != nil {
		return settings.Command().Refuse(err, stdout, stderr)
	}
	return startup.Ended(ctx, log, c.run(ctx))
}
