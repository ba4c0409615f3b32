package dona

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/status"

	donav1 "github.com/dodona-project/dodona/proto/dona/v1"
	"github.com/dodona-project/dodona/sdk/dona/internal/hosts"
)

const (
	window         = 2 << 20 // flow control of a stream and a connection, fixed: no probing pings
	maxWatchFrame  = 8 << 20
	keepaliveEvery = 30 * time.Second
	keepaliveWait  = 10 * time.Second
	connectTimeout = 5 * time.Second

	// ownRedial is how often gRPC dials by itself what could not be reached.
	ownRedial = 30 * time.Second

	// otherTimeout bounds the wait for a host when there is another one to ask.
	otherTimeout = 2 * time.Second

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
			// Streams come back by their own jitter and reset this one. Without them
			// a host that is away is hardly dialed.
			Backoff:           backoff.Config{BaseDelay: ownRedial, Multiplier: 1, Jitter: 0.2, MaxDelay: ownRedial},
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

// errAway says that a host cannot be reached.
var errAway = errors.New("cannot be reached")

// api returns the host's control plane once it is connected: a host that cannot be
// reached is found here, fast, and not by a call that waits. patience bounds the
// wait for a host that nothing is known of.
func (h *host) api(ctx context.Context, patience time.Duration) (donav1.ControlPlaneClient, error) {
	state := h.conn.GetState()
	if state == connectivity.TransientFailure {
		// From here gRPC shows no new attempt, only its success. What takes longer
		// goes on in the background and serves the next try.
		patience = min(patience, reconnectTimeout)
		h.conn.ResetConnectBackoff()
	}
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	for failed := state == connectivity.TransientFailure; ; state = h.conn.GetState() {
		switch state {
		case connectivity.Ready:
			return donav1.NewControlPlaneClient(h.conn), nil
		case connectivity.Idle:
			h.conn.Connect()
		case connectivity.TransientFailure:
			if !failed {
				return nil, errAway
			}
		case connectivity.Shutdown:
			return nil, ErrClosed
		}
		if !h.conn.WaitForStateChange(ctx, state) {
			return nil, fmt.Errorf("%w: %w", errAway, ctx.Err())
		}
	}
}

// api connects to a host, with less patience when there is another one to ask.
func (c *Client) api(ctx context.Context, h *host) (donav1.ControlPlaneClient, error) {
	patience := connectTimeout
	if c.another(h) {
		patience = otherTimeout
	}
	return h.api(ctx, patience)
}

// next returns the host to ask now. avoid is the place of the one that just failed
// the caller, or hosts.None.
func (c *Client) next(avoid int) *host { return c.hosts[c.health.Next(avoid, time.Now())] }

// another reports whether there is a host besides h that nothing speaks against.
func (c *Client) another(h *host) bool { return c.health.Another(h.place, time.Now()) == 0 }

// note remembers what an attempt says of its host. An error that is about the
// request, or about one stream, says nothing.
func (c *Client) note(h *host, err error) {
	switch {
	case err == nil:
		c.health.Worked(h.place)
		return
	case errors.Is(err, errAway), errors.Is(err, errSilent), errors.Is(err, errBehind):
	case status.Code(err) == codes.Unavailable, status.Code(err) == codes.DeadlineExceeded:
	default:
		return
	}
	c.health.Failed(h.place, time.Now())
}

// stay calls leave when the host gives no answer to a call, from a goroutine of its
// own, unless stop was called before. A host that stands still keeps its streams, and
// pings find that only after 40 s.
func (h *host) stay(leave func()) (stop func() bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.trusted == nil {
		h.trusted, h.doubted = context.WithCancel(context.Background())
	}
	return context.AfterFunc(h.trusted, leave)
}

// doubt has all who stay with the host told.
func (h *host) doubt() {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.trusted != nil {
		h.doubted()
		h.trusted, h.doubted = nil, nil
	}
}

// stay has a stream to h end with errSilent when h has let a call wait for too long
// and there is another host.
func (c *Client) stay(h *host, cancel context.CancelCauseFunc) (stop func() bool) {
	return h.stay(func() {
		if c.another(h) {
			cancel(errSilent)
		}
	})
}

// ask makes calls that change nothing on one host, and on the next ones when it
// cannot serve. The error is the last host's, and names it.
func (c *Client) ask(ctx context.Context, calls func(context.Context, donav1.ControlPlaneClient) error) (*host, error) {
	for avoid, tries := hosts.None, 0; ; {
		h := c.next(avoid)
		api, err := c.api(ctx, h)
		if err == nil {
			err = calls(ctx, api)
		}
		if ctx.Err() != nil {
			return h, ctx.Err()
		}
		c.note(h, err)
		if err == nil {
			return h, nil
		}
		if avoid, tries = h.place, tries+1; tries >= len(c.hosts) || !c.another(h) {
			return h, fmt.Errorf("host %s: %w", h.address, err)
		}
	}
}

// sendReport delivers one batch, each try after the first to another host: what
// hosts know of a reporter they share, so a batch counts once wherever it arrives.
func (c *Client) sendReport(ctx context.Context, try int, batch *donav1.StatsBatch) (*donav1.ReportAck, error) {
	if try == 0 {
		c.reported = hosts.None
	}
	h := c.next(c.reported)
	c.reported = h.place
	api, err := c.api(ctx, h)
	if err != nil {
		c.note(h, err)
		return nil, fmt.Errorf("host %s: %w", h.address, err)
	}
	ack, err := api.ReportStats(ctx, batch)
	c.note(h, err)
	if status.Code(err) == codes.DeadlineExceeded {
		h.doubt()
	}
	return ack, err
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
