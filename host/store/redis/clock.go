package redis

import (
	"sync"
	"time"
)

// clock is the store's clock as this process knows it: what the server said last,
// and the monotonic time since then. It never falls, and is behind the
// server's by no more than a round trip.
type clock struct {
	mu   sync.Mutex
	said int64     // unix µs of the store's clock
	at   time.Time // when it was said
	last int64     // highest answer
}

func newClock() *clock { return &clock{at: time.Now()} }

// set takes over what the server has just said.
func (c *clock) set(micros uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.said, c.at = int64(micros), time.Now()
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
