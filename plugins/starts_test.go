//go:build linux

package plugins_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/dodona-project/dodona/plugins"
	donav1 "github.com/dodona-project/dodona/proto/dona/v1"
)

// Every start that must fail, all at once: each is refused with its reason, and
// nothing half-started takes calls. A handshake alone is no start.
func TestG8BadStarts(t *testing.T) {
	beside(t)
	const clock = 4 * time.Second // of each step
	bad := []struct {
		behaviour, state string
		words            []string // in the reason
	}{
		{"exit", "quarantined", []string{"the process printed no handshake line", "exit code 0"}},
		{"crash", "quarantined", []string{"exit code 3", "attempt 1 failed"}},
		{"words", "quarantined", []string{"exit code 3", "configuration file missing"}},
		{"silent", "quarantined", []string{"no handshake within 4s"}},
		{"garbage", "quarantined", nil},
		{"core-version", "rejected", []string{"version 9 of go-plugin's protocol", "rebuild the plugin"}},
		{"old-protocol", "rejected", []string{"plugin protocol 0", "upgrade the plugin"}},
		{"new-protocol", "rejected", []string{"plugin protocol 9", "upgrade the host"}},
		{"net-rpc", "quarantined", []string{"netrpc"}},
		{"elsewhere", "quarantined", []string{"listens on tcp: allowed is a unix socket"}},
		{"not-listening", "quarantined", nil},
		{"not-accepting", "quarantined", []string{"within 4s"}},
		{"unimplemented", "quarantined", []string{"Describe", "unknown service"}},
		{"describe-silent", "quarantined", []string{"not answered", "Describe"}},
		{"wrong-name", "rejected", []string{`calls itself "somebody-else"`, `expected "wrong-name"`}},
		{"wrong-kind", "rejected", []string{"KIND_PROBE", "expected analysis"}},
		{"wrong-version", "rejected", []string{`version "latest"`, "semantic version"}},
		{"many-abilities", "quarantined", []string{"Describe", "larger than max"}},
		{"describe-large", "quarantined", []string{"Describe", "larger than max"}},
		{"deep-schema", "rejected", []string{"more than 64 levels"}},
		{"health-silent", "quarantined", []string{"no health within 4s"}},
	}
	c := cast{}
	for _, b := range bad {
		c[b.behaviour] = b.behaviour
	}
	s := play(t, c, func(o *plugins.Options) {
		o.Limits = plugins.Limits{Handshake: clock, Describe: clock, Configure: clock, FirstHealth: clock, QuarantineAt: 1, RestartBudget: 1000}
	})
	began := time.Now()
	for _, b := range bad {
		if err := s.Ensure(plugins.KindAnalysis, b.behaviour); err != nil {
			t.Fatal(err)
		}
	}
	for _, b := range bad {
		over := func(p *donav1.PluginStatus) bool { return p.GetState() == "rejected" || p.GetState() == "quarantined" }
		p := s.until(b.behaviour, b.state, over)
		for p.GetStarts() < 10 && strings.Contains(p.GetReason(), "no handshake within") && !slices.Contains([]string{"silent", "not-accepting"}, b.behaviour) {
			// Twenty starts at once take longer than that on a busy machine.
			starts := p.GetStarts()
			if err := s.Reset(plugins.KindAnalysis, b.behaviour); err != nil {
				t.Fatal(err)
			}
			p = s.until(b.behaviour, b.state, func(p *donav1.PluginStatus) bool { return p.GetStarts() > starts && over(p) })
		}
		t.Logf("%s: %s after %v: %s", b.behaviour, p.GetState(), time.Since(began), p.GetReason())
		if p.GetState() != b.state || p.GetReason() == "" {
			t.Errorf("%s is %s, want %s", b.behaviour, p.GetState(), b.state)
		}
		for _, w := range b.words {
			if !strings.Contains(p.GetReason(), w) {
				t.Errorf("%s: reason %q, want %q in it", b.behaviour, p.GetReason(), w)
			}
		}
		if _, err := s.do(b.behaviour, ""); !errors.Is(err, plugins.ErrAway) {
			t.Errorf("%s takes calls: %v", b.behaviour, err)
		}
		// An operator can have it tried again.
		if err := s.Reset(plugins.KindAnalysis, b.behaviour); err != nil {
			t.Fatal(err)
		}
		s.until(b.behaviour, "started again", func(q *donav1.PluginStatus) bool { return q.GetStarts() > p.GetStarts() })
	}
	for _, kind := range []plugins.EventKind{plugins.EventQuarantine, plugins.EventReject} {
		waitEvent(t, s.events, kind)
	}
	// The host stops while most of them are starting.
}

// A start that fails after the handshake by what Configure does is the start of
// a restart: a first one has nothing to configure.
func TestConfigureThatHangs(t *testing.T) {
	beside(t)
	s := play(t, cast{"hangs": "configure-hangs"}, deadlines(200*time.Millisecond, "hangs"))
	s.ready("hangs")
	if _, err := s.do("hangs", ""); !errors.Is(err, plugins.ErrDeadline) {
		t.Errorf("%v, want ErrDeadline", err)
	}
}

// A start or a reload that hangs holds nobody up: not its caller, who can give
// up, and not the end of the host.
func TestHangingStartHoldsNobodyUp(t *testing.T) {
	beside(t)
	s := play(t, cast{"silent": "silent", "upgraded": "sdk"}, nil)
	s.ready("upgraded")
	if err := s.Ensure(plugins.KindAnalysis, "silent"); err != nil {
		t.Fatal(err)
	}
	s.until("silent", "has a process", func(p *donav1.PluginStatus) bool { return p.GetStarts() == 1 })
	s.catalog.Put(idOf("upgraded"), program(t).File(idOf("upgraded"), "silent"))
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	began := time.Now()
	err := s.Reload(ctx, plugins.KindAnalysis, "upgraded")
	t.Logf("the caller of Reload is back after %v of its 200ms: %v", time.Since(began), err)
	if !errors.Is(err, context.DeadlineExceeded) || time.Since(began) > 2*time.Second {
		t.Errorf("Reload: %v after %v", err, time.Since(began))
	}
	s.must("upgraded", "")
}
