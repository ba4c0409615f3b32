package snapshot_test

import (
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dodona-project/dodona/host/snapshot"
)

// lostGap is the newest gap of a store under test.
type lostGap struct {
	mu      sync.Mutex
	g       snapshot.Gap
	renewed []string
	fail    error
}

func (l *lostGap) set(g snapshot.Gap) { l.mu.Lock(); defer l.mu.Unlock(); l.g = g }

func (l *lostGap) lost() snapshot.Gap { l.mu.Lock(); defer l.mu.Unlock(); return l.g }

func (l *lostGap) renewals() int { l.mu.Lock(); defer l.mu.Unlock(); return len(l.renewed) }

func (l *lostGap) renew(name string) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.renewed = append(l.renewed, name)
	return l.fail
}

// What a feed has published and the store has lost stays with its watchers until the
// grace is over, although a part of it is back before.
func TestFeedHoldsWhatWasLost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const grace = 10 * time.Second
		st, l := openStore(t), &lostGap{}
		feeds := newFeeds(t, st, &services{}, func(o *snapshot.Options) { o.Lost, o.Grace, o.OnLost = l.lost, grace, l.renew })
		defer feeds.Close()
		version := apply(t, st, "a", change{put: ids(5)})
		other := apply(t, st, "b", change{put: ids(1)})
		a, b := subscribe(t, feeds, "a", snapshot.Watcher{}), subscribe(t, feeds, "b", snapshot.Watcher{})
		defer a.Close()
		defer b.Close()
		next(t, a)
		next(t, b)
		began := time.Now()
		l.set(snapshot.Gap{After: version - 1, Before: other}) // of a alone
		part := apply(t, st, "a", change{put: []string{"x"}, urgent: true})
		newest := apply(t, st, "b", change{put: []string{"x"}})
		if f := next(t, b); f.Version != newest || time.Since(began) >= grace {
			t.Errorf("what was not lost is held back: version %d after %v", f.Version, time.Since(began))
		}
		late := subscribe(t, feeds, "a", snapshot.Watcher{LastVersion: version})
		defer late.Close()
		for _, sub := range []*snapshot.Subscription{a, late} {
			if f := next(t, sub); f.Version != part || time.Since(began) < grace {
				t.Errorf("version %d after %v, want %d after the grace", f.Version, time.Since(began), part)
			}
		}
		if n := l.renewals(); n != 1 {
			t.Errorf("%d names were renewed, want the one that a watcher came back to", n)
		}
	})
}

// What is published after a fault is what there is: it is not held back, although
// its version is one of those that a fault took, as after two crashes in a row. Who
// waits then gets what came back, and not what there was at the start.
func TestWhatIsBuiltAfterAFaultIsNotHeld(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const grace = 10 * time.Second
		st, l := openStore(t), &lostGap{}
		before := apply(t, st, "other", change{put: ids(1)})
		kept := apply(t, st, "a", change{put: ids(1)})
		l.set(snapshot.Gap{After: before - 1, Before: kept + 1})
		feeds := newFeeds(t, st, &services{}, func(o *snapshot.Options) { o.Lost, o.Grace, o.OnLost = l.lost, grace, l.renew })
		defer feeds.Close()
		began := time.Now()
		fresh := subscribe(t, feeds, "a", snapshot.Watcher{})
		defer fresh.Close()
		back := subscribe(t, feeds, "a", snapshot.Watcher{LastVersion: before})
		defer back.Close()
		if f := next(t, fresh); f.Version != kept {
			t.Fatalf("version %d, want %d", f.Version, kept)
		}
		newest := apply(t, st, "a", change{put: ids(5)})
		if f := next(t, fresh); f.Version != newest || time.Since(began) >= grace {
			t.Errorf("version %d after %v, want %d within the grace", f.Version, time.Since(began), newest)
		}
		if f := next(t, back); f.Version != newest || time.Since(began) < grace {
			t.Errorf("version %d after %v, want %d after the grace", f.Version, time.Since(began), newest)
		}
	})
}

// A name whose newest version was lost, and that nobody changes, is renewed once the
// grace is over; a renewal that fails is tried again.
func TestLostNameIsRenewed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		st, src, l := openStore(t), &services{}, &lostGap{fail: errors.New("the store is away")}
		var rewinds atomic.Int64
		feeds := newFeeds(t, st, src, func(o *snapshot.Options) {
			o.Lost, o.Grace, o.OnLost = l.lost, 10*time.Second, l.renew
			o.OnRewind = func(snapshot.Rewind) { rewinds.Add(1) }
		})
		defer feeds.Close()
		apply(t, st, "other", change{put: ids(1)})
		version := apply(t, st, "a", change{put: ids(1)})
		sub := subscribe(t, feeds, "a", snapshot.Watcher{})
		defer sub.Close()
		next(t, sub)
		l.set(snapshot.Gap{After: version - 1, Before: version + 1})
		src.head.Store(version - 1)
		apply(t, st, "a", change{put: []string{"x"}}) // a notice, as after a fail-over
		time.Sleep(9 * time.Second)
		synctest.Wait()
		if l.renewals() > 0 {
			t.Fatal("renewed within the grace")
		}
		time.Sleep(5 * time.Second)
		synctest.Wait()
		l.mu.Lock()
		tried := len(l.renewed)
		l.fail = nil
		l.mu.Unlock()
		if tried < 2 {
			t.Errorf("a renewal that failed was tried %d times", tried)
		}
		time.Sleep(time.Minute)
		synctest.Wait()
		if n := l.renewals(); n <= tried || n > tried+1 {
			t.Errorf("renewed %d times after %d that failed", n-tried, tried)
		}
		if n := rewinds.Load(); n > 0 {
			t.Errorf("what a known fault took counts as %d rewinds", n)
		}
	})
}
