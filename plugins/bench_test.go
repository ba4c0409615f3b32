//go:build linux

package plugins_test

import (
	"context"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/hashicorp/go-hclog"
	goplugin "github.com/hashicorp/go-plugin"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/dodona-project/dodona/plugins"
	"github.com/dodona-project/dodona/plugins/strategy"
	pluginv1 "github.com/dodona-project/dodona/proto/plugin/v1"
	"github.com/dodona-project/dodona/sdk/plugin/wire"
)

// The same small call in three ways, each to another process over a unix
// socket: through the facade with all checks, with go-plugin alone (mutual TLS
// too), and with nothing but gRPC.

func benchRequest() *pluginv1.CompileRequest {
	return &pluginv1.CompileRequest{Scope: "service/shop", Candidates: []*pluginv1.Candidate{
		{Id: "10.0.0.1:8080", Group: "zone-a", Region: "eu", Weight: 100, Capacity: 100},
		{Id: "10.0.0.2:8080", Group: "zone-b", Region: "eu", Weight: 95, Capacity: 100},
	}}
}

func BenchmarkCall(b *testing.B) {
	b.Run("facade", func(b *testing.B) {
		o := newOptions(b)
		o.Logger = nil
		h := startHost(b, o)
		await(b, h, plugins.KindStrategy, "turns")
		f, req := strategy.New(h), benchRequest()
		for b.Loop() {
			if _, err := f.Compile(b.Context(), "turns", req); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("go-plugin", func(b *testing.B) {
		client := goplugin.NewClient(&goplugin.ClientConfig{
			HandshakeConfig:  goplugin.HandshakeConfig{MagicCookieKey: wire.CookieKey, MagicCookieValue: wire.CookieValue},
			VersionedPlugins: map[int]goplugin.PluginSet{wire.ProtocolVersion: {wire.PluginSet: bare{}}},
			Cmd:              exec.Command(os.Args[0], "__bare"),
			AutoMTLS:         true,
			Logger:           hclog.NewNullLogger(),
			AllowedProtocols: []goplugin.Protocol{goplugin.ProtocolGRPC},
		})
		defer client.Kill()
		protocol, err := client.Client()
		if err != nil {
			b.Fatal(err)
		}
		conn, err := protocol.Dispense(wire.PluginSet)
		if err != nil {
			b.Fatal(err)
		}
		callBare(b, conn.(*grpc.ClientConn))
	})
	b.Run("grpc", func(b *testing.B) {
		dir, err := os.MkdirTemp("", "g")
		if err != nil {
			b.Fatal(err)
		}
		defer func() { _ = os.RemoveAll(dir) }()
		socket := filepath.Join(dir, "s")
		server := exec.Command(os.Args[0], "__grpc", socket)
		if err := server.Start(); err != nil {
			b.Fatal(err)
		}
		defer func() { _ = server.Process.Kill(); _ = server.Wait() }()
		conn, err := grpc.NewClient("unix:"+socket, grpc.WithTransportCredentials(insecure.NewCredentials()),
			grpc.WithDefaultCallOptions(grpc.WaitForReady(true)))
		if err != nil {
			b.Fatal(err)
		}
		defer func() { _ = conn.Close() }()
		callBare(b, conn)
	})
}

func callBare(b *testing.B, conn grpc.ClientConnInterface) {
	client, req := pluginv1.NewStrategyClient(conn), benchRequest()
	// With a deadline, as any caller has one.
	call := func() error {
		ctx, cancel := context.WithTimeout(b.Context(), plugins.CompileDeadline)
		defer cancel()
		_, err := client.Compile(ctx, req)
		return err
	}
	warm, cancel := context.WithTimeout(b.Context(), patience)
	defer cancel()
	if _, err := client.Compile(warm, req); err != nil {
		b.Fatal(err)
	}
	for b.Loop() {
		if err := call(); err != nil {
			b.Fatal(err)
		}
	}
}

// bare is a plugin as go-plugin's own examples write one.
type bare struct {
	goplugin.NetRPCUnsupportedPlugin
}

func (bare) GRPCServer(_ *goplugin.GRPCBroker, s *grpc.Server) error {
	pluginv1.RegisterStrategyServer(s, bareStrategy{})
	return nil
}

func (bare) GRPCClient(_ context.Context, _ *goplugin.GRPCBroker, c *grpc.ClientConn) (any, error) {
	return c, nil
}

type bareStrategy struct {
	pluginv1.UnimplementedStrategyServer
}

func (bareStrategy) Compile(ctx context.Context, req *pluginv1.CompileRequest) (*pluginv1.CompileReply, error) {
	return turns(ctx, req)
}

// benchProcess is the other side of the benchmarks' calls.
func benchProcess() {
	if len(os.Args) < 2 {
		return
	}
	switch os.Args[1] {
	case "__bare":
		goplugin.Serve(&goplugin.ServeConfig{
			HandshakeConfig:  goplugin.HandshakeConfig{MagicCookieKey: wire.CookieKey, MagicCookieValue: wire.CookieValue},
			VersionedPlugins: map[int]goplugin.PluginSet{wire.ProtocolVersion: {wire.PluginSet: bare{}}},
			GRPCServer:       goplugin.DefaultGRPCServer,
		})
		os.Exit(0)
	case "__grpc":
		l, err := net.Listen("unix", os.Args[2])
		if err != nil {
			os.Exit(1)
		}
		s := grpc.NewServer()
		pluginv1.RegisterStrategyServer(s, bareStrategy{})
		_ = s.Serve(l)
		os.Exit(0)
	}
}
