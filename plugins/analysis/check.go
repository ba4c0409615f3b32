package analysis

import (
	"fmt"
	"math"
	"strconv"

	donav1 "github.com/dodona-project/dodona/proto/dona/v1"
	pluginv1 "github.com/dodona-project/dodona/proto/plugin/v1"
	"github.com/dodona-project/dodona/sdk/plugin/line"
)

// fault is why an answer is refused. reason is a label of a metric.
type fault struct{ reason, detail string }

func refuse(reason, format string, args ...any) *fault {
	return &fault{reason: reason, detail: fmt.Sprintf(format, args...)}
}

// The reasons, each with its rows in the tests.
const (
	reasonVerdict  = "verdict"
	reasonDetail   = "detail"
	reasonEvidence = "evidence"
	reasonState    = "state"
	reasonRetry    = "retry_after"
)

const (
	pass    = donav1.Verdict_VERDICT_PASS
	breach  = donav1.Verdict_VERDICT_BREACH
	missing = donav1.Verdict_VERDICT_MISSING
)

// check turns an answer into a measurement, or says why not. The answer may be
// anything that the wire can carry.
func check(q *donav1.AnalysisQuery, r *pluginv1.EvaluateReply) (Measurement, *fault) {
	switch {
	case r.GetVerdict() < 0 || r.GetVerdict() > missing:
		return Measurement{}, refuse(reasonVerdict, "verdict is %d: allowed are 0 to %d", r.GetVerdict(), missing)
	case len(r.GetDetail()) > MaxDetail:
		return Measurement{}, refuse(reasonDetail, "detail has %d bytes: allowed are at most %d", len(r.GetDetail()), MaxDetail)
	case !line.Is(r.GetDetail()):
		return Measurement{}, refuse(reasonDetail, "detail is not one line of printable text")
	case len(r.GetEvidence()) > MaxEvidence:
		return Measurement{}, refuse(reasonEvidence, "evidence has %d bytes: allowed are at most %d", len(r.GetEvidence()), MaxEvidence)
	case len(r.GetState()) > MaxState:
		return Measurement{}, refuse(reasonState, "state has %d bytes: allowed are at most %d", len(r.GetState()), MaxState)
	}
	m := Measurement{Detail: r.GetDetail(), Evidence: r.GetEvidence(), State: r.GetState()}
	if d := r.GetRetryAfter(); d != nil {
		if err := d.CheckValid(); err != nil || d.AsDuration() < 0 {
			return Measurement{}, refuse(reasonRetry, "retry_after is not a duration from 0 up")
		}
		m.RetryAfter = min(d.AsDuration(), MaxRetryAfter)
	}
	var why string
	m.Verdict, why = verdict(q, r)
	if m.Detail == "" || m.Verdict == missing && why != "" {
		m.Detail = join(why, m.Detail)
	}
	if m.Verdict != missing && r.GetHasValue() {
		m.Value, m.HasValue = r.GetValue(), true
	}
	return m, nil
}

// verdict decides what an answer says. why is for people.
func verdict(q *donav1.AnalysisQuery, r *pluginv1.EvaluateReply) (v donav1.Verdict, why string) {
	value, has := r.GetValue(), r.GetHasValue()
	if has && (math.IsNaN(value) || math.IsInf(value, -1)) {
		return missing, fmt.Sprintf("value is %v", value)
	}
	switch r.GetVerdict() {
	case pass:
		if has && math.IsInf(value, 1) {
			return missing, "the plugin says pass and measured +Inf"
		}
		return pass, "the plugin says pass"
	case breach:
		return breach, "the plugin says breach"
	case missing:
		if r.GetDetail() == "" {
			return missing, "the plugin says missing"
		}
		return missing, ""
	}
	if !has {
		return missing, "the plugin measured nothing"
	}
	return Compare(q, value)
}

// Compare judges a value by the bounds of a query: above max_value (unless
// no_max_value) or below min_value (if has_min_value) is a breach. +Inf is a
// breach, NaN and -Inf are missing, and so is everything when the query has no
// usable bound. why says it for people.
func Compare(q *donav1.AnalysisQuery, value float64) (v donav1.Verdict, why string) {
	hasMax, hasMin := !q.GetNoMaxValue(), q.GetHasMinValue()
	switch {
	case math.IsNaN(value) || math.IsInf(value, -1):
		return missing, fmt.Sprintf("value is %v", value)
	case q == nil || !hasMax && !hasMin:
		return missing, "the query has no bound"
	case hasMax && !finite(q.GetMaxValue()) || hasMin && !finite(q.GetMinValue()):
		return missing, "a bound of the query is not a finite number"
	case math.IsInf(value, 1):
		return breach, "value is +Inf"
	case hasMax && value > q.GetMaxValue():
		return breach, number(value) + " > max " + number(q.GetMaxValue())
	case hasMin && value < q.GetMinValue():
		return breach, number(value) + " < min " + number(q.GetMinValue())
	case hasMax && hasMin:
		return pass, "min " + number(q.GetMinValue()) + " <= " + number(value) + " <= max " + number(q.GetMaxValue())
	case hasMin:
		return pass, number(value) + " >= min " + number(q.GetMinValue())
	}
	return pass, number(value) + " <= max " + number(q.GetMaxValue())
}

// number is what %v writes.
func number(f float64) string { return strconv.FormatFloat(f, 'g', -1, 64) }

func finite(f float64) bool { return !math.IsNaN(f) && !math.IsInf(f, 0) }

func join(why, detail string) string {
	switch {
	case detail == "":
		return why
	case why == "":
		return detail
	}
	return line.Of(why+": "+detail, MaxDetail)
}
