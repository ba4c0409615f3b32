//go:build linux

package plugins_test

import (
	"context"
	"maps"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/dodona-project/dodona/plugins"
	"github.com/dodona-project/dodona/plugins/analysis"
)

// series is the value of one of acts' series, a histogram's by its count, and
// the labels it has beside kind and plugin.
func series(t *testing.T, registry *prometheus.Registry, name string, labels map[string]string) (value float64, found bool) {
	t.Helper()
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	want := maps.Clone(labels)
	if want == nil {
		want = map[string]string{}
	}
	want["kind"], want["plugin"] = "analysis", "acts"
	for _, f := range families {
		for _, m := range f.GetMetric() {
			has := map[string]string{}
			for _, l := range m.GetLabel() {
				has[l.GetName()] = l.GetValue()
			}
			if f.GetName() == name && maps.Equal(has, want) {
				return m.GetGauge().GetValue() + m.GetCounter().GetValue() + float64(m.GetHistogram().GetSampleCount()), true
			}
		}
	}
	return 0, false
}

// TestEveryMetricMoves drives a plugin through its life and looks at each of its
// metrics with exactly the labels it is documented with.
func TestEveryMetricMoves(t *testing.T) {
	o := newOptions(t)
	registry := prometheus.NewRegistry()
	o.Registerer = registry
	h := startHost(t, o)
	f := analysis.New(h)

	moved := map[string]bool{}
	becomes := func(value float64, name string, labels ...string) {
		t.Helper()
		moved[name] = true
		by := map[string]string{}
		for i := 0; i+1 < len(labels); i += 2 {
			by[labels[i]] = labels[i+1]
		}
		until(t, name+"{"+strings.Join(labels, ",")+"}", nil, func() bool {
			v, found := series(t, registry, name, by)
			return found && v == value
		})
	}
	state := func(is plugins.State) {
		t.Helper()
		for _, s := range []plugins.State{plugins.StateReady, plugins.StateStarting, plugins.StateBackoff, plugins.StateQuarantined, plugins.StateRejected, plugins.StateDraining, plugins.StateStopped} {
			value := 0.0
			if s == is {
				value = 1
			}
			becomes(value, "dona_plugin_state", "state", string(s))
		}
	}

	becomes(0, "dona_plugin_up")
	state(plugins.StateStopped)
	await(t, h, plugins.KindAnalysis, "acts")
	becomes(1, "dona_plugin_up")
	state(plugins.StateReady)
	becomes(1, "dona_plugin_starts_total")

	if _, err := f.Evaluate(t.Context(), "acts", request(t, "")); err != nil {
		t.Fatal(err)
	}
	becomes(1, "dona_plugin_call_seconds", "method", "Evaluate", "outcome", "ok")

	// 4 in flight and 16 waiting; the one after them is shed.
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	over := make(chan struct{})
	for range 21 {
		go func() { _, _ = f.Evaluate(ctx, "acts", request(t, "wait")); over <- struct{}{} }()
	}
	becomes(4, "dona_plugin_inflight")
	becomes(1, "dona_plugin_shed_total")
	cancel()
	for range 21 {
		<-over
	}
	becomes(0, "dona_plugin_inflight")
	becomes(1, "dona_plugin_call_seconds", "method", "Evaluate", "outcome", "shed")
	becomes(20, "dona_plugin_call_seconds", "method", "Evaluate", "outcome", "canceled")

	if _, err := f.Evaluate(t.Context(), "acts", request(t, "large")); err == nil {
		t.Error("an answer of 64 MiB was taken")
	}
	becomes(1, "dona_plugin_rejected_answers_total", "reason", "too_large")
	becomes(1, "dona_plugin_call_seconds", "method", "Evaluate", "outcome", "rejected")

	if err := syscall.Kill(int(stateOf(t, h, "acts").GetPid()), syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	becomes(1, "dona_plugin_exits_total")
	becomes(2, "dona_plugin_starts_total")
	becomes(1, "dona_plugin_up")

	for dropped := 0.0; dropped == 0; dropped, _ = series(t, registry, "dona_plugin_log_lines_dropped_total", nil) {
		if _, err := f.Evaluate(t.Context(), "acts", request(t, "chatter")); err != nil {
			t.Fatal(err)
		}
	}
	moved["dona_plugin_log_lines_dropped_total"] = true

	h.Stop(context.Background())
	becomes(0, "dona_plugin_up")
	state(plugins.StateStopped)

	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		if !moved[f.GetName()] {
			t.Errorf("nobody saw %s move; seen are %v", f.GetName(), slices.Sorted(maps.Keys(moved)))
		}
	}
}
