package plugin

import (
	"context"
	"fmt"
	"regexp"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	controlplanev1 "github.com/dodona-project/dodona/proto/controlplane/v1"
	pluginv1 "github.com/dodona-project/dodona/proto/plugin/v1"
	"github.com/dodona-project/dodona/sdk/plugin/wire"
)

// SDKVersion is reported to the host with every description.
const SDKVersion = "0.1.0"

// AnalysisFunc measures one signal of a canary. It must return when ctx ends.
// An error, and an empty reply, mean that nothing was measured: the rollout
// waits, it is never promoted on them.
type AnalysisFunc func(ctx context.Context, req *pluginv1.EvaluateRequest) (*pluginv1.EvaluateReply, error)

// Evaluate calls f.
func (f AnalysisFunc) Evaluate(ctx context.Context, req *pluginv1.EvaluateRequest) (*pluginv1.EvaluateReply, error) {
	return f(ctx, req)
}

// StrategyFunc turns candidates into a plan. The same request must give the
// same plan, and it must return when ctx ends (after 250 ms by default).
type StrategyFunc func(ctx context.Context, req *pluginv1.CompileRequest) (*pluginv1.CompileReply, error)

// Compile calls f.
func (f StrategyFunc) Compile(ctx context.Context, req *pluginv1.CompileRequest) (*pluginv1.CompileReply, error) {
	return f(ctx, req)
}

// ProbeFunc makes one check of a proxy or an endpoint. ctx ends at the timeout of
// the check: a target that has not answered by then is a FAILURE of class
// TIMEOUT. An error, and a nil reply, say that the check itself did not work and
// nothing about the target: INCONCLUSIVE.
type ProbeFunc func(ctx context.Context, req *pluginv1.CheckRequest) (*pluginv1.CheckReply, error)

// Check calls f.
func (f ProbeFunc) Check(ctx context.Context, req *pluginv1.CheckRequest) (*pluginv1.CheckReply, error) {
	return f(ctx, req)
}

// Evaluator is what [AnalysisOf] makes a plugin of.
type Evaluator interface {
	Evaluate(ctx context.Context, req *pluginv1.EvaluateRequest) (*pluginv1.EvaluateReply, error)
}

// Compiler is what [StrategyOf] makes a plugin of.
type Compiler interface {
	Compile(ctx context.Context, req *pluginv1.CompileRequest) (*pluginv1.CompileReply, error)
}

// Checker is what [ProbeOf] makes a plugin of.
type Checker interface {
	Check(ctx context.Context, req *pluginv1.CheckRequest) (*pluginv1.CheckReply, error)
}

// A Plugin is a description and an implementation, ready for [Serve]. Making
// one does no work: schemas and services are made when it is served.
type Plugin struct {
	kind        pluginv1.Kind
	name        string
	version     string
	summary     string
	concurrency uint32
	abilities   []string
	impl        any
	register    func(*grpc.Server)
}

// An Option adds to what a plugin says of itself.
type Option func(*Plugin)

// Summary is one line on what the plugin does, at most 256 bytes.
func Summary(line string) Option { return func(p *Plugin) { p.summary = line } }

// MaxConcurrency is how many calls the host may have in flight, 1 to 1,024;
// 64 without it. More wait in the host.
func MaxConcurrency(calls int) Option {
	return func(p *Plugin) { p.concurrency = uint32(min(max(calls, 1), wire.MaxConcurrency)) }
}

// OwnVerdict says that an analysis decides PASS and BREACH itself, so that a
// query for it needs no bound.
func OwnVerdict() Option {
	return func(p *Plugin) { p.abilities = append(p.abilities, wire.CapabilityVerdict) }
}

// Analysis makes an analysis plugin of a function. name is
// [a-z0-9][a-z0-9-]{0,62}, version a semantic version.
func Analysis(name, version string, evaluate AnalysisFunc, options ...Option) *Plugin {
	return AnalysisOf(name, version, evaluate, options...)
}

// AnalysisOf makes an analysis plugin of a value; see the package comment for
// what else it may have.
func AnalysisOf(name, version string, impl Evaluator, options ...Option) *Plugin {
	return define(pluginv1.Kind_KIND_ANALYSIS, name, version, impl, func(s *grpc.Server) {
		pluginv1.RegisterAnalysisServer(s, analysisServer{impl: impl})
	}, options)
}

// Strategy makes a strategy plugin of a function. name is
// [a-z0-9][a-z0-9-]{0,62}, version a semantic version.
func Strategy(name, version string, compile StrategyFunc, options ...Option) *Plugin {
	return StrategyOf(name, version, compile, options...)
}

