package plan

import (
	"math"
	"math/bits"
	"math/rand/v2"
	"sync/atomic"

	"github.com/dodona-project/dodona/sdk/dona/internal/hash"
)

// ring is a consistent hash with bounded loads. Each slot owns some points of a
// circle, which depend on its id alone. A key is at a few places of the circle; of
// all points that follow these places, it belongs to the one that is nearest for
// its slot's weight, that is with the distance divided by the weight. A slot that
// leaves or loses weight therefore gives away keys of its own and moves no others,
// one that comes takes keys and moves no others, and weights that all change by
// the same factor move none. Several places per key make the shares even with few
// points: B. Appleton, M. O'Reilly, "Multi-probe consistent hashing", 2015.
//
// Loads are bounded as in V. Mirrokni, M. Thorup, M. Zadimoghaddam, "Consistent
// Hashing with Bounded Loads", 2016: no slot takes more than max_load_percent of its
// share of all calls in flight. A key whose slot has no room is hashed again, so
// that what runs over spreads over all others and does not follow the neighbours.
type ring struct {
	points   []uint64  // ascending: position, and in the low slotBits the slot
	guide    []int32   // guide[b] is the first point whose position has the upper bits b, or more
	shift    uint      // how to get from a position to b
	inverse  []float64 // 1 / weight, by slot
	shortest float64   // the least of them

	// A slot with x calls in flight, of m in all, has room for one more when
	// x * 100 * (all weights) < max load * (m + 1) * its weight.
	total100, maxLoad float64

	seen []atomic.Int64 // calls in flight when last looked at, by slot

	_     [64]byte // what follows is written by every pick
	total atomic.Int64
	look  atomic.Uint64 // where to look next
	_     [48]byte
}

const (
	pointsPerSlot = 16
	probes        = 2 // places of a key

	// With these the share of a slot is off by 1/sqrt(16*(2*2-1)), a seventh.

	slotBits     = 24
	positionBits = 64 - slotBits

	// farthest bounds the points looked at for one place, which are about as many as
	// the heaviest slot has of the average weight. Only one that has more than this
	// many times the average gets less than its share.
	farthest = 512

	// looks is how many slots' calls in flight are counted anew with each pick. Up
	// to this many slots the sum is exact; beyond, calls that ended are noticed some
	// picks later, which makes the bound at most a call or so higher meanwhile.
	looks = 8

	golden = 0x9e3779b97f4a7c15
)

// Key hashes what requests are told apart by. It is the same in every process, so
// that all clients send a key to the same place, and never 0, which stands for no
// key.
func Key[T string | []byte](text T) uint64 {
	return max(hash.Mix(hash.Sum(hash.Offset, text)), 1)
}

func newRing(slots []slot, maxLoad uint32) *ring {
	if maxLoad == 0 {
		maxLoad = DefaultMaxLoad
	}
	r := &ring{maxLoad: float64(max(maxLoad, MinMaxLoad)), inverse: make([]float64, len(slots)), seen: make([]atomic.Int64, len(slots)), shortest: math.Inf(1)}
	var total uint64
	for i := range slots {
		s := &slots[i]
		total += s.weight
		r.inverse[i] = 1 / float64(s.weight)
		r.shortest = min(r.shortest, r.inverse[i])
		now := max(0, s.load.InFlight())
		r.seen[i].Store(now)
		r.total.Add(now)
	}
	r.total100 = 100 * float64(total)
	r.place(slots)
	return r
}

// place puts the points on the circle, sorted: by their upper bits into blocks of
// one to two points, each of which is then sorted by itself.
func (r *ring) place(slots []slot) {
	n := len(slots) * pointsPerSlot
	r.shift = positionBits + 1 - uint(bits.Len(uint(n|1)))
	r.guide = make([]int32, 1<<(positionBits-r.shift)+1)
	loose := make([]uint64, 0, n)
	for i := range slots {
		seed := ^Key(slots[i].id)
		for p := range uint64(pointsPerSlot) {
			point := hash.Mix(seed+p*golden)>>slotBits<<slotBits | uint64(i)
			loose = append(loose, point)
			r.guide[point>>slotBits>>r.shift+1]++
		}
	}
	for b := range r.guide[1:] {
		r.guide[b+1] += r.guide[b]
	}
	r.points = make([]uint64, n)
	filled := make([]int32, len(r.guide))
	for _, point := range loose {
		b := point >> slotBits >> r.shift
		at := r.guide[b] + filled[b]
		for ; at > r.guide[b] && r.points[at-1] > point; at-- {
			r.points[at] = r.points[at-1]
		}
		r.points[at] = point
		filled[b]++
	}
}

// owner returns the slot that a key belongs to at its n-th attempt.
func (r *ring) owner(key uint64, n int) int {
	best, slot := math.Inf(1), 0
	for p := range uint64(probes) {
		place := hash.Mix(key+(uint64(n)*probes+p)*golden) >> slotBits
		i := int(r.guide[place>>r.shift])
		for i < len(r.points) && r.points[i]>>slotBits < place {
			i++
		}
		for range min(farthest, len(r.points)) {
			if i == len(r.points) {
				i = 0
				place -= 1 << positionBits // below 0, where the distance is right again
			}
			distance := float64(r.points[i]>>slotBits - place)
			if distance*r.shortest >= best {
				break
			}
			s := int(r.points[i] & (1<<slotBits - 1))
			if d := distance * r.inverse[s]; d < best {
				best, slot = d, s
			}
			i++
		}
	}
	return slot
}

// inFlight returns the calls in flight to all slots.
func (r *ring) inFlight(slots []slot) int64 {
	if len(slots) <= looks {
		var sum int64
		for i := range slots {
			sum += max(0, slots[i].load.InFlight())
		}
		return sum
	}
	at := int((r.look.Add(1) - 1) * looks % uint64(len(slots)))
	for range looks {
		r.note(at, max(0, slots[at].load.InFlight()))
		if at++; at == len(slots) {
			at = 0
		}
	}
	return r.total.Load()
}

// note takes in how many calls a slot has in flight. What total holds is always the
// sum of seen.
func (r *ring) note(slot int, now int64) {
	if r.seen[slot].Load() != now {
		r.total.Add(now - r.seen[slot].Swap(now))
	}
}

// hashed picks by key; a request without one is at a random place.
func (k *Picker) hashed(key uint64, tried []string) int {
	if key == 0 {
		key = rand.Uint64()
	}
	r := k.ring
	calls := r.inFlight(k.slots)
	for n := range 2 * attempts {
		i := r.owner(key, n)
		s := &k.slots[i]
		now := max(0, s.load.InFlight())
		if float64(now)*r.total100 < r.maxLoad*float64(calls+1)*float64(s.weight) && !contains(tried, s.id) {
			r.note(i, now+1) // the caller's Begin is about to come
			return i
		}
	}
	// Whoever is least loaded for its weight has room, unless it was tried.
	i := k.least(tried)
	if i >= 0 {
		r.note(i, max(0, k.slots[i].load.InFlight())+1)
	}
	return i
}
