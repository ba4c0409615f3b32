package ownership_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/dodona-project/dodona/host/pool/ownership"
)

func ids(prefix string, n int) (out []string) {
	for i := range n {
		out = append(out, fmt.Sprintf("%s%02d", prefix, i))
	}
	return out
}

// got sums a decision up: what each worker is given and loses.
func got(workers []ownership.Worker, u ownership.Upstream) string {
	assign, drain := ownership.Decide(workers, []ownership.Upstream{u}, 1000)
	given, lost := map[string]int{}, map[string]int{}
	for _, a := range assign {
		given[a.Worker]++
	}
	for _, d := range drain {
		lost[d.Worker+" "+d.Reason]++
	}
	var out []string
	for w, n := range given {
		out = append(out, fmt.Sprintf("%s+%d", w, n))
	}
	for w, n := range lost {
		out = append(out, fmt.Sprintf("%s-%d %s", w[:2], n, w[3:]))
	}
	slices.Sort(out)
	return strings.Join(out, ", ")
}

func w(id, zone string, edit ...func(*ownership.Worker)) ownership.Worker {
	out := ownership.Worker{ID: id, Zone: zone, Room: 100, Slots: 100}
	for _, f := range edit {
		f(&out)
	}
	return out
}

func TestDecide(t *testing.T) {
	room := func(n int) func(*ownership.Worker) { return func(x *ownership.Worker) { x.Room = n } }
	slots := func(n int) func(*ownership.Worker) { return func(x *ownership.Worker) { x.Slots = n } }
	silent := func(x *ownership.Worker) { x.Silent = true }
	leaving := func(x *ownership.Worker) { x.Leaving = true }
	two := []ownership.Worker{w("w1", "a"), w("w2", "b")}
	for _, tc := range []struct {
		name    string
		workers []ownership.Worker
		u       ownership.Upstream
		want    string
	}{
		{"nobody", nil, ownership.Upstream{Free: ids("p", 3)}, ""},
		{"evenly", two, ownership.Upstream{Free: ids("p", 10)}, "w1+5, w2+5"},
		{"by free capacity", []ownership.Worker{w("w1", "a", room(30)), w("w2", "a", room(10))}, ownership.Upstream{Free: ids("p", 8)}, "w1+6, w2+2"},
		{"first between zones", []ownership.Worker{w("w1", "a", room(50)), w("w2", "a", room(50)), w("w3", "b")}, ownership.Upstream{Free: ids("p", 8)}, "w1+2, w2+2, w3+4"},
		{"none that has no room or slots, or leaves", []ownership.Worker{w("w1", "a", room(0)), w("w2", "a", slots(0)), w("w3", "a", leaving), w("w4", "a")}, ownership.Upstream{Free: ids("p", 2)}, "w4+2"},
		{"as many as there are slots", []ownership.Worker{w("w1", "a", slots(3))}, ownership.Upstream{Free: ids("p", 5)}, "w1+3"},
		{"not what is kept", two, ownership.Upstream{Keep: 4, Free: ids("p", 6)}, "w1+1, w2+1"},
		{"what is missing of what is kept", two, ownership.Upstream{Keep: 3, Free: ids("p", 1), Owned: map[string][]string{"w1": ids("a", 4), "w2": ids("b", 4)}}, "w1-1 for extraction, w2-1 for extraction"},
		{"not again what is on its way", two, ownership.Upstream{Keep: 3, Free: ids("p", 1), Draining: 2, Owned: map[string][]string{"w1": ids("a", 4), "w2": ids("b", 4)}}, ""},
		{"those that an extraction waits for", two, ownership.Upstream{Keep: 2, Owned: map[string][]string{"w1": ids("a", 3), "w2": ids("b", 3)},
			Lacks: []ownership.Lack{{Count: 2, Of: map[string]bool{"b00": true, "b01": true, "gone": true}}}}, "w2-2 for extraction"},
		{"not more of them than there are", two, ownership.Upstream{Keep: 1, Owned: map[string][]string{"w1": ids("a", 4), "w2": ids("b", 4)},
			Lacks: []ownership.Lack{{Count: 3, Of: map[string]bool{"b01": true}}}}, "w2-1 for extraction"},
		{"all of one that leaves", []ownership.Worker{w("w1", "a", leaving), w("w2", "b")}, ownership.Upstream{Owned: map[string][]string{"w1": ids("a", 3)}}, "w1-3 the worker leaves"},
		{"a new one gets its share", two, ownership.Upstream{Owned: map[string][]string{"w1": ids("a", 10)}}, "w1-5 another worker has too few"},
		{"a new one waits for what is on its way", two, ownership.Upstream{Draining: 5, Owned: map[string][]string{"w1": ids("a", 5)}}, ""},
		{"half a share is enough", two, ownership.Upstream{Owned: map[string][]string{"w1": ids("a", 7), "w2": ids("b", 3)}}, ""},
		{"fewer proxies than workers", []ownership.Worker{w("w1", "a"), w("w2", "a"), w("w3", "a")}, ownership.Upstream{Owned: map[string][]string{"w1": ids("a", 1)}}, ""},
		{"a silent one keeps what it has", []ownership.Worker{w("w1", "a", room(0), silent), w("w2", "b")}, ownership.Upstream{Owned: map[string][]string{"w1": ids("a", 10)}}, ""},
	} {
		if have := got(tc.workers, tc.u); have != tc.want {
			t.Errorf("%s: %q, want %q", tc.name, have, tc.want)
		}
	}
}

