package render

import (
	"fmt"
	"strings"
	"time"

	donav1 "github.com/dodona-project/dodona/proto/dona/v1"
)

// barWidth is the length of a bar of 100 %.
const barWidth = 40

// Rollout is what the block of a rollout is drawn from.
type Rollout struct {
	Status      *donav1.RolloutStatus
	Weights     []*donav1.VariantWeight
	Quarantined []string
	StepDwell   time.Duration // how long a step lasts, when the caller knows it
}

// RolloutOf takes a rollout out of a service's status; nil Status = it has none.
func RolloutOf(reply *donav1.StatusReply) Rollout {
	return Rollout{
		Status:      reply.GetRollout(),
		Weights:     reply.GetConfig().GetWeights(),
		Quarantined: reply.GetConfig().GetQuarantinedVariants(),
	}
}

// Ended reports whether nothing moves a rollout in this state any more.
func Ended(state donav1.RolloutStatus_State) bool {
	switch state {
	case donav1.RolloutStatus_STATE_PROMOTED, donav1.RolloutStatus_STATE_ROLLED_BACK,
		donav1.RolloutStatus_STATE_ABORTED, donav1.RolloutStatus_STATE_SUPERSEDED:
		return true
	}
	return false
}

// State is the state's name as the documentation writes it.
func State(state donav1.RolloutStatus_State) string {
	return strings.TrimPrefix(state.String(), "STATE_")
}

// Verdict is the verdict's name; what was not measured is MISSING.
func Verdict(v donav1.Verdict) string {
	if v == donav1.Verdict_VERDICT_UNSPECIFIED {
		v = donav1.Verdict_VERDICT_MISSING
	}
	return strings.TrimPrefix(v.String(), "VERDICT_")
}

func stateColor(state donav1.RolloutStatus_State) string {
	switch state {
	case donav1.RolloutStatus_STATE_PROMOTED:
		return green
	case donav1.RolloutStatus_STATE_ROLLED_BACK, donav1.RolloutStatus_STATE_ABORTED:
		return red
	case donav1.RolloutStatus_STATE_HOLDING, donav1.RolloutStatus_STATE_PAUSED:
		return yellow
	}
	return cyan
}

func verdictColor(v donav1.Verdict) string {
	switch v {
	case donav1.Verdict_VERDICT_PASS:
		return green
	case donav1.Verdict_VERDICT_BREACH:
		return red
	}
	return yellow
}

// Block draws a rollout: its steps, the weights, the evidence of each check,
// the dwell, what is missing and what is quarantined.
func (s Style) Block(r Rollout) []string {
	st := r.Status
	head := fmt.Sprintf("%s  %s -> %s  %s", s.Bold(Clean(st.GetService())), Clean(st.GetStableVariant()),
		Clean(st.GetCanaryVariant()), s.paint(stateColor(st.GetState()), State(st.GetState())))
	if st.GetId() != "" {
		head += "  " + s.Dim(Clean(st.GetId()))
	}
	out := []string{head, "  steps    " + s.steps(st)}
	for i, w := range r.Weights {
		label := "           "
		if i == 0 {
			label = "  weights  "
		}
		out = append(out, fmt.Sprintf("%s%s %-12s %3d %%", label, bar(w.GetWeight()), Clean(w.GetVariant()), w.GetWeight()))
	}
	if !Ended(st.GetState()) && begun(st) {
		out = append(out, "  dwell    "+dwell(st, r.StepDwell))
	}
	out = append(out, s.checks(st)...)
	if missing := missingNow(st); len(missing) > 0 && !Ended(st.GetState()) {
		out = append(out, "  missing  "+s.Warn(strings.Join(missing, "; ")))
	}
	if len(r.Quarantined) > 0 {
		out = append(out, "  quarantined  "+s.Bad(list(r.Quarantined, ""))+s.Dim("  (no request goes there until it is lifted)"))
	}
	// In a step the reason repeats the checks and the dwell; it is left out where
	// both are shown in full.
	if st.GetReason() != "" && !(explained(st) && r.StepDwell > 0) {
		out = append(out, "  reason   "+Clean(st.GetReason()))
	}
	return out
}

// begun reports whether the first step has begun: until then, and after an end
// that came before, a rollout stands at no step.
func begun(st *donav1.RolloutStatus) bool {
	return st.GetStepStartedUnix() > 0 || st.GetStepPercent() > 0 || st.GetStepIndex() > 0
}

// steps marks the steps that were gone through (x), the one being judged (>), the
// one at which it ended otherwise (!), those that a promotion left out (-), and the
// ones to come.
func (s Style) steps(st *donav1.RolloutStatus) string {
	var parts []string
	for i, percent := range st.GetSteps() {
		parts = append(parts, s.step(st, i, percent))
	}
	if len(parts) == 0 {
		return "-"
	}
	return strings.Join(parts, "   ")
}

func (s Style) step(st *donav1.RolloutStatus, i int, percent uint32) string {
	at, mark, code := int(st.GetStepIndex()), " ", dim
	promoted := st.GetState() == donav1.RolloutStatus_STATE_PROMOTED
	switch {
	case promoted && i >= at && (at < len(st.GetSteps())-1 || st.GetStepStartedUnix() == 0): // by an operator, before the last step
		mark, code = "-", yellow
	case promoted, begun(st) && i < at:
		mark, code = "x", green
	case !begun(st) || i > at:
	case Ended(st.GetState()):
		mark, code = "!", stateColor(st.GetState())
	default:
		mark, code = ">", stateColor(st.GetState())
	}
	return s.paint(code, fmt.Sprintf("[%s] %d %%", mark, percent))
}

