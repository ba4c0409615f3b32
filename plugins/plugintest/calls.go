package plugintest

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/structpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/dodona-project/dodona/plugins"
	"github.com/dodona-project/dodona/plugins/analysis"
	"github.com/dodona-project/dodona/plugins/probe"
	"github.com/dodona-project/dodona/plugins/strategy"
	controlplanev1 "github.com/dodona-project/dodona/proto/controlplane/v1"
	donav1 "github.com/dodona-project/dodona/proto/dona/v1"
	pluginv1 "github.com/dodona-project/dodona/proto/plugin/v1"
)

// A caller calls the plugin of a session with what belongs to its kind.
type caller struct {
	*session
	config *structpb.Struct
	peer   string // host:port of the server that the plugin may ask
}

// caller makes one. text is the configuration as the target has it.
func (s *session) caller(text string, p *peer) (*caller, error) {
	config, err := parseConfig(text, p.address)
	return &caller{session: s, config: config, peer: p.address}, err
}

// call makes one good call through the kind's facade. A strategy has to answer it;
// an analysis and a probe may say that they could not do it.
func (c *caller) call(ctx context.Context) error {
	var err error
	switch c.id.Kind {
	case plugins.KindStrategy:
		_, err = strategy.New(c).CompileWith(ctx, c.id.Name, c.config, candidates(5, 1))
		return err
	case plugins.KindProbe:
		_, err = probe.New(c).Check(ctx, c.id.Name, c.config, c.endpoint(callWait))
	default:
		_, err = analysis.New(c).Evaluate(ctx, c.id.Name, c.query())
	}
	return unlessUnable(err)
}

// callWait is how long the suite waits for an answer that comes within a fraction
// of it on a machine that is not busy.
const callWait = 20 * time.Second

// unlessUnable drops the error of a plugin that says that it could not measure or
// check, and keeps what no plugin says of itself.
func unlessUnable(err error) error {
	var answer *plugins.AnswerError
	var refused *plugins.ConfigError
	if err == nil || errors.As(err, &answer) || errors.As(err, &refused) {
		return err
	}
	if broken(err) {
		return err
	}
	return nil
}

// broken reports whether an error is one that a plugin's own code does not
// return: of a panic, a late answer, a connection or a limit.
func broken(err error) bool {
	switch status.Code(err) {
	case codes.Internal, codes.Unavailable, codes.DeadlineExceeded, codes.Canceled, codes.ResourceExhausted, codes.Unimplemented, codes.DataLoss:
		return true
	}
	return errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled)
}

// candidates is a request for a plan among n candidates of three groups.
func candidates(n int, seed uint64) *pluginv1.CompileRequest {
	random := rand.New(rand.NewPCG(seed, 1))
	req := &pluginv1.CompileRequest{Scope: "service/conformance", Seed: seed}
	for i := range n {
		group := []string{"eu-1", "eu-2", "us-1"}[i%3]
		req.Candidates = append(req.Candidates, &pluginv1.Candidate{
			Id: fmt.Sprintf("endpoint-%d", i), Group: group, Region: group[:2], Weight: 1 + random.Uint32N(1000),
			Priority: uint32(i % 2), Capacity: 100, Active: random.Uint32N(100), Utilization: random.Float64(),
			ErrorRate: random.Float64() / 10, Requests: random.Uint32N(10_000),
			Latency: durationpb.New(time.Duration(random.Int64N(int64(time.Second)))), Age: durationpb.New(time.Minute),
			Labels: map[string]string{"host": fmt.Sprint("h", i%7)},
		})
	}
	return req
}

// query is a request for a measurement, with traffic in both windows.
func (c *caller) query() *pluginv1.EvaluateRequest {
	window := func(errors uint64) *pluginv1.Window {
		return &pluginv1.Window{Requests: 10_000, Errors: errors, UpperUs: []uint64{1_000, 10_000, 100_000}, Counts: []uint64{5_000, 9_900, 10_000}}
	}
	return &pluginv1.EvaluateRequest{
		RolloutId: "r-1", Service: "conformance", CanaryVariant: "v2", StableVariant: "v1", StepIndex: 1, StepPercent: 10,
		StepStartedAt: timestamppb.Now(), Canary: window(20), Stable: window(10),
		Query: &donav1.AnalysisQuery{Name: "signal", Provider: c.id.Name, PrometheusUrl: "http://" + c.peer, Query: "up",
			MaxValue: 1e9, TimeoutMs: uint32(callWait / time.Millisecond), Config: c.config},
	}
}

