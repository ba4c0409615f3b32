package snapshot

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/dodona-project/dodona/host/internal/crash"
	"github.com/dodona-project/dodona/host/store"
)

// A feed keeps one name ready. Its goroutine alone builds and publishes; watchers
// read the current pointer.
type feed struct {
	feeds   *Feeds
	name    string
	current atomic.Pointer[published] // nil before the first build
	ready   chan struct{}             // closed with the first publication
	look    chan struct{}             // one slot: a watcher asks to look now, without waiting
	idle    chan struct{}             // one slot: the last watcher left

	watchers int // guarded by feeds.mu

	applied applied
	trouble atomic.Pointer[string] // why what is published is not all that there should be; nil = nothing

	rewindMu sync.Mutex
	rewindAt time.Time // of the last report
}

func newFeed(f *Feeds, name string) *feed {
	return &feed{
		feeds: f, name: name,
		ready: make(chan struct{}), look: make(chan struct{}, 1), idle: make(chan struct{}, 1),
	}
}

// run is level-triggered: whatever woke it, it looks at the head and acts on what
// it finds.
func (fd *feed) run(ctx context.Context) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	o := &fd.feeds.o
	notice := o.Store.Watch(ctx, o.Source.Prefix(fd.name))
	p := pace{rule: o.Coalesce}
	idle := time.NewTicker(o.Idle)
	defer idle.Stop()
	var empty bool // nobody watched at the last tick
	var wait *time.Timer
	var waiting <-chan time.Time
	retry := o.Retry
	hurry := false
	for {
		at, err := fd.step(ctx, &p, hurry)
		hurry = false
		if wait != nil {
			wait.Stop()
		}
		wait, waiting = nil, nil
		switch {
		case ctx.Err() != nil:
			return
		case err != nil:
			fd.feeds.metrics.failures.Inc()
			if errors.Is(err, store.ErrDamaged) {
				fd.stuck(err)
			}
			fd.feeds.log.Error("snapshot was not published: it is tried again", "name", fd.name, "error", err, "retry", retry)
			wait = time.NewTimer(retry)
			retry = min(2*retry, 16*o.Retry)
		default:
			retry = o.Retry
			if !at.IsZero() {
				wait = time.NewTimer(time.Until(at))
			}
		}
		if wait != nil {
			waiting = wait.C
		}
		for looked := false; !looked; {
			select {
			case <-ctx.Done():
				return
			case _, open := <-notice:
				if !open {
					notice = nil // the store closed; what is published stays
				}
				looked = true
			case <-waiting:
				looked = true
			case <-fd.look:
				hurry, looked = true, true
			case <-fd.idle:
				empty = true
				idle.Reset(o.Idle)
			case <-idle.C:
				if empty && fd.feeds.drop(fd) {
					return
				}
				if cur := fd.current.Load(); cur != nil && time.Since(p.last) >= o.Idle {
					cur.forget()
				}
				_, watchers := fd.feeds.lookup(fd.name)
				empty = watchers == 0
			}
		}
	}
}

// step publishes what is new, unless it has to wait: then it says until when.
func (fd *feed) step(ctx context.Context, p *pace, hurry bool) (wait time.Time, err error) {
	cur := fd.current.Load()
	head, revision, err := fd.peek(ctx)
	if err != nil {
		return time.Time{}, err
	}
	early := false
	if cur != nil {
		have := cur.built.Version
		over, held := fd.feeds.heldUntil(cur)
		if held && head.Version != have {
			if time.Now().Before(over) {
				return over, nil // what is published is more than what is back
			}
			if head.Version < have {
				return time.Time{}, fd.feeds.renewLost(fd.name)
			}
		}
		switch {
		case head.Version == have:
			return time.Time{}, nil
		case head.Version < have:
			// A name that is gone has no head, and its last snapshot stands. Any
			// other fall is a store that went back: nothing of it is published.
			if head.Version != 0 || revision < have {
				fd.rewound(Rewind{Name: fd.name, Seen: have, Ours: head.Version, Certain: revision < have})
			}
			return time.Time{}, nil
		case head.Urgent <= have && !hurry:
			now := time.Now()
			if at := p.due(now); at.After(now) {
				if early = head.Removed > have && p.mayHurry(); !early {
					return at, nil
				}
			}
		}
	}
	if err := fd.build(ctx, cur); err != nil {
		return time.Time{}, err
	}
	// The head may have moved while the snapshot was built; its notice is there.
	p.published(time.Now(), early)
	return time.Time{}, nil
}