func bar(percent uint32) string {
	full := int(min(percent, 100)) * barWidth / 100
	if full == 0 && percent > 0 {
		full = 1
	}
	return "[" + strings.Repeat("#", full) + strings.Repeat(".", barWidth-full) + "]"
}

func dwell(st *donav1.RolloutStatus, step time.Duration) string {
	served := time.Duration(st.GetDwellMs()) * time.Millisecond
	if step <= 0 {
		return Seconds(served) + " served"
	}
	served = min(served, step)
	return fmt.Sprintf("%s of %s, %s left", Seconds(served), Seconds(step), Seconds(step-served))
}

func (s Style) checks(st *donav1.RolloutStatus) []string {
	t := &table{indent: "           "}
	t.paint = func(row, col int) string {
		if col == 0 {
			return verdictColor(st.GetAnalysis()[row-1].GetVerdict())
		}
		return ""
	}
	t.add("", "", "")
	for _, a := range st.GetAnalysis() {
		t.add(Verdict(a.GetVerdict()), Clean(a.GetName()), Clean(a.GetDetail()))
	}
	lines := t.lines(s)[1:]
	if len(lines) == 0 {
		lines = []string{fmt.Sprintf("           requests: %d, errors: %d", st.GetCanaryRequests(), st.GetCanaryErrors())}
	}
	lines[0] = "  checks   " + strings.TrimPrefix(lines[0], t.indent)
	return lines
}

// missingNow lists what a step still waits for.
func missingNow(st *donav1.RolloutStatus) []string {
	var out []string
	gate := false
	for _, a := range st.GetAnalysis() {
		if v := a.GetVerdict(); v != donav1.Verdict_VERDICT_PASS && v != donav1.Verdict_VERDICT_BREACH {
			out = append(out, Clean(a.GetName()))
			gate = gate || strings.Contains(a.GetDetail(), "requests")
		}
	}
	if n := st.GetRequestsNeeded(); n > 0 && !gate {
		out = append(out, fmt.Sprintf("%d more requests", n))
	}
	return out
}

// Line is one line about a rollout, for an output that cannot be redrawn. The
// checks say what is missing; the reason is added where they do not tell why.
func Line(r Rollout) string {
	st := r.Status
	var b strings.Builder
	fmt.Fprintf(&b, "%s %s", Clean(st.GetService()), Brief(r, true))
	if st.GetReason() != "" && !explained(st) {
		fmt.Fprintf(&b, "; %s", Clean(st.GetReason()))
	}
	return b.String()
}

// explained reports whether the checks alone say why a rollout is where it is.
func explained(st *donav1.RolloutStatus) bool {
	return len(st.GetAnalysis()) > 0 && (st.GetState() == donav1.RolloutStatus_STATE_PROGRESSING || st.GetState() == donav1.RolloutStatus_STATE_HOLDING)
}

// Brief is the shortest account of a rollout: what moves where, how far it is,
// and the verdicts. With details it says what each check saw.
func Brief(r Rollout, details bool) string {
	st := r.Status
	var b strings.Builder
	fmt.Fprintf(&b, "%s -> %s %s", Clean(st.GetStableVariant()), Clean(st.GetCanaryVariant()), State(st.GetState()))
	if n := len(st.GetSteps()); n > 0 && !Ended(st.GetState()) && st.GetStepPercent() > 0 {
		fmt.Fprintf(&b, " step %d/%d at %d %%", st.GetStepIndex()+1, n, st.GetStepPercent())
	}
	if st.GetState() != donav1.RolloutStatus_STATE_PENDING {
		sep := ": "
		for _, a := range st.GetAnalysis() {
			// What was missing at the end of a rollout says nothing any more.
			if Ended(st.GetState()) && Verdict(a.GetVerdict()) == "MISSING" {
				continue
			}
			fmt.Fprintf(&b, "%s%s %s", sep, Clean(a.GetName()), Verdict(a.GetVerdict()))
			if details && a.GetDetail() != "" {
				fmt.Fprintf(&b, " (%s)", Clean(a.GetDetail()))
			}
			sep = ", "
		}
	}
	if len(r.Quarantined) > 0 {
		fmt.Fprintf(&b, "; quarantined: %s", list(r.Quarantined, ""))
	}
	return b.String()
}

// Mark is equal for two states of a rollout between which nothing happened that
// deserves a line: numbers may have moved, no verdict, step or state did.
func Mark(r Rollout) string {
	st := r.Status
	var b strings.Builder
	fmt.Fprintf(&b, "%s|%d|%d|%s", st.GetId(), st.GetState(), st.GetStepIndex(), strings.Join(r.Quarantined, ","))
	for _, a := range st.GetAnalysis() {
		fmt.Fprintf(&b, "|%s=%d", a.GetName(), a.GetVerdict())
	}
	for _, w := range r.Weights {
		fmt.Fprintf(&b, "|%s:%d", w.GetVariant(), w.GetWeight())
	}
	return b.String()
}