// endpoint is a request to check the peer.
func (c *caller) endpoint(timeout time.Duration) *pluginv1.CheckRequest {
	return &pluginv1.CheckRequest{EndpointAddress: c.peer, Level: controlplanev1.CheckLevel_CHECK_LEVEL_BASIC, Timeout: durationpb.New(timeout)}
}

// An input is a request as no host sends it, by what is odd about it.
type input struct {
	what string
	req  proto.Message
}

// instance is the one that inputs are for.
const instance = "conformance"

// inputs are requests for the kind: huge, empty, without the parts that are always
// there, with values that no sum can hold, with text of every kind, and with fields
// of a later version.
func (c *caller) inputs() []input {
	const odd = "Ωμέγα 👩‍👩‍👧 \u202e\u0000\u0007 ' \" ; \\ {} <script> %s %n ../../ \ufeff"
	long := strings.Repeat("長", 300_000)
	unknown := []byte{0x82, 0x7d, 4, 'l', 'a', 't', 'e'} // field 2000, with four bytes
	switch c.id.Kind {
	case plugins.KindStrategy:
		strange := candidates(6, 2)
		for i, v := range []float64{math.NaN(), math.Inf(1), math.Inf(-1), -1, 1e308, math.SmallestNonzeroFloat64} {
			x := strange.GetCandidates()[i]
			x.Utilization, x.ErrorRate, x.Weight, x.Requests, x.Capacity = v, v, math.MaxUint32, math.MaxUint32, math.MaxUint32
			x.Latency = &durationpb.Duration{Seconds: math.MinInt64, Nanos: math.MaxInt32}
		}
		text := candidates(3, 3)
		for _, x := range text.GetCandidates() {
			x.Group, x.Region, x.Labels = odd, odd, map[string]string{odd: odd}
		}
		return c.asked([]input{
			{"nothing but an instance", &pluginv1.CompileRequest{}},
			{"a candidate that is empty", &pluginv1.CompileRequest{Scope: "service/x", Candidates: []*pluginv1.Candidate{{}}}},
			{"two candidates with one id", &pluginv1.CompileRequest{Scope: "service/x", Candidates: []*pluginv1.Candidate{{Id: "a", Weight: 1}, {Id: "a", Weight: 1}}}},
			{"weights of 0", &pluginv1.CompileRequest{Scope: "service/x", Candidates: []*pluginv1.Candidate{{Id: "a"}, {Id: "b"}}}},
			{"NaN, infinities and largest numbers", strange},
			{"text of every kind", text},
			{"a text of 900 KB", &pluginv1.CompileRequest{Scope: long, Candidates: candidates(2, 4).GetCandidates()}},
			{"30,000 candidates, 5 MB", candidates(30_000, 5)},
			{"a previous plan of another strategy", &pluginv1.CompileRequest{Scope: "service/x", Candidates: candidates(2, 6).GetCandidates(),
				Previous: &donav1.Plan{Strategy: odd, Algorithm: 99, Weights: map[string]uint32{"gone": 1}}}},
			{"fields of a later version", withUnknown(candidates(3, 7), unknown)},
		})
	case plugins.KindProbe:
		with := func(change func(*pluginv1.CheckRequest)) *pluginv1.CheckRequest {
			r := c.endpoint(time.Second)
			change(r)
			return r
		}
		return c.asked([]input{
			{"nothing but an instance", &pluginv1.CheckRequest{}},
			{"no timeout", with(func(r *pluginv1.CheckRequest) { r.Timeout = nil })},
			{"a negative timeout", with(func(r *pluginv1.CheckRequest) { r.Timeout = durationpb.New(-time.Second) })},
			{"a timeout that is no duration", with(func(r *pluginv1.CheckRequest) { r.Timeout = &durationpb.Duration{Seconds: math.MaxInt64, Nanos: -1} })},
			{"a level that does not exist", with(func(r *pluginv1.CheckRequest) { r.Level = 99 })},
			{"an address without a port", with(func(r *pluginv1.CheckRequest) { r.EndpointAddress = "127.0.0.1" })},
			{"text of every kind", with(func(r *pluginv1.CheckRequest) { r.EndpointAddress, r.Url = odd, odd })},
			{"an address of 900 KB", with(func(r *pluginv1.CheckRequest) { r.EndpointAddress = long })},
			{"an empty proxy", &pluginv1.CheckRequest{Proxy: &controlplanev1.Proxy{}, Level: 1, Timeout: durationpb.New(time.Second)}},
			{"a million statuses, 5 MB", with(func(r *pluginv1.CheckRequest) {
				r.ExpectStatus = make([]uint32, 1_000_000)
				for i := range r.ExpectStatus {
					r.ExpectStatus[i] = math.MaxUint32
				}
			})},
			{"fields of a later version", withUnknown(c.endpoint(time.Second), unknown)},
		})
	}
	with := func(change func(*pluginv1.EvaluateRequest)) *pluginv1.EvaluateRequest {
		r := c.query()
		change(r)
		return r
	}
	return c.asked([]input{
		{"nothing but an instance", &pluginv1.EvaluateRequest{}},
		{"no query", with(func(r *pluginv1.EvaluateRequest) { r.Query = nil })},
		{"an empty query", with(func(r *pluginv1.EvaluateRequest) { r.Query = &donav1.AnalysisQuery{} })},
		{"no windows", with(func(r *pluginv1.EvaluateRequest) { r.Canary, r.Stable = nil, nil })},
		{"more errors than requests", with(func(r *pluginv1.EvaluateRequest) { r.Canary = &pluginv1.Window{Requests: 1, Errors: math.MaxUint64} })},
		{"a histogram with bounds and no counts", with(func(r *pluginv1.EvaluateRequest) { r.Canary.Counts = nil })},
		{"a histogram with counts and no bounds", with(func(r *pluginv1.EvaluateRequest) { r.Canary.UpperUs = nil })},
		{"a histogram that runs backwards", with(func(r *pluginv1.EvaluateRequest) {
			r.Canary.UpperUs, r.Canary.Counts = []uint64{9, 1}, []uint64{math.MaxUint64, 0}
		})},
		{"bounds that are NaN and infinite", with(func(r *pluginv1.EvaluateRequest) {
			r.Query.MaxValue, r.Query.MinValue, r.Query.HasMinValue = math.NaN(), math.Inf(-1), true
		})},
		{"a state that is not its own", with(func(r *pluginv1.EvaluateRequest) { r.State = []byte(odd) })},
		{"text of every kind", with(func(r *pluginv1.EvaluateRequest) {
			r.Service, r.CanaryVariant, r.RolloutId, r.Query.Name, r.Query.Query = odd, odd, odd, odd, odd
		})},
		{"a query of 900 KB", with(func(r *pluginv1.EvaluateRequest) { r.Query.Query = long })},
		{"a state of 15 MB", with(func(r *pluginv1.EvaluateRequest) { r.State = make([]byte, 15_000_000) })},
		{"fields of a later version", withUnknown(c.query(), unknown)},
	})
}

