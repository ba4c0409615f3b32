package embedded

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/dodona-project/dodona/host/store"
)

// revisionBlock is how many revisions are reserved on disk at a time. What a
// crash loses of a block is never issued again.
const revisionBlock = 1 << 20

// flushDirty is how many changes wait in memory before they are written early.
const flushDirty = 4096

// backend keeps the whole state in memory and writes what has changed to a
// disk: at once for hard transactions, within a flush interval for soft ones.
// One flush is under way at a time; what arrives meanwhile is the next one. Who
// waits for a hard transaction makes the flush himself when nobody else does, so
// that a lone caller changes no goroutine; a goroutine of the backend's own makes
// the others.
type backend struct {
	disk   disk
	clock  *clock
	log    hclog.Logger
	fatal  func(error)
	notify func() // fires all watches
	every  time.Duration
	probe  time.Duration
	info   store.Info

	mu       sync.Mutex
	cur      *state
	issued   uint64 // highest revision ever given out; cur's may be lower only inside takeBack
	reserved uint64 // revisions up to here are reserved on disk
	dirty    *dirty
	next     *ticket   // of the flush to come
	inflight *ticket   // of the flush under way
	failed   error     // writes are refused: ErrFull, ErrReadOnly
	closed   error     // all is refused
	flushing bool      // somebody makes a flush, or nobody may any more
	idle     sync.Cond // flushing has become false

	// Of whom flushing stands for: how many hard transactions the next flush may
	// hope for, and how long the last one took.
	expected int
	took     time.Duration

	wake    chan struct{}
	closing chan struct{}
	stopped chan struct{}
}

// ticket is one flush and those who wait for it.
type ticket struct {
	hard   int           // hard transactions it carries
	before *state        // what was there before the first of them
	lead   chan struct{} // calls one of those who wait to make the flush
	done   chan struct{}
	err    error // set before done is closed
}

func newTicket() *ticket { return &ticket{lead: make(chan struct{}, 1), done: make(chan struct{})} }

func (t *ticket) wait(ctx context.Context) error {
	select {
	case <-t.done:
		return t.err
	default:
	}
	select {
	case <-t.done:
		return t.err
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (b *backend) start() {
	b.idle.L = &b.mu
	b.next = newTicket()
	b.wake = make(chan struct{}, 1)
	b.closing = make(chan struct{})
	b.stopped = make(chan struct{})
	go b.flushLoop()
}

// Now implements store.Backend.
func (b *backend) Now() time.Time { return time.Unix(0, b.clock.now()).UTC() }

// Info implements store.Backend.
func (b *backend) Info() store.Info {
	b.mu.Lock()
	defer b.mu.Unlock()
	info := b.info
	switch {
	case b.closed != nil:
		info.State = b.closed.Error()
	case b.failed != nil:
		info.State = b.failed.Error() + "; writes are refused until it is cured, reads go on"
	default:
		info.State = "ready"
	}
	return info
}

// snapshot is one state, and the flush that makes all of it durable.
type snapshot struct {
	*state
	b       *backend
	pending *ticket // nil = no hard transaction of it is on its way
}

// Snapshot implements store.Resident.
func (b *backend) Snapshot() (store.Snapshot, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed != nil {
		return nil, b.closed
	}
	return snapshot{state: b.cur, b: b, pending: b.pending()}, nil
}

// pending returns the flush that settles the newest hard transaction, nil when
// all are durable. The caller holds mu.
func (b *backend) pending() *ticket {
	if b.next.hard > 0 {
		return b.next
	}
	if b.inflight != nil && b.inflight.hard > 0 {
		return b.inflight
	}
	return nil
}

func (s snapshot) Revision() uint64 { return s.revision }

func (s snapshot) Get(key string) store.Record {
	r, _ := s.records.get(key)
	return r
}

func (s snapshot) Scan(index string, from, to uint64, limit int) []store.Entry {
	return s.scan(index, from, to, limit)
}

func (s snapshot) LogHead(log string) uint64 {
	head, _ := s.logs.get(log)
	return head.last
}

func (s snapshot) ReadLog(log string, from uint64, limit int) ([]store.LogEntry, error) {
	head, ok := s.logs.get(log)
	if !ok {
		return nil, nil
	}
	var found []store.LogEntry
	for {
		trimmed := s.b.trimmed(log)
		from = max(from, trimmed+1)
		if from > head.stored {
			break
		}
		var err error
		if found, err = s.b.disk.readLog(log, from, head.stored, limit); err == nil {
			break
		}
		if s.b.trimmed(log) == trimmed { // else they went while they were read
			return nil, err
		}
	}
	if len(found) < limit {
		found = append(found, s.unstored(log, max(from, head.stored+1), limit-len(found))...)
	}
	return found, nil
}

// trimmed is up to where a log is trimmed now: what a snapshot still has may be
// gone from the disk.
func (b *backend) trimmed(log string) uint64 {
	b.mu.Lock()
	defer b.mu.Unlock()
	head, _ := b.cur.logs.get(log)
	return head.trimmed
}

// Settle implements store.Snapshot.
func (s snapshot) Settle(ctx context.Context) (bool, error) {
	if s.pending == nil {
		return true, nil
	}
	switch err := s.b.settle(ctx, s.pending); {
	case err == nil:
		return true, nil
	case errors.Is(err, store.ErrFull), errors.Is(err, store.ErrReadOnly):
		return false, nil
	default:
		return false, err
	}
}

// Commit implements store.Backend. It only touches memory.
func (b *backend) Commit(ctx context.Context, u *store.Union) (store.Outcome, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed != nil {
		return store.Outcome{}, b.closed
	}
	if u.Base != b.cur.revision {
		return store.Outcome{Conflict: &store.Answer{}}, nil
	}
	if n := uint64(len(u.Txs)); n > 0 {
		if b.failed != nil {
			return store.Outcome{}, b.failed
		}
		if b.cur.revision+n > b.reserved {
			if err := b.reserve(ctx, n); err != nil {
				return store.Outcome{}, err
			}
			if u.Base != b.cur.revision {
				return store.Outcome{Conflict: &store.Answer{}}, nil
			}
		}
		hard := 0
		for _, tx := range u.Txs {
			if tx.Hard {
				hard++
			}
		}
		if hard > 0 && b.next.hard == 0 {
			b.next.before = b.cur
		}
		b.next.hard += hard
		b.cur = b.cur.apply(u.Txs, b.dirty)
		b.issued = b.cur.revision
		// Hard transactions are flushed by those who wait for them, or with the
		// next tick when all of them have left.
		if b.dirty.len() >= flushDirty || b.reserved-b.issued < revisionBlock/4 {
			b.poke()
		}
	}
	out := store.Outcome{Base: u.Base}
	if p := b.pending(); p != nil && u.Hard {
		out.Durable = func(ctx context.Context) error { return b.settle(ctx, p) }
	}
	return out, nil
}

// reserve waits until n more revisions are reserved on disk. The caller holds
// mu, which is released meanwhile.
func (b *backend) reserve(ctx context.Context, n uint64) error {
	for b.cur.revision+n > b.reserved {
		t := b.next
		b.poke()
		b.mu.Unlock()
		err := t.wait(ctx)
		b.mu.Lock()
		if err != nil {
			return err
		}
		if b.closed != nil {
			return b.closed
		}
	}
	return nil
}

// poke starts a flush. The caller may hold mu.
func (b *backend) poke() {
	select {
	case b.wake <- struct{}{}:
	default:
	}
}
