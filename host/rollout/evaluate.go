package rollout

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"
	"unicode"

	donav1 "github.com/dodona-project/dodona/proto/dona/v1"
	pluginv1 "github.com/dodona-project/dodona/proto/plugin/v1"
	statev1 "github.com/dodona-project/dodona/proto/state/v1"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/dodona-project/dodona/host/store"
)

const (
	minRetry = time.Second
	// slack is what a provider gets beyond the query's own timeout, so that its
	// answer about a timeout arrives instead of ours.
	slack = 500 * time.Millisecond
	// maxDetail bounds a provider's line in status and audit, in bytes.
	maxDetail = 512
)

// evalKey names one query of one rollout.
type evalKey struct {
	service string
	rollout string
	query   int
}

// evaluator asks one query, never twice at a time. Guarded by Controller.mu.
type evaluator struct {
	busy   bool
	due    time.Time // not asked again before; by this process's monotonic clock
	state  []byte    // what the provider handed over for the next time; the record's goes first
	latest Result
}

// results is the newest result of each query of a rollout; nil for those that
// have none.
func (c *Controller) results(service string, r *statev1.Rollout) []Result {
	c.mu.Lock()
	defer c.mu.Unlock()
	out := make([]Result, len(r.GetSpec().GetAnalysis()))
	for i := range out {
		if e := c.evals[evalKey{service, r.GetId(), i}]; e != nil {
			out[i] = e.latest
		}
	}
	return out
}

// evaluate starts every query of a running step that is due. An evaluator that
// never had a result is started at its step's first look.
func (c *Controller) evaluate(ctx context.Context, service string, r *statev1.Rollout) {
	if !running(r) {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for i := range r.GetSpec().GetAnalysis() {
		key := evalKey{service, r.GetId(), i}
		e := c.evals[key]
		if e == nil {
			e = &evaluator{}
			c.evals[key] = e
		}
		if e.busy || time.Now().Before(e.due) {
			continue
		}
		select {
		case c.seats <- struct{}{}:
		default:
			return
		}
		e.busy = true
		c.wg.Go(func() {
			defer func() { <-c.seats }()
			c.ask(ctx, key, e)
		})
	}
}

// forget drops the evaluators of rollouts that are not live: live is the live
// rollout of each service, empty where it is not known. One that is busy
// finishes and its result reaches nobody.
func (c *Controller) forget(live map[string]string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for key := range c.evals {
		if id, known := live[key.service]; !known || id != "" && id != key.rollout {
			delete(c.evals, key)
		}
	}
}

// ask evaluates a query once, against the step that runs now.
func (c *Controller) ask(ctx context.Context, key evalKey, e *evaluator) {
	req, result, timeout, err := c.question(ctx, key, e)
	if err == nil && req == nil {
		// The step is over, or the rollout another one: nothing to ask.
		c.answered(key, e, nil, 0)
		return
	}
	if err == nil {
		result.Took, err = c.call(ctx, req, timeout)
	}
	if ctx.Err() != nil {
		c.answered(key, e, nil, 0)
		return
	}
	if err != nil {
		state := e.keptState(c)
		if req != nil {
			state = req.GetState()
		}
		result.Took = Measurement{Verdict: Missing, Detail: why(err), State: state}
	}
	result.Took.Detail = line(result.Took.Detail)
	c.answered(key, e, &result, result.Took.RetryAfter)
}

func (e *evaluator) keptState(c *Controller) []byte {
	c.mu.Lock()
	defer c.mu.Unlock()
	return e.state
}

func (c *Controller) answered(key evalKey, e *evaluator, result *Result, retry time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	e.busy = false
	e.due = time.Now().Add(max(minRetry, retry))
	if result != nil {
		e.latest, e.state = *result, result.Took.State
	}
}

// question reads what a query is asked with; a nil request means that its step
// does not run any more.
func (c *Controller) question(ctx context.Context, key evalKey, e *evaluator) (req *pluginv1.EvaluateRequest, result Result, timeout time.Duration, err error) {
	handed := e.keptState(c)
	err = c.o.Store.View(ctx, func(tx store.ReadTx) error {
		req = nil
		var r statev1.Rollout
		if _, err := store.Load(tx, recordKey(key.service), &r); err != nil {
			return err
		}
		if r.GetId() != key.rollout || !running(&r) {
			return nil
		}
		counts, err := loadCounts(tx, key.service, &r)
		if err != nil {
			return err
		}
		// The record's state is the newest of all hosts, and survives a restart.
		state := handed
		if kept := r.GetAnalysisState(); key.query < len(kept) && len(kept[key.query]) > 0 {
			state = kept[key.query]
		}
		q := asked(r.GetSpec(), key.query)
		timeout = timeoutOf(q)
		result = Result{Rollout: r.GetId(), Step: int(r.GetStepIndex()), Began: tx.Now(), Wall: c.o.WallClock()}
		req = &pluginv1.EvaluateRequest{
			InstanceId: fmt.Sprintf("%s:%d", r.GetId(), key.query),
			RolloutId:  r.GetId(), Service: key.service, Query: q,
			CanaryVariant: r.GetSpec().GetCanaryVariant(), StableVariant: r.GetSpec().GetStableVariant(),
			StepIndex: r.GetStepIndex(), StepPercent: r.GetSpec().GetSteps()[r.GetStepIndex()],
			StepStartedAt: timestamppb.New(time.UnixMilli(r.GetStepStartedUnixMs())),
			Canary:        pluginWindow(counts.GetCanary()), Stable: pluginWindow(counts.GetStable()),
			State: state,
		}
		return nil
	})
	return req, result, timeout, err
}

// call asks the provider, for no longer than the query's own timeout and slack.
func (c *Controller) call(ctx context.Context, req *pluginv1.EvaluateRequest, timeout time.Duration) (m Measurement, err error) {
	ctx, cancel := context.WithTimeout(ctx, timeout+slack)
	defer cancel()
	m, err = c.o.Analyzer.Evaluate(ctx, req.GetQuery().GetProvider(), req)
	verdict := "error"
	if err == nil {
		verdict = strings.ToLower(judged(req.GetQuery(), m).String())
	}
	c.metrics.evaluations.WithLabelValues(verdict).Inc()
	return m, err
}

func judged(q *donav1.AnalysisQuery, m Measurement) Verdict {
	v, _ := planOf(&donav1.StartRolloutRequest{Analysis: []*donav1.AnalysisQuery{q}}).Queries[0].compare(m)
	return v
}

// why names, for people, the reason that nothing was measured.
func why(err error) string {
	switch {
	case errors.Is(err, context.DeadlineExceeded):
		return "timeout: its provider did not answer in time"
	case errors.Is(err, ErrProviderAway), errors.Is(err, ErrUnknownProvider):
		return "plugin: " + err.Error()
	default:
		return "no measurement: " + err.Error()
	}
}

// line makes text from a provider fit for status and audit: one line of valid
// UTF-8 without control characters.
func line(s string) string {
	s = strings.ToValidUTF8(s, "\uFFFD")
	s = strings.Map(func(r rune) rune {
		if unicode.IsControl(r) {
			return ' '
		}
		return r
	}, s)
	if len(s) > maxDetail {
		s = strings.ToValidUTF8(s[:maxDetail], "") + "…"
	}
	return strings.TrimSpace(s)
}