func withUnknown(m proto.Message, raw []byte) proto.Message {
	m.ProtoReflect().SetUnknown(raw)
	return m
}

// asked gives the inputs their instance.
func (c *caller) asked(list []input) []input {
	for _, in := range list {
		m := in.req.ProtoReflect()
		m.Set(m.Descriptor().Fields().ByName("instance_id"), protoreflect.ValueOfString(instance))
	}
	return list
}

// send makes a call past the facade.
func (c *caller) send(ctx context.Context, req proto.Message) error {
	switch r := req.(type) {
	case *pluginv1.CompileRequest:
		_, err := pluginv1.NewStrategyClient(c.conn).Compile(ctx, r)
		return err
	case *pluginv1.CheckRequest:
		_, err := pluginv1.NewProbeClient(c.conn).Check(ctx, r)
		return err
	case *pluginv1.EvaluateRequest:
		_, err := pluginv1.NewAnalysisClient(c.conn).Evaluate(ctx, r)
		return err
	}
	return fmt.Errorf("no call takes %T", req)
}

// many makes n calls, at most as many at once as the plugin takes, and returns the
// first error.
func (c *caller) many(ctx context.Context, n, atOnce int) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var calls sync.WaitGroup
	turn := make(chan struct{}, atOnce)
	for i := range n {
		calls.Go(func() {
			select {
			case turn <- struct{}{}:
				defer func() { <-turn }()
			case <-ctx.Done():
				return
			}
			if err := c.call(ctx); err != nil && ctx.Err() == nil {
				cancel(fmt.Errorf("call %d of %d: %w", i+1, n, err))
			}
		})
	}
	calls.Wait()
	return context.Cause(ctx)
}
