package store

import (
	"context"
	"errors"
	"time"
)

// batch is one attempt to run calls over one state of the backend.
type batch struct {
	src    source
	below  overlay
	base   uint64
	now    time.Time
	union  Union
	ran    []*call // all calls that took part
	wrote  []bool  // by ran: is in union.Txs
	missed bool
}

// run brings calls to their end: committed, failed or answered. It returns
// those that did not fit into this union any more.
func (e *Engine) run(calls []*call) (rest []*call) {
	ctx, stop := batchContext(calls)
	defer stop()
	var pinned *pinned
	conflicts := 0
	// One time for all runs between two conflicts: what a transaction asks for by the
	// time, such as a scan up to now, is what is fetched for its next run.
	now := e.backend.Now()
	for len(calls) > 0 {
		b := &batch{now: now}
		if e.resident != nil {
			snap, err := e.resident.Snapshot()
			if err != nil {
				failAll(calls, err)
				return rest
			}
			b.src, b.base, b.union.Exact = residentSource{snap}, snap.Revision(), true
		} else {
			if epoch := e.remote.Epoch(); pinned == nil || pinned.epoch != epoch {
				pinned = newPinned(e.cache, epoch)
			}
			b.src, b.base = pinned, pinned.revision()
			b.union.Epoch, b.union.Conflicts = pinned.epoch, conflicts
			b.union.Reads = make(map[string]uint64)
		}
		fits := e.runOnce(b, calls)
		rest = append(calls[fits:len(calls):len(calls)], rest...)
		calls = calls[:fits]
		if len(b.ran) == 0 {
			return rest
		}
		if b.missed {
			answer, err := e.remote.Read(ctx, pinned.wanted())
			if err != nil {
				failAll(calls, err)
				return rest
			}
			pinned.fill(answer)
			continue
		}
		b.union.Base = b.base
		out, err := e.backend.Commit(ctx, &b.union)
		switch {
		case err != nil && !errors.Is(err, ErrUnknown) && len(b.union.Txs) > 0:
			// What has not written is still right, but may rest on a write of
			// this batch: it runs again without those that wrote.
			calls = b.failWriters(err)
		case err != nil:
			e.watches.all() // it may have happened
			failAll(calls, err)
			return rest
		case out.Conflict != nil:
			conflicts++
			now = e.backend.Now()
			if pinned != nil {
				pinned.conflict(out.Conflict)
			}
		default:
			if pinned != nil {
				pinned.committed(out.Base, b.union.Txs)
			}
			e.watches.notify(written(b.union.Txs))
			e.finish(b, out)
			return rest
		}
	}
	return rest
}

// runOnce runs each call's function once, as far as the union has room, and
// returns how many calls took part.
func (e *Engine) runOnce(b *batch, calls []*call) (fits int) {
	for i, c := range calls {
		if i > 0 && e.full(b.below.count, b.below.size) {
			return i
		}
		if c.finished {
			continue
		}
		t := &txn{
			src: b.src, below: &b.below,
			revision: b.base + 1 + uint64(len(b.union.Txs)),
			now:      b.now,
			limit:    MaxTransactionLen,
			reads:    b.union.Reads,
		}
		if t.reads != nil {
			t.heads = &b.union.Heads
		}
		ran := c.runFn(t)
		if !ran {
			continue
		}
		b.ran = append(b.ran, c)
		b.union.Exact = b.union.Exact || t.exact
		b.union.Hard = b.union.Hard || c.hard
		if t.missed {
			b.missed = true
			b.wrote = append(b.wrote, false)
			continue
		}
		if c.err == nil {
			c.err = t.failed
		}
		writes := c.err == nil && c.panicked == nil && t.own.count > 0
		if writes && len(b.union.Txs) > 0 && e.full(b.below.count+t.own.count-1, b.below.size+t.own.size-1) {
			// It runs again with the next union. What it has read stays among
			// the reads, which costs at most a conflict.
			b.ran = b.ran[:len(b.ran)-1]
			return i
		}
		b.wrote = append(b.wrote, writes)
		if writes {
			t.writes.Hard = c.hard
			b.union.Txs = append(b.union.Txs, t.writes)
			b.below.take(&t.own)
		}
	}
	return len(calls)
}

// full reports whether a union of so many writes and bytes takes no more.
func (e *Engine) full(writes, bytes int) bool {
	return writes >= e.opts.MaxBatchWrites || bytes >= e.opts.MaxBatchBytes
}

// runFn runs the call's function once and notes what came of it. It returns
// false when the owner has left.
func (c *call) runFn(t *txn) (ran bool) {
	c.running.Lock()
	defer c.running.Unlock()
	if c.gone || c.ctx.Err() != nil {
		if !c.finished {
			c.err = c.ctx.Err()
			c.finish()
		}
		return false
	}
	c.err, c.panicked = nil, nil
	ran = true
	defer func() {
		t.dead = true
		if p := recover(); p != nil {
			c.panicked = p
		}
	}()
	c.err = c.fn(t)
	return ran
}

// finish answers the calls of a committed batch, except those that have to wait
// until it is durable: one of them is called to see to that.
func (e *Engine) finish(b *batch, out Outcome) {
	var s *settlement
	for _, c := range b.ran {
		if out.Durable == nil || !c.hard || c.panicked != nil {
			c.finish()
			continue
		}
		if s == nil {
			s = &settlement{durable: out.Durable}
		}
		s.calls = append(s.calls, c)
	}
	if s != nil {
		e.mu.Lock()
		e.call(s)
		e.mu.Unlock()
	}
}

// failWriters fails the calls that wrote and returns the others.
func (b *batch) failWriters(err error) (others []*call) {
	for i, c := range b.ran {
		if b.wrote[i] {
			c.err = err
			c.finish()
		} else {
			others = append(others, c)
		}
	}
	return others
}

func failAll(calls []*call, err error) {
	for _, c := range calls {
		if !c.finished {
			c.err, c.panicked = err, nil
			c.finish()
		}
	}
}

// batchContext ends when the contexts of all calls have ended: a caller that
// leaves must not cut the others' commit.
func batchContext(calls []*call) (context.Context, func()) {
	if len(calls) == 1 {
		return calls[0].ctx, func() {}
	}
	for _, c := range calls {
		if c.ctx.Done() == nil {
			return context.Background(), func() {}
		}
	}
	ctx, cancel := context.WithCancel(context.WithoutCancel(calls[0].ctx))
	left := make(chan struct{}, len(calls))
	stops := make([]func() bool, 0, len(calls))
	for _, c := range calls {
		stops = append(stops, context.AfterFunc(c.ctx, func() {
			left <- struct{}{}
			if len(left) == cap(left) {
				cancel()
			}
		}))
	}
	return ctx, func() {
		for _, stop := range stops {
			stop()
		}
		cancel()
	}
}
