package redis

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/redis/go-redis/v9"

	"github.com/dodona-project/dodona/host/store"
)

// backend is the store's side towards one server at a time, its link. One
// goroutine looks at the server and makes and drops links. Each link has one that
// confirms hard writes and one that listens for the notices of other hosts.
type backend struct {
	o       Options
	log     hclog.Logger
	keys    keys
	process string // names this process in its notices
	field   string // of the generation record, for its commits
	first   []any  // what the arguments of each commit begin with
	finder  finder
	engine  *store.Engine
	clock   *clock
	calls   chan struct{} // one for each call under way
	seq     atomic.Uint64 // number of the newest commit

	looking sync.Mutex // held while the server is looked at
	memory  *memory    // under looking

	mu      sync.Mutex
	link    *link // nil when there is none that may be used
	why     *away // why not
	seen    seen
	epoch   uint64
	lastID  string        // generation of the newest link
	changed chan struct{} // closed and made anew when link or why changes
	closed  bool

	heard   atomic.Bool // this process hears the notices
	poked   chan struct{}
	closing chan struct{}
	loops   sync.WaitGroup
}

var _ store.Remote = (*backend)(nil)

// away is why there is no link.
type away struct {
	err   error
	since time.Time
}

// patience is how long a call waits for a link, and a commit that was cut off to
// be settled.
func (b *backend) patience() time.Duration { return 4 * b.o.CallTimeout }

// drop gives up l, which may be nil, and says why there is no link. It does
// nothing when l is not the link any more.
func (b *backend) drop(l *link, err error) {
	b.mu.Lock()
	if b.link != l || b.closed && !errors.Is(err, store.ErrClosed) {
		b.mu.Unlock()
		return
	}
	a := &away{err: err, since: time.Now()}
	if l == nil && b.why != nil {
		a.since = b.why.since
	}
	fresh := l != nil || b.why == nil || b.why.err.Error() != err.Error()
	b.link, b.why = nil, a
	b.broadcast()
	b.mu.Unlock()
	if l != nil {
		l.close()
	}
	if fresh && !errors.Is(err, store.ErrClosed) {
		b.log.Warn("the store cannot be used", "server", b.o.Target.String(), "reason", err)
	}
}

// lost drops l and has the server looked at.
func (b *backend) lost(l *link, err error) {
	b.drop(l, err)
	b.poke()
}

// up makes l the link.
func (b *backend) up(l *link, s *server, sub *redis.PubSub) {
	b.mu.Lock()
	if b.closed {
		b.mu.Unlock()
		_ = sub.Close()
		l.close()
		return
	}
	if b.lastID != l.id {
		b.lastID = l.id
		b.epoch++
	}
	l.epoch = b.epoch
	b.link, b.why = l, nil
	b.seen = b.seen.observe(s.found, l.durable)
	b.broadcast()
	b.mu.Unlock()
	b.loops.Go(func() { b.listen(l, sub) })
	if b.o.Replicas > 0 {
		b.loops.Go(func() { b.confirm(l) })
	}
	b.log.Info("the store can be used", "server", l.addr, "run_id", l.runID, "generation", s.found.Generation, "revision", s.found.Revision, "durability", l.durability)
	b.engine.NotifyAll()
}

// broadcast wakes who waits for a change. The caller holds mu.
func (b *backend) broadcast() {
	close(b.changed)
	b.changed = make(chan struct{})
}

// current returns the link, or why there is none.
func (b *backend) current() (*link, *away, <-chan struct{}) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.link, b.why, b.changed
}

// await returns the link. Where there is none, but was a moment ago, it waits
// until the deadline for the next one.
func (b *backend) await(ctx context.Context, deadline time.Time) (*link, error) {
	for {
		l, why, changed := b.current()
		if l != nil {
			return l, nil
		}
		if until := why.since.Add(b.patience()); until.Before(deadline) {
			deadline = until
		}
		if why.final() || !time.Now().Before(deadline) {
			return nil, why.err
		}
		timer := time.NewTimer(time.Until(deadline))
		select {
		case <-changed:
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return nil, ctx.Err()
		}
		timer.Stop()
	}
}

// final reports whether waiting does not help.
func (a *away) final() bool {
	return !helps(a.err) || errors.Is(a.err, store.ErrForeign) || errors.Is(a.err, store.ErrRefused) || errors.Is(a.err, store.ErrClosed)
}

