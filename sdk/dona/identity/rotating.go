package identity

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/spiffe/go-spiffe/v2/bundle/x509bundle"
	"github.com/spiffe/go-spiffe/v2/spiffeid"
	"github.com/spiffe/go-spiffe/v2/svid/x509svid"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

const (
	lookAgain = time.Minute // at the clock: it may have been set, or the machine asleep
	leastWait = 200 * time.Millisecond
)

// Config says how an SVID is got and kept fresh.
type Config struct {
	Hosts     string // host:port, or several separated by commas: where it is renewed
	Bootstrap string // host:port of a bootstrap listener: where a token is taken
	Service   string // whose identity it is; or Path; neither: what the token grants
	Path      string

	// Token returns a token when one is needed: at the first start, and when the SVID
	// has run out because no host could renew it. nil: there has to be an SVID in Dir.
	Token func(ctx context.Context) (string, error)

	// Dir keeps the SVID in a folder, for the next start and for other programs; empty:
	// it is kept nowhere.
	Dir string

	Log *slog.Logger // nil: nowhere
}

// Rotating is an SVID that is kept fresh: it is renewed when half of its life is over,
// by hosts that know this side by the SVID that it has. When that fails it is tried
// again, and the SVID goes on to serve until it ends. It is a [Source]. Safe for
// concurrent use; Close it when done.
type Rotating struct {
	config Config
	now    atomic.Pointer[SVID]
	failed atomic.Pointer[error] // of the newest attempt; nil = it worked

	mu      sync.Mutex
	changed chan struct{} // closed when there is a new SVID

	cancel context.CancelFunc
	done   chan struct{}
}

// NewRotating returns once there is an SVID: the one in Config.Dir, if it is valid, or
// the first one for a token. It waits for a host until ctx ends; a host's no is
// returned at once.
func NewRotating(ctx context.Context, c Config) (*Rotating, error) {
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	r := &Rotating{config: c, changed: make(chan struct{}), done: make(chan struct{})}
	if err := r.first(ctx); err != nil {
		return nil, err
	}
	life, cancel := context.WithCancel(context.Background())
	r.cancel = cancel
	go func() { defer close(r.done); r.run(life) }()
	return r, nil
}

// Close ends the renewals. The SVID serves on until it ends.
func (r *Rotating) Close() {
	r.cancel()
	<-r.done
}

// Current returns the SVID, and a channel that is closed when there is another one.
func (r *Rotating) Current() (*SVID, <-chan struct{}) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.now.Load(), r.changed
}

// GetX509SVID implements x509svid.Source. An SVID that has ended is an error that says
// why there is no newer one.
func (r *Rotating) GetX509SVID() (*x509svid.SVID, error) {
	s := r.now.Load()
	if !time.Now().Before(s.Expires()) {
		err := fmt.Errorf("the SVID of %s has expired at %s", s.ID(), s.Expires().UTC().Format(time.RFC3339))
		if why := r.failed.Load(); why != nil {
			err = fmt.Errorf("%w, and could not be renewed: %w", err, *why)
		}
		return nil, err
	}
	return s.X509, nil
}

// GetX509BundleForTrustDomain implements x509bundle.Source.
func (r *Rotating) GetX509BundleForTrustDomain(domain spiffeid.TrustDomain) (*x509bundle.Bundle, error) {
	return r.now.Load().Bundle.GetX509BundleForTrustDomain(domain)
}

// first gets the SVID to begin with.
func (r *Rotating) first(ctx context.Context) error {
	if r.config.Dir != "" {
		s, err := load(r.config.Dir)
		if err == nil {
			err = r.meant(s)
		}
		if err == nil {
			r.now.Store(s)
			return nil
		}
		if r.config.Token == nil {
			return fmt.Errorf("there is no token, and on disk no valid SVID: %w", err)
		}
		if !errors.Is(err, os.ErrNotExist) {
			r.config.Log.Warn("the SVID on disk is not used", "error", err)
		}
	} else if r.config.Token == nil {
		return errors.New("there is no token to get an SVID with")
	}
	wait := leastWait
	var last error // why there is none yet, which a try that was cut short does not know
	for {
		err := r.bootstrap(ctx)
		if err == nil {
			return nil
		}
		if ctx.Err() != nil {
			return cmp.Or(last, err)
		}
		last = err
		switch status.Code(err) {
		case codes.Unavailable, codes.DeadlineExceeded, codes.ResourceExhausted:
		default:
			return err
		}
		r.config.Log.Warn("no SVID yet", "error", err)
		select {
		case <-ctx.Done():
			return fmt.Errorf("%w: %w", ctx.Err(), err)
		case <-time.After(jitter(wait)):
		}
		wait = min(2*wait, 5*time.Second)
	}
}

