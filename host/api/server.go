// Package api is the edge: gRPC services that identify the caller, look the call
// up in one table of roles and limits, check the request, call one package, and
// turn its answer into a transport status. No other package of the host knows
// transport codes.
//
// host wires it: [New] returns a *grpc.Server with every service registered.
package api

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"strings"
	"time"

	controlplanev1 "github.com/dodona-project/dodona/proto/controlplane/v1"
	donav1 "github.com/dodona-project/dodona/proto/dona/v1"
	"github.com/hashicorp/go-hclog"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/spiffe/go-spiffe/v2/spiffeid"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/health"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/reflection"
	"google.golang.org/grpc/stats"
	"google.golang.org/grpc/status"

	"github.com/dodona-project/dodona/host/refusal"
	"github.com/dodona-project/dodona/host/snapshot"
)

// Options of the server.
type Options struct {
	ControlPlane *ControlPlane        // nil: the host waits for its store, and answers HostAdmin and health alone
	Checkers     *CheckerControlPlane // nil with it
	Workers      *WorkerControlPlane  // nil with it
	PoolAdmin    *PoolAdmin           // nil with it
	HostAdmin    *HostAdmin
	Health       *health.Server
	Dev          bool                 // everyone on loopback is local:dev with every role
	Plaintext    bool                 // everyone is plaintext:anyone with every role; what only --dev has is left out
	Identity     Identity             // who the host is, and whom it trusts: mTLS; nil with Dev or Plaintext
	TrustDomain  spiffeid.TrustDomain // that callers have to be of; with Identity
	Environment  string               // that workers and checkers have to be of; empty = any
	Published    Environment          // of the published configuration, which goes before Environment; nil = none
	Caps         Caps
	Bounds       Bounds
	Memory       func() (used, limit uint64) // to shed load by; nil = never
	Logger       hclog.Logger
	Registerer   prometheus.Registerer
	Calls        stats.Handler       // sees every call, for traces; nil = none
	Interceptors []grpc.ServerOption // more of them, behind the checks; for tests that count
	SendTimeout  time.Duration       // a send blocked for longer ends a stream that is no feed; 0 = 10 s
	Reauthorise  time.Duration       // how long a connection lives on one look at its certificate; 0 = 30 min
}

// Environment is that of the workers and checkers that may call; empty = nothing is said
// of it.
type Environment func(ctx context.Context) (string, error)

const defaultSendTimeout = 10 * time.Second

// New returns a server with every service registered behind the same checks:
// recover, identity, table, rate, size, deadline.
func New(o Options) (*grpc.Server, error) {
	if (o.Identity == nil) != (o.Dev || o.Plaintext) {
		return nil, errors.New("api: callers either have identities or are let in without: one of Identity, Dev and Plaintext")
	}
	o.Bounds = o.Bounds.filled()
	g := &guard{dev: o.Dev, plaintext: o.Plaintext, waiting: o.ControlPlane == nil, log: o.Logger, limiters: newLimiters(), parsing: newParsing(snapshot.Codec()),
		environment: o.Environment, published: o.Published, sendTimeout: cmp.Or(o.SendTimeout, defaultSendTimeout), longest: o.Bounds.StreamDuration}
	var err error
	if g.metrics, err = newMetrics(o.Registerer); err != nil {
		return nil, fmt.Errorf("api: metrics: %w", err)
	}
	g.pressure.read = o.Memory
	options := append(snapshot.ServerOptions(),
		grpc.ForceServerCodecV2(g.parsing),
		grpc.ChainUnaryInterceptor(g.unary),
		grpc.ChainStreamInterceptor(g.stream),
		grpc.MaxConcurrentStreams(o.Bounds.Streams),
		grpc.MaxRecvMsgSize(o.Bounds.MessageBytes),
		grpc.MaxSendMsgSize(snapshot.MaxFrame),
		grpc.MaxHeaderListSize(8<<10),
		grpc.ConnectionTimeout(5*time.Second),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: o.Bounds.KeepaliveMinTime, PermitWithoutStream: true}),
		grpc.KeepaliveParams(keepalive.ServerParameters{Time: o.Bounds.KeepaliveTime, Timeout: o.Bounds.KeepaliveTimeout, MaxConnectionIdle: 10 * time.Minute}),
	)
	if o.Calls != nil {
		options = append(options, grpc.StatsHandler(o.Calls))
	}
	if !o.Dev {
		options = append(options, grpc.Creds(newDoor(o, g.metrics)))
	}
	server := grpc.NewServer(append(options, o.Interceptors...)...)
	if o.ControlPlane != nil {
		donav1.RegisterControlPlaneServer(server, o.ControlPlane)
		controlplanev1.RegisterCheckerControlPlaneServer(server, o.Checkers)
		controlplanev1.RegisterWorkerControlPlaneServer(server, o.Workers)
		controlplanev1.RegisterPoolAdminServer(server, o.PoolAdmin)
	} else { // admit answers for them
		donav1.RegisterControlPlaneServer(server, donav1.UnimplementedControlPlaneServer{})
		controlplanev1.RegisterCheckerControlPlaneServer(server, controlplanev1.UnimplementedCheckerControlPlaneServer{})
		controlplanev1.RegisterWorkerControlPlaneServer(server, controlplanev1.UnimplementedWorkerControlPlaneServer{})
		controlplanev1.RegisterPoolAdminServer(server, controlplanev1.UnimplementedPoolAdminServer{})
	}
	donav1.RegisterHostAdminServer(server, o.HostAdmin)
	donav1.RegisterIdentityServer(server, &renewals{host: o.HostAdmin})
	grpc_health_v1.RegisterHealthServer(server, o.Health)
	if o.Dev {
		reflection.Register(server)
	}
	return server, nil
}

