package plugins

import (
	"context"
	"fmt"
	"os"

	"google.golang.org/grpc"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/dodona-project/dodona/plugins/runner"
	"github.com/dodona-project/dodona/sdk/plugin/wire"
)

// An attached plugin is a process of somebody else's, such as a debugger's. The host
// connects to it as go-plugin's reattach does, without its client: that wants to own
// the process, and has no deadlines. It is not asked to drain or to end, and what
// takes it long counts for nothing: it may stand at a breakpoint.

// attached reports whether somebody else has started the process.
func (g *generation) attached() bool { return g.file.Source == SourceAttached }

// attach connects to the plugin's socket.
func (g *generation) attach(ctx context.Context, _ string) error {
	ctx, cancel := context.WithTimeout(ctx, g.limits.Handshake)
	defer cancel()
	if info, err := os.Stat(g.file.Path); err != nil || info.Mode()&os.ModeSocket == 0 {
		return fmt.Errorf("there is no socket at %s: start the plugin with --attach, and the host with the flag that it prints", g.file.Path)
	}
	conn, err := grpc.NewClient("unix:"+g.file.Path,
		grpc.WithTransportCredentials(insecure.NewCredentials()), // its directory is for this user only
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxReplyLen), grpc.MaxCallSendMsgSize(wire.MaxMessageLen)),
		grpc.WithMaxHeaderListSize(maxHeaderLen),
		grpc.WithDisableServiceConfig(), grpc.WithDisableRetry(),
	)
	if err != nil {
		return err
	}
	g.conn = conn
	conn.Connect()
	for state := conn.GetState(); state != connectivity.Ready; state = conn.GetState() {
		if !conn.WaitForStateChange(ctx, state) {
			return fmt.Errorf("no connection to %s within %v", g.file.Path, g.limits.Handshake)
		}
	}
	return nil
}

// gone is closed when the process has ended; nil for one that is not the host's.
func (g *generation) gone() <-chan struct{} {
	if p := g.process.Load(); p != nil {
		return p.Done()
	}
	return nil
}

// exit is how the process ended. That of one which is not the host's is not known.
func (g *generation) exit() runner.Exit {
	if p := g.process.Load(); p != nil {
		return p.Exit()
	}
	return runner.Exit{Code: -1, ByHost: true}
}
