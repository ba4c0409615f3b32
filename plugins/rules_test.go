//go:build linux

package plugins_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/dodona-project/dodona/plugins"
	"github.com/dodona-project/dodona/plugins/analysis"
	"github.com/dodona-project/dodona/plugins/badplugins"
)

func TestConcurrencyIsBoundedThenShed(t *testing.T) {
	o := newOptions(t)
	registry := prometheus.NewRegistry()
	o.Registerer = registry
	h := startHost(t, o)
	f := analysis.New(h)
	await(t, h, plugins.KindAnalysis, "acts")
	if _, err := f.Evaluate(t.Context(), "acts", request(t, "")); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var shed, other atomic.Int32
	var calls sync.WaitGroup
	// 4 at once and 16 waiting: of 40, 20 find no place.
	for range 40 {
		calls.Go(func() {
			_, err := f.Evaluate(ctx, "acts", request(t, "wait"))
			if errors.Is(err, plugins.ErrExhausted) {
				shed.Add(1)
			} else {
				other.Add(1)
			}
		})
	}
	until(t, "20 calls shed", nil, func() bool { return shed.Load() == 20 })
	if n := gauge(t, registry, "dona_plugin_inflight"); n != 4 {
		t.Errorf("%v calls in flight, want 4", n)
	}
	if n := gauge(t, registry, "dona_plugin_shed_total"); n != 20 {
		t.Errorf("%v calls counted as shed, want 20", n)
	}
	cancel()
	calls.Wait()
	if shed.Load() != 20 || other.Load() != 20 {
		t.Errorf("%d shed, %d not", shed.Load(), other.Load())
	}
}

func TestBackoffHoldsAPluginAway(t *testing.T) {
	beside(t)
	o := newOptions(t)
	o.Backoff = plugins.Backoff{Min: time.Hour, Max: time.Hour}
	h := startHost(t, o)
	await(t, h, plugins.KindAnalysis, "acts")
	_ = syscall.Kill(int(stateOf(t, h, "acts").GetPid()), syscall.SIGKILL)
	eventually(t, h, "backoff", func() bool { return stateOf(t, h, "acts").GetState() == "backoff" })
	f := analysis.New(h)
	if _, err := f.Evaluate(t.Context(), "acts", request(t, "")); !errors.Is(err, plugins.ErrAway) {
		t.Errorf("call: %v, want ErrAway", err)
	}
	// Its schema is known, so configurations are judged all the same.
	if err := f.Validate(t.Context(), "acts", config(t, map[string]any{"word": "x"})); err != nil {
		t.Errorf("a good configuration: %v", err)
	}
	var refused *plugins.ConfigError
	if err := f.Validate(t.Context(), "acts", config(t, map[string]any{"wrod": "x"})); !errors.As(err, &refused) {
		t.Errorf("a bad configuration: %v", err)
	}
	if err := h.Reset(plugins.KindAnalysis, "acts"); err != nil {
		t.Fatal(err)
	}
	eventually(t, h, "ready after a reset", func() bool { return h.Ready(plugins.KindAnalysis, "acts") })
}

func TestConfigurationIsCheckedByPluginAndSchema(t *testing.T) {
	o := newOptions(t)
	o.Plugins = map[plugins.ID]plugins.PluginConfig{actsID: {Env: map[string]string{"API_TOKEN": "tok-123456"}}}
	h := startHost(t, o)
	f := analysis.New(h)
	for _, tc := range []struct {
		config map[string]any
		want   string // in the error; empty = accepted
	}{
		{map[string]any{"word": "x", "times": 2}, ""},
		{map[string]any{"word": ""}, "/word"},
		{map[string]any{}, "missing property 'word'"},
		{map[string]any{"word": "x", "tmies": 1}, "tmies"},
		{map[string]any{"word": "x", "times": -1}, "/times"},
		{map[string]any{"word": "refuse"}, "choose another, with ***"},
		{map[string]any{"word": strings.Repeat("x", plugins.MaxConfigLen)}, "allowed are at most 65536"},
	} {
		err := f.Validate(t.Context(), "acts", config(t, tc.config))
		var refused *plugins.ConfigError
		switch {
		case tc.want == "" && err != nil:
			t.Errorf("%v: %v", tc.config, err)
		case tc.want != "" && (!errors.As(err, &refused) || !strings.Contains(err.Error(), tc.want)):
			t.Errorf("%.40v: %v, want %q", fmt.Sprint(tc.config), err, tc.want)
		}
	}
	if err := f.Validate(t.Context(), "env", config(t, map[string]any{"x": 1})); err == nil || !strings.Contains(err.Error(), "takes no configuration") {
		t.Errorf("a plugin without configuration: %v", err)
	}
	// A call with a bad configuration never reaches the plugin's function.
	req := request(t, "")
	req.Query.Config = config(t, map[string]any{"word": "refuse"})
	var refused *plugins.ConfigError
	if _, err := f.Evaluate(t.Context(), "acts", req); !errors.As(err, &refused) || !strings.Contains(err.Error(), "with ***") {
		t.Errorf("call: %v", err)
	}
}

