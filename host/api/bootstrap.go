package api

import (
	"context"
	"net"
	"runtime/debug"
	"time"

	donav1 "github.com/dodona-project/dodona/proto/dona/v1"
	"github.com/hashicorp/go-hclog"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"

	"github.com/dodona-project/dodona/host/identity"
)

const (
	bootstrapMessage = 64 << 10
	bootstrapWithin  = 10 * time.Second
)

var (
	// bootstrapRule bounds how often one address asks, bootstrapAll how often all do
	// together: whoever guesses gets nowhere, and a fleet that starts at once does.
	bootstrapRule = Rule{Rate: 20, Burst: 200}
	bootstrapAll  = Rule{Rate: 500, Burst: 2000}
)

// NewBootstrap returns the server where a workload without an identity gets its first
// one for a token. It serves dona.v1.Identity and nothing else, without TLS.
func NewBootstrap(issuer *identity.Issuer, log hclog.Logger) *grpc.Server {
	b := &bootstrap{issuer: issuer, log: log, limiters: newLimiters()}
	server := grpc.NewServer(
		grpc.ChainUnaryInterceptor(b.unary),
		grpc.MaxConcurrentStreams(32),
		grpc.MaxRecvMsgSize(bootstrapMessage),
		grpc.MaxHeaderListSize(8<<10),
		grpc.ConnectionTimeout(5*time.Second),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: 10 * time.Second, PermitWithoutStream: true}),
		grpc.KeepaliveParams(keepalive.ServerParameters{Time: 20 * time.Second, Timeout: 10 * time.Second, MaxConnectionIdle: time.Minute}),
	)
	donav1.RegisterIdentityServer(server, b)
	return server
}

type bootstrap struct {
	donav1.UnimplementedIdentityServer
	issuer   *identity.Issuer
	log      hclog.Logger
	limiters *limiters
}

// IssueSvid issues an SVID for one use of a token.
func (b *bootstrap) IssueSvid(ctx context.Context, req *donav1.IssueSvidRequest) (*donav1.IssueSvidResponse, error) {
	s, err := b.issuer.WithToken(ctx, req.BootstrapToken, identity.Request{Service: req.Service, Path: req.Path, CSR: req.CsrPem})
	if err != nil {
		return nil, err
	}
	return reply(s), nil
}

func (b *bootstrap) unary(ctx context.Context, req any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (resp any, err error) {
	defer func() {
		if p := recover(); p != nil {
			b.log.Error("a call panicked", "method", info.FullMethod, "panic", p, "stack", string(debug.Stack()))
			err = status.Error(codes.Internal, "the host failed; its log says why")
		}
	}()
	// One's own first: who is refused by that takes nothing from the others.
	for _, by := range []struct {
		who  string
		rule Rule
	}{{address(ctx), bootstrapRule}, {"everyone", bootstrapAll}} {
		if wait := b.limiters.take(info.FullMethod, by.who, by.rule); wait > 0 {
			return nil, tooOften(by.rule, wait)
		}
	}
	ctx, cancel := context.WithTimeout(ctx, bootstrapWithin)
	defer cancel()
	resp, err = handler(ctx, req)
	return resp, answer(b.log, info.FullMethod, err)
}

// address is where a call comes from, without the port.
func address(ctx context.Context) string {
	p, ok := peer.FromContext(ctx)
	if !ok {
		return ""
	}
	host, _, err := net.SplitHostPort(p.Addr.String())
	if err != nil {
		return p.Addr.String()
	}
	return host
}