// build makes the newest snapshot and puts it in the place of cur.
func (fd *feed) build(ctx context.Context, cur *published) error {
	var previous *Built
	if cur != nil {
		previous = cur.built
	}
	gap := fd.feeds.gapNow() // before the look: a fault that comes in between counts as one after it
	var b *Built
	err := fd.feeds.o.Store.View(ctx, func(tx store.ReadTx) (err error) {
		b, err = fd.feeds.o.Source.Build(tx, fd.name, previous)
		return err
	})
	if err != nil {
		return fmt.Errorf("build: %w", err)
	}
	if previous != nil && b.Version <= previous.Version {
		return nil // the next look finds out why
	}
	next, err := publish(b, fd.feeds.basesOf(cur), fd.feeds.metrics)
	if err != nil {
		return err
	}
	next.gap = gap
	fd.damaged(b.Damage)
	crash.Point("snapshot.before-publish") // committed, and no watcher knows
	fd.current.Store(next)
	fd.feeds.metrics.published.Inc()
	if cur == nil {
		close(fd.ready)
	} else {
		close(cur.superseded)
	}
	return nil
}

// stuck notes that no newer version can be made.
func (fd *feed) stuck(err error) {
	what := "nothing is"
	if cur := fd.current.Load(); cur != nil {
		what = fmt.Sprintf("version %d goes on being", cur.built.Version)
	}
	text := fmt.Sprintf("snapshot of %s: %s given out: %v", fd.name, what, err)
	fd.trouble.Store(&text)
}

// damaged notes which parts of what is published now could not be read.
func (fd *feed) damaged(parts []string) {
	if len(parts) == 0 {
		fd.trouble.Store(nil)
		return
	}
	more := ""
	if n := len(parts) - maxDamage; n > 0 {
		more = fmt.Sprintf("; and %d more", n)
	}
	text := fmt.Sprintf("snapshot of %s: given out as it was last, or left out until it is written anew: %s%s",
		fd.name, strings.Join(parts[:min(len(parts), maxDamage)], "; "), more)
	if old := fd.trouble.Swap(&text); old == nil || *old != text {
		fd.feeds.log.Error("a part of a snapshot could not be read", "name", fd.name, "parts", len(parts), "first", parts[0])
	}
}

// maxDamage is how many damaged parts an alarm names.
const maxDamage = 5

// peek reads the head and the store's revision at it.
func (fd *feed) peek(ctx context.Context) (head Head, revision uint64, err error) {
	err = fd.feeds.o.Store.View(ctx, func(tx store.ReadTx) (err error) {
		revision = tx.Revision()
		head, err = fd.feeds.o.Source.Peek(tx, fd.name)
		return err
	})
	if err != nil {
		return Head{}, 0, fmt.Errorf("look: %w", err)
	}
	return head, revision, nil
}

// hurry has the feed look at the store now and publish without waiting.
func (fd *feed) hurry() {
	select {
	case fd.look <- struct{}{}:
	default:
	}
}

// rewound reports a sign of a rewound store, at most once a second.
func (fd *feed) rewound(r Rewind) {
	fd.feeds.metrics.rewinds.Inc()
	fd.rewindMu.Lock()
	now := time.Now()
	quiet := !fd.rewindAt.IsZero() && now.Sub(fd.rewindAt) < time.Second
	if !quiet {
		fd.rewindAt = now
	}
	fd.rewindMu.Unlock()
	if quiet {
		return
	}
	fd.feeds.log.Error("a newer version was seen than the store has: it may have lost or rewound data",
		"name", r.Name, "client", r.Client, "seen", r.Seen, "ours", r.Ours, "certain", r.Certain)
	if fd.feeds.o.OnRewind != nil {
		fd.feeds.o.OnRewind(r)
	}
}
