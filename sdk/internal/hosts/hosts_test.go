package hosts_test

import (
	"math/rand/v2"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/dodona-project/dodona/sdk/internal/hosts"
)

var start = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

func first() float64 { return 0 }

func TestClientsBeginEverywhere(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	var begun [3]int
	for range 3000 {
		begun[hosts.New(3, random.Float64).Next(hosts.None, start)]++
	}
	for i, n := range begun {
		if n < 900 || n > 1100 {
			t.Errorf("of 3000 clients %d begin at host %d", n, i)
		}
	}
}

// When a host dies, its clients spread over all that are left, and each client
// stays together.
func TestClientsOfADeadHostSpread(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	var moved [3]int
	for range 3000 {
		s := hosts.New(3, random.Float64)
		dead := s.Next(hosts.None, start)
		s.Failed(dead, start)
		to := s.Next(dead, start)
		s.Worked(to)
		moved[(to-dead+3)%3]++
		for range 10 {
			if got := s.Next(hosts.None, start); got != to {
				t.Fatalf("a stream begins at %d, the client is at %d", got, to)
			}
		}
	}
	if moved[0] != 0 || moved[1] < 1350 || moved[2] < 1350 {
		t.Errorf("moved by so many places: %v", moved)
	}
}

func TestRestsGetLonger(t *testing.T) {
	s := hosts.New(2, first)
	now := start
	for k, want := range []time.Duration{1, 2, 4, 8, 16, 30, 30} {
		want *= time.Second
		s.Failed(0, now)
		s.Failed(0, now) // other streams notice too: it is one failure
		if s.Another(1, now.Add(want-1)) != 1 || s.Another(1, now.Add(want)) != 0 {
			t.Errorf("rest %d is not %v", k, want)
		}
		now = now.Add(want)
	}
	s.Worked(0)
	s.Failed(0, now)
	if s.Another(1, now) != time.Second {
		t.Error("a host that worked rests longer than the first time")
	}
}

func TestWhenAllRest(t *testing.T) {
	s := hosts.New(3, first)
	s.Failed(0, start)
	s.Failed(1, start.Add(1))
	s.Failed(2, start.Add(2))
	for avoid := hosts.None; avoid < 3; avoid++ {
		if got := s.Next(avoid, start.Add(3)); got != 0 {
			t.Errorf("after %d: %d, whose rest is not over first", avoid, got)
		}
	}
	// One that ended a stream is there, and one that is dead is asked less and less.
	pair, now, asked := hosts.New(2, first), start, 0
	for range 600 {
		n := pair.Next(1, now)
		if n == 0 {
			pair.Failed(0, now)
			asked++
		}
		now = now.Add(time.Second)
	}
	if asked < 15 || asked > 30 {
		t.Errorf("a host that was dead for ten minutes was asked %d times", asked)
	}
	alone := hosts.New(1, first)
	alone.Failed(0, start)
	if got := alone.Next(0, start); got != 0 {
		t.Errorf("the only host is not asked again but %d", got)
	}
}

// TestLaws checks on random histories: a host that is asked exists, and it is the
// one to avoid, or at rest, only when there is no better one.
func TestLaws(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(1, 5).Draw(t, "hosts")
		random := rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "seed"), 0))
		s := hosts.New(n, random.Float64)
		now := start
		rests := make([]time.Time, n)
		failures := make([]int, n)
		host := rapid.IntRange(0, n-1)
		t.Repeat(map[string]func(*rapid.T){
			"time": func(t *rapid.T) {
				now = now.Add(time.Duration(rapid.IntRange(1, 5000).Draw(t, "ms")) * time.Millisecond)
			},
			"works": func(t *rapid.T) {
				i := host.Draw(t, "host")
				s.Worked(i)
				rests[i], failures[i] = time.Time{}, 0
			},
			"fails": func(t *rapid.T) {
				i := host.Draw(t, "host")
				s.Failed(i, now)
				if !rests[i].After(now) {
					rests[i] = now.Add(min(30*time.Second, time.Second<<failures[i]))
					failures[i] = min(failures[i]+1, 5)
				}
			},
			"": func(t *rapid.T) {
				avoid := rapid.IntRange(hosts.None, n-1).Draw(t, "avoid")
				got := s.Next(avoid, now)
				if got < 0 || got >= n {
					t.Fatalf("host %d of %d", got, n)
				}
				better := false
				for i := range n {
					better = better || i != avoid && !rests[i].After(now)
				}
				switch wait := s.Another(avoid, now); {
				case (wait == 0) != better:
					t.Fatalf("another than %d in %v, want one now: %v", avoid, wait, better)
				case (wait == hosts.Never) != (n == 1 && avoid == 0):
					t.Fatalf("another than %d of %d in %v", avoid, n, wait)
				}
				if better && (got == avoid || rests[got].After(now)) {
					t.Fatalf("asked %d, avoid %d, rests %v at %v", got, avoid, rests, now)
				}
				if !better {
					for i := range n {
						if rests[i].Before(rests[got]) {
							t.Fatalf("asked %d, rests %v at %v", got, rests, now)
						}
					}
				}
			},
		})
	})
}
