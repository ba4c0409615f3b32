package prometheus

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"time"

	donav1 "github.com/dodona-project/dodona/proto/dona/v1"
	pluginv1 "github.com/dodona-project/dodona/proto/plugin/v1"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/dodona-project/dodona/builtin/analysis/internal/fetch"
)

// Config is what a query's config may hold; all of it is optional. Numerator
// and Denominator go together and take the place of the query: the value is
// their quotient.
type Config struct {
	// AllowPartial takes answers that come with warnings, such as those of a
	// federation that did not reach everybody.
	AllowPartial bool `json:"allow_partial,omitempty" jsonschema:"description=take answers that come with warnings"`
	// Numerator is an instant query; no series counts as 0.
	Numerator string `json:"numerator,omitempty" jsonschema:"description=instant query of the upper half of a ratio; no series counts as 0"`
	// Denominator is an instant query; no series is MISSING.
	Denominator string `json:"denominator,omitempty" jsonschema:"description=instant query of the lower half of a ratio; no series is MISSING"`
	// MinDenominator is what the denominator must reach for the quotient to mean
	// anything; whatever it is, the denominator must be above 0.
	MinDenominator float64 `json:"min_denominator,omitempty" jsonschema:"description=a denominator below this is MISSING,minimum=0"`
}

// Evaluate asks the server and returns its value without a verdict, or MISSING,
// or BREACH for plus infinity. The error is always nil: a failure to measure is
// an answer. Safe for concurrent use.
func Evaluate(ctx context.Context, req *pluginv1.EvaluateRequest) (*pluginv1.EvaluateReply, error) {
	q := req.GetQuery()
	config, err := parseConfig(q.GetConfig())
	if err != nil {
		return missing("config: "+err.Error(), nil), nil
	}
	timeout := fetch.Timeout
	if ms := q.GetTimeoutMs(); ms > 0 {
		timeout = time.Duration(ms) * time.Millisecond
	}
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	if config.Numerator != "" {
		return ratio(ctx, q, config), nil
	}
	raw, err := ask(ctx, q.GetPrometheusUrl(), q.GetQuery())
	if err != nil {
		return missing(err.Error(), raw), nil
	}
	v, err := read(raw, config.AllowPartial)
	return reply(v, err, raw), nil
}

func parseConfig(s *structpb.Struct) (c Config, err error) {
	if s == nil {
		return c, nil
	}
	data, err := s.MarshalJSON()
	if err != nil {
		return c, errors.New("cannot be read")
	}
	d := json.NewDecoder(bytes.NewReader(data))
	d.DisallowUnknownFields()
	if err := d.Decode(&c); err != nil {
		return c, err
	}
	return c, c.Check()
}

// Check says what is wrong with a configuration that fits the schema.
func (c Config) Check() error {
	switch {
	case (c.Numerator == "") != (c.Denominator == ""):
		return errors.New("numerator and denominator go together: set both or none")
	case math.IsNaN(c.MinDenominator) || c.MinDenominator < 0:
		return errors.New("min_denominator is negative")
	case c.MinDenominator > 0 && c.Denominator == "":
		return errors.New("min_denominator wants numerator and denominator: set all three, or not this one")
	}
	return nil
}

// ratio evaluates the paired form. A healthy service has no error series at
// all, so an absent numerator is 0; without traffic nothing is known, so an
// absent or small denominator is MISSING.
func ratio(ctx context.Context, q *donav1.AnalysisQuery, config Config) *pluginv1.EvaluateReply {
	lower, err := ask(ctx, q.GetPrometheusUrl(), config.Denominator)
	if err != nil {
		return missing("denominator: "+err.Error(), lower)
	}
	d, err := read(lower, config.AllowPartial)
	switch {
	case err != nil:
		return missing("denominator: "+err.Error(), lower)
	case math.IsInf(d, 0) || math.IsNaN(d):
		return missing("denominator: nan: the value is "+number(d), lower)
	case d < config.MinDenominator || d <= 0:
		return missing(fmt.Sprintf("denominator is %s: it must be above 0 and at least %s", number(d), number(config.MinDenominator)), lower)
	}
	upper, err := ask(ctx, q.GetPrometheusUrl(), config.Numerator)
	both := append(append(bytes.Clone(upper), '\n'), lower...)
	if err != nil {
		return missing("numerator: "+err.Error(), both)
	}
	n, err := read(upper, config.AllowPartial)
	if errors.Is(err, errNoSeries) {
		n, err = 0, nil
	}
	if err != nil {
		return missing("numerator: "+err.Error(), both)
	}
	return reply(n/d, nil, both)
}

// reply turns a reading into the plugin's answer.
func reply(v float64, err error, raw []byte) *pluginv1.EvaluateReply {
	switch {
	case err != nil:
		return missing(err.Error(), raw)
	case math.IsNaN(v) || math.IsInf(v, -1):
		return missing("nan: the value is "+number(v), raw)
	case math.IsInf(v, 1):
		return &pluginv1.EvaluateReply{Verdict: donav1.Verdict_VERDICT_BREACH, Value: v, HasValue: true,
			Detail: "the value is +Inf: above any bound", Evidence: fetch.Evidence(raw)}
	}
	return &pluginv1.EvaluateReply{Value: v, HasValue: true, Evidence: fetch.Evidence(raw)}
}

func missing(detail string, raw []byte) *pluginv1.EvaluateReply {
	return &pluginv1.EvaluateReply{Verdict: donav1.Verdict_VERDICT_MISSING, Detail: fetch.Line(detail), Evidence: fetch.Evidence(raw)}
}
