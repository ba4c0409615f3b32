// Package sequential is the built-in analysis plugin "sequential": a test of the
// canary's error rate that may be looked at as often as one likes.
//
// A point estimate that is compared with a bound at every tick rolls back many
// healthy canaries: somewhere on its way a noisy rate crosses the bound. Here
// each hypothesis is tested by an e-process, a bet against it whose capital is
// expected not to grow while the hypothesis is true. By Ville's inequality the
// capital then ever reaches 1/alpha with a probability of at most alpha, however
// often it is looked at and whenever one stops.
//
// The host hands over what it counted, and [Evaluate] is a pure function of that
// and of the state that it returned the time before. It gives verdicts of its
// own. What it promises: a canary at or below the limit is a BREACH with a
// probability of at most alpha over a whole rollout, and one at or above the
// limit is a PASS with at most beta in a step. Everything else is MISSING.
//
// Sources: J. Ville, Étude critique de la notion de collectif, 1939 (the
// inequality); I. Waudby-Smith and A. Ramdas, "Estimating means of bounded random
// variables by betting", JRSS B 86(1), 2024 (the bets); A. Ramdas, P. Grünwald,
// V. Vovk and G. Shafer, "Game-theoretic statistics and safe anytime-valid
// inference", Statistical Science 38(4), 2023 (e-processes).
package sequential
