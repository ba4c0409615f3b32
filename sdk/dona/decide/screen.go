package decide

import (
	"math/bits"

	donav1 "github.com/dodona-project/dodona/proto/dona/v1"
	"github.com/dodona-project/dodona/sdk/dona/bucket"
)

// screen finds, among the first 64 flags, those that take a request, or may do so,
// without going through their rules: most flags do not concern most requests. A bit
// stands for a flag. Which flags a value of an attribute hits is looked up in a table,
// and cohorts are a flat list of limits.
type screen struct {
	flags  int      // how many it covers: all, or the first 64
	on     uint64   // take part
	always uint64   // take everyone: 100 percent
	values int      // width of a row of hits
	hits   []uint64 // by slot, then by number of the value (0 = one that no rule names)
	asks   []uint64 // by slot: have a rule on the attribute

	// Cohorts, in order of the flags. The key of the first has the slot after the
	// weights', those of the others follow.
	limits []uint32  // first bucket outside
	gates  []uint8   // the flag
	before [65]uint8 // how many are of flags before the flag
}

// firstGate is the slot of the first cohort's key.
const firstGate = weightsSlot + 1

// maxHits bounds the table of hits; larger sets of rules are gone through.
const maxHits = 1 << 15

// screen prepares the screen, or nothing when the rules are too many for it.
func (c *compiler) screen() {
	p := c.p
	s := screen{flags: min(64, len(p.flags)), values: len(p.values) + 1}
	if len(p.names)*s.values > maxHits {
		return
	}
	s.hits = make([]uint64, len(p.names)*s.values)
	s.asks = make([]uint64, len(p.names))
	for i := range p.flags[:s.flags] {
		f := &p.flags[i]
		if f.off != offNot {
			continue
		}
		bit := uint64(1) << i
		s.on |= bit
		for j := range f.rules {
			r := &f.rules[j]
			if r.slot >= maxFacts {
				return // looked up by name
			}
			s.asks[r.slot] |= bit
			row := s.hits[r.slot*s.values:][:s.values]
			if r.operator == donav1.TargetingRule_OPERATOR_IN {
				for _, v := range r.values {
					row[v] |= bit
				}
				continue
			}
			for v := range row {
				if r.matcher != nil || r.matches(fact{attributeString, uint32(v)}, nil) {
					row[v] |= bit
				}
			}
		}
		switch {
		case f.percent >= 100:
			s.always |= bit
		case f.percent > 0:
			s.limits = append(s.limits, f.percent*bucket.PerPercent)
			s.gates = append(s.gates, uint8(i))
		}
	}
	for i, f := 0, 0; f < len(s.before); f++ {
		s.before[f] = uint8(i)
		if i < len(s.gates) && int(s.gates[i]) == f {
			i++
		}
	}
	p.screen = s
}

// screening is the screen at work on one request.
type screening struct {
	*screen
	sure uint64 // flags to go through whatever the bucket of the request
	gate int    // the next one to look at
}

// begin starts on a request. ok is false without a screen. A flag that a table cannot
// answer for is gone through: one with a rule that looks into the text, and one with a
// rule on an attribute that is no text, which it may have to count.
func (s *screen) begin(facts *[maxFacts]fact, slots int) (w screening, ok bool) {
	w = screening{screen: s, sure: s.always}
	if s.flags == 0 {
		return w, false
	}
	for slot := range facts[:slots] {
		switch f := facts[slot]; f.kind {
		case attributeNone:
		case attributeString:
			w.sure |= s.hits[slot*s.values+int(f.value)]
		default:
			w.sure |= s.asks[slot]
		}
	}
	return w, true
}

// next returns the next flag to go through, since it takes the request or may do so,
// or the number of flags covered when there is none.
func (w *screening) next(row *bucket.Row, known bool) int {
	first := min(w.flags, bits.TrailingZeros64(w.sure))
	w.sure &= w.sure - 1
	if !known {
		return first // anonymous requests are in no cohort
	}
	// Only the cohorts of flags before that one are looked at.
	end := int(w.before[first])
	g := row.First(firstGate+w.gate, w.limits[w.gate:end]) - firstGate
	if g == end {
		w.gate = end
		if end < len(w.gates) && int(w.gates[end]) == first {
			w.gate++
		}
		return first
	}
	w.gate = g + 1
	if first < w.flags {
		w.sure |= 1 << first // its turn comes later
	}
	return int(w.gates[g])
}
