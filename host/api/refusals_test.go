package api_test

import (
	"strings"
	"testing"

	donav1 "github.com/dodona-project/dodona/proto/dona/v1"
	statev1 "github.com/dodona-project/dodona/proto/state/v1"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/dodona-project/dodona/host/limits"
	"github.com/dodona-project/dodona/host/store"
)

// TestOrderOfRefusals: a request with several faults gets the answer of the one
// that comes first: the request alone, what is not there, the state, a limit, what
// is away.
func TestOrderOfRefusals(t *testing.T) {
	e := newEdge(t)
	c := ctx(t)
	e.register(endpoint(nil))
	_, err := e.client.SetFlag(c, flagRule(func(*donav1.FlagRule) {}))
	fatal(t, err)
	a, err := e.client.RegisterArtifact(c, artifact(nil))
	fatal(t, err)
	r, err := e.client.CreateRelease(c, &donav1.CreateReleaseRequest{Service: "web", ArtifactId: a.Id, Variant: "v2"})
	fatal(t, err)
	// No service, flag, artifact or release more.
	fatal(t, e.store.Update(c, store.Hard, func(tx store.Tx) error {
		var head statev1.ServiceHead
		if _, err := store.Load(tx, "svc/web/head", &head); err != nil {
			return err
		}
		head.Flags = limits.FlagsPerService
		if err := store.Save(tx, "svc/web/head", &head); err != nil {
			return err
		}
		if err := store.Save(tx, "svc/web/delivery", &statev1.Delivery{Artifacts: limits.ArtifactsPerService, Releases: limits.ReleasesPerService}); err != nil {
			return err
		}
		return store.Save(tx, "services", &statev1.ServiceList{Count: limits.Services})
	}))
	const (
		invalid, missing, no, full, away = codes.InvalidArgument, codes.NotFound, codes.FailedPrecondition, codes.ResourceExhausted, codes.Unavailable
	)
	type client = donav1.ControlPlaneClient
	elsewhere := []*donav1.AnalysisQuery{{Name: "q", Provider: "away"}}
	nope := []*donav1.AnalysisQuery{{Name: "q", Provider: "nope"}}
	canary := func(q []*donav1.AnalysisQuery, variant string) *donav1.StartRolloutRequest {
		return &donav1.StartRolloutRequest{StableVariant: "v1", CanaryVariant: variant, Steps: []uint32{100}, StepSeconds: 1, Analysis: q}
	}
	deploy := func(release string, rollout *donav1.StartRolloutRequest) *donav1.StartDeploymentRequest {
		return &donav1.StartDeploymentRequest{ReleaseId: release, Strategy: donav1.StartDeploymentRequest_STRATEGY_CANARY, Canary: rollout}
	}
	policy := func(service string, change func(*donav1.SetServicePolicyRequest)) *donav1.SetServicePolicyRequest {
		req := &donav1.SetServicePolicyRequest{Service: service}
		change(req)
		return req
	}
	flag := func(change func(*donav1.SetFlagRequest)) *donav1.SetFlagRequest {
		req := flagRule(func(r *donav1.FlagRule) { r.Flag = "g" })
		change(req)
		return req
	}
	before := e.written()
	for _, r := range []row{
		unary("SetFlag: percent before version and limit", client.SetFlag, flag(func(r *donav1.SetFlagRequest) { r.Rule.RolloutPercent, r.ExpectedVersion = 101, 7 }), invalid, "rule.rollout_percent"),
		unary("SetFlag: not there before version", client.SetFlag, flag(func(r *donav1.SetFlagRequest) { r.Delete, r.ExpectedVersion = true, 7 }), missing, "g"),
		unary("SetFlag: version before limit", client.SetFlag, flag(func(r *donav1.SetFlagRequest) { r.ExpectedVersion = 7 }), no, "expected_version"),
		unary("SetFlag: limit", client.SetFlag, flag(func(*donav1.SetFlagRequest) {}), full, "web"),
		unary("SetFlag: limit of services", client.SetFlag, flag(func(r *donav1.SetFlagRequest) { r.Rule.Service = "new" }), full, ""),
		unary("SetServicePolicy: strategy before probe that is away", client.SetServicePolicy, policy("web", func(r *donav1.SetServicePolicyRequest) { r.Probe, r.Strategy = "away", "nope" }), invalid, "strategy"),
		unary("SetServicePolicy: probe before strategy that is away", client.SetServicePolicy, policy("web", func(r *donav1.SetServicePolicyRequest) { r.Probe, r.Strategy = "nope", "away" }), invalid, "probe"),
		unary("SetServicePolicy: config before plugin", client.SetServicePolicy, policy("web", func(r *donav1.SetServicePolicyRequest) { r.Strategy, r.ProbeConfig = "away", config(nil) }), invalid, "probe_config"),
		unary("SetServicePolicy: limit before what is away", client.SetServicePolicy, policy("new", func(r *donav1.SetServicePolicyRequest) { r.Strategy = "away" }), full, ""),
		unary("SetServicePolicy: a strategy that is away", client.SetServicePolicy, policy("web", func(r *donav1.SetServicePolicyRequest) { r.Strategy = "away" }), away, ""),
		unary("SetServicePolicy: a probe that is away", client.SetServicePolicy, policy("web", func(r *donav1.SetServicePolicyRequest) { r.Probe = "away" }), away, ""),
		unary("SetSharedService: consumers before limit", client.SetSharedService, share(func(r *donav1.SetSharedServiceRequest) { r.Service, r.Consumers = "new", nil }), invalid, "consumers"),
		unary("SetSharedService: not there before limit", client.SetSharedService, share(func(r *donav1.SetSharedServiceRequest) { r.Service, r.Delete = "new", true }), missing, "new"),
		unary("SetSharedService: limit", client.SetSharedService, share(func(r *donav1.SetSharedServiceRequest) { r.Service = "new" }), full, ""),
		unary("SetIngress: host before service", client.SetIngress, route(func(r *donav1.SetIngressRequest) { r.Service, r.Host = "new", "" }), invalid, "host"),
		unary("StartRollout: provider before endpoint", client.StartRollout, start(func(r *donav1.StartRolloutRequest) { r.StableVariant, r.Analysis = "v9", nope }), invalid, "analysis[0].provider"),
		unary("StartRollout: endpoint before what is away", client.StartRollout, start(func(r *donav1.StartRolloutRequest) { r.StableVariant, r.Analysis = "v9", elsewhere }), no, "stable_variant"),
		unary("StartRollout: what is away", client.StartRollout, start(func(r *donav1.StartRolloutRequest) { r.Analysis = elsewhere }), away, "analysis[0].provider"),
		unary("ControlRollout: action before service", client.ControlRollout, &donav1.ControlRolloutRequest{Service: "new"}, invalid, "action"),
		unary("ControlRollout: variant before service", client.ControlRollout, &donav1.ControlRolloutRequest{Service: "new", Action: lift}, invalid, "variant"),
		unary("ControlRollout: service before state", client.ControlRollout, &donav1.ControlRolloutRequest{Service: "new", Action: lift, Variant: "v1"}, missing, "new"),
		unary("RegisterArtifact: digest before limit", client.RegisterArtifact, artifact(func(r *donav1.RegisterArtifactRequest) { r.Version, r.Digest = "2", "x" }), invalid, "digest"),
		unary("RegisterArtifact: other content before limit", client.RegisterArtifact, artifact(func(r *donav1.RegisterArtifactRequest) { r.Digest = sha[:70] + "0" }), codes.AlreadyExists, "digest"),
		unary("RegisterArtifact: limit", client.RegisterArtifact, artifact(func(r *donav1.RegisterArtifactRequest) { r.Version = "2" }), full, "web"),
		unary("RegisterArtifact: limit of services", client.RegisterArtifact, artifact(func(r *donav1.RegisterArtifactRequest) { r.Service = "new" }), full, ""),
		unary("CreateRelease: variant before artifact", client.CreateRelease, &donav1.CreateReleaseRequest{Service: "web", ArtifactId: "web:9"}, invalid, "variant"),
		unary("CreateRelease: artifact before limit", client.CreateRelease, &donav1.CreateReleaseRequest{Service: "web", ArtifactId: "web:9", Variant: "v1"}, missing, "artifact_id"),
		unary("CreateRelease: limit", client.CreateRelease, &donav1.CreateReleaseRequest{Service: "web", ArtifactId: "web:1", Variant: "v1"}, full, "web"),
		unary("StartDeployment: variant before release", client.StartDeployment, deploy("web/9", canary(nil, "a b")), invalid, "canary.canary_variant"),
		unary("StartDeployment: variants before release", client.StartDeployment, deploy("web/9", canary(nil, "v1")), invalid, "canary.canary_variant"),
		unary("StartDeployment: provider before release", client.StartDeployment, deploy("web/9", canary(nope, "")), invalid, "canary.analysis[0].provider"),
		unary("StartDeployment: provider before state", client.StartDeployment, deploy(r.Id, canary(nope, "v7")), invalid, "canary.analysis[0].provider"),
		unary("StartDeployment: release before what is away", client.StartDeployment, deploy("web/9", canary(elsewhere, "")), missing, "release_id"),
		unary("StartDeployment: state before what is away", client.StartDeployment, deploy(r.Id, canary(elsewhere, "v7")), no, "canary.canary_variant"),
		unary("StartDeployment: what is away", client.StartDeployment, deploy(r.Id, canary(elsewhere, "")), away, "canary.analysis[0].provider"),
		unary("ReportStats: too many before reporter", client.ReportStats, &donav1.StatsBatch{Sequence: 1, Calls: make4097()}, invalid, "calls"),
		register("limit of services", endpoint(func(b *donav1.EndpointHeartbeat) { b.Service = "new" }), full, ""),
		register("load before limit", endpoint(func(b *donav1.EndpointHeartbeat) { b.Service, b.Utilization = "new", 2 }), invalid, "utilization"),
	} {
		refused(t, r.name, r.call(c, e), r.code, r.field)
		if now := e.written(); now != before {
			t.Errorf("%s: refused, and something was stored", r.name)
			before = now
		}
	}
}

