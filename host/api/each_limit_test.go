package api_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	donav1 "github.com/dodona-project/dodona/proto/dona/v1"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/dodona-project/dodona/host/limits"
)

// x is so many bytes.
func x(n int) string { return strings.Repeat("x", n) }

// sized is a configuration of so many bytes.
func sized(n int) *structpb.Struct {
	for length := n; length > 0; length-- {
		if c := config(map[string]any{"a": x(length)}); proto.Size(c) == n {
			return c
		}
	}
	panic(fmt.Sprintf("no configuration has %d bytes", n))
}

// TestEachLimit: every limit of a request that is a number, taken at n and refused
// at n+1 with the field by name.
func TestEachLimit(t *testing.T) {
	e := newEdge(t, withHeartbeat(time.Hour))
	e.variant("web", "v1")
	c := ctx(t)
	_, err := e.client.RegisterArtifact(c, artifact(nil))
	fatal(t, err)
	_, err = e.client.CreateRelease(c, &donav1.CreateReleaseRequest{Service: "web", ArtifactId: "web:1", Variant: "v1"})
	fatal(t, err)

	flag := func(change func(r *donav1.FlagRule, n int)) func(int) error {
		return func(n int) error {
			_, err := e.client.SetFlag(c, flagRule(func(r *donav1.FlagRule) { change(r, n) }))
			return err
		}
	}
	target := func(change func(r *donav1.TargetingRule, n int)) func(int) error {
		return func(n int) error {
			_, err := e.client.SetFlag(c, targeting(func(r *donav1.TargetingRule) { change(r, n) }))
			return err
		}
	}
	// Each rollout takes the place of the one before.
	rollout := func(change func(r *donav1.StartRolloutRequest, n int)) func(int) error {
		return func(n int) error {
			return e.start(start(func(r *donav1.StartRolloutRequest) { r.Supersede = true; change(r, n) }))
		}
	}
	ask := func(change func(q *donav1.AnalysisQuery, n int)) func(int) error {
		return func(n int) error {
			req := query(func(q *donav1.AnalysisQuery) { change(q, n) })
			req.Supersede = true
			return e.start(req)
		}
	}
	policy := func(change func(r *donav1.SetServicePolicyRequest, n int)) func(int) error {
		return func(n int) error {
			req := &donav1.SetServicePolicyRequest{Service: "web"}
			change(req, n)
			_, err := e.client.SetServicePolicy(c, req)
			return err
		}
	}
	build := func(change func(r *donav1.RegisterArtifactRequest, n int)) func(int) error {
		return func(n int) error {
			_, err := e.client.RegisterArtifact(c, artifact(func(r *donav1.RegisterArtifactRequest) { r.Version = "1.2"; change(r, n) }))
			return err
		}
	}
	release := func(change func(r *donav1.CreateReleaseRequest, n int)) func(int) error {
		return func(n int) error {
			req := &donav1.CreateReleaseRequest{Service: "web", ArtifactId: "web:1", Variant: "v1"}
			change(req, n)
			_, err := e.client.CreateRelease(c, req)
			return err
		}
	}
	// Each deployment waits for another region, and takes the place of the one before.
	deploy := func(change func(r *donav1.StartDeploymentRequest, n int)) func(int) error {
		return func(n int) error {
			req := &donav1.StartDeploymentRequest{ReleaseId: "web/1", Strategy: donav1.StartDeploymentRequest_STRATEGY_RECREATE, Regions: []string{"mars"}}
			change(req, n)
			_, _ = e.control("web", abort, "") // a rollout would be in the way
			_, err := e.client.StartDeployment(c, req)
			return err
		}
	}
	rule := func(change func(r *donav1.SetIngressRequest, n int)) func(int) error {
		return func(n int) error {
			_, err := e.client.SetIngress(c, route(func(r *donav1.SetIngressRequest) { change(r, n) }))
			return err
		}
	}
	shared := func(change func(r *donav1.SetSharedServiceRequest, n int)) func(int) error {
		return func(n int) error {
			_, err := e.client.SetSharedService(c, share(func(r *donav1.SetSharedServiceRequest) { r.Service = "pay"; change(r, n) }))
			return err
		}
	}
	lease := func(change func(b *donav1.EndpointHeartbeat, n int)) func(int) error {
		return func(n int) error {
			s, err := e.client.RegisterEndpoint(c)
			fatal(t, err)
			fatal(t, s.Send(endpoint(func(b *donav1.EndpointHeartbeat) { b.Service = "big"; change(b, n) })))
			_, err = s.CloseAndRecv()
			return err
		}
	}
	watch := func(change func(r *donav1.WatchConfigRequest, n int)) func(int) error {
		return func(n int) error {
			req := &donav1.WatchConfigRequest{Service: "web"}
			change(req, n)
			s, err := e.client.WatchConfig(c, req)
			fatal(t, err)
			_, err = s.Recv()
			return err
		}
	}
	verb := func(change func(r *donav1.ControlRolloutRequest, n int)) func(int) error {
		return func(n int) error {
			req := &donav1.ControlRolloutRequest{Service: "web", Action: pause}
			change(req, n)
			fatal(t, e.start(start(func(r *donav1.StartRolloutRequest) { r.Supersede = true })))
			_, err := e.client.ControlRollout(c, req)
			return err
		}
	}
	for _, tc := range []struct {
		name  string
		n     int // the largest that is taken; with less, n-1 is refused instead of n+1
		less  bool
		field string
		call  func(n int) error
	}{
		{"SetFlag: flag", limits.NameLen, false, "rule.flag", flag(func(r *donav1.FlagRule, n int) { r.Flag = x(n) })},
		{"SetFlag: service", limits.ServiceNameLen, false, "rule.service", flag(func(r *donav1.FlagRule, n int) { r.Service = x(n) })},
		{"SetFlag: variant", limits.NameLen, false, "rule.rollout_variant", flag(func(r *donav1.FlagRule, n int) { r.RolloutVariant = x(n) })},
		{"SetFlag: percent", 100, false, "rule.rollout_percent", flag(func(r *donav1.FlagRule, n int) { r.RolloutPercent = uint32(n) })},
		{"SetFlag: hash version", 1, false, "rule.hash_version", flag(func(r *donav1.FlagRule, n int) { r.HashVersion = uint32(n) })},
		{"SetFlag: rules", limits.TargetingRules, false, "rule.targeting", flag(func(r *donav1.FlagRule, n int) { r.Targeting = make([]*donav1.TargetingRule, n); fill(r.Targeting) })},
		{"SetFlag: attribute", limits.AttributeLen, false, "rule.targeting[0].attribute", target(func(r *donav1.TargetingRule, n int) { r.Attribute = x(n) })},
		{"SetFlag: values", limits.TargetingValues, false, "rule.targeting[0].values", target(func(r *donav1.TargetingRule, n int) { r.Values = many(n) })},
		{"SetFlag: value", limits.ValueLen, false, "rule.targeting[0].values[0]", target(func(r *donav1.TargetingRule, n int) { r.Values = []string{x(n)} })},
		{"SetFlag: pattern", limits.ValueLen, false, "rule.targeting[0].values[0]", target(func(r *donav1.TargetingRule, n int) {
			r.Operator, r.Values = donav1.TargetingRule_OPERATOR_MATCHES, []string{x(n)}
		})},
		{"SetFlag: steps of patterns", limits.PatternSteps, false, "rule.targeting[0].values[1]", target(func(r *donav1.TargetingRule, n int) {
			r.Operator, r.Values = donav1.TargetingRule_OPERATOR_MATCHES, []string{"(?:" + x(9) + "){1000}", fmt.Sprintf("%s{%d}", "x", n-9_000)}
		})},
		{"SetFlag: variant of a rule", limits.NameLen, false, "rule.targeting[0].variant", target(func(r *donav1.TargetingRule, n int) { r.Variant = x(n) })},

		{"StartRollout: canary", limits.NameLen, false, "canary_variant", rollout(func(r *donav1.StartRolloutRequest, n int) { r.CanaryVariant = x(n) })},
		{"StartRollout: steps", limits.RolloutSteps, false, "steps", rollout(func(r *donav1.StartRolloutRequest, n int) {
			r.Steps = nil
			for i := range n {
				r.Steps = append(r.Steps, uint32(100-n+1+i))
			}
		})},
		{"StartRollout: percent", 100, false, "steps[1]", rollout(func(r *donav1.StartRolloutRequest, n int) { r.Steps = []uint32{10, uint32(n)} })},
		{"StartRollout: percent, at least", 1, true, "steps[0]", rollout(func(r *donav1.StartRolloutRequest, n int) { r.Steps = []uint32{uint32(n), 100} })},
		{"StartRollout: seconds", limits.MaxStepSeconds, false, "step_seconds", rollout(func(r *donav1.StartRolloutRequest, n int) { r.StepSeconds = uint32(n) })},
		{"StartRollout: seconds, at least", limits.MinStepSeconds, true, "step_seconds", rollout(func(r *donav1.StartRolloutRequest, n int) { r.StepSeconds = uint32(n) })},
		{"StartRollout: errors", 100, false, "max_error_percent", rollout(func(r *donav1.StartRolloutRequest, n int) { r.MaxErrorPercent = uint32(n) })},
		{"StartRollout: requests", limits.MaxMinRequests, false, "min_requests", rollout(func(r *donav1.StartRolloutRequest, n int) { r.MinRequests = uint32(n) })},
		{"StartRollout: queries", limits.AnalysisQueries, false, "analysis", rollout(func(r *donav1.StartRolloutRequest, n int) {
			for i := range n {
				q := query(func(q *donav1.AnalysisQuery) { q.Name = fmt.Sprint("q", i) })
				r.Analysis = append(r.Analysis, q.Analysis...)
			}
		})},
		{"query: name", limits.NameLen, false, "analysis[0].name", ask(func(q *donav1.AnalysisQuery, n int) { q.Name = x(n) })},
		{"query: query", limits.QueryLen, false, "analysis[0].query", ask(func(q *donav1.AnalysisQuery, n int) { q.Query = x(n) })},
		{"query: URL", limits.URLLen, false, "analysis[0].prometheus_url", ask(func(q *donav1.AnalysisQuery, n int) { q.PrometheusUrl = "http://a/" + x(n-len("http://a/")) })},
		{"query: timeout", limits.QueryTimeoutMS, false, "analysis[0].timeout_ms", ask(func(q *donav1.AnalysisQuery, n int) { q.TimeoutMs = uint32(n) })},
		{"query: config", limits.PluginConfigLen, false, "analysis[0].config", ask(func(q *donav1.AnalysisQuery, n int) { q.Config = sized(n) })},

		{"SetServicePolicy: regions", limits.RegionsPerRule, false, "residency.allowed_regions", policy(func(r *donav1.SetServicePolicyRequest, n int) {
			r.Residency = &donav1.ResidencyPolicy{AllowedRegions: many(n)}
		})},
		{"SetServicePolicy: rule", limits.NameLen, false, "residency.rule_id", policy(func(r *donav1.SetServicePolicyRequest, n int) {
			r.Residency = &donav1.ResidencyPolicy{AllowedRegions: []string{"eu"}, RuleId: x(n)}
		})},
		{"SetServicePolicy: strategy_config", limits.PluginConfigLen, false, "strategy_config", policy(func(r *donav1.SetServicePolicyRequest, n int) { r.Strategy, r.StrategyConfig = "round-robin", sized(n) })},
		{"SetServicePolicy: probe_config", limits.PluginConfigLen, false, "probe_config", policy(func(r *donav1.SetServicePolicyRequest, n int) { r.Probe, r.ProbeConfig = "http", sized(n) })},

		{"RegisterArtifact: version", limits.NameLen, false, "version", build(func(r *donav1.RegisterArtifactRequest, n int) { r.Version = x(n) })},
		{"RegisterArtifact: uri", limits.URLLen, false, "uri", build(func(r *donav1.RegisterArtifactRequest, n int) { r.Uri = x(n) })},
		{"RegisterArtifact: labels", limits.Labels, false, "labels", build(func(r *donav1.RegisterArtifactRequest, n int) { r.Labels = labels(n) })},
		{"RegisterArtifact: label key", limits.LabelKeyLen, false, "labels", build(func(r *donav1.RegisterArtifactRequest, n int) { r.Labels = map[string]string{x(n): "v"} })},
		{"RegisterArtifact: label value", limits.LabelValueLen, false, "labels", build(func(r *donav1.RegisterArtifactRequest, n int) { r.Labels = map[string]string{"k": x(n)} })},
		{"CreateRelease: config key", limits.ReleaseConfigKeyLen, false, "config", release(func(r *donav1.CreateReleaseRequest, n int) { r.Config = map[string]string{x(n): "v"} })},
		{"CreateRelease: config", limits.ReleaseConfigLen, false, "config", release(func(r *donav1.CreateReleaseRequest, n int) { r.Config = map[string]string{"k": x(n - 1)} })},
		{"StartDeployment: environment", limits.NameLen, false, "environment", deploy(func(r *donav1.StartDeploymentRequest, n int) { r.Environment = x(n) })},
		{"StartDeployment: regions", limits.RegionsPerRule, false, "regions", deploy(func(r *donav1.StartDeploymentRequest, n int) { r.Regions = many(n) })},
		{"StartDeployment: timeout", limits.MaxReadySeconds, false, "ready_timeout_seconds", deploy(func(r *donav1.StartDeploymentRequest, n int) { r.ReadyTimeoutSeconds = uint32(n) })},

		{"SetIngress: host", limits.HostLen, false, "host", rule(func(r *donav1.SetIngressRequest, n int) { r.Host = strings.Repeat("a.", n)[:n-1] + "b" })},
		{"SetIngress: prefix", limits.PathPrefixLen, false, "path_prefix", rule(func(r *donav1.SetIngressRequest, n int) { r.PathPrefix = "/" + x(n-1) })},
		{"SetIngress: regions", limits.RegionsPerRule, false, "allowed_regions", rule(func(r *donav1.SetIngressRequest, n int) { r.AllowedRegions = many(n) })},
		{"SetSharedService: consumers", limits.ConsumersPerService, false, "consumers", shared(func(r *donav1.SetSharedServiceRequest, n int) { r.Consumers = many(n) })},
		{"SetSharedService: regions", limits.RegionsPerRule, false, "allowed_regions", shared(func(r *donav1.SetSharedServiceRequest, n int) { r.AllowedRegions = many(n) })},

		{"RegisterEndpoint: service", limits.ServiceNameLen, false, "service", lease(func(b *donav1.EndpointHeartbeat, n int) { b.Service = x(n) })},
		{"RegisterEndpoint: id", limits.NameLen, false, "endpoint_id", lease(func(b *donav1.EndpointHeartbeat, n int) { b.EndpointId = x(n) })},
		{"RegisterEndpoint: variant", limits.NameLen, false, "variant", lease(func(b *donav1.EndpointHeartbeat, n int) { b.Variant = x(n) })},
		{"RegisterEndpoint: region", limits.NameLen, false, "region", lease(func(b *donav1.EndpointHeartbeat, n int) { b.Region = x(n) })},
		{"RegisterEndpoint: zone", limits.NameLen, false, "zone", lease(func(b *donav1.EndpointHeartbeat, n int) { b.Zone = x(n) })},
		{"RegisterEndpoint: host", limits.HostLen, false, "address", lease(func(b *donav1.EndpointHeartbeat, n int) { b.Address = x(n) + ":1" })},
		{"RegisterEndpoint: port", 65535, false, "address", lease(func(b *donav1.EndpointHeartbeat, n int) { b.Address = fmt.Sprint("a:", n) })},
		{"RegisterEndpoint: port, at least", 1, true, "address", lease(func(b *donav1.EndpointHeartbeat, n int) { b.Address = fmt.Sprint("a:", n) })},
		{"RegisterEndpoint: labels", limits.Labels, false, "labels", lease(func(b *donav1.EndpointHeartbeat, n int) { b.Labels = labels(n) })},
		{"RegisterEndpoint: label key", limits.LabelKeyLen, false, "labels", lease(func(b *donav1.EndpointHeartbeat, n int) { b.Labels = map[string]string{x(n): "v"} })},
		{"RegisterEndpoint: label value", limits.LabelValueLen, false, "labels", lease(func(b *donav1.EndpointHeartbeat, n int) { b.Labels = map[string]string{"k": x(n)} })},
		{"RegisterEndpoint: utilization", 1, false, "utilization", lease(func(b *donav1.EndpointHeartbeat, n int) { b.Utilization = float64(n) })},

		{"WatchConfig: client", limits.NameLen, false, "client_id", watch(func(r *donav1.WatchConfigRequest, n int) { r.ClientId = x(n) })},
		{"WatchConfig: caller", limits.ServiceNameLen, false, "caller_service", watch(func(r *donav1.WatchConfigRequest, n int) { r.CallerService = x(n) })},
		{"WatchConfig: region", limits.NameLen, false, "caller_region", watch(func(r *donav1.WatchConfigRequest, n int) { r.CallerRegion = x(n) })},
		{"WatchConfig: checksum", 32, false, "last_checksum", watch(func(r *donav1.WatchConfigRequest, n int) { r.LastVersion, r.LastChecksum = 1, make([]byte, n) })},
		{"WatchConfig: checksum, at least", 32, true, "last_checksum", watch(func(r *donav1.WatchConfigRequest, n int) { r.LastVersion, r.LastChecksum = 1, make([]byte, n) })},
		{"ReportStats: reporter", limits.NameLen, false, "reporter_id", func(n int) error {
			_, err := e.client.ReportStats(c, &donav1.StatsBatch{ReporterId: x(n), Sequence: 1})
			return err
		}},
		{"ReportStats: items", limits.StatsItems, false, "calls", func(n int) error {
			_, err := e.client.ReportStats(c, &donav1.StatsBatch{ReporterId: "r", Sequence: 1, Calls: make4097()[:n-3], Exposures: []*donav1.Exposure{{}}, Audits: []*donav1.AuditEvent{{}}, Applied: []*donav1.AppliedConfig{{}}})
			return err
		}},
		{"ControlRollout: reason", limits.ReasonLen, false, "reason", verb(func(r *donav1.ControlRolloutRequest, n int) { r.Reason = x(n) })},
	} {
		if err := tc.call(tc.n); err != nil {
			t.Errorf("%s of %d: %v", tc.name, tc.n, err)
		}
		beyond := tc.n + 1
		if tc.less {
			beyond = tc.n - 1
		}
		before := e.kinds("web")
		refused(t, fmt.Sprintf("%s of %d", tc.name, beyond), tc.call(beyond), codes.InvalidArgument, "")
		if err := tc.call(beyond); err == nil || !strings.Contains(err.Error(), tc.field) {
			t.Errorf("%s of %d: %v does not name %s", tc.name, beyond, err, tc.field)
		}
		if e.kinds("web") != before {
			t.Errorf("%s of %d: refused, and the chain goes on", tc.name, beyond)
		}
	}
}

