// Package analysis is the checked way to analysis plugins: it has them measure
// one signal of a canary and turns the answer into a measurement that a rollout
// can be decided on.
//
// The rollout controller calls it once per query and tick. What it promises:
// nothing that was not measured ever passes. An error, a late, empty or refused
// answer, NaN and -Inf all are "missing"; only a plugin's own PASS, or a value
// within the bounds of the query, is a pass.
package analysis

import (
	"context"
	"fmt"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/dodona-project/dodona/plugins"
	donav1 "github.com/dodona-project/dodona/proto/dona/v1"
	pluginv1 "github.com/dodona-project/dodona/proto/plugin/v1"
	"github.com/dodona-project/dodona/sdk/plugin/line"
	"github.com/dodona-project/dodona/sdk/plugin/wire"
)

// Bounds of an answer.
const (
	MaxDetail     = 1 << 10  // bytes, one line
	MaxEvidence   = 64 << 10 // bytes
	MaxState      = 64 << 10 // bytes
	MaxRetryAfter = time.Hour

	// maxReply is an answer of which everything is as long as it may be, and
	// some more.
	maxReply = MaxDetail + MaxEvidence + MaxState + 64<<10
)

// evaluateOptions are those of every call, made once.
var evaluateOptions = []grpc.CallOption{grpc.StaticMethod(), grpc.MaxCallRecvMsgSize(maxReply)}

// Caller carries calls to plugins; *plugins.Host is one.
type Caller interface {
	Call(ctx context.Context, id plugins.ID, in plugins.Instance, method string, do func(context.Context, grpc.ClientConnInterface) error) (plugins.Identity, error)
	Validate(ctx context.Context, id plugins.ID, config *structpb.Struct) error
	Reject(id plugins.ID, reason, detail string) *plugins.AnswerError
	Capable(id plugins.ID, capability string) bool
}

// A Facade may be used concurrently.
type Facade struct {
	caller Caller
}

// New returns a facade over caller.
func New(caller Caller) *Facade { return &Facade{caller: caller} }

// A Measurement is an accepted answer.
type Measurement struct {
	Verdict    donav1.Verdict // PASS, BREACH or MISSING, never UNSPECIFIED
	Value      float64        // finite, or +Inf with BREACH; 0 without HasValue
	HasValue   bool
	Detail     string        // one line for people, never empty when missing
	Evidence   []byte        // what was measured, as the plugin received it
	State      []byte        // to be handed back in the next request
	RetryAfter time.Duration // the plugin asks not to be called before; 0 = no wish

	// Which plugin measured.
	Plugin  string
	Version string
	Digest  string // sha256:<hex>
}

// Missing is the measurement of an Evaluate that returned err.
func Missing(plugin string, err error) Measurement {
	return Measurement{Verdict: donav1.Verdict_VERDICT_MISSING, Detail: line.Of(err.Error(), MaxDetail), Plugin: plugin}
}

// Evaluate has a plugin measure what the request asks for. The instance is made
// of the request's service, query name and query configuration;
// req.instance_id is ignored. req is not changed.
//
// Errors: those of plugins.Host.Call. A caller that goes on treats every error
// as [Missing].
func (f *Facade) Evaluate(ctx context.Context, plugin string, req *pluginv1.EvaluateRequest) (Measurement, error) {
	id := plugins.ID{Kind: plugins.KindAnalysis, Name: plugin}
	q := req.GetQuery()
	fail := func(err error) (Measurement, error) {
		return Measurement{}, fmt.Errorf("evaluate %q for %s: %w", q.GetName(), req.GetService(), err)
	}
	in := plugins.InstanceFor(req.GetService()+"\x00"+q.GetName(), q.GetConfig())
	send := &pluginv1.EvaluateRequest{
		InstanceId: in.ID, RolloutId: req.GetRolloutId(), Query: q, Service: req.GetService(),
		CanaryVariant: req.GetCanaryVariant(), StableVariant: req.GetStableVariant(),
		StepIndex: req.GetStepIndex(), StepPercent: req.GetStepPercent(), StepStartedAt: req.GetStepStartedAt(),
		Canary: req.GetCanary(), Stable: req.GetStable(), State: req.GetState(),
	}
	var reply *pluginv1.EvaluateReply
	who, err := f.caller.Call(ctx, id, in, "Evaluate", func(ctx context.Context, conn grpc.ClientConnInterface) error {
		reply = new(pluginv1.EvaluateReply)
		return conn.Invoke(ctx, pluginv1.Analysis_Evaluate_FullMethodName, send, reply, evaluateOptions...)
	})
	if err != nil {
		return fail(err)
	}
	m, bad := check(q, reply)
	if bad != nil {
		return fail(f.caller.Reject(id, bad.reason, bad.detail))
	}
	m.Plugin, m.Version, m.Digest = who.Name, who.Version, who.Digest
	return m, nil
}

// OwnVerdict reports whether the plugin decides PASS and BREACH itself, so that
// a query for it needs no bound. It is known once the plugin was seen; call it
// after Validate.
func (f *Facade) OwnVerdict(plugin string) bool {
	return f.caller.Capable(plugins.ID{Kind: plugins.KindAnalysis, Name: plugin}, wire.CapabilityVerdict)
}

// Validate checks a configuration for the plugin. Errors: plugins.ErrUnknown,
// *plugins.ConfigError, and plugins.ErrAway when the plugin was never seen.
func (f *Facade) Validate(ctx context.Context, plugin string, config *structpb.Struct) error {
	return f.caller.Validate(ctx, plugins.ID{Kind: plugins.KindAnalysis, Name: plugin}, config)
}
