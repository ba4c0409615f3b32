//go:build linux

package plugins_test

import (
	"context"
	"errors"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/dodona-project/dodona/plugins"
	"github.com/dodona-project/dodona/plugins/badplugins"
	donav1 "github.com/dodona-project/dodona/proto/dona/v1"
	pluginv1 "github.com/dodona-project/dodona/proto/plugin/v1"
)

// everyKind are plugins that do what they are told: of a file with the SDK, of a
// file without, and built in.
var everyKind = []string{"sdk", "raw", "builtin"}

func everyCast() cast { return cast{"sdk": "sdk", "raw": "raw"} }

// The plugin's side has the same deadline and may be first to end a call. That
// is late all the same, and no death.
func TestDeadlineOfTheOtherSide(t *testing.T) {
	beside(t)
	s := play(t, everyCast(), deadlines(300*time.Millisecond, everyKind...))
	s.ready(everyKind...)
	for _, name := range everyKind {
		before := s.state(name)
		for range 3 {
			if _, err := s.do(name, "cancel"); !errors.Is(err, plugins.ErrDeadline) {
				t.Errorf("%s: %v, want ErrDeadline", name, err)
			}
		}
		s.back(name, before)
	}
}

// Calls that take all the time they have delay nobody else's.
func TestSlowButLegal(t *testing.T) {
	beside(t)
	s := play(t, everyCast(), deadlines(time.Second, everyKind...))
	s.ready(everyKind...)
	span := func() (p99 time.Duration) {
		s.mu.Lock()
		defer s.mu.Unlock()
		p99, s.times = quantile(s.times, 0.99), nil
		return p99
	}
	span()
	if _, err := s.do("sdk", "slow 900ms"); err != nil && !errors.Is(err, plugins.ErrDeadline) { // as below
		t.Fatal(err)
	}
	alone := span()
	var calls sync.WaitGroup
	var ok, late atomic.Int32
	for _, name := range everyKind {
		for range 32 {
			calls.Go(func() {
				_, err := s.do(name, "late")
				switch {
				case err == nil:
					ok.Add(1)
				case errors.Is(err, plugins.ErrDeadline), errors.Is(err, plugins.ErrAway):
					// Ten milliseconds are not much on a busy machine, and who is late
					// three times in a row is replaced.
					late.Add(1)
				default:
					t.Errorf("%s: %v", name, err)
				}
			})
		}
	}
	calls.Wait()
	t.Logf("%d slow calls answered in time, %d not; p99 of the well-behaved plugin %v, alone %v", ok.Load(), late.Load(), span(), alone)
}

// Memory and processors are the plugin's own to waste: the process ends, or is
// late, and is replaced.
func TestHogAndSpin(t *testing.T) {
	s := play(t, cast{"hog": "sdk", "spin": "sdk"}, func(o *plugins.Options) {
		deadlines(500*time.Millisecond, "spin")(o)
		o.Plugins[idOf("hog")] = plugins.PluginConfig{AddressSpace: 3 << 30}
	})
	s.ready("hog", "spin")
	hog := s.state("hog")
	began := time.Now()
	_, err := s.do("hog", "hog")
	t.Logf("the hog's caller is back after %v: %v", time.Since(began), err)
	if !errors.Is(err, plugins.ErrAway) {
		t.Errorf("hog: %v, want ErrAway", err)
	}
	if crash := waitEvent(t, s.events, plugins.EventCrash); !strings.Contains(crash.Reason, "fatal error") {
		t.Errorf("hog: %q, want the runtime's last words", crash.Reason)
	}
	s.back("hog", hog)
	spin := s.state("spin")
	for range 3 {
		if _, err := s.do("spin", "spin"); !errors.Is(err, plugins.ErrDeadline) {
			t.Errorf("spin: %v, want ErrDeadline", err)
		}
	}
	s.back("spin", spin)
	s.must("hog", "")
	s.must("spin", "")
}

// Descriptors are bounded, and what a plugin leaves in its directories is
// removed.
func TestFilesAndDescriptors(t *testing.T) {
	s := play(t, everyCast(), nil)
	s.ready(everyKind...)
	for _, name := range everyKind {
		n, err := strconv.Atoi(s.must(name, "files").Detail)
		if err != nil || n == 0 || n >= 4*64 {
			t.Errorf("%s opened %d files, %v: allowed are fewer than %d", name, n, err, 4*64)
		}
		s.must(name, "leave")
		s.must(name, "")
	}
	// One that dies leaves nothing either.
	before := s.state("raw")
	if _, err := s.do("raw", "exit"); !errors.Is(err, plugins.ErrAway) {
		t.Errorf("%v, want ErrAway", err)
	}
	s.back("raw", before)
}

