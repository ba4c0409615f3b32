package plugin

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"strings"
	"sync"

	"github.com/hashicorp/go-hclog"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	pluginv1 "github.com/dodona-project/dodona/proto/plugin/v1"
)

// maxErrorLen is how much of an author's error reaches the host, in bytes.
const maxErrorLen = 4 << 10

// A guard stands before every handler: it counts calls in flight, refuses new
// ones while draining, turns a panic into an error and gives the call its
// context.
type guard struct {
	logger hclog.Logger
	config *configurer

	mu       sync.Mutex
	inflight int
	draining bool
	idle     chan struct{} // closed when draining and nothing is in flight
}

func newGuard(logger hclog.Logger, config *configurer) *guard {
	return &guard{logger: logger, config: config, idle: make(chan struct{})}
}

func (g *guard) enter() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.draining {
		return false
	}
	g.inflight++
	return true
}

func (g *guard) leave() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.inflight--
	if g.draining && g.inflight == 0 {
		close(g.idle)
	}
}

// drain refuses new calls and waits for those in flight. It may be called more
// than once.
func (g *guard) drain(ctx context.Context) {
	g.mu.Lock()
	if !g.draining {
		g.draining = true
		if g.inflight == 0 {
			close(g.idle)
		}
	}
	g.mu.Unlock()
	select {
	case <-g.idle:
	case <-ctx.Done():
	}
}

// counted says which calls draining waits for and refuses: all but those that
// tell the host about the plugin itself.
func counted(method string) bool {
	return strings.HasPrefix(method, "/plugin.v1.") &&
		(!strings.HasPrefix(method, "/plugin.v1.Lifecycle/") || method == pluginv1.Lifecycle_Configure_FullMethodName)
}

func (g *guard) unary(ctx context.Context, req any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (reply any, err error) {
	if counted(info.FullMethod) {
		if !g.enter() {
			return nil, status.Error(codes.Unavailable, "plugin is draining")
		}
		defer g.leave()
		if ctx, err = g.context(ctx, req); err != nil {
			return nil, err
		}
	}
	defer g.recover(info.FullMethod, &err)
	reply, err = handler(ctx, req)
	return reply, wireError(ctx, err)
}

func (g *guard) stream(srv any, ss grpc.ServerStream, info *grpc.StreamServerInfo, handler grpc.StreamHandler) (err error) {
	defer g.recover(info.FullMethod, &err)
	return wireError(ss.Context(), handler(srv, ss))
}

// context gives a call what Logger, Instance, RolloutID and Config return.
func (g *guard) context(ctx context.Context, req any) (context.Context, error) {
	c := &call{Context: ctx, logger: g.logger}
	if r, ok := req.(interface{ GetInstanceId() string }); ok {
		c.instance = r.GetInstanceId()
	}
	if r, ok := req.(interface{ GetRolloutId() string }); ok {
		c.rolloutID = r.GetRolloutId()
	}
	if _, ok := req.(*pluginv1.ConfigureRequest); !ok {
		var known bool
		if c.config, known = g.config.lookup(c.instance); !known {
			return nil, status.Errorf(codes.FailedPrecondition, "instance %q is not configured", c.instance)
		}
	}
	return c, nil
}

// recover keeps the process alive: other calls are not to pay for one.
func (g *guard) recover(method string, err *error) {
	if r := recover(); r != nil {
		g.logger.Error("panic in a call", "method", method, "panic", fmt.Sprint(r), "stack", string(debug.Stack()))
		*err = status.Error(codes.Internal, clip(fmt.Sprintf("panic: %v", r)))
	}
}

// wireError gives an author's error the code that the host understands.
func wireError(ctx context.Context, err error) error {
	if err == nil {
		return nil
	}
	if s, ok := status.FromError(err); ok {
		return status.Error(s.Code(), clip(s.Message()))
	}
	switch {
	case errors.Is(err, context.DeadlineExceeded) && ctx.Err() != nil:
		return status.Error(codes.DeadlineExceeded, clip(err.Error()))
	case errors.Is(err, context.Canceled) && ctx.Err() != nil:
		return status.Error(codes.Canceled, clip(err.Error()))
	}
	return status.Error(codes.Unknown, clip(err.Error()))
}

func clip(s string) string {
	s = strings.ToValidUTF8(s, "\uFFFD")
	if len(s) > maxErrorLen {
		s = strings.ToValidUTF8(s[:maxErrorLen], "")
	}
	return s
}
