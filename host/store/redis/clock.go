package redis

import (
	"sync"
	"time"
)

// clock is the store's clock as this process knows it: what the server said last,
// and the monotonic time since then. It never falls, and is behind the
// server's by no more than a round trip. Each read and each look sets it; commits only
// see to it that no process is behind what another one has told its transactions.
type clock struct {
	mu   sync.Mutex
	said int64     // unix µs of the store's clock
	at   time.Time // when it was said
	last int64     // highest answer
}

func newClock() *clock { return &clock{at: time.Now()} }

// set takes over what the server has just read from its own clock.
func (c *clock) set(micros uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.said, c.at = int64(micros), time.Now()
}

// told is the newest answer of now, in µs.
func (c *clock) told() uint64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return uint64(c.last)
}

// raise sees to it that the clock is not behind a time that was given out by any
// process.
func (c *clock) raise(micros uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if int64(micros) <= c.last {
		return
	}
	if now := time.Now(); int64(micros) > c.said+now.Sub(c.at).Microseconds() {
		c.said, c.at = int64(micros), now
	}
}

func (c *clock) now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := c.said
	if now != 0 {
		now += time.Since(c.at).Microseconds()
	}
	c.last = max(c.last, now)
	return time.UnixMicro(c.last).UTC()
}
