// Package plan executes a load-balancing plan inside a client: it picks one of
// the candidates that may serve a request. The decision core calls it for each
// request; a plan itself is compiled far away and seldom.
//
// A Picker is built once per plan and candidate set and then only read: picking
// takes no lock, allocates nothing and costs the same at ten thousand candidates
// as at ten. What changes with every request, the calls in flight and how long they
// took, is kept in a Load per endpoint, which outlives pickers and snapshots.
//
// What all algorithms have in common: a candidate's share is its weight, within
// that of its group; without a share it is never picked; what was tried is left
// out, and only when everything with a share was tried there is nothing to pick.
package plan

import (
	"fmt"
	"math/rand/v2"
	"sync/atomic"

	donav1 "github.com/dodona-project/dodona/proto/dona/v1"
)

// DefaultChoices is how many candidates LEAST_CONNECTIONS and PEAK_EWMA compare
// when the plan does not say.
const DefaultChoices = 2

// MaxChoices bounds the candidates compared for one request. A plan that asks
// for more is executed with this many.
const MaxChoices = 32

// DefaultMaxLoad is how much of the average load, in percent, CONSISTENT_HASH
// lets one candidate have when the plan does not say.
const DefaultMaxLoad = 125

// MinMaxLoad is the least max_load_percent that leaves everybody a place. A plan
// that asks for less is executed with this much.
const MinMaxLoad = 101

// Load is what this process knows of one endpoint: the calls in flight, and how
// long calls took. It is padded so that two of them never share a cache line. Safe
// for concurrent use; must not be copied.
type Load struct {
	inFlight atomic.Int64
	latency  atomic.Uint64 // an estimate; 0 = never measured
	_        [112]byte
}

// Begin counts one call more, End one less.
func (l *Load) Begin() { l.inFlight.Add(1) }

// BeginBelow is Begin where there are fewer calls than most, and reports whether there
// were.
func (l *Load) BeginBelow(most int64) bool {
	for {
		now := l.inFlight.Load()
		if now >= most {
			return false
		}
		if l.inFlight.CompareAndSwap(now, now+1) {
			return true
		}
	}
}

// End ends what Begin began, and returns how many calls are left.
func (l *Load) End() (left int64) { return l.inFlight.Add(-1) }

// InFlight returns the calls in flight now.
func (l *Load) InFlight() int64 { return l.inFlight.Load() }

// Loads keeps one Load per endpoint id across snapshots. It has one owner at a
// time; the Loads it gives out are free for all.
type Loads struct{ byID map[string]*Load }

// Get returns the Load of id and makes it on first use.
func (l *Loads) Get(id string) *Load {
	if l.byID == nil {
		l.byID = map[string]*Load{}
	}
	load := l.byID[id]
	if load == nil {
		load = &Load{}
		l.byID[id] = load
	}
	return load
}

// Retain forgets the Loads for which keep says no. Calls in flight to a forgotten
// endpoint still end on their own Load.
func (l *Loads) Retain(keep func(id string) bool) {
	for id := range l.byID {
		if !keep(id) {
			delete(l.byID, id)
		}
	}
}

// Candidate is an endpoint that may be picked.
type Candidate struct {
	ID     string
	Group  string // its zone
	Weight uint32 // its own weight, used where the plan names none
	Load   *Load  // must not be nil
}

// Check says whether this package can execute a plan. A nil plan is fine: it is
// round robin by the candidates' own weights.
func Check(p *donav1.Plan) error {
	if p == nil {
		return nil
	}
	source := p.GetHash().GetSource()
	_, known := donav1.HashPolicy_Source_name[int32(source)]
	hashes := p.GetAlgorithm() == consistentHash
	if !known || hashes && source == donav1.HashPolicy_SOURCE_UNSPECIFIED {
		return fmt.Errorf("plan of strategy %q hashes by %s (%d): this client knows what to hash by only from SOURCE_UNIT to SOURCE_TARGET_HOST; update it or choose another strategy",
			p.GetStrategy(), source, source)
	}
	switch a := p.GetAlgorithm(); a {
	case roundRobin, random, leastConnections, tiered, peakEWMA, consistentHash:
		return nil
	default:
		return fmt.Errorf("plan of strategy %q has algorithm %s (%d): this client executes those from ALGORITHM_ROUND_ROBIN to ALGORITHM_PEAK_EWMA; update it or choose another strategy",
			p.GetStrategy(), a, a)
	}
}

const (
	roundRobin       = donav1.Algorithm_ALGORITHM_ROUND_ROBIN
	random           = donav1.Algorithm_ALGORITHM_RANDOM
	leastConnections = donav1.Algorithm_ALGORITHM_LEAST_CONNECTIONS
	tiered           = donav1.Algorithm_ALGORITHM_TIERED
	consistentHash   = donav1.Algorithm_ALGORITHM_CONSISTENT_HASH
	peakEWMA         = donav1.Algorithm_ALGORITHM_PEAK_EWMA
)

