package worker

import (
	"errors"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"

	"github.com/dodona-project/dodona/sdk/dona/plan"
)

// Why there is nothing to pick.
var (
	// ErrNoView says that there is no snapshot, or that it is not valid any more.
	ErrNoView = errors.New("no valid snapshot")
	// ErrNoProxy says that the routing has no proxy that can be used now.
	ErrNoProxy = errors.New("no proxy can be used")
	// ErrFull says that each proxy of the routing that can be used is used as much as it may
	// be: one that is released can be picked.
	ErrFull = errors.New("all proxies are used as much as they may be")
)

// maxProbes is how many proxies the plan is asked for before all are looked through.
const maxProbes = 16

// slot is what this process does with one proxy, across snapshots: whatever View a
// request began with, it counts here.
type slot struct {
	active  atomic.Int64  // of the uses
	revoked atomic.Uint64 // no new use under assignments before this one
	retired atomic.Bool   // not in the View that is current
	load    plan.Load     // how many uses it has, active and reserved, and how long it took

	_ [40]byte // what a pick touches is one line of memory, which no other slot shares
}

// counts are the uses. A use that is there all the while counts, as what it was before
// or after: what has ended meanwhile may count, too.
func (s *slot) counts() (active, reserved uint32) {
	all := s.load.InFlight()
	used := min(s.active.Load(), all)
	return uint32(used), uint32(all - used)
}

// slots are all slots there are. Safe for concurrent use.
type slots struct {
	mu   sync.Mutex
	byID map[string]*slot
}

func (s *slots) get(id string) *slot {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.byID == nil {
		s.byID = map[string]*slot{}
	}
	one := s.byID[id]
	if one == nil {
		one = &slot{}
		s.byID[id] = one
	}
	return one
}

// Lease is a place on a proxy: reserved by a pick, active once it is used, free again
// once it is released. One goroutine has it at a time. A copy of a Lease is the same
// place: release one of them.
type Lease struct {
	Proxy   *Proxy
	Routing *Routing

	worker *Worker
	state  leaseState
}

type leaseState int

const (
	released leaseState = iota
	reserved
	active
)

// Activate turns the reservation into a use.
func (l *Lease) Activate() {
	if l.state == reserved {
		l.Proxy.slot.active.Add(1)
		l.state = active
	}
}

// Release gives the place back. Only the first call counts.
func (l *Lease) Release() {
	s := l.Proxy.slot
	switch l.state {
	case released:
		return
	case active:
		s.active.Add(-1)
	}
	l.state = released
	if s.load.End() == 0 && s.retired.Load() {
		signal(l.worker.idle) // a drain waits for it
	}
}

// Observe notes how long the proxy took to answer, for plans that choose by that.
func (l *Lease) Observe(took time.Duration, success bool) { l.Proxy.slot.load.Observe(took, success) }

// admission is whether a proxy may be used.
type admission int

const (
	refused admission = iota
	full
	admitted
)

// revoked reports whether a host has asked to use the proxy for nothing new.
func (p *Proxy) revoked() bool { return p.slot.revoked.Load() > p.epoch }

// admit reserves a place on a proxy if it may be used at this instant.
func (p *Proxy) admit(now int64) admission {
	switch {
	case now >= p.until, p.revoked():
		return refused
	case !p.slot.load.BeginBelow(int64(p.capacity)):
		return full
	}
	return admitted
}

// Pick reserves a place on a proxy of a routing, by its plan. key is of Routing.Key;
// proxies whose ids are in tried are left out. It goes by the current View, in which the
// routing is found again by its name. It waits for nothing and allocates nothing. The error
// is ErrNoView, ErrNoProxy or ErrFull.
func (w *Worker) Pick(r *Routing, key uint64, tried []string) (Lease, error) {
	for {
		v, r, now, err := w.current(r)
		if err != nil {
			return Lease{}, err
		}
		p, got := r.healthy.choose(now, key, tried)
		if got == refused {
			p, got = r.suspect.choose(now, key, tried)
		}
		if l, sure, err := w.take(v, r, p, got); sure {
			return l, err
		}
	}
}

// PickProxy reserves a place on one proxy of a routing, whatever the plan says: for a
// client that stays with it. It is Pick otherwise.
func (w *Worker) PickProxy(r *Routing, id string) (Lease, error) {
	for {
		v, r, now, err := w.current(r)
		if err != nil {
			return Lease{}, err
		}
		p := v.proxies[id]
		if p == nil || !slices.Contains(r.healthy.proxies, p) && !slices.Contains(r.suspect.proxies, p) {
			return Lease{}, ErrNoProxy
		}
		if l, sure, err := w.take(v, r, p, p.admit(now)); sure {
			return l, err
		}
	}
}

// current is the View to pick by at this instant, and a routing in it.
func (w *Worker) current(r *Routing) (*View, *Routing, int64, error) {
	v := w.view.Load()
	now := w.now()
	if v == nil || now >= v.until {
		return nil, nil, 0, ErrNoView
	}
	if r.view != v {
		if r = v.byName[r.Name]; r == nil {
			return nil, nil, 0, ErrNoProxy
		}
	}
	return v, r, now, nil
}

// take makes a Lease of what was reserved. It is not sure when the View has changed
// meanwhile: what was reserved under the old one may be somebody else's by now, so it is
// given back. As the swap comes before the acknowledgement, and that before the next
// report, a report has every reservation that stays.
func (w *Worker) take(v *View, r *Routing, p *Proxy, got admission) (l Lease, sure bool, err error) {
	switch got {
	case refused:
		return l, true, ErrNoProxy
	case full:
		return l, true, ErrFull
	}
	l = Lease{Proxy: p, Routing: r, worker: w, state: reserved}
	if w.view.Load() != v || p.revoked() {
		l.Release()
		return l, false, nil
	}
	return l, true, nil
}

// choose reserves a place on one of a tier's proxies. When there is none it says full if
// that is what kept it from one.
func (t *tier) choose(now int64, key uint64, tried []string) (*Proxy, admission) {
	if len(t.proxies) == 0 {
		return nil, refused
	}
	var here byte
	picker := t.pickers[uintptr(unsafe.Pointer(&here))>>11*0x9e3779b9>>16&uintptr(len(t.pickers)-1)]
	i, load := picker.Choose(key, tried)
	if load == nil {
		return nil, refused // everything was tried
	}
	p := t.proxies[i]
	got := p.admit(now)
	if got == admitted {
		return p, admitted
	}
	return t.search(picker, now, key, tried, p, got)
}

// search is choose after the first proxy was not to be had: it asks the plan on, then
// looks through all. It is apart because most picks need no list of what was tried.
func (t *tier) search(picker *plan.Picker, now int64, key uint64, tried []string, first *Proxy, best admission) (*Proxy, admission) {
	var stack [maxProbes + 8]string
	out := append(append(stack[:0], tried...), first.ID)
	for range maxProbes - 1 {
		i, load := picker.Choose(key, out)
		if load == nil {
			return nil, best // everything was tried
		}
		p := t.proxies[i]
		switch p.admit(now) {
		case admitted:
			return p, admitted
		case full:
			best = full
		}
		out = append(out, p.ID)
	}
	start := 0
	if !t.ordered {
		start = rand.IntN(len(t.proxies))
	}
	for i := range t.proxies {
		p := t.proxies[(start+i)%len(t.proxies)]
		if slices.Contains(tried, p.ID) {
			continue
		}
		switch p.admit(now) {
		case admitted:
			return p, admitted
		case full:
			best = full
		}
	}
	return nil, best
}
