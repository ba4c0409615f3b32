package dona

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	donav1 "github.com/dodona-project/dodona/proto/dona/v1"
	"github.com/dodona-project/dodona/sdk/internal/hosts"
	"github.com/dodona-project/dodona/sdk/internal/link"
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
	return link.New(address, link.Options{Credentials: o.credentials, Dialer: o.dialer})
}

// api returns a host's control plane once it is connected, with less patience when there
// is another one to ask.
func (c *Client) api(ctx context.Context, h *host) (donav1.ControlPlaneClient, error) {
	switch err := link.Ready(ctx, h.conn, c.another(h)); {
	case errors.Is(err, link.ErrClosed):
		return nil, ErrClosed
	case err != nil:
		return nil, err
	}
	return donav1.NewControlPlaneClient(h.conn), nil
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
	case errors.Is(err, link.ErrAway), errors.Is(err, errSilent), errors.Is(err, errBehind):
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
