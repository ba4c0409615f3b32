// Package proxy is the built-in probe "proxy", for upstream proxies: whether one takes
// its credentials (BASIC), at which address its traffic leaves (EGRESS), and whether a
// routing's target can be reached through it (TARGET). It dials and shakes hands by
// sdk/worker/upstream, as the gateway does, so that what is checked is what is used.
// sdk/plugin serves [Probe].
package proxy

import (
	"context"
	"errors"
	"fmt"

	"github.com/dodona-project/dodona/builtin/probe/internal/reach"
	controlplanev1 "github.com/dodona-project/dodona/proto/controlplane/v1"
	pluginv1 "github.com/dodona-project/dodona/proto/plugin/v1"
	"github.com/dodona-project/dodona/sdk/plugin"
	"github.com/dodona-project/dodona/sdk/worker/target"
	"github.com/dodona-project/dodona/sdk/worker/upstream"
)

// Name is the plugin's name.
const Name = "proxy"

// DefaultBasicTarget is where a BASIC check asks for a tunnel to. The name exists
// nowhere (RFC 2606): a proxy that says so has taken the credentials before.
const DefaultBasicTarget = "dodona-check.invalid:443"

// Config is what an upstream's probe configuration may hold.
type Config struct {
	BasicTarget string     `json:"basic_target,omitempty" jsonschema:"maxLength=260,description=host:port to which a BASIC check asks for a tunnel; a name that does not exist by default"`
	ProxyTLS    *reach.TLS `json:"proxy_tls,omitempty" jsonschema:"description=TLS to HTTPS proxies"`
	TLS         *reach.TLS `json:"tls,omitempty" jsonschema:"description=TLS to https:// targets"`
	Allow       []string   `json:"allow,omitempty" jsonschema:"enum=loopback,enum=link-local,enum=metadata,description=addresses that may be checked although they are refused by default; of proxies and of targets"`
}

// Check says what is wrong with a configuration that the schema cannot see.
func (c Config) Check() error {
	if _, err := c.basicTarget(); err != nil {
		return fmt.Errorf("basic_target: %w", err)
	}
	if err := c.ProxyTLS.Check(); err != nil {
		return fmt.Errorf("proxy_tls: %w", err)
	}
	if err := c.TLS.Check(); err != nil {
		return fmt.Errorf("tls: %w", err)
	}
	return reach.CheckAllow(c.Allow)
}

func (c Config) basicTarget() (target.Target, error) {
	if c.BasicTarget == "" {
		return target.Parse(DefaultBasicTarget, 0)
	}
	return target.Parse(c.BasicTarget, 0)
}

// Probe implements the plugin.
type Probe struct {
	Resolver reach.Resolver // of proxies' names; nil = the system's
}

// Configure refuses what the schema cannot see.
func (Probe) Configure(_ context.Context, c Config) error { return c.Check() }

// Check checks by the configuration of the instance that is called.
func (p Probe) Check(ctx context.Context, req *pluginv1.CheckRequest) (*pluginv1.CheckReply, error) {
	config, _ := plugin.Config[Config](ctx)
	return p.CheckWith(ctx, config, req), nil
}

// CheckWith makes one check before ctx ends.
func (p Probe) CheckWith(ctx context.Context, c Config, req *pluginv1.CheckRequest) *pluginv1.CheckReply {
	if req.GetProxy() == nil {
		return reach.Unclear(controlplanev1.ErrorClass_ERROR_CLASS_POLICY, "this probe checks upstream proxies: for an endpoint choose http, tcp, grpc or tls")
	}
	via, err := upstream.Of(req.GetProxy(), req.GetCredential())
	if err != nil {
		return reach.Unclear(0, "the proxy cannot be dialled: %s", err)
	}
	k := &check{Config: c, policy: reach.Allowing(c.Allow), via: via}
	k.dialer = upstream.Dialer{TLS: c.ProxyTLS.Client(via.Address()), Allow: k.policy.Classes(), KeepAlive: -1, Resolver: p.Resolver}
	switch req.GetLevel() {
	case controlplanev1.CheckLevel_CHECK_LEVEL_BASIC:
		return k.basic(ctx)
	case controlplanev1.CheckLevel_CHECK_LEVEL_EGRESS:
		return k.egress(ctx, req)
	case controlplanev1.CheckLevel_CHECK_LEVEL_TARGET:
		return k.target(ctx, req)
	}
	return reach.Unclear(0, "level %s is not one that this probe knows", req.GetLevel())
}

// check is one check of one proxy.
type check struct {
	Config
	policy reach.Policy
	via    upstream.Proxy
	dialer upstream.Dialer
}

// basic shakes hands. Whether the target can be reached is not asked: a proxy that
// tried has taken the credentials.
func (k *check) basic(ctx context.Context) *pluginv1.CheckReply {
	to, err := k.basicTarget()
	if err != nil {
		return reach.Unclear(0, "config: basic_target: %s", err)
	}
	conn, err := k.dialer.Tunnel(ctx, k.via, to)
	var e *upstream.Error
	switch {
	case err == nil:
		_ = conn.Close()
		return reach.Good(0, "it opens a tunnel")
	case errors.As(err, &e) && e.Target:
		return reach.Good(0, fmt.Sprintf("it takes requests; %s", e.Err))
	}
	return failed(ctx, err)
}

// failed says what an error comes to on the way through a proxy.
func failed(ctx context.Context, err error) *pluginv1.CheckReply {
	var e *upstream.Error
	if !errors.As(err, &e) {
		return reach.Failed(ctx, err)
	}
	var refused *target.Refusal
	switch {
	case errors.As(err, &refused):
		return reach.Unclear(e.Class, "%s; allow its class in the probe's configuration or its environment (%s)", refused, reach.Variable)
	case errors.Is(ctx.Err(), context.Canceled):
		return reach.Unclear(controlplanev1.ErrorClass_ERROR_CLASS_CANCELED, "the check was given up")
	case e.Local:
		return reach.Unclear(e.Class, "the probe could not try: %s", e)
	case ctx.Err() != nil:
		return reach.Bad(controlplanev1.ErrorClass_ERROR_CLASS_TIMEOUT, "%s", e)
	}
	return reach.Bad(e.Class, "%s", e)
}
