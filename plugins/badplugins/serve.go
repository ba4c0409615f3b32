package badplugins

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"github.com/hashicorp/go-hclog"
	goplugin "github.com/hashicorp/go-plugin"
	"google.golang.org/grpc"

	"github.com/dodona-project/dodona/plugins"
	donav1 "github.com/dodona-project/dodona/proto/dona/v1"
	pluginv1 "github.com/dodona-project/dodona/proto/plugin/v1"
	"github.com/dodona-project/dodona/sdk/plugin"
	"github.com/dodona-project/dodona/sdk/plugin/wire"
)

// serveSDK serves deeds the way authors should.
func serveSDK(s self) { plugin.Serve(Plugin(s.id)) }

// Builtins are plugins named "builtin" of both kinds, with the behaviour sdk. A
// host that has the program as its own (Options.Exe) can build them in.
func Builtins() []*plugin.Plugin {
	return []*plugin.Plugin{
		Plugin(plugins.ID{Kind: plugins.KindAnalysis, Name: "builtin"}),
		Plugin(plugins.ID{Kind: plugins.KindStrategy, Name: "builtin"}),
	}
}

// Plugin is the behaviour sdk as a plugin that can be built in.
func Plugin(id plugins.ID, options ...plugin.Option) *plugin.Plugin {
	options = append(options, plugin.MaxConcurrency(64))
	if id.Kind == plugins.KindStrategy {
		return plugin.Strategy(id.Name, "0.1.0", compile, options...)
	}
	return plugin.Analysis(id.Name, "0.1.0", evaluate, append(options, plugin.OwnVerdict())...)
}

// evaluate does what the query says.
func evaluate(ctx context.Context, req *pluginv1.EvaluateRequest) (*pluginv1.EvaluateReply, error) {
	deed, arg, _ := strings.Cut(req.GetQuery().GetQuery(), " ")
	reply := &pluginv1.EvaluateReply{Verdict: donav1.Verdict_VERDICT_PASS, Detail: fmt.Sprint(os.Getpid())}
	do, known := deeds[deed]
	if !known {
		return nil, fmt.Errorf("no deed %q", deed)
	}
	if err := do(ctx, arg, reply); err != nil {
		return nil, err
	}
	return reply, nil
}

// compile does what the scope says: service/<deed>.
func compile(_ context.Context, req *pluginv1.CompileRequest) (*pluginv1.CompileReply, error) {
	reply := &pluginv1.CompileReply{Plan: &donav1.Plan{Algorithm: donav1.Algorithm_ALGORITHM_ROUND_ROBIN}}
	if spoil, known := plans[strings.TrimPrefix(req.GetScope(), "service/")]; known {
		spoil(req, reply)
	}
	return reply, nil
}

// A rawServer serves deeds with go-plugin alone, as somebody would who does not
// know the SDK: no limits, no recovery, no lifeline, stdout as it is.
type rawServer struct {
	goplugin.NetRPCUnsupportedPlugin
	pluginv1.UnimplementedLifecycleServer
	pluginv1.UnimplementedAnalysisServer
	pluginv1.UnimplementedStrategyServer

	self
	describe  func(*pluginv1.DescribeReply)                                                       // nil: as it is
	configure func(context.Context, *pluginv1.ConfigureRequest) (*pluginv1.ConfigureReply, error) // nil: accepts all
	health    func(grpc.ServerStreamingServer[pluginv1.Health]) error                             // nil: healthy
	drain     func(context.Context)                                                               // nil: at once
	without   bool                                                                                // serves no service of ours
}

func serveRaw(s self) { (&rawServer{self: s}).serve() }

func (r *rawServer) serve() {
	if r.id.Kind == plugins.KindStrategy {
		go millionWeights()
	}
	goplugin.Serve(&goplugin.ServeConfig{
		HandshakeConfig:  goplugin.HandshakeConfig{MagicCookieKey: wire.CookieKey, MagicCookieValue: wire.CookieValue},
		VersionedPlugins: map[int]goplugin.PluginSet{wire.ProtocolVersion: {wire.PluginSet: r}},
		GRPCServer:       goplugin.DefaultGRPCServer,
		Logger:           hclog.New(&hclog.LoggerOptions{Output: io.Discard}),
	})
}

func (r *rawServer) GRPCServer(broker *goplugin.GRPCBroker, s *grpc.Server) error {
	if r.without {
		return nil
	}
	theBroker = broker
	pluginv1.RegisterLifecycleServer(s, r)
	pluginv1.RegisterAnalysisServer(s, r)
	pluginv1.RegisterStrategyServer(s, r)
	return nil
}

func (r *rawServer) GRPCClient(context.Context, *goplugin.GRPCBroker, *grpc.ClientConn) (any, error) {
	return nil, fmt.Errorf("this side serves")
}

func (r *rawServer) Describe(context.Context, *pluginv1.DescribeRequest) (*pluginv1.DescribeReply, error) {
	d := &pluginv1.DescribeReply{Name: r.id.Name, Version: "0.1.0", Kind: pluginv1.Kind_KIND_ANALYSIS, Capabilities: []string{wire.CapabilityVerdict}}
	if r.id.Kind == plugins.KindStrategy {
		d.Kind = pluginv1.Kind_KIND_STRATEGY
	}
	if r.describe != nil {
		r.describe(d)
	}
	return d, nil
}

func (r *rawServer) Configure(ctx context.Context, req *pluginv1.ConfigureRequest) (*pluginv1.ConfigureReply, error) {
	if r.configure != nil {
		return r.configure(ctx, req)
	}
	return &pluginv1.ConfigureReply{}, nil
}

func (r *rawServer) WatchHealth(_ *pluginv1.WatchHealthRequest, stream grpc.ServerStreamingServer[pluginv1.Health]) error {
	if r.health != nil {
		return r.health(stream)
	}
	if err := stream.Send(&pluginv1.Health{State: pluginv1.Health_STATE_HEALTHY}); err != nil {
		return err
	}
	<-stream.Context().Done()
	return nil
}

func (r *rawServer) Drain(ctx context.Context, _ *pluginv1.DrainRequest) (*pluginv1.DrainReply, error) {
	if r.drain != nil {
		r.drain(ctx)
	}
	return &pluginv1.DrainReply{}, nil
}

func (r *rawServer) Evaluate(ctx context.Context, req *pluginv1.EvaluateRequest) (*pluginv1.EvaluateReply, error) {
	return evaluate(ctx, req)
}

func (r *rawServer) Compile(ctx context.Context, req *pluginv1.CompileRequest) (*pluginv1.CompileReply, error) {
	return compile(ctx, req)
}

// stubborn ignores every polite way to end it.
func stubborn(s self) {
	signal.Ignore(syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP, syscall.SIGPIPE)
	(&rawServer{self: s, drain: func(context.Context) { forever() }}).serve()
	forever()
}

// drainHangs uses the SDK, and has a Drain that never returns.
func drainHangs(s self) { plugin.Serve(plugin.AnalysisOf(s.id.Name, "0.1.0", hangingDrain{})) }

type hangingDrain struct{}

func (hangingDrain) Evaluate(ctx context.Context, req *pluginv1.EvaluateRequest) (*pluginv1.EvaluateReply, error) {
	return evaluate(ctx, req)
}

func (hangingDrain) Drain(context.Context) error {
	forever()
	return nil
}
