package ownership

import (
	"cmp"
	"slices"
)

// Worker is one with a live session, as far as the sharing out of proxies goes.
type Worker struct {
	ID, Zone string
	Room     int  // what it can serve beside what it does, by its newest report; 0 = it gets nothing
	Silent   bool // there is no such report: nothing is taken from it either, it would not hear of it
	Slots    int  // how many more proxies it may own
	Leaving  bool // it gets nothing and all it owns is drained
}

func (w *Worker) takes() bool { return !w.Leaving && w.Room > 0 && w.Slots > 0 }

// Upstream is what can be shared out of one upstream.
type Upstream struct {
	Name     string
	Keep     int                 // proxies that stay without an owner, for extraction
	Free     []string            // proxies that may get an owner; those to give first come first
	Owned    map[string][]string // by worker, without those being drained
	Draining int                 // proxies being drained
	Lacks    []Lack              // what extractions wait for, which counts in Keep
}

// Lack is how many of some owned proxies have to be drained.
type Lack struct {
	Count int
	Of    map[string]bool
}

// Assignment gives a free proxy to a worker.
type Assignment struct{ Proxy, Worker string }

// Departure is a proxy to be drained from its owner.
type Departure struct{ Proxy, Worker, Reason string }

// Why proxies are drained.
const (
	ReasonLeaving   = "the worker leaves"
	ReasonReserve   = "for extraction"
	ReasonRebalance = "another worker has too few"
)

// Decide shares free proxies out by free capacity, first between zones and then
// between the workers of one, and says which owned ones have to be drained: all of a
// worker that leaves; what extractions wait for; what an upstream lacks of the proxies it keeps for them;
// and, where a worker has less than half of its share, what makes that up. Nothing
// else moves. At most most of each. The same input has the same answer.
func Decide(workers []Worker, upstreams []Upstream, most int) (assign []Assignment, drain []Departure) {
	workers = slices.Clone(workers)
	slices.SortFunc(workers, func(a, b Worker) int { return cmp.Compare(a.ID, b.ID) })
	for _, u := range slices.SortedFunc(slices.Values(upstreams), func(a, b Upstream) int { return cmp.Compare(a.Name, b.Name) }) {
		s := newSharing(workers, u)
		assign = append(assign, s.assign(most-len(assign))...)
		drain = append(drain, s.drain(most-len(drain))...)
	}
	return assign, drain
}

// sharing is the sharing out of one upstream.
type sharing struct {
	Upstream
	workers  []Worker
	counts   map[string]int // owned and not being drained, by worker
	zones    map[string]int // the same, by zone
	zoneRoom map[string]int
}

func newSharing(workers []Worker, u Upstream) *sharing {
	s := &sharing{Upstream: u, workers: workers, counts: map[string]int{}, zones: map[string]int{}, zoneRoom: map[string]int{}}
	if len(u.Lacks) > 0 { // they are taken out of their order
		s.Owned = make(map[string][]string, len(u.Owned))
		for id, owned := range u.Owned {
			s.Owned[id] = slices.Clone(owned)
		}
	}
	for i := range workers {
		w := &workers[i]
		s.counts[w.ID] = len(u.Owned[w.ID])
		s.zones[w.Zone] += len(u.Owned[w.ID])
		if w.takes() {
			s.zoneRoom[w.Zone] += w.Room
		}
	}
	return s
}

func (s *sharing) assign(most int) (out []Assignment) {
	for _, id := range s.Free[:min(max(len(s.Free)-s.Keep, 0), max(most, 0))] {
		to := s.next()
		if to == nil {
			break
		}
		to.Slots--
		s.counts[to.ID]++
		s.zones[to.Zone]++
		out = append(out, Assignment{id, to.ID})
	}
	s.Free = s.Free[len(out):]
	return out
}

// next is the worker that has the least of its part; nil when none takes any.
func (s *sharing) next() (best *Worker) {
	for i := range s.workers {
		w := &s.workers[i]
		if w.takes() && (best == nil || s.less(w, best)) {
			best = w
		}
	}
	return best
}

