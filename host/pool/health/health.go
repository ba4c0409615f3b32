// Package health is the pure reducer of proxies: what a check says of one proxy's state.
// host/pool calls it in the transaction that confirms the check's task; the runs of each
// task, the brake and who is believed come from host/check. No I/O, no clock of its own.
//
//	NEW ──good BASIC──▶ AVAILABLE ──1 failure──▶ SUSPECT ──3 in a row──▶ UNHEALTHY
//	                        ▲                       │                        │
//	                        └─ 2 good of BASIC and EGRESS, where enabled ────┘
//
// A failure that is not believed demotes nobody. TARGET denies its routing and nothing
// else. What is inconclusive, or older than what is known, changes nothing.
package health

import (
	"cmp"
	"slices"
	"time"

	controlplanev1 "github.com/dodona-project/dodona/proto/controlplane/v1"
	statev1 "github.com/dodona-project/dodona/proto/state/v1"
	"google.golang.org/protobuf/proto"

	"github.com/dodona-project/dodona/host/check"
	"github.com/dodona-project/dodona/host/pool/ownership"
)

// The levels of checks.
const (
	Basic  = controlplanev1.CheckLevel_CHECK_LEVEL_BASIC
	Egress = controlplanev1.CheckLevel_CHECK_LEVEL_EGRESS
	Target = controlplanev1.CheckLevel_CHECK_LEVEL_TARGET
)

// Proxy is what is known of a proxy.
type Proxy struct {
	State  controlplanev1.ProxyStatus_State
	Health *statev1.ProxyHealth // nil = nothing yet
}

// Seen is one observation of a proxy.
type Seen struct {
	Level        controlplanev1.CheckLevel
	Routing, URL string // TARGET

	Counts   bool                 // it is conclusive, and nothing newer is known of its task
	Good     bool                 // it succeeded
	Run      *statev1.CheckHealth // of its task, with it
	Believed bool                 // its run of failures may make the proxy worse

	AtMs   int64
	Reason string // for people
}

// Reduce takes an observation into what is known of a proxy whose upstream has these
// levels enabled. p is not changed.
func Reduce(r check.Rules, enabled []controlplanev1.CheckLevel, p Proxy, s Seen) Proxy {
	next := Proxy{State: p.State, Health: &statev1.ProxyHealth{}}
	if p.Health != nil {
		next.Health = proto.CloneOf(p.Health)
	}
	h := next.Health
	if !s.Counts || p.State == ownership.Extracted || p.State == ownership.Expired {
		if !s.Good && s.Reason != "" {
			h.LastError = s.Reason // people want to know why nothing comes of it
		}
		return next
	}
	h.CheckedMs = s.AtMs
	if !s.Good {
		h.LastError = s.Reason
	}
	switch {
	case s.Level == Target:
		target(r, &next, s)
	case s.Good:
		good(r, enabled, &next, s)
	default:
		*count(h, s.Level) = 0
		if s.Believed {
			demote(r, &next, s.Run.Failures)
		}
	}
	return next
}

// count is how many checks of a level were good.
func count(h *statev1.ProxyHealth, level controlplanev1.CheckLevel) *uint32 {
	if level == Egress {
		return &h.EgressGood
	}
	return &h.BasicGood
}

func good(r check.Rules, enabled []controlplanev1.CheckLevel, p *Proxy, s Seen) {
	n := count(p.Health, s.Level)
	*n = min(*n+1, r.Rise)
	switch p.State {
	case ownership.New:
		if s.Level != Basic {
			return
		}
	case ownership.Suspect, ownership.Unhealthy:
		for _, level := range enabled {
			if level != Target && *count(p.Health, level) < r.Rise {
				return
			}
		}
	}
	p.State = ownership.Available
	if s.Level == Basic {
		p.Health.LastError = ""
	}
}

func demote(r check.Rules, p *Proxy, failures uint32) {
	switch {
	case failures >= r.Fall:
		p.State = ownership.Unhealthy
	case p.State == ownership.New || p.State == ownership.Available:
		p.State = ownership.Suspect
	default:
		return
	}
	p.Health.BasicGood, p.Health.EgressGood = 0, 0
}

// Doubt is what the outcomes of a worker may do: an available proxy becomes suspect.
func Doubt(p Proxy) Proxy {
	next := Proxy{State: p.State, Health: &statev1.ProxyHealth{}}
	if p.Health != nil {
		next.Health = proto.CloneOf(p.Health)
	}
	if p.State == ownership.Available {
		next.State = ownership.Suspect
		next.Health.BasicGood, next.Health.EgressGood = 0, 0
	}
	return next
}

// target denies a routing after failures in a row, and takes that back after good
// checks. Of a proxy that does not work at all it says nothing.
func target(r check.Rules, p *Proxy, s Seen) {
	if p.State != ownership.Available && p.State != ownership.Suspect {
		return
	}
	at, denied := slices.BinarySearchFunc(p.Health.Denied, s, func(d *statev1.DeniedTarget, s Seen) int {
		return cmp.Or(cmp.Compare(d.Routing, s.Routing), cmp.Compare(d.Url, s.URL))
	})
	switch {
	case !denied && !s.Good && s.Run.Failures >= r.Fall && s.Believed:
		p.Health.Denied = slices.Insert(p.Health.Denied, at, &statev1.DeniedTarget{Routing: s.Routing, Url: s.URL})
	case denied && s.Good && s.Run.Successes >= r.Rise:
		p.Health.Denied = slices.Delete(p.Health.Denied, at, at+1)
	}
}

// Bad reports whether a proxy is not yet what it was before it failed at what was seen,
// although that was good.
func Bad(p Proxy, s Seen) bool {
	if s.Level != Target {
		return p.State == ownership.Suspect || p.State == ownership.Unhealthy
	}
	return slices.ContainsFunc(p.Health.GetDenied(), func(d *statev1.DeniedTarget) bool { return d.Routing == s.Routing && d.Url == s.URL })
}

// Denied are the routings that a proxy may not be used for, sorted: of what is still
// checked.
func Denied(h *statev1.ProxyHealth, asked func(routing, url string) bool) (routings []string) {
	for _, d := range h.GetDenied() {
		if asked(d.Routing, d.Url) && !slices.Contains(routings, d.Routing) {
			routings = append(routings, d.Routing)
		}
	}
	return routings
}

// Wait is how long the next check of a task is away, before jitter. r has the task's own
// interval.
func Wait(r check.Rules, p Proxy, level controlplanev1.CheckLevel, run *statev1.CheckHealth) time.Duration {
	failures := run.GetFailures()
	switch {
	case level == Target:
		if failures > 0 && failures <= r.Fall || failures == 0 && run.GetHealth() == controlplanev1.Health_HEALTH_SUSPECT {
			return r.Suspect
		}
		return r.Interval
	case p.State == ownership.Unhealthy && failures > r.Fall:
		return min(r.Interval<<min(failures-r.Fall-1, 10), max(r.Longest, r.Interval))
	case p.State != ownership.Available, failures > 0:
		return r.Suspect
	}
	return r.Interval
}
