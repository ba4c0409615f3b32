package plan

import (
	donav1 "github.com/dodona-project/dodona/proto/dona/v1"
)

// maxTotal bounds the sum of the shares, so that products of two fit 64 bits.
const maxTotal = 1 << 31

// shares returns what each candidate gets relative to the others; 0 takes none.
// A plan's weight for an id replaces the candidate's own. With group weights each
// group has its share, divided among its candidates by their weights; a group
// that the plan does not name has none.
func shares(p *donav1.Plan, candidates []Candidate) []uint64 {
	out := make([]uint64, len(candidates))
	for i, c := range candidates {
		out[i] = uint64(c.Weight)
		if w, named := p.GetWeights()[c.ID]; named {
			out[i] = uint64(w)
		}
	}
	if groups := p.GetGroupWeights(); len(groups) > 0 {
		divide(out, candidates, groups)
	}
	reduce(out)
	return out
}

// divide turns weights inside groups into shares of the whole. They are scaled to
// a total fine enough that rounding moves nobody's share by a thousandth.
func divide(weights []uint64, candidates []Candidate, groups map[string]uint32) {
	inside := map[string]uint64{}
	for i, c := range candidates {
		inside[c.Group] += weights[i]
	}
	var all float64
	for g, w := range inside {
		if w > 0 {
			all += float64(groups[g])
		}
	}
	scale := float64(max(1<<20, 1024*len(candidates)))
	for i, c := range candidates {
		group := float64(groups[c.Group])
		if weights[i] == 0 || group == 0 {
			weights[i] = 0
			continue
		}
		share := group / all * float64(weights[i]) / float64(inside[c.Group])
		weights[i] = max(1, uint64(share*scale+0.5))
	}
}

// reduce makes the shares as small as they can be, and their sum at most maxTotal.
func reduce(weights []uint64) {
	var total, divisor uint64
	for _, w := range weights {
		total += w
		divisor = gcd(w, divisor)
	}
	if total == 0 {
		return
	}
	if total/divisor > maxTotal {
		// Rounding down, at least 1: below maxTotal plus one per candidate.
		for i, w := range weights {
			if w > 0 {
				weights[i] = max(1, uint64(float64(w)/float64(total)*maxTotal))
			}
		}
		return
	}
	for i := range weights {
		weights[i] /= divisor
	}
}
