package plan_test

import (
	"fmt"
	"math"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	donav1 "github.com/dodona-project/dodona/proto/dona/v1"
	"github.com/dodona-project/dodona/sdk/dona/plan"
)

// Shares of random picks are off by no more than chance explains: six deviations,
// which no run of this test should ever see.
func TestRandomShares(t *testing.T) {
	const picks = 5000
	rapid.Check(t, func(t *rapid.T) {
		weights := rapid.SliceOfN(rapid.Uint32Range(0, 1000), 1, 20).Draw(t, "weights")
		var total float64
		for _, w := range weights {
			total += float64(w)
		}
		k := newPicker(t, planOf(random), candidates(weights...))
		if total == 0 {
			if _, ok := k.Pick(0, nil); ok {
				t.Fatal("picked a candidate without weight")
			}
			return
		}
		for i, n := range counts(t, k, len(weights), picks) {
			p := float64(weights[i]) / total
			if off := math.Abs(float64(n) - p*picks); off > 6*math.Sqrt(picks*p*(1-p))+1 {
				t.Fatalf("candidate %d of weight %d was picked %d times, want about %.0f: %v", i, weights[i], n, p*picks, weights)
			}
		}
	})
}

// What is left after many were tried is drawn by weight too.
func TestRandomAmongFewLeft(t *testing.T) {
	weights := slices.Repeat([]uint32{100}, 50)
	weights[20], weights[40] = 10, 30
	c := candidates(weights...)
	var tried []string
	for i := range c {
		if i != 20 && i != 40 {
			tried = append(tried, c[i].ID)
		}
	}
	k := newPicker(t, planOf(random), c)
	n := 0
	for range 4000 {
		if i, _ := k.Pick(0, tried); i == 40 {
			n++
		}
	}
	if share := float64(n) / 4000; math.Abs(share-0.75) > 0.05 {
		t.Errorf("weight 30 of 40 has share %.3f", share)
	}
}

// The lowest tier that has somebody left is used, whatever was tried and whoever
// has no weight, and inside it everybody has exactly its share.
func TestTiers(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		c := candidates(rapid.SliceOfN(rapid.Uint32Range(0, 5), 1, 15).Draw(t, "weights")...)
		p := planOf(tiered)
		p.GroupTiers = rapid.MapOfN(rapid.SampledFrom([]string{"a", "b", "c", "d"}), rapid.Uint32Range(0, 3), 0, 4).Draw(t, "tiers")
		var tried []string
		for i := range c {
			c[i].Group = rapid.SampledFrom([]string{"a", "b", "c", "d"}).Draw(t, "group")
			if rapid.IntRange(0, 3).Draw(t, "tried") == 0 {
				tried = append(tried, c[i].ID)
			}
		}
		k, err := plan.New(p, c, rapid.Uint64Range(0, 1<<40).Draw(t, "start"))
		if err != nil {
			t.Fatal(err)
		}
		lowest, period := uint32(math.MaxUint32), 0
		for i := range c {
			if tier := p.GroupTiers[c[i].Group]; c[i].Weight > 0 && !slices.Contains(tried, c[i].ID) && tier < lowest {
				lowest = tier
			}
		}
		for i := range c {
			if p.GroupTiers[c[i].Group] == lowest {
				period += int(c[i].Weight)
			}
		}
		got := make([]int, len(c))
		for range period {
			i, ok := k.Pick(0, tried)
			if !ok || p.GroupTiers[c[i].Group] != lowest || slices.Contains(tried, c[i].ID) {
				t.Fatalf("picked %d, %v: the lowest tier with room is %d", i, ok, lowest)
			}
			got[i]++
		}
		if lowest == math.MaxUint32 {
			if _, ok := k.Pick(0, tried); ok {
				t.Fatal("picked although nobody is left")
			}
		}
		if len(tried) > 0 {
			return // their turns go to others
		}
		for i := range c {
			if want := int(c[i].Weight); p.GroupTiers[c[i].Group] == lowest && got[i] != want {
				t.Fatalf("candidate %d of weight %d was picked %d times in one period", i, want, got[i])
			}
		}
	})
}

