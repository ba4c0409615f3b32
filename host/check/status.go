package check

import (
	"fmt"
	"slices"
	"strings"

	donav1 "github.com/dodona-project/dodona/proto/dona/v1"
	statev1 "github.com/dodona-project/dodona/proto/state/v1"

	"github.com/dodona-project/dodona/host/store"
)

// Status shows what is known of a scope's targets; nil when they are not checked.
func (b *Broker) Status(tx store.ReadTx, plane, scope string) (*donav1.CheckStatus, error) {
	p := b.o.Planes[plane]
	how, err := p.Scope(tx, scope)
	if err != nil || how.Probe == "" {
		return nil, err
	}
	var g statev1.CheckGroup
	if _, err := store.Load(tx, group{plane, scope}.key(), &g); err != nil {
		return nil, err
	}
	live, err := liveCheckers(tx, tx.Now().UnixMilli())
	if err != nil {
		return nil, err
	}
	targets, err := p.Targets(tx, scope)
	if err != nil {
		return nil, err
	}
	checks, err := checksOf(tx, group{plane, scope})
	if err != nil {
		return nil, err
	}
	status := &donav1.CheckStatus{Alarm: g.Alarm, LiveCheckers: uint32(judges(live, how.Probe, how.level()))}
	for _, t := range targets { // by id
		c := checks[t.ID]
		h := c.GetHealth()
		status.Endpoints = append(status.Endpoints, &donav1.EndpointHealth{
			EndpointId: t.ID, State: donav1.EndpointHealth_State(h.GetHealth()), Out: t.Out, Reason: reason(c.GetSeen()),
			CheckedUnixMs: c.GetSeen().GetAtMs(), FailingUnixMs: h.GetFailingMs(), Failures: h.GetFailures(),
			Address: t.Address, Variant: t.Variant, Region: t.Region,
		})
	}
	return status, nil
}

// reason is an observation in a line for people; empty when there was none.
func reason(seen *statev1.CheckSeen) string {
	word := resultWord(seen.GetResult())
	if word == "" {
		return ""
	}
	var b strings.Builder
	b.WriteString(word)
	if class := seen.GetErrorClass(); class != 0 {
		b.WriteString(" (" + strings.ToLower(strings.ReplaceAll(strings.TrimPrefix(class.String(), "ERROR_CLASS_"), "_", " ")) + ")")
	}
	if seen.GetStatus() != 0 {
		fmt.Fprintf(&b, ", status %d", seen.GetStatus())
	}
	if seen.GetDetail() != "" {
		b.WriteString(": " + seen.GetDetail())
	}
	return b.String()
}

// Alarms are the scopes where targets that fail are kept, as of the last look.
func (b *Broker) Alarms() []string {
	b.mu.Lock()
	defer b.mu.Unlock()
	lines := make([]string, 0, len(b.alarms))
	for g, alarm := range b.alarms {
		lines = append(lines, fmt.Sprintf("checks of %s %s: %s", g.plane, g.scope, alarm))
	}
	slices.Sort(lines)
	return lines
}
