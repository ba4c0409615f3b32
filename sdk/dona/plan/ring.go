package plan

import (
	"math/rand/v2"
	"sync/atomic"

	"github.com/dodona-project/dodona/sdk/dona/internal/hash"
)

// ring is a consistent hash with bounded loads: what one picker knows beside the
// places, which it shares with every picker of the same slots and weights.
//
// Loads are bounded as in V. Mirrokni, M. Thorup, M. Zadimoghaddam, "Consistent
// Hashing with Bounded Loads", 2016: no slot takes more than max_load_percent of its
// share of all calls in flight. A key whose slot has no room is hashed again, so
// that what runs over spreads over all others and does not follow the neighbours.
type ring struct {
	places *places

	// A slot with x calls in flight, of m in all, has room for one more when
	// x * 100 * (all weights) < max load * (m + 1) * its weight.
	total100, maxLoad float64

	chance uint32 // of 2^32: how often the calls in flight are counted anew

	_     [64]byte // all above is only read
	total atomic.Int64
	_     [56]byte
}

const (
	golden = 0x9e3779b97f4a7c15

	// counted is the number of slots up to which all their calls in flight are counted
	// for each pick that has to know. With more of them, one in len/countEvery such
	// picks counts and the others take its sum, which is the calls of a moment ago:
	// the bound is off by about 1/countEvery of a call meanwhile.
	counted    = 64
	countEvery = 4
)

// Key hashes what requests are told apart by. It is the same in every process, so
// that all clients send a key to the same place, and never 0, which stands for no
// key.
func Key[T string | []byte](text T) uint64 {
	return max(hash.Mix(hash.Sum(hash.Offset, text)), 1)
}

// newRing sorts the slots and their ids: what it says of them goes by their new order.
func newRing(slots []slot, ids []string, maxLoad uint32) *ring {
	if maxLoad == 0 {
		maxLoad = DefaultMaxLoad
	}
	r := &ring{places: placesOf(slots, ids), maxLoad: float64(max(maxLoad, MinMaxLoad))}
	for i := range slots {
		r.total100 += 100 * float64(slots[i].weight)
	}
	if len(slots) > counted {
		r.chance = uint32(countEvery * (1 << 32) / uint64(len(slots)))
	}
	r.count(slots)
	return r
}

// count counts the calls in flight to all slots.
func (r *ring) count(slots []slot) int64 {
	var sum int64
	for i := range slots {
		sum += max(0, slots[i].load.InFlight())
	}
	r.total.Store(sum)
	return sum
}

// inFlight returns the calls in flight to all slots. Nothing that all picks share is
// written but now and then: two threads would wait for each other.
func (r *ring) inFlight(slots []slot) int64 {
	if len(slots) <= counted {
		var sum int64
		for i := range slots {
			sum += max(0, slots[i].load.InFlight())
		}
		return sum
	}
	if rand.Uint32() < r.chance {
		return r.count(slots)
	}
	return r.total.Load()
}

// hashed picks by key; a request without one is at a random place.
func (k *Picker) hashed(key uint64, tried []string) int {
	if key == 0 {
		key = rand.Uint64()
	}
	r := k.ring
	calls := int64(-1)
	for n := range uint64(2 * attempts) {
		i := r.places.owner(hash.Mix(key + n*golden))
		s := &k.slots[i]
		// A first call is always allowed: most picks have to know no more than this.
		if now := s.load.InFlight(); now > 0 {
			if calls < 0 {
				calls = r.inFlight(k.slots)
			}
			if float64(now)*r.total100 >= r.maxLoad*float64(calls+1)*float64(s.weight) {
				continue
			}
		}
		if !contains(tried, k.ids[i]) {
			return i
		}
	}
	// Whoever is least loaded for its weight has room, unless it was tried.
	r.count(k.slots)
	return k.least(tried)
}