// guard is what every call passes.
type guard struct {
	dev       bool
	plaintext bool
	waiting   bool // there is no control plane yet
	log       hclog.Logger
	limiters  *limiters
	metrics   *metrics
	parsing   parsing
	pressure  pressure

	environment string
	published   Environment
	sendTimeout time.Duration
	longest     time.Duration // of a stream of a worker or checker
}

// admit identifies the caller and looks the call up. It returns who is at the other
// end of the connection, when that is known.
func (g *guard) admit(ctx context.Context, method string, stream bool, req any) (context.Context, Rule, *visitor, error) {
	who, v, err := g.identify(ctx)
	if err != nil {
		return ctx, Rule{}, nil, err
	}
	rule, ok := Policy[method]
	if !ok || rule.DevOnly && !g.dev || !who.may(rule.Roles) {
		return ctx, rule, nil, status.Error(codes.PermissionDenied, "this identity may not call this method")
	}
	if g.waiting && needsStore(method) {
		return ctx, rule, nil, status.Error(codes.Unavailable, "this host waits for its store; its log and status say why: try another host, or again later")
	}
	if err := g.overheard(method, v); err != nil {
		return ctx, rule, nil, err
	}
	if err := g.placed(ctx, who, rule); err != nil {
		return ctx, rule, nil, answer(g.log, method, err)
	}
	if !g.pressure.serves(class(rule, req), stream, time.Now()) {
		g.metrics.shed.Inc()
		return ctx, rule, nil, shed()
	}
	if wait := g.limiters.take(method, who.actor, rule); wait > 0 {
		return ctx, rule, nil, tooOften(rule, wait)
	}
	if v != nil && !v.door.start(v.seat) {
		return ctx, rule, nil, status.Errorf(codes.ResourceExhausted, "this identity has %d calls under way from this address, as many as it may have", v.door.caps.StreamsPerPeer)
	}
	return context.WithValue(ctx, callerKey{}, who), rule, v, nil
}

// done ends what admit began.
func (v *visitor) done() {
	if v != nil {
		v.door.release(v.seat, 0, 1)
	}
}

// needsStore reports whether a method is of a service that a host serves once it has
// its store.
func needsStore(method string) bool {
	for _, service := range []grpc.ServiceDesc{donav1.ControlPlane_ServiceDesc, controlplanev1.CheckerControlPlane_ServiceDesc,
		controlplanev1.WorkerControlPlane_ServiceDesc, controlplanev1.PoolAdmin_ServiceDesc} {
		if strings.HasPrefix(method, "/"+service.ServiceName+"/") {
			return true
		}
	}
	return false
}

