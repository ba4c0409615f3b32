package plan_test

import (
	"fmt"
	"math"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"pgregory.net/rapid"

	donav1 "github.com/dodona-project/dodona/proto/dona/v1"
	"github.com/dodona-project/dodona/sdk/dona/plan"
)

func hashPlan(maxLoad uint32) *donav1.Plan {
	p := planOf(consistentHash)
	p.MaxLoadPercent = maxLoad
	return p
}

// owners returns whose each of n keys is while nothing is in flight.
func owners(t failer, c []plan.Candidate, n int) []string {
	t.Helper()
	k := newPicker(t, hashPlan(0), c)
	out := make([]string, n)
	for i := range out {
		at, ok := k.Pick(plan.Key("user-"+strconv.Itoa(i)), nil)
		if !ok {
			t.Fatal("nothing to pick")
		}
		out[i] = c[at].ID
	}
	return out
}

// someWeights are weights as a host gives them.
func someWeights(t *rapid.T, least, most int) []uint32 {
	return rapid.SliceOfN(rapid.Map(rapid.Uint32Range(1, 20), func(w uint32) uint32 { return 5 * w }), least, most).Draw(t, "weights")
}

// Each change of the candidates moves the keys that it must and no others.
func TestHashMovesNoKeyWithoutNeed(t *testing.T) {
	const keys = 1000
	rapid.Check(t, func(t *rapid.T) {
		c := candidates(someWeights(t, 2, 40)...)
		before := owners(t, c, keys)
		at := rapid.IntRange(0, len(c)-1).Draw(t, "at")
		id := c[at].ID

		switch rapid.SampledFrom([]string{"order", "leave", "heavier", "all"}).Draw(t, "change") {
		case "order":
			shuffled := rapid.Permutation(c).Draw(t, "order")
			if got := owners(t, shuffled, keys); !slices.Equal(got, before) {
				t.Fatal("the order of the candidates moves keys")
			}
		case "leave":
			for i, now := range owners(t, slices.Delete(slices.Clone(c), at, at+1), keys) {
				if before[i] != id && now != before[i] {
					t.Fatalf("%s leaves, and key %d moves from %s to %s", id, i, before[i], now)
				}
			}
		case "heavier":
			heavier := slices.Clone(c)
			heavier[at].Weight += rapid.Uint32Range(1, 50).Draw(t, "more")
			for i, now := range owners(t, heavier, keys) {
				if now != before[i] && now != id {
					t.Fatalf("%s gets heavier, and key %d moves from %s to %s", id, i, before[i], now)
				}
			}
		case "all":
			all := slices.Clone(c)
			for i := range all {
				all[i].Weight *= 7
			}
			if got := owners(t, all, keys); !slices.Equal(got, before) {
				t.Fatal("seven times all weights moves keys")
			}
		}
	})
}

// One of n candidates that leaves has about one key in n.
func TestHashRemovalMovesAboutOneInN(t *testing.T) {
	for _, n := range []int{3, 10, 40} {
		const keys = 20_000
		c := candidates(slices.Repeat([]uint32{100}, n)...)
		before := owners(t, c, keys)
		for at := range c[:min(n, 5)] {
			moved := 0
			for i, now := range owners(t, slices.Delete(slices.Clone(c), at, at+1), keys) {
				if now != before[i] {
					moved++
				}
			}
			if share := float64(moved) * float64(n) / keys; share < 0.8 || share > 1.25 {
				t.Errorf("candidate %d of %d leaves, and %d of %d keys move: %.2f times one in %d", at, n, moved, keys, share, n)
			}
		}
	}
}

// Where keys go is part of what clients agree on: a change of the hash moves all
// keys of everybody while some clients have it and some have not.
func TestHashIsTheSameEverywhere(t *testing.T) {
	for text, want := range map[string]uint64{"": 0xefd01f60ba992926, "user-1": 0x41a2fca5c68401c5} {
		if got := plan.Key(text); got != want || got != plan.Key([]byte(text)) {
			t.Errorf("Key(%q) = %#x, want %#x", text, got, want)
		}
	}
	got := owners(t, candidates(100, 100, 100, 50, 5), 12)
	if want := "[e3 e3 e2 e0 e3 e2 e2 e2 e1 e2 e2 e1]"; fmt.Sprint(got) != want {
		t.Errorf("the keys user-0 to user-11 belong to %v, want %v", got, want)
	}
	all := strings.Join(owners(t, candidates(100, 100, 100, 50, 5), 2000), " ")
	if got, want := plan.Key(all), uint64(0x344dbad78910520b); got != want {
		t.Errorf("the places of 2,000 keys hash to %#x, want %#x", got, want)
	}
}

