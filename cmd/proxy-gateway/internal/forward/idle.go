package forward

import (
	"sync"
	"time"

	"github.com/dodona-project/dodona/sdk/worker/target"
)

// idle keeps upstream connections between two requests. A proxy's connections are told
// apart by the version of the credential they were made with, and tunnels by where they
// lead. The one that was used last is used first.
type idle struct {
	most    int
	keep    time.Duration
	current func(proxyID string, version uint32) bool

	mu      sync.Mutex
	conns   map[place][]resting
	perID   map[string]int
	closed  bool
	sweeper *time.Timer // nil while nothing is kept
}

// place is what connections of are alike.
type place struct {
	proxyID string
	version uint32
	to      target.Target // of a tunnel
}

type resting struct {
	*stream
	since time.Time
}

func (p *idle) init(most int, keep time.Duration, current func(string, uint32) bool) {
	p.most, p.keep, p.current = most, keep, current
	p.conns, p.perID = map[place][]resting{}, map[string]int{}
}

// take returns a connection that was kept and is still open, nil when there is none.
func (p *idle) take(at place) *stream {
	for {
		p.mu.Lock()
		list := p.conns[at]
		if len(list) == 0 {
			p.mu.Unlock()
			return nil
		}
		last := list[len(list)-1]
		p.drop(at, list[:len(list)-1], 1)
		p.mu.Unlock()
		if time.Since(last.since) < p.keep && last.quiet() {
			return last.stream
		}
		_ = last.Close()
	}
}

// drop sets what is left of a list.
func (p *idle) drop(at place, left []resting, n int) {
	if len(left) == 0 {
		delete(p.conns, at)
	} else {
		clear(left[len(left) : len(left)+n])
		p.conns[at] = left
	}
	if p.perID[at.proxyID] -= n; p.perID[at.proxyID] == 0 {
		delete(p.perID, at.proxyID)
	}
}

// put keeps a connection, or closes it when there is no use for it.
func (p *idle) put(at place, s *stream) {
	p.mu.Lock()
	// Asked under the lock, so that a change of routes either is seen here or sees this.
	if p.closed || p.perID[at.proxyID] >= p.most || !p.current(at.proxyID, at.version) {
		p.mu.Unlock()
		_ = s.Close()
		return
	}
	p.conns[at] = append(p.conns[at], resting{s, time.Now()})
	p.perID[at.proxyID]++
	if p.sweeper == nil {
		p.sweeper = time.AfterFunc(p.keep, p.sweep)
	}
	p.mu.Unlock()
}

// retain closes the connections that are of no use since the routes changed.
func (p *idle) retain() {
	p.remove(func(at place, _ resting) bool { return !p.current(at.proxyID, at.version) })
}

func (p *idle) sweep() {
	p.remove(func(_ place, r resting) bool { return time.Since(r.since) >= p.keep })
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.conns) == 0 || p.closed {
		p.sweeper = nil
		return
	}
	p.sweeper.Reset(p.keep / 2)
}

func (p *idle) remove(which func(place, resting) bool) {
	var gone []*stream
	p.mu.Lock()
	for at, list := range p.conns {
		left := list[:0]
		for _, r := range list {
			if which(at, r) {
				gone = append(gone, r.stream)
			} else {
				left = append(left, r)
			}
		}
		if n := len(list) - len(left); n > 0 {
			p.drop(at, left, n)
		}
	}
	p.mu.Unlock()
	for _, s := range gone {
		_ = s.Close()
	}
}

func (p *idle) close() {
	p.mu.Lock()
	p.closed = true
	if p.sweeper != nil {
		p.sweeper.Stop()
	}
	p.mu.Unlock()
	p.remove(func(place, resting) bool { return true })
}
