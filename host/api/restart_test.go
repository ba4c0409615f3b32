package api_test

import (
	"testing"
	"time"

	donav1 "github.com/dodona-project/dodona/proto/dona/v1"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"

	"github.com/dodona-project/dodona/host/store/embedded"
)

// TestRestart: what was answered survives the host, and the same requests again
// change nothing.
func TestRestart(t *testing.T) {
	st := embedded.OpenMemory(embedded.Options{})
	defer func() { _ = st.Close() }()
	e := newEdge(t, onStore(st))
	e.variant("web", "v1")
	e.variant("web", "v2")
	began := time.Now().UnixMilli()
	batch := &donav1.StatsBatch{ReporterId: "r", Sequence: 5, Calls: []*donav1.CallOutcome{{Service: "web", Variant: "v1", UnixMs: began}, {}}}
	deployment := &donav1.StartDeploymentRequest{ReleaseId: "shop/1", Strategy: donav1.StartDeploymentRequest_STRATEGY_BLUE_GREEN, Regions: []string{"mars"}}
	requests := []func(*edge) error{
		func(e *edge) error {
			_, err := e.client.SetFlag(ctx(t), targeting(func(*donav1.TargetingRule) {}))
			return err
		},
		func(e *edge) error {
			_, err := e.client.SetServicePolicy(ctx(t), &donav1.SetServicePolicyRequest{Service: "web", Strategy: "priority", StrategyConfig: config(map[string]any{"order": "x"}),
				Residency: &donav1.ResidencyPolicy{AllowedRegions: []string{"eu"}, RuleId: "gdpr"}, Probe: "http"})
			return err
		},
		func(e *edge) error { _, err := e.client.SetIngress(ctx(t), route(nil)); return err },
		func(e *edge) error { _, err := e.client.SetSharedService(ctx(t), share(nil)); return err },
		func(e *edge) error {
			_, err := e.client.RegisterArtifact(ctx(t), artifact(func(r *donav1.RegisterArtifactRequest) { r.Service = "shop" }))
			return err
		},
		func(e *edge) error {
			return e.start(start(func(r *donav1.StartRolloutRequest) { r.StepSeconds = 3600 }))
		},
	}
	for _, ask := range requests {
		fatal(t, ask(e))
	}
	_, err := e.client.CreateRelease(ctx(t), &donav1.CreateReleaseRequest{Service: "shop", ArtifactId: "shop:1", Variant: "v1", Config: map[string]string{"a": "b"}})
	fatal(t, err)
	d, err := e.client.StartDeployment(ctx(t), deployment)
	fatal(t, err)
	e.until("web", moving)
	_, err = e.control("web", pause, "for the night")
	fatal(t, err)
	ack, err := e.client.ReportStats(ctx(t), batch)
	if err != nil || ack.Dropped != 1 {
		t.Fatal(ack, err)
	}
	before, chains := e.status("web"), [2]string{e.kinds("web"), e.kinds("shop")}
	e.leave()

	e = newEdge(t, onStore(st))
	after := e.status("web")
	for _, s := range []*donav1.StatusReply{before, after} {
		s.Watchers, s.Stats = nil, nil
		for _, a := range s.Rollout.Analysis {
			a.CheckedUnix = 0
		}
	}
	if !proto.Equal(before, after) {
		t.Errorf("before\n%v\nafter\n%v", before, after)
	}
	if s := e.status("shop"); len(s.Deployments) != 1 || s.Deployments[0].Id != d.Id || s.Deployments[0].State != donav1.Deployment_STATE_WAITING {
		t.Errorf("the deployments are %v", s.Deployments)
	}
	revision := e.kinds("web") + e.kinds("shop")
	for _, ask := range requests {
		fatal(t, ask(e))
	}
	if again, err := e.client.StartDeployment(ctx(t), deployment); err != nil || again.Id != d.Id {
		t.Errorf("the same deployment again: %v, %v", again, err)
	}
	if ack, err = e.client.ReportStats(ctx(t), batch); err != nil || ack.Dropped != 1 || ack.AcceptedSequence != 5 {
		t.Errorf("the same report again: %v, %v", ack, err)
	}
	batch.Calls = nil
	_, err = e.client.ReportStats(ctx(t), batch)
	refused(t, "another report of this number", err, codes.AlreadyExists, "")
	if e.kinds("web")+e.kinds("shop") != revision || revision != chains[0]+chains[1] {
		t.Errorf("the chains go on with what was there: %s", e.kinds("web"))
	}
	_, err = e.control("web", resume, "")
	fatal(t, err)
	if s := e.status("web"); s.Rollout.State != moving || s.Config.Weights[0].Weight != 10 {
		t.Errorf("resumed, it is %v", s.Rollout)
	}
	e.checkDetails()
}

// TestExpectedVersion: a flag changes only at the version that was looked at.
func TestExpectedVersion(t *testing.T) {
	e := newEdge(t)
	set := func(percent uint32, expected uint64, remove bool) error {
		req := flagRule(func(r *donav1.FlagRule) { r.RolloutPercent, r.Version = percent, 99 }) // the host's to say
		req.ExpectedVersion, req.Delete = expected, remove
		_, err := e.client.SetFlag(ctx(t), req)
		return err
	}
	version := func() uint64 { t.Helper(); return e.status("web").Config.Flags[0].Version }
	refused(t, "of a flag that is not there", set(1, 1, false), codes.FailedPrecondition, "expected_version")
	fatal(t, set(1, 0, false))
	first := version()
	fatal(t, set(2, first, false))
	if version() <= first {
		t.Errorf("version %d after %d", version(), first)
	}
	before := e.written()
	for what, v := range map[string]uint64{"the one before": first, "one less": version() - 1, "one more": version() + 1} {
		refused(t, what, set(3, v, false), codes.FailedPrecondition, "expected_version")
		refused(t, what+", to delete", set(3, v, true), codes.FailedPrecondition, "expected_version")
	}
	fatal(t, set(2, version(), false)) // the same again
	if e.written() != before {
		t.Error("something was stored")
	}
	fatal(t, set(0, version(), true))
	if flags := e.status("web").Config.Flags; len(flags) != 0 {
		t.Errorf("deleted, and there is %v", flags)
	}
}
