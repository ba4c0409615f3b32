// Package link makes the gRPC connections of a client to control-plane hosts, one for
// each address, all with the same limits and pings, and waits until one can be used. A
// host that cannot be reached is found here, fast, and not by a call that waits.
package link

import (
	"context"
	"errors"
	"fmt"
	"net"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/keepalive"
)

const (
	window         = 2 << 20 // flow control of a stream and a connection, fixed: no probing pings
	maxFrame       = 8 << 20
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

var (
	// ErrAway says that a host cannot be reached.
	ErrAway = errors.New("cannot be reached")
	// ErrClosed says that the connection was closed by its owner.
	ErrClosed = errors.New("the connection is closed")
)

// Options are what connections of a client differ in.
type Options struct {
	Credentials credentials.TransportCredentials
	// Dialer replaces how connections are opened; nil = by TCP.
	Dialer func(context.Context, string) (net.Conn, error)
}

// New makes the connection to host:port. It is opened when it is first waited for.
func New(address string, o Options) (*grpc.ClientConn, error) {
	opts := []grpc.DialOption{
		grpc.WithTransportCredentials(o.Credentials),
		grpc.WithStaticStreamWindowSize(window),
		grpc.WithStaticConnWindowSize(window),
		grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: keepaliveEvery, Timeout: keepaliveWait, PermitWithoutStream: true}),
		grpc.WithConnectParams(grpc.ConnectParams{
			// Streams come back by their own jitter and reset this one. Without them
			// a host that is away is hardly dialed.
			Backoff:           backoff.Config{BaseDelay: ownRedial, Multiplier: 1, Jitter: 0.2, MaxDelay: ownRedial},
			MinConnectTimeout: connectTimeout,
		}),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxFrame)),
		grpc.WithDisableServiceConfig(),
		grpc.WithIdleTimeout(0),
	}
	target := "dns:///" + address
	if o.Dialer != nil {
		opts = append(opts, grpc.WithContextDialer(o.Dialer))
		target = "passthrough:///" + address
	}
	return grpc.NewClient(target, opts...)
}

// Ready returns once a connection can be used. It waits less when there is another host
// to ask. The error is ErrAway, or ErrClosed.
func Ready(ctx context.Context, conn *grpc.ClientConn, another bool) error {
	patience := connectTimeout
	if another {
		patience = otherTimeout
	}
	state := conn.GetState()
	if state == connectivity.TransientFailure {
		// From here gRPC shows no new attempt, only its success. What takes longer
		// goes on in the background and serves the next try.
		patience = min(patience, reconnectTimeout)
		conn.ResetConnectBackoff()
	}
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	for failed := state == connectivity.TransientFailure; ; state = conn.GetState() {
		switch state {
		case connectivity.Ready:
			return nil
		case connectivity.Idle:
			conn.Connect()
		case connectivity.TransientFailure:
			if !failed {
				return ErrAway
			}
		case connectivity.Shutdown:
			return ErrClosed
		}
		if !conn.WaitForStateChange(ctx, state) {
			return fmt.Errorf("%w: %w", ErrAway, ctx.Err())
		}
	}
}
