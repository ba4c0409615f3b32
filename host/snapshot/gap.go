package snapshot

import (
	"fmt"
	"time"
)

// lostUntil reports whether version was taken back by a fault of the store, and
// when the grace for that is over.
func (f *Feeds) lostUntil(version uint64) (over time.Time, lost bool) {
	f.gapMu.Lock()
	defer f.gapMu.Unlock()
	f.lookForGap()
	return f.over, f.gap.holds(version)
}

// gapNow returns how far the newest gap goes: it tells gaps apart.
func (f *Feeds) gapNow() (before uint64) {
	f.gapMu.Lock()
	defer f.gapMu.Unlock()
	f.lookForGap()
	return f.gap.Before
}

// heldUntil is lostUntil for what a feed has published. What was built after the
// fault came to light is what there is, whatever its version: only what was built
// before can be more than what is back.
func (f *Feeds) heldUntil(p *published) (over time.Time, held bool) {
	f.gapMu.Lock()
	defer f.gapMu.Unlock()
	f.lookForGap()
	return f.over, f.gap.holds(p.built.Version) && p.gap < f.gap.Before
}

// lookForGap begins a grace when there is a gap that was not there before. One
// that comes within the grace of another counts from where that began: what came
// back in between may be a small part of what was lost. The caller holds gapMu.
func (f *Feeds) lookForGap() {
	if f.o.Lost == nil {
		return
	}
	g, now := f.o.Lost(), time.Now()
	if g.Before <= f.gap.Before { // nothing new, or the store is away
		return
	}
	if some := f.gap.After+1 < f.gap.Before; some && now.Before(f.over) {
		g.After = min(g.After, f.gap.After)
	}
	f.gap, f.over, f.lost = g, now.Add(f.o.Grace), make(map[string]struct{})
}

// renewLost has a new version made of a name whose newest one was lost, once for
// each gap. After an error it is tried again by the next who asks.
func (f *Feeds) renewLost(name string) error {
	f.gapMu.Lock()
	_, done := f.lost[name]
	if !done {
		f.lost[name] = struct{}{}
	}
	mine := f.lost
	f.gapMu.Unlock()
	if done || f.o.OnLost == nil {
		return nil
	}
	err := f.o.OnLost(name)
	if err != nil {
		f.gapMu.Lock()
		delete(mine, name)
		f.gapMu.Unlock()
		return fmt.Errorf("renew what a fault of the store took: %w", err)
	}
	return nil
}
