package plugintest

import (
	"context"
	"errors"
	"math/rand/v2"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/dodona-project/dodona/plugins"
	"github.com/dodona-project/dodona/plugins/analysis"
	"github.com/dodona-project/dodona/plugins/probe"
	"github.com/dodona-project/dodona/plugins/strategy"
	controlplanev1 "github.com/dodona-project/dodona/proto/controlplane/v1"
	donav1 "github.com/dodona-project/dodona/proto/dona/v1"
	pluginv1 "github.com/dodona-project/dodona/proto/plugin/v1"
)

// checkPlan has plans made for random candidates, each by two processes and with
// the candidates in another order.
func checkPlan(ctx context.Context, r *run) error {
	first, err := r.caller(ctx, talking)
	if err != nil {
		return err
	}
	second, err := r.caller(ctx, talking)
	if err != nil {
		return err
	}
	compile := func(c *caller, req *pluginv1.CompileRequest) (strategy.Result, error) {
		call, cancel := context.WithTimeout(ctx, callWait)
		defer cancel()
		// The peer's address may be part of the configuration, and differs.
		return strategy.New(c).CompileWith(call, c.id.Name, first.config, req)
	}
	for i, n := range []int{1, 2, 3, 7, 50, 400} {
		req := candidates(n, uint64(i+1))
		want, err := compile(first, req)
		if err != nil {
			return broke("name only candidates and groups of the request, leave somebody a weight, and use what belongs to the algorithm: PLUGINS.md, What is asked of an answer",
				"a plan for %d candidates: %v", n, short(err))
		}
		turned := proto.CloneOf(req)
		rand.New(rand.NewPCG(1, uint64(n))).Shuffle(n, func(a, b int) {
			turned.Candidates[a], turned.Candidates[b] = turned.Candidates[b], turned.Candidates[a]
		})
		for _, try := range []struct {
			what string
			by   *caller
			req  *pluginv1.CompileRequest
		}{
			{"asked again", first, req}, {"asked of another process", second, req},
			{"with the candidates in another order", first, turned},
		} {
			got, err := compile(try.by, try.req)
			if err != nil || !proto.Equal(got.Plan, want.Plan) || got.RefreshAfter != want.RefreshAfter {
				return broke("draw with the request's seed, sort before you choose, and remember nothing between calls: hosts that share a store must make the same plan",
					"%d candidates, %s: %s (%v), and before %s", n, try.what, oneLine(got.Plan), err, oneLine(want.Plan))
			}
		}
	}
	return nil
}

// checkNoLateSuccess checks what never answers, and what is not there.
func checkNoLateSuccess(ctx context.Context, r *run) error {
	const do = "when ctx ends, answer FAILURE with ERROR_CLASS_TIMEOUT, or return ctx's error; answer SUCCESS only for what you saw"
	c, err := r.caller(ctx, silent)
	if err != nil {
		return err
	}
	var bad error
	// One that only looks late, because the machine is busy, is not late twice.
	const timeout = time.Second
	for range 3 {
		began := time.Now()
		o, err := probe.New(c).Check(ctx, c.id.Name, c.config, c.endpoint(timeout))
		took := time.Since(began).Round(time.Millisecond)
		var answer *plugins.AnswerError
		switch {
		case errors.As(err, &answer):
			bad = broke(do, "an endpoint that never answers, within %v: %v", timeout, err)
		case o.Result == controlplanev1.HealthObservation_RESULT_SUCCESS && took >= timeout:
			bad = broke(do, "an endpoint that never answers is a SUCCESS after %v, when %v were over", took, timeout)
		case took > timeout+probe.Slack || err != nil && broken(err):
			bad = broke("answer within the timeout of the request and a second", "an endpoint that never answers, within %v: after %v %v", timeout, took, orNil(err))
		default:
			return nil
		}
	}
	return bad
}

// checkNoDataNoPass asks when there is nothing to measure.
func checkNoDataNoPass(ctx context.Context, r *run) error {
	const do = "return nil, or VERDICT_MISSING, when nothing was measured: no requests, no server, no rows, NaN. A canary without traffic is not a good one"
	nothing := r.target.noData
	if nothing == "" {
		nothing = r.target.config
	}
	for _, away := range []struct {
		what  string
		serve func() (*peer, error)
	}{{"a server that is not there", absent}, {"a server that never answers", silent}} {
		p, err := away.serve()
		if err != nil {
			return err
		}
		r.open = append(r.open, p.close)
		s, err := r.start(ctx)
		if err != nil {
			return err
		}
		c, err := s.caller(nothing, p)
		if err != nil {
			return err
		}
		for what, change := range map[string]func(*pluginv1.EvaluateRequest){
			"windows without requests": func(q *pluginv1.EvaluateRequest) { q.Canary, q.Stable = &pluginv1.Window{}, &pluginv1.Window{} },
			"no windows":               func(q *pluginv1.EvaluateRequest) { q.Canary, q.Stable = nil, nil },
			"no traffic of the canary": func(q *pluginv1.EvaluateRequest) { q.Canary = &pluginv1.Window{} },
		} {
			req := c.query()
			req.Query.TimeoutMs = 300
			req.Query.MinValue, req.Query.HasMinValue = -1e9, true
			change(req)
			call, cancel := context.WithTimeout(ctx, analysisWait)
			m, err := analysis.New(c).Evaluate(call, c.id.Name, req)
			cancel()
			var answer *plugins.AnswerError
			var refused *plugins.ConfigError
			switch {
			case errors.As(err, &refused):
				return refusedConfig(err)
			case errors.As(err, &answer):
				return broke(do, "%s and %s: %v", away.what, what, err)
			case err == nil && m.Verdict == donav1.Verdict_VERDICT_PASS:
				return broke(do, "%s and %s: PASS, %q", away.what, what, m.Detail)
			}
		}
		if err := c.alive(); err != nil {
			return broke(do, "with %s %v", away.what, err)
		}
	}
	return nil
}

// analysisWait is longer than the timeout that the queries have, and bounds those
// that look at no timeout.
const analysisWait = 2 * time.Second