// Picker picks among a fixed set of candidates. Safe for concurrent use.
type Picker struct {
	slots     []slot // candidates with a share; of a consistent hash by their ids, else in the order given
	ids       []string
	algorithm donav1.Algorithm
	choices   int
	alias     []aliasEntry // weighted draws
	wheel     wheel        // round robin, of this tier
	ring      *ring        // consistent hash
	spill     *Picker      // tiers: the next one, for when this one has no room

	_    [64]byte // the position is written by every pick, all above only read
	next atomic.Uint64
	_    [56]byte
}

type slot struct {
	load   *Load
	weight uint64  // its share, relative to the other slots
	index  int32   // position in the candidates given to New
	scale  float32 // peak EWMA: the mean share in terms of its own
}

// New returns a picker for a plan; nil is round robin by the candidates' own
// weights. start is where a round robin begins: give each picker another, so that
// the first candidate does not gain from frequent snapshots. The candidates are
// not kept; their strings and Loads are.
func New(p *donav1.Plan, candidates []Candidate, start uint64) (*Picker, error) {
	if err := Check(p); err != nil {
		return nil, err
	}
	shares := shares(p, candidates)
	if p.GetAlgorithm() == tiered {
		return newTiers(p.GetGroupTiers(), candidates, shares, start), nil
	}
	k := newPicker(candidates, shares)
	k.algorithm = p.GetAlgorithm()
	switch k.algorithm {
	case random:
		k.alias = newAlias(k.slots)
	case leastConnections, peakEWMA:
		k.choices = DefaultChoices
		if c := p.GetChoices(); c != 0 {
			k.choices = int(min(c, MaxChoices))
		}
		k.alias = newAlias(k.slots)
		setScales(k.slots)
	case consistentHash:
		k.ring = newRing(k.slots, k.ids, p.GetMaxLoadPercent())
	default:
		k.turn(start)
	}
	return k, nil
}

func newPicker(candidates []Candidate, shares []uint64) *Picker {
	k := &Picker{}
	for i, c := range candidates {
		if shares[i] > 0 {
			k.slots = append(k.slots, slot{load: c.Load, weight: shares[i], index: int32(i)})
			k.ids = append(k.ids, c.ID)
		}
	}
	return k
}

// turn makes k a round robin.
func (k *Picker) turn(start uint64) {
	k.algorithm = roundRobin
	k.wheel = newWheel(k.slots)
	k.next.Store(start)
}

// Len returns the number of candidates that can be picked: those with a share.
func (k *Picker) Len() int {
	n := len(k.slots)
	if k.spill != nil {
		n += k.spill.Len()
	}
	return n
}

// Pick returns the position, in the candidates given to New, of the one to use
// next. Only CONSISTENT_HASH looks at key, which is made by Key; 0 is a request
// without one. Candidates whose id is in tried are left out. ok is false when none
// is left. Pick counts nothing: call Begin on the candidate's Load.
func (k *Picker) Pick(key uint64, tried []string) (index int, ok bool) {
	index, load := k.Choose(key, tried)
	return index, load != nil
}

// Choose is Pick that also returns the candidate's Load; nil when none is left.
func (k *Picker) Choose(key uint64, tried []string) (index int, load *Load) {
	for ; k != nil; k = k.spill {
		if s := k.pick(key, tried); s >= 0 {
			return int(k.slots[s].index), k.slots[s].load
		}
	}
	return 0, nil
}

// pick returns the slot to use next, or -1.
func (k *Picker) pick(key uint64, tried []string) int {
	switch n := len(k.slots); {
	case n == 0:
		return -1
	case n == 1 && len(tried) == 0:
		return 0
	case k.ring != nil:
		return k.hashed(key, tried)
	case len(tried) > 0:
		return k.pickUntried(tried)
	}
	switch k.algorithm {
	case random:
		return k.draw(rand.Uint32())
	case leastConnections, peakEWMA:
		return k.leastLoaded(nil)
	default:
		return k.wheel.at(k.next.Add(1) - 1)
	}
}

// attempts is how often a draw may hit a tried candidate before the slots are
// scanned: a long scan only happens when most candidates were tried.
const attempts = 8

func (k *Picker) pickUntried(tried []string) int {
	switch k.algorithm {
	case leastConnections, peakEWMA:
		if s := k.leastLoaded(tried); s >= 0 {
			return s
		}
		return k.least(tried)
	case random:
		for range attempts {
			if s := k.draw(rand.Uint32()); !contains(tried, k.ids[s]) {
				return s
			}
		}
		return k.drawUntried(tried)
	default:
		for range attempts {
			if s := k.wheel.at(k.next.Add(1) - 1); !contains(tried, k.ids[s]) {
				return s
			}
		}
		for s := range k.slots {
			if !contains(tried, k.ids[s]) {
				return s
			}
		}
		return -1
	}
}

func contains(ids []string, id string) bool {
	for _, s := range ids {
		if s == id {
			return true
		}
	}
	return false
}

// gcd of two positive numbers.
func gcd(a, b uint64) uint64 {
	for b != 0 {
		a, b = b, a%b
	}
	return a
}
