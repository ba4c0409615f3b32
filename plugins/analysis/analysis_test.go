package analysis_test

import (
	"context"
	"errors"
	"math"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/dodona-project/dodona/plugins"
	"github.com/dodona-project/dodona/plugins/analysis"
	donav1 "github.com/dodona-project/dodona/proto/dona/v1"
	pluginv1 "github.com/dodona-project/dodona/proto/plugin/v1"
)

const (
	pass    = donav1.Verdict_VERDICT_PASS
	breach  = donav1.Verdict_VERDICT_BREACH
	missing = donav1.Verdict_VERDICT_MISSING
)

// caller is a plugin that answers whatever it is given. With raw set the answer
// does not pass through the wire's encoding, which would refuse it earlier.
type caller struct {
	reply    *pluginv1.EvaluateReply
	raw      bool
	err      error
	rejected []string
}

func (c *caller) Call(ctx context.Context, id plugins.ID, _ plugins.Instance, _ string, do func(context.Context, grpc.ClientConnInterface) error) (plugins.Identity, error) {
	if c.err != nil {
		return plugins.Identity{}, c.err
	}
	return plugins.Identity{Name: id.Name, Version: "1.0.0", Digest: "sha256:00"}, do(ctx, c)
}

func (c *caller) Invoke(_ context.Context, _ string, _, reply any, _ ...grpc.CallOption) error {
	if c.raw {
		r := reply.(*pluginv1.EvaluateReply)
		r.Detail = c.reply.GetDetail()
		return nil
	}
	text, err := proto.Marshal(c.reply)
	if err != nil {
		return err
	}
	return proto.Unmarshal(text, reply.(proto.Message))
}

func (c *caller) NewStream(context.Context, *grpc.StreamDesc, string, ...grpc.CallOption) (grpc.ClientStream, error) {
	return nil, errors.New("no streams here")
}

func (c *caller) Validate(context.Context, plugins.ID, *structpb.Struct) error { return nil }

func (c *caller) Capable(plugins.ID, string) bool { return false }

func (c *caller) Reject(id plugins.ID, reason, detail string) *plugins.AnswerError {
	c.rejected = append(c.rejected, reason)
	return &plugins.AnswerError{Plugin: id, Reason: reason, Detail: detail}
}

func query() *donav1.AnalysisQuery { return &donav1.AnalysisQuery{Name: "p99", MaxValue: 0.5} }

func value(v float64) *pluginv1.EvaluateReply {
	return &pluginv1.EvaluateReply{Value: v, HasValue: true}
}

func TestVerdicts(t *testing.T) {
	with := func(v donav1.Verdict, r *pluginv1.EvaluateReply) *pluginv1.EvaluateReply {
		r.Verdict = v
		return r
	}
	for _, tc := range []struct {
		name  string
		reply *pluginv1.EvaluateReply
		want  donav1.Verdict
	}{
		{"value within", value(0.5), pass},
		{"value above", value(0.500001), breach},
		{"+Inf is too much", value(math.Inf(1)), breach},
		{"NaN is nothing", value(math.NaN()), missing},
		{"-Inf is nothing", value(math.Inf(-1)), missing},
		{"empty answer", &pluginv1.EvaluateReply{}, missing},
		{"a value that is not there", &pluginv1.EvaluateReply{Value: 0.1}, missing},
		{"own pass", with(pass, &pluginv1.EvaluateReply{}), pass},
		{"own pass against the bounds", with(pass, value(9)), pass},
		{"own pass on NaN", with(pass, value(math.NaN())), missing},
		{"own pass on +Inf", with(pass, value(math.Inf(1))), missing},
		{"own pass on -Inf", with(pass, value(math.Inf(-1))), missing},
		{"own breach", with(breach, &pluginv1.EvaluateReply{}), breach},
		{"own breach on +Inf", with(breach, value(math.Inf(1))), breach},
		{"own breach on NaN", with(breach, value(math.NaN())), missing},
		{"own missing with a good value", with(missing, value(0.1)), missing},
	} {
		t.Run(tc.name, func(t *testing.T) {
			m, err := analysis.New(&caller{reply: tc.reply}).Evaluate(t.Context(), "mine", &pluginv1.EvaluateRequest{Query: query()})
			if err != nil {
				t.Fatal(err)
			}
			if m.Verdict != tc.want {
				t.Errorf("verdict %v (%s), want %v", m.Verdict, m.Detail, tc.want)
			}
			if m.Verdict == missing && m.HasValue {
				t.Error("missing, and has a value")
			}
			if math.IsNaN(m.Value) || math.IsInf(m.Value, -1) || m.Plugin != "mine" || m.Version != "1.0.0" || m.Digest != "sha256:00" {
				t.Errorf("measurement %+v", m)
			}
		})
	}
}

