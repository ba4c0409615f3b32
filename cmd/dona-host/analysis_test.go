package main

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/structpb"

	donav1 "github.com/dodona-project/dodona/proto/dona/v1"
)

// judge is an endpoint that the webhook asks. Its mood decides what it says.
type judge struct {
	*httptest.Server
	mood  atomic.Pointer[string]
	token atomic.Pointer[string] // the header Authorization of the last question
}

func newJudge(t *testing.T) *judge {
	j := &judge{}
	j.be("good")
	release := make(chan struct{})
	j.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		token := r.Header.Get("Authorization")
		j.token.Store(&token)
		text, _ := io.ReadAll(r.Body)
		var q struct {
			Rollout string
			Step    struct{ Index uint32 }
		}
		if err := json.Unmarshal(text, &q); err != nil {
			t.Errorf("asked with %q: %v", text, err)
		}
		answer := map[string]any{"version": 1, "rollout": q.Rollout, "step": q.Step.Index, "verdict": "pass"}
		switch *j.mood.Load() {
		case "bad":
			answer["verdict"], answer["detail"] = "breach", "carts are lost"
		case "silent":
			select {
			case <-release:
			case <-r.Context().Done():
			}
			return
		case "late":
			select {
			case <-release:
			case <-time.After(2 * time.Second): // the question waits for half a second
			}
		case "pass for another step":
			answer["step"] = q.Step.Index + 1
		case "breach for another step":
			answer["step"], answer["verdict"] = q.Step.Index+1, "breach"
		case "contradictory":
			answer["value"] = 99
		}
		_ = json.NewEncoder(w).Encode(answer)
	}))
	t.Cleanup(func() { close(release); j.Close() })
	return j
}

func (j *judge) be(mood string) { j.mood.Store(&mood) }

// query is the judge's as a rollout has it.
func (j *judge) query(t *testing.T) *donav1.AnalysisQuery {
	return &donav1.AnalysisQuery{Name: "latency", Provider: "webhook", MaxValue: 50, TimeoutMs: 500,
		Config: settings(t, map[string]any{"url": j.URL + "/judge", "headers": map[string]any{"Authorization": "WEBHOOK_TOKEN"}})}
}

func settings(t *testing.T, fields map[string]any) *structpb.Struct {
	t.Helper()
	s, err := structpb.NewStruct(fields)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// configure gives the host's plugins an environment.
func (p *process) configure(yaml string) {
	p.t.Helper()
	name := filepath.Join(p.t.TempDir(), "dona.yaml")
	if err := os.WriteFile(name, []byte(yaml), 0o600); err != nil {
		p.t.Fatal(err)
	}
	p.env = append(p.env, "DONA_CONFIG="+name)
}

const secret = "Bearer 0123456789"

func judged(p *process, j *judge) {
	p.configure(fmt.Sprintf("plugins:\n  analysis:\n    webhook:\n      env:\n        WEBHOOK_HOSTS: %s\n        WEBHOOK_TOKEN: %s\n", strings.TrimPrefix(j.URL, "http://"), secret))
}

// TestProviders: with each built-in analysis a healthy canary is promoted, and
// one that turns bad in its second step is rolled back, by that analysis alone.
func TestProviders(t *testing.T) {
	t.Parallel()
	for _, provider := range []string{"prometheus pair", "sequential", "webhook"} {
		for _, healthy := range []bool{true, false} {
			t.Run(fmt.Sprintf("%s, healthy %v", provider, healthy), func(t *testing.T) {
				t.Parallel()
				p := newProcess(t)
				var failing atomic.Bool
				req := &donav1.StartRolloutRequest{Steps: []uint32{30, 60, 100}, StepSeconds: 1, MaxErrorPercent: 100, MinRequests: 1}
				var query *donav1.AnalysisQuery
				worsen := func(*canary) { failing.Store(true) }
				switch provider {
				case "prometheus pair":
					server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
						result := fmt.Sprintf(`[{"metric":{},"value":[%d,"20"]}]`, time.Now().Unix())
						if r.FormValue("query") == "failed" && !failing.Load() {
							result = "[]" // a healthy service has no error series
						}
						_, _ = fmt.Fprintf(w, `{"status":"success","data":{"resultType":"vector","result":%s}}`, result)
					}))
					t.Cleanup(server.Close)
					query = &donav1.AnalysisQuery{PrometheusUrl: server.URL, MaxValue: 0.5,
						Config: settings(t, map[string]any{"numerator": "failed", "denominator": "all", "min_denominator": 10})}
				case "sequential":
					query = &donav1.AnalysisQuery{Provider: "sequential", NoMaxValue: true, Config: settings(t, map[string]any{"limit": 20})}
					worsen = func(c *canary) { c.bad.Store(true) }
				case "webhook":
					j := newJudge(t)
					judged(p, j)
					query = j.query(t)
					worsen = func(*canary) { j.be("bad") }
				}
				query.Name = "latency"
				req.Analysis = []*donav1.AnalysisQuery{query}
				c := roll(t, p, req)
				if healthy {
					if s := c.reach(donav1.RolloutStatus_STATE_PROMOTED); percent(s) != 100 || s.Rollout.CanaryErrors > 0 {
						t.Errorf("promoted with %d %%: %v", percent(s), s.Rollout)
					}
					p.kill()
					p.ledger()
					return
				}
				until(t, "the second step", func() bool { return c.status().GetRollout().GetStepIndex() >= 1 })
				worsen(c)
				s := c.reach(donav1.RolloutStatus_STATE_ROLLED_BACK)
				if a := measured(s); percent(s) != 0 || a.GetVerdict() != donav1.Verdict_VERDICT_BREACH || !strings.HasPrefix(s.Rollout.Reason, "latency: ") {
					t.Errorf("rolled back with %d %%: %s: %v", percent(s), s.Rollout.Reason, a)
				}
				p.kill()
				p.ledger()
			})
		}
	}
}

