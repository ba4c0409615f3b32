package rollout

import (
	"fmt"
	"math"
	"net/url"

	donav1 "github.com/dodona-project/dodona/proto/dona/v1"
	"google.golang.org/protobuf/proto"

	"github.com/dodona-project/dodona/host/limits"
	"github.com/dodona-project/dodona/host/refusal"
)

// CheckStart refuses a request that no state could make right. It looks at
// nothing but the request; what only a plugin knows is checked by Start.
func CheckStart(req *donav1.StartRolloutRequest) error {
	for _, f := range []struct {
		field string
		err   error
	}{
		{"service", limits.Service(req.GetService())},
		{"canary_variant", limits.Name(req.GetCanaryVariant())},
		{"stable_variant", limits.Name(req.GetStableVariant())},
	} {
		if err := refusal.Check(f.field, f.err); err != nil {
			return err
		}
	}
	if req.GetCanaryVariant() == req.GetStableVariant() {
		return refusal.Field("canary_variant", "is %s, the same as stable_variant: allowed are two different variants", limits.Quote(req.GetCanaryVariant()))
	}
	return CheckPlan(req)
}

// CheckPlan is CheckStart without the service and the variants.
func CheckPlan(req *donav1.StartRolloutRequest) error {
	if err := checkSteps(req.GetSteps()); err != nil {
		return err
	}
	if s := req.GetStepSeconds(); s < limits.MinStepSeconds || s > limits.MaxStepSeconds {
		return refusal.Field("step_seconds", "is %d: allowed are %d to %d", s, limits.MinStepSeconds, limits.MaxStepSeconds)
	}
	if p := req.GetMaxErrorPercent(); p > 100 {
		return refusal.Field("max_error_percent", "is %d: allowed are 0 to 100", p)
	}
	if n := req.GetMinRequests(); n > limits.MaxMinRequests {
		return refusal.Field("min_requests", "is %d: allowed are at most %d", n, limits.MaxMinRequests)
	}
	if n := len(req.GetAnalysis()); n > limits.AnalysisQueries {
		return refusal.Field("analysis", "has %d queries: allowed are at most %d", n, limits.AnalysisQueries)
	}
	names := map[string]int{}
	for i, q := range req.GetAnalysis() {
		at := fmt.Sprintf("analysis[%d]", i)
		if err := checkQuery(at, q); err != nil {
			return err
		}
		if p := req.GetMaxErrorPercent(); limitFromGate(q) && (p == 0 || p == 100) {
			return refusal.Field(at+".config", "has no limit, and max_error_percent is %d, which no number of requests could show: set config.limit, or max_error_percent to 1 to 99", p)
		}
		if first, taken := names[q.GetName()]; taken {
			return refusal.Field(at+".name", "is %s, the name of analysis[%d] too: each query needs its own", limits.Quote(q.GetName()), first)
		}
		names[q.GetName()] = i
	}
	return nil
}

func checkSteps(steps []uint32) error {
	if n := len(steps); n == 0 || n > limits.RolloutSteps {
		return refusal.Field("steps", "has %d percents: allowed are 1 to %d, strictly rising, the last one 100", n, limits.RolloutSteps)
	}
	last := uint32(0)
	for i, p := range steps {
		switch {
		case p == 0 || p > 100:
			return refusal.Field(fmt.Sprintf("steps[%d]", i), "is %d: allowed are 1 to 100", p)
		case p <= last:
			return refusal.Field(fmt.Sprintf("steps[%d]", i), "is %d after %d: the percents must rise strictly", p, last)
		}
		last = p
	}
	if last != 100 {
		return refusal.Field(fmt.Sprintf("steps[%d]", len(steps)-1), "is %d: the last step must be 100", last)
	}
	return nil
}