func TestRefusedAnswers(t *testing.T) {
	for _, tc := range []struct {
		name   string
		reply  *pluginv1.EvaluateReply
		raw    bool
		reason string // empty = accepted
	}{
		{"detail at the limit", &pluginv1.EvaluateReply{Verdict: pass, Detail: strings.Repeat("d", 1<<10)}, false, ""},
		{"detail over it", &pluginv1.EvaluateReply{Verdict: pass, Detail: strings.Repeat("d", 1<<10+1)}, false, "detail"},
		{"detail of two lines", &pluginv1.EvaluateReply{Verdict: pass, Detail: "a\nb"}, false, "detail"},
		{"detail with an escape", &pluginv1.EvaluateReply{Verdict: pass, Detail: "\x1b[2J"}, false, "detail"},
		{"detail that is no UTF-8", &pluginv1.EvaluateReply{Verdict: pass, Detail: "\xff"}, true, "detail"},
		{"evidence at the limit", &pluginv1.EvaluateReply{Verdict: pass, Evidence: make([]byte, 64<<10)}, false, ""},
		{"evidence over it", &pluginv1.EvaluateReply{Verdict: pass, Evidence: make([]byte, 64<<10+1)}, false, "evidence"},
		{"state at the limit", &pluginv1.EvaluateReply{Verdict: pass, State: make([]byte, 64<<10)}, false, ""},
		{"state over it", &pluginv1.EvaluateReply{Verdict: pass, State: make([]byte, 64<<10+1)}, false, "state"},
		{"verdict unknown", &pluginv1.EvaluateReply{Verdict: 4}, false, "verdict"},
		{"verdict negative", &pluginv1.EvaluateReply{Verdict: -1}, false, "verdict"},
		{"retry negative", &pluginv1.EvaluateReply{Verdict: pass, RetryAfter: durationpb.New(-1)}, false, "retry_after"},
		{"retry out of range", &pluginv1.EvaluateReply{Verdict: pass, RetryAfter: &durationpb.Duration{Nanos: 2e9}}, false, "retry_after"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			c := &caller{reply: tc.reply, raw: tc.raw}
			_, err := analysis.New(c).Evaluate(t.Context(), "mine", &pluginv1.EvaluateRequest{Query: query()})
			if tc.reason == "" {
				if err != nil {
					t.Fatal(err)
				}
				return
			}
			var bad *plugins.AnswerError
			if !errors.As(err, &bad) || bad.Reason != tc.reason || len(c.rejected) != 1 {
				t.Fatalf("error %v, counted %v, want reason %s", err, c.rejected, tc.reason)
			}
		})
	}
}

func TestRetryAfterIsBounded(t *testing.T) {
	c := &caller{reply: &pluginv1.EvaluateReply{Verdict: pass, RetryAfter: durationpb.New(48 * time.Hour)}}
	if m, err := analysis.New(c).Evaluate(t.Context(), "mine", nil); err != nil || m.RetryAfter != analysis.MaxRetryAfter {
		t.Errorf("%v, %v", m.RetryAfter, err)
	}
}

func TestMissing(t *testing.T) {
	c := &caller{err: plugins.ErrAway}
	_, err := analysis.New(c).Evaluate(t.Context(), "mine", &pluginv1.EvaluateRequest{Query: query()})
	if !errors.Is(err, plugins.ErrAway) {
		t.Fatal(err)
	}
	if m := analysis.Missing("mine", errors.New("two\nlines "+strings.Repeat("x", 4096))); m.Verdict != missing || strings.Contains(m.Detail, "\n") || len(m.Detail) > analysis.MaxDetail {
		t.Errorf("measurement %+v", m)
	}
}

