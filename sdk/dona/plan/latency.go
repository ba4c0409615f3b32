package plan

import (
	"math"
	"time"
)

// Peak EWMA is from Finagle (com.twitter.finagle.loadbalancer.PeakEwma): the cost
// of an endpoint is an estimate of its latency times the calls it would then have
// in flight. The estimate jumps up to a slow call at once and comes down with time,
// so an endpoint that stalls is left alone within one call.

// latencyDecay is the time in which what was measured falls to 1/e of its influence,
// as in Finagle.
const latencyDecay = 10 * time.Second

// failedLatency is how long a failed call counts at least: else an endpoint that
// fails at once would look like the fastest.
const failedLatency = time.Second

// unmeasured is the cost, in microseconds, of each call in flight to an endpoint of
// which nothing is known yet: it gets one call, and no second before that one ends.
const unmeasured = 1e15

// An estimate is a latency and when it was made, in one word so that both are read
// and replaced together: the bits of a float32 in microseconds above, ticks below.
type estimate uint64

func newEstimate(microseconds float64, at uint32) estimate {
	return estimate(math.Float32bits(float32(max(microseconds, 1))))<<32 | estimate(at)
}

func (e estimate) microseconds() float64 { return float64(math.Float32frombits(uint32(e >> 32))) }

// left is the influence that e still has, 1 to 0.
func (e estimate) left(now uint32) float64 {
	age := int32(now - uint32(e)) // ticks wrap
	if age <= 0 {
		return 1
	}
	return math.Exp(-float64(age) / float64(latencyDecay/time.Millisecond))
}

var epoch = time.Now()

// ticks is a clock of milliseconds that wraps after 49 days.
func ticks() uint32 { return uint32(time.Since(epoch) / time.Millisecond) }

// Observe notes how long a call took; call it when the call ends. Zero is a call
// that was not measured. A failed call never makes an endpoint look faster, and
// counts as one of a second at least. Only PEAK_EWMA chooses by it.
func (l *Load) Observe(took time.Duration, success bool) {
	if took <= 0 && success {
		return
	}
	now := ticks()
	for {
		old := estimate(l.latency.Load())
		next := old.after(took, success, now)
		if next == old || l.latency.CompareAndSwap(uint64(old), uint64(next)) {
			return
		}
	}
}

func (e estimate) after(took time.Duration, success bool, now uint32) estimate {
	known, us := e.microseconds(), float64(took)/float64(time.Microsecond)
	if !success {
		us = max(us, known, float64(failedLatency/time.Microsecond))
	}
	if us >= known {
		return newEstimate(us, now)
	}
	if int32(now-uint32(e)) <= 0 {
		return e
	}
	w := e.left(now)
	return newEstimate(known*w+us*(1-w), now)
}

// setScales notes what a call in flight weighs at each slot.
func setScales(slots []slot) {
	var total float64
	for i := range slots {
		total += float64(slots[i].weight)
	}
	for i := range slots {
		slots[i].scale = float32(total / float64(len(slots)) / float64(slots[i].weight))
	}
}

// cost of a call to the slot: the latency expected, for it and for each call in
// flight, these for its weight. Nothing is known to have become faster while calls
// are in flight; without any the estimate falls, so that a slow endpoint is asked
// again some time. falling is then the estimate that has to be looked at by the
// clock, else 0.
func (s *slot) cost() (cost float64, falling estimate) {
	active := float64(max(0, s.load.InFlight())) * float64(s.scale)
	e := estimate(s.load.latency.Load())
	switch {
	case e == 0:
		return active * unmeasured, 0
	case active == 0:
		return e.microseconds(), e
	default:
		return e.microseconds() * (1 + active), 0
	}
}

// cheaper reports whether a call to s costs less than one to t. The clock, which
// costs more than all the rest, is read only when it matters.
func (s *slot) cheaper(t *slot) bool {
	x, fallsX := s.cost()
	y, fallsY := t.cost()
	if fallsX|fallsY != 0 {
		now := ticks()
		if fallsX != 0 {
			x *= fallsX.left(now)
		}
		if fallsY != 0 {
			y *= fallsY.left(now)
		}
	}
	return x < y
}
