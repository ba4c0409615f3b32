// Package wait is the queue of requests for which nothing has room yet: bounded, first
// come first served for each client, and fair between clients, so that one that asks a
// hundred times does not stand a hundred times before one that asks once. The gateway
// has one for each routing that waits.
package wait

import (
	"context"
	"errors"
	"slices"
	"sync"
	"sync/atomic"
)

// Result is what came of a try.
type Result uint8

// What may come of a try.
const (
	Nothing Result = iota // there is nothing for anybody now
	Passed                // there is nothing for this client, but may be for others
	Served                // this request waits no more
)

// ErrFull is the refusal of a queue that has no place left.
var ErrFull = errors.New("as many requests wait already as may")

// Queue is a queue. Safe for concurrent use. Its owner calls Wake whenever something may
// have become free; no wake-up is lost, because a request that has just come in line is
// tried once itself.
type Queue struct {
	limit int

	mu      sync.Mutex
	lanes   map[string]*lane
	turns   []*lane // in order of their turns; none is empty
	waiting int
	length  atomic.Int64
}

// lane are the requests of one client, first come first.
type lane struct {
	client  string
	waiters []*waiter
}

type waiter struct {
	try     func() Result
	settled chan struct{} // closed under the lock
}

// New returns a queue with so many places.
func New(limit int) *Queue { return &Queue{limit: limit, lanes: map[string]*lane{}} }

// Len is how many wait now. Who comes while somebody waits has to wait too, or what is
// released goes to whoever comes at the right moment.
func (q *Queue) Len() int { return int(q.length.Load()) }

// Wait returns nil once try has returned Served, which is called whenever it is this
// request's turn, by any goroutine and never by two at once. Otherwise it returns
// ErrFull at once, or the context's error when that ends, and then try is not called any
// more.
func (q *Queue) Wait(ctx context.Context, client string, try func() Result) error {
	w := &waiter{try: try, settled: make(chan struct{})}
	q.mu.Lock()
	if q.waiting >= q.limit {
		q.mu.Unlock()
		return ErrFull
	}
	l := q.lanes[client]
	if l == nil {
		l = &lane{client: client}
		q.lanes[client] = l
		q.turns = append(q.turns, l)
	}
	l.waiters = append(l.waiters, w)
	q.count(1)
	q.serve()
	q.mu.Unlock()

	select {
	case <-w.settled:
		return nil
	case <-ctx.Done():
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	select {
	case <-w.settled: // at the last moment
		return nil
	default:
	}
	q.leave(l, w)
	return ctx.Err()
}

// Wake serves those who wait for as long as there is something for them.
func (q *Queue) Wake() {
	if q.length.Load() == 0 {
		return // whoever comes now looks himself
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	q.serve()
}

// serve gives each client a turn until there is nothing for anybody. Who is passed keeps
// its turn; what its first request does not get, its others do not get either.
func (q *Queue) serve() {
	for i := 0; i < len(q.turns); {
		l := q.turns[i]
		w := l.waiters[0]
		switch w.try() {
		case Nothing:
			return
		case Passed:
			i++
			continue
		}
		close(w.settled)
		l.waiters[0] = nil
		l.waiters = l.waiters[1:]
		q.count(-1)
		q.turns = slices.Delete(q.turns, i, i+1)
		if len(l.waiters) > 0 {
			q.turns = append(q.turns, l)
		} else {
			delete(q.lanes, l.client)
		}
	}
}

// leave takes a waiter out of its lane.
func (q *Queue) leave(l *lane, w *waiter) {
	for i, other := range l.waiters {
		if other == w {
			l.waiters = append(l.waiters[:i], l.waiters[i+1:]...)
			q.count(-1)
			break
		}
	}
	if len(l.waiters) > 0 {
		return
	}
	delete(q.lanes, l.client)
	for i, other := range q.turns {
		if other == l {
			q.turns = append(q.turns[:i], q.turns[i+1:]...)
			return
		}
	}
}

func (q *Queue) count(n int) {
	q.waiting += n
	q.length.Store(int64(q.waiting))
}