// TestItemLimits: what one item of a report may hold: it counts at n, and is
// dropped at n+1, alone.
func TestItemLimits(t *testing.T) {
	e := newEdge(t)
	e.register(endpoint(nil))
	c := ctx(t)
	_, err := e.client.SetFlag(c, flagRule(func(*donav1.FlagRule) {}))
	fatal(t, err)
	call := func(change func(o *donav1.CallOutcome, n int)) func(int) *donav1.StatsBatch {
		return func(n int) *donav1.StatsBatch {
			o := &donav1.CallOutcome{Service: "web", Variant: "v1", EndpointId: "a", UnixMs: time.Now().UnixMilli()}
			change(o, n)
			return &donav1.StatsBatch{Calls: []*donav1.CallOutcome{o}}
		}
	}
	exposure := func(change func(o *donav1.Exposure, n int)) func(int) *donav1.StatsBatch {
		return func(n int) *donav1.StatsBatch {
			o := &donav1.Exposure{Service: "web", Flag: "f", Variant: "v1", Reason: donav1.Reason_REASON_SPLIT, UnixMs: time.Now().UnixMilli()}
			change(o, n)
			return &donav1.StatsBatch{Exposures: []*donav1.Exposure{o}}
		}
	}
	decision := func(change func(o *donav1.AuditEvent, n int)) func(int) *donav1.StatsBatch {
		return func(n int) *donav1.StatsBatch {
			o := &donav1.AuditEvent{Service: "web", Decision: donav1.AuditEvent_DECISION_DENY, UnixMs: time.Now().UnixMilli()}
			change(o, n)
			return &donav1.StatsBatch{Audits: []*donav1.AuditEvent{o}}
		}
	}
	sequence := uint64(0)
	for _, tc := range []struct {
		name  string
		n     int
		batch func(n int) *donav1.StatsBatch
	}{
		{"call: latency", limits.LatencyUs, call(func(o *donav1.CallOutcome, n int) { o.LatencyUs = uint64(n) })},
		{"call: count", limits.CountPerItem, call(func(o *donav1.CallOutcome, n int) { o.Count = uint32(n) })},
		{"call: code", limits.CodeLen, call(func(o *donav1.CallOutcome, n int) { o.Code = x(n) })},
		{"call: endpoint", limits.NameLen, call(func(o *donav1.CallOutcome, n int) { o.EndpointId = x(n) })},
		{"call: caller", limits.ServiceNameLen, call(func(o *donav1.CallOutcome, n int) { o.CallerService = x(n) })},
		{"exposure: flag", limits.NameLen, exposure(func(o *donav1.Exposure, n int) { o.Flag = x(n) })},
		{"exposure: variant", limits.NameLen, exposure(func(o *donav1.Exposure, n int) { o.Variant = x(n) })},
		{"exposure: reason", int(donav1.Reason_REASON_ERROR), exposure(func(o *donav1.Exposure, n int) { o.Reason = donav1.Reason(n) })},
		{"exposure: unit", limits.UnitDigestLen, exposure(func(o *donav1.Exposure, n int) { o.UnitDigest = make([]byte, n) })},
		{"decision: decision", int(donav1.AuditEvent_DECISION_DENY), decision(func(o *donav1.AuditEvent, n int) { o.Decision = donav1.AuditEvent_Decision(n) })},
		{"decision: regions", limits.RegionsPerRule, decision(func(o *donav1.AuditEvent, n int) { o.AllowedRegions = many(n) })},
		{"decision: endpoint", limits.NameLen, decision(func(o *donav1.AuditEvent, n int) { o.EndpointId = x(n) })},
		{"decision: region", limits.NameLen, decision(func(o *donav1.AuditEvent, n int) { o.EndpointRegion = x(n) })},
		{"decision: rule", limits.NameLen, decision(func(o *donav1.AuditEvent, n int) { o.RuleId = x(n) })},
		{"decision: request", limits.RequestIDLen, decision(func(o *donav1.AuditEvent, n int) { o.RequestId = x(n) })},
		{"decision: count", limits.CountPerItem, decision(func(o *donav1.AuditEvent, n int) { o.Count = uint32(n) })},
		{"applied: reason", limits.RejectedLen, func(n int) *donav1.StatsBatch {
			return &donav1.StatsBatch{Applied: []*donav1.AppliedConfig{{Service: "web", Version: 1, RejectedReason: x(n)}}}
		}},
	} {
		for beyond := range 2 {
			sequence++
			b := tc.batch(tc.n + beyond)
			b.ReporterId, b.Sequence = "r", sequence
			b.Audits = append(b.Audits, &donav1.AuditEvent{Service: "web", Decision: donav1.AuditEvent_DECISION_ALLOW, ConfigVersion: sequence, UnixMs: time.Now().UnixMilli()})
			ack, err := e.client.ReportStats(c, b)
			if err != nil || ack.Dropped != uint32(beyond) {
				t.Errorf("%s of %d: %v, %v, want %d dropped", tc.name, tc.n+beyond, ack, err, beyond)
			}
		}
	}
	good := 0
	for _, one := range e.chain("web") {
		if one.Kind == "call.decision" && one.Detail["decision"] == "allow" {
			good++
		}
	}
	if uint64(good) != sequence {
		t.Errorf("of %d good items beside them %d are in the chain", sequence, good)
	}
	e.checkDetails()
}
