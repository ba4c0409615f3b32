package plan_test

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"pgregory.net/rapid"

	donav1 "github.com/dodona-project/dodona/proto/dona/v1"
	"github.com/dodona-project/dodona/sdk/dona/plan"
)

const (
	roundRobin     = donav1.Algorithm_ALGORITHM_ROUND_ROBIN
	random         = donav1.Algorithm_ALGORITHM_RANDOM
	least          = donav1.Algorithm_ALGORITHM_LEAST_CONNECTIONS
	tiered         = donav1.Algorithm_ALGORITHM_TIERED
	consistentHash = donav1.Algorithm_ALGORITHM_CONSISTENT_HASH
	peakEWMA       = donav1.Algorithm_ALGORITHM_PEAK_EWMA
)

var algorithms = []donav1.Algorithm{roundRobin, random, least, tiered, consistentHash, peakEWMA}

// planOf returns the smallest plan of an algorithm.
func planOf(a donav1.Algorithm) *donav1.Plan {
	p := &donav1.Plan{Algorithm: a}
	if a == consistentHash {
		p.Hash = &donav1.HashPolicy{Source: donav1.HashPolicy_SOURCE_UNIT}
	}
	return p
}

func candidates(weights ...uint32) []plan.Candidate {
	var out []plan.Candidate
	for i, w := range weights {
		out = append(out, plan.Candidate{ID: fmt.Sprint("e", i), Weight: w, Load: &plan.Load{}})
	}
	return out
}

// failer is what tests, benchmarks and properties have in common.
type failer interface {
	Helper()
	Fatal(...any)
}

func newPicker(t failer, p *donav1.Plan, c []plan.Candidate) *plan.Picker {
	t.Helper()
	k, err := plan.New(p, c, 0)
	if err != nil {
		t.Fatal(err)
	}
	return k
}

func counts(t failer, k *plan.Picker, candidates, picks int) []int {
	t.Helper()
	out := make([]int, candidates)
	for range picks {
		i, ok := k.Pick(0, nil)
		if !ok {
			t.Fatal("nothing to pick")
		}
		out[i]++
	}
	return out
}

func TestUnknownAlgorithmsAreRefused(t *testing.T) {
	for number := range donav1.Algorithm_name {
		a := donav1.Algorithm(number)
		p := planOf(a)
		p.Strategy = "mine"
		err := plan.Check(p)
		if known := slices.Contains(algorithms, a); known != (err == nil) {
			t.Errorf("%s: %v", a, err)
		}
		if err != nil && (!strings.Contains(err.Error(), a.String()) || !strings.Contains(err.Error(), "mine")) {
			t.Errorf("the error names neither algorithm nor strategy: %v", err)
		}
	}
	if _, err := plan.New(&donav1.Plan{Algorithm: 99}, candidates(1), 0); err == nil {
		t.Error("algorithm 99 is accepted")
	}
	if err := plan.Check(nil); err != nil {
		t.Errorf("no plan: %v", err)
	}
	for source := range donav1.HashPolicy_Source_name {
		p := planOf(consistentHash)
		p.Hash.Source = donav1.HashPolicy_Source(source)
		if err := plan.Check(p); (source != 0) != (err == nil) {
			t.Errorf("hash by %s: %v", p.Hash.Source, err)
		}
	}
	for _, p := range []*donav1.Plan{{Algorithm: consistentHash}, {Algorithm: consistentHash, Hash: &donav1.HashPolicy{Source: 7}}} {
		if err := plan.Check(p); err == nil || !strings.Contains(err.Error(), "hashes by") {
			t.Errorf("%v: %v", p, err)
		}
	}
}