// Beside chance, shares are as even as the number of places allows.
func TestHashShares(t *testing.T) {
	for _, test := range []struct {
		weights []uint32
		off     float64 // root of the mean square
	}{
		{slices.Repeat([]uint32{100}, 3), 0.008},
		{[]uint32{100, 50, 25, 75, 5}, 0.015},
		{slices.Repeat([]uint32{100}, 10), 0.01},
		{slices.Repeat([]uint32{100}, 100), 0.025},
		{slices.Repeat([]uint32{5, 50, 100, 100, 95}, 20), 0.045},
	} {
		c := candidates(test.weights...)
		const keys = 1_000_000
		k := newPicker(t, hashPlan(0), c)
		got := make([]float64, len(c))
		for key := range uint64(keys) {
			at, _ := k.Pick(key+1, nil)
			got[at]++
		}
		var total, squares float64
		for _, w := range test.weights {
			total += float64(w)
		}
		for i, w := range test.weights {
			off := got[i]/keys/(float64(w)/total) - 1
			squares += off * off
		}
		rms := math.Sqrt(squares / float64(len(c)))
		t.Logf("%d candidates: shares are off by %.4f", len(c), rms)
		if rms > test.off {
			t.Errorf("%d candidates: shares are off by %.4f, want at most %.3f", len(c), rms, test.off)
		}
	}
}

// A request without a key goes anywhere, by weight.
func TestHashWithoutKey(t *testing.T) {
	k := newPicker(t, hashPlan(0), candidates(100, 300))
	got := counts(t, k, 2, 20_000)
	if share := float64(got[1]) / 20_000; math.Abs(share-0.75) > 0.1 {
		t.Errorf("weight 300 of 400 has share %.3f", share)
	}
}

// No candidate ever gets a call beyond max_load_percent of its share of the calls in
// flight, however few keys the calls have; and a key keeps its place while there
// is room.
func TestHashBoundsLoads(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		c := candidates(someWeights(t, 2, 40)...)
		maxLoad := rapid.SampledFrom([]uint32{0, 101, 110, 125, 200, 1000}).Draw(t, "max load")
		k := newPicker(t, hashPlan(maxLoad), c)
		home := map[int]int{}
		idle := newPicker(t, hashPlan(maxLoad), c)
		for key := range 4 {
			home[key], _ = idle.Pick(plan.Key(strconv.Itoa(key)), nil)
		}
		var total uint64
		for i := range c {
			total += uint64(c[i].Weight)
		}
		if maxLoad == 0 {
			maxLoad = plan.DefaultMaxLoad
		}
		limit := func(i int, calls float64) float64 {
			return math.Ceil(float64(maxLoad) * calls * float64(c[i].Weight) / float64(100*total)) // one division of whole numbers
		}
		var inFlight []int
		for range rapid.IntRange(1, 300).Draw(t, "steps") {
			if len(inFlight) > 0 && rapid.IntRange(0, 3).Draw(t, "end") == 0 {
				at := rapid.IntRange(0, len(inFlight)-1).Draw(t, "call")
				c[inFlight[at]].Load.End()
				inFlight = slices.Delete(inFlight, at, at+1)
				continue
			}
			key := rapid.IntRange(0, 3).Draw(t, "key")
			i, ok := k.Pick(plan.Key(strconv.Itoa(key)), nil)
			if !ok {
				t.Fatal("nothing to pick")
			}
			calls := float64(len(inFlight) + 1)
			if now := float64(c[i].Load.InFlight() + 1); now > limit(i, calls) {
				t.Fatalf("%s of weight %d has %v of %v calls in flight, allowed are %v", c[i].ID, c[i].Weight, now, calls, limit(i, calls))
			}
			if h := home[key]; i != h && float64(c[h].Load.InFlight()+1) <= limit(h, calls) {
				t.Fatalf("key %d left %s, which has room: %d in flight of %v", key, c[h].ID, c[h].Load.InFlight(), calls)
			}
			c[i].Load.Begin()
			inFlight = append(inFlight, i)
		}
	})
}

// A hot key that runs over spreads over all others.
func TestHashSpreadsWhatRunsOver(t *testing.T) {
	c := candidates(slices.Repeat([]uint32{100}, 20)...)
	k := newPicker(t, hashPlan(125), c)
	const calls = 4000
	for range calls {
		i, _ := k.Pick(plan.Key("hot"), nil)
		c[i].Load.Begin()
	}
	for i := range c {
		if n := c[i].Load.InFlight(); n > calls/20*125/100+1 || n < calls/20/2 {
			t.Errorf("%s has %d calls in flight, the average is %d", c[i].ID, n, calls/20)
		}
	}
}