// TestDecideComesToRest: what is decided is done, and decided again, until nothing is
// left to do; that comes soon, nothing is moved back and forth, and what is kept is
// there in the end, if there is as much.
func TestDecideComesToRest(t *testing.T) {
	for seed := range uint64(300) {
		rng := rand.New(rand.NewPCG(seed, 1))
		var workers []ownership.Worker
		for i := range 1 + rng.IntN(6) {
			workers = append(workers, w(fmt.Sprint("w", i), fmt.Sprint("z", rng.IntN(3)), func(x *ownership.Worker) {
				x.Room = rng.IntN(200)
				x.Leaving = rng.IntN(8) == 0
			}))
		}
		n := rng.IntN(80)
		u := ownership.Upstream{Name: "u", Keep: rng.IntN(10), Owned: map[string][]string{}}
		for _, id := range ids("p", n) {
			if rng.IntN(2) == 0 {
				u.Free = append(u.Free, id)
			} else {
				to := workers[rng.IntN(len(workers))].ID
				u.Owned[to] = append(u.Owned[to], id)
			}
		}
		moves := 0
		for round := 0; ; round++ {
			assign, drain := ownership.Decide(workers, []ownership.Upstream{u}, 1000)
			if len(assign)+len(drain) == 0 {
				break
			}
			if round > 5 {
				t.Fatalf("seed %d: it does not come to rest: %v, %v", seed, assign, drain)
			}
			for _, a := range assign {
				i := slices.Index(u.Free, a.Proxy)
				if i < 0 {
					t.Fatalf("seed %d: %s is given and was not free", seed, a.Proxy)
				}
				u.Free = slices.Delete(u.Free, i, i+1)
				u.Owned[a.Worker] = append(u.Owned[a.Worker], a.Proxy)
			}
			for _, d := range drain {
				i := slices.Index(u.Owned[d.Worker], d.Proxy)
				if i < 0 {
					t.Fatalf("seed %d: %s is taken from %s, which does not own it", seed, d.Proxy, d.Worker)
				}
				u.Owned[d.Worker] = slices.Delete(u.Owned[d.Worker], i, i+1)
				u.Free = append(u.Free, d.Proxy)
			}
			moves += len(assign) + len(drain)
		}
		if moves > 3*n+len(workers) {
			t.Errorf("seed %d: %d moves of %d proxies", seed, moves, n)
		}
		if len(u.Free) < min(u.Keep, n) {
			t.Errorf("seed %d: %d are free, %d are to be kept of %d", seed, len(u.Free), u.Keep, n)
		}
	}
}
