// Package backoff says how long a client waits before it tries a stream again, so
// that many clients that lost a host do not come back at the same moment.
package backoff

import "time"

const (
	base     = 500 * time.Millisecond
	ceiling  = 30 * time.Second
	sameHost = 5 * time.Second
)

// Backoff is the state of one stream's retries. The zero value has failed never.
// It has one owner.
type Backoff struct {
	// Random returns a number in [0, 1).
	Random  func() float64
	tries   int
	healthy bool
}

// Applied notes that the stream did what it is for: only that ends a series of
// failures, a connection alone does not.
func (b *Backoff) Applied() { b.tries, b.healthy = 0, true }

// Next returns how long to wait after a stream ended. The first retry after a
// healthy stream is up to 0.5 s when a host is there to be asked, another one or the
// same, up to 5 s when the same one has to come back; later ones are
// rand(0, min(30 s, 0.5 s * 2^k)).
func (b *Backoff) Next(hostThere bool) time.Duration {
	limit := ceiling
	switch {
	case b.healthy && hostThere:
		limit = base
	case b.healthy:
		limit = sameHost
	case b.tries < 6:
		limit = base << b.tries
	}
	if !b.healthy {
		b.tries++
	}
	b.healthy = false
	return time.Duration(b.Random() * float64(limit))
}

// Longest makes the next waits as long as they get.
func (b *Backoff) Longest() { b.tries, b.healthy = 6, false }
