//go:build linux

package plugins_test

import (
	"context"
	"errors"
	"strconv"
	"strings"
	"sync"
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
	beside(t)
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
			if crash.Exit != tc.exit || crash.Generation != 1 || !strings.Contains(crash.Reason, tc.words) || !strings.HasPrefix(crash.Reason, "the process ended ("+tc.exit+")") || crash.Plugin.Name != "acts" {
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

// A process that hangs, and one that is stopped and cannot even be asked to end.
func TestMissedDeadlinesReplaceTheProcess(t *testing.T) {
	beside(t)
	for _, how := range []string{"hang", "stop"} {
		t.Run(how, func(t *testing.T) {
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
			if how == "stop" {
				if err := syscall.Kill(first, syscall.SIGSTOP); err != nil {
					t.Fatal(err)
				}
			}
			for i := range 3 {
				if _, err := f.Evaluate(t.Context(), "acts", request(t, "hang")); !errors.Is(err, plugins.ErrDeadline) {
					t.Fatalf("call %d: %v, want ErrDeadline", i, err)
				}
			}
			missed := time.Now()
			eventually(t, h, "another process", func() bool {
				s := stateOf(t, h, "acts")
				return s.GetState() == "ready" && int(s.GetPid()) != first
			})
			t.Logf("replaced %v after the third deadline", time.Since(missed))
			if alive(first) {
				t.Error("the old process lives")
			}
		})
	}
}

// A caller that has no time proves nothing against the plugin.
func TestHastyCallersDoNotReplaceTheProcess(t *testing.T) {
	beside(t)
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
	beside(t)
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
func gauge(t testing.TB, registry *prometheus.Registry, name string) (sum float64) {
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