// TestProviderMisbehaves (C1): an analysis that is silent, late, contradictory or
// speaks of another step is missing. The rollout holds, says why, moves nothing in
// either direction, and goes on when the answers make sense again.
func TestProviderMisbehaves(t *testing.T) {
	t.Parallel()
	for mood, reason := range map[string]string{
		"silent":                  "unreachable: no answer in time",
		"late":                    "unreachable: no answer in time",
		"pass for another step":   "another step",
		"breach for another step": "another step",
		"contradictory":           "contradictory",
	} {
		t.Run(mood, func(t *testing.T) {
			t.Parallel()
			p, j := newProcess(t), newJudge(t)
			judged(p, j)
			c := roll(t, p, &donav1.StartRolloutRequest{Steps: []uint32{10, 30, 60, 80, 100}, StepSeconds: 1, MaxErrorPercent: 100, MinRequests: 1,
				Analysis: []*donav1.AnalysisQuery{j.query(t)}})
			until(t, "a first measurement", func() bool { return measured(c.status()).GetVerdict() == donav1.Verdict_VERDICT_PASS })
			if got := *j.token.Load(); got != secret {
				t.Errorf("the endpoint was asked with %q, want the secret of the plugin's environment", got)
			}
			j.be(mood)
			var held *donav1.StatusReply
			until(t, "the rollout to hold", func() bool {
				held = c.reach(donav1.RolloutStatus_STATE_HOLDING)
				a := measured(held)
				return a.GetVerdict() == donav1.Verdict_VERDICT_MISSING && strings.HasPrefix(a.GetDetail(), reason)
			})
			// For longer than two steps would take nothing moves, with every answer fresh.
			for watched := time.Now(); time.Since(watched) < 2500*time.Millisecond; pause(c.ctx, 50*time.Millisecond) {
				s := c.status()
				if r := s.GetRollout(); r.GetState() != donav1.RolloutStatus_STATE_HOLDING || percent(s) != percent(held) || r.GetStepIndex() != held.Rollout.StepIndex {
					t.Fatalf("%v became %v", held.Rollout, r)
				}
			}
			j.be("good")
			c.reach(donav1.RolloutStatus_STATE_PROMOTED)
			if strings.Contains(p.log.String(), secret) {
				t.Error("the secret is in the host's log")
			}
			p.kill()
			p.ledger()
		})
	}
}