// Over one period each candidate has exactly its weight, from wherever one starts.
func TestRoundRobinIsExact(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		weights := rapid.SliceOfN(rapid.Uint32Range(0, 100), 1, 30).Draw(t, "weights")
		total := 0
		for _, w := range weights {
			total += int(w)
		}
		k, err := plan.New(&donav1.Plan{Algorithm: roundRobin}, candidates(weights...), rapid.Uint64Range(0, 1<<40).Draw(t, "start"))
		if err != nil {
			t.Fatal(err)
		}
		if total == 0 {
			if _, ok := k.Pick(0, nil); ok {
				t.Fatal("picked a candidate without weight")
			}
			return
		}
		got := make([]int, len(weights))
		for range total {
			i, _ := k.Pick(0, nil)
			got[i]++
		}
		for i, w := range weights {
			if got[i] != int(w) {
				t.Fatalf("candidate %d of weight %d was picked %d times in %d: %v", i, w, got[i], total, got)
			}
		}
	})
}

// Smooth: after any number of picks nobody is far from its share.
func TestRoundRobinIsSmooth(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		weights := rapid.SliceOfN(rapid.Uint32Range(1, 100), 2, 12).Draw(t, "weights")
		var total float64
		for _, w := range weights {
			total += float64(w)
		}
		k := newPicker(t, nil, candidates(weights...))
		got := make([]float64, len(weights))
		for n := 1.0; n <= total; n++ {
			i, _ := k.Pick(0, nil)
			got[i]++
			for j, w := range weights {
				if off := math.Abs(got[j] - n*float64(w)/total); off > 4 {
					t.Fatalf("after %v picks candidate %d is %.1f from its share: weights %v", n, j, off, weights)
				}
			}
		}
	})
}

func TestEqualWeightsRotate(t *testing.T) {
	k := newPicker(t, nil, candidates(100, 100, 100))
	var order []int
	for range 6 {
		i, _ := k.Pick(0, nil)
		order = append(order, i)
	}
	if fmt.Sprint(order) != "[0 1 2 0 1 2]" {
		t.Errorf("picked %v", order)
	}
}

func TestPlanWeights(t *testing.T) {
	for _, algorithm := range algorithms {
		t.Run(algorithm.String(), func(t *testing.T) {
			p := planOf(algorithm)
			p.Weights = map[string]uint32{"e0": 0, "e1": 300, "gone": 5}
			k := newPicker(t, p, candidates(100, 100, 100))
			if k.Len() != 2 {
				t.Errorf("%d candidates can be picked, want 2", k.Len())
			}
			got := counts(t, k, 3, 4000)
			if got[0] != 0 {
				t.Errorf("weight 0 was picked %d times", got[0])
			}
			if share := float64(got[1]) / 4000; math.Abs(share-0.75) > 0.05 {
				t.Errorf("e1 has share %.3f, want 0.75", share)
			}
		})
	}
}

func TestGroupWeights(t *testing.T) {
	c := candidates(100, 100, 50, 100, 100)
	for i, zone := range []string{"a", "a", "a", "b", "c"} {
		c[i].Group = zone
	}
	for _, algorithm := range algorithms {
		t.Run(algorithm.String(), func(t *testing.T) {
			p := planOf(algorithm)
			p.GroupWeights = map[string]uint32{"a": 1, "b": 3, "elsewhere": 9}
			got := counts(t, newPicker(t, p, c), 5, 20000)
			for i, want := range []float64{0.10, 0.10, 0.05, 0.75, 0} {
				if share := float64(got[i]) / 20000; math.Abs(share-want) > 0.02 {
					t.Errorf("candidate %d has share %.4f, want %.3f", i, share, want)
				}
			}
			if got[4] != 0 {
				t.Errorf("a group without a share was picked %d times", got[4])
			}
		})
	}
}

// Very uneven and very large weights still give everybody a share.
func TestExtremeWeights(t *testing.T) {
	weights := make([]uint32, 10_000)
	for i := range weights {
		weights[i] = 1_000_000
	}
	weights[7] = 1
	for _, algorithm := range algorithms {
		k := newPicker(t, planOf(algorithm), candidates(weights...))
		if k.Len() != len(weights) {
			t.Errorf("%s: %d of %d can be picked", algorithm, k.Len(), len(weights))
		}
		counts(t, k, len(weights), 1000)
	}
}

