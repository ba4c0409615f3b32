package embedded

import (
	"sync/atomic"
	"time"
)

// clock is the store's clock: at open the later of the wall clock and what was
// persisted, from then on as fast as the monotonic clock, whatever happens to
// the wall clock. It never falls.
type clock struct {
	read  func() time.Time
	start time.Time    // the reading at open, with its monotonic part
	base  int64        // unix nanoseconds of the store's clock at open
	last  atomic.Int64 // highest answer
}

func newClock(read func() time.Time, persisted int64) *clock {
	start := read()
	c := &clock{read: read, start: start, base: max(start.UnixNano(), persisted)}
	c.last.Store(c.base)
	return c
}

func (c *clock) now() int64 {
	now := c.base + int64(c.read().Sub(c.start))
	for {
		last := c.last.Load()
		if now <= last {
			return last
		}
		if c.last.CompareAndSwap(last, now) {
			return now
		}
	}
}
