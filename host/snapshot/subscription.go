package snapshot

import (
	"bytes"
	"context"
	"fmt"
	"sync/atomic"
	"time"
)

// A Subscription is one watcher's place in a feed. It remembers which version it
// handed out last and nothing else, so it costs the same for any snapshot. Next
// is called by one goroutine at a time; Close by any, more than once if it likes.
type Subscription struct {
	feed         *feed
	client       string
	last         uint64 // what the client holds; until the first frame
	lastChecksum []byte
	delta        bool // takes deltas
	begun        bool
	seen         uint64 // version handed out last
	closed       atomic.Bool
}

// Next waits for a version newer than the last one and returns its frame: always
// the newest, whatever was published between. The first frame is full, or says
// "unchanged" when the watcher already holds what is current. Later ones are full,
// or, for a watcher that takes them, deltas against the version of the frame
// before. The error is ctx's, or the refusal Unavailable when the feeds were
// closed.
func (s *Subscription) Next(ctx context.Context) (*Frame, error) {
	fd := s.feed
	over := fd.feeds.ctx.Done()
	if !s.begun {
		if err := s.waitForLost(ctx); err != nil {
			return nil, err
		}
	}
	for {
		var changed <-chan struct{} = fd.ready
		if cur := fd.current.Load(); cur != nil {
			if !s.begun {
				return s.first(ctx, cur)
			}
			if cur.built.Version > s.seen {
				frame := cur.full
				if s.delta {
					frame = fd.feeds.since(fd.name, cur, s.seen)
				}
				s.seen = cur.built.Version
				return frame, nil
			}
			changed = cur.superseded
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-over:
			return nil, closed()
		}
	}
}

// waitForLost keeps a watcher waiting that has seen what a fault took, until those
// that the snapshot is made of had the time to come back: a client with a whole
// old snapshot is better off than one with half a new one.
func (s *Subscription) waitForLost(ctx context.Context) error {
	f := s.feed.feeds
	over, lost := f.lostUntil(s.last)
	if !lost {
		return nil
	}
	if left := time.Until(over); left > 0 {
		f.log.Info("a watcher has seen what a fault of the store took: it waits for the clients to come back", "name", s.feed.name, "client", s.client, "version", s.last, "wait", left)
		timer := time.NewTimer(left)
		defer timer.Stop()
		select {
		case <-timer.C:
		case <-ctx.Done():
			return ctx.Err()
		case <-f.ctx.Done():
			return closed()
		}
	}
	if err := f.renewLost(s.feed.name); err != nil {
		f.log.Warn("a snapshot was not renewed: its watchers wait for the next change", "name", s.feed.name, "error", err)
	}
	return nil
}

// first answers what the client holds already.
func (s *Subscription) first(ctx context.Context, cur *published) (*Frame, error) {
	if s.last > cur.built.Version {
		var err error
		if cur, err = s.fromTheFuture(ctx, cur); err != nil {
			return nil, err
		}
	}
	frame := cur.full
	if s.last != 0 && s.last == cur.built.Version && bytes.Equal(s.lastChecksum, cur.built.Checksum) {
		same, err := cur.same(s.feed.feeds.metrics)
		if err != nil {
			return nil, fmt.Errorf("snapshot: %s: %w", s.feed.name, err)
		}
		frame = same
		s.feed.applied.holds(s.client, s.last)
	}
	s.begun, s.seen, s.lastChecksum = true, cur.built.Version, nil
	return frame, nil
}

// fromTheFuture serves a client that holds a newer version than is published
// here. Either this feed is only behind the store: then it catches up first. Or
// the store itself is behind what the client has seen: a sign that it was
// rewound, and the client gets what there is.
func (s *Subscription) fromTheFuture(ctx context.Context, cur *published) (*published, error) {
	fd := s.feed
	head, revision, err := fd.peek(ctx)
	if err != nil {
		return nil, fmt.Errorf("snapshot: %s: %w", fd.name, err)
	}
	version := head.Version
	if version < s.last {
		// A name without a head may have been given up since; only the store's own
		// revision tells then.
		if version != 0 || revision < s.last {
			fd.rewound(Rewind{Name: fd.name, Client: s.client, Seen: s.last, Ours: version, Certain: revision < s.last})
		}
		return cur, nil
	}
	fd.hurry()
	for cur.built.Version < version {
		select {
		case <-cur.superseded:
			cur = fd.current.Load()
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-fd.feeds.ctx.Done():
			return nil, closed()
		}
	}
	return cur, nil
}

// Close gives the place up.
func (s *Subscription) Close() {
	if s.closed.Swap(true) {
		return
	}
	fd, f := s.feed, s.feed.feeds
	f.mu.Lock()
	fd.watchers--
	last := fd.watchers == 0
	f.mu.Unlock()
	f.metrics.watchers.Dec()
	fd.applied.left(s.client)
	if last {
		select {
		case fd.idle <- struct{}{}:
		default:
		}
	}
}
