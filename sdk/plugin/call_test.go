package plugin

import (
	"bytes"
	"context"
	"io"
	"net"
	"sync"
	"testing"

	"github.com/hashicorp/go-hclog"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/test/bufconn"

	pluginv1 "github.com/dodona-project/dodona/proto/plugin/v1"
)

func silent(context.Context, *pluginv1.EvaluateRequest) (*pluginv1.EvaluateReply, error) {
	return &pluginv1.EvaluateReply{}, nil
}

func guardOf(t testing.TB, p *Plugin) *guard {
	config, err := newConfigurer(p.impl)
	if err != nil {
		t.Fatal(err)
	}
	return newGuard(hclog.NewNullLogger(), config)
}

// What stands before a handler allocates the call's context and nothing else.
func TestGuardAllocates(t *testing.T) {
	g := guardOf(t, Analysis("silent", "0.1.0", silent))
	req, reply := &pluginv1.EvaluateRequest{InstanceId: "i", RolloutId: "r"}, &pluginv1.EvaluateReply{}
	info := &grpc.UnaryServerInfo{FullMethod: pluginv1.Analysis_Evaluate_FullMethodName}
	handler := func(ctx context.Context, _ any) (any, error) {
		if Instance(ctx) != "i" || RolloutID(ctx) != "r" {
			t.Errorf("the handler sees instance %q and rollout %q", Instance(ctx), RolloutID(ctx))
		}
		return reply, nil
	}
	ctx := t.Context()
	n := testing.AllocsPerRun(1000, func() {
		if _, err := g.unary(ctx, req, info, handler); err != nil {
			t.Error(err)
		}
	})
	if n > 1 {
		t.Errorf("%v allocations a call: allowed is 1", n)
	}
}

// listened keeps what is read from a connection.
type listened struct {
	net.Conn
	mu   sync.Mutex
	read bytes.Buffer
}

func (l *listened) Read(p []byte) (int, error) {
	n, err := l.Conn.Read(p)
	l.mu.Lock()
	defer l.mu.Unlock()
	l.read.Write(p[:n])
	return n, err
}

// frames counts the HTTP/2 frames that were read whole, by type (RFC 9113, section
// 6). Answers to pings are not counted.
func (l *listened) frames() map[byte]int {
	l.mu.Lock()
	defer l.mu.Unlock()
	const header, acknowledges = 9, 0x1
	counts := make(map[byte]int)
	for rest := l.read.Bytes(); len(rest) >= header; {
		size, kind, flags := int(rest[0])<<16|int(rest[1])<<8|int(rest[2]), rest[3], rest[4]
		if len(rest) < header+size {
			break
		}
		if kind != framePing || flags&acknowledges == 0 {
			counts[kind]++
		}
		rest = rest[header+size:]
	}
	return counts
}

const (
	frameData = 0x0
	framePing = 0x6
)

// A plugin answers a call and sends nothing besides: each ping would cost both
// sides a write and a wake-up.
func TestCallsCauseNoPings(t *testing.T) {
	p := Analysis("silent", "0.1.0", func(context.Context, *pluginv1.EvaluateRequest) (*pluginv1.EvaluateReply, error) {
		return &pluginv1.EvaluateReply{HasValue: true}, nil
	})
	listener := bufconn.Listen(1 << 20)
	server := grpc.NewServer(serverOptions(guardOf(t, p))...)
	p.register(server)
	var serving sync.WaitGroup
	serving.Go(func() { _ = server.Serve(listener) })
	defer serving.Wait()
	defer server.Stop()

	conn, err := listener.DialContext(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	wire := &listened{Conn: conn}
	dialed := make(chan net.Conn, 1)
	dialed <- wire
	client, err := grpc.NewClient("passthrough:plugin", grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(context.Context, string) (net.Conn, error) {
			select {
			case c := <-dialed:
				return c, nil
			default:
				return nil, io.EOF // one connection is all there is
			}
		}))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = client.Close() }()
	const calls = 50
	for range calls {
		if _, err := pluginv1.NewAnalysisClient(client).Evaluate(t.Context(), &pluginv1.EvaluateRequest{InstanceId: "i"}); err != nil {
			t.Fatal(err)
		}
	}
	counts := wire.frames()
	if counts[frameData] != calls {
		t.Errorf("%d frames of data for %d calls", counts[frameData], calls)
	}
	if counts[framePing] != 0 {
		t.Errorf("%d pings for %d calls", counts[framePing], calls)
	}
}
