package plan_test

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"testing"

	"github.com/dodona-project/dodona/sdk/dona/plan"
)

// The share of each candidate is its weight, whatever the algorithm: off by at most
// 2 percent of it. What chooses at random is picked so often that chance explains less
// than a fifth of that.
func TestSharesOfEveryAlgorithm(t *testing.T) {
	for _, weights := range [][]uint32{
		{100, 100, 100}, {100, 50}, slices.Repeat([]uint32{100}, 5), {100, 75, 50, 25}, {300, 200, 100, 100, 100},
	} {
		var total float64
		for _, w := range weights {
			total += float64(w)
		}
		for _, algorithm := range algorithms {
			c := candidates(weights...)
			k := newPicker(t, planOf(algorithm), c)
			picks := 100_000
			switch algorithm {
			case random, least, peakEWMA:
				picks = 500_000
			}
			got := make([]float64, len(c))
			for n := range picks {
				i, ok := k.Pick(plan.Key("user-"+strconv.Itoa(n)), nil)
				if !ok {
					t.Fatal("nothing to pick")
				}
				got[i]++
			}
			for i, w := range weights {
				want := float64(w) / total
				if off := got[i]/float64(picks)/want - 1; math.Abs(off) > 0.02 {
					t.Errorf("%s, weights %v: candidate %d has %+.2f %% of its share", algorithm, weights, i, 100*off)
				}
			}
		}
	}
}

// With many candidates chance alone is more than 2 percent of a share, but of all picks
// no more than 2 in 100 are beside where they belong.
func TestSharesOfMany(t *testing.T) {
	for _, n := range []int{10, 50} {
		for _, weights := range [][]uint32{slices.Repeat([]uint32{100}, n), slices.Repeat([]uint32{100, 80, 60, 40, 20}, n/5)} {
			var total float64
			for _, w := range weights {
				total += float64(w)
			}
			for _, algorithm := range algorithms {
				k := newPicker(t, planOf(algorithm), candidates(weights...))
				const picks = 100_000
				got := make([]float64, n)
				for key := range picks {
					i, _ := k.Pick(plan.Key(fmt.Sprint("user-", key)), nil)
					got[i]++
				}
				beside := 0.0
				for i, w := range weights {
					beside += math.Abs(got[i]-picks*float64(w)/total) / 2
				}
				if beside > 0.02*picks {
					t.Errorf("%s, %d candidates, weights from %d: %.2f %% of the picks are beside their shares", algorithm, n, weights[0], 100*beside/picks)
				}
			}
		}
	}
}