func TestTriedAreLeftOut(t *testing.T) {
	for _, algorithm := range algorithms {
		rapid.Check(t, func(t *rapid.T) {
			n := rapid.IntRange(1, 12).Draw(t, "n")
			weights := make([]uint32, n)
			for i := range weights {
				weights[i] = rapid.SampledFrom([]uint32{0, 1, 50, 100, 10_000}).Draw(t, "weight")
			}
			var tried []string
			left := map[int]bool{}
			for i, w := range weights {
				if rapid.Bool().Draw(t, "tried") {
					tried = append(tried, fmt.Sprint("e", i))
				} else if w > 0 {
					left[i] = true
				}
			}
			p := planOf(algorithm)
			p.Choices = rapid.Uint32Range(0, 5).Draw(t, "choices")
			k := newPicker(t, p, candidates(weights...))
			for range 20 {
				i, ok := k.Pick(rapid.Uint64Range(0, 5).Draw(t, "key"), tried)
				if ok != (len(left) > 0) || ok && !left[i] {
					t.Fatalf("picked %d, %v; left are %v", i, ok, left)
				}
			}
		})
	}
}

// An idle service sees exactly the weights; a busy endpoint is avoided.
func TestLeastConnections(t *testing.T) {
	p := &donav1.Plan{Algorithm: least}
	c := candidates(100, 50, 50)
	k := newPicker(t, p, c)
	got := counts(t, k, 3, 40_000)
	if share := float64(got[0]) / 40_000; share < 0.48 || share > 0.52 {
		t.Errorf("idle: share %.3f, want 0.5", share)
	}
	for range 50 {
		c[0].Load.Begin()
	}
	got = counts(t, k, 3, 40_000)
	// Only when both draws land on it: 0.5 * 0.5.
	if share := float64(got[0]) / 40_000; share < 0.23 || share > 0.27 {
		t.Errorf("busy: share %.3f, want 0.25", share)
	}
	for range 50 {
		c[0].Load.End()
	}
	if n := c[0].Load.InFlight(); n != 0 {
		t.Errorf("%d in flight, want 0", n)
	}

	// Calls that never end spread by weight.
	var picks [3]int64
	for range 400 {
		i, _ := k.Pick(0, nil)
		c[i].Load.Begin()
		picks[i]++
	}
	if picks[0] < 190 || picks[0] > 210 {
		t.Errorf("in flight %v, want about 200, 100, 100", picks)
	}
}

func TestLoadsOutliveSnapshots(t *testing.T) {
	var loads plan.Loads
	a, b := loads.Get("a"), loads.Get("b")
	a.Begin()
	loads.Retain(func(id string) bool { return id == "a" })
	if loads.Get("a") != a || loads.Get("a").InFlight() != 1 {
		t.Error("the load of an endpoint that stayed was lost")
	}
	if loads.Get("b") == b {
		t.Error("the load of an endpoint that left was kept")
	}
}

func TestConcurrentPicks(t *testing.T) {
	const picks, workers = 3000, 4
	k := newPicker(t, nil, candidates(1, 2, 3, 6))
	var mu sync.Mutex
	total := make([]int, 4)
	var wg sync.WaitGroup
	for range workers {
		wg.Go(func() {
			got := counts(t, k, 4, picks)
			mu.Lock()
			defer mu.Unlock()
			for i, n := range got {
				total[i] += n
			}
		})
	}
	wg.Wait()
	for i, w := range []int{1, 2, 3, 6} {
		if want := picks * workers / 12 * w; total[i] != want {
			t.Errorf("candidate %d was picked %d times, want exactly %d", i, total[i], want)
		}
	}
}

func TestNoAllocation(t *testing.T) {
	tried := []string{"e1"}
	for _, algorithm := range algorithms {
		p := planOf(algorithm)
		p.Choices = 3
		c := candidates(5, 10, 20, 5, 5, 5, 5, 5, 5, 5, 5)
		k := newPicker(t, p, c)
		unit := []byte("user-1")
		if n := testing.AllocsPerRun(100, func() {
			i, _ := k.Pick(plan.Key(unit), nil)
			c[i].Load.Begin()
			k.Pick(plan.Key("user-1"), tried)
			c[i].Load.End()
			c[i].Load.Observe(time.Millisecond, true)
		}); n != 0 {
			t.Errorf("%s allocates %v times", algorithm, n)
		}
	}
}