func checkQuery(at string, q *donav1.AnalysisQuery) error {
	if q == nil {
		return refusal.Field(at, "is empty: a query needs a name and what to ask")
	}
	if q.GetName() == "" || q.GetName() == GateName {
		return refusal.Field(at+".name", "is %s: allowed is any other text of 1 to %d bytes", limits.Quote(q.GetName()), limits.NameLen)
	}
	if err := refusal.Check(at+".name", limits.Text(q.GetName(), limits.NameLen)); err != nil {
		return err
	}
	provider := providerOf(q)
	if err := refusal.Check(at+".provider", limits.Name(provider)); err != nil {
		return err
	}
	if n := proto.Size(q.GetConfig()); n > limits.PluginConfigLen {
		return refusal.Field(at+".config", "has %d bytes: allowed are at most %d", n, limits.PluginConfigLen)
	}
	if err := checkSource(at, provider, q); err != nil {
		return err
	}
	if t := q.GetTimeoutMs(); t > limits.QueryTimeoutMS {
		return refusal.Field(at+".timeout_ms", "is %d: allowed are 1 to %d, and 0 for %d", t, limits.QueryTimeoutMS, defaultTimeout.Milliseconds())
	}
	return checkBounds(at, q)
}

// checkSource checks what a query asks and whom. Only the Prometheus provider
// needs both; for others config may say it all.
func checkSource(at, provider string, q *donav1.AnalysisQuery) error {
	prometheus := provider == defaultProvider
	paired := q.GetConfig().GetFields()["numerator"].GetStringValue() != ""
	if q.GetQuery() == "" && prometheus && !paired {
		return refusal.Field(at+".query", "is empty: the provider prometheus needs an instant query")
	}
	if n := len(q.GetQuery()); n > limits.QueryLen {
		return refusal.Field(at+".query", "has %d bytes: allowed are at most %d", n, limits.QueryLen)
	}
	raw := q.GetPrometheusUrl()
	if raw == "" && !prometheus {
		return nil
	}
	if n := len(raw); n > limits.URLLen {
		return refusal.Field(at+".prometheus_url", "has %d bytes: allowed are at most %d", n, limits.URLLen)
	}
	u, err := url.Parse(raw)
	if err != nil || (u.Scheme != "http" && u.Scheme != "https") || u.Host == "" {
		return refusal.Field(at+".prometheus_url", "is not an http:// or https:// URL with a host")
	}
	if u.User != nil || u.RawQuery != "" || u.Fragment != "" {
		// A rollout's record and status are read by many: no place for a password.
		return refusal.Field(at+".prometheus_url", "has user info, a query or a fragment: allowed are scheme, host, port and path")
	}
	return nil
}

func checkBounds(at string, q *donav1.AnalysisQuery) error {
	for _, b := range []struct {
		field string
		value float64
	}{{"max_value", q.GetMaxValue()}, {"min_value", q.GetMinValue()}} {
		if math.IsNaN(b.value) || math.IsInf(b.value, 0) {
			return refusal.Field(at+"."+b.field, "is %s: allowed are finite numbers", number(b.value))
		}
	}
	if q.GetHasMinValue() && !q.GetNoMaxValue() && q.GetMinValue() > q.GetMaxValue() {
		return refusal.Field(at+".min_value", "is %s, above max_value %s, so that nothing can pass: set no_max_value when only the lower bound counts",
			number(q.GetMinValue()), number(q.GetMaxValue()))
	}
	return nil
}

// CheckControl refuses a request that no state could make right.
func CheckControl(req *donav1.ControlRolloutRequest) error {
	if err := refusal.Check("service", limits.Service(req.GetService())); err != nil {
		return err
	}
	_, known := opOf(req.GetAction())
	lift := req.GetAction() == donav1.ControlRolloutRequest_ACTION_LIFT_QUARANTINE
	if !known && !lift {
		return refusal.Field("action", "is %d: allowed are PAUSE, RESUME, PROMOTE_STEP, PROMOTE_ALL, ABORT and LIFT_QUARANTINE", req.GetAction())
	}
	if err := refusal.Check("reason", limits.Text(req.GetReason(), limits.ReasonLen)); err != nil {
		return err
	}
	if lift {
		return refusal.Check("variant", limits.Name(req.GetVariant()))
	}
	return nil
}
