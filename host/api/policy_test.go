package api_test

import (
	"strings"
	"testing"

	donav1 "github.com/dodona-project/dodona/proto/dona/v1"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"

	"github.com/dodona-project/dodona/host/limits"
)

// TestPartialPolicy: each part that a request leaves out stays, and a config has to
// hold for the plugin that will take it.
func TestPartialPolicy(t *testing.T) {
	e := newEdge(t)
	set := func(req *donav1.SetServicePolicyRequest) error {
		req.Service = "web"
		_, err := e.client.SetServicePolicy(ctx(t), req)
		return err
	}
	order := config(map[string]any{"order": "x"})
	full := &donav1.ServicePolicy{Residency: &donav1.ResidencyPolicy{AllowedRegions: []string{"eu"}, RuleId: "gdpr"},
		Strategy: "priority", StrategyConfig: order, Probe: "http", ProbeConfig: config(map[string]any{"path": "/"})}
	all := func(f func(*donav1.ServicePolicy)) *donav1.ServicePolicy {
		p := proto.CloneOf(full)
		f(p)
		return p
	}
	for _, tc := range []struct {
		name string
		req  *donav1.SetServicePolicyRequest
		want *donav1.ServicePolicy
	}{
		{"residency", &donav1.SetServicePolicyRequest{Residency: &donav1.ResidencyPolicy{AllowedRegions: []string{"us"}}},
			all(func(p *donav1.ServicePolicy) { p.Residency = &donav1.ResidencyPolicy{AllowedRegions: []string{"us"}} })},
		{"no residency", &donav1.SetServicePolicyRequest{ClearResidency: true}, all(func(p *donav1.ServicePolicy) { p.Residency = nil })},
		{"the same strategy keeps its config", &donav1.SetServicePolicyRequest{Strategy: "priority"}, full},
		{"a strategy drops the other's config", &donav1.SetServicePolicyRequest{Strategy: "round-robin"},
			all(func(p *donav1.ServicePolicy) { p.Strategy, p.StrategyConfig = "round-robin", nil })},
		{"default", &donav1.SetServicePolicyRequest{Strategy: "default"}, all(func(p *donav1.ServicePolicy) { p.Strategy, p.StrategyConfig = "", nil })},
		{"default with a config", &donav1.SetServicePolicyRequest{Strategy: "default", StrategyConfig: order},
			all(func(p *donav1.ServicePolicy) { p.Strategy = "" })},
		{"a strategy's config", &donav1.SetServicePolicyRequest{StrategyConfig: config(map[string]any{"order": "y"})},
			all(func(p *donav1.ServicePolicy) { p.StrategyConfig = config(map[string]any{"order": "y"}) })},
		{"the same probe keeps its config", &donav1.SetServicePolicyRequest{Probe: "http"}, full},
		{"a probe's config", &donav1.SetServicePolicyRequest{ProbeConfig: config(nil)}, all(func(p *donav1.ServicePolicy) { p.ProbeConfig = config(nil) })},
		{"no probe", &donav1.SetServicePolicyRequest{Probe: "none"}, all(func(p *donav1.ServicePolicy) { p.Probe, p.ProbeConfig = "", nil })},
	} {
		fatal(t, set(&donav1.SetServicePolicyRequest{Residency: full.Residency, Strategy: full.Strategy, StrategyConfig: full.StrategyConfig, Probe: full.Probe, ProbeConfig: full.ProbeConfig}))
		if got := e.status("web").Policy; !proto.Equal(got, full) {
			t.Fatalf("%s: it begins with %v", tc.name, got)
		}
		if err := set(tc.req); err != nil {
			t.Errorf("%s: %v", tc.name, err)
			continue
		}
		if got := e.status("web").Policy; !proto.Equal(got, tc.want) {
			t.Errorf("%s: the policy is %v, want %v", tc.name, got, tc.want)
		}
	}
	fatal(t, set(&donav1.SetServicePolicyRequest{Strategy: "round-robin", Probe: "none"}))
	before := e.written()
	for _, tc := range []struct {
		name, field string
		req         *donav1.SetServicePolicyRequest
	}{
		{"a strategy that needs a config", "strategy_config/order", &donav1.SetServicePolicyRequest{Strategy: "priority"}},
		{"a config that lacks what it needs", "strategy_config/order", &donav1.SetServicePolicyRequest{Strategy: "priority", StrategyConfig: config(map[string]any{"a": 1.0})}},
		{"a probe's config without a probe", "probe_config", &donav1.SetServicePolicyRequest{ProbeConfig: config(nil)}},
		{"none with a config", "probe_config", &donav1.SetServicePolicyRequest{Probe: "none", ProbeConfig: config(nil)}},
		{"residency and none", "clear_residency", &donav1.SetServicePolicyRequest{Residency: full.Residency, ClearResidency: true}},
		{"a residency of no regions", "residency.allowed_regions", &donav1.SetServicePolicyRequest{Residency: &donav1.ResidencyPolicy{RuleId: "x"}}},
		{"a region twice", "residency.allowed_regions[1]", &donav1.SetServicePolicyRequest{Residency: &donav1.ResidencyPolicy{AllowedRegions: []string{"eu", "eu"}}}},
		{"65 regions", "residency.allowed_regions", &donav1.SetServicePolicyRequest{Residency: &donav1.ResidencyPolicy{AllowedRegions: many(65)}}},
		{"a bad rule id", "residency.rule_id", &donav1.SetServicePolicyRequest{Residency: &donav1.ResidencyPolicy{AllowedRegions: []string{"eu"}, RuleId: "a b"}}},
		{"a large config", "strategy_config", &donav1.SetServicePolicyRequest{StrategyConfig: config(map[string]any{"a": strings.Repeat("c", limits.PluginConfigLen)})}},
		{"a large probe config", "probe_config", &donav1.SetServicePolicyRequest{Probe: "http", ProbeConfig: config(map[string]any{"a": strings.Repeat("c", limits.PluginConfigLen)})}},
	} {
		refused(t, tc.name, set(tc.req), codes.InvalidArgument, tc.field)
	}
	if e.written() != before {
		t.Error("a refused one stored something")
	}
}
