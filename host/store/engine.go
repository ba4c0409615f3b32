package store

import (
	"context"
	"errors"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// Options tune an Engine. The zero value is right for every backend that says
// nothing else.
type Options struct {
	// MaxBatchWrites and MaxBatchBytes bound a union; a larger transaction goes
	// alone. 0 means 4,096 and 1 MiB.
	MaxBatchWrites int
	MaxBatchBytes  int
	// MaxCached bounds the records cached for a Remote. 0 means 65,536.
	MaxCached int
	// Relist is how often each Watch fires without a notice. 0 means 30 s.
	Relist time.Duration
}

// An Engine turns a Backend into a Store. All waiting updates of the process
// are run one after another over an overlay and committed as one union; the
// commit in flight is what collects the next one, so there is no timer.
//
// There is no goroutine of the engine's own in this: the first caller to arrive
// leads one batch, its own transaction in it, and hands on to the next.
type Engine struct {
	backend  Backend
	resident Resident
	remote   Remote
	opts     Options
	cache    *cache // of a Remote
	watches  *watches

	mu      sync.Mutex
	queue   []*call
	leading bool
	closed  bool
	idle    sync.Cond // leading has become false

	inside atomic.Int64 // Updates under way
}

var _ Store = (*Engine)(nil)

// New returns the store over a backend, which it owns from now on. The backend
// must be a Resident or a Remote.
func New(b Backend, o Options) *Engine {
	if o.MaxBatchWrites <= 0 {
		o.MaxBatchWrites = 4096
	}
	if o.MaxBatchBytes <= 0 {
		o.MaxBatchBytes = 1 << 20
	}
	if o.MaxCached <= 0 {
		o.MaxCached = 1 << 16
	}
	if o.Relist <= 0 {
		o.Relist = 30 * time.Second
	}
	e := &Engine{backend: b, opts: o, watches: newWatches(o.Relist)}
	e.idle.L = &e.mu
	switch b := b.(type) {
	case Resident:
		e.resident = b
	case Remote:
		e.remote = b
		e.cache = newCache(o.MaxCached)
	default:
		panic("store: a backend must be a Resident or a Remote")
	}
	return e
}

// call is one Update under way.
type call struct {
	ctx  context.Context
	fn   func(Tx) error
	hard bool

	wake     chan struct{} // finished, promoted to lead, or called to settle
	promoted bool          // under Engine.mu
	settles  *settlement   // under Engine.mu: called to settle it
	left     bool          // under Engine.mu: the owner has left
	finished bool          // set before wake, by the leader or by who settles

	running sync.Mutex // held while fn runs
	gone    bool       // under running: the owner has left, fn must not run

	err      error
	panicked any
}

// Update implements Store.
func (e *Engine) Update(ctx context.Context, d Durability, fn func(tx Tx) error) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if d != Soft && d != Hard {
		return errors.New("store: durability must be Soft or Hard")
	}
	if e.remote != nil {
		if err := e.remote.Admit(d); err != nil {
			return err
		}
	}
	e.inside.Add(1)
	defer e.inside.Add(-1)
	c := &call{ctx: ctx, fn: fn, hard: d == Hard, wake: make(chan struct{}, 1)}
	e.mu.Lock()
	if e.closed {
		e.mu.Unlock()
		return ErrClosed
	}
	e.queue = append(e.queue, c)
	lead := !e.leading
	e.leading = true
	e.mu.Unlock()

	if lead {
		e.lead()
	}
	for {
		select {
		case <-c.wake:
		case <-ctx.Done():
			e.abandon(c)
			return ctx.Err()
		}
		if c.finished {
			if c.panicked != nil {
				panic(c.panicked)
			}
			return c.err
		}
		e.mu.Lock()
		s := c.settles
		c.settles = nil
		e.mu.Unlock()
		if s == nil {
			e.lead()
		} else if err := e.settle(c, s); err != nil {
			return err
		}
	}
}

// abandon gives up a call whose context has ended. Its function does not run
// any more when abandon returns.
func (e *Engine) abandon(c *call) {
	e.mu.Lock()
	if c.promoted {
		c.promoted = false
		e.drop(c)
		e.handOver()
	} else {
		e.drop(c)
	}
	e.leave(c)
	e.mu.Unlock()
	c.running.Lock()
	c.gone = true
	c.running.Unlock()
}

