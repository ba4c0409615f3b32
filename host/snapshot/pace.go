package snapshot

import "time"

// Coalesce bounds how often one name is published while changes go on. The zero
// value of a field takes the default that is named.
type Coalesce struct {
	First time.Duration // the window after a first change: 20 ms
	Max   time.Duration // windows double up to this: 500 ms
	Quiet time.Duration // after so long without a publication the next change goes out at once: 2 s
}

func (c Coalesce) withDefaults() Coalesce {
	if c.First <= 0 {
		c.First = 20 * time.Millisecond
	}
	if c.Max <= 0 {
		c.Max = 500 * time.Millisecond
	}
	if c.Quiet <= 0 {
		c.Quiet = 2 * time.Second
	}
	c.Max = max(c.Max, c.First)
	return c
}

// pace says when a change may be published. It has no clock of its own.
type pace struct {
	rule   Coalesce
	window time.Duration
	last   time.Time // of the last publication; zero before the first
}

// due is the earliest time at which a change that is known at now goes out.
func (p *pace) due(now time.Time) time.Time {
	if p.last.IsZero() || now.Sub(p.last) >= p.rule.Quiet {
		return now
	}
	if at := p.last.Add(p.window); at.After(now) {
		return at
	}
	return now
}

// published notes that a change went out, and opens the next window.
func (p *pace) published(now time.Time) {
	if p.last.IsZero() || now.Sub(p.last) >= p.rule.Quiet {
		p.window = p.rule.First
	} else {
		p.window = min(2*p.window, p.rule.Max)
	}
	p.last = now
}