func TestCompare(t *testing.T) {
	nan, inf := math.NaN(), math.Inf(1)
	both := &donav1.AnalysisQuery{MaxValue: 10, MinValue: 1, HasMinValue: true}
	lower := &donav1.AnalysisQuery{NoMaxValue: true, MinValue: 1, HasMinValue: true, MaxValue: 0}
	for _, tc := range []struct {
		name  string
		query *donav1.AnalysisQuery
		value float64
		want  donav1.Verdict
	}{
		{"at max", &donav1.AnalysisQuery{MaxValue: 10}, 10, pass},
		{"above max", &donav1.AnalysisQuery{MaxValue: 10}, math.Nextafter(10, 11), breach},
		{"max of zero counts", &donav1.AnalysisQuery{}, 0.1, breach},
		{"zero at max of zero", &donav1.AnalysisQuery{}, 0, pass},
		{"negative below max", &donav1.AnalysisQuery{MaxValue: 10}, -1e9, pass},
		{"between", both, 5, pass},
		{"at min", both, 1, pass},
		{"below min", both, 0.99, breach},
		{"over max", both, 10.01, breach},
		{"only min, huge value", lower, 1e300, pass},
		{"only min, below", lower, 0, breach},
		{"min without its flag", &donav1.AnalysisQuery{MaxValue: 10, MinValue: 5}, 1, pass},
		{"+Inf", both, inf, breach},
		{"+Inf with only min", lower, inf, breach},
		{"-Inf", lower, -inf, missing},
		{"NaN", both, nan, missing},
		{"no bound", &donav1.AnalysisQuery{NoMaxValue: true}, 1, missing},
		{"no query", nil, 1, missing},
		{"max NaN", &donav1.AnalysisQuery{MaxValue: nan}, 1, missing},
		{"max +Inf", &donav1.AnalysisQuery{MaxValue: inf}, 1, missing},
		{"min -Inf", &donav1.AnalysisQuery{MaxValue: 10, HasMinValue: true, MinValue: -inf}, 1, missing},
	} {
		if got, why := analysis.Compare(tc.query, tc.value); got != tc.want || why == "" {
			t.Errorf("%s: %v (%s), want %v", tc.name, got, why, tc.want)
		}
	}
}

// FuzzAnswer feeds the facade every message that decodes: nothing passes that
// was not measured.
func FuzzAnswer(f *testing.F) {
	for _, seed := range []*pluginv1.EvaluateReply{
		{}, {Verdict: missing}, value(0.1), value(math.NaN()), value(math.Inf(1)), value(math.Inf(-1)),
		{Verdict: pass, Detail: "fine", Evidence: []byte("[]"), State: []byte("s"), RetryAfter: durationpb.New(time.Second)},
		{Verdict: breach, Value: math.Inf(1), HasValue: true}, {Verdict: 77}, {Verdict: -3},
	} {
		text, err := proto.Marshal(seed)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		reply := &pluginv1.EvaluateReply{}
		if proto.Unmarshal(text, reply) != nil {
			return
		}
		m, err := analysis.New(&caller{reply: reply}).Evaluate(t.Context(), "mine", &pluginv1.EvaluateRequest{Query: query()})
		if err != nil {
			var bad *plugins.AnswerError
			if !errors.As(err, &bad) || bad.Reason == "" {
				t.Fatalf("error %v is not about the answer", err)
			}
			return
		}
		switch {
		case m.Verdict != pass && m.Verdict != breach && m.Verdict != missing:
			t.Fatalf("verdict %v", m.Verdict)
		case m.Verdict == pass && reply.GetVerdict() != pass && !(reply.GetHasValue() && reply.GetValue() <= 0.5):
			t.Fatalf("%v passes", reply)
		case m.Verdict == pass && reply.GetHasValue() && (math.IsNaN(reply.GetValue()) || math.IsInf(reply.GetValue(), 0)):
			t.Fatalf("%v passes", reply)
		case math.IsNaN(m.Value) || math.IsInf(m.Value, -1) || (m.Verdict != breach && math.IsInf(m.Value, 0)):
			t.Fatalf("value %v with %v", m.Value, m.Verdict)
		case m.Verdict == missing && (m.HasValue || m.Detail == ""), len(m.Detail) > analysis.MaxDetail, strings.ContainsAny(m.Detail, "\n\x1b"):
			t.Fatalf("measurement %+v", m)
		case len(m.Evidence) > analysis.MaxEvidence, len(m.State) > analysis.MaxState, m.RetryAfter < 0, m.RetryAfter > analysis.MaxRetryAfter:
			t.Fatalf("measurement out of bounds")
		}
	})
}
