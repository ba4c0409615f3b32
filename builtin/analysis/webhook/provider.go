package webhook

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	donav1 "github.com/dodona-project/dodona/proto/dona/v1"
	pluginv1 "github.com/dodona-project/dodona/proto/plugin/v1"
	"github.com/dodona-project/dodona/sdk/plugin"

	"github.com/dodona-project/dodona/builtin/analysis/internal/fetch"
)

// Name is the plugin's name.
const Name = "webhook"

// Analysis implements the plugin.
type Analysis struct{}

// Configure refuses what the schema cannot see.
func (Analysis) Configure(_ context.Context, c Config) error { return c.Check() }

// Evaluate asks by the configuration of the instance that is called.
func (Analysis) Evaluate(ctx context.Context, req *pluginv1.EvaluateRequest) (*pluginv1.EvaluateReply, error) {
	config, _ := plugin.Config[Config](ctx)
	return Evaluate(ctx, config, req), nil
}

// Evaluate asks the endpoint once and returns what it says, or MISSING. Safe for
// concurrent use.
func Evaluate(ctx context.Context, config Config, req *pluginv1.EvaluateRequest) *pluginv1.EvaluateReply {
	timeout := fetch.Timeout
	if ms := req.GetQuery().GetTimeoutMs(); ms > 0 {
		timeout = time.Duration(ms) * time.Millisecond
	}
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	raw, err := ask(ctx, config, req)
	if err != nil {
		return missing(err, raw)
	}
	a, err := decode(raw)
	if err != nil {
		return missing(err, raw)
	}
	// What is late, cached or meant for somebody else says nothing of this step.
	if a.rollout != req.GetRolloutId() || a.step != req.GetStepIndex() {
		return missing(fmt.Errorf("another step: the answer is for step %d of rollout %.32q, asked was for step %d of %q",
			a.step, a.rollout, req.GetStepIndex(), req.GetRolloutId()), raw)
	}
	return &pluginv1.EvaluateReply{Verdict: a.verdict, Value: a.value, HasValue: a.hasValue,
		Detail: detail(a), Evidence: fetch.Evidence(raw)}
}

// detail is the endpoint's own line. Without one the host says what a value
// means; a verdict needs some word.
func detail(a answer) string {
	if a.detail == "" && a.verdict != donav1.Verdict_VERDICT_UNSPECIFIED {
		for word, v := range verdicts {
			if v == a.verdict {
				return "the endpoint says " + word
			}
		}
	}
	return fetch.Line(a.detail)
}

func missing(err error, raw []byte) *pluginv1.EvaluateReply {
	return &pluginv1.EvaluateReply{Verdict: donav1.Verdict_VERDICT_MISSING, Detail: fetch.Line(err.Error()), Evidence: fetch.Evidence(raw)}
}

// ask sends one question and returns the raw answer.
func ask(ctx context.Context, config Config, req *pluginv1.EvaluateRequest) ([]byte, error) {
	if err := config.Check(); err != nil {
		return nil, fmt.Errorf("config: %w", err)
	}
	header, err := config.header()
	if err != nil {
		return nil, fmt.Errorf("config: %w", err)
	}
	text, err := body(req)
	if err != nil {
		return nil, fmt.Errorf("config: the query is no JSON: %w", err)
	}
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, config.URL, bytes.NewReader(text))
	if err != nil {
		return nil, errors.New("config: url cannot be asked")
	}
	r.Header = header
	r.Header.Set("Content-Type", "application/json")
	r.Header.Set("Accept", "application/json")
	raw, status, err := fetch.Do(r)
	if err == nil && status != http.StatusOK {
		err = fmt.Errorf("unreachable: the endpoint answered %d", status)
	}
	return raw, err
}