// A path that has no room for a socket is refused before anything is made.
func TestG13RunDirectoryIsRefused(t *testing.T) {
	o := newOptions(t)
	o.RunDir = "/tmp/" + strings.Repeat("d", 60)
	if _, err := plugins.New(o); err == nil || !strings.Contains(err.Error(), "has 65 bytes: allowed are at most 53") {
		t.Errorf("long: %v", err)
	}
	o.RunDir = "relative"
	if _, err := plugins.New(o); err == nil || !strings.Contains(err.Error(), "absolute") {
		t.Errorf("relative: %v", err)
	}
	o.RunDir = "/tmp"
	h, err := plugins.New(o)
	if err != nil {
		t.Fatal(err)
	}
	if err := h.Start(t.Context()); err == nil || !strings.Contains(err.Error(), "allowed is 0700") {
		t.Errorf("open to all: %v", err)
	}
}

func TestForgottenInstanceIsConfiguredAgain(t *testing.T) {
	h := startHost(t, newOptions(t))
	await(t, h, plugins.KindAnalysis, "forgetful")
	req := request(t, "")
	req.Query.Config = nil
	if _, err := analysis.New(h).Evaluate(t.Context(), "forgetful", req); err != nil {
		t.Fatal(err)
	}
}

func TestFailedReloadKeepsTheOldProcess(t *testing.T) {
	broken := filepath.Join(t.TempDir(), "broken")
	o := newOptions(t)
	o.Plugins = map[plugins.ID]plugins.PluginConfig{
		{Kind: plugins.KindAnalysis, Name: "acts"}: {Env: map[string]string{"REFUSE_TO_START_IF": broken}},
	}
	h := startHost(t, o)
	await(t, h, plugins.KindAnalysis, "acts")
	before := stateOf(t, h, "acts")
	if err := os.WriteFile(broken, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	err := h.Reload(t.Context(), plugins.KindAnalysis, "acts")
	if err == nil || !strings.Contains(err.Error(), "refusing to start") || !strings.Contains(err.Error(), "generation 1 stays") {
		t.Fatalf("reload: %v", err)
	}
	after := stateOf(t, h, "acts")
	if after.GetState() != "ready" || after.GetPid() != before.GetPid() || !strings.Contains(after.GetReason(), "refusing to start") {
		t.Errorf("status %v", after)
	}
	if _, err := analysis.New(h).Evaluate(t.Context(), "acts", request(t, "")); err != nil {
		t.Error(err)
	}
}

func TestRequiredPluginsStartWithTheHost(t *testing.T) {
	o := newOptions(t)
	o.Plugins = map[plugins.ID]plugins.PluginConfig{
		{Kind: plugins.KindStrategy, Name: "turns"}: {Required: true},
		idOf("words"): {Required: true},
	}
	var catalog badplugins.Catalog
	catalog.Put(idOf("words"), program(t).File(idOf("words"), "words"))
	o.Catalog = &catalog
	h := startHost(t, o)
	eventually(t, h, "one of two", func() bool { m := h.Missing(); return len(m) == 1 && m[0] == idOf("words") })
}

func TestUnhealthyIsOutOfUseUntilItIsHealthy(t *testing.T) {
	beside(t)
	mood := filepath.Join(t.TempDir(), "mood")
	o := newOptions(t)
	o.Plugins = map[plugins.ID]plugins.PluginConfig{
		{Kind: plugins.KindAnalysis, Name: "moody"}: {Env: map[string]string{"MOOD": mood}},
	}
	o.Backoff.Max = o.Backoff.Min
	o.Limits.QuarantineAt = 1000
	if err := os.WriteFile(mood, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	h := startHost(t, o)
	if err := h.Ensure(plugins.KindAnalysis, "moody"); err != nil {
		t.Fatal(err)
	}
	eventually(t, h, "a start that failed for its health", func() bool {
		s := stateOf(t, h, "moody")
		return s.GetState() == "backoff" && strings.Contains(s.GetReason(), "plugin is unhealthy: not today")
	})
	if err := os.Remove(mood); err != nil {
		t.Fatal(err)
	}
	eventually(t, h, "ready", func() bool { return h.Ready(plugins.KindAnalysis, "moody") })
	generation := stateOf(t, h, "moody").GetGeneration()

	// It falls ill and recovers while it runs: the process stays.
	if err := os.WriteFile(mood, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	eventually(t, h, "out of use", func() bool { return stateOf(t, h, "moody").GetState() == "backoff" })
	if r := stateOf(t, h, "moody").GetReason(); r != "unhealthy: not today: ***" {
		t.Errorf("reason %q: the values of its settings are secrets", r)
	}
	req := request(t, "")
	req.Query.Config = nil
	if _, err := analysis.New(h).Evaluate(t.Context(), "moody", req); !errors.Is(err, plugins.ErrAway) {
		t.Errorf("call: %v", err)
	}
	// A reload whose new process is no better leaves it where it was.
	if err := h.Reload(t.Context(), plugins.KindAnalysis, "moody"); err == nil || !strings.Contains(err.Error(), "plugin is unhealthy: not today") {
		t.Errorf("reload: %v", err)
	}
	if s := stateOf(t, h, "moody"); s.GetState() != "backoff" || !strings.Contains(s.GetReason(), "stays") {
		t.Errorf("after a reload that failed: %v", s)
	}
	if _, err := analysis.New(h).Evaluate(t.Context(), "moody", req); !errors.Is(err, plugins.ErrAway) {
		t.Errorf("call after a reload that failed: %v", err)
	}
	if err := os.Remove(mood); err != nil {
		t.Fatal(err)
	}
	eventually(t, h, "in use again", func() bool { return h.Ready(plugins.KindAnalysis, "moody") })
	if g := stateOf(t, h, "moody").GetGeneration(); g != generation {
		t.Errorf("generation %d, want %d", g, generation)
	}
}
