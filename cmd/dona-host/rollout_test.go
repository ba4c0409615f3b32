package main

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"google.golang.org/grpc"

	donav1 "github.com/dodona-project/dodona/proto/dona/v1"
)

// canary is one rollout from v1 to v2, watched closely: whatever happens to the
// host or its plugins, the share of v2 moves only by a transition.
type canary struct {
	t      *testing.T
	ctx    context.Context
	client donav1.ControlPlaneClient
	conn   *grpc.ClientConn
	bad    atomic.Bool // calls of v2 fail
}

// roll starts the host, endpoints of both variants, clients that report calls of
// both, good ones unless bad is set, and a rollout.
func roll(t *testing.T, p *process, req *donav1.StartRolloutRequest) *canary {
	t.Helper()
	p.start()
	return rollOn(t, p, req)
}

// rollOn is roll on a host that runs.
func rollOn(t *testing.T, p *process, req *donav1.StartRolloutRequest) *canary {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	conn := p.dial()
	c := &canary{t: t, ctx: ctx, client: donav1.NewControlPlaneClient(conn), conn: conn}
	stable, fresh := fleet(ctx, c.client, "v1", 2), fleet(ctx, c.client, "v2", 2)
	var reports sync.WaitGroup
	reports.Go(func() { reportCalls(ctx, c.client, &c.bad) })
	t.Cleanup(func() { cancel(); stable.Wait(); fresh.Wait(); reports.Wait() })
	until(t, "the endpoints", func() bool { return len(c.status().GetConfig().GetEndpoints()) == 4 })
	req.Service, req.CanaryVariant, req.StableVariant = "web", "v2", "v1"
	if _, err := c.client.StartRollout(ctx, req); err != nil {
		t.Fatal(err)
	}
	return c
}

// status is nil while the host is away.
func (c *canary) status() *donav1.StatusReply {
	return statusOf(c.ctx, c.client, "web")
}

// reach waits for a state of the rollout, which must not end in another.
func (c *canary) reach(state donav1.RolloutStatus_State) (s *donav1.StatusReply) {
	c.t.Helper()
	until(c.t, state.String(), func() bool {
		s = c.status()
		got := s.GetRollout().GetState()
		if got > donav1.RolloutStatus_STATE_PAUSED && got != state {
			c.t.Fatalf("the rollout ended as %s: %s; wanted %s", got, s.Rollout.Reason, state)
		}
		return got == state
	})
	return s
}

// measured is what the query "latency" of a rollout came to.
func measured(s *donav1.StatusReply) *donav1.AnalysisResult {
	for _, a := range s.GetRollout().GetAnalysis() {
		if a.Name == "latency" {
			return a
		}
	}
	return nil
}

func percent(s *donav1.StatusReply) uint32 {
	for _, w := range s.GetConfig().GetWeights() {
		if w.Variant == "v2" {
			return w.Weight
		}
	}
	return 0
}