// meant refuses an SVID on disk that is another one's.
func (r *Rotating) meant(s *SVID) error {
	want := ""
	switch c := r.config; {
	case c.Service != "":
		want = "/svc/" + c.Service
	case c.Path != "":
		want = "/" + c.Path
	}
	if want != "" && s.ID().Path() != want {
		return fmt.Errorf("it is for %s", s.ID())
	}
	return nil
}

// run renews until ctx ends.
func (r *Rotating) run(ctx context.Context) {
	next := renewal(r.now.Load())
	var wait time.Duration // after a failure
	for {
		timer := time.NewTimer(min(max(time.Until(next), 0), lookAgain))
		select {
		case <-ctx.Done():
			timer.Stop()
			return
		case <-timer.C:
		}
		if time.Now().Before(next) {
			continue
		}
		before := r.now.Load()
		err := r.rotate(ctx)
		if ctx.Err() != nil {
			return
		}
		if err == nil {
			r.failed.Store(nil)
			next, wait = renewal(r.now.Load()), 0
			continue
		}
		r.failed.Store(&err)
		wait = backOff(wait, lifeOf(before))
		next = time.Now().Round(0).Add(jitter(wait))
		r.config.Log.Warn("the SVID could not be renewed; it serves until it expires", "expires", before.Expires(), "again_in", time.Until(next).Round(time.Millisecond), "error", err)
	}
}

// renewal is when half of what is left of an SVID is over, give or take a tenth of it,
// by the wall clock.
func renewal(s *SVID) time.Time {
	left := time.Until(s.Expires())
	return time.Now().Round(0).Add(time.Duration(float64(left) * (0.4 + 0.2*rand.Float64())))
}

// lifeOf is how long an SVID lives here.
func lifeOf(s *SVID) time.Duration { return max(s.Expires().Sub(s.got), 0) }

// backOff is the wait after a failure that follows one with the wait last: from a 200th
// of the SVID's life, by doubling, to a 20th.
func backOff(last, life time.Duration) time.Duration {
	least := min(max(life/200, leastWait), 5*time.Second)
	most := min(max(life/20, time.Second), time.Minute)
	return min(max(2*last, least), most)
}

func jitter(d time.Duration) time.Duration {
	return time.Duration(float64(d) * (0.75 + 0.5*rand.Float64()))
}

// rotate gets the next SVID: from hosts by the one that there is, and for a token when
// that has ended, or is about to.
func (r *Rotating) rotate(ctx context.Context) error {
	s := r.now.Load()
	left := time.Until(s.Expires())
	var err error
	if left > 0 {
		var next *SVID
		if next, err = Renew(ctx, r.config.Hosts, r); err == nil {
			r.set(next)
			return nil
		}
		if left > lifeOf(s)/10 {
			return err
		}
	}
	if r.config.Token == nil {
		if err == nil {
			err = errors.New("the SVID has expired, and there is no token to get another one with")
		}
		return err
	}
	return errors.Join(err, r.bootstrap(ctx))
}

func (r *Rotating) bootstrap(ctx context.Context) error {
	token, err := r.config.Token(ctx)
	if err != nil {
		return fmt.Errorf("token: %w", err)
	}
	ctx, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	s, err := Bootstrap(ctx, r.config.Bootstrap, Request{Token: token, Service: r.config.Service, Path: r.config.Path})
	if err != nil {
		return err
	}
	r.set(s)
	return nil
}

// set serves an SVID, and keeps it.
func (r *Rotating) set(s *SVID) {
	r.mu.Lock()
	r.now.Store(s)
	close(r.changed)
	r.changed = make(chan struct{})
	r.mu.Unlock()
	r.config.Log.Info("new SVID", "id", s.ID().String(), "expires", s.Expires())
	if r.config.Dir == "" {
		return
	}
	if err := Save(r.config.Dir, s); err != nil {
		r.config.Log.Warn("the SVID cannot be kept on disk", "dir", r.config.Dir, "error", err)
	}
}
