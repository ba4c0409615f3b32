package render

import (
	"fmt"
	"strings"

	donav1 "github.com/dodona-project/dodona/proto/dona/v1"
)

// Host draws what a host says about itself and its store.
func (s Style) Host(h *donav1.HostStatus) []string {
	state := Clean(h.GetStoreState())
	switch {
	case state == "ready":
		state = s.Good(state)
	case strings.HasPrefix(state, "foreign"):
		state = s.Bad(state)
	default:
		state = s.Warn(state)
	}
	durability := Clean(h.GetDurability())
	if durability != "durable" {
		durability = s.Warn(durability)
	}
	out := []string{
		fmt.Sprintf("host         %s, version %s", Clean(h.GetHostId()), Clean(h.GetVersion())),
		"store        " + Clean(h.GetStore()),
		"state        " + state,
		"durability   " + durability,
	}
	return append(append(out, rows("other hosts", h.GetOtherHosts())...), rows("alarms", h.GetAlarms())...)
}

// rows writes a list with its name before the first; "-" when it is empty.
func rows(name string, list []string) (out []string) {
	if len(list) == 0 {
		list = []string{"-"}
	}
	for i, item := range list {
		if i > 0 {
			name = ""
		}
		out = append(out, fmt.Sprintf("%-12s %s", name, Clean(item)))
	}
	return out
}

// Check draws what a check of a store has found; where says who looked.
func (s Style) Check(r *donav1.CheckStoreReply, where string) []string {
	out := []string{fmt.Sprintf("checked %s", Clean(where))}
	out = append(out, fmt.Sprintf("%d services, %d records", r.GetServices(), r.GetRecords()))
	for _, c := range r.GetChains() {
		out = append(out, fmt.Sprintf("chain %s: %d entries, head %s", Clean(c.GetChain()), c.GetEntries(), Clean(c.GetHead())))
	}
	if len(r.GetProblems()) == 0 {
		return append(out, s.Good("all holds"))
	}
	for _, p := range r.GetProblems() {
		out = append(out, s.Bad("problem: ")+Clean(p))
	}
	return out
}
