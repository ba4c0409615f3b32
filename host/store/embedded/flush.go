package embedded

import (
	"context"
	"errors"
	"runtime"
	"time"

	"github.com/dodona-project/dodona/host/store"
)

// settle waits for t's flush, and makes it when nobody else does. Whoever makes
// it stays until it is done, also when ctx ends before.
func (b *backend) settle(ctx context.Context, t *ticket) error {
	for {
		select {
		case <-t.done:
			return t.err
		default:
		}
		if b.lead(t) {
			continue
		}
		select {
		case <-t.done:
			return t.err
		case <-t.lead:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// lead makes t's flush, if it is the next and none is under way.
func (b *backend) lead(t *ticket) bool {
	b.mu.Lock()
	if b.flushing || b.next != t {
		b.mu.Unlock()
		return false
	}
	b.flushing = true
	b.mu.Unlock()
	b.gather()
	b.flush()
	b.release()
	return true
}

// maxGather is enough for some hundred transactions to run.
const maxGather = time.Millisecond

// gather lets those run whom the last flush has acknowledged, so that they and
// those who waited for it become one flush and not two that take turns. It waits
// no longer than the flush it may save would take, because they may not come
// again, and no longer than maxGather, because it keeps a processor busy. A lone
// caller is there already, and nothing is waited for.
func (b *backend) gather() {
	limit := min(b.took, maxGather)
	for start := time.Now(); b.waiting() < b.expected && time.Since(start) < limit; {
		runtime.Gosched()
	}
}

func (b *backend) waiting() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.next.hard
}

// release lets others flush, and calls one of those who wait for the next flush
// to make it.
func (b *backend) release() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.flushing = false
	if b.failed != nil {
		b.poke() // the loop looks for the cure
	}
	if b.next.hard > 0 {
		select {
		case b.next.lead <- struct{}{}:
		default:
		}
	}
	b.idle.Signal()
}

// take waits until no flush is under way, and claims the next.
func (b *backend) take() (refusing bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for b.flushing {
		b.idle.Wait()
	}
	b.flushing = true
	return b.failed != nil
}

// flushLoop flushes until the store is closed: what is soft, what nobody waits
// for any more, and what a disk that refuses writes has kept back. It ends with
// flushing true, so that nobody flushes after it.
func (b *backend) flushLoop() {
	defer close(b.stopped)
	tick := time.NewTicker(b.every)
	defer tick.Stop()
	for {
		last := false
		select {
		case <-b.wake:
		case <-tick.C:
		case <-b.closing:
			last = true
		}
		refusing := b.take()
		if !refusing || last {
			if !b.flush() || last {
				return
			}
			refusing = b.refusing()
		}
		if refusing && !b.untilCured() {
			return
		}
		b.release()
	}
}

func (b *backend) refusing() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.failed != nil
}

// flush writes what has changed. It returns false when the store is no more. The
// caller has made flushing true.
func (b *backend) flush() bool {
	b.mu.Lock()
	if b.closed != nil {
		b.mu.Unlock()
		return false
	}
	now := b.clock.now()
	if b.dirty.len() == 0 && b.next.hard == 0 && b.reserved-b.issued >= revisionBlock/4 {
		b.cured()
		b.mu.Unlock()
		return true
	}
	t, changed, target := b.next, b.dirty, b.cur
	b.next, b.dirty, b.inflight = newTicket(), newDirty(), t
	reserved := b.reserved
	for reserved-b.issued < revisionBlock/2 {
		reserved += revisionBlock
	}
	b.mu.Unlock()

	start := time.Now()
	heads, err := b.disk.write(target, changed, reserved, now)
	b.took = time.Since(start)

	b.mu.Lock()
	defer b.mu.Unlock()
	b.inflight = nil
	b.expected = t.hard + b.next.hard
	switch {
	case err == nil:
		b.reserved = reserved
		b.cur = b.cur.stored(heads)
		if b.next.before != nil {
			b.next.before = b.next.before.stored(heads)
		}
		b.cured()
	case errors.Is(err, store.ErrFull), errors.Is(err, store.ErrReadOnly):
		t.err = err
		b.takeBack(t, changed, err)
	default:
		b.fail(t, err)
		return false
	}
	close(t.done)
	return true
}
