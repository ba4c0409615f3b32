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
	"fmt"
	"runtime/debug"
	"strings"
	"time"

	controlplanev1 "github.com/dodona-project/dodona/proto/controlplane/v1"
	donav1 "github.com/dodona-project/dodona/proto/dona/v1"
	"github.com/hashicorp/go-hclog"
	"github.com/prometheus/client_golang/prometheus"
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
	HostAdmin    *HostAdmin
	Health       *health.Server
	Dev          bool // everyone on loopback is local:dev with every role
	Logger       hclog.Logger
	Registerer   prometheus.Registerer
	Calls        stats.Handler // sees every call, for traces; nil = none
	SendTimeout  time.Duration // a send blocked for longer ends a stream that is no feed; 0 = 10 s
}

const defaultSendTimeout = 10 * time.Second

// New returns a server with every service registered behind the same checks:
// recover, identity, table, rate, size, deadline.
func New(o Options) (*grpc.Server, error) {
	g := &guard{dev: o.Dev, waiting: o.ControlPlane == nil, log: o.Logger, limiters: newLimiters(), parsing: newParsing(snapshot.Codec()),
		sendTimeout: cmp.Or(o.SendTimeout, defaultSendTimeout)}
	var err error
	if g.metrics, err = newMetrics(o.Registerer); err != nil {
		return nil, fmt.Errorf("api: metrics: %w", err)
	}
	options := snapshot.ServerOptions()
	if o.Calls != nil {
		options = append(options, grpc.StatsHandler(o.Calls))
	}
	server := grpc.NewServer(append(options,
		grpc.ForceServerCodecV2(g.parsing),
		grpc.ChainUnaryInterceptor(g.unary),
		grpc.ChainStreamInterceptor(g.stream),
		grpc.MaxConcurrentStreams(250),
		grpc.MaxRecvMsgSize(statsMessage),
		grpc.MaxSendMsgSize(snapshot.MaxFrame),
		grpc.MaxHeaderListSize(8<<10),
		grpc.ConnectionTimeout(5*time.Second),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: 10 * time.Second, PermitWithoutStream: true}),
		grpc.KeepaliveParams(keepalive.ServerParameters{Time: 20 * time.Second, Timeout: 10 * time.Second, MaxConnectionIdle: 10 * time.Minute}),
	)...)
	if o.ControlPlane != nil {
		donav1.RegisterControlPlaneServer(server, o.ControlPlane)
		controlplanev1.RegisterCheckerControlPlaneServer(server, o.Checkers)
	} else { // admit answers for them
		donav1.RegisterControlPlaneServer(server, donav1.UnimplementedControlPlaneServer{})
		controlplanev1.RegisterCheckerControlPlaneServer(server, controlplanev1.UnimplementedCheckerControlPlaneServer{})
	}
	donav1.RegisterHostAdminServer(server, o.HostAdmin)
	grpc_health_v1.RegisterHealthServer(server, o.Health)
	if o.Dev {
		reflection.Register(server)
	}
	return server, nil
}

// guard is what every call passes.
type guard struct {
	dev      bool
	waiting  bool // there is no control plane yet
	log      hclog.Logger
	limiters *limiters
	metrics  *metrics
	parsing  parsing

	sendTimeout time.Duration
}

// admit identifies the caller and looks the call up.
func (g *guard) admit(ctx context.Context, method string) (context.Context, Rule, error) {
	who, err := g.identify(ctx)
	if err != nil {
		return ctx, Rule{}, err
	}
	rule, ok := Policy[method]
	if !ok || rule.DevOnly && !g.dev || !who.may(rule.Roles) {
		return ctx, rule, status.Error(codes.PermissionDenied, "this identity may not call this method")
	}
	if g.waiting && needsStore(method) {
		return ctx, rule, status.Error(codes.Unavailable, "this host waits for its store; its log and status say why: try another host, or again later")
	}
	if wait := g.limiters.take(method, who.actor, rule); wait > 0 {
		return ctx, rule, tooOften(rule, wait)
	}
	return context.WithValue(ctx, callerKey{}, who), rule, nil
}

// needsStore reports whether a method is of a service that a host serves once it has
// its store.
func needsStore(method string) bool {
	for _, service := range []grpc.ServiceDesc{donav1.ControlPlane_ServiceDesc, controlplanev1.CheckerControlPlane_ServiceDesc} {
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
	ctx, rule, err := g.admit(ctx, info.FullMethod)
	if err != nil {
		return nil, err
	}
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
	ctx, rule, err := g.admit(ss.Context(), info.FullMethod)
	if err != nil {
		return err
	}
	return answer(g.log, info.FullMethod, handler(srv, &guarded{ss, ctx, rule, g.parsing, g.sendTimeout}))
}

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
	if err := s.ServerStream.RecvMsg(m); err != nil {
		return err
	}
	return s.parsing.take(m).judge(s.rule.MaxBytes)
}
