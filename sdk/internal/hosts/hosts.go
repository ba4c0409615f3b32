// Package hosts chooses which of several control-plane hosts a client asks. Its
// streams and calls tell a [Set] how each host did; the set spreads clients over
// the hosts, keeps what one client does together on one of them while that one
// works, and leaves a host alone that fails, for longer each time.
//
// It makes no calls and has no clock: the caller passes the time.
package hosts

import (
	"math"
	"sync"
	"time"
)

// None is the number of no host.
const None = -1

// Never is longer than any rest.
const Never = time.Duration(math.MaxInt64)

const (
	firstRest = time.Second
	longRest  = 30 * time.Second
)

// Set is what a client knows of its hosts, which are numbered from 0. Safe for
// concurrent use.
type Set struct {
	random func() float64

	mu        sync.Mutex
	preferred int
	hosts     []health
}

type health struct {
	failures int       // in a row; those of one rest count once
	rests    time.Time // until then it is asked only when no other is left
}

// New returns a set of n hosts, at least one, of which it prefers a random one.
// random returns a number in [0, 1).
func New(n int, random func() float64) *Set {
	s := &Set{random: random, hosts: make([]health, n)}
	s.preferred = s.draw(n)
	return s
}

// draw returns a number below n.
func (s *Set) draw(n int) int { return min(int(s.random()*float64(n)), n-1) }

// Next returns the host to ask now: the preferred one, or else a random one, that
// is neither avoid nor at rest. When none is left it is the one whose rest is over
// first. avoid is the host that just failed the caller, or None.
func (s *Set) Next(avoid int, now time.Time) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.preferred != avoid && !s.resting(s.preferred, now) {
		return s.preferred
	}
	if n := s.other(avoid, now); n != None {
		return n
	}
	first := 0
	for i, h := range s.hosts {
		if h.rests.Before(s.hosts[first].rests) {
			first = i
		}
	}
	return first
}

// Another returns how long it is until another host is not at rest: 0 when there is
// one now, and Never when there is no other.
func (s *Set) Another(than int, now time.Time) time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	least := Never
	for i, h := range s.hosts {
		if i != than {
			least = min(least, max(0, h.rests.Sub(now)))
		}
	}
	return least
}

// Failed notes that a host could not be reached or could not serve. It rests 1 s,
// and twice as long each time it fails after a rest, up to 30 s. Of the others one
// is preferred from now on.
func (s *Set) Failed(host int, now time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.resting(host, now) {
		return
	}
	h := &s.hosts[host]
	h.rests = now.Add(min(longRest, firstRest<<min(h.failures, 5)))
	h.failures++
	if host == s.preferred {
		if n := s.other(host, now); n != None {
			s.preferred = n
		}
	}
}

// Worked notes that a host did what it was asked for. It is preferred when the
// preferred one is not known to work.
func (s *Set) Worked(host int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.hosts[host] = health{}
	if s.hosts[s.preferred].failures > 0 {
		s.preferred = host
	}
}

// other draws one of the hosts that are not at rest, without avoid.
func (s *Set) other(avoid int, now time.Time) int {
	n := 0
	for i := range s.hosts {
		if i != avoid && !s.resting(i, now) {
			n++
		}
	}
	if n == 0 {
		return None
	}
	n = s.draw(n)
	for i := range s.hosts {
		if i == avoid || s.resting(i, now) {
			continue
		}
		if n == 0 {
			return i
		}
		n--
	}
	return None
}

func (s *Set) resting(host int, now time.Time) bool { return s.hosts[host].rests.After(now) }
