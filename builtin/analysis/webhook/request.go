package webhook

import (
	"encoding/json"
	"time"

	donav1 "github.com/dodona-project/dodona/proto/dona/v1"
	pluginv1 "github.com/dodona-project/dodona/proto/plugin/v1"
)

// version of the request's and the answer's form.
const version = 1

// The body of a request. Counts and latencies are since the step began.
type (
	question struct {
		Version int        `json:"version"`
		Rollout string     `json:"rollout"`
		Service string     `json:"service"`
		Step    stepJSON   `json:"step"`
		Query   queryJSON  `json:"query"`
		Canary  windowJSON `json:"canary"`
		Stable  windowJSON `json:"stable"`
	}
	stepJSON struct {
		Index   uint32 `json:"index"`
		Percent uint32 `json:"percent"`
		Started string `json:"started,omitempty"` // RFC 3339
	}
	queryJSON struct {
		Name  string   `json:"name"`
		Query string   `json:"query,omitempty"`
		Max   *float64 `json:"max_value,omitempty"`
		Min   *float64 `json:"min_value,omitempty"`
	}
	windowJSON struct {
		Variant   string        `json:"variant"`
		Requests  uint64        `json:"requests"`
		Errors    uint64        `json:"errors"`
		Latencies []latencyJSON `json:"latencies"`
	}
	// latencyJSON says that Count calls took at most UpTo microseconds.
	latencyJSON struct {
		UpTo  uint64 `json:"up_to_us"`
		Count uint64 `json:"count"`
	}
)

// body is the JSON of a request. It fails when a bound is no finite number.
func body(req *pluginv1.EvaluateRequest) ([]byte, error) {
	q := req.GetQuery()
	if q == nil {
		q = &donav1.AnalysisQuery{NoMaxValue: true}
	}
	b := question{
		Version: version, Rollout: req.GetRolloutId(), Service: req.GetService(),
		Step:   stepJSON{Index: req.GetStepIndex(), Percent: req.GetStepPercent()},
		Query:  queryJSON{Name: q.GetName(), Query: q.GetQuery()},
		Canary: windowOf(req.GetCanaryVariant(), req.GetCanary()),
		Stable: windowOf(req.GetStableVariant(), req.GetStable()),
	}
	if at := req.GetStepStartedAt(); at != nil {
		b.Step.Started = at.AsTime().Format(time.RFC3339Nano)
	}
	if !q.GetNoMaxValue() {
		b.Query.Max = &q.MaxValue
	}
	if q.GetHasMinValue() {
		b.Query.Min = &q.MinValue
	}
	return json.Marshal(b)
}

func windowOf(variant string, w *pluginv1.Window) windowJSON {
	out := windowJSON{Variant: variant, Requests: w.GetRequests(), Errors: w.GetErrors(), Latencies: []latencyJSON{}}
	for i := range min(len(w.GetUpperUs()), len(w.GetCounts())) {
		out.Latencies = append(out.Latencies, latencyJSON{UpTo: w.UpperUs[i], Count: w.Counts[i]})
	}
	return out
}
