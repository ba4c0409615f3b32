package cli

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strconv"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/credentials/insecure"

	donav1 "github.com/dodona-project/dodona/proto/dona/v1"
)

const (
	defaultHost = "127.0.0.1:7600"
	// maxMessage is what the host may send at once; a status holds a snapshot.
	maxMessage = 8 << 20
)

// connection is a host that answered the door.
type connection struct {
	ctx     context.Context // the command's: ends at an interrupt
	conn    *grpc.ClientConn
	control donav1.ControlPlaneClient
	admin   donav1.HostAdminClient
	target  string
	timeout time.Duration

	mu      sync.Mutex
	dialErr error // of the newest attempt; nil after one that worked
}

// hostAddress is what --host, DONA_HOST or the default says.
func (a *app) hostAddress() (string, error) {
	if a.target != "" {
		if err := checkHost(a.target); err != nil {
			return "", usage("--host %v", err)
		}
		return a.target, nil
	}
	if env := a.getenv("DONA_HOST"); env != "" {
		if err := checkHost(env); err != nil {
			return "", configuration("DONA_HOST %v", err)
		}
		return env, nil
	}
	return defaultHost, nil
}

func checkHost(target string) error {
	host, port, err := net.SplitHostPort(target)
	if n, perr := strconv.ParseUint(port, 10, 16); err != nil || host == "" || perr != nil || n == 0 {
		return fmt.Errorf("is %q: allowed is host:port, such as %s", target, defaultHost)
	}
	return nil
}

// connect opens the connection and waits until it stands, so that a host that
// is away is told from one that refuses.
func (a *app) connect(ctx context.Context) (*connection, error) {
	target, err := a.hostAddress()
	if err != nil {
		return nil, err
	}
	if a.timeout <= 0 {
		return nil, usage("--timeout is %s: allowed is more than 0, such as 10s", a.timeout)
	}
	c := &connection{ctx: ctx, target: target, timeout: a.timeout}
	c.conn, err = grpc.NewClient("passthrough:///"+target,
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(c.dial),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxMessage), grpc.MaxCallSendMsgSize(maxMessage)),
		grpc.WithConnectParams(grpc.ConnectParams{
			Backoff:           backoff.Config{BaseDelay: 200 * time.Millisecond, Multiplier: 1.6, Jitter: 0.2, MaxDelay: time.Second},
			MinConnectTimeout: time.Second,
		}))
	if err != nil {
		return nil, usage("--host is %q: %v", target, err)
	}
	c.control, c.admin = donav1.NewControlPlaneClient(c.conn), donav1.NewHostAdminClient(c.conn)
	if err := c.stand(); err != nil {
		c.close()
		return nil, err
	}
	return c, nil
}

func (c *connection) close() { _ = c.conn.Close() }

// dial notes why it failed: gRPC keeps that to itself.
func (c *connection) dial(ctx context.Context, address string) (net.Conn, error) {
	conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", address)
	c.mu.Lock()
	c.dialErr = err
	c.mu.Unlock()
	return conn, err
}

// stand waits for the first attempt to connect.
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
				why = fmt.Sprintf("what listens at %s is no Dodona host; name another with --host or DONA_HOST", c.target)
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

// away says that no host is there and what to do about it; "" = the last
// attempt to connect worked.
func (c *connection) away() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.dialErr == nil {
		return ""
	}
	why := c.dialErr
	var op *net.OpError
	if errors.As(why, &op) {
		why = op.Err
	}
	return fmt.Sprintf("no host at %s (%v); start one with \"dona-host --dev\", or name another with --host or DONA_HOST", c.target, why)
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
