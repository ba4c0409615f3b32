//go:build linux

package plugins_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/dodona-project/dodona/plugins"
	"github.com/dodona-project/dodona/plugins/analysis"
	"github.com/dodona-project/dodona/plugins/badplugins"
)

// A plugin that is away is reloaded by starting it, whatever keeps it away, and
// the answer says what became of it.
func TestReloadOfAPluginThatIsAway(t *testing.T) {
	broken := filepath.Join(t.TempDir(), "broken")
	for _, state := range []string{"backoff", "quarantined"} {
		t.Run(state, func(t *testing.T) {
			var seen events
			o := newOptions(t)
			o.OnEvent = seen.on
			o.Plugins = map[plugins.ID]plugins.PluginConfig{
				{Kind: plugins.KindAnalysis, Name: "acts"}: {Env: map[string]string{"REFUSE_TO_START_IF": broken}},
			}
			o.Backoff = plugins.Backoff{Min: time.Hour, Max: time.Hour}
			if state == "quarantined" {
				o.Limits.QuarantineAt = 1
			}
			h := startHost(t, o)
			if err := os.WriteFile(broken, nil, 0o600); err != nil {
				t.Fatal(err)
			}
			if err := h.Ensure(plugins.KindAnalysis, "acts"); err != nil {
				t.Fatal(err)
			}
			eventually(t, h, state, func() bool { return stateOf(t, h, "acts").GetState() == state })
			err := h.Reload(t.Context(), plugins.KindAnalysis, "acts")
			if err == nil || !strings.Contains(err.Error(), "refusing to start") {
				t.Fatalf("reload of what cannot start: %v", err)
			}
			if s := stateOf(t, h, "acts"); s.GetState() != state || s.GetStarts() != 2 {
				t.Errorf("then it is %s after %d starts", s.GetState(), s.GetStarts())
			}
			if err := os.Remove(broken); err != nil {
				t.Fatal(err)
			}
			if err := h.Reload(t.Context(), plugins.KindAnalysis, "acts"); err != nil {
				t.Fatalf("reload: %v", err)
			}
			if _, err := analysis.New(h).Evaluate(t.Context(), "acts", request(t, "")); err != nil {
				t.Errorf("right after the reload: %v", err)
			}
			waitEvent(t, &seen, plugins.EventReload)
		})
	}
}

// A reset is used up by the start that it asked for, whether the plugin was never
// used or its start was under way: the next end counts and is waited for.
func TestResetIsUsedUp(t *testing.T) {
	for _, first := range []string{"reset", "use"} {
		t.Run(first, func(t *testing.T) {
			var seen events
			o := newOptions(t)
			o.OnEvent = seen.on
			o.Limits.QuarantineAt = 1
			h := startHost(t, o)
			if first == "use" {
				if err := h.Ensure(plugins.KindAnalysis, "acts"); err != nil {
					t.Fatal(err)
				}
			}
			if err := h.Reset(plugins.KindAnalysis, "acts"); err != nil {
				t.Fatal(err)
			}
			await(t, h, plugins.KindAnalysis, "acts")
			if err := syscall.Kill(int(stateOf(t, h, "acts").GetPid()), syscall.SIGKILL); err != nil {
				t.Fatal(err)
			}
			waitEvent(t, &seen, plugins.EventQuarantine)
			if err := h.Reload(t.Context(), plugins.KindAnalysis, "acts"); err != nil {
				t.Fatal(err)
			}
			if n := stateOf(t, h, "acts").GetStarts(); n != 2 {
				t.Errorf("started %d times: it did not stay quarantined until it was reloaded", n)
			}
		})
	}
}

// Who waits for a reload can give up at once, however long the start takes, and
// the old process serves on.
func TestReloadIsCancellable(t *testing.T) {
	beside(t)
	slow := filepath.Join(t.TempDir(), "slow")
	o := newOptions(t)
	o.Plugins = map[plugins.ID]plugins.PluginConfig{
		{Kind: plugins.KindAnalysis, Name: "acts"}: {Env: map[string]string{"HANG_AT_START_IF": slow}},
	}
	o.Limits.Handshake = 3 * time.Second
	h := startHost(t, o)
	await(t, h, plugins.KindAnalysis, "acts")
	if err := os.WriteFile(slow, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	answer := make(chan error, 1)
	go func() { answer <- h.Reload(ctx, plugins.KindAnalysis, "acts") }()
	eventually(t, h, "the second start", func() bool { return stateOf(t, h, "acts").GetStarts() == 2 })
	began := time.Now()
	cancel()
	if err := <-answer; !errors.Is(err, context.Canceled) {
		t.Errorf("error %v", err)
	}
	t.Logf("gave up within %v", time.Since(began))
	if took := time.Since(began); took > time.Second {
		t.Errorf("giving up took %v, as long as a start", took)
	}
	// A second one waits for its turn, and can give up as well.
	ctx, cancel = context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	if err := h.Reload(ctx, plugins.KindAnalysis, "acts"); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("while another runs: %v", err)
	}
	if _, err := analysis.New(h).Evaluate(t.Context(), "acts", request(t, "")); err != nil {
		t.Errorf("meanwhile: %v", err)
	}
	eventually(t, h, "why the reload failed", func() bool {
		s := stateOf(t, h, "acts")
		return s.GetState() == "ready" && strings.Contains(s.GetReason(), "generation 1 stays: no handshake within 3s")
	})
}

func TestReloadWhileTheHostStops(t *testing.T) {
	beside(t)
	catalog := &badplugins.Catalog{}
	catalog.Put(idOf("silent"), program(t).File(idOf("silent"), "silent"))
	o := newOptions(t)
	o.Catalog = catalog
	h := startHost(t, o)
	await(t, h, plugins.KindAnalysis, "acts")
	if err := syscall.Kill(int(stateOf(t, h, "acts").GetPid()), syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	if err := h.Ensure(plugins.KindAnalysis, "silent"); err != nil {
		t.Fatal(err)
	}
	answers := make(chan error, 2)
	for _, name := range []string{"acts", "silent"} {
		go func() { answers <- h.Reload(context.Background(), plugins.KindAnalysis, name) }()
	}
	eventually(t, h, "the starts", func() bool {
		return stateOf(t, h, "acts").GetStarts() == 2 && stateOf(t, h, "silent").GetStarts() == 1
	})
	h.Stop(context.Background())
	for range 2 {
		if err := <-answers; err != nil {
			t.Logf("answered: %v", err)
		}
	}
	if err := h.Reload(t.Context(), plugins.KindAnalysis, "acts"); !errors.Is(err, plugins.ErrAway) {
		t.Errorf("after the stop: %v", err)
	}
}
