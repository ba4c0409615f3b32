package session

import (
	"math"
	"time"

	statev1 "github.com/dodona-project/dodona/proto/state/v1"
)

// Reasons of a freeze, as its record and the alarm say them.
const (
	FreezeRestart = "restart"
	FreezeMass    = "mass expiry"
	FreezePaused  = "paused"
)

// Rules are the figures that leases are judged by. They are the same on every
// host that shares a store.
type Rules struct {
	Heartbeat time.Duration // between two heartbeats of a client
	Missed    int           // a lease lasts this many heartbeats after the last one
	Percent   int           // the guard trips above this share of a scope's leases …
	Least     int           // … and at this many
	Restart   time.Duration // the longest wait for remembered leases after a start
}

// TTL is how long a lease lasts without a heartbeat, and how long removals stay
// frozen.
func (r Rules) TTL() time.Duration { return time.Duration(r.Missed) * r.Heartbeat }

// Scene is what a judgement about the overdue leases of one scope rests on. All
// times are the store's, in milliseconds.
type Scene struct {
	Now    int64
	Plane  *statev1.Freeze // of the whole plane; nil when there is none
	Scope  *statev1.Freeze // of the scope; nil when there is none
	Leases int             // of the scope, the overdue ones included
	Ended  []int64         // when earlier ones ended by a fault, oldest first
}

// Judgement says what happens to the overdue leases of one scope.
type Judgement struct {
	End    []int           // indexes of those that end now, those that sat out a freeze first
	Served int             // how many of End sat out a freeze
	Recent []int64         // faults of the last heartbeat interval, without those in End
	Held   int             // those kept by a freeze
	Freeze *statev1.Freeze // a freeze that begins now; nil when none does
}

// Ended is what the scope has to remember when the first n of End have ended.
func (j Judgement) Ended(now int64, n int) []int64 {
	ended := j.Recent
	for range max(0, n-j.Served) {
		ended = append(ended, now)
	}
	return ended
}

// Judge decides about leases of one scope by their deadlines: those that passed
// theirs end, unless a freeze holds them or too many would end at once, which
// begins a freeze. A lease that sat out such a freeze ends without being counted
// again, so that a freeze delays an ending once and not for ever.
func Judge(r Rules, s Scene, deadlines []int64) Judgement {
	j := Judgement{Recent: recent(r, s)}
	if active(s.Plane, s.Now) {
		j.Held = overdue(s.Now, deadlines)
		return j
	}
	served := max(servedUntil(s.Plane, s.Now), servedUntil(s.Scope, s.Now))
	var fresh []int
	for i, d := range deadlines {
		switch {
		case d > s.Now:
		case d <= served:
			j.End = append(j.End, i)
		default:
			fresh = append(fresh, i)
		}
	}
	j.Served = len(j.End)
	if len(fresh) == 0 {
		return j
	}
	if active(s.Scope, s.Now) {
		j.Held = len(fresh)
		return j
	}
	ending := len(j.Recent) + len(fresh)
	base := s.Leases - j.Served + len(j.Recent)
	if ending >= r.Least && ending*100 > r.Percent*base {
		j.Held = len(fresh)
		j.Freeze = &statev1.Freeze{
			Reason:   FreezeMass,
			SinceMs:  s.Now,
			UntilMs:  s.Now + r.TTL().Milliseconds(),
			Held:     uint32(len(fresh)),
			ServedMs: served,
		}
		return j
	}
	j.End = append(j.End, fresh...)
	return j
}

// recent returns the faults of the last heartbeat interval.
func recent(r Rules, s Scene) []int64 {
	kept := make([]int64, 0, len(s.Ended))
	for _, at := range s.Ended {
		if at > s.Now-r.Heartbeat.Milliseconds() {
			kept = append(kept, at)
		}
	}
	return kept
}

func overdue(now int64, deadlines []int64) (n int) {
	for _, d := range deadlines {
		if d <= now {
			n++
		}
	}
	return n
}

func active(f *statev1.Freeze, now int64) bool { return f != nil && f.GetUntilMs() > now }

// servedUntil is the newest deadline of the leases that sat out a freeze of the
// guard. The wait after a start is no such freeze: it says nothing about how many
// may end at once.
func servedUntil(f *statev1.Freeze, now int64) int64 {
	if f == nil {
		return 0
	}
	if f.GetReason() != FreezeRestart && f.GetUntilMs() <= now {
		return f.GetUntilMs()
	}
	return f.GetServedMs()
}

// enoughBack reports whether the wait after a start is over before its time:
// nine of ten remembered leases are back.
func enoughBack(f *statev1.Freeze, missing uint32) bool {
	total := uint64(f.GetRemembered())
	return f.GetReason() == FreezeRestart && uint64(min(missing, f.GetRemembered()))*10 <= total
}

// smooth moves the average of a utilization by one beat. 0 and what is no number
// count as not reported.
func smooth(average, reported float64) float64 {
	switch {
	case math.IsNaN(reported) || reported <= 0:
		return average
	case average == 0:
		return min(reported, 1)
	default:
		return average + 0.3*(min(reported, 1)-average)
	}
}
