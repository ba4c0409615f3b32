//go:build linux

package plugins_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/dodona-project/dodona/plugins"
	"github.com/dodona-project/dodona/plugins/analysis"
)

// events collects what the audit log would get.
type events struct {
	mu   sync.Mutex
	list []plugins.Event
}

func (e *events) on(ev plugins.Event) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.list = append(e.list, ev)
}

func (e *events) first(kind plugins.EventKind) (plugins.Event, bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, ev := range e.list {
		if ev.Kind == kind {
			return ev, true
		}
	}
	return plugins.Event{}, false
}

func TestPanicIsOneCallsError(t *testing.T) {
	h := startHost(t, newOptions(t))
	f := analysis.New(h)
	await(t, h, plugins.KindAnalysis, "acts")
	_, err := f.Evaluate(t.Context(), "acts", request(t, "panic"))
	var call *plugins.CallError
	if !errors.As(err, &call) || !strings.Contains(call.Text, "panic: deliberate") {
		t.Fatalf("error %v", err)
	}
	if m, err := f.Evaluate(t.Context(), "acts", request(t, "")); err != nil || m.Detail != "hi" {
		t.Fatalf("the next call: %+v, %v", m, err)
	}
	if s := stateOf(t, h, "acts"); s.GetExits() != 0 {
		t.Errorf("exits %d, want 0", s.GetExits())
	}
}

// Death in a call, in the three ways it comes: the caller learns of it at once
// and not at its deadline, and the plugin comes back with its instances.
func TestDeathInACall(t *testing.T) {
	for _, tc := range []struct{ do, exit, words string }{
		{"crash", "exit code 2", "panic: deliberate crash"},
		{"exit", "exit code 7", ""},
		{"kill", "signal: killed", ""},
	} {
		t.Run(tc.do, func(t *testing.T) {
			var seen events
			o := newOptions(t)
			o.OnEvent = seen.on
			h := startHost(t, o)
			f := analysis.New(h)
			await(t, h, plugins.KindAnalysis, "acts")
			if _, err := f.Evaluate(t.Context(), "acts", request(t, "")); err != nil {
				t.Fatal(err)
			}
			do := tc.do
			if do == "kill" {
				do = "hang"
				pid := int(stateOf(t, h, "acts").GetPid())
				time.AfterFunc(50*time.Millisecond, func() { _ = syscall.Kill(pid, syscall.SIGKILL) })
			}
			began := time.Now()
			_, err := f.Evaluate(t.Context(), "acts", request(t, do))
			took := time.Since(began)
			if !errors.Is(err, plugins.ErrAway) || errors.Is(err, plugins.ErrDeadline) {
				t.Fatalf("error %v, want ErrAway", err)
			}
			t.Logf("%v after %v", err, took)
			eventually(t, h, "a second generation", func() bool {
				s := stateOf(t, h, "acts")
				return s.GetState() == "ready" && s.GetGeneration() == 2 && s.GetExits() == 1
			})
			t.Logf("back %v after the call began", time.Since(began))
			if s := stateOf(t, h, "acts"); s.GetInstances() != 1 {
				t.Errorf("instances %d, want the one it had", s.GetInstances())
			}
			if m, err := f.Evaluate(t.Context(), "acts", request(t, "")); err != nil || m.Detail != "hi" {
				t.Fatalf("after the restart: %+v, %v", m, err)
			}
			crash := waitEvent(t, &seen, plugins.EventCrash)
			if crash.Exit != tc.exit || crash.Generation != 1 || !strings.Contains(crash.Reason, tc.words) || crash.Plugin.Name != "acts" {
				t.Errorf("crash event %+v", crash)
			}
			if tc.words != "" && len(crash.StderrSHA256) != 64 {
				t.Errorf("stderr digest %q", crash.StderrSHA256)
			}
		})
	}
}

func waitEvent(t *testing.T, seen *events, kind plugins.EventKind) (ev plugins.Event) {
	t.Helper()
	until(t, "event "+string(kind), nil, func() bool {
		var ok bool
		ev, ok = seen.first(kind)
		return ok
	})
	return ev
}

