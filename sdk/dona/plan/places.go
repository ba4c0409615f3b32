package plan

import (
	"cmp"
	"crypto/sha256"
	"encoding/binary"
	"math"
	"math/bits"
	"runtime"
	"slices"
	"sync"
	"weak"

	"github.com/dodona-project/dodona/sdk/dona/internal/hash"
)

// places says which slot each key belongs to. Keys are hashed into places, a fixed
// number of them. Each slot throws darts at the places, one after the other, where its
// id alone says, and the faster the heavier it is; a place belongs to the slot whose dart
// comes first. So a slot that leaves or loses weight gives away places of its own and
// moves no others, one that comes or gains takes places and moves no others, and
// weights that all change by the same factor move none. Finding a slot is one look
// into a table, however many slots there are.
//
// A share of p is off by about sqrt(1/(2p*2^17)), which is a 150th of it for ten equal
// slots and a 50th for a hundred: less than chance makes of 100,000 keys that are
// perfectly even. Other ways are worse at one of these: Maglev's table of this size has
// exact shares, but one of 100 slots that leaves moves 1.4 times the keys that it must,
// and one of 1,000 moves 6.5 times as many; points on a circle need thousands for each
// slot to be as even; a rendezvous costs a hash for each slot.
//
// A places is immutable.
type places struct {
	owners []uint16 // by place: the slot, in the order of the ids' hashes
}

const (
	placeBits = 17

	// maxOwners is how many slots can have places. Of more, which no host serves, the
	// others are only used when all else is tried.
	maxOwners = 1 << 16
)

// owner returns the slot of a hashed key.
func (p *places) owner(hashed uint64) int { return int(p.owners[hashed>>(64-placeBits)]) }

// thrower is a slot while places are made.
type thrower struct {
	seed   uint64
	weight float64
	phase  float64 // of a dart: when the first one comes, so that no two slots are always level
	next   uint64  // dart
}

// known holds the places in use, by what they were made from: snapshots that follow
// each other and pools with the same endpoints mostly have the same.
var known = struct {
	sync.Mutex
	places map[[sha256.Size]byte]weak.Pointer[places]
}{places: map[[sha256.Size]byte]weak.Pointer[places]{}}

// placesOf sorts slots by the hash of their ids, both alike, and returns their places.
func placesOf(slots []slot, ids []string) *places {
	type hashed struct {
		slot
		id  string
		key uint64
	}
	sorted := make([]hashed, len(slots))
	for i := range slots {
		sorted[i] = hashed{slots[i], ids[i], Key(ids[i])}
	}
	slices.SortFunc(sorted, func(a, b hashed) int {
		return cmp.Or(cmp.Compare(a.key, b.key), cmp.Compare(a.id, b.id))
	})
	throwers := make([]thrower, len(slots))
	made := make([]byte, 0, 16*len(slots))
	for i := range sorted {
		s := &sorted[i]
		slots[i], ids[i] = s.slot, s.id
		throwers[i] = thrower{seed: ^s.key, weight: float64(s.weight), phase: float64(hash.Mix(s.key)>>11) / (1 << 53)}
		made = binary.BigEndian.AppendUint64(binary.BigEndian.AppendUint64(made, s.key), s.weight)
	}
	from := sha256.Sum256(made)
	known.Lock()
	p := known.places[from].Value()
	known.Unlock()
	if p != nil {
		return p
	}
	p = newPlaces(throwers[:min(len(throwers), maxOwners)])
	known.Lock()
	defer known.Unlock()
	mine := weak.Make(p)
	known.places[from] = mine
	runtime.AddCleanup(p, func(from [sha256.Size]byte) {
		known.Lock()
		defer known.Unlock()
		if known.places[from] == mine {
			delete(known.places, from)
		}
	}, from)
	return p
}

// A first dart is when it comes and whose it is, in one word: the upper bits of a
// positive floating-point number, which sort as it does, and the slot.
const slotBits = 16

const nobody = math.MaxUint64

var firsts = sync.Pool{New: func() any { return new([1 << placeBits]uint64) }}

func newPlaces(throwers []thrower) *places {
	p := &places{owners: make([]uint16, 1<<placeBits)}
	if len(throwers) == 0 {
		return p
	}
	first := firsts.Get().(*[1 << placeBits]uint64)
	defer firsts.Put(first)
	for i := range first {
		first[i] = nobody
	}
	var total float64
	for i := range throwers {
		total += throwers[i].weight
	}
	// In a time of 1 come as many darts as there are places. After the first few of
	// these most places are hit, and only darts at the others count.
	end := func(time float64) float64 { return time * (1 << placeBits) / total }
	time := 3.0
	for i := range throwers {
		throwers[i].throw(i, end(time), first)
	}
	var open [1 << placeBits / 64]uint64
	left := 0
	for place, dart := range first {
		if dart == nobody {
			open[place/64] |= 1 << (place % 64)
			left++
		}
	}
	for left > 0 {
		time++
		for i := range throwers {
			throwers[i].throwAt(i, end(time), first, &open)
		}
		for i, word := range open {
			for ; word != 0; word &= word - 1 {
				bit := bits.TrailingZeros64(word)
				if first[64*i+bit] != nobody {
					open[i] &^= 1 << bit
					left--
				}
			}
		}
	}
	for place, dart := range first {
		p.owners[place] = uint16(dart)
	}
	return p
}

// throw throws the darts that come before end.
func (t *thrower) throw(slot int, end float64, first *[1 << placeBits]uint64) {
	each := 1 / t.weight
	n := t.next
	for ; ; n++ {
		at := (float64(n) + t.phase) * each
		if at >= end {
			break
		}
		place := hash.Mix(t.seed+n*golden) >> (64 - placeBits)
		first[place] = min(first[place], math.Float64bits(at)>>slotBits<<slotBits|uint64(slot))
	}
	t.next = n
}

// throwAt is throw at places that are open.
func (t *thrower) throwAt(slot int, end float64, first *[1 << placeBits]uint64, open *[1 << placeBits / 64]uint64) {
	each := 1 / t.weight
	n := t.next
	for ; ; n++ {
		at := (float64(n) + t.phase) * each
		if at >= end {
			break
		}
		place := hash.Mix(t.seed+n*golden) >> (64 - placeBits)
		if open[place/64]>>(place%64)&1 != 0 {
			first[place] = min(first[place], math.Float64bits(at)>>slotBits<<slotBits|uint64(slot))
		}
	}
	t.next = n
}
