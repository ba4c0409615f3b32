//go:build linux

package plugins_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/dodona-project/dodona/plugins"
	"github.com/dodona-project/dodona/plugins/analysis"
)

var actsID = plugins.ID{Kind: plugins.KindAnalysis, Name: "acts"}

// logOf is what is kept of a plugin's log.
func logOf(t *testing.T, h *plugins.Host, id plugins.ID) (lines []plugins.LogLine) {
	t.Helper()
	if err := h.Tail(t.Context(), id, 1000, false, func(l plugins.LogLine) error { lines = append(lines, l); return nil }); err != nil {
		t.Fatal(err)
	}
	return lines
}

func line(lines []plugins.LogLine, text string) (plugins.LogLine, bool) {
	i := slices.IndexFunc(lines, func(l plugins.LogLine) bool { return strings.Contains(l.Text, text) })
	if i < 0 {
		return plugins.LogLine{}, false
	}
	return lines[i], true
}

// TestLogOutlivesTheProcess: what a process wrote, how it ended, and what the
// next one writes, with the secrets masked.
func TestLogOutlivesTheProcess(t *testing.T) {
	o := newOptions(t)
	o.Plugins = map[plugins.ID]plugins.PluginConfig{actsID: {Env: map[string]string{"API_TOKEN": "tok-123456"}}}
	h := startHost(t, o)
	f := analysis.New(h)
	await(t, h, plugins.KindAnalysis, "acts")
	say := func(what string) {
		t.Helper()
		if _, err := f.Evaluate(t.Context(), "acts", request(t, "print "+what)); err != nil {
			t.Fatal(err)
		}
	}
	say("tok-123456 and \x1b[2J")
	until(t, "the first process' lines", nil, func() bool {
		_, logged := line(logOf(t, h, actsID), "logged arg=")
		_, raw := line(logOf(t, h, actsID), `*** and \u001b[2J`)
		return logged && raw
	})
	if err := syscall.Kill(int(stateOf(t, h, "acts").GetPid()), syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	eventually(t, h, "a second generation", func() bool {
		s := stateOf(t, h, "acts")
		return s.GetState() == "ready" && s.GetGeneration() == 2
	})
	say("second life")
	until(t, "the second process' line", nil, func() bool { _, ok := line(logOf(t, h, actsID), "second life"); return ok })

	lines := logOf(t, h, actsID)
	for _, want := range []plugins.LogLine{
		{Level: "info", Generation: 1, Text: "plugin is ready version=1.2.3"},
		{Level: "error", Generation: 1, Text: `plugin ended exit="signal: killed" reason="the process ended"`},
		{Level: "info", Generation: 2, Text: "plugin is ready"},
		{Level: "info", Generation: 2, Text: "second life"},
	} {
		at := slices.IndexFunc(lines, func(l plugins.LogLine) bool {
			return l.Level == want.Level && l.Generation == want.Generation && strings.Contains(l.Text, want.Text)
		})
		if at < 0 {
			t.Errorf("no line like %+v", want)
			continue
		}
		lines = lines[at:] // the others come later
	}
	for _, l := range logOf(t, h, actsID) {
		if strings.Contains(l.Text, "tok-123456") || strings.ContainsAny(l.Text, "\x1b\n") {
			t.Errorf("line %q", l.Text)
		}
		if t.Failed() {
			t.Logf("%+v", l)
		}
	}
	if got := logOf(t, h, plugins.ID{Kind: plugins.KindStrategy, Name: "turns"}); len(got) != 0 {
		t.Errorf("another plugin's log holds %+v", got)
	}
	if err := h.Tail(t.Context(), plugins.ID{Kind: plugins.KindStrategy, Name: "acts"}, 1, false, nil); !errors.Is(err, plugins.ErrUnknown) {
		t.Errorf("the log of an unknown plugin: %v", err)
	}
}

// TestStuckFollowerHoldsUpNobody: the plugin floods meanwhile, and the follower
// learns afterwards how much it missed. The host's stop ends it.
func TestStuckFollowerHoldsUpNobody(t *testing.T) {
	o := newOptions(t)
	o.Logger = nil // nobody wants to read it all
	h := startHost(t, o)
	f := analysis.New(h)
	await(t, h, plugins.KindAnalysis, "acts")
	stuck, free, done := make(chan struct{}), make(chan struct{}), make(chan error, 1)
	var missed atomic.Uint64
	go func() {
		first := true
		done <- h.Tail(context.Background(), actsID, 1, true, func(l plugins.LogLine) error {
			if first {
				first = false
				close(stuck)
				<-free
			}
			missed.Add(l.Missed)
			return nil
		})
	}()
	<-stuck
	for range 4 {
		if _, err := f.Evaluate(t.Context(), "acts", request(t, "flood")); err != nil {
			t.Fatal(err)
		}
	}
	close(free)
	until(t, "the follower to learn what it missed", nil, func() bool { return missed.Load() > 0 })
	t.Logf("%d lines missed, %d kept", missed.Load(), len(logOf(t, h, actsID)))
	h.Stop(context.Background())
	if err := <-done; !errors.Is(err, plugins.ErrAway) {
		t.Errorf("following ends with %v, want ErrAway", err)
	}
}

// TestResetIsSeenAtOnce: who looks right after it does not find the plugin in the
// state before.
func TestResetIsSeenAtOnce(t *testing.T) {
	h := play(t, cast{"newer": "new-protocol"}, nil).Host
	if err := h.Ensure(plugins.KindAnalysis, "newer"); err != nil {
		t.Fatal(err)
	}
	starts := uint64(0)
	for range 3 {
		eventually(t, h, "rejected", func() bool {
			s := stateOf(t, h, "newer")
			return s.GetState() == "rejected" && s.GetStarts() > starts
		})
		starts = stateOf(t, h, "newer").GetStarts()
		if err := h.Reset(plugins.KindAnalysis, "newer"); err != nil {
			t.Fatal(err)
		}
		if s := stateOf(t, h, "newer"); s.GetState() == "rejected" && s.GetStarts() == starts {
			t.Errorf("right after the reset it is %s (%s)", s.GetState(), s.GetReason())
		}
	}
}