func TestMissedDeadlinesReplaceTheProcess(t *testing.T) {
	o := newOptions(t)
	o.Plugins = map[plugins.ID]plugins.PluginConfig{
		{Kind: plugins.KindAnalysis, Name: "acts"}: {Deadline: 300 * time.Millisecond},
	}
	h := startHost(t, o)
	f := analysis.New(h)
	await(t, h, plugins.KindAnalysis, "acts")
	if _, err := f.Evaluate(t.Context(), "acts", request(t, "")); err != nil {
		t.Fatal(err)
	}
	first := int(stateOf(t, h, "acts").GetPid())
	for i := range 3 {
		if _, err := f.Evaluate(t.Context(), "acts", request(t, "hang")); !errors.Is(err, plugins.ErrDeadline) {
			t.Fatalf("call %d: %v, want ErrDeadline", i, err)
		}
	}
	eventually(t, h, "another process", func() bool {
		s := stateOf(t, h, "acts")
		return s.GetState() == "ready" && int(s.GetPid()) != first
	})
	if alive(first) {
		t.Error("the hanging process lives")
	}
}

// A caller that has no time proves nothing against the plugin.
func TestHastyCallersDoNotReplaceTheProcess(t *testing.T) {
	h := startHost(t, newOptions(t))
	f := analysis.New(h)
	await(t, h, plugins.KindAnalysis, "acts")
	for range 5 {
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
		_, err := f.Evaluate(ctx, "acts", request(t, "wait"))
		cancel()
		if !errors.Is(err, context.DeadlineExceeded) {
			t.Fatalf("error %v, want the caller's own", err)
		}
	}
	if _, err := f.Evaluate(t.Context(), "acts", request(t, "")); err != nil {
		t.Fatal(err)
	}
	if s := stateOf(t, h, "acts"); s.GetGeneration() != 1 {
		t.Errorf("generation %d, want 1", s.GetGeneration())
	}
}

// Stopped processes, children that hold the pipes, children in a session of
// their own, a hanging call: the host stops, and nothing is left.
func TestStopWhateverPluginsDo(t *testing.T) {
	o := newOptions(t)
	registry := prometheus.NewRegistry()
	o.Registerer = registry
	h := startHost(t, o)
	f := analysis.New(h)
	await(t, h, plugins.KindAnalysis, "acts")
	await(t, h, plugins.KindAnalysis, "env")
	var pids []int
	for _, do := range []string{"pid", "fork", "fork setsid"} {
		m, err := f.Evaluate(t.Context(), "acts", request(t, do))
		if err != nil {
			t.Fatal(err)
		}
		pid, err := strconv.Atoi(m.Detail)
		if err != nil {
			t.Fatal(err)
		}
		pids = append(pids, pid)
	}
	hanging := make(chan error, 1)
	go func() {
		_, err := f.Evaluate(context.Background(), "acts", request(t, "hang"))
		hanging <- err
	}()
	eventually(t, h, "the call is in flight", func() bool { return gauge(t, registry, "dona_plugin_inflight") > 0 })
	stopped := int(stateOf(t, h, "env").GetPid())
	if err := syscall.Kill(stopped, syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	h.Stop(context.Background())
	t.Logf("stopped in %v", time.Since(began))
	if err := <-hanging; err == nil {
		t.Error("the hanging call succeeded")
	}
	for _, pid := range append(pids, stopped) {
		if alive(pid) {
			t.Errorf("process %d lives", pid)
		}
	}
	if !empty(t, o.RunDir)() {
		t.Error("run directory is not empty")
	}
}

// gauge adds up one metric over all plugins.
func gauge(t *testing.T, registry *prometheus.Registry, name string) (sum float64) {
	t.Helper()
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		if f.GetName() == name {
			for _, m := range f.GetMetric() {
				sum += m.GetGauge().GetValue() + m.GetCounter().GetValue()
			}
		}
	}
	return sum
}

