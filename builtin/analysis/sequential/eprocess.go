package sequential

import (
	"math"
	"slices"
)

const (
	// bets is how many alternatives share the starting capital.
	bets = 32
	// oddsAbove and oddsBelow are how far from the limit the alternatives reach,
	// as a factor of its odds. They decide how soon a verdict comes, never how
	// often it is wrong.
	oddsAbove = 8
	oddsBelow = 5
)

// stake is the share of the capital that is bet from the start of step i of a
// rollout on. Most of it is bet from the first step on; the rest is spread over
// the steps to come, so that a canary that was well with little traffic and
// fails with more is judged without the many good requests of before. The shares
// of all steps add up to 1, and so a sum of e-processes begun at different times
// is one again.
func stake(i int) float64 {
	if i == 0 {
		return 0.75
	}
	return 0.25 / float64(i*(i+1))
}

// An eprocess is the capital of a gambler who bets against a hypothesis on an
// error rate, one request after the other. Each of its alternatives is a rate
// for which a share of the capital is staked, and multiplies that share by the
// likelihood of each outcome under it, over the likelihood at the limit.
//
// When all alternatives lie above the limit, such a factor has an expectation of
// at most 1 for every true rate up to the limit, and the other way round: so the
// sum is an e-process, exactly, for whatever alternatives. It depends on the
// counts alone and not on the order of the outcomes, and needs no state.
type eprocess struct {
	failed, served [bets]float64 // logarithm of each alternative's factor, by outcome
}

// against returns the e-process of the hypothesis that the rate is on this side
// of limit (above 0, below 1): its alternatives lie on the other one, evenly in
// the logarithm of the odds, up to factor away.
func against(limit, factor float64) *eprocess {
	e := &eprocess{}
	at := math.Log(limit) - math.Log1p(-limit)
	for i := range bets {
		odds := math.Exp(at + math.Log(factor)*(float64(i)+0.5)/bets)
		e.failed[i] = math.Log(odds/(1+odds)) - math.Log(limit)
		e.served[i] = -math.Log1p(odds) - math.Log1p(-limit)
	}
	return e
}

// log is the logarithm of the capital, which begins with 1. Counts need not be
// whole: a projection has fractions of errors.
func (e *eprocess) log(requests, errors float64) float64 {
	var each [bets]float64
	for i := range each {
		each[i] = errors*e.failed[i] + (requests-errors)*e.served[i]
	}
	return logSum(each[:]...) - math.Log(bets)
}

// logSum is the logarithm of the sum of numbers given by their logarithms, of
// which one at least is finite.
func logSum(logs ...float64) float64 {
	most := slices.Max(logs)
	sum := 0.0
	for _, x := range logs {
		sum += math.Exp(x - most)
	}
	return most + math.Log(sum)
}

// maxProjection is how many requests ahead are looked for.
const maxProjection = 1 << 30

// more is about how many more requests, at the rate seen so far, bring the
// capital to exp(enough); false when it would take more than maxProjection, or
// no number would do.
func (e *eprocess) more(requests, errors uint64, enough float64) (uint64, bool) {
	n, k, rate := float64(requests), float64(errors), 0.0
	if requests > 0 {
		rate = k / n
	}
	reached := func(m uint64) bool { return e.log(n+float64(m), k+rate*float64(m)) >= enough }
	most := uint64(1)
	for !reached(most) {
		if most *= 2; most > maxProjection {
			return 0, false
		}
	}
	least := most / 2 // not enough, or 0
	for most-least > 1 {
		if mid := least + (most-least)/2; reached(mid) {
			most = mid
		} else {
			least = mid
		}
	}
	return most, true
}
