package plan

import "math/rand/v2"

// Taking the better of a few candidates drawn at random spreads load almost as
// evenly as asking all of them, and does not make all clients prefer the same one:
// M. Mitzenmacher, "The Power of Two Choices in Randomized Load Balancing", 2001.

// less reports whether slot a is less loaded than slot b for its weight. With peak
// EWMA the load is what a call there would cost.
func (k *Picker) less(a, b int) bool {
	x, y := &k.slots[a], &k.slots[b]
	if k.algorithm == peakEWMA {
		return x.cheaper(y)
	}
	return uint64(max(0, x.load.InFlight()))*y.weight < uint64(max(0, y.load.InFlight()))*x.weight
}

// leastLoaded draws candidates by weight and returns the least loaded for its
// weight, the first drawn when equal: so an idle service sees exactly the
// weights. Two draws share one random number. With tried it returns -1 when no
// draw hit an untried candidate.
func (k *Picker) leastLoaded(tried []string) int {
	if tried == nil && k.choices == 2 {
		random := rand.Uint64()
		a, b := k.draw(uint32(random)), k.draw(uint32(random>>32))
		if a != b && k.less(b, a) {
			return b
		}
		return a
	}
	best, compared := -1, 0
	for i := 0; compared < k.choices && i < k.choices+attempts; i++ {
		s := k.draw(rand.Uint32())
		if contains(tried, k.ids[s]) {
			continue
		}
		compared++
		if best < 0 || k.less(s, best) {
			best = s
		}
	}
	return best
}

// least goes through all slots and returns the least loaded of those not tried; -1
// when there is none.
func (k *Picker) least(tried []string) int {
	best := -1
	for i := range k.slots {
		if !contains(tried, k.ids[i]) && (best < 0 || k.less(i, best)) {
			best = i
		}
	}
	return best
}