// Admit implements store.Remote.
func (b *backend) Admit(d store.Durability) error {
	l, why, _ := b.current()
	if l == nil {
		if why.final() || time.Since(why.since) > b.patience() {
			return why.err
		}
		return nil
	}
	if n := l.online.Load(); d == store.Hard && n < int64(b.o.Replicas) {
		return fmt.Errorf("%w: hard writes wait for %d replicas (store.redis.replicas), %d are connected: start them, or lower the number", store.ErrUnavailable, b.o.Replicas, n)
	}
	return nil
}

// Epoch implements store.Remote.
func (b *backend) Epoch() uint64 {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.epoch
}

// Now implements store.Backend.
func (b *backend) Now() time.Time { return b.clock.now() }

// Info implements store.Backend.
func (b *backend) Info() store.Info {
	b.mu.Lock()
	defer b.mu.Unlock()
	info := store.Info{Backend: "redis", ID: b.lastID, State: "ready", Durability: "not durable: the server is not there"}
	if b.link == nil {
		info.State = stateOf(b.why.err)
		return info
	}
	info.Durability, info.Kept, info.First = b.link.durability, b.link.kept, b.link.first
	info.Adoption = b.link.adoption
	if n := b.link.online.Load(); n < int64(b.o.Replicas) {
		info.State = fmt.Sprintf("hard writes are refused: they wait for %d replicas, %d are connected; soft ones and reads go on", b.o.Replicas, n)
	}
	return info
}

// stateOf words why there is no link. What is foreign begins with that word.
func stateOf(err error) string {
	text := err.Error()
	if errors.Is(err, store.ErrForeign) {
		text = text[len("store: "):]
	}
	return text
}

// Close implements store.Backend.
func (b *backend) Close() error {
	b.mu.Lock()
	if b.closed {
		b.mu.Unlock()
		return nil
	}
	b.closed = true
	b.mu.Unlock()
	close(b.closing)
	l, _, _ := b.current()
	b.drop(l, store.ErrClosed)
	b.loops.Wait()
	b.looking.Lock()
	defer b.looking.Unlock()
	defer b.memory.close()
	defer b.finder.close()
	if err := b.memory.save(b.seenNow()); err != nil {
		return fmt.Errorf("store: remember what was seen of the server: %w", err)
	}
	return nil
}

func (b *backend) poke() {
	select {
	case b.poked <- struct{}{}:
	default:
	}
}

func (b *backend) seenNow() seen {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.seen
}

// heed takes over what a server said along with an answer: how far it and its
// clock are. Less than what was seen before the call is a rewound server.
func (b *backend) heed(l *link, before seen, r reply, revision uint64) error {
	switch r.status {
	case "GENERATION":
		err := fmt.Errorf("%w: the server's generation record is gone, or another; it is being looked at", store.ErrForeign)
		b.lost(l, err)
		return err
	case "MASTER":
		err := fmt.Errorf("%w: another server has taken over; it is being looked at", store.ErrUnavailable)
		b.lost(l, err)
		return err
	case "BUSY", "FENCED":
		return nil
	}
	b.mu.Lock()
	current := b.link == l && b.seen.ID == l.id
	if current {
		b.seen.Revision = max(b.seen.Revision, revision)
		b.seen.Hard = max(b.seen.Hard, r.confirmed)
	}
	b.mu.Unlock()
	if !current {
		return errMoved
	}
	if before.ID == l.id && r.revision < before.Revision {
		err := fmt.Errorf("%w: the server is at revision %d, this host has seen %d; it is being looked at", store.ErrForeign, r.revision, before.Revision)
		b.lost(l, err)
		return err
	}
	b.clock.raise(r.clock)
	return nil
}

// call makes one call to the server within its time, one of maxCalls. It ends by its
// time only: a caller that leaves must not cut it off.
func (b *backend) call(fn func(ctx context.Context) error) error {
	select {
	case b.calls <- struct{}{}:
	default:
		timer := time.NewTimer(b.o.CallTimeout)
		defer timer.Stop()
		select {
		case b.calls <- struct{}{}:
		case <-timer.C:
			return fmt.Errorf("%w: %d calls to the server are under way, and none ends", store.ErrUnavailable, maxCalls)
		}
	}
	defer func() { <-b.calls }()
	return fn(limited{context.Background(), time.Now().Add(b.o.CallTimeout)})
}

// limited is a context with a deadline and no timer: what a call does on a connection
// keeps to it. There is a call for each commit, and timers are hardly ever needed.
type limited struct {
	context.Context
	deadline time.Time
}

func (l limited) Deadline() (time.Time, bool) { return l.deadline, true }