func TestFailedStartsSayWhy(t *testing.T) {
	for _, tc := range []struct {
		name, state string
		words       []string
	}{
		{"raw-junk", "quarantined", []string{"exit code 3", "configuration file missing"}},
		{"raw-exit", "quarantined", []string{"exit code 0"}},
		{"raw-silent", "quarantined", []string{"no handshake within 300ms"}},
		{"raw-version", "rejected", []string{"plugin protocol 9", "upgrade the host"}},
		{"raw-bomb", "quarantined", []string{"last words"}},
		{"raw-flood", "quarantined", []string{"flood over"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			var seen events
			o := newOptions(t)
			o.OnEvent = seen.on
			o.Limits.QuarantineAt = 2
			if tc.name == "raw-silent" {
				o.Limits.Handshake = 300 * time.Millisecond
			}
			h := startHost(t, o)
			if err := h.Ensure(plugins.KindAnalysis, tc.name); err != nil {
				t.Fatal(err)
			}
			eventually(t, h, tc.state, func() bool { return stateOf(t, h, tc.name).GetState() == tc.state })
			s := stateOf(t, h, tc.name)
			for _, w := range tc.words {
				if !strings.Contains(s.GetReason(), w) {
					t.Errorf("reason %q, want %q in it", s.GetReason(), w)
				}
			}
			if err := h.Await(t.Context(), plugins.KindAnalysis, tc.name); !errors.Is(err, plugins.ErrAway) {
				t.Errorf("Await: %v", err)
			}
			kind := plugins.EventQuarantine
			if tc.state == "rejected" {
				kind = plugins.EventReject
			}
			waitEvent(t, &seen, kind)
			// An operator can have it tried again.
			starts := s.GetStarts()
			if err := h.Reset(plugins.KindAnalysis, tc.name); err != nil {
				t.Fatal(err)
			}
			eventually(t, h, "another try", func() bool { return stateOf(t, h, tc.name).GetStarts() > starts })
		})
	}
}

// Whatever is written to stdout and stderr while serving, calls go on and the
// host lives.
func TestFloodAndForgedLines(t *testing.T) {
	h := startHost(t, newOptions(t))
	f := analysis.New(h)
	await(t, h, plugins.KindAnalysis, "acts")
	for _, do := range []string{
		`print {"@level":{},"@message":7,"@timestamp":[]}`,
		`print {"@level":"info","@message":"m","@timestamp":null,"k":{"deep":[1,2,{"x":null}]}}`,
		`print {"@message":`,
		"flood",
	} {
		if _, err := f.Evaluate(t.Context(), "acts", request(t, do)); err != nil {
			t.Fatalf("%q: %v", do, err)
		}
	}
	if m, err := f.Evaluate(t.Context(), "acts", request(t, "")); err != nil || m.Detail != "hi" {
		t.Fatalf("after the flood: %+v, %v", m, err)
	}
	if s := stateOf(t, h, "acts"); s.GetGeneration() != 1 {
		t.Errorf("generation %d, want 1", s.GetGeneration())
	}
}

func TestLargeAnswerIsRefused(t *testing.T) {
	h := startHost(t, newOptions(t))
	f := analysis.New(h)
	await(t, h, plugins.KindAnalysis, "acts")
	_, err := f.Evaluate(t.Context(), "acts", request(t, "large"))
	if err == nil {
		t.Fatal("64 MiB were accepted")
	}
	t.Log(err)
	if _, err := f.Evaluate(t.Context(), "acts", request(t, "")); err != nil {
		t.Fatalf("the next call: %v", err)
	}
}

func TestEnvironmentIsTheHostsChoice(t *testing.T) {
	t.Setenv("DONA_TEST_SECRET", "do-not-tell")
	o := newOptions(t)
	o.Plugins = map[plugins.ID]plugins.PluginConfig{
		{Kind: plugins.KindAnalysis, Name: "env"}: {Env: map[string]string{"API_TOKEN": "given-on-purpose"}},
	}
	h := startHost(t, o)
	await(t, h, plugins.KindAnalysis, "env")
	req := request(t, "")
	req.Query.Config = nil
	m, err := analysis.New(h).Evaluate(t.Context(), "env", req)
	if err != nil {
		t.Fatal(err)
	}
	env := make(map[string]string)
	for _, kv := range strings.Split(string(m.Evidence), "\n") {
		if k, v, ok := strings.Cut(kv, "="); ok {
			env[k] = v
		}
	}
	for _, k := range []string{"PATH", "HOME", "TMPDIR", "LANG", "TZ", "GOMEMLIMIT", "GOMAXPROCS"} {
		if env[k] == "" {
			t.Errorf("%s is not set", k)
		}
	}
	if env["API_TOKEN"] != "given-on-purpose" {
		t.Errorf("API_TOKEN is %q", env["API_TOKEN"])
	}
	if !strings.HasPrefix(env["TMPDIR"], o.RunDir) || env["HOME"] != env["TMPDIR"] {
		t.Errorf("TMPDIR %q and HOME %q are not private", env["TMPDIR"], env["HOME"])
	}
	if strings.Contains(string(m.Evidence), "do-not-tell") {
		t.Error("the host's environment reached the plugin")
	}
}

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

