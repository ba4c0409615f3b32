package embedded

import (
	"fmt"
	"time"

	"github.com/dodona-project/dodona/host/store"
)

// takeBack undoes what t could not write, because the disk is full or takes no
// writes: everything from its first hard transaction on, soft ones made since
// too, for they may rest on it. Earlier soft writes stay, in memory. The
// revisions are not issued again. The caller holds mu.
func (b *backend) takeBack(t *ticket, changed *dirty, err error) {
	b.dirty.add(changed)
	before := t.before
	if before == nil {
		before = b.next.before
	}
	if before != nil {
		taken := *before
		taken.revision = b.issued
		b.cur = &taken
	}
	failed := b.next
	b.next = newTicket()
	failed.err = err
	close(failed.done)
	if b.failed == nil {
		b.log.Error("store: writes are refused until the disk takes them again", "error", err)
	}
	b.failed = err
	b.notify()
}

// cured ends the refusing of writes. The caller holds mu.
func (b *backend) cured() {
	if b.failed != nil {
		b.failed = nil
		b.log.Info("store: writes work again")
	}
}

// fail closes the store for good: what is on disk is not known any more. A
// failed fsync is never tried again, because the kernel may have dropped the
// pages and the next one would report success. The caller holds mu.
func (b *backend) fail(t *ticket, err error) {
	b.closed = fmt.Errorf("%w: %w", store.ErrClosed, err)
	t.err = fmt.Errorf("%w: %w", store.ErrUnknown, err)
	close(t.done)
	b.next.err = b.closed
	close(b.next.done)
	b.log.Error("store: closed, because the disk broke its promise", "error", err)
	b.notify()
	if b.fatal != nil {
		go b.fatal(err) // it may close the store, which waits for this goroutine
	}
}

// untilCured probes the disk until it takes writes again. Until then nothing is
// committed, because each failed commit costs a scan of all pages. It returns
// false when the store is no more.
func (b *backend) untilCured() bool {
	tick := time.NewTicker(b.probe)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
		case <-b.closing:
			b.flush()
			return false
		}
		if b.disk.probe() != nil {
			continue
		}
		if !b.flush() {
			return false
		}
		if !b.refusing() {
			return true
		}
	}
}

// Close implements store.Backend.
func (b *backend) Close() error {
	close(b.closing)
	<-b.stopped
	b.mu.Lock()
	err := b.closed
	if err == nil {
		err = b.failed
	}
	if b.closed == nil {
		b.closed = store.ErrClosed
	}
	b.mu.Unlock()
	if cerr := b.disk.close(); err == nil {
		err = cerr
	}
	return err
}
