package sequential_test

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	donav1 "github.com/dodona-project/dodona/proto/dona/v1"

	"github.com/dodona-project/dodona/builtin/analysis/sequential"
)

// judge gives the verdict for counts of a canary's first step.
type judge func(requests, errors uint64) donav1.Verdict

// sequentially judges with the plugin, and remembers: simulations come by the
// same counts again and again.
func sequentially(limit float64) judge {
	known := map[[2]uint64]donav1.Verdict{}
	return func(requests, errors uint64) donav1.Verdict {
		at := [2]uint64{requests, errors}
		v, ok := known[at]
		if !ok {
			v = sequential.Evaluate(sequential.Config{Limit: limit}, look(0, requests, errors, nil)).Verdict
			known[at] = v
		}
		return v
	}
}

// pointEstimate breaches when the share of errors is above the limit, as the
// built-in gate does.
func pointEstimate(limit float64, least uint64) judge {
	return func(requests, errors uint64) donav1.Verdict {
		switch {
		case requests < least:
			return missing
		case float64(errors)*100 > limit*float64(requests):
			return breach
		}
		return missing
	}
}

// failures draws how many of some calls fail, of a number evenly from 0 to 1.
func failures(calls int, rate float64) func(float64) uint64 {
	upTo := make([]float64, calls+1) // the probability of at most that many
	each, sum := math.Pow(1-rate, float64(calls)), 0.0
	for k := range upTo {
		sum += each
		upTo[k] = sum
		each *= float64(calls-k) / float64(k+1) * rate / (1 - rate)
	}
	return func(u float64) uint64 {
		k := 0
		for k < calls && u >= upTo[k] {
			k++
		}
		return uint64(k)
	}
}

// simulate looks at canaries with a true error rate after every 10 requests, up
// to most, and returns how many requests each needed for a verdict; +Inf when it
// never came.
func simulate(j judge, rate float64, want donav1.Verdict, canaries int, most uint64) (needed []float64) {
	random, draw := rand.New(rand.NewPCG(20, 26)), failures(10, rate)
	for range canaries {
		errors, at := uint64(0), math.Inf(1)
		for requests := uint64(10); requests <= most; requests += 10 {
			errors += draw(random.Float64())
			if j(requests, errors) == want {
				at = float64(requests)
				break
			}
		}
		needed = append(needed, at)
	}
	slices.Sort(needed)
	return needed
}

// simulateSteps looks at canaries in rollouts of four steps with 500 requests
// each, after every 50, until they are rolled back.
func simulateSteps(limit, rate float64, canaries int) (needed []float64) {
	random, draw := rand.New(rand.NewPCG(20, 26)), failures(50, rate)
	for range canaries {
		var state []byte
		at := math.Inf(1)
	rollout:
		for step := range uint32(4) {
			errors := uint64(0)
			for requests := uint64(50); requests <= 500; requests += 50 {
				errors += draw(random.Float64())
				r := sequential.Evaluate(sequential.Config{Limit: limit}, look(step, requests, errors, state))
				if r.Verdict == breach {
					at = float64(500*uint64(step) + requests)
					break rollout
				}
				state = r.State
			}
		}
		needed = append(needed, at)
	}
	slices.Sort(needed)
	return needed
}

// share is how many of the canaries got the verdict, 0 to 1.
func share(needed []float64) float64 {
	never, _ := slices.BinarySearch(needed, math.Inf(1))
	return float64(never) / float64(len(needed))
}

func median(needed []float64) float64 { return needed[len(needed)/2] }

// TestSimulation is where the figures of the plugin's page come from. The seed
// is fixed, so they are the same in every run.
func TestSimulation(t *testing.T) {
	within := func(name string, got, least, most float64) {
		t.Helper()
		t.Logf("%s: %.4g", name, got)
		if got < least || got > most {
			t.Errorf("%s: %.4g, want %v to %v", name, got, least, most)
		}
	}
	// A healthy canary: truly 1 %, limit 2 %.
	within("healthy, rolled back by the point estimate", share(simulate(pointEstimate(2, 20), 0.01, breach, 20_000, 2000)), 0.42, 0.47)
	within("healthy, rolled back by the e-process", share(simulate(sequentially(2), 0.01, breach, 20_000, 2000)), 0, 0.0009)
	// The bound itself, where the hypothesis is just true: alpha, and beta.
	within("at the limit, rolled back", share(simulate(sequentially(2), 0.02, breach, 10_000, 2000)), 0, sequential.DefaultAlpha)
	within("at the limit, passed", share(simulate(sequentially(2), 0.02, pass, 10_000, 2000)), 0, sequential.DefaultBeta)
	within("at the limit, rolled back in one of four steps", share(simulateSteps(2, 0.02, 1000)), 0, sequential.DefaultAlpha)
	// A bad one: truly 10 %, limit 5 %.
	bad := simulate(sequentially(5), 0.10, breach, 4000, 2000)
	within("bad, caught", share(bad), 1, 1)
	within("bad, median of requests", median(bad), 250, 290)
	// How long a pass takes.
	within("0.1 % against 5 %, median of requests", median(simulate(sequentially(5), 0.001, pass, 4000, 2000)), 120, 140)
	within("1 % against 2 %, median of requests", median(simulate(sequentially(2), 0.01, pass, 10_000, 20_000)), 1050, 1270)
}
