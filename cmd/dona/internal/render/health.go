package render

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	donav1 "github.com/dodona-project/dodona/proto/dona/v1"
)

// health shows which endpoints are not well and why, those that left first.
func (s Style) health(c *donav1.CheckStatus) []string {
	if c == nil {
		return nil
	}
	states := map[donav1.EndpointHealth_State]int{}
	var out int
	var bad []*donav1.EndpointHealth
	for _, e := range c.GetEndpoints() {
		states[e.GetState()]++
		if e.GetOut() {
			out++
		}
		if e.GetState() != donav1.EndpointHealth_STATE_AVAILABLE || e.GetOut() || strings.HasPrefix(e.GetReason(), "inconclusive") {
			bad = append(bad, e)
		}
	}
	line := fmt.Sprintf("%-10s %d of %d available", "checks", states[donav1.EndpointHealth_STATE_AVAILABLE], len(c.GetEndpoints()))
	for _, n := range []struct {
		count int
		word  string
	}{
		{states[donav1.EndpointHealth_STATE_SUSPECT], "suspect"}, {states[donav1.EndpointHealth_STATE_UNHEALTHY], "unhealthy"},
		{states[donav1.EndpointHealth_STATE_UNSPECIFIED], "not checked yet"}, {out, "out of the snapshot"},
	} {
		if n.count > 0 {
			line += fmt.Sprintf(", %d %s", n.count, n.word)
		}
	}
	lines := []string{line + ", by " + count(int(c.GetLiveCheckers()), "checker")}
	if c.GetAlarm() != "" {
		lines = append(lines, fmt.Sprintf("%-10s %s", "", s.Bad("alarm: "+Clean(c.GetAlarm()))))
	}
	if len(bad) == 0 {
		return lines
	}
	slices.SortStableFunc(bad, func(a, b *donav1.EndpointHealth) int {
		return cmp.Compare(rank(b), rank(a))
	})
	t := &table{}
	t.add("CHECKED", "ADDRESS", "VARIANT", "HEALTH", "SNAPSHOT", "WHY")
	for _, e := range bad[:min(len(bad), endpointLines)] {
		snapshot := "in"
		if e.GetOut() {
			snapshot = "out"
		}
		t.add(Clean(e.GetEndpointId()), Clean(e.GetAddress()), Clean(e.GetVariant()), healthWord(e.GetState()), snapshot, dash(e.GetReason()))
	}
	lines = append(append(lines, ""), t.lines(s)...)
	if more := len(bad) - endpointLines; more > 0 {
		lines = append(lines, s.Dim(fmt.Sprintf("and %d more (--json names all)", more)))
	}
	return lines
}

func healthWord(h donav1.EndpointHealth_State) string {
	if h == donav1.EndpointHealth_STATE_UNSPECIFIED {
		return "not checked yet"
	}
	return strings.ToLower(strings.TrimPrefix(h.String(), "STATE_"))
}

// rank puts those that are out first, and the worse before the better.
func rank(e *donav1.EndpointHealth) int32 {
	if e.GetOut() {
		return 100
	}
	return int32(e.GetState())
}
