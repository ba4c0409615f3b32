package check

import (
	"slices"
	"time"

	controlplanev1 "github.com/dodona-project/dodona/proto/controlplane/v1"
	statev1 "github.com/dodona-project/dodona/proto/state/v1"
	"google.golang.org/protobuf/proto"
)

const (
	unknown   = controlplanev1.Health_HEALTH_UNSPECIFIED
	available = controlplanev1.Health_HEALTH_AVAILABLE
	suspect   = controlplanev1.Health_HEALTH_SUSPECT
	unhealthy = controlplanev1.Health_HEALTH_UNHEALTHY

	success = controlplanev1.HealthObservation_RESULT_SUCCESS
	failure = controlplanev1.HealthObservation_RESULT_FAILURE
)

// Rules are the figures by which targets are checked and judged. They are the same
// on every host that shares a store.
type Rules struct {
	Interval time.Duration // between two checks of a target that is well
	Suspect  time.Duration // of one that failed, or that is coming back
	Longest  time.Duration // of one that is out and keeps failing
	Timeout  time.Duration // of one attempt
	Attempts int           // within one check
	Fall     uint32        // failures in a row that make a target unhealthy
	Rise     uint32        // successes in a row that make it available again
}

// DefaultRules are the rules around an interval; 30 s is the usual one.
func DefaultRules(interval, timeout time.Duration) Rules {
	return Rules{
		Interval: interval, Suspect: interval / 3, Longest: 10 * interval,
		Timeout: timeout, Attempts: 1, Fall: 3, Rise: 2,
	}
}

// Deadline is how long a check may take with all its attempts.
func (r Rules) Deadline() time.Duration { return time.Duration(max(r.Attempts, 1)) * r.Timeout }

// round is the time in which every target is checked once, jitter included.
func (r Rules) round() time.Duration { return r.Interval + r.Interval/5 + r.Deadline() }

// jitter is by which share a wait is drawn shorter or longer.
const jitter = 0.2

// Observation is one check's result as the reducer sees it. Times are the store's.
type Observation struct {
	Checker  string
	Result   controlplanev1.HealthObservation_Result
	IssuedMs int64 // when the task was claimed
	AtMs     int64 // when it was reported
}

// Reduce takes an observation into what is known of a target. It never makes a
// target unhealthy: that is for [Judge], which sees the others too. What is
// inconclusive, or older than what is known, changes nothing. h is not changed; nil
// is a target that was never checked.
func Reduce(r Rules, h *statev1.CheckHealth, o Observation) *statev1.CheckHealth {
	next := &statev1.CheckHealth{}
	if h != nil {
		next = proto.CloneOf(h)
	}
	if o.Result != success && o.Result != failure || o.IssuedMs < next.IssuedMs {
		return next
	}
	next.IssuedMs = o.IssuedMs
	if o.Result == failure {
		if next.Failures == 0 {
			next.FailingMs, next.By = o.AtMs, nil
		}
		next.Failures++
		next.Successes = 0
		if !slices.Contains(next.By, o.Checker) && len(next.By) < agreed {
			next.By = append(next.By, o.Checker)
		}
		if next.Health != unhealthy {
			next.Health = suspect
		}
		return next
	}
	next.Successes++
	next.Failures, next.FailingMs, next.By = 0, 0, nil
	if next.Health == unknown || next.Successes >= r.Rise {
		next.Health = available
	}
	return next
}

// wait is how long a target's next check is away, before jitter.
func wait(r Rules, h *statev1.CheckHealth) time.Duration {
	switch {
	case h.GetHealth() == unhealthy && h.GetOut() && h.GetFailures() > r.Fall:
		return min(r.Interval<<min(h.GetFailures()-r.Fall-1, 10), r.Longest)
	case h.GetHealth() != available:
		return r.Suspect
	}
	return r.Interval
}