// less compares the workers' zones and then the workers by how much they have for what
// room they have, as fractions that are multiplied out.
func (s *sharing) less(a, b *Worker) bool {
	if a.Zone != b.Zone {
		za, zb := s.zones[a.Zone]*s.zoneRoom[b.Zone], s.zones[b.Zone]*s.zoneRoom[a.Zone]
		if za != zb {
			return za < zb
		}
	}
	return (s.counts[a.ID]+1)*b.Room < (s.counts[b.ID]+1)*a.Room
}

func (s *sharing) drain(most int) (out []Departure) {
	take := func(w *Worker, reason string) {
		owned := s.Owned[w.ID]
		out = append(out, Departure{owned[s.counts[w.ID]-1], w.ID, reason})
		s.counts[w.ID]--
		s.Draining++
	}
	for i := range s.workers {
		for w := &s.workers[i]; w.Leaving && s.counts[w.ID] > 0 && len(out) < most; {
			take(w, ReasonLeaving)
		}
	}
	for _, l := range s.Lacks {
		for n := 0; n < l.Count && len(out) < most; n++ {
			w := s.most(nil, l.Of)
			if w == nil {
				break
			}
			s.last(w, l.Of)
			take(w, ReasonReserve)
		}
	}
	coming := len(s.Free) + s.Draining
	// What was given out a moment ago is not taken back in the same breath.
	if len(s.Owned) == 0 {
		return out
	}
	for ; coming < s.Keep && len(out) < most; coming++ {
		w := s.most(nil, nil)
		if w == nil {
			return out
		}
		take(w, ReasonReserve)
	}
	shares := s.shares()
	lack := s.Keep - coming // what comes free beyond what is kept makes good for some
	for i := range s.workers {
		w := &s.workers[i]
		if share, ok := shares[w.ID]; ok && w.takes() && 2*s.counts[w.ID] < share {
			lack += share - s.counts[w.ID]
		}
	}
	for ; lack > 0 && len(out) < most; lack-- {
		w := s.most(shares, nil)
		if w == nil {
			return out
		}
		take(w, ReasonRebalance)
	}
	return out
}

// last has the last of some of a worker's proxies taken next.
func (s *sharing) last(w *Worker, of map[string]bool) {
	owned := s.Owned[w.ID][:s.counts[w.ID]]
	for i, end := len(owned)-1, len(owned)-1; i >= 0; i-- {
		if of[owned[i]] {
			owned[i], owned[end] = owned[end], owned[i]
			return
		}
	}
}

// most is who owns the most for its room, and more than its share where shares are
// given, of those that own some of these proxies where they are given; nil when nobody
// has any.
func (s *sharing) most(shares map[string]int, of map[string]bool) (best *Worker) {
	for i := range s.workers {
		w := &s.workers[i]
		n := min(s.counts[w.ID], len(s.Owned[w.ID])) // given out now: not to be taken
		share, known := shares[w.ID]
		if w.Silent || n == 0 || n < s.counts[w.ID] || shares != nil && (!known || n <= share) {
			continue
		}
		if of != nil && !slices.ContainsFunc(s.Owned[w.ID][:n], func(id string) bool { return of[id] }) {
			continue
		}
		if best == nil || n*max(best.Room, 1) > s.counts[best.ID]*max(w.Room, 1) {
			best = w
		}
	}
	return best
}

// shares is how many each worker that takes proxies would own if all were shared as
// they are given out, rounded down.
func (s *sharing) shares() map[string]int {
	all, room := 0, 0
	for i := range s.workers {
		if w := &s.workers[i]; w.Room > 0 && !w.Leaving {
			all += s.counts[w.ID]
			room += w.Room
		}
	}
	all += max(len(s.Free)-s.Keep, 0)
	shares := map[string]int{}
	for i := range s.workers {
		if w := &s.workers[i]; w.Room > 0 && !w.Leaving && room > 0 {
			shares[w.ID] = all * w.Room / room
		}
	}
	return shares
}
