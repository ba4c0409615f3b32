package donagrpc_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/interop/grpc_testing"

	"github.com/dodona-project/dodona/sdk/dona"
	"github.com/dodona-project/dodona/sdk/dona/donagrpc"
	"github.com/dodona-project/dodona/sdk/dona/internal/donatest"
)

func TestMain(m *testing.M) { donatest.Main(m) }

// instance is a gRPC server, registered as an endpoint. It answers with its id and
// variant, or with the error that the test set.
type instance struct {
	grpc_testing.UnimplementedTestServiceServer
	id, variant string
	calls       atomic.Int64
	fail        atomic.Pointer[error]

	server       *grpc.Server
	registration *dona.Registration
	served       chan struct{}
}

func (i *instance) UnaryCall(ctx context.Context, _ *grpc_testing.SimpleRequest) (*grpc_testing.SimpleResponse, error) {
	i.calls.Add(1)
	if err := i.fail.Load(); err != nil {
		return nil, *err
	}
	return &grpc_testing.SimpleResponse{ServerId: i.id, Hostname: i.variant}, nil
}

// FullDuplexCall answers each message until its caller leaves.
func (i *instance) FullDuplexCall(stream grpc.BidiStreamingServer[grpc_testing.StreamingOutputCallRequest, grpc_testing.StreamingOutputCallResponse]) error {
	for {
		if _, err := stream.Recv(); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return err
		}
		if err := stream.Send(&grpc_testing.StreamingOutputCallResponse{}); err != nil {
			return err
		}
	}
}

var instances atomic.Int64

// start serves an instance and announces it through c.
func start(t testing.TB, c *dona.Client, variant string) *instance {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	i := &instance{id: fmt.Sprintf("%s-%d", variant, instances.Add(1)), variant: variant, server: grpc.NewServer(), served: make(chan struct{})}
	grpc_testing.RegisterTestServiceServer(i.server, i)
	go func() {
		defer close(i.served)
		_ = i.server.Serve(l)
	}()
	t.Cleanup(func() { i.server.Stop(); <-i.served })
	i.registration = donatest.Register(t, c, dona.OwnEndpoint{Service: "checkout", ID: i.id, Address: l.Addr().String(), Variant: variant, Region: "eu"})
	return i
}

// knows reports whether the client decides by a snapshot that has the endpoint.
func knows(c *dona.Client, id string) bool {
	all, err := c.Service("checkout").Endpoints()
	return err == nil && slices.ContainsFunc(all, func(e dona.Endpoint) bool { return e.ID == id })
}

// leave takes it back in the right order: it ends when nobody picks it any more.
func (i *instance) leave(t testing.TB, client *dona.Client) {
	t.Helper()
	i.registration.Drain()
	if err := i.registration.Close(t.Context()); err != nil {
		t.Error(err)
	}
	donatest.Until(t, "the client forgets an endpoint", func() bool { return !knows(client, i.id) })
	i.server.GracefulStop()
}

// die stops answering at once; the host hears of it afterwards.
func (i *instance) die(t testing.TB) {
	t.Helper()
	i.server.Stop()
	if err := i.registration.Close(t.Context()); err != nil {
		t.Error(err)
	}
}

// connect is a stock connection to dona:///checkout through c.
func connect(t testing.TB, c *dona.Client, config donagrpc.Config, opts ...grpc.DialOption) grpc_testing.TestServiceClient {
	t.Helper()
	opts = append([]grpc.DialOption{grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithResolvers(donagrpc.Resolver(c, config))}, opts...)
	conn, err := grpc.NewClient("dona:///checkout", opts...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return grpc_testing.NewTestServiceClient(conn)
}

// ask makes one call and returns its variant and endpoint.
func ask(ctx context.Context, api grpc_testing.TestServiceClient, opts ...grpc.CallOption) (variant, id string, err error) {
	r, err := api.UnaryCall(ctx, &grpc_testing.SimpleRequest{}, opts...)
	return r.GetHostname(), r.GetServerId(), err
}

// callers call without pause until stopped, half of them for a unit.
type callers struct {
	stop   context.CancelFunc
	done   sync.WaitGroup
	total  atomic.Int64
	failed atomic.Int64
	first  atomic.Pointer[error]
	mu     sync.Mutex
	last   map[string]int // calls by variant since the last look
}

func call(ctx context.Context, api grpc_testing.TestServiceClient, many int) *callers {
	c := &callers{last: map[string]int{}}
	ctx, c.stop = context.WithCancel(ctx)
	for n := range many {
		c.done.Go(func() {
			for i := 0; ctx.Err() == nil; i++ {
				req := dona.Request{}
				if i%2 == 0 {
					req.Unit = fmt.Sprintf("user-%d-%d", n, i%1000)
				}
				// A call that began is ended, so that stopping fails none.
				variant, _, err := ask(dona.NewContext(context.WithoutCancel(ctx), req), api)
				c.total.Add(1)
				if err != nil {
					c.failed.Add(1)
					c.first.CompareAndSwap(nil, &err)
					continue
				}
				c.mu.Lock()
				c.last[variant]++
				c.mu.Unlock()
			}
		})
	}
	return c
}

// since returns the calls by variant since the last look.
func (c *callers) since() map[string]int {
	c.mu.Lock()
	defer c.mu.Unlock()
	was := c.last
	c.last = map[string]int{}
	return was
}

func (c *callers) end(t testing.TB) {
	t.Helper()
	c.stop()
	c.done.Wait()
	t.Logf("%d calls, %d failed", c.total.Load(), c.failed.Load())
	if n := c.failed.Load(); n > 0 {
		t.Errorf("%d of %d calls failed, the first with: %v", n, c.total.Load(), *c.first.Load())
	}
}