// TestAnalysisDies (L4, C1): the analysis plugin is killed with kill -9 in the
// middle of a rollout. What it should have measured is missing; the rollout holds,
// says why, moves nothing, and goes on by itself when the plugin is back.
func TestAnalysisDies(t *testing.T) {
	t.Parallel()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		_, _ = fmt.Fprintf(w, `{"status":"success","data":{"resultType":"vector","result":[{"metric":{},"value":[%d,"0.25"]}]}}`, time.Now().Unix())
	}))
	t.Cleanup(server.Close)
	p := newProcess(t)
	p.env = []string{"DONA_PLUGINS_BACKOFF_MIN=4s"} // away for longer than a step takes
	c := roll(t, p, &donav1.StartRolloutRequest{
		Steps: []uint32{20, 40, 60, 80, 100}, StepSeconds: 1, MaxErrorPercent: 10, MinRequests: 1, // a busy machine kills late
		Analysis: []*donav1.AnalysisQuery{{Name: "latency", PrometheusUrl: server.URL, Query: "p99", MaxValue: 1}},
	})
	until(t, "a first measurement", func() bool {
		return measured(c.status()).GetVerdict() == donav1.Verdict_VERDICT_PASS
	})
	pid := c.plugin("analysis", "prometheus").GetPid()
	if pid == 0 {
		t.Fatal("the analysis plugin has no process")
	}
	if err := syscall.Kill(int(pid), syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	held := c.reach(donav1.RolloutStatus_STATE_HOLDING)
	if a := measured(held); a.GetVerdict() != donav1.Verdict_VERDICT_MISSING || a.GetDetail() == "" {
		t.Errorf("the rollout holds with %v", a)
	}
	if state := c.plugin("analysis", "prometheus").GetState(); state == "ready" {
		t.Errorf("the plugin is %s again before it was needed; the test saw no absence", state)
	}
	// As long as it holds, nothing moves.
	until(t, "the rollout to go on", func() bool {
		s := c.status()
		if s.GetRollout().GetState() == donav1.RolloutStatus_STATE_HOLDING && percent(s) != percent(held) {
			t.Fatalf("the weights moved from %d to %d %% while it holds", percent(held), percent(s))
		}
		return s.GetRollout().GetState() != donav1.RolloutStatus_STATE_HOLDING
	})
	if s := c.plugin("analysis", "prometheus"); s.GetState() != "ready" || s.GetPid() == pid {
		t.Errorf("it goes on with the plugin %v", s)
	}
	c.reach(donav1.RolloutStatus_STATE_PROMOTED)
	p.kill()
	r := p.ledger()
	if n := r.rollouts[r.newest]; n.state != donav1.RolloutStatus_STATE_PROMOTED || n.entries < 6 {
		t.Errorf("the audit chain tells %+v, want start, steps, hold, resume and promote", n)
	}
}

func (c *canary) plugin(kind, name string) *donav1.PluginStatus {
	c.t.Helper()
	return pluginOf(c.ctx, c.t, c.conn, kind, name)
}

// TestRolloutOutlivesTheHost (H1): a rollout is where it was after kill -9, its
// dwell kept, and goes on to its end; paused, it stays paused.
func TestRolloutOutlivesTheHost(t *testing.T) {
	t.Parallel()
	p := newProcess(t)
	c := roll(t, p, &donav1.StartRolloutRequest{Steps: []uint32{30, 100}, StepSeconds: 2, MaxErrorPercent: 10, MinRequests: 1})
	again := func() {
		p.kill()
		p.ledger()
		p.start()
	}
	before := c.reach(donav1.RolloutStatus_STATE_PROGRESSING)
	again()
	var after *donav1.StatusReply
	until(t, "the status after kill -9", func() bool { after = c.status(); return after != nil })
	if a, b := after.Rollout, before.Rollout; a.Id != b.Id || a.StepIndex < b.StepIndex || percent(after) < 30 {
		t.Errorf("the rollout was %v, and is %v with %d %% after kill -9", b, a, percent(after))
	}
	if _, err := c.client.ControlRollout(c.ctx, &donav1.ControlRolloutRequest{Service: "web", Action: donav1.ControlRolloutRequest_ACTION_PAUSE, Reason: "lunch"}); err != nil {
		t.Fatal(err)
	}
	paused := c.status()
	p.kill()
	p.start()
	until(t, "the status after kill -9", func() bool { after = c.status(); return after != nil })
	if a, b := after.Rollout, paused.Rollout; a.State != donav1.RolloutStatus_STATE_PAUSED || a.StepIndex != b.StepIndex || a.DwellMs != b.DwellMs || percent(after) != percent(paused) {
		t.Errorf("the paused rollout was %v, and is %v after kill -9", b, a)
	}
	if _, err := c.client.ControlRollout(c.ctx, &donav1.ControlRolloutRequest{Service: "web", Action: donav1.ControlRolloutRequest_ACTION_RESUME}); err != nil {
		t.Fatal(err)
	}
	if s := c.reach(donav1.RolloutStatus_STATE_PROMOTED); percent(s) != 100 || s.Rollout.Id != before.Rollout.Id {
		t.Errorf("it ended as %v with %d %%", s.Rollout, percent(s))
	}
	p.kill()
	p.ledger()
}
