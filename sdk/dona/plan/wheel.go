package plan

import "sort"

// wheel is a smooth weighted round robin without state but a counter. Think of a
// circle with one position per unit of share, each slot owning an arc. Turn k is
// at position k*step mod total. As step and total have no common divisor, any
// total consecutive turns visit every position once, so each slot gets exactly
// its share; as step is near the golden section of the circle, the turns of one
// slot are spread over the period and not bunched.
type wheel struct {
	total, step uint64
	ends        []uint64 // ends[i] is one past the last position of slot i
	guide       []int32  // guide[p>>shift] is the first slot that reaches past p's block
	shift       uint
}

func newWheel(slots []slot) wheel {
	w := wheel{ends: make([]uint64, len(slots))}
	for i, s := range slots {
		w.total += s.weight
		w.ends[i] = w.total
	}
	if w.total == 0 {
		return w
	}
	w.step = stepFor(w.total, len(slots))
	for w.total>>w.shift > uint64(2*len(slots)) {
		w.shift++
	}
	w.guide = make([]int32, w.total>>w.shift+2)
	slot := 0
	for b := range w.guide {
		for slot < len(slots)-1 && w.ends[slot] <= uint64(b)<<w.shift {
			slot++
		}
		w.guide[b] = int32(slot)
	}
	return w
}

// at returns the slot of turn k.
func (w *wheel) at(k uint64) int {
	position := k % w.total * w.step % w.total
	block := position >> w.shift
	low, high := int(w.guide[block]), int(w.guide[block+1])
	for low < high {
		middle := (low + high) / 2
		if w.ends[middle] > position {
			high = middle
		} else {
			low = middle + 1
		}
	}
	return low
}

// stepFor chooses the step: 1 when all shares are equal, which is plain rotation,
// else the number near total divided by the golden ratio that has no common
// divisor with total and spreads best.
func stepFor(total uint64, slots int) uint64 {
	if total == uint64(slots) || total < 5 {
		return 1
	}
	middle := uint64(float64(total) * 0.6180339887498949)
	type candidate struct{ step, worst uint64 }
	var fit []candidate
	for d := uint64(0); d <= 32; d++ {
		for _, step := range []uint64{middle + d, middle - d} {
			if step > 0 && step < total && gcd(total, step) == 1 {
				fit = append(fit, candidate{step, worstQuotient(step, total)})
			}
		}
	}
	if len(fit) == 0 {
		return 1
	}
	sort.SliceStable(fit, func(i, j int) bool { return fit[i].worst < fit[j].worst })
	return fit[0].step
}

// worstQuotient returns the largest partial quotient of the continued fraction of
// a/b: the smaller it is, the more evenly multiples of a fill a circle of b.
func worstQuotient(a, b uint64) (worst uint64) {
	for a != 0 {
		q := b / a
		a, b = b%a, a
		worst = max(worst, q)
	}
	return worst
}
