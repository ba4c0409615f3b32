package render

import (
	"fmt"
	"strconv"
	"strings"

	donav1 "github.com/dodona-project/dodona/proto/dona/v1"
)

// Flags is the table of a service's flags, in the order they are asked, with
// how often each was seen in the rolling window.
func (s Style) Flags(flags []*donav1.FlagRule, exposures []*donav1.ExposureCount) []string {
	if len(flags) == 0 {
		return nil
	}
	seen := map[string]uint64{}
	for _, e := range exposures {
		seen[e.GetFlag()] += e.GetCount()
	}
	t := &table{right: columns(2, 4)}
	t.add("FLAG", "STATE", "ROLLOUT", "VARIANT", "SEEN", "VERSION", "TARGETING")
	for _, f := range flags {
		state := "on"
		if f.GetDisabled() {
			state = "disabled"
		}
		rules := make([]string, 0, len(f.GetTargeting()))
		for _, r := range f.GetTargeting() {
			rules = append(rules, Match(r))
		}
		t.add(Clean(f.GetFlag()), state, fmt.Sprintf("%d %%", f.GetRolloutPercent()), dash(f.GetRolloutVariant()),
			strconv.FormatUint(seen[f.GetFlag()], 10), strconv.FormatUint(f.GetVersion(), 10), dash(strings.Join(rules, "; ")))
	}
	return t.lines(s)
}

// Match writes a targeting rule the way the command line reads it.
func Match(r *donav1.TargetingRule) string {
	op := r.GetOperator()
	if op == donav1.TargetingRule_OPERATOR_UNSPECIFIED {
		op = donav1.TargetingRule_OPERATOR_IN
	}
	name := strings.ToLower(strings.TrimPrefix(op.String(), "OPERATOR_"))
	text := Clean(r.GetAttribute()) + " " + name
	if len(r.GetValues()) > 0 {
		values := make([]string, len(r.GetValues()))
		for i, v := range r.GetValues() {
			values[i] = value(v)
		}
		text += " " + strings.Join(values, ",")
	}
	return text + " -> " + Clean(r.GetVariant())
}

// value quotes what could not be told from the rest of the rule.
func value(v string) string {
	if v == "" || Clean(v) != v || strings.ContainsAny(v, ",\" ") || strings.Contains(v, "->") {
		return strconv.Quote(v)
	}
	return v
}
