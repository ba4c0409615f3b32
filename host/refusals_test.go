package host_test

import (
	"context"
	"math"
	"strings"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/structpb"

	donav1 "github.com/dodona-project/dodona/proto/dona/v1"
)

// TestPluginRefusals: what the plugins themselves refuse of a policy and of a
// rollout's queries is the request's fault, by its field, and not the host's.
func TestPluginRefusals(t *testing.T) {
	t.Parallel()
	r := start(t, nil)
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	conn, err := grpc.NewClient(r.grpc, grpc.WithTransportCredentials(insecure.NewCredentials()))
	check(t, err)
	defer func() { _ = conn.Close() }()
	api := donav1.NewControlPlaneClient(conn)

	long := strings.Repeat("x", 128)
	field := func(name string, v *structpb.Value) *structpb.Struct {
		return &structpb.Struct{Fields: map[string]*structpb.Value{name: v}}
	}
	policy := func(req *donav1.SetServicePolicyRequest) func() error {
		return func() error {
			req.Service = "web"
			_, err := api.SetServicePolicy(ctx, req)
			return err
		}
	}
	query := func(q *donav1.AnalysisQuery) func() error {
		return func() error {
			q.Name = "q"
			_, err := api.StartRollout(ctx, &donav1.StartRolloutRequest{Service: "web", CanaryVariant: "v2", StableVariant: "v1",
				Steps: []uint32{100}, StepSeconds: 1, Analysis: []*donav1.AnalysisQuery{q}})
			return err
		}
	}
	const url = "http://127.0.0.1:9090"
	for _, tc := range []struct {
		name, field string
		call        func() error
	}{
		{"an unknown strategy", "strategy", policy(&donav1.SetServicePolicyRequest{Strategy: long})},
		{"a strategy's unknown key", "strategy_config", policy(&donav1.SetServicePolicyRequest{Strategy: "least-connections", StrategyConfig: field("nope", structpb.NewBoolValue(true))})},
		{"a strategy's NaN", "strategy_config", policy(&donav1.SetServicePolicyRequest{Strategy: "least-connections", StrategyConfig: field("choices", structpb.NewNumberValue(math.NaN()))})},
		{"a strategy's value of no kind", "strategy_config", policy(&donav1.SetServicePolicyRequest{Strategy: "least-connections", StrategyConfig: field("choices", &structpb.Value{})})},
		{"an unknown probe", "probe", policy(&donav1.SetServicePolicyRequest{Probe: long})},
		{"a probe's infinity", "probe_config", policy(&donav1.SetServicePolicyRequest{Probe: "http", ProbeConfig: field("path", structpb.NewNumberValue(math.Inf(1)))})},
		{"an unknown provider", "analysis[0].provider", query(&donav1.AnalysisQuery{Provider: long})},
		{"a query's unknown key", "analysis[0].config", query(&donav1.AnalysisQuery{PrometheusUrl: url, Query: "up", Config: field("nope", structpb.NewBoolValue(true))})},
		{"a query's NaN", "analysis[0].config", query(&donav1.AnalysisQuery{PrometheusUrl: url, Query: "up", Config: field("min_denominator", structpb.NewNumberValue(math.NaN()))})},
		{"a query without a bound", "analysis[0].no_max_value", query(&donav1.AnalysisQuery{PrometheusUrl: url, Query: "up", NoMaxValue: true})},
	} {
		s := status.Convert(tc.call())
		if s.Code() != codes.InvalidArgument || !strings.HasPrefix(s.Message(), tc.field) {
			t.Errorf("%s: %v, want InvalidArgument of %s", tc.name, s, tc.field)
		}
		if len(s.Message()) > 1024 || strings.Contains(s.Message(), long[:65]) {
			t.Errorf("%s: the answer repeats too much: %q", tc.name, s.Message())
		}
	}
	if list, err := api.ListServices(ctx, &donav1.ListServicesRequest{}); err != nil || len(list.Services) != 0 {
		t.Errorf("what is refused made the services %v (%v)", list.GetServices(), err)
	}
}