func TestReloadUnderLoadLosesNoCall(t *testing.T) {
	h := startHost(t, newOptions(t))
	f := analysis.New(h)
	await(t, h, plugins.KindAnalysis, "acts")
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var done, failed atomic.Int32
	var callers sync.WaitGroup
	for range 8 {
		callers.Go(func() {
			for ctx.Err() == nil {
				if _, err := f.Evaluate(context.Background(), "acts", request(t, "slow 5ms")); err != nil {
					failed.Add(1)
					t.Error(err)
				}
				done.Add(1)
			}
		})
	}
	for range 3 {
		at := done.Load()
		if err := h.Reload(t.Context(), plugins.KindAnalysis, "acts"); err != nil {
			t.Fatal(err)
		}
		until(t, "calls on the new process", nil, func() bool { return done.Load() > at+20 })
	}
	cancel()
	callers.Wait()
	t.Logf("%d calls, %d failed", done.Load(), failed.Load())
	if s := stateOf(t, h, "acts"); s.GetGeneration() != 4 || s.GetExits() != 0 {
		t.Errorf("status %v", s)
	}
}

func TestBackoffHoldsAPluginAway(t *testing.T) {
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
	h := startHost(t, newOptions(t))
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
		{map[string]any{"word": "refuse"}, "choose another"},
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
	if _, err := f.Evaluate(t.Context(), "acts", req); !errors.As(err, &refused) {
		t.Errorf("call: %v", err)
	}
}

func TestRunDirectoryIsRefused(t *testing.T) {
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

func TestUnhealthyIsOutOfUseUntilItIsHealthy(t *testing.T) {
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
	req := request(t, "")
	req.Query.Config = nil
	if _, err := analysis.New(h).Evaluate(t.Context(), "moody", req); !errors.Is(err, plugins.ErrAway) {
		t.Errorf("call: %v", err)
	}
	if err := os.Remove(mood); err != nil {
		t.Fatal(err)
	}
	eventually(t, h, "in use again", func() bool { return h.Ready(plugins.KindAnalysis, "moody") })
	if g := stateOf(t, h, "moody").GetGeneration(); g != generation {
		t.Errorf("generation %d, want %d", g, generation)
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

// A start that hangs does not hold up the stop.
func TestStopDuringAStart(t *testing.T) {
	o := newOptions(t)
	h := startHost(t, o)
	if err := h.Ensure(plugins.KindAnalysis, "raw-silent"); err != nil {
		t.Fatal(err)
	}
	eventually(t, h, "a process", func() bool { return stateOf(t, h, "raw-silent").GetStarts() == 1 })
	began := time.Now()
	h.Stop(context.Background())
	t.Logf("stopped in %v", time.Since(began))
	if !empty(t, o.RunDir)() {
		t.Error("run directory is not empty")
	}
}

func TestRequiredPluginsStartWithTheHost(t *testing.T) {
	o := newOptions(t)
	o.Plugins = map[plugins.ID]plugins.PluginConfig{
		{Kind: plugins.KindStrategy, Name: "turns"}:    {Required: true},
		{Kind: plugins.KindAnalysis, Name: "raw-junk"}: {Required: true},
	}
	h := startHost(t, o)
	junk := plugins.ID{Kind: plugins.KindAnalysis, Name: "raw-junk"}
	eventually(t, h, "one of two", func() bool { m := h.Missing(); return len(m) == 1 && m[0] == junk })
}
