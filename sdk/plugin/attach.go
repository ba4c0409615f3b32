package plugin

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"

	"github.com/hashicorp/go-hclog"
	goplugin "github.com/hashicorp/go-plugin"
	"google.golang.org/grpc"

	"github.com/dodona-project/dodona/sdk/plugin/wire"
)

// serveAttached serves without a host that has started the process, until a
// signal ends it, and prints to out how a host for development attaches. The
// process belongs to whoever started it, such as a debugger. There is no TLS: the
// socket lies in a directory that only this user can enter.
func serveAttached(p *Plugin, config *configurer, out io.Writer) int {
	dir, err := os.MkdirTemp("", "dona-attach")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer func() { _ = os.RemoveAll(dir) }()
	// go-plugin takes all it knows from the environment: a certificate there
	// would have it ask for one.
	_ = os.Unsetenv("PLUGIN_CLIENT_CERT")
	if err := os.Setenv(goplugin.EnvUnixSocketDir, dir); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()

	logger := hclog.New(&hclog.LoggerOptions{
		Output: os.Stderr, Level: hclog.LevelFromString(os.Getenv(wire.LogLevelEnv)), IndependentLevels: true,
	})
	guard := newGuard(logger, config)
	life := newLifecycle(p, config, guard)
	// go-plugin calls it an error that its listener is closed at the end.
	words := quiet(logger)
	serving, end := context.WithCancel(context.Background())
	defer end()
	context.AfterFunc(ctx, func() {
		words.SetLevel(hclog.Off)
		end()
	})
	listening, served := make(chan *goplugin.ReattachConfig, 1), make(chan struct{})
	go goplugin.Serve(&goplugin.ServeConfig{
		HandshakeConfig:  goplugin.HandshakeConfig{MagicCookieKey: wire.CookieKey, MagicCookieValue: wire.CookieValue},
		VersionedPlugins: map[int]goplugin.PluginSet{wire.ProtocolVersion: {wire.PluginSet: &services{plugin: p, life: life}}},
		GRPCServer: func(options []grpc.ServerOption) *grpc.Server {
			return grpc.NewServer(append(options, serverOptions(guard)...)...)
		},
		Logger: words,
		Test:   &goplugin.ServeTestConfig{Context: serving, ReattachConfigCh: listening, CloseCh: served},
	})
	select {
	case at := <-listening:
		_, _ = fmt.Fprintf(out, "this is the %s plugin %s, for a host that attaches:\n\n  dona-host --dev --attach %s/%s=%s\n\n",
			kindWord(p.kind), p.name, kindWord(p.kind), p.name, at.Addr.String())
	case <-served:
		return 1 // go-plugin has said why
	}
	<-served
	life.drain(context.Background())
	return 0
}