func (g *guard) unary(ctx context.Context, req any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (resp any, err error) {
	begin := time.Now()
	defer func() { g.metrics.observe(info.FullMethod, err, time.Since(begin)) }()
	defer g.recover(info.FullMethod, &err)
	received := g.parsing.take(req)
	ctx, rule, v, err := g.admit(ctx, info.FullMethod, false, req)
	if err != nil {
		return nil, err
	}
	defer v.done()
	if err := received.judge(rule.MaxBytes); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, rule.Deadline())
	defer cancel()
	resp, err = handler(ctx, req)
	return resp, answer(g.log, info.FullMethod, err)
}

func (g *guard) stream(srv any, ss grpc.ServerStream, info *grpc.StreamServerInfo, handler grpc.StreamHandler) (err error) {
	begin := time.Now()
	defer func() { g.metrics.observe(info.FullMethod, err, time.Since(begin)) }()
	defer g.recover(info.FullMethod, &err)
	ctx, rule, v, err := g.admit(ss.Context(), info.FullMethod, true, nil)
	if err != nil {
		return err
	}
	defer v.done()
	if v != nil { // the stream ends with the peer's right to go on
		var cancel context.CancelCauseFunc
		ctx, cancel = context.WithCancelCause(ctx)
		defer cancel(nil)
		defer context.AfterFunc(v.gone, func() { cancel(context.Cause(v.gone)) })()
	}
	lasts := g.lasts(info.FullMethod)
	if lasts > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeoutCause(ctx, lasts, longEnough(lasts))
		defer cancel()
	}
	err = handler(srv, &guarded{ss, ctx, rule, g.parsing, g.sendTimeout, lasts > 0})
	if cause := context.Cause(ctx); err != nil && (v != nil && ended(ctx) || lasts > 0 && errors.Is(cause, errLongEnough)) {
		err = cause
	}
	return answer(g.log, info.FullMethod, err)
}

// ended reports whether a stream's context ended because its peer may not go on.
func ended(ctx context.Context) bool { return status.Code(context.Cause(ctx)) == codes.Unauthenticated }

func (g *guard) recover(method string, err *error) {
	if p := recover(); p != nil {
		g.metrics.panics.Inc()
		g.log.Error("a call panicked", "method", method, "panic", p, "stack", string(debug.Stack()))
		*err = status.Error(codes.Internal, "the host failed; its log says why")
	}
}

// guarded is a stream whose messages are held to the rule's size, and whose client
// has to read what it is sent.
type guarded struct {
	grpc.ServerStream
	ctx     context.Context
	rule    Rule
	parsing parsing
	within  time.Duration // longest send
	bounded bool          // a receive ends with ctx
}

// SendMsg ends after a while when the client does not read. The send itself is
// left behind then: the handler must return, which ends it. Feeds time their own
// sends.
func (s *guarded) SendMsg(m any) error {
	if _, ours := m.(snapshot.Encoded); ours {
		return s.ServerStream.SendMsg(m)
	}
	sent := make(chan error, 1)
	go func() { sent <- s.ServerStream.SendMsg(m) }()
	late := time.NewTimer(s.within)
	defer late.Stop()
	select {
	case err := <-sent:
		return err
	case <-s.ctx.Done():
		return s.ctx.Err()
	case <-late.C:
		return &refusal.Error{Kind: refusal.Exhausted, Reason: "resume",
			Text: "nothing was read from this stream for " + s.within.String() + ": call again to go on"}
	}
}

func (s *guarded) Context() context.Context { return s.ctx }

func (s *guarded) RecvMsg(m any) error {
	if !s.bounded {
		return s.receive(m)
	}
	// The receive itself is left behind when ctx ends: the handler must return, which
	// ends it.
	received := make(chan error, 1)
	go func() { received <- s.receive(m) }()
	select {
	case err := <-received:
		return err
	case <-s.ctx.Done():
		return s.ctx.Err()
	}
}

func (s *guarded) receive(m any) error {
	if err := s.ServerStream.RecvMsg(m); err != nil {
		return err
	}
	return s.parsing.take(m).judge(s.rule.MaxBytes)
}
