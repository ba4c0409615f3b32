package main

import (
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/hashicorp/go-hclog"
	goplugin "github.com/hashicorp/go-plugin"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/dodona-project/dodona/plugins"
	"github.com/dodona-project/dodona/plugins/analysis"
	donav1 "github.com/dodona-project/dodona/proto/dona/v1"
	pluginv1 "github.com/dodona-project/dodona/proto/plugin/v1"
	"github.com/dodona-project/dodona/sdk/plugin"
)

// The plugin of this job answers with what it always answers.
func answer(context.Context, *pluginv1.EvaluateRequest) (*pluginv1.EvaluateReply, error) {
	return &pluginv1.EvaluateReply{Value: 0.25, HasValue: true, Evidence: make([]byte, 100)}, nil
}

func benchPlugins() []*plugin.Plugin {
	return []*plugin.Plugin{plugin.Analysis("bench", "0.1.0", answer)}
}

const (
	serverEnv = "DODONA_BENCH_SERVER"
	callTurn  = 400 // calls a turn
)

func request() *pluginv1.EvaluateRequest {
	return &pluginv1.EvaluateRequest{InstanceId: "i", RolloutId: "r", Service: "checkout", CanaryVariant: "v2", StableVariant: "v1",
		Query: &donav1.AnalysisQuery{Name: "p99", Query: "histogram_quantile(0.99, sum(rate(seconds_bucket[1m])) by (le))", MaxValue: 1}}
}

func pluginJob() ([]row, error) {
	dir, err := os.MkdirTemp("", "dona-bench-*")
	if err != nil {
		return nil, err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	host, err := plugins.New(plugins.Options{Builtins: benchPlugins(), RunDir: filepath.Join(dir, "run")})
	if err != nil {
		return nil, err
	}
	ctx := context.Background()
	if err := host.Start(ctx); err != nil {
		return nil, err
	}
	defer host.Stop(ctx)
	if err := host.Await(ctx, plugins.KindAnalysis, "bench"); err != nil {
		return nil, err
	}
	facade := analysis.New(host)
	ours := func() error {
		_, err := facade.Evaluate(ctx, "bench", request())
		return err
	}
	bare, stopBare, err := bareGoPlugin()
	if err != nil {
		return nil, err
	}
	defer stopBare()
	plain, stopPlain, err := plainGRPC(filepath.Join(dir, "plain.sock"))
	if err != nil {
		return nil, err
	}
	defer stopPlain()
	for range 200 { // warm all three
		for _, call := range []func() error{ours, bare, plain} {
			if err := call(); err != nil {
				return nil, err
			}
		}
	}
	m, err := turns(2*repeats, p50(ours), p50(bare), p50(plain))
	if err != nil {
		return nil, err
	}
	return []row{
		{"p50 of one caller, with every check of ours", m[0], m[1], "µs", "bare go-plugin, AutoMTLS", 1.05, false},
		{"p50 of one caller, with every check of ours", m[0], m[2], "µs", "plain gRPC, no TLS", 1.15, false},
	}, nil
}

// p50 is the median time of a call in µs.
func p50(call func() error) func() (float64, error) {
	return func() (float64, error) {
		took := make([]float64, 0, callTurn)
		for range callTurn {
			begin := time.Now()
			if err := call(); err != nil {
				return 0, err
			}
			took = append(took, float64(time.Since(begin).Nanoseconds())/1000)
		}
		slices.Sort(took)
		return took[len(took)/2], nil
	}
}

// analysisServer is the service without our SDK.
type analysisServer struct {
	pluginv1.UnimplementedAnalysisServer
}

func (analysisServer) Evaluate(ctx context.Context, req *pluginv1.EvaluateRequest) (*pluginv1.EvaluateReply, error) {
	return answer(ctx, req)
}

// barePlugin is go-plugin as its documentation shows it.
type barePlugin struct {
	goplugin.NetRPCUnsupportedPlugin
}

func (barePlugin) GRPCServer(_ *goplugin.GRPCBroker, s *grpc.Server) error {
	pluginv1.RegisterAnalysisServer(s, analysisServer{})
	return nil
}

func (barePlugin) GRPCClient(_ context.Context, _ *goplugin.GRPCBroker, c *grpc.ClientConn) (any, error) {
	return pluginv1.NewAnalysisClient(c), nil
}

var bareHandshake = goplugin.HandshakeConfig{ProtocolVersion: 1, MagicCookieKey: "DODONA_BENCH", MagicCookieValue: "bare"}

func bareGoPlugin() (call func() error, stop func(), err error) {
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), serverEnv+"=bare")
	client := goplugin.NewClient(&goplugin.ClientConfig{
		HandshakeConfig: bareHandshake, Plugins: goplugin.PluginSet{"a": barePlugin{}}, Cmd: cmd,
		AllowedProtocols: []goplugin.Protocol{goplugin.ProtocolGRPC}, AutoMTLS: true, Logger: hclog.NewNullLogger(),
	})
	protocol, err := client.Client()
	if err != nil {
		client.Kill()
		return nil, nil, err
	}
	a, err := protocol.Dispense("a")
	if err != nil {
		client.Kill()
		return nil, nil, err
	}
	return caller(a.(pluginv1.AnalysisClient)), client.Kill, nil
}

func plainGRPC(socket string) (call func() error, stop func(), err error) {
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), serverEnv+"="+socket)
	cmd.Stderr = os.Stderr
	stdin, err := cmd.StdinPipe()
	if err != nil {
		return nil, nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, nil, err
	}
	conn, err := grpc.NewClient("unix:"+socket, grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.WaitForReady(true)))
	if err != nil {
		return nil, nil, err
	}
	return caller(pluginv1.NewAnalysisClient(conn)), func() { _ = conn.Close(); _ = stdin.Close(); _ = cmd.Wait() }, nil
}

func caller(client pluginv1.AnalysisClient) func() error {
	return func() error {
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		_, err := client.Evaluate(ctx, request())
		return err
	}
}

// asServer turns this process into one of the peers when it was started as one.
func asServer() {
	what := os.Getenv(serverEnv)
	switch {
	case what == "":
		return
	case what == "bare":
		goplugin.Serve(&goplugin.ServeConfig{HandshakeConfig: bareHandshake, Plugins: goplugin.PluginSet{"a": barePlugin{}},
			GRPCServer: goplugin.DefaultGRPCServer, Logger: hclog.NewNullLogger()})
		os.Exit(0)
	}
	if !strings.HasPrefix(what, "/") {
		os.Exit(2)
	}
	listener, err := net.Listen("unix", what)
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench: plain server:", err)
		os.Exit(1)
	}
	server := grpc.NewServer()
	pluginv1.RegisterAnalysisServer(server, analysisServer{})
	go func() { _ = server.Serve(listener) }()
	_, _ = io.Copy(io.Discard, os.Stdin) // ends with its parent
	os.Exit(0)
}
