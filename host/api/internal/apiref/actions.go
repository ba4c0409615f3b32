package main

import (
	"strings"
	"time"

	"github.com/dodona-project/dodona/host/rollout"
)

// actions writes which action a rollout takes in which state, by asking the code
// that decides it.
func (w *writer) actions() {
	verbs := []rollout.Op{rollout.Pause, rollout.Resume, rollout.PromoteStep, rollout.PromoteAll, rollout.Abort}
	w.line("What each action leads to, by state; – is FAILED_PRECONDITION:")
	w.line("")
	head, rule := "| state |", "|---|"
	for _, v := range verbs {
		head, rule = head+" "+v.String()+" |", rule+"---|"
	}
	w.line("%s", head)
	w.line("%s", rule)
	for _, s := range scenes() {
		row := "| " + s.name + " |"
		for _, v := range verbs {
			row += " " + s.outcome(v) + " |"
		}
		w.line("%s", row)
	}
	w.line("")
	w.line("¹ refused without a legal endpoint of the canary. ² refused while a BREACH stands.")
	w.line("LIFT_QUARANTINE looks at no state: it needs the variant to be quarantined.")
	w.line("")
}

type scene struct {
	name  string
	state rollout.State
}

func scenes() []scene {
	state := func(phase, from rollout.Phase, step int) rollout.State {
		return rollout.State{
			ID: "r", Phase: phase, PausedFrom: from, Step: step, StepStarted: start, LastTick: start,
			Plan: rollout.Plan{Canary: "v2", Stable: "v1", Steps: []uint32{10, 100}, Dwell: time.Minute, Gate: rollout.Gate{MaxErrorPercent: 1, MinRequests: 1}},
		}
	}
	all := []scene{{"PENDING", state(rollout.Pending, 0, 0)}}
	for _, p := range []rollout.Phase{rollout.Progressing, rollout.Holding} {
		all = append(all, scene{p.String(), state(p, 0, 0)}, scene{p.String() + ", last step", state(p, 0, 1)})
	}
	all = append(all,
		scene{"PAUSED, in PENDING", state(rollout.Paused, rollout.Pending, 0)},
		scene{"PAUSED, in a step", state(rollout.Paused, rollout.Progressing, 0)},
		scene{"PAUSED, in the last step", state(rollout.Paused, rollout.Progressing, 1)})
	for _, p := range []rollout.Phase{rollout.Promoted, rollout.RolledBack, rollout.Aborted, rollout.Superseded} {
		all = append(all, scene{p.String(), state(p, 0, 0)})
	}
	return all
}

var start = time.Unix(1, 0)

// outcome is the state that the action leads to when the canary is well, with
// marks for what would have it refused.
func (s scene) outcome(op rollout.Op) string {
	well := rollout.Evidence{Op: op, Endpoints: 1, Heartbeat: time.Second, Counts: rollout.Counts{Requests: 100}}
	d := rollout.Step(s.state, well, start)
	if d.Refused != "" {
		return "–"
	}
	out := d.Next.Phase.String()
	if d.NewStep {
		out = "next step, " + out
	}
	away, breach := well, well
	away.Endpoints, breach.Counts.Errors = 0, 100
	var marks []string
	if rollout.Step(s.state, away, start).Refused != "" {
		marks = append(marks, "¹")
	}
	if rollout.Step(s.state, breach, start).Refused != "" {
		marks = append(marks, "²")
	}
	if len(marks) > 0 {
		out += " " + strings.Join(marks, " ")
	}
	return out
}
