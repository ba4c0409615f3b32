// Package grpc is the built-in probe "grpc": an endpoint is well when its
// grpc.health.v1 service says SERVING. sdk/plugin serves [Probe].
package grpc

import (
	"context"
	"net"
	"sync"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"

	"github.com/dodona-project/dodona/builtin/probe/internal/reach"
	controlplanev1 "github.com/dodona-project/dodona/proto/controlplane/v1"
	pluginv1 "github.com/dodona-project/dodona/proto/plugin/v1"
	"github.com/dodona-project/dodona/sdk/plugin"
)

// Name is the plugin's name.
const Name = "grpc"

// Config is what a policy's probe_config may hold.
type Config struct {
	Service string     `json:"service,omitempty" jsonschema:"maxLength=256,description=service that is asked for; empty = the server as a whole"`
	TLS     *reach.TLS `json:"tls,omitempty" jsonschema:"description=speak TLS; an empty object is enough"`
	Allow   []string   `json:"allow,omitempty" jsonschema:"enum=loopback,enum=link-local,enum=metadata,description=addresses that may be checked although they are refused by default"`
}

// Probe implements the plugin.
type Probe struct {
	Resolver reach.Resolver // nil = the system's
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
	if _, _, err := reach.SplitAddress(req.GetEndpointAddress()); err != nil {
		return reach.Failed(ctx, err)
	}
	door := &door{dialer: reach.Dialer{Policy: reach.Allowing(c.Allow), Resolver: p.Resolver}}
	secure := insecure.NewCredentials()
	if c.TLS != nil {
		secure = &watched{TransportCredentials: credentials.NewTLS(c.TLS.Client(req.GetEndpointAddress())), door: door}
	}
	conn, err := grpc.NewClient("passthrough:///"+req.GetEndpointAddress(),
		grpc.WithTransportCredentials(secure), grpc.WithContextDialer(door.dial),
		grpc.WithDisableRetry(), grpc.WithDisableServiceConfig(), grpc.WithMaxHeaderListSize(reach.MaxBytes),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(reach.MaxBytes)),
	)
	if err != nil {
		return reach.Failed(ctx, err)
	}
	defer func() { _ = conn.Close() }()
	reply, err := grpc_health_v1.NewHealthClient(conn).Check(ctx, &grpc_health_v1.HealthCheckRequest{Service: c.Service})
	switch code := status.Code(err); {
	case code == codes.OK && reply.GetStatus() == grpc_health_v1.HealthCheckResponse_SERVING:
		return reach.Good(0, "SERVING")
	case code == codes.OK:
		return reach.Bad(controlplanev1.ErrorClass_ERROR_CLASS_TARGET_STATUS, "it says %s", reply.GetStatus())
	case ctx.Err() != nil:
		return reach.Failed(ctx, ctx.Err())
	case door.failure() != nil:
		return reach.Failed(ctx, door.failure())
	case code == codes.DeadlineExceeded: // the server was told of it, and may notice first
		return reach.Bad(controlplanev1.ErrorClass_ERROR_CLASS_TIMEOUT, "no answer in time")
	case code == codes.Unimplemented:
		return reach.Bad(controlplanev1.ErrorClass_ERROR_CLASS_PROTOCOL, "it has no grpc.health.v1 service")
	case code == codes.NotFound:
		return reach.Bad(controlplanev1.ErrorClass_ERROR_CLASS_TARGET_STATUS, "it does not know the service %.128q", c.Service)
	case code == codes.Unavailable, code == codes.Internal, code == codes.Unknown:
		return reach.Bad(controlplanev1.ErrorClass_ERROR_CLASS_PROTOCOL, "%s", status.Convert(err).Message())
	default:
		return reach.Bad(controlplanev1.ErrorClass_ERROR_CLASS_TARGET_STATUS, "it answers %s: %s", code, status.Convert(err).Message())
	}
}

// door dials and remembers why it could not: gRPC makes a text of it.
type door struct {
	dialer reach.Dialer
	mu     sync.Mutex
	err    error
}

func (d *door) dial(ctx context.Context, address string) (net.Conn, error) {
	conn, err := d.dialer.Dial(ctx, address)
	d.note(err)
	return conn, err
}

func (d *door) note(err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.err = err
}

func (d *door) failure() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.err
}

// watched remembers why a handshake failed.
type watched struct {
	credentials.TransportCredentials
	door *door
}

func (w *watched) ClientHandshake(ctx context.Context, authority string, raw net.Conn) (net.Conn, credentials.AuthInfo, error) {
	conn, info, err := w.TransportCredentials.ClientHandshake(ctx, authority, raw)
	if err != nil {
		w.door.note(err)
	}
	return conn, info, err
}

func (w *watched) Clone() credentials.TransportCredentials {
	return &watched{TransportCredentials: w.TransportCredentials.Clone(), door: w.door}
}
