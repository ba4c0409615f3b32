package plan

import (
	"maps"
	"slices"
)

// newTiers returns a round robin over the lowest tier that spills over into the
// next one when it has no room: when each of its candidates was tried. Tiers
// without a candidate that has a share are none.
func newTiers(tierOf map[string]uint32, candidates []Candidate, shares []uint64, start uint64) *Picker {
	members := map[uint32][]int{}
	for i, c := range candidates {
		if shares[i] > 0 {
			tier := tierOf[c.Group]
			members[tier] = append(members[tier], i)
		}
	}
	var top *Picker
	tiers := slices.Sorted(maps.Keys(members))
	for _, tier := range slices.Backward(tiers) {
		inside := make([]uint64, len(shares))
		for _, i := range members[tier] {
			inside[i] = shares[i]
		}
		reduce(inside)
		k := newPicker(candidates, inside)
		k.spill = top
		k.turn(start)
		top = k
	}
	if top == nil {
		top = &Picker{}
		top.turn(start)
	}
	return top
}
