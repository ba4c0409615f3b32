package dona

import (
	"context"
	"fmt"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/keepalive"

	donav1 "github.com/dodona-project/dodona/proto/dona/v1"
)

const (
	window         = 2 << 20 // flow control of a stream and a connection, fixed: no probing pings
	maxWatchFrame  = 8 << 20
	keepaliveEvery = 30 * time.Second
	keepaliveWait  = 10 * time.Second
	connectTimeout = 5 * time.Second

	// reconnectTimeout bounds the wait for a host that failed before.
	reconnectTimeout = time.Second
)

// shared holds the plaintext connections of this process by address: streams on
// one connection cost a host a fraction of what connections cost.
var shared = struct {
	sync.Mutex
	byAddress map[string]*sharedConn
}{byAddress: map[string]*sharedConn{}}

type sharedConn struct {
	conn  *grpc.ClientConn
	users int
}

// connect returns the connection to one host. It is made when it is first used.
func connect(address string, o *options) (*host, error) {
	if o.private {
		conn, err := newConn(address, o)
		if err != nil {
			return nil, err
		}
		return &host{address: address, conn: conn, release: conn.Close}, nil
	}
	shared.Lock()
	defer shared.Unlock()
	s := shared.byAddress[address]
	if s == nil {
		conn, err := newConn(address, o)
		if err != nil {
			return nil, err
		}
		s = &sharedConn{conn: conn}
		shared.byAddress[address] = s
	}
	s.users++
	return &host{address: address, conn: s.conn, release: func() error {
		shared.Lock()
		defer shared.Unlock()
		if s.users--; s.users > 0 {
			return nil
		}
		delete(shared.byAddress, address)
		return s.conn.Close()
	}}, nil
}

func newConn(address string, o *options) (*grpc.ClientConn, error) {
	opts := []grpc.DialOption{
		grpc.WithTransportCredentials(o.credentials),
		grpc.WithStaticStreamWindowSize(window),
		grpc.WithStaticConnWindowSize(window),
		grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: keepaliveEvery, Timeout: keepaliveWait, PermitWithoutStream: true}),
		grpc.WithConnectParams(grpc.ConnectParams{
			// Streams come back by their own jitter and reset this one.
			Backoff:           backoff.Config{BaseDelay: time.Second, Multiplier: 1.6, Jitter: 0.2, MaxDelay: 10 * time.Second},
			MinConnectTimeout: connectTimeout,
		}),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxWatchFrame)),
		grpc.WithDisableServiceConfig(),
		grpc.WithIdleTimeout(0),
	}
	target := "dns:///" + address
	if o.dialer != nil {
		opts = append(opts, grpc.WithContextDialer(o.dialer))
		target = "passthrough:///" + address
	}
	return grpc.NewClient(target, opts...)
}

// api returns the host's control plane once it is connected: a host that cannot be
// reached is found here, fast, and not by a call that waits.
func (h *host) api(ctx context.Context) (donav1.ControlPlaneClient, error) {
	wait := connectTimeout
	state := h.conn.GetState()
	if state == connectivity.TransientFailure {
		// From here gRPC shows no new attempt, only its success. What takes longer
		// goes on in the background and serves the next try.
		wait = reconnectTimeout
		h.conn.ResetConnectBackoff()
	}
	ctx, cancel := context.WithTimeout(ctx, wait)
	defer cancel()
	for failed := state == connectivity.TransientFailure; ; state = h.conn.GetState() {
		switch state {
		case connectivity.Ready:
			return donav1.NewControlPlaneClient(h.conn), nil
		case connectivity.Idle:
			h.conn.Connect()
		case connectivity.TransientFailure:
			if !failed {
				return nil, fmt.Errorf("host %s cannot be reached", h.address)
			}
		case connectivity.Shutdown:
			return nil, ErrClosed
		}
		if !h.conn.WaitForStateChange(ctx, state) {
			return nil, fmt.Errorf("host %s cannot be reached: %w", h.address, ctx.Err())
		}
	}
}

// pickHost returns the n-th host to try, beginning with one that worked.
func (c *Client) pickHost(n int) *host {
	return c.hosts[(int(c.first.Load())+n)%len(c.hosts)]
}

// worked remembers that a host answered.
func (c *Client) worked(h *host) {
	for i, known := range c.hosts {
		if known == h {
			c.first.Store(int64(i))
		}
	}
}

// sendReport delivers one batch to the n-th host.
func (c *Client) sendReport(ctx context.Context, try int, batch *donav1.StatsBatch) (*donav1.ReportAck, error) {
	api, err := c.pickHost(try).api(ctx)
	if err != nil {
		return nil, err
	}
	return api.ReportStats(ctx, batch)
}

// sleep waits for d and reports whether ctx still lives.
func sleep(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}
