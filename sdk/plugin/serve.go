package plugin

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/signal"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/hashicorp/go-hclog"
	goplugin "github.com/hashicorp/go-plugin"
	"google.golang.org/grpc"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/protobuf/encoding/protojson"

	pluginv1 "github.com/dodona-project/dodona/proto/plugin/v1"
	"github.com/dodona-project/dodona/sdk/plugin/wire"
)

// Times on the way out. A service manager may signal every process of the host
// at once: after SIGTERM a plugin serves on for a while, so that the host can
// finish what it has, and ends by itself when nobody ends it.
const (
	serveOnAfterTerm = 3 * time.Second
	drainAfterTerm   = time.Second
	drainAlone       = 2 * time.Second // the host is gone
	lifelineGrace    = 50 * time.Millisecond
)

// Serve runs the plugin until the host ends it, and ends the process. It is the
// last statement of main. With --describe it prints what Describe would answer
// as JSON, and needs no host for it. With --attach it serves until it is
// interrupted, and prints with which flag a host for development uses this
// process: that is for debuggers.
func Serve(p *Plugin) {
	os.Exit(serve(p, os.Args[1:]))
}

func serve(p *Plugin, args []string) int {
	config, err := newConfigurer(p.impl)
	if err == nil {
		err = p.check()
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	if slices.Contains(args, "--describe") {
		text, err := protojson.MarshalOptions{Multiline: true, UseProtoNames: true}.Marshal(newLifecycle(p, config, nil).describe())
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		fmt.Println(string(text))
		return 0
	}
	if slices.Contains(args, "--attach") {
		return serveAttached(p, config, os.Stdout)
	}
	if os.Getenv(wire.CookieKey) != wire.CookieValue {
		fmt.Fprintf(os.Stderr, "this is the %s plugin %s of Dodona: the host starts it. Run it with --describe to see what it is.\n", kindWord(p.kind), p.name)
		return 2
	}

	logger := hclog.New(&hclog.LoggerOptions{
		Output:     os.Stderr,
		JSONFormat: true,
		Level:      hclog.LevelFromString(os.Getenv(wire.LogLevelEnv)),
		// What quiet does to go-plugin's logger stays there.
		IndependentLevels: true,
	})
	// A host that is gone takes its ends of our pipes along: writing to them
	// must fail, not kill.
	swallow(syscall.SIGPIPE)
	if err := stdoutToStderr(); err != nil {
		logger.Warn("stdout stays connected to the host", "error", err)
	}

	guard := newGuard(logger, config)
	life := newLifecycle(p, config, guard)
	life.described = giveStderrBack()
	ending := &ending{life: life}
	lost := ending.watchLifeline(logger)
	ending.watchTerm(logger)

	goplugin.Serve(&goplugin.ServeConfig{
		HandshakeConfig: goplugin.HandshakeConfig{MagicCookieKey: wire.CookieKey, MagicCookieValue: wire.CookieValue},
		VersionedPlugins: map[int]goplugin.PluginSet{
			wire.ProtocolVersion: {wire.PluginSet: &services{plugin: p, life: life}},
		},
		GRPCServer: func(options []grpc.ServerOption) *grpc.Server {
			return grpc.NewServer(append(options, serverOptions(guard)...)...)
		},
		Logger: quiet(logger),
	})

	// Serving ended: the host told us so, or it is dead and the end of file is
	// a moment behind. Then what the plugin has is still put in order.
	select {
	case <-life.drained:
	case <-lost:
		ending.end(drainAlone)
	case <-time.After(lifelineGrace):
	}
	return 0
}

// giveStderrBack remembers stderr and returns what makes it stdout and stderr
// again, once. While it serves, go-plugin puts a stream to the host in their
// place, and what is printed there just before the end never arrives.
func giveStderrBack() func() {
	stderr := os.Stderr
	return sync.OnceFunc(func() { os.Stdout, os.Stderr = stderr, stderr })
}

// How much the host may send ahead of its being read, in bytes. To set them also
// ends gRPC's search for better ones, which costs a ping and its answer for each
// call.
const (
	streamWindow = 1 << 20
	connWindow   = 1 << 20
)

func serverOptions(g *guard) []grpc.ServerOption {
	return []grpc.ServerOption{
		grpc.MaxRecvMsgSize(wire.MaxMessageLen),
		grpc.MaxSendMsgSize(wire.MaxMessageLen),
		grpc.StaticStreamWindowSize(streamWindow),
		grpc.StaticConnWindowSize(connWindow),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: 10 * time.Second, PermitWithoutStream: true}),
		grpc.UnaryInterceptor(g.unary),
		grpc.StreamInterceptor(g.stream),
	}
}

// quiet lets go-plugin's own words through only when something is wrong.
func quiet(l hclog.Logger) hclog.Logger {
	q := l.Named("serve")
	q.SetLevel(max(q.GetLevel(), hclog.Warn))
	return q
}

// services registers the plugin's services with go-plugin's server.
type services struct {
	goplugin.NetRPCUnsupportedPlugin
	plugin *Plugin
	life   *lifecycle
}

func (s *services) GRPCServer(_ *goplugin.GRPCBroker, server *grpc.Server) error {
	pluginv1.RegisterLifecycleServer(server, s.life)
	s.plugin.register(server)
	return nil
}

func (s *services) GRPCClient(context.Context, *goplugin.GRPCBroker, *grpc.ClientConn) (any, error) {
	return nil, fmt.Errorf("this side serves")
}

// ending is the way out when it is not the host that asks for it.
type ending struct {
	life *lifecycle
	once sync.Once
}

// end drains for at most d and ends the process.
func (e *ending) end(d time.Duration) {
	e.once.Do(func() {
		ctx, cancel := context.WithTimeout(context.Background(), d)
		defer cancel()
		e.life.drain(ctx)
		os.Exit(0)
	})
}

// watchLifeline ends the process when the host is gone, however it went. The
// channel is closed when that is known.
func (e *ending) watchLifeline(logger hclog.Logger) <-chan struct{} {
	lost := make(chan struct{})
	line, err := openLifeline()
	if err != nil {
		logger.Warn("cannot see whether the host lives", "error", err)
		return lost
	}
	if line == nil {
		return lost
	}
	go func() {
		// Nothing is ever written to it.
		_, _ = io.Copy(io.Discard, line)
		close(lost)
		e.end(drainAlone)
	}()
	return lost
}

func (e *ending) watchTerm(logger hclog.Logger) {
	term := make(chan os.Signal, 1)
	signal.Notify(term, syscall.SIGTERM)
	go func() {
		<-term
		logger.Debug("asked to end by a signal")
		select {
		case <-e.life.drained: // the host is at it; it also ends us
		case <-time.After(serveOnAfterTerm):
		}
		e.end(drainAfterTerm)
	}()
}

// swallow takes a signal and does nothing about it. signal.Ignore would be
// inherited by the plugin's own children.
func swallow(s os.Signal) {
	ch := make(chan os.Signal, 1)
	signal.Notify(ch, s)
	go func() {
		for range ch {
		}
	}()
}
