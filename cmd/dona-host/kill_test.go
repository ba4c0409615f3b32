package main

import (
	"math/rand/v2"
	"testing"
	"time"
)

// TestKillUnderLoad (H1): the host is killed with kill -9 at random instants, its
// start included, while flags are set, rollouts run, endpoints beat, clients
// watch, decide and report.
func TestKillUnderLoad(t *testing.T) {
	t.Parallel()
	p := newProcess(t)
	p.start()
	tr := begin(p, load{endpoints: 10, flags: 4, watchers: 6})
	tr.settled("every client to see every endpoint", 20)
	tr.decide(p)
	rng := rand.New(rand.NewPCG(1, 7))
	var slowest time.Duration
	var instants []time.Duration
	for round := range rounds {
		at := time.Duration(rng.IntN(2500)) * time.Millisecond
		instants = append(instants, at)
		pause(t.Context(), at)
		p.kill()
		tr.holds(p)
		if round%4 == 3 { // and once more while it starts
			p.spawn()
			pause(t.Context(), time.Duration(rng.IntN(200))*time.Millisecond)
			p.kill()
			tr.holds(p)
		}
		p.spawn()
		slowest = max(slowest, firstFrame(p))
		p.ready()
		if t.Failed() {
			t.Fatalf("round %d; killed after %v", round, instants)
		}
	}
	// What was under way goes on: two more rollouts come to their ends.
	before := tr.rollouts()
	until(t, "rollouts to end after the last start", func() bool { return tr.rollouts() >= before+2 })
	tr.settled("every client to see every endpoint again", 20)
	tr.end()
	p.kill()
	tr.holds(p)
	t.Logf("%d kills, %d decisions of which %d failed, %d rollouts; first whole snapshot at most %v after a start",
		rounds, tr.decisions.Load(), tr.failed.Load(), tr.rollouts(), slowest.Round(time.Millisecond))
	if slowest > 10*time.Second { // 2 s is the goal; the rest is for a busy machine
		t.Errorf("a client waited %v for its first snapshot", slowest)
	}
}
