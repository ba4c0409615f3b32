package sequential

import (
	"context"
	"encoding/json"
	"fmt"
	"math"
	"strconv"

	donav1 "github.com/dodona-project/dodona/proto/dona/v1"
	pluginv1 "github.com/dodona-project/dodona/proto/plugin/v1"
	"github.com/dodona-project/dodona/sdk/plugin"
)

// Name is the plugin's name.
const Name = "sequential"

// The bounds of a configuration and what is taken when it says nothing.
const (
	DefaultAlpha = 0.01
	DefaultBeta  = 0.02
)

// Config is what a query's config may hold; all of it is optional.
type Config struct {
	// Alpha bounds the probability that a canary within the limit is rolled back,
	// over a whole rollout.
	Alpha float64 `json:"alpha,omitempty" jsonschema:"minimum=0.000001,maximum=0.5,default=0.01,description=probability of rolling back a canary within the limit; over a whole rollout"`
	// Beta bounds the probability that a canary at or above the limit passes a
	// step.
	Beta float64 `json:"beta,omitempty" jsonschema:"minimum=0.000001,maximum=0.5,default=0.02,description=probability of passing a canary at or above the limit; in each step"`
	// Limit is the error rate that is tested, in percent. The host puts the
	// rollout's max_error_percent in when it is left out.
	Limit float64 `json:"limit,omitempty" jsonschema:"minimum=0.01,maximum=99,description=error rate that is tested in percent; without it the max_error_percent of the rollout"`
}

// Analysis implements the plugin.
type Analysis struct{}

// Configure accepts every configuration that fits the schema.
func (Analysis) Configure(context.Context, Config) error { return nil }

// Evaluate judges by the configuration of the instance that is called.
func (Analysis) Evaluate(ctx context.Context, req *pluginv1.EvaluateRequest) (*pluginv1.EvaluateReply, error) {
	config, _ := plugin.Config[Config](ctx)
	return Evaluate(config, req), nil
}

// Evaluate judges what the host counted of the canary: a BREACH by the counts of
// this step and those before, a PASS by those of the step alone, because nothing
// that was measured at another share of the traffic says how the canary bears
// this one. It is a pure function; the reply carries the state for the next
// call. A state that does not hold is MISSING once, and the test begins anew
// with the step's own counts.
func Evaluate(config Config, req *pluginv1.EvaluateRequest) *pluginv1.EvaluateReply {
	if config.Alpha == 0 {
		config.Alpha = DefaultAlpha
	}
	if config.Beta == 0 {
		config.Beta = DefaultBeta
	}
	step := counts{req.GetCanary().GetRequests(), req.GetCanary().GetErrors()}
	if !step.sane() {
		kept := req.GetState()
		if _, err := decodeState(kept); err != nil {
			kept = nil
		}
		return missing(kept, "contradictory: %d errors in %d requests", step.Errors, step.Requests)
	}
	s, bad := advance(req, step)
	switch {
	case bad != nil:
		return missing(s.encode(), "state: what was kept of the steps before is not to be used, %v; the test begins anew with this step", bad)
	case !within(config.Alpha, 0, 0.5) || !within(config.Beta, 0, 0.5) || !within(config.Limit, 0, 99):
		return missing(s.encode(), "config: limit is %s, alpha %s, beta %s: allowed are above 0 to 99, and above 0 to 0.5 each",
			number(config.Limit), number(config.Alpha), number(config.Beta))
	}
	limit := config.Limit / 100
	above, below := against(limit, oddsAbove), against(limit, 1.0/oddsBelow)
	breach, pass := math.Inf(-1), below.log(float64(step.Requests), float64(step.Errors))
	since := s.since()
	for i, c := range since {
		breach = logSum(breach, math.Log(stake(i))+above.log(float64(c.Requests), float64(c.Errors)))
	}
	reply := &pluginv1.EvaluateReply{State: s.encode(), Evidence: evidence(config, s, breach, pass)}
	reply.Value, reply.HasValue = 100*step.rate(), step.Requests > 0
	percent := number(config.Limit)
	switch enough := -math.Log(config.Beta); {
	case breach >= -math.Log(config.Alpha):
		reply.Verdict = donav1.Verdict_VERDICT_BREACH
		reply.Detail = fmt.Sprintf("the error rate is above %s %%: %d of %d requests of this step failed, %d of %d since the rollout began",
			percent, step.Errors, step.Requests, since[0].Errors, since[0].Requests)
	case pass >= enough:
		reply.Verdict = donav1.Verdict_VERDICT_PASS
		reply.Detail = fmt.Sprintf("the error rate is below %s %%: %d of %d requests of this step failed", percent, step.Errors, step.Requests)
	default:
		reply.Verdict = donav1.Verdict_VERDICT_MISSING
		reply.Detail = fmt.Sprintf("undecided: %d of %d requests of this step failed, ", step.Errors, step.Requests)
		if m, ok := below.more(step.Requests, step.Errors, enough); ok {
			reply.Detail += fmt.Sprintf("about %d more requests at this rate show that it is below %s %%", round(m), percent)
		} else {
			reply.Detail += fmt.Sprintf("not below %s %%, or too near to it; more requests are needed", percent)
		}
	}
	return reply
}

func missing(state []byte, format string, args ...any) *pluginv1.EvaluateReply {
	return &pluginv1.EvaluateReply{Verdict: donav1.Verdict_VERDICT_MISSING, Detail: fmt.Sprintf(format, args...), State: state}
}

// evidence is what a verdict rests on, as JSON: with it anybody can repeat the
// test. The logarithms are natural ones.
func evidence(config Config, s state, breach, pass float64) []byte {
	data, err := json.Marshal(struct {
		Limit     float64  `json:"limit_percent"`
		Alpha     float64  `json:"alpha"`
		Beta      float64  `json:"beta"`
		Step      counts   `json:"step"`
		Earlier   []counts `json:"earlier_steps"`
		LogBreach float64  `json:"log_e_not_above"`
		LogPass   float64  `json:"log_e_not_below"`
	}{config.Limit, config.Alpha, config.Beta, s.last, append([]counts{}, s.earlier...), breach, pass})
	if err != nil { // finite numbers always marshal
		panic("sequential: evidence does not marshal: " + err.Error())
	}
	return data
}

// within reports least < v <= most; NaN is within nothing.
func within(v, least, most float64) bool { return v > least && v <= most }

// round keeps two digits: more would promise what a projection cannot know.
func round(m uint64) uint64 {
	unit := uint64(1)
	for m/unit >= 100 {
		unit *= 10
	}
	return (m + unit - 1) / unit * unit
}

func number(v float64) string { return strconv.FormatFloat(v, 'g', -1, 64) }