// BenchmarkPick is a pick alone; busy, with the calls in flight and latencies that
// a pick looks at.
func BenchmarkPick(b *testing.B) {
	for _, algorithm := range algorithms {
		for _, n := range []int{100, 1000, 10_000} {
			weights := make([]uint32, n)
			for i := range weights {
				weights[i] = uint32(5 + i%20*5)
			}
			c := candidates(weights...)
			for i := range c {
				c[i].Group = fmt.Sprint("zone-", i%4)
				c[i].Load.Observe(time.Duration(i+1)*time.Microsecond, true)
				if i%2 == 0 {
					c[i].Load.Begin()
				}
			}
			p := planOf(algorithm)
			p.GroupTiers = map[string]uint32{"zone-1": 1}
			k := newPicker(b, p, c)
			b.Run(fmt.Sprintf("%s/%d", algorithm, n), func(b *testing.B) {
				key := uint64(1)
				for b.Loop() {
					key += 0x9e3779b97f4a7c15
					k.Pick(key, nil)
				}
			})
		}
	}
}

// BenchmarkNew is what a new snapshot costs for each set of candidates.
func BenchmarkNew(b *testing.B) {
	for _, algorithm := range algorithms {
		c := candidates(slices.Repeat([]uint32{50, 95, 100, 100}, 2500)...)
		b.Run(fmt.Sprintf("%s/%d", algorithm, len(c)), func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				newPicker(b, planOf(algorithm), c)
			}
		})
	}
}

// Whatever a plan that is accepted says, a pick is a candidate with a share that was
// not tried, and there is one exactly when such a candidate is left.
func TestEveryAcceptedPlanIsExecuted(t *testing.T) {
	number := rapid.OneOf(rapid.Just(uint32(0)), rapid.Uint32Range(0, 100), rapid.Uint32())
	groups := rapid.SampledFrom([]string{"", "a", "b"})
	rapid.Check(t, func(t *rapid.T) {
		c := candidates(rapid.SliceOfN(number, 0, 20).Draw(t, "weights")...)
		var ids []string
		for i := range c {
			c[i].Group = groups.Draw(t, "group")
			ids = append(ids, c[i].ID)
			for range rapid.IntRange(0, 3).Draw(t, "in flight") {
				c[i].Load.Begin()
			}
			c[i].Load.Observe(time.Duration(rapid.Int64().Draw(t, "latency")), rapid.Bool().Draw(t, "success"))
		}
		c = append(c, plan.Candidate{ID: "last", Weight: 1, Load: &plan.Load{}})
		ids = append(ids, "last")
		p := &donav1.Plan{
			Algorithm:      rapid.SampledFrom(algorithms).Draw(t, "algorithm"),
			Weights:        rapid.MapOfN(rapid.SampledFrom(ids), number, 0, 5).Draw(t, "plan's weights"),
			GroupWeights:   rapid.MapOfN(groups, number, 0, 3).Draw(t, "group weights"),
			GroupTiers:     rapid.MapOfN(groups, number, 0, 3).Draw(t, "tiers"),
			Hash:           &donav1.HashPolicy{Source: donav1.HashPolicy_SOURCE_UNIT},
			Choices:        number.Draw(t, "choices"),
			MaxLoadPercent: number.Draw(t, "max load"),
		}
		tried := rapid.SliceOfN(rapid.SampledFrom(ids), 0, 5).Draw(t, "tried")
		left := map[int]bool{}
		for i := range c {
			w, named := p.Weights[c[i].ID]
			if !named {
				w = c[i].Weight
			}
			if w > 0 && (len(p.GroupWeights) == 0 || p.GroupWeights[c[i].Group] > 0) && !slices.Contains(tried, c[i].ID) {
				left[i] = true
			}
		}
		k := newPicker(t, p, c)
		for range 10 {
			i, ok := k.Pick(rapid.Uint64().Draw(t, "key"), tried)
			if ok != (len(left) > 0) || ok && !left[i] {
				t.Fatalf("picked %d, %v; left are %v", i, ok, left)
			}
		}
	})
}
