package main

import (
	"context"
	"fmt"
	"io"
	"math/rand/v2"
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
)

const (
	serverEnv = "DODONA_BENCH_SERVER"

	// Where the scheduler puts a process, and what else the machine does, decides
	// more than the difference that is measured. So each side has several
	// processes, and no turn is long.
	processes  = 5
	warmRounds = 5
	callRounds = 400
	roundTurns = 5 // of each side in a round
	turnCalls  = 8 // of one process
)

// request is what every side sends; an instance id is as long as those that the
// host makes.
func request() *pluginv1.EvaluateRequest {
	return &pluginv1.EvaluateRequest{InstanceId: "0123456789abcdef0123456789abcdef", RolloutId: "r", Service: "checkout", CanaryVariant: "v2", StableVariant: "v1",
		Query: &donav1.AnalysisQuery{Name: "p99", Query: "histogram_quantile(0.99, sum(rate(seconds_bucket[1m])) by (le))", MaxValue: 1}}
}

// A callSide is one way to make the same call, to each of its processes.
type callSide struct {
	calls []func() error
	stops []func()
}

// callRows compares a call through the facade, with every check, with the same
// call by go-plugin alone and by nothing but gRPC.
func callRows(ctx context.Context, dir string) ([]row, error) {
	host, err := startHost(ctx, filepath.Join(dir, "run-calls"))
	if err != nil {
		return nil, err
	}
	defer host.Stop(ctx)
	facade := analysis.New(host)
	start := []func(i int) (call func() error, stop func(), err error){
		func(i int) (func() error, func(), error) {
			name := fmt.Sprintf("call-%d", i)
			return func() error {
				_, err := facade.Evaluate(ctx, name, request())
				return err
			}, func() {}, host.Await(ctx, plugins.KindAnalysis, name)
		},
		func(int) (func() error, func(), error) { return bareGoPlugin() },
		func(i int) (func() error, func(), error) {
			return plainGRPC(filepath.Join(dir, fmt.Sprintf("plain-%d.sock", i)))
		},
	}
	sides := make([]callSide, len(start))
	defer func() {
		for _, s := range sides {
			for _, stop := range s.stops {
				stop()
			}
		}
	}()
	for i := range processes { // by turns too, so that no side has the older ones
		for k := range start {
			k = (k + i) % len(start)
			call, stop, err := start[k](i)
			if err != nil {
				return nil, err
			}
			sides[k].calls, sides[k].stops = append(sides[k].calls, call), append(sides[k].stops, stop)
		}
	}
	took, err := interleave(sides)
	if err != nil {
		return nil, err
	}
	const work = "p50 of one caller, with every check of ours"
	return []row{
		{work, took.figure(0), took.figure(1), "µs", "bare go-plugin, AutoMTLS", 1.05, false, took.ratio(0, 1)},
		{work, took.figure(0), took.figure(2), "µs", "plain gRPC, no TLS", 1.15, false, took.ratio(0, 2)},
	}, nil
}

// p50s are median times in µs, by side, process and round.
type p50s [][][]float64

// interleave makes the same calls on every side. In a round, the processes of one
// number, one of each side, are called by turns of a few calls, so that whatever
// else the machine does meets all sides alike; every order is drawn anew.
func interleave(sides []callSide) (p50s, error) {
	all := make(p50s, len(sides))
	for k := range all {
		all[k] = make([][]float64, processes)
	}
	for round := range warmRounds + callRounds {
		for _, i := range rand.Perm(processes) {
			took := make([][]float64, len(sides))
			for range roundTurns {
				for _, k := range rand.Perm(len(sides)) {
					for range turnCalls {
						begin := time.Now()
						if err := sides[k].calls[i](); err != nil {
							return nil, err
						}
						took[k] = append(took[k], float64(time.Since(begin).Nanoseconds())/1000)
					}
				}
			}
			if round < warmRounds {
				continue
			}
			for k := range sides {
				all[k][i] = append(all[k][i], median(took[k]))
			}
		}
	}
	return all, nil
}

// figure is the p50 of a side: the median of its processes, each the median of its
// rounds.
func (p p50s) figure(side int) float64 {
	each := make([]float64, processes)
	for i, rounds := range p[side] {
		each[i] = median(slices.Clone(rounds))
	}
	return median(each)
}

// ratio compares two sides, process with process in the same round.
func (p p50s) ratio(ours, peer int) *ratio {
	var all []float64
	each := make([]float64, processes)
	for i := range processes {
		one := make([]float64, callRounds)
		for r := range one {
			one[r] = p[ours][i][r] / p[peer][i][r]
		}
		all = append(all, one...)
		each[i] = median(one)
	}
	return &ratio{middle: median(all), least: slices.Min(each), most: slices.Max(each)}
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
