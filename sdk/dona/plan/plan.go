// Package plan executes a load-balancing plan inside a client: it picks one of
// the candidates that may serve a request. The decision core calls it for each
// request; a plan itself is compiled far away and seldom.
//
// A Picker is built once per plan and candidate set and then only read: picking
// takes no lock, allocates nothing and costs the same at ten thousand candidates
// as at ten. What changes with every request, the number of calls in flight, is
// kept in a Load per endpoint, which outlives pickers and snapshots.
package plan

import (
	"fmt"
	"sync/atomic"

	donav1 "github.com/dodona-project/dodona/proto/dona/v1"
)

// DefaultChoices is how many candidates LEAST_CONNECTIONS compares when the plan
// does not say.
const DefaultChoices = 2

// MaxChoices bounds the candidates compared for one request. A plan that asks
// for more is executed with this many.
const MaxChoices = 16

// Load counts the calls in flight to one endpoint. It is padded so that two
// counters never share a cache line. Safe for concurrent use; must not be copied.
type Load struct {
	inFlight atomic.Int64
	_        [120]byte
}

// Begin counts one call more, End one less.
func (l *Load) Begin() { l.inFlight.Add(1) }

// End ends what Begin began.
func (l *Load) End() { l.inFlight.Add(-1) }

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
	switch a := p.GetAlgorithm(); {
	case p == nil, a == donav1.Algorithm_ALGORITHM_ROUND_ROBIN, a == donav1.Algorithm_ALGORITHM_LEAST_CONNECTIONS:
		return nil
	default:
		return fmt.Errorf("plan of strategy %q has algorithm %s (%d): this client executes ALGORITHM_ROUND_ROBIN and ALGORITHM_LEAST_CONNECTIONS; update it or choose another strategy",
			p.GetStrategy(), a, a)
	}
}

// Picker picks among a fixed set of candidates. Safe for concurrent use.
type Picker struct {
	slots   []slot // candidates with a share, in the order given
	least   bool
	choices int
	alias   []aliasEntry // least connections: weighted draw
	wheel   wheel        // round robin

	_    [64]byte // the position is written by every pick, all above only read
	next atomic.Uint64
	_    [56]byte
}

type slot struct {
	load   *Load
	weight uint64 // its share, relative to the other slots
	index  int32  // position in the candidates given to New
	id     string
}

// New returns a picker for a plan; nil is round robin by the candidates' own
// weights. start is where a round robin begins: give each picker another, so that
// the first candidate does not gain from frequent snapshots. The candidates are
// not kept; their strings and Loads are.
func New(p *donav1.Plan, candidates []Candidate, start uint64) (*Picker, error) {
	if err := Check(p); err != nil {
		return nil, err
	}
	k := &Picker{least: p.GetAlgorithm() == donav1.Algorithm_ALGORITHM_LEAST_CONNECTIONS}
	shares := shares(p, candidates)
	for i, c := range candidates {
		if shares[i] > 0 {
			k.slots = append(k.slots, slot{load: c.Load, weight: shares[i], index: int32(i), id: c.ID})
		}
	}
	if k.least {
		k.choices = DefaultChoices
		if c := p.GetChoices(); c != 0 {
			k.choices = int(min(c, MaxChoices))
		}
		k.alias = newAlias(k.slots)
	} else {
		k.wheel = newWheel(k.slots)
		k.next.Store(start)
	}
	return k, nil
}

// Len returns the number of candidates that can be picked: those with a share.
func (k *Picker) Len() int { return len(k.slots) }

// Pick returns the position, in the candidates given to New, of the one to use
// next. Candidates whose id is in tried are left out. ok is false when none is
// left. Pick counts nothing: call Begin on the candidate's Load.
func (k *Picker) Pick(tried []string) (index int, ok bool) {
	switch n := len(k.slots); {
	case n == 0:
		return 0, false
	case n == 1 && len(tried) == 0:
		return int(k.slots[0].index), true
	case len(tried) > 0:
		return k.pickUntried(tried)
	case k.least:
		return int(k.slots[k.leastLoaded(nil)].index), true
	default:
		return int(k.slots[k.wheel.at(k.next.Add(1)-1)].index), true
	}
}

// attempts is how often a draw may hit a tried candidate before the slots are
// scanned: a long scan only happens when most candidates were tried.
const attempts = 8

func (k *Picker) pickUntried(tried []string) (int, bool) {
	if k.least {
		if i := k.leastLoaded(tried); i >= 0 {
			return int(k.slots[i].index), true
		}
	} else {
		for range attempts {
			if s := &k.slots[k.wheel.at(k.next.Add(1)-1)]; !contains(tried, s.id) {
				return int(s.index), true
			}
		}
	}
	best := -1
	for i := range k.slots {
		if contains(tried, k.slots[i].id) {
			continue
		}
		if best < 0 || k.less(i, best) {
			best = i
		}
		if !k.least {
			break
		}
	}
	if best < 0 {
		return 0, false
	}
	return int(k.slots[best].index), true
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