// A plugin that takes no hint is killed: at a reload, and when the host stops.
func TestPluginsThatTakeNoHint(t *testing.T) {
	beside(t)
	s := play(t, cast{"stubborn": "stubborn", "drain-hangs": "drain-hangs"}, func(o *plugins.Options) {
		o.Limits.DrainReload, o.Limits.Kill = 200*time.Millisecond, time.Second
	})
	s.ready("stubborn", "drain-hangs")
	for _, name := range []string{"stubborn", "drain-hangs"} {
		before := s.state(name)
		if err := s.Reload(t.Context(), plugins.KindAnalysis, name); err != nil {
			t.Fatal(err)
		}
		swapped := time.Now()
		until(t, name+": the old process gone", nil, func() bool { return !alive(int(before.GetPid())) })
		t.Logf("%s: gone %v after the swap", name, time.Since(swapped))
		s.must(name, "")
	}
}

// The connection to a plugin offers it nothing of the host.
func TestPluginGetsNoServiceOfTheHost(t *testing.T) {
	beside(t)
	s := play(t, cast{"raw": "raw"}, deadlines(30*time.Second, "raw"))
	s.ready("raw")
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	if m, err := s.analysis.Evaluate(ctx, "raw", ask("broker 1")); err == nil {
		t.Errorf("the plugin was given a service: %q", m.Detail)
	} else if !errors.Is(err, plugins.ErrDeadline) && !strings.Contains(err.Error(), "no service") {
		t.Errorf("%v", err)
	}
	if m := s.must("raw", "broker-flood 100000"); m.Detail != "offered 0" {
		t.Errorf("the plugin %s services", m.Detail)
	}
}

// Every answer that must not be believed is refused with its reason and counted;
// what is no measurement never passes.
func TestBadAnswersOfRealPlugins(t *testing.T) {
	s := play(t, cast{"sdk": "sdk", "raw": "raw", "strategy/sdk": "sdk", "strategy/raw": "raw"}, nil)
	for _, name := range everyKind {
		s.ready(name, "strategy/"+name)
	}
	refused := 0
	for _, name := range everyKind {
		for _, reason := range badplugins.Measurements() {
			_, err := s.do(name, "answer "+reason)
			var answer *plugins.AnswerError
			if !errors.As(err, &answer) || answer.Reason != reason || answer.Plugin != idOf(name) {
				t.Errorf("%s answers %s: %v", name, reason, err)
			}
			refused++
		}
		for _, what := range badplugins.Missing() {
			if m, err := s.do(name, "answer "+what); err != nil || m.Verdict != donav1.Verdict_VERDICT_MISSING {
				t.Errorf("%s answers %s: %v %v, want MISSING", name, what, m.Verdict, err)
			}
		}
		for _, reason := range badplugins.Plans() {
			var answer *plugins.AnswerError
			until(t, name+" answers "+reason, nil, func() bool {
				_, err := s.strategy.Compile(context.Background(), name, &pluginv1.CompileRequest{
					Scope: "service/" + reason, Candidates: []*pluginv1.Candidate{{Id: "a", Group: "g", Weight: 1}},
				})
				// 250 ms are not much for a million weights on a busy machine.
				return errors.As(err, &answer) || !errors.Is(err, plugins.ErrDeadline) && !errors.Is(err, plugins.ErrAway)
			})
			if answer == nil || answer.Reason != reason {
				t.Errorf("%s plans %s: %v", name, reason, answer)
			}
			refused++
		}
	}
	if n := gauge(t, s.metrics, "dona_plugin_rejected_answers_total"); int(n) != refused {
		t.Errorf("%v answers are counted as refused, want %d", n, refused)
	}
}

// A plugin that ends again and again is waited for longer each time, is seen to
// be away, and is given up in the end.
func TestCrashLoopIsSeen(t *testing.T) {
	s := play(t, cast{"loops": "crash-later"}, func(o *plugins.Options) {
		o.Plugins = map[plugins.ID]plugins.PluginConfig{idOf("loops"): {Required: true}}
		o.Limits.QuarantineAt = 3
	})
	p := s.until("loops", "given up", func(p *donav1.PluginStatus) bool { return p.GetState() == "quarantined" })
	if !strings.Contains(p.GetReason(), "had enough") || p.GetStarts() != 3 {
		t.Errorf("status %v, want three starts and the plugin's words", p)
	}
	waits := 0
	for _, line := range s.log.lines(t, "loops") {
		if line["@message"] == "plugin is away" && line["next_start_in"] != nil {
			waits++
		}
	}
	if waits != 2 {
		t.Errorf("it was waited for %d times, want twice", waits)
	}
	if m := s.Missing(); len(m) != 1 || m[0] != idOf("loops") {
		t.Errorf("missing: %v", m)
	}
	if _, err := s.do("loops", ""); !errors.Is(err, plugins.ErrAway) {
		t.Errorf("%v, want ErrAway", err)
	}
}
