package redis

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/dodona-project/dodona/host/store"
)

// rounds are the waits for replicas of one link. All who want to know that what
// they have written or read is confirmed join the next round; one is under way.
type rounds struct {
	mu   sync.Mutex
	next *round
	wake chan struct{}
}

// round is one marker and one WAIT. It confirms what was on the server before it
// began, whoever has written that.
type round struct {
	wanted bool // under rounds.mu
	done   chan struct{}
	err    error // set before done is closed
}

func newRound() *round { return &round{done: make(chan struct{})} }

// errShort means that not enough replicas have answered.
var errShort = errors.New("too few replicas")

// join returns the next round, which is begun as soon as it can be.
func (r *rounds) join() *round {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.next.wanted = true
	select {
	case r.wake <- struct{}{}:
	default:
	}
	return r.next
}

// take begins the next round, if anybody wants it.
func (r *rounds) take() *round {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.next.wanted {
		return nil
	}
	now := r.next
	r.next = newRound()
	return now
}

func (r *rounds) wanted() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.next.wanted
}

// confirm makes the rounds of l until it is given up.
func (b *backend) confirm(l *link) {
	for {
		select {
		case <-l.gone:
			// A round that is joined from here on is never begun; wait tells.
			return
		case <-l.rounds.wake:
		}
		for r := l.rounds.take(); r != nil; r = l.rounds.take() {
			r.err = b.confirmOnce(l)
			close(r.done)
		}
	}
}

// confirmOnce writes the marker and waits for the replicas, on one connection.
func (b *backend) confirmOnce(l *link) error {
	before := b.seenNow()
	var r reply
	var n int64
	millis := (b.o.CallTimeout * 4 / 5).Milliseconds()
	err := b.call(func(ctx context.Context) error {
		args := []any{l.whose, b.field, digits(l.confirmed.Load())}
		for _, whole := range []bool{false, true} {
			pipe := l.client.Pipeline()
			var mark, wait *redis.Cmd
			if whole {
				mark = markScript.Eval(ctx, pipe, []string{b.keys.meta}, args...)
			} else {
				mark = markScript.EvalSha(ctx, pipe, []string{b.keys.meta}, args...)
			}
			wait = pipe.Do(ctx, "WAIT", b.o.Replicas, millis)
			_, err := pipe.Exec(ctx)
			if redis.HasErrorPrefix(mark.Err(), "NOSCRIPT") {
				continue // without a marker the WAIT says nothing
			}
			if err != nil {
				return err
			}
			if r, err = parseReply(mark.Result()); err != nil {
				return err
			}
			n, err = wait.Int64()
			return err
		}
		return errors.New("the server does not keep the script that it was sent")
	})
	if err != nil {
		b.trouble(l, err)
		return explain(err)
	}
	if err := b.heed(l, before, r, r.revision); err != nil {
		return err
	}
	if n < int64(b.o.Replicas) {
		b.poke()
		return fmt.Errorf("%w: %d of %d have it", errShort, n, b.o.Replicas)
	}
	l.confirmed.Store(max(l.confirmed.Load(), r.hard))
	b.mu.Lock()
	if b.link == l && b.seen.ID == l.id {
		b.seen.Hard = max(b.seen.Hard, r.hard)
	}
	b.mu.Unlock()
	if !l.rounds.wanted() && r.confirmed < r.hard {
		b.announce(l) // otherwise the next marker carries it
	}
	return nil
}

// announce writes down what is confirmed, for the other hosts.
func (b *backend) announce(l *link) {
	err := b.call(func(ctx context.Context) error {
		_, err := run(ctx, l.client, markScript, []string{b.keys.meta}, []any{l.whose, b.field, digits(l.confirmed.Load())})
		return err
	})
	if err != nil {
		b.trouble(l, err) // the next look makes it good
	}
}

// wait waits for a round of l.
func (l *link) wait(ctx context.Context, r *round, within time.Duration) error {
	timer := time.NewTimer(within)
	defer timer.Stop()
	select {
	case <-r.done:
		return r.err
	default:
	}
	select {
	case <-r.done:
		return r.err
	case <-ctx.Done():
		return ctx.Err()
	case <-l.gone:
		return errMoved
	case <-timer.C:
		return fmt.Errorf("%w: the replicas' confirmation takes too long", store.ErrUnavailable)
	}
}

// durable waits until the hard write that was number seq of this process is
// confirmed; seq 0: what it has read.
func (b *backend) durable(ctx context.Context, l *link, r *round, seq uint64) error {
	deadline := time.Now().Add(b.patience())
	for {
		err := l.wait(ctx, r, time.Until(deadline))
		if err == nil || err == ctx.Err() { //nolint:errorlint // the engine compares it
			return err
		}
		unknown := fmt.Errorf("%w: the write is on the master and not confirmed: %w; the same request again is applied once", store.ErrUnknown, err)
		if errors.Is(err, errShort) || !time.Now().Before(deadline) {
			return unknown
		}
		switch l, err = b.follow(ctx, seq, deadline); {
		case errors.Is(err, errLost):
			return err
		case err != nil:
			return unknown
		}
		r = l.rounds.join()
	}
}

// follow returns a link to a server that has the commit seq of this process.
// Commits reach a replica in their order, so it has come along if it or a later
// one has.
func (b *backend) follow(ctx context.Context, seq uint64, deadline time.Time) (*link, error) {
	for {
		l, err := b.await(ctx, deadline)
		if err != nil || seq == 0 {
			return l, err
		}
		applied, _, _, err := b.applied(ctx, l, seq)
		switch {
		case err == nil && applied < seq:
			return nil, errLost
		case err == nil || !time.Now().Before(deadline):
			return l, err
		}
		if err := b.pause(ctx, time.Millisecond); err != nil {
			return nil, err
		}
	}
}

// shown waits until what a View has read is confirmed.
func (b *backend) shown(ctx context.Context, l *link, r *round) error {
	err := l.wait(ctx, r, b.patience())
	if errors.Is(err, errShort) {
		return fmt.Errorf("%w: what was read is not confirmed by the replicas, so it is not shown: %w", store.ErrUnavailable, err)
	}
	return err
}
