//go:build linux

package plugins_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/dodona-project/dodona/plugins"
	donav1 "github.com/dodona-project/dodona/proto/dona/v1"
)

// Reloads while many call: every call is answered by one process or the other.
func TestG10ReloadLosesNoCall(t *testing.T) {
	beside(t)
	for _, name := range []string{"upgraded", "builtin"} {
		t.Run(name, func(t *testing.T) {
			s := play(t, cast{"upgraded": "sdk"}, nil)
			s.ready(name)
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			var done, failed atomic.Int32
			var callers sync.WaitGroup
			for range 50 {
				callers.Go(func() {
					for ctx.Err() == nil {
						if _, err := s.do(name, "slow 5ms"); err != nil {
							failed.Add(1)
							t.Error(err)
						}
						done.Add(1)
					}
				})
			}
			for range 10 {
				at := done.Load()
				if err := s.Reload(t.Context(), plugins.KindAnalysis, name); err != nil {
					t.Fatal(err)
				}
				until(t, "every caller called the new process", nil, func() bool { return done.Load() > at+100 })
			}
			cancel()
			callers.Wait()
			t.Logf("%d calls in 10 reloads, %d failed", done.Load(), failed.Load())
			if p := s.state(name); p.GetGeneration() != 11 || p.GetExits() != 0 {
				t.Errorf("status %v, want generation 11 and no exit", p)
			}
			until(t, "the old processes gone", nil, func() bool { return len(processesOf(t, s.runDir)) <= 3 })
		})
	}
}

// A new version that is no good, in whichever way, leaves the old one serving,
// and an operator sees why.
func TestBadVersionLeavesTheOldOneServing(t *testing.T) {
	beside(t)
	s := play(t, cast{"upgraded": "sdk"}, func(o *plugins.Options) {
		o.Limits.Handshake, o.Limits.Describe, o.Limits.FirstHealth = 5*time.Second, time.Second, time.Second
	})
	s.ready("upgraded")
	first := s.state("upgraded")
	for _, tc := range []struct{ behaviour, reason string }{
		{"crash", "attempt 1 failed"},
		{"wrong-name", "calls itself"},
		{"new-protocol", "upgrade the host"},
		{"describe-silent", "Describe not answered"},
		{"health-silent", "no health"},
		{"deep-schema", "levels"},
	} {
		s.catalog.Put(idOf("upgraded"), program(t).File(idOf("upgraded"), tc.behaviour))
		err := s.Reload(t.Context(), plugins.KindAnalysis, "upgraded")
		if err == nil || !strings.Contains(err.Error(), tc.reason) || !strings.Contains(err.Error(), "generation 1 stays") {
			t.Errorf("%s: %v, want %q in it", tc.behaviour, err, tc.reason)
		}
		p := s.state("upgraded")
		if p.GetState() != "ready" || p.GetPid() != first.GetPid() || !strings.Contains(p.GetReason(), tc.reason) {
			t.Errorf("%s: status %v", tc.behaviour, p)
		}
		s.must("upgraded", "")
	}
	s.catalog.Put(idOf("upgraded"), program(t).File(idOf("upgraded"), "raw"))
	if err := s.Reload(t.Context(), plugins.KindAnalysis, "upgraded"); err != nil {
		t.Fatal(err)
	}
	if p := s.state("upgraded"); p.GetPid() == first.GetPid() || p.GetReason() != "" {
		t.Errorf("after a good version: %v", p)
	}
	s.must("upgraded", "")
}

// What was begun before a reload is finished by the process that began it.
func TestReloadFinishesALongCall(t *testing.T) {
	beside(t)
	s := play(t, cast{"upgraded": "sdk"}, nil)
	s.ready("upgraded")
	first := s.state("upgraded")
	long := make(chan string, 1)
	go func() {
		m, err := s.do("upgraded", "slow 1s")
		long <- m.Detail
		if err != nil {
			t.Error(err)
		}
	}()
	until(t, "the call is in flight", nil, func() bool { return inflight(t, s.metrics, "upgraded") == 1 })
	if err := s.Reload(t.Context(), plugins.KindAnalysis, "upgraded"); err != nil {
		t.Fatal(err)
	}
	second := s.state("upgraded")
	if m := s.must("upgraded", ""); m.Detail == "" || second.GetPid() == first.GetPid() {
		t.Errorf("a new call: %+v", m)
	}
	select {
	case <-long:
		t.Log("the long call ended before the reload did: nothing is shown on this machine")
	default:
		if got := <-long; got != fmt.Sprint(first.GetPid()) {
			t.Errorf("the long call was answered by %s, want %s", got, fmt.Sprint(first.GetPid()))
		}
	}
	until(t, "the old process gone", nil, func() bool { return !alive(int(first.GetPid())) })
}