// With many candidates calls are not counted at each pick, and the bound lags by part
// of a call.
func TestHashBoundsLoadsOfMany(t *testing.T) {
	const n, calls = 500, 5000
	c := candidates(slices.Repeat([]uint32{100}, n)...)
	k := newPicker(t, hashPlan(125), c)
	check := func(inFlight int) {
		t.Helper()
		most, average := int64(0), float64(inFlight)/n
		for i := range c {
			most = max(most, c[i].Load.InFlight())
		}
		if limit := int64(math.Ceil(1.25*average)) + 1; most > limit {
			t.Errorf("%d calls in flight: one candidate has %d, at most %d are right", inFlight, most, limit)
		}
	}
	var at []int
	for i := range calls {
		s, _ := k.Pick(plan.Key(strconv.Itoa(i%7)), nil)
		c[s].Load.Begin()
		at = append(at, s)
		if i%100 == 99 {
			check(i + 1)
		}
	}
	for _, s := range at {
		c[s].Load.End()
	}
	// That they ended is noticed long before as many have begun again.
	for i := range calls {
		s, _ := k.Pick(plan.Key(strconv.Itoa(i%7)), nil)
		c[s].Load.Begin()
	}
	check(calls)
}

func TestHashBoundsLoadsOfConcurrentPicks(t *testing.T) {
	const workers, calls = 4, 2000
	for _, n := range []int{4, 50} {
		c := candidates(slices.Repeat([]uint32{100}, n)...)
		k := newPicker(t, hashPlan(150), c)
		var wg sync.WaitGroup
		for range workers {
			wg.Go(func() {
				for range calls {
					i, _ := k.Pick(plan.Key("hot"), nil)
					c[i].Load.Begin()
				}
			})
		}
		wg.Wait()
		var sum int64
		for i := range c {
			now := c[i].Load.InFlight()
			sum += now
			// Each worker may have looked before the others' calls began.
			if most := int64(math.Ceil(1.5*workers*calls/float64(n))) + workers; now > most {
				t.Errorf("%d candidates: %s has %d calls in flight, at most %d are right", n, c[i].ID, now, most)
			}
		}
		if sum != workers*calls {
			t.Errorf("%d calls in flight, want %d", sum, workers*calls)
		}
	}
}

// A new picker knows the calls that began before it: keys stay where they are.
func TestHashKeepsKeysWhileCallsAreInFlight(t *testing.T) {
	c := candidates(slices.Repeat([]uint32{100}, 50)...)
	before := owners(t, c, 200)
	for i := range c {
		for range 20 {
			c[i].Load.Begin()
		}
	}
	if now := owners(t, c, 200); !slices.Equal(now, before) {
		t.Error("keys move though everybody has as many calls in flight")
	}
}

// Making the table costs milliseconds, so pickers of the same candidates have one.
func TestHashTablesAreShared(t *testing.T) {
	c := candidates(10, 20, 30)
	k := newPicker(t, hashPlan(0), c)
	again := candidates(100, 200, 300)
	slices.Reverse(again)
	if !plan.SharePlaces(k, newPicker(t, hashPlan(110), again)) {
		t.Error("a picker of the same candidates made a table of its own")
	}
	if plan.SharePlaces(k, newPicker(t, hashPlan(0), candidates(10, 20, 31))) {
		t.Error("a picker with another weight has the same table")
	}
	if plan.SharePlaces(k, newPicker(t, hashPlan(0), c[:2])) {
		t.Error("a picker with fewer candidates has the same table")
	}
	runtime.KeepAlive(k)
	for began := time.Now(); plan.KnownPlaces() > 0; runtime.GC() {
		if time.Since(began) > 30*time.Second {
			t.Fatalf("%d tables are kept that nobody uses", plan.KnownPlaces())
		}
	}
}

// A retry of a key goes to the same next place each time, and those of other keys
// to other places.
func TestHashRetriesStayTogether(t *testing.T) {
	c := candidates(slices.Repeat([]uint32{100}, 30)...)
	k := newPicker(t, hashPlan(0), c)
	seconds := map[int]bool{} // of the keys that belong to candidate 0
	defer func() {
		if len(seconds) < 10 {
			t.Errorf("retries of the keys of one candidate go to %d others", len(seconds))
		}
	}()
	for key := range 2000 {
		h := plan.Key(strconv.Itoa(key))
		first, _ := k.Pick(h, nil)
		tried := []string{c[first].ID}
		second, _ := k.Pick(h, tried)
		if first == 0 {
			seconds[second] = true
		}
		for range 3 {
			if again, _ := k.Pick(h, tried); again != second || again == first {
				t.Fatalf("key %d: first %d, then %d and %d", key, first, second, again)
			}
		}
	}
}
