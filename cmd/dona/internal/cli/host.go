package cli

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/resolver"
	"google.golang.org/grpc/resolver/manual"

	controlplanev1 "github.com/dodona-project/dodona/proto/controlplane/v1"
	donav1 "github.com/dodona-project/dodona/proto/dona/v1"
	"github.com/dodona-project/dodona/sdk/dona"
)

const (
	defaultHost = "127.0.0.1:7600"
	// maxMessage is what the host may send at once; a status holds a snapshot.
	maxMessage = 8 << 20
)

// connection is to the first host of the target that answers the door, and to the
// next one when it breaks.
type connection struct {
	ctx     context.Context // the command's: ends at an interrupt
	conn    *grpc.ClientConn
	control donav1.ControlPlaneClient
	admin   donav1.HostAdminClient
	pool    controlplanev1.PoolAdminClient
	target  string
	timeout time.Duration
	secured bool   // with an identity
	done    func() // ends the use of it

	addresses []string // of the target

	mu        sync.Mutex
	dialErrs  map[string]error // by address: of the newest attempt; none after one that worked
	handshake error            // of the newest attempt; nil after one that worked
}

// hostAddress is what --host, DONA_HOST or the default says.
func (a *app) hostAddress() (string, error) {
	if a.target != "" {
		if _, err := dona.ParseTarget(a.target); err != nil {
			return "", usage("--host %v", err)
		}
		return a.target, nil
	}
	if env := a.getenv("DONA_HOST"); env != "" {
		if _, err := dona.ParseTarget(env); err != nil {
			return "", configuration("DONA_HOST %v", err)
		}
		return env, nil
	}
	return defaultHost, nil
}

// connect opens the connection and waits until it stands, so that a host that
// is away is told from one that refuses. Of several hosts it takes the first that
// can be reached, in their order.
func (a *app) connect(ctx context.Context) (*connection, error) {
	target, err := a.hostAddress()
	if err != nil {
		return nil, err
	}
	if a.timeout <= 0 {
		return nil, usage("--timeout is %s: allowed is more than 0, such as 10s", a.timeout)
	}
	c := &connection{ctx: ctx, target: target, timeout: a.timeout, dialErrs: map[string]error{}}
	creds, done, err := a.secure()
	if err != nil {
		return nil, err
	}
	c.done, c.secured = done, creds.Info().SecurityProtocol == "tls"
	if c.addresses, err = dona.ParseTarget(target); err != nil {
		return nil, usage("--host %v", err)
	}
	// The default policy goes through the addresses in turn, now and whenever the
	// connection breaks, and does not wait long for one that is silent.
	all := manual.NewBuilderWithScheme("dona")
	var found resolver.State
	for _, address := range c.addresses {
		found.Addresses = append(found.Addresses, resolver.Address{Addr: address, ServerName: address})
	}
	all.InitialState(found)
	c.conn, err = grpc.NewClient(all.Scheme()+":///hosts",
		grpc.WithResolvers(all),
		grpc.WithTransportCredentials(noting{creds, c}),
		grpc.WithContextDialer(c.dial),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxMessage), grpc.MaxCallSendMsgSize(maxMessage)),
		grpc.WithConnectParams(grpc.ConnectParams{
			Backoff:           backoff.Config{BaseDelay: 200 * time.Millisecond, Multiplier: 1.6, Jitter: 0.2, MaxDelay: time.Second},
			MinConnectTimeout: time.Second,
		}))
	if err != nil {
		return nil, usage("--host is %q: %v", target, err)
	}
	c.control, c.admin, c.pool = donav1.NewControlPlaneClient(c.conn), donav1.NewHostAdminClient(c.conn), controlplanev1.NewPoolAdminClient(c.conn)
	if err := c.stand(); err != nil {
		c.close()
		return nil, err
	}
	return c, nil
}

func (c *connection) close() {
	_ = c.conn.Close()
	c.done()
}

// noting notes why a handshake failed, as dial does of what comes before it.
type noting struct {
	credentials.TransportCredentials
	c *connection
}

func (n noting) ClientHandshake(ctx context.Context, authority string, raw net.Conn) (net.Conn, credentials.AuthInfo, error) {
	conn, info, err := n.TransportCredentials.ClientHandshake(ctx, authority, raw)
	n.c.mu.Lock()
	defer n.c.mu.Unlock()
	if n.c.handshake = nil; err != nil && ctx.Err() == nil {
		n.c.handshake = err
	}
	return conn, info, err
}

func (n noting) Clone() credentials.TransportCredentials {
	return noting{n.TransportCredentials.Clone(), n.c}
}

// dial notes why it failed: gRPC keeps that to itself.
func (c *connection) dial(ctx context.Context, address string) (net.Conn, error) {
	conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", address)
	c.mu.Lock()
	defer c.mu.Unlock()
	if delete(c.dialErrs, address); err != nil {
		c.dialErrs[address] = err
	}
	return conn, err
}

// stand waits until a host has taken the connection, or none has.
func (c *connection) stand() error {
	ctx, cancel := context.WithTimeout(c.ctx, c.timeout)
	defer cancel()
	c.conn.Connect()
	for {
		switch state := c.conn.GetState(); state {
		case connectivity.Ready:
			return nil
		case connectivity.TransientFailure, connectivity.Shutdown:
			why := c.away()
			if why == "" {
				why = c.stranger()
			}
			return failed("AWAY", "%s", why)
		default:
			if !c.conn.WaitForStateChange(ctx, state) {
				if c.ctx.Err() != nil {
					return c.ctx.Err()
				}
				return failed("AWAY", "no host answers at %s within %s; name another with --host or DONA_HOST", c.target, c.timeout)
			}
		}
	}
}

// stranger says that what answers and this program do not understand each other.
func (c *connection) stranger() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.secured && c.handshake != nil:
		return fmt.Sprintf("what listens at %s does not prove to be a host of this identity's trust domain, or does not take the identity (%v)", c.target, c.handshake)
	case c.secured:
		return fmt.Sprintf("the host at %s does not take this identity: has it expired, or is it of another trust domain?", c.target)
	}
	return fmt.Sprintf("what listens at %s is no Dodona host, or one that wants an identity (--identity or DONA_IDENTITY); name another with --host or DONA_HOST", c.target)
}

// away says that no host is there and what to do about it; "" = the last
// attempt to connect to one of them worked.
func (c *connection) away() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	var all []string
	for _, address := range c.addresses {
		why := c.dialErrs[address]
		if why == nil {
			return ""
		}
		var op *net.OpError
		if errors.As(why, &op) {
			why = op.Err
		}
		all = append(all, fmt.Sprintf("%s (%v)", address, why))
	}
	return fmt.Sprintf("no host at %s; start one with \"dona-host --dev\", or name another with --host or DONA_HOST", strings.Join(all, ", "))
}

// call makes one unary call within the timeout.
func call[Q, R any](c *connection, operation string, rpc func(context.Context, Q, ...grpc.CallOption) (R, error), request Q) (R, error) {
	ctx, cancel := context.WithTimeout(c.ctx, c.timeout)
	defer cancel()
	reply, err := rpc(ctx, request)
	if err != nil {
		return reply, c.refused(operation, err)
	}
	return reply, nil
}

// withHost runs do with a connection and closes it.
func (a *app) withHost(ctx context.Context, do func(*connection) error) error {
	c, err := a.connect(ctx)
	if err != nil {
		return err
	}
	defer c.close()
	return do(c)
}

func (c *connection) status(service string) (*donav1.StatusReply, error) {
	return call(c, "status of "+service, c.control.GetStatus, &donav1.GetStatusRequest{Service: service})
}