// The old process dies while a new one starts: the new one takes over, and no
// caller waits.
func TestDeathDuringAReload(t *testing.T) {
	beside(t)
	s := play(t, cast{"upgraded": "sdk"}, func(o *plugins.Options) { o.Limits.Handshake = 3 * time.Second })
	s.ready("upgraded")
	s.catalog.Put(idOf("upgraded"), program(t).File(idOf("upgraded"), "silent"))
	reloaded := make(chan error, 1)
	go func() { reloaded <- s.Reload(context.Background(), plugins.KindAnalysis, "upgraded") }()
	s.until("upgraded", "a second start", func(p *donav1.PluginStatus) bool { return p.GetStarts() == 2 })
	s.catalog.Put(idOf("upgraded"), program(t).File(idOf("upgraded"), "sdk"))
	if _, err := s.do("upgraded", "exit"); !errors.Is(err, plugins.ErrAway) {
		t.Errorf("%v, want ErrAway", err)
	}
	began := time.Now()
	for range 10 {
		if _, err := s.do("upgraded", ""); err != nil && !errors.Is(err, plugins.ErrAway) {
			t.Errorf("%v, want ErrAway", err)
		}
	}
	t.Logf("ten callers were told within %v", time.Since(began))
	if err := <-reloaded; err == nil {
		t.Error("a reload that brought nothing was no error")
	}
	s.until("upgraded", "ready", func(p *donav1.PluginStatus) bool { return p.GetState() == "ready" && p.GetGeneration() > 2 })
	s.must("upgraded", "")
}

// The old process is watched while a new one starts: when it hangs it is ended,
// its callers are told at once, and the end is counted.
func TestOldProcessIsWatchedDuringAReload(t *testing.T) {
	beside(t)
	s := play(t, cast{"upgraded": "sdk"}, func(o *plugins.Options) {
		o.Limits.Handshake = 10 * time.Second
		o.Plugins = map[plugins.ID]plugins.PluginConfig{idOf("upgraded"): {Deadline: 200 * time.Millisecond}}
	})
	s.ready("upgraded")
	old := int(s.state("upgraded").GetPid())
	s.catalog.Put(idOf("upgraded"), program(t).File(idOf("upgraded"), "silent"))
	reloaded := make(chan error, 1)
	go func() { reloaded <- s.Reload(context.Background(), plugins.KindAnalysis, "upgraded") }()
	s.until("upgraded", "a second start", func(p *donav1.PluginStatus) bool { return p.GetStarts() == 2 })
	s.catalog.Put(idOf("upgraded"), program(t).File(idOf("upgraded"), "sdk"))
	began := time.Now()
	until(t, "the old process to be ended", nil, func() bool {
		_, err := s.do("upgraded", "hang")
		return errors.Is(err, plugins.ErrAway) && !alive(old)
	})
	took := time.Since(began)
	var err error
	select {
	case err = <-reloaded:
		t.Errorf("it was ended after the reload only")
	default:
		t.Logf("ended after %v", took)
		err = <-reloaded
	}
	if err == nil || !strings.Contains(err.Error(), "no handshake within") {
		t.Errorf("reload: %v", err)
	}
	if n := s.until("upgraded", "ready", func(p *donav1.PluginStatus) bool { return p.GetState() == "ready" }).GetExits(); n != 1 {
		t.Errorf("%d ends are counted, want that of the process that hung", n)
	}
	s.must("upgraded", "")
}

// inflight is how many calls of one plugin are in flight.
func inflight(t testing.TB, registry *prometheus.Registry, plugin string) (n float64) {
	t.Helper()
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			for _, l := range m.GetLabel() {
				if f.GetName() == "dona_plugin_inflight" && l.GetName() == "plugin" && l.GetValue() == plugin {
					n += m.GetGauge().GetValue()
				}
			}
		}
	}
	return n
}