// drop takes c out of the queue, if it is there. The caller holds mu.
func (e *Engine) drop(c *call) {
	for i, q := range e.queue {
		if q == c {
			e.queue = append(e.queue[:i:i], e.queue[i+1:]...)
			return
		}
	}
}

// handOver makes the next call in the queue the leader. The caller holds mu.
func (e *Engine) handOver() {
	if len(e.queue) == 0 {
		e.leading = false
		e.idle.Broadcast()
		return
	}
	next := e.queue[0]
	next.promoted = true
	next.wake <- struct{}{}
}

// lead runs one batch. The caller is the leader and no longer is afterwards.
func (e *Engine) lead() {
	var batch []*call
	completed := false
	defer func() {
		if !completed { // a function has ended this goroutine
			for _, c := range batch {
				if !c.finished {
					c.err = errors.New("store: a transaction's function ended the goroutine of its batch")
					c.finish()
				}
			}
		}
		e.mu.Lock()
		e.handOver()
		e.mu.Unlock()
	}()

	e.mu.Lock()
	// A commit is worth waiting for those who are about to join it. A caller who
	// is alone in the engine waits for nobody: to yield would wake an idle
	// processor, which costs more than the transaction.
	for n := 0; n < 8 && e.inside.Load() > int64(len(e.queue)); n++ {
		before := len(e.queue)
		e.mu.Unlock()
		runtime.Gosched()
		e.mu.Lock()
		if len(e.queue) == before {
			break
		}
	}
	batch, e.queue = e.queue, nil
	for _, c := range batch {
		c.promoted = false
	}
	e.mu.Unlock()

	rest := e.run(batch)
	if len(rest) > 0 {
		batch = batch[:len(batch)-len(rest)]
		e.mu.Lock()
		e.queue = append(rest[:len(rest):len(rest)], e.queue...)
		e.mu.Unlock()
	}
	completed = true
}

// finish hands the call's result to its owner.
func (c *call) finish() {
	c.finished = true
	c.wake <- struct{}{}
}

// View implements Store.
func (e *Engine) View(ctx context.Context, fn func(tx ReadTx) error) error {
	for {
		if err := ctx.Err(); err != nil {
			return err
		}
		var again bool
		var err error
		if e.resident != nil {
			again, err = e.viewResident(ctx, fn)
		} else {
			again, err = e.viewRemote(ctx, fn)
		}
		if !again {
			return err
		}
	}
}

func (e *Engine) viewResident(ctx context.Context, fn func(tx ReadTx) error) (again bool, err error) {
	snap, err := e.resident.Snapshot()
	if err != nil {
		return false, err
	}
	t := &txn{src: residentSource{snap}, below: &emptyOverlay, revision: snap.Revision(), now: e.backend.Now()}
	err = fn(readOnly{t})
	t.dead = true
	settled, serr := snap.Settle(ctx)
	if serr != nil {
		return false, serr
	}
	if !settled {
		return true, nil
	}
	return false, err
}

// Watch implements Store.
func (e *Engine) Watch(ctx context.Context, prefix string) <-chan struct{} {
	return e.watches.add(ctx, prefix)
}

// Info implements Store.
func (e *Engine) Info() Info { return e.backend.Info() }

// Close implements Store.
func (e *Engine) Close() error {
	e.mu.Lock()
	if e.closed {
		e.mu.Unlock()
		return nil
	}
	e.closed = true
	for e.leading {
		e.idle.Wait()
	}
	e.mu.Unlock()
	e.watches.close()
	return e.backend.Close()
}

// readOnly hides a transaction's writes from a View.
type readOnly struct{ t *txn }

func (r readOnly) Revision() uint64                         { return r.t.revision }
func (r readOnly) Now() time.Time                           { return r.t.now }
func (r readOnly) Get(key string) (Record, error)           { return r.t.Get(key) }
func (r readOnly) GetMany(keys ...string) ([]Record, error) { return r.t.GetMany(keys...) }
func (r readOnly) Scan(index string, from, to uint64, limit int) ([]Entry, error) {
	return r.t.Scan(index, from, to, limit)
}
func (r readOnly) ReadLog(log string, from uint64, limit int) ([]LogEntry, error) {
	return r.t.ReadLog(log, from, limit)
}

// Notify fires the watches of records that another host has written. It is for
// backends.
func (e *Engine) Notify(keys ...string) { e.watches.notify(slices.Values(keys)) }

// NotifyAll fires every Watch. A backend calls it when records have changed and
// it cannot say which, such as when writes were taken back.
func (e *Engine) NotifyAll() { e.watches.all() }
