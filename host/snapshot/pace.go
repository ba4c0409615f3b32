package snapshot

import "time"

// Coalesce bounds how often one name is published while changes go on. The zero
// value of a field takes the default that is named.
type Coalesce struct {
	First time.Duration // the window after a first change: 20 ms
	Max   time.Duration // windows double up to this: 500 ms
	Quiet time.Duration // after so long without a publication the next change goes out at once: 2 s
	// Removals is how many removals skip the wait until the next quiet: 4. Instances
	// that come and go all the time would else be a publication each.
	Removals int
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
	if c.Removals <= 0 {
		c.Removals = 4
	}
	c.Max = max(c.Max, c.First)
	return c
}

// pace says when a change may be published. It has no clock of its own.
type pace struct {
	rule   Coalesce
	window time.Duration
	last   time.Time // of the last publication; zero before the first
	early  int       // removals that did not wait, since the last quiet
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

// mayHurry reports whether a removal may still go out before it is due.
func (p *pace) mayHurry() bool { return p.early < p.rule.Removals }

// published notes that a change went out, a removal before it was due or not, and
// opens the next window.
func (p *pace) published(now time.Time, early bool) {
	if p.last.IsZero() || now.Sub(p.last) >= p.rule.Quiet {
		p.window, p.early = p.rule.First, 0
	} else {
		p.window = min(2*p.window, p.rule.Max)
	}
	if early {
		p.early++
	}
	p.last = now
}
