// Package tls is the built-in probe "tls": an endpoint is well when it completes a
// handshake with a certificate that is trusted, of the right name, and not about to
// expire. sdk/plugin serves [Probe].
package tls

import (
	"context"
	"crypto/tls"
	"fmt"
	"time"

	"github.com/dodona-project/dodona/builtin/probe/internal/reach"
	controlplanev1 "github.com/dodona-project/dodona/proto/controlplane/v1"
	pluginv1 "github.com/dodona-project/dodona/proto/plugin/v1"
	"github.com/dodona-project/dodona/sdk/plugin"
)

// Name is the plugin's name.
const Name = "tls"

// Config is what a policy's probe_config may hold.
type Config struct {
	reach.TLS
	MinDays int      `json:"min_days,omitempty" jsonschema:"minimum=0,maximum=3650,description=days that every certificate of the chain has to be valid for from now on"`
	Allow   []string `json:"allow,omitempty" jsonschema:"enum=loopback,enum=link-local,enum=metadata,description=addresses that may be checked although they are refused by default"`
}

// Probe implements the plugin.
type Probe struct {
	Resolver reach.Resolver   // nil = the system's
	Now      func() time.Time // nil = time.Now
}

// Configure refuses what the schema cannot see.
func (Probe) Configure(_ context.Context, c Config) error {
	if err := c.TLS.Check(); err != nil {
		return err
	}
	return reach.CheckAllow(c.Allow)
}

// Check checks by the configuration of the instance that is called.
func (p Probe) Check(ctx context.Context, req *pluginv1.CheckRequest) (*pluginv1.CheckReply, error) {
	config, _ := plugin.Config[Config](ctx)
	return p.CheckWith(ctx, config, req), nil
}

// CheckWith makes one check before ctx ends.
func (p Probe) CheckWith(ctx context.Context, c Config, req *pluginv1.CheckRequest) *pluginv1.CheckReply {
	now := time.Now
	if p.Now != nil {
		now = p.Now
	}
	raw, err := reach.Dialer{Policy: reach.Allowing(c.Allow), Resolver: p.Resolver}.Dial(ctx, req.GetEndpointAddress())
	if err != nil {
		return reach.Failed(ctx, err)
	}
	defer func() { _ = raw.Close() }()
	settings := c.Client(req.GetEndpointAddress())
	settings.Time = now
	conn := tls.Client(raw, settings)
	if err := conn.HandshakeContext(ctx); err != nil {
		return reach.Failed(ctx, err)
	}
	// The chain that is sent, or the one that was built where it was verified: a
	// client follows that one.
	chain := conn.ConnectionState().PeerCertificates
	if verified := conn.ConnectionState().VerifiedChains; len(verified) > 0 {
		chain = verified[0]
	}
	left := time.Duration(1<<63 - 1)
	for _, cert := range chain {
		if now().Before(cert.NotBefore) {
			return reach.Bad(controlplanev1.ErrorClass_ERROR_CLASS_TLS, "the certificate of %q is not valid before %s", cert.Subject.CommonName, date(cert.NotBefore))
		}
		valid := cert.NotAfter.Sub(now())
		left = min(left, valid)
		if valid < time.Duration(c.MinDays)*24*time.Hour || valid <= 0 {
			return reach.Bad(controlplanev1.ErrorClass_ERROR_CLASS_TLS, "the certificate of %q expires %s: asked for are %d days from now", cert.Subject.CommonName, date(cert.NotAfter), c.MinDays)
		}
	}
	return reach.Good(0, fmt.Sprintf("valid for %d days more", int(left.Hours()/24)))
}

func date(t time.Time) string { return t.UTC().Format(time.RFC3339) }
