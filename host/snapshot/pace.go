package snapshot

import "time"

// Coalesce bounds how often one name is published while changes go on. The zero
// value of a field takes the default that is named.
type Coalesce struct {
	First time.Duration // the window after a first change: 20 ms
	// Max is what windows double up to while changes go on: 450 ms, so that a change
	// and its way to watchers, also those of another host, take no more than 500.
	Max   time.Duration
	Quiet time.Duration // after so long without a publication windows begin anew: 2 s
	// Removals is how many removals skip the wait until the next quiet: 4. Instances
	// that come and go all the time would else be a publication each.
	Removals int
}

func (c Coalesce) withDefaults() Coalesce {
	if c.First <= 0 {
		c.First = 20 * time.Millisecond
	}
	if c.Max <= 0 {
		c.Max = 450 * time.Millisecond
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
	held   bool      // something has waited since then
	early  int       // removals that did not wait, since the last quiet
}

// due is the earliest time at which a change that is known at now goes out.
func (p *pace) due(now time.Time) time.Time {
	if p.last.IsZero() || now.Sub(p.last) >= p.rule.Quiet {
		return now
	}
	if at := p.last.Add(p.window); at.After(now) {
		p.held = true
		return at
	}
	return now
}

// mayHurry reports whether a removal may still go out before it is due.
func (p *pace) mayHurry() bool { return p.early < p.rule.Removals }

// published notes that a change went out, a removal before it was due or not, and
// opens the next window. It is twice as long as the last one while changes come faster
// than the longest window lets them go; changes that come by themselves, however many,
// wait for none.
func (p *pace) published(now time.Time, early bool) {
	gap := now.Sub(p.last)
	quiet := p.last.IsZero() || gap >= p.rule.Quiet
	switch {
	case quiet, !p.held && gap >= p.rule.Max: // no faster than windows would let them
		p.window = p.rule.First
	default:
		p.window = min(2*p.window, p.rule.Max)
	}
	if quiet {
		p.early = 0
	}
	if early {
		p.early++
	}
	p.last, p.held = now, false
}
