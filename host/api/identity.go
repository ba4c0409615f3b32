package api

import (
	"context"
	"time"

	donav1 "github.com/dodona-project/dodona/proto/dona/v1"

	"github.com/dodona-project/dodona/host/identity"
	"github.com/dodona-project/dodona/host/refusal"
)

// issuer is the host's, or a refusal that says why there is none.
func (s *HostAdmin) issuer() (*identity.Issuer, error) {
	switch {
	case s.Identities != nil:
		return s.Identities, nil
	case s.Sessions == nil:
		return nil, &refusal.Error{Kind: refusal.Unavailable, Reason: "store", Text: "this host waits for its store; its log and status say why: try another host, or again later"}
	}
	return nil, refusal.New(refusal.Precondition, "this host issues no identities: start it with bootstrap.listen set, such as --bootstrap-listen 127.0.0.1:7601")
}

// CreateToken makes a token for one identity. Its text is in this answer and nowhere
// else.
func (s *HostAdmin) CreateToken(ctx context.Context, req *donav1.CreateTokenRequest) (*donav1.CreateTokenReply, error) {
	issuer, err := s.issuer()
	if err != nil {
		return nil, err
	}
	token, err := issuer.CreateToken(ctx, actor(ctx), identity.TokenRequest{
		Service: req.Service, Path: req.Path, TTL: time.Duration(req.TtlSeconds) * time.Second, Uses: req.Uses,
	})
	if err != nil {
		return nil, err
	}
	return &donav1.CreateTokenReply{Token: token.Text, TokenId: token.ID, ExpiresUnix: token.Expires.Unix()}, nil
}

// RevokeToken takes a token away; what was issued for it stays valid until it expires.
func (s *HostAdmin) RevokeToken(ctx context.Context, req *donav1.RevokeTokenRequest) (*donav1.RevokeTokenReply, error) {
	issuer, err := s.issuer()
	if err != nil {
		return nil, err
	}
	return &donav1.RevokeTokenReply{}, issuer.RevokeToken(ctx, actor(ctx), req.TokenId)
}

// RolloverCA takes one step from an authority to the next.
func (s *HostAdmin) RolloverCA(ctx context.Context, req *donav1.RolloverCARequest) (*donav1.CAStatus, error) {
	step, known := map[donav1.RolloverCARequest_Step]func(*identity.Issuer, context.Context, string) (identity.Authorities, error){
		donav1.RolloverCARequest_STEP_PREPARE:  (*identity.Issuer).Prepare,
		donav1.RolloverCARequest_STEP_ACTIVATE: (*identity.Issuer).Activate,
		donav1.RolloverCARequest_STEP_RETIRE:   (*identity.Issuer).Retire,
		donav1.RolloverCARequest_STEP_DROP:     (*identity.Issuer).Drop,
	}[req.Step]
	if !known {
		return nil, refusal.Field("step", "is %d: allowed are STEP_PREPARE, STEP_ACTIVATE, STEP_RETIRE and STEP_DROP", int32(req.Step))
	}
	issuer, err := s.issuer()
	if err != nil {
		return nil, err
	}
	a, err := step(issuer, ctx, actor(ctx))
	if err != nil {
		return nil, err
	}
	return caStatus(a), nil
}

func caStatus(a identity.Authorities) *donav1.CAStatus {
	s := &donav1.CAStatus{ActiveKeyId: a.Active, PreparedKeyId: a.Prepared, OldKeyId: a.Old}
	if a.Old != "" {
		s.OldLastLeafExpiresUnix = a.OldUntil.Unix()
	}
	return s
}

// renewals serves dona.v1.Identity to callers that have an SVID already.
type renewals struct {
	donav1.UnimplementedIdentityServer
	host *HostAdmin
}

// IssueSvid issues the caller's next SVID, for the identity that it has.
func (r *renewals) IssueSvid(ctx context.Context, req *donav1.IssueSvidRequest) (*donav1.IssueSvidResponse, error) {
	if req.BootstrapToken != "" {
		return nil, refusal.Field("bootstrap_token", "is set: tokens are taken at the bootstrap listener, here the caller's own SVID stands for one")
	}
	caller := who(ctx).id
	if caller.Kind == "" {
		return nil, refusal.New(refusal.Precondition, "the caller has no SVID to renew: get the first one for a token, at the bootstrap listener")
	}
	issuer, err := r.host.issuer()
	if err != nil {
		return nil, err
	}
	s, err := issuer.Renew(ctx, caller, identity.Request{Service: req.Service, Path: req.Path, CSR: req.CsrPem})
	if err != nil {
		return nil, err
	}
	return reply(s), nil
}

// reply is an SVID as it is sent.
func reply(s *identity.SVID) *donav1.IssueSvidResponse {
	return &donav1.IssueSvidResponse{SpiffeId: s.ID.String(), CertPem: s.Cert, KeyPem: s.Key, BundlePem: s.Bundle, ExpiresUnix: s.Expires.Unix()}
}