// The same plan, candidates and start give the same picks, and so does the same key.
func TestPicksAreDetermined(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		c := candidates(someWeights(t, 1, 20)...)
		for i := range c {
			c[i].Group = fmt.Sprint("zone-", i%3)
		}
		start := rapid.Uint64().Draw(t, "start")
		for _, algorithm := range []donav1.Algorithm{roundRobin, tiered, consistentHash} {
			p := planOf(algorithm)
			p.GroupTiers = map[string]uint32{"zone-2": 1}
			var runs [2][]int
			for r := range runs {
				k, err := plan.New(p, c, start)
				if err != nil {
					t.Fatal(err)
				}
				for key := range uint64(50) {
					i, _ := k.Pick(key+1, nil)
					runs[r] = append(runs[r], i)
				}
			}
			if !slices.Equal(runs[0], runs[1]) {
				t.Fatalf("%s: %v, then %v", algorithm, runs[0], runs[1])
			}
		}
	})
}

// caller makes calls one after the other, in the bubble's time. took says how long a
// call to a candidate takes and whether it succeeds.
func caller(t failer, k *plan.Picker, c []plan.Candidate, calls int, took func(i int) (time.Duration, bool)) []int {
	t.Helper()
	got := make([]int, len(c))
	for range calls {
		i, ok := k.Pick(0, nil)
		if !ok {
			t.Fatal("nothing to pick")
		}
		c[i].Load.Begin()
		d, success := took(i)
		time.Sleep(d)
		c[i].Load.Observe(d, success)
		c[i].Load.End()
		got[i]++
	}
	return got
}

// ewmaOf returns a picker that compares so many candidates. Of 32 draws among two or
// three, each pick sees them all: one in a million misses one.
func ewmaOf(t failer, choices uint32, c []plan.Candidate) *plan.Picker {
	p := planOf(peakEWMA)
	p.Choices = choices
	return newPicker(t, p, c)
}

func TestPeakEWMAPrefersTheFaster(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := candidates(100, 100, 100)
		got := caller(t, ewmaOf(t, 2, c), c, 3000, func(i int) (time.Duration, bool) {
			return []time.Duration{time.Millisecond, 10 * time.Millisecond, 100 * time.Millisecond}[i], true
		})
		// Of two draws the faster wins: 5/9, 3/9, 1/9; the slow one a little more as
		// its estimate falls.
		if got[0] < 1350 || got[0] > 1850 || got[2] > 700 || got[2] < 100 {
			t.Errorf("calls of 1, 10 and 100 ms: %v", got)
		}
	})
}

func TestPeakEWMALeavesASlowEndpointAndComesBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := candidates(100, 100)
		k := ewmaOf(t, 32, c)
		slow := time.Duration(0)
		took := func(i int) (time.Duration, bool) { return 5*time.Millisecond + time.Duration(i)*slow, true }
		if got := caller(t, k, c, 400, took); got[1] < 50 {
			t.Errorf("equally fast: %v", got)
		}
		slow = 500 * time.Millisecond
		if got := caller(t, k, c, 400, took); got[1] > 3 { // until the first slow call ends
			t.Errorf("one stalls: %v", got)
		}
		slow = 0
		// Its estimate has to fall from 505 ms to 5: ln(101) times 10 s.
		began, asked := time.Now(), 0
		for asked == 0 && time.Since(began) < 5*time.Minute {
			asked = caller(t, k, c, 100, took)[1]
		}
		t.Logf("it was asked again after %v", time.Since(began))
		if asked == 0 || time.Since(began) < 10*time.Second {
			t.Errorf("fast again: it was asked %d times after %v", asked, time.Since(began))
		}
		caller(t, k, c, 15_000, took)
		if got := caller(t, k, c, 1000, took); got[1] < 200 {
			t.Errorf("two minutes later: %v", got)
		}
	})
}