// TestServicesLimit: the last service that is allowed, made by each call that makes
// one, and one more.
func TestServicesLimit(t *testing.T) {
	for name, create := range map[string]func(*edge, string) error{
		"SetFlag": func(e *edge, s string) error {
			_, err := e.client.SetFlag(ctx(e.t), flagRule(func(r *donav1.FlagRule) { r.Service = s }))
			return err
		},
		"SetServicePolicy": func(e *edge, s string) error {
			_, err := e.client.SetServicePolicy(ctx(e.t), &donav1.SetServicePolicyRequest{Service: s, Strategy: "round-robin"})
			return err
		},
		"SetSharedService": func(e *edge, s string) error {
			_, err := e.client.SetSharedService(ctx(e.t), share(func(r *donav1.SetSharedServiceRequest) { r.Service = s }))
			return err
		},
		"RegisterArtifact": func(e *edge, s string) error {
			_, err := e.client.RegisterArtifact(ctx(e.t), artifact(func(r *donav1.RegisterArtifactRequest) { r.Service = s }))
			return err
		},
		"RegisterEndpoint": func(e *edge, s string) error {
			stream, err := e.client.RegisterEndpoint(ctx(e.t))
			fatal(e.t, err)
			fatal(e.t, stream.Send(endpoint(func(b *donav1.EndpointHeartbeat) { b.Service = s })))
			_, err = stream.CloseAndRecv()
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			e := newEdge(t)
			fatal(t, e.store.Update(ctx(t), store.Hard, func(tx store.Tx) error {
				return store.Save(tx, "services", &statev1.ServiceList{Count: limits.Services - 1})
			}))
			fatal(t, create(e, "last"))
			before := e.written()
			refused(t, "one more", create(e, "more"), codes.ResourceExhausted, "")
			if e.written() != before {
				t.Error("one more: refused, and something was stored")
			}
			fatal(t, create(e, "last")) // is there already
		})
	}
}

