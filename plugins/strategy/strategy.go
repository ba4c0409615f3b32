// Package strategy is the checked way to strategy plugins: it has them compile
// load-balancing plans and lets only plans through that clients can execute.
//
// The host's service plane calls it on changes and on refresh, never for a
// request. What it promises: a returned plan names only candidates of the
// request, leaves at least one of them with a weight, uses an algorithm that
// today's clients execute, and is a message of its own (nothing that the plugin
// added goes along). A refused plan is an error with the plugin and the reason;
// the caller keeps the last good one.
package strategy

import (
	"context"
	"fmt"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/dodona-project/dodona/plugins"
	donav1 "github.com/dodona-project/dodona/proto/dona/v1"
	pluginv1 "github.com/dodona-project/dodona/proto/plugin/v1"
	"github.com/dodona-project/dodona/sdk/plugin/wire"
)

// Bounds of a plan.
const (
	MaxWeight  = 1_000_000
	MaxChoices = 32

	// MinLoadPercent and MaxLoadPercent bound what one candidate may have of the
	// average load: at 100 nobody has room for a hash to choose.
	MinLoadPercent = 101
	MaxLoadPercent = 10_000

	MaxHashName = 128 // bytes of an attribute's or header's name

	// MinRefresh and MaxRefresh bound how soon a plugin can ask to be called
	// again without a change.
	MinRefresh = time.Second
	MaxRefresh = 24 * time.Hour
)

// Caller carries calls to plugins; *plugins.Host is one.
type Caller interface {
	Call(ctx context.Context, id plugins.ID, in plugins.Instance, method string, do func(context.Context, grpc.ClientConnInterface) error) (plugins.Identity, error)
	Validate(ctx context.Context, id plugins.ID, config *structpb.Struct) error
	Reject(id plugins.ID, reason, detail string) *plugins.AnswerError
}

// A Facade may be used concurrently.
type Facade struct {
	caller Caller
}

// New returns a facade over caller.
func New(caller Caller) *Facade { return &Facade{caller: caller} }

// A Result is an accepted plan.
type Result struct {
	Plan         *donav1.Plan  // the caller's own; generation is 0
	RefreshAfter time.Duration // compile again after this, also without a change; 0 = only on change
}

// Compile has a plugin without configuration make a plan; see CompileWith.
func (f *Facade) Compile(ctx context.Context, plugin string, req *pluginv1.CompileRequest) (Result, error) {
	return f.CompileWith(ctx, plugin, nil, req)
}

// CompileWith has a plugin make a plan of the request with a configuration; nil
// is none. The instance is made of the request's scope and the configuration;
// req.instance_id is ignored. req is not changed.
//
// Errors: those of plugins.Host.Call; plugins.ErrAway in particular comes at
// once when the plugin is not ready.
func (f *Facade) CompileWith(ctx context.Context, plugin string, config *structpb.Struct, req *pluginv1.CompileRequest) (Result, error) {
	id := plugins.ID{Kind: plugins.KindStrategy, Name: plugin}
	fail := func(err error) (Result, error) {
		return Result{}, fmt.Errorf("compile a plan for %s: %w", req.GetScope(), err)
	}
	in := plugins.InstanceFor(req.GetScope(), config)
	send := &pluginv1.CompileRequest{
		InstanceId: in.ID, Scope: req.GetScope(), Seed: req.GetSeed(),
		Candidates: req.GetCandidates(), Previous: req.GetPrevious(),
	}
	var reply *pluginv1.CompileReply
	_, err := f.caller.Call(ctx, id, in, "Compile", func(ctx context.Context, conn grpc.ClientConnInterface) error {
		reply = new(pluginv1.CompileReply)
		return conn.Invoke(ctx, pluginv1.Strategy_Compile_FullMethodName, send, reply, grpc.StaticMethod(), grpc.MaxCallRecvMsgSize(maxReply(send)))
	})
	if err != nil {
		return fail(err)
	}
	result, bad := check(plugin, req, reply)
	if bad != nil {
		return fail(f.caller.Reject(id, bad.reason, bad.detail))
	}
	return result, nil
}

// maxReply is how long the answer to a request may be, in bytes. A plan names at
// most the candidates and groups of its request.
func maxReply(req *pluginv1.CompileRequest) int {
	return min(64<<10+2*proto.Size(req), wire.MaxMessageLen)
}

// Validate checks a configuration for the plugin. Errors: plugins.ErrUnknown,
// *plugins.ConfigError, and plugins.ErrAway when the plugin was never seen.
func (f *Facade) Validate(ctx context.Context, plugin string, config *structpb.Struct) error {
	return f.caller.Validate(ctx, plugins.ID{Kind: plugins.KindStrategy, Name: plugin}, config)
}