// StrategyOf makes a strategy plugin of a value; see the package comment for
// what else it may have.
func StrategyOf(name, version string, impl Compiler, options ...Option) *Plugin {
	return define(pluginv1.Kind_KIND_STRATEGY, name, version, impl, func(s *grpc.Server) {
		pluginv1.RegisterStrategyServer(s, strategyServer{impl: impl})
	}, options)
}

// Probe makes a probe plugin of a function. name is [a-z0-9][a-z0-9-]{0,62},
// version a semantic version.
func Probe(name, version string, check ProbeFunc, options ...Option) *Plugin {
	return ProbeOf(name, version, check, options...)
}

// ProbeOf makes a probe plugin of a value; see the package comment for what else
// it may have.
func ProbeOf(name, version string, impl Checker, options ...Option) *Plugin {
	return define(pluginv1.Kind_KIND_PROBE, name, version, impl, func(s *grpc.Server) {
		pluginv1.RegisterProbeServer(s, probeServer{impl: impl})
	}, options)
}

func define(kind pluginv1.Kind, name, version string, impl any, register func(*grpc.Server), options []Option) *Plugin {
	p := &Plugin{kind: kind, name: name, version: version, impl: impl, register: register}
	for _, o := range options {
		o(p)
	}
	return p
}

// Kind returns the plugin's kind.
func (p *Plugin) Kind() pluginv1.Kind { return p.kind }

// Name returns the plugin's name.
func (p *Plugin) Name() string { return p.name }

// Version returns the plugin's semantic version.
func (p *Plugin) Version() string { return p.version }

var (
	nameGrammar    = regexp.MustCompile(`^[a-z0-9][a-z0-9-]{0,62}$`)
	versionGrammar = regexp.MustCompile(`^[0-9]+\.[0-9]+\.[0-9]+(-[0-9A-Za-z.-]+)?(\+[0-9A-Za-z.-]+)?$`)
)

// check says what is wrong with a definition, in words for its author.
func (p *Plugin) check() error {
	switch {
	case !nameGrammar.MatchString(p.name):
		return fmt.Errorf("plugin name %q: allowed are 1 to 63 of a-z, 0-9 and -, beginning with a letter or digit", p.name)
	case len(p.version) > 64 || !versionGrammar.MatchString(p.version):
		return fmt.Errorf("version %q of plugin %s: allowed is a semantic version such as 1.2.3", p.version, p.name)
	case len(p.summary) > 256:
		return fmt.Errorf("summary of plugin %s has %d bytes: allowed are at most 256", p.name, len(p.summary))
	}
	return nil
}

// kindWord is how people and flags name a kind.
func kindWord(k pluginv1.Kind) string {
	switch k {
	case pluginv1.Kind_KIND_STRATEGY:
		return "strategy"
	case pluginv1.Kind_KIND_PROBE:
		return "probe"
	case pluginv1.Kind_KIND_ANALYSIS:
		return "analysis"
	}
	return "unknown"
}

type analysisServer struct {
	pluginv1.UnimplementedAnalysisServer
	impl Evaluator
}

func (s analysisServer) Evaluate(ctx context.Context, req *pluginv1.EvaluateRequest) (*pluginv1.EvaluateReply, error) {
	reply, err := s.impl.Evaluate(ctx, req)
	if err == nil && reply == nil {
		reply = &pluginv1.EvaluateReply{}
	}
	return reply, err
}

type strategyServer struct {
	pluginv1.UnimplementedStrategyServer
	impl Compiler
}

func (s strategyServer) Compile(ctx context.Context, req *pluginv1.CompileRequest) (*pluginv1.CompileReply, error) {
	reply, err := s.impl.Compile(ctx, req)
	if err == nil && reply == nil {
		reply = &pluginv1.CompileReply{}
	}
	return reply, err
}

type probeServer struct {
	pluginv1.UnimplementedProbeServer
	impl Checker
}

// Check bounds the check by its own timeout, which is shorter than the host's
// wait for the answer, and measures its time for authors who do not.
func (s probeServer) Check(ctx context.Context, req *pluginv1.CheckRequest) (*pluginv1.CheckReply, error) {
	began := time.Now()
	if d := req.GetTimeout().AsDuration(); d > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, d)
		defer cancel()
	}
	reply, err := s.impl.Check(ctx, req)
	if err != nil {
		return nil, err
	}
	if reply == nil {
		reply = &pluginv1.CheckReply{Result: controlplanev1.HealthObservation_RESULT_INCONCLUSIVE}
	}
	if reply.Latency == nil {
		reply = proto.CloneOf(reply) // the author may give it to others too
		reply.Latency = durationpb.New(time.Since(began))
	}
	return reply, nil
}