// TestEchoes: what is refused for its state names things of the largest length, and
// no answer repeats more than 64 bytes of them.
func TestEchoes(t *testing.T) {
	e := newEdge(t)
	c := ctx(t)
	service := strings.Repeat("s", limits.ServiceNameLen)
	stable, canary, third := strings.Repeat("x", limits.NameLen), strings.Repeat("y", limits.NameLen), strings.Repeat("z", limits.NameLen)
	h := e.register(endpoint(func(b *donav1.EndpointHeartbeat) { b.Service, b.Variant = service, stable }))
	fatal(t, h.stream.Send(&donav1.EndpointHeartbeat{Variant: canary}))
	echoes := func(what string, err error, code codes.Code) {
		t.Helper()
		refused(t, what, err, code, "")
		m := status.Convert(err).Message()
		if n := strings.Count(m, "x") + strings.Count(m, "y") + strings.Count(m, "z"); n > 64+8 { // the words have a few, too
			t.Errorf("%s: the answer repeats about %d bytes: %s", what, n, m)
		}
	}
	echoes("a fixed field", h.ended(), codes.InvalidArgument)
	e.register(endpoint(func(b *donav1.EndpointHeartbeat) { b.Service, b.Variant, b.EndpointId = service, stable, stable }))
	rule := &donav1.FlagRule{Service: service, Flag: stable}
	_, err := e.client.SetFlag(c, &donav1.SetFlagRequest{Rule: rule, Delete: true})
	echoes("no such flag", err, codes.NotFound)
	_, err = e.client.SetFlag(c, &donav1.SetFlagRequest{Rule: rule, ExpectedVersion: 7})
	echoes("another version", err, codes.FailedPrecondition)
	rollout := func(change func(*donav1.StartRolloutRequest)) error {
		return e.start(start(func(r *donav1.StartRolloutRequest) {
			r.Service, r.StableVariant, r.CanaryVariant = service, stable, canary
			change(r)
		}))
	}
	echoes("one variant", rollout(func(r *donav1.StartRolloutRequest) { r.CanaryVariant = stable }), codes.InvalidArgument)
	echoes("no endpoint", rollout(func(r *donav1.StartRolloutRequest) { r.StableVariant = third }), codes.FailedPrecondition)
	fatal(t, rollout(func(*donav1.StartRolloutRequest) {}))
	echoes("a live rollout", rollout(func(r *donav1.StartRolloutRequest) { r.StepSeconds++ }), codes.FailedPrecondition)
	e.register(endpoint(func(b *donav1.EndpointHeartbeat) { b.Service, b.Variant, b.EndpointId = service, third, third }))
	echoes("another stable", rollout(func(r *donav1.StartRolloutRequest) { r.StableVariant, r.Supersede = third, true }), codes.FailedPrecondition)
	for _, action := range []donav1.ControlRolloutRequest_Action{step, all} {
		_, err = e.control(service, action, "")
		echoes(action.String(), err, codes.FailedPrecondition)
	}
	_, err = e.client.ControlRollout(c, &donav1.ControlRolloutRequest{Service: service, Action: lift, Variant: stable})
	echoes("not quarantined", err, codes.FailedPrecondition)
	a, err := e.client.RegisterArtifact(c, artifact(func(r *donav1.RegisterArtifactRequest) { r.Service, r.Version = service, stable }))
	fatal(t, err)
	_, err = e.client.RegisterArtifact(c, artifact(func(r *donav1.RegisterArtifactRequest) {
		r.Service, r.Version, r.Digest = service, stable, sha[:70]+"0"
	}))
	echoes("another digest", err, codes.AlreadyExists)
	_, err = e.client.CreateRelease(c, &donav1.CreateReleaseRequest{Service: "web", ArtifactId: a.Id, Variant: stable})
	echoes("another service", err, codes.InvalidArgument)
	r, err := e.client.CreateRelease(c, &donav1.CreateReleaseRequest{Service: service, ArtifactId: a.Id, Variant: canary})
	fatal(t, err)
	deploy := func(change func(*donav1.StartDeploymentRequest)) error {
		req := &donav1.StartDeploymentRequest{ReleaseId: r.Id, Strategy: donav1.StartDeploymentRequest_STRATEGY_CANARY,
			Canary: &donav1.StartRolloutRequest{StableVariant: stable, Steps: []uint32{100}, StepSeconds: 1}}
		change(req)
		_, err := e.client.StartDeployment(c, req)
		return err
	}
	echoes("another canary", deploy(func(d *donav1.StartDeploymentRequest) { d.Canary.CanaryVariant = third }), codes.FailedPrecondition)
	echoes("the stable is the release's", deploy(func(d *donav1.StartDeploymentRequest) { d.Canary.StableVariant = canary }), codes.FailedPrecondition)
	echoes("a canary beside a rollout", deploy(func(*donav1.StartDeploymentRequest) {}), codes.FailedPrecondition)
	echoes("beside a rollout", deploy(func(d *donav1.StartDeploymentRequest) {
		d.Canary, d.Strategy = nil, donav1.StartDeploymentRequest_STRATEGY_RECREATE
	}), codes.FailedPrecondition)
}
