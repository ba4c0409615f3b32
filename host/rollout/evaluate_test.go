package rollout_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"
	"unicode"
	"unicode/utf8"

	donav1 "github.com/dodona-project/dodona/proto/dona/v1"
	"google.golang.org/protobuf/proto"

	"github.com/dodona-project/dodona/host/rollout"
)

// inVirtualTime runs fn beside a running controller whose canary has begun its
// first step.
func inVirtualTime(t *testing.T, req *donav1.StartRolloutRequest, prepare func(*world), fn func(*world)) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, newMemStore(time.Now), time.Now)
		w.endpoints("v2", 1)
		prepare(w)
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() { defer close(done); w.c.Run(ctx) }()
		w.start(req)
		synctest.Wait()
		fn(w)
		cancel()
		<-done
	})
}

// One evaluator per query: again after its answer, never two at once, and a
// plugin that hangs is left at the query's timeout.
func TestEvaluationsNeverOverlap(t *testing.T) {
	q := latency()
	q.TimeoutMs = 2000
	inVirtualTime(t, request(withQuery(q), func(r *donav1.StartRolloutRequest) { r.StepSeconds = 3600 }), func(w *world) {
		w.analyzer.block = make(chan struct{}) // hangs for ever
	}, func(w *world) {
		<-time.After(59500 * time.Millisecond)
		w.analyzer.mu.Lock()
		most := w.analyzer.most
		w.analyzer.mu.Unlock()
		if most != 1 {
			t.Errorf("%d evaluations of one query at once", most)
		}
		// Each takes the timeout of 2 s and its slack, then rests a second.
		if n := w.analyzer.questions(); n < 10 || n > 18 {
			t.Errorf("asked %d times in a minute", n)
		}
		a := w.status().Analysis[0]
		if a.Verdict != donav1.Verdict_VERDICT_MISSING || !strings.HasPrefix(a.Detail, "timeout") {
			t.Errorf("%v", a)
		}
	})
}

// The plugin gets what the step is, what the host counted in it, and the state
// that it handed over the last time, also across an error.
func TestEvaluateRequest(t *testing.T) {
	inVirtualTime(t, request(withQuery(latency()), func(r *donav1.StartRolloutRequest) { r.StepSeconds, r.MaxErrorPercent = 3600, 50 }), func(w *world) {
		w.analyzer.say("latency", rollout.Measurement{Value: 0.1, HasValue: true, State: []byte("seen 1")})
	}, func(w *world) {
		_, version := w.weights()
		w.report("v2", 10, 2, version)
		w.report("v1", 100, 0, version)
		<-time.After(3500 * time.Millisecond)
		w.analyzer.mu.Lock()
		first, last := w.analyzer.asked[0], proto.CloneOf(w.analyzer.asked[len(w.analyzer.asked)-1])
		w.analyzer.errs["latency"] = fmt.Errorf("crashed\nwith two lines")
		w.analyzer.mu.Unlock()
		if len(first.State) != 0 || string(last.State) != "seen 1" {
			t.Errorf("state %q, then %q", first.State, last.State)
		}
		if last.Query.Provider != "prometheus" || last.Query.TimeoutMs != 3000 || last.Service != svc || last.RolloutId != w.status().Id ||
			last.CanaryVariant != "v2" || last.StableVariant != "v1" || last.StepIndex != 0 || last.StepPercent != 25 {
			t.Errorf("asked %v", last)
		}
		c := last.Canary
		if c.Requests != 10 || c.Errors != 2 || last.Stable.Requests != 100 || len(c.UpperUs) != len(c.Counts) || c.Counts[len(c.Counts)-1] != 10 {
			t.Errorf("windows %v, %v", c, last.Stable)
		}
		for i := range c.UpperUs {
			if i > 0 && (c.UpperUs[i] <= c.UpperUs[i-1] || c.Counts[i] < c.Counts[i-1]) {
				t.Errorf("the histogram does not rise: %v", c)
			}
		}
		<-time.After(3500 * time.Millisecond)
		w.analyzer.mu.Lock()
		last = w.analyzer.asked[len(w.analyzer.asked)-1]
		w.analyzer.mu.Unlock()
		if string(last.State) != "seen 1" {
			t.Errorf("an error lost the state: %q", last.State)
		}
		if a := w.status().Analysis[0]; a.Verdict != donav1.Verdict_VERDICT_MISSING || strings.Contains(a.Detail, "\n") || !strings.Contains(a.Detail, "crashed") {
			t.Errorf("%v", a)
		}
	})
}