func TestPeakEWMAAvoidsFastFailures(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := candidates(100, 100)
		got := caller(t, ewmaOf(t, 32, c), c, 1000, func(i int) (time.Duration, bool) {
			if i == 1 {
				return time.Millisecond, false
			}
			return 20 * time.Millisecond, true
		})
		if got[1] > 20 || got[1] == 0 {
			t.Errorf("one fails within a millisecond: %v", got)
		}
	})
}

// Where calls take longer than what a failed one counts at least, failing is no way
// to look fast either.
func TestPeakEWMAAvoidsFailuresAmongTheSlow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := candidates(100, 100)
		k := ewmaOf(t, 32, c)
		fail := false
		took := func(i int) (time.Duration, bool) {
			if i == 1 && fail {
				return time.Millisecond, false
			}
			return 3 * time.Second, true
		}
		caller(t, k, c, 40, took)
		fail = true
		// Its estimate falls while it is left alone, so it is asked now and then.
		if got := caller(t, k, c, 200, took); got[1] > 110 {
			t.Errorf("one fails within a millisecond: %v", got)
		}
	})
}

// An endpoint that answers no more gets no more calls, though nothing is measured.
func TestPeakEWMAAvoidsAnEndpointThatHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := candidates(100, 100)
		k := ewmaOf(t, 32, c)
		caller(t, k, c, 100, func(int) (time.Duration, bool) { return 5 * time.Millisecond, true })
		hung := 0
		for range 5000 { // 25 s at least
			i, _ := k.Pick(0, nil)
			c[i].Load.Begin()
			if i == 1 {
				hung++
				continue
			}
			time.Sleep(5 * time.Millisecond)
			c[i].Load.Observe(5*time.Millisecond, true)
			c[i].Load.End()
		}
		if hung > 3 {
			t.Errorf("%d calls hang", hung)
		}
	})
}

// Of whom nothing is known gets one call, and no second one before that ended.
func TestPeakEWMATriesTheUnknownOnce(t *testing.T) {
	c := candidates(100, 100, 100)
	k := ewmaOf(t, 32, c)
	c[0].Load.Observe(time.Millisecond, true)
	c[0].Load.Begin()
	got := make([]int, 3)
	for range 20 {
		i, _ := k.Pick(0, nil)
		c[i].Load.Begin()
		got[i]++
	}
	if got[0] < 16 || got[1] == 0 || got[2] == 0 { // 18, 1, 1, unless one is not drawn
		t.Errorf("picked %v, want about 18, 1, 1", got)
	}
}

// Without latencies the calls in flight decide, as with least connections.
func TestPeakEWMAWithoutLatencies(t *testing.T) {
	c := candidates(100, 50, 50)
	k := ewmaOf(t, 2, c)
	var picks [3]int
	for range 400 {
		i, _ := k.Pick(0, nil)
		c[i].Load.Begin()
		c[i].Load.Observe(0, true)
		picks[i]++
	}
	if picks[0] < 190 || picks[0] > 210 {
		t.Errorf("in flight %v, want about 200, 100, 100", picks)
	}
}

// Concurrent observations of one endpoint lose none that matters: an estimate is
// never above the slowest call, and a slow call always counts.
func TestConcurrentObservations(t *testing.T) {
	c := candidates(100, 100)
	k := ewmaOf(t, 32, c)
	var wg sync.WaitGroup
	for w := range 4 {
		wg.Go(func() {
			for range 1000 {
				c[0].Load.Observe(time.Duration(w+1)*time.Millisecond, true)
			}
		})
	}
	wg.Wait()
	c[1].Load.Observe(5*time.Millisecond, true)
	for range 50 {
		if i, _ := k.Pick(0, nil); i != 0 {
			t.Fatal("calls of 1 to 4 ms cost more than one of 5 ms")
		}
	}
	wg.Go(func() { c[0].Load.Observe(time.Second, true) })
	wg.Wait()
	for range 50 {
		if i, _ := k.Pick(0, nil); i != 1 {
			t.Fatal("a call of a second costs less than one of 5 ms")
		}
	}
}
