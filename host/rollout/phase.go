package rollout

import donav1 "github.com/dodona-project/dodona/proto/dona/v1"

// Phase is where a rollout is.
type Phase uint8

// The phases of a rollout. The first four are live: ticks and operators move
// them. The others are ends.
const (
	Pending     Phase = iota + 1 // waits for a legal canary endpoint; the canary has weight 0
	Progressing                  // a step serves its dwell
	Holding                      // dwell served, evidence missing
	Paused                       // an operator froze the dwell; a breach still acts
	Promoted                     // the canary has all traffic
	RolledBack                   // the stable variant has all traffic, the canary is quarantined
	Aborted                      // an operator ended it: the stable variant has all traffic
	Superseded                   // another rollout took its place
)

var phaseNames = map[Phase]string{
	Pending: "PENDING", Progressing: "PROGRESSING", Holding: "HOLDING", Paused: "PAUSED",
	Promoted: "PROMOTED", RolledBack: "ROLLED_BACK", Aborted: "ABORTED", Superseded: "SUPERSEDED",
}

func (p Phase) String() string {
	if name := phaseNames[p]; name != "" {
		return name
	}
	return "UNSPECIFIED"
}

// Live reports whether ticks and operators can still move the rollout.
func (p Phase) Live() bool { return p >= Pending && p <= Paused }

// The numbers of the published enum and ours are the same; a test compares
// them.
func (p Phase) proto() donav1.RolloutStatus_State           { return donav1.RolloutStatus_State(p) }
func phaseOf(s donav1.RolloutStatus_State) Phase            { return Phase(s) }
func opOf(a donav1.ControlRolloutRequest_Action) (Op, bool) { op, ok := ops[a]; return op, ok }

// Op is what an operator asks of a live rollout.
type Op uint8

// The operators' verbs.
const (
	NoOp        Op = iota
	Pause          // freeze the dwell
	Resume         // back to where Pause found it
	PromoteStep    // one step on, measured or not
	PromoteAll     // all traffic to the canary now
	Abort          // all traffic back to the stable variant
	Supersede      // make room for another rollout
)

var ops = map[donav1.ControlRolloutRequest_Action]Op{
	donav1.ControlRolloutRequest_ACTION_PAUSE:        Pause,
	donav1.ControlRolloutRequest_ACTION_RESUME:       Resume,
	donav1.ControlRolloutRequest_ACTION_PROMOTE_STEP: PromoteStep,
	donav1.ControlRolloutRequest_ACTION_PROMOTE_ALL:  PromoteAll,
	donav1.ControlRolloutRequest_ACTION_ABORT:        Abort,
}

var opNames = [...]string{"none", "PAUSE", "RESUME", "PROMOTE_STEP", "PROMOTE_ALL", "ABORT", "SUPERSEDE"}

func (o Op) String() string {
	if int(o) < len(opNames) {
		return opNames[o]
	}
	return "unknown"
}

// Event names a transition; it is the second half of the audit kind ("rollout." +
// event). Each but Started is one that a Step took. Empty = no transition.
type Event string

// The transitions.
const (
	None       Event = ""
	Started    Event = "start"     // a rollout was asked for
	Stepped    Event = "step"      // a step began
	Held       Event = "hold"      // evidence missing
	Resumed    Event = "resume"    // evidence is back, or an operator's RESUME
	WasPaused  Event = "pause"     // an operator's PAUSE
	Promote    Event = "promote"   // an end: PROMOTED
	Rollback   Event = "rollback"  // an end: ROLLED_BACK
	WasAborted Event = "abort"     // an end: ABORTED
	Replaced   Event = "supersede" // an end: SUPERSEDED
)

// Verdict is what one check says about the canary. The zero value is no
// verdict and is judged as Missing.
type Verdict uint8

// The verdicts. The numbers are those of the published enum.
const (
	Pass    Verdict = 1
	Breach  Verdict = 2
	Missing Verdict = 3
)

func (v Verdict) String() string {
	switch v {
	case Pass:
		return "PASS"
	case Breach:
		return "BREACH"
	default:
		return "MISSING"
	}
}

func (v Verdict) proto() donav1.Verdict {
	if v == Pass || v == Breach {
		return donav1.Verdict(v)
	}
	return donav1.Verdict_VERDICT_MISSING
}