// What a provider handed over is there for the host that goes on, unless it is
// too long to be written every second; an error does not lose it either.
func TestStateOutlivesTheHost(t *testing.T) {
	for _, c := range []struct {
		name  string
		state string
		want  string
	}{
		{"short", "seen 1", "seen 1"},
		{"as long as is kept", strings.Repeat("x", 1<<10), strings.Repeat("x", 1<<10)},
		{"longer", strings.Repeat("x", 1<<10+1), ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t, newMemStore(time.Now), time.Now)
				w.endpoints("v2", 1)
				w.analyzer.say("latency", rollout.Measurement{Value: 0.1, HasValue: true, State: []byte(c.state)})
				w.start(request(withQuery(latency())))
				handed := func(host *rollout.Controller) string {
					for range 2 {
						w.tick(host)
						synctest.Wait()
						<-time.After(1100 * time.Millisecond)
					}
					w.analyzer.mu.Lock()
					defer w.analyzer.mu.Unlock()
					last := w.analyzer.asked[len(w.analyzer.asked)-1]
					w.analyzer.errs["latency"] = fmt.Errorf("crashed")
					return string(last.State)
				}
				first := w.controller("h1")
				handed(first)
				if got := handed(first); got != c.state {
					t.Errorf("the host itself hands back %.20q", got)
				}
				second := w.controller("h2") // with a plugin that fails from its first answer on
				for range 2 {
					if got := handed(second); got != c.want {
						t.Errorf("the next host hands over %.20q, want %.20q", got, c.want)
					}
				}
			})
		})
	}
}

// When nobody ticks any more, the status does not go on showing a pass.
func TestStatusGrowsOld(t *testing.T) {
	now := time.UnixMilli(1_700_000_000_000)
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, newMemStore(func() time.Time { return now }), func() time.Time { return now })
		w.endpoints("v2", 1)
		w.analyzer.say("latency", rollout.Measurement{Value: 0.1, HasValue: true})
		w.start(request(withQuery(latency())))
		for range 2 {
			w.tick(w.c)
			synctest.Wait()
		}
		if a := w.status().Analysis[0]; a.Verdict != donav1.Verdict_VERDICT_PASS || a.Value != 0.1 || a.CheckedUnix != now.Unix() {
			t.Fatalf("%v", a)
		}
		now = now.Add(7 * time.Second)
		if a := w.status().Analysis[0]; a.Verdict != donav1.Verdict_VERDICT_MISSING || !strings.HasPrefix(a.Detail, "stale") {
			t.Fatalf("%v", a)
		}
	})
}

// What a provider says is one line of bounded length in the status and in the chain,
// whatever it wrote.
func TestDetailIsALine(t *testing.T) {
	for name, said := range map[string]string{
		"long":           strings.Repeat("x", 100_000),
		"cut in a rune":  "x" + strings.Repeat("é", 400),
		"several lines":  "no series\n\x1b[31mPASS\x00\r\n",
		"invalid":        "no \xff series",
		"only emptiness": "\n\n",
	} {
		t.Run(name, func(t *testing.T) {
			inVirtualTime(t, request(withQuery(latency()), func(r *donav1.StartRolloutRequest) { r.StepSeconds = 2 }), func(w *world) {
				w.analyzer.say("latency", rollout.Measurement{Verdict: rollout.Missing, Detail: said})
			}, func(w *world) {
				<-time.After(4500 * time.Millisecond)
				texts := []string{w.status().Analysis[0].Detail, w.status().Reason}
				held := false
				for _, e := range w.chain() {
					held = held || e.Kind == "rollout.hold"
					texts = append(texts, e.Detail["missing"], e.Detail["reason"])
				}
				if !held {
					t.Error("the rollout does not hold")
				}
				for _, text := range texts {
					if len(text) > 2048 || !utf8.ValidString(text) || strings.ContainsFunc(text, unicode.IsControl) {
						t.Errorf("%d bytes: %.200q", len(text), text)
					}
				}
				if detail := texts[0]; len(detail) > 600 || detail == "" {
					t.Errorf("the check says %d bytes: %.100q", len(detail), detail)
				}
			})
		})
	}
}
