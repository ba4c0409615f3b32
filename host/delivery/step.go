package delivery

import (
	"fmt"
	"strings"
	"time"

	donav1 "github.com/dodona-project/dodona/proto/dona/v1"
)

// Phase is where a deployment is. The numbers are those of the published enum.
type Phase uint8

// The phases of a deployment. The first two are live; the others are ends.
const (
	Waiting    Phase = iota + 1 // for endpoints of the release's variant; no traffic moves
	Running                     // its rollout moves the traffic
	Succeeded                   // the variant has all traffic
	Failed                      // it has not, for want of endpoints or because somebody decided so
	RolledBack                  // its rollout measured that the variant is worse
)

var phaseNames = [...]string{"UNSPECIFIED", "WAITING", "RUNNING", "SUCCEEDED", "FAILED", "ROLLED_BACK"}

func (p Phase) String() string {
	if int(p) < len(phaseNames) {
		return phaseNames[p]
	}
	return phaseNames[0]
}

// Live reports whether anything can still move the deployment.
func (p Phase) Live() bool { return p == Waiting || p == Running }

func (p Phase) proto() donav1.Deployment_State { return donav1.Deployment_State(p) }
func phaseOf(s donav1.Deployment_State) Phase  { return Phase(s) }
func strategyName(s donav1.StartDeploymentRequest_Strategy) string {
	return strings.TrimPrefix(s.String(), "STRATEGY_")
}

// Plan is what an operator asked for. It never changes while a deployment lives.
type Plan struct {
	Variant  string
	Strategy donav1.StartDeploymentRequest_Strategy
	Timeout  time.Duration // of WAITING
}

// State is a deployment between two ticks. Times are of the store's clock.
type State struct {
	ID       string
	Plan     Plan
	Phase    Phase
	Waited   time.Duration // ticked while WAITING
	LastTick time.Time
	Rollout  string // Running: the rollout that it follows
	Reason   string // why this phase; one line
}

// Evidence is everything a decision rests on, read at one instant.
type Evidence struct {
	Replaced string // the deployment that takes the place of this one; empty at a tick

	Missing []string // what it waits for, each a phrase: endpoints, a region that is allowed
	Away    string   // what else has to come back before traffic can move; empty = nothing
	Blocked string   // why traffic must not move, and will not by waiting; empty = it may
	Holder  string   // the variant that holds all traffic; empty = none does

	Rollout    string // the service's newest rollout; empty = it never had one
	RolloutEnd End    // how that one ended; NotEnded while it lives
	RolloutWhy string
}

// End is how a rollout ended, as far as a deployment is concerned.
type End uint8

// The ends of a rollout.
const (
	NotEnded End = iota
	Promoted     // the canary has all traffic
	Worse        // measured: rolled back
	Stopped      // aborted or superseded by an operator
)

// Weight is a variant's share of the traffic, in percent.
type Weight struct {
	Variant string
	Percent uint32
}

// Event names what a Step did. Empty = nothing but timers and the line of what it
// waits for.
type Event string

// The transitions.
const (
	None   Event = ""
	Begin  Event = "begin"  // CANARY: its rollout begins in the same transaction
	Switch Event = "switch" // traffic moves to the variant, and that is the end
	Finish Event = "finish" // an end that moves nothing
)

// Decision is what Step decided.
type Decision struct {
	Next    State
	Event   Event
	Weights []Weight // Switch: the new split, whole
}

// maxTick is the most waiting that one tick adds: a host that was away, or a
// clock that stepped, has not seen an endpoint stay away.
const maxTick = 2 * time.Second

// Step decides what happens to a deployment now: at most one transition. It is
// pure: it reads nothing but its arguments and changes none of them.
func Step(s State, e Evidence, now time.Time) Decision {
	d := Decision{Next: s}
	switch {
	case !s.Phase.Live():
	case s.Phase == Running:
		d.follow(s, e)
	case e.Replaced != "":
		d.finish(Failed, "deployment "+e.Replaced+" took its place")
	default:
		d.wait(s, e, now)
	}
	return d
}

// wait counts the time and goes on when everything is there.
func (d *Decision) wait(s State, e Evidence, now time.Time) {
	n := &d.Next
	n.Waited += min(maxTick, max(0, now.Sub(s.LastTick)))
	n.LastTick = now
	switch {
	case len(e.Missing) == 0 && e.Blocked != "":
		d.finish(Failed, e.Blocked)
	case len(e.Missing) == 0 && e.Away == "":
		d.move(e)
	case n.Waited >= s.Plan.Timeout:
		d.finish(Failed, fmt.Sprintf("not ready within %s: %s", s.Plan.Timeout, e.lacks()))
	default:
		n.Reason = "waits: " + e.lacks()
	}
}

// lacks says what has to come.
func (e Evidence) lacks() string {
	if len(e.Missing) == 0 {
		return e.Away
	}
	return strings.Join(e.Missing, "; ")
}

func (d *Decision) move(e Evidence) {
	p := d.Next.Plan
	if p.Strategy == donav1.StartDeploymentRequest_STRATEGY_CANARY {
		d.Event, d.Next.Phase = Begin, Running
		d.Next.Reason = "its rollout moves the traffic"
		return
	}
	d.finish(Succeeded, "all traffic goes to "+p.Variant)
	d.Event = Switch
	d.Weights = []Weight{{p.Variant, 100}}
	if p.Strategy == donav1.StartDeploymentRequest_STRATEGY_BLUE_GREEN && e.Holder != "" && e.Holder != p.Variant {
		d.Next.Reason += "; " + e.Holder + " is at 0"
		d.Weights = append(d.Weights, Weight{e.Holder, 0})
	}
}

// follow ends a deployment as its rollout did.
func (d *Decision) follow(s State, e Evidence) {
	because := func(what string) string {
		if e.RolloutWhy == "" {
			return "rollout " + s.Rollout + " " + what
		}
		return "rollout " + s.Rollout + " " + what + ": " + e.RolloutWhy
	}
	switch {
	case e.Rollout != s.Rollout:
		d.finish(Failed, "rollout "+s.Rollout+" is not the service's newest any more, and how it ended is not known")
	case e.RolloutEnd == Promoted:
		d.finish(Succeeded, because("was promoted"))
	case e.RolloutEnd == Worse:
		d.finish(RolledBack, because("was rolled back"))
	case e.RolloutEnd == Stopped:
		d.finish(Failed, because("was stopped"))
	}
}

func (d *Decision) finish(to Phase, reason string) {
	d.Event, d.Next.Phase, d.Next.Reason = Finish, to, reason
}
