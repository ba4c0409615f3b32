package main

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	donav1 "github.com/dodona-project/dodona/proto/dona/v1"
)

// shipment is the service "web" with endpoints that come when they are told, and
// clients that report calls of both variants.
type shipment struct {
	t      *testing.T
	p      *process
	ctx    context.Context
	client donav1.ControlPlaneClient
	fleets []*crew
	bad    atomic.Bool // the calls of v2 fail
	quiet  func()      // ends the reports
	step   uint32      // seconds of a canary's step
}

// ship expects a host that was spawned.
func ship(t *testing.T, p *process) *shipment {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	s := &shipment{t: t, p: p, ctx: ctx, client: donav1.NewControlPlaneClient(p.dial()), step: 2}
	s.talk()
	t.Cleanup(func() {
		cancel()
		s.quiet()
		for _, f := range s.fleets {
			f.Wait()
		}
	})
	return s
}

// talk begins to report calls of both variants.
func (s *shipment) talk() {
	ctx, cancel := context.WithCancel(s.ctx)
	var reports sync.WaitGroup
	reports.Go(func() { reportCalls(ctx, s.client, &s.bad) })
	s.quiet = func() { cancel(); reports.Wait() }
}

// up brings endpoints of a variant, in region eu.
func (s *shipment) up(variant string) {
	s.fleets = append(s.fleets, fleet(s.ctx, s.client, variant, 2))
}

// serving waits until a variant's endpoints are there.
func (s *shipment) serving(variant string) {
	s.t.Helper()
	until(s.t, "the endpoints of "+variant, func() bool {
		n := 0
		for _, e := range s.status().GetConfig().GetEndpoints() {
			if e.Variant == variant {
				n++
			}
		}
		return n == 2
	})
}

func (s *shipment) release(version, variant string) *donav1.Release {
	s.t.Helper()
	a, err := s.client.RegisterArtifact(s.ctx, &donav1.RegisterArtifactRequest{Service: "web", Version: version, Digest: "sha256:" + strings.Repeat("0a", 32)}, grpc.WaitForReady(true))
	if err != nil {
		s.t.Fatal(err)
	}
	r, err := s.client.CreateRelease(s.ctx, &donav1.CreateReleaseRequest{Service: "web", ArtifactId: a.Id, Variant: variant})
	if err != nil {
		s.t.Fatal(err)
	}
	return r
}

func (s *shipment) deploy(r *donav1.Release, strategy donav1.StartDeploymentRequest_Strategy) *donav1.Deployment {
	s.t.Helper()
	req := &donav1.StartDeploymentRequest{ReleaseId: r.Id, Environment: "prod", Regions: []string{"eu"}, Strategy: strategy, ReadyTimeoutSeconds: 120}
	if strategy == donav1.StartDeploymentRequest_STRATEGY_CANARY {
		req.Canary = &donav1.StartRolloutRequest{StableVariant: "v1", Steps: []uint32{50, 100}, StepSeconds: s.step, MaxErrorPercent: 10, MinRequests: 5}
	}
	d, err := s.client.StartDeployment(s.ctx, req)
	if err != nil {
		s.t.Fatal(err)
	}
	return d
}

// status is nil while the host is away.
func (s *shipment) status() *donav1.StatusReply {
	return statusOf(s.ctx, s.client, "web")
}

// reach waits until the newest deployment, which has to be id, is in a state.
func (s *shipment) reach(id string, state donav1.Deployment_State) (reply *donav1.StatusReply) {
	s.t.Helper()
	until(s.t, state.String(), func() bool {
		reply = s.status()
		if len(reply.GetDeployments()) == 0 {
			return false
		}
		d := reply.Deployments[0]
		if d.Id != id || d.State > donav1.Deployment_STATE_RUNNING && d.State != state {
			s.t.Fatalf("the deployment is %v; wanted %s of %s", d, state, id)
		}
		return d.State == state
	})
	return reply
}

// split is the weights as text.
func split(reply *donav1.StatusReply) (text string) {
	for _, w := range reply.GetConfig().GetWeights() {
		text += fmt.Sprintf(" %s=%d", w.Variant, w.Weight)
	}
	return strings.TrimSpace(text)
}

// again kills the host, demands that its records and its audit chain agree, and
// starts it anew.
func (s *shipment) again() *ledger {
	s.t.Helper()
	s.p.kill()
	l := s.p.ledger()
	s.p.start()
	return l
}

// TestCanaryDeployment: from an artifact to PROMOTED, with kill -9 in each state.
func TestCanaryDeployment(t *testing.T) {
	t.Parallel()
	p := newProcess(t)
	p.start()
	s := ship(t, p)
	s.up("v1")
	s.serving("v1")
	r := s.release("2", "v2")
	d := s.deploy(r, donav1.StartDeploymentRequest_STRATEGY_CANARY)
	if got := split(s.status()); d.State != donav1.Deployment_STATE_WAITING || got != "v2=0 v1=100" {
		t.Fatalf("it begins as %v with weights %s", d, got)
	}
	s.again()
	if got := split(s.reach(d.Id, donav1.Deployment_STATE_WAITING)); got != "v2=0 v1=100" {
		t.Errorf("after kill -9 it waits with weights %s", got)
	}
	s.up("v2")
	s.reach(d.Id, donav1.Deployment_STATE_RUNNING)
	until(t, "the first step", func() bool { return split(s.status()) == "v2=50 v1=50" })
	s.again()
	if got := s.reach(d.Id, donav1.Deployment_STATE_SUCCEEDED); split(got) != "v2=100 v1=0" || got.Rollout.State != donav1.RolloutStatus_STATE_PROMOTED ||
		!strings.Contains(got.Deployments[0].Reason, got.Rollout.Id) {
		t.Errorf("it ended as %v with weights %s and the rollout %v", got.Deployments, split(got), got.Rollout)
	}
	l := s.again()
	if got := s.reach(d.Id, donav1.Deployment_STATE_SUCCEEDED); split(got) != "v2=100 v1=0" || len(got.Deployments) != 1 {
		t.Errorf("after kill -9 it is %v with weights %s", got.Deployments, split(got))
	}
	if told := l.deployments[d.Id]; told == nil || told.state != "SUCCEEDED" || told.ends != 1 || len(l.rollouts) != 1 {
		t.Errorf("the audit chain tells %+v, and %d rollouts", told, len(l.rollouts))
	}
	list, err := s.client.ListReleases(s.ctx, &donav1.ListReleasesRequest{Service: "web"})
	if err != nil || len(list.Releases) != 1 || list.Releases[0].Id != r.Id {
		t.Errorf("the releases are %v, %v", list, err)
	}
}

// TestCanaryDeploymentIsKilledAllTheWay: kill -9 in each state and step between the
// first and the last; it holds as long as nothing is measured, and ends right.
func TestCanaryDeploymentIsKilledAllTheWay(t *testing.T) {
	t.Parallel()
	p := newProcess(t)
	p.start()
	s := ship(t, p)
	s.up("v1")
	s.serving("v1")
	s.quiet()
	s.step = 4 // so that a busy machine sees each state before it is over
	d := s.deploy(s.release("2", "v2"), donav1.StartDeploymentRequest_STRATEGY_CANARY)
	s.up("v2")
	// at waits for a state of the rollout with a share of v2, which it has to reach by
	// the way that is allowed.
	at := func(state donav1.RolloutStatus_State, weights string) *donav1.RolloutStatus {
		t.Helper()
		var got *donav1.StatusReply
		until(t, fmt.Sprint(state, " at ", weights), func() bool {
			got = s.status()
			return got.GetRollout().GetState() == state && split(got) == weights
		})
		if d := got.Deployments[0]; d.State != donav1.Deployment_STATE_RUNNING {
			t.Fatalf("the deployment of a rollout that is %s is %s", state, d.State)
		}
		return got.Rollout
	}
	const progressing, holding = donav1.RolloutStatus_STATE_PROGRESSING, donav1.RolloutStatus_STATE_HOLDING
	first := at(progressing, "v2=50 v1=50")
	s.again()
	held := at(holding, "v2=50 v1=50")
	s.again()
	if after := at(holding, "v2=50 v1=50"); after.Id != first.Id || after.DwellMs < held.DwellMs {
		t.Errorf("it held as %v, and after kill -9 as %v", held, after)
	}
	s.talk()
	at(progressing, "v2=100 v1=0")
	s.quiet()
	s.again()
	at(holding, "v2=100 v1=0")
	s.again()
	s.talk()
	got := s.reach(d.Id, donav1.Deployment_STATE_SUCCEEDED)
	if split(got) != "v2=100 v1=0" || got.Rollout.State != donav1.RolloutStatus_STATE_PROMOTED || got.Rollout.Id != first.Id {
		t.Errorf("it ended as %v with weights %s and the rollout %v", got.Deployments, split(got), got.Rollout)
	}
	l := s.again()
	if told := l.deployments[d.Id]; told == nil || told.state != "SUCCEEDED" || told.ends != 1 || len(l.rollouts) != 1 || l.rollouts[first.Id].ends != 1 {
		t.Errorf("the audit chain tells %+v, and of rollouts %+v", told, l.rollouts)
	}
	if got := s.reach(d.Id, donav1.Deployment_STATE_SUCCEEDED); split(got) != "v2=100 v1=0" {
		t.Errorf("after kill -9 the weights are %s", split(got))
	}
}

// TestCanaryDeploymentRolledBack: the variant is worse, and stays out.
func TestCanaryDeploymentRolledBack(t *testing.T) {
	t.Parallel()
	p := newProcess(t)
	p.start()
	s := ship(t, p)
	s.bad.Store(true)
	s.up("v1")
	s.up("v2")
	s.serving("v1")
	s.serving("v2")
	d := s.deploy(s.release("2", "v2"), donav1.StartDeploymentRequest_STRATEGY_CANARY)
	got := s.reach(d.Id, donav1.Deployment_STATE_ROLLED_BACK)
	if split(got) != "v2=0 v1=100" || len(got.Config.QuarantinedVariants) != 1 || !strings.Contains(got.Deployments[0].Reason, "was rolled back") {
		t.Errorf("it ended as %v with weights %s and quarantine %v", got.Deployments, split(got), got.Config.QuarantinedVariants)
	}
	l := s.again()
	if got := split(s.reach(d.Id, donav1.Deployment_STATE_ROLLED_BACK)); got != "v2=0 v1=100" {
		t.Errorf("after kill -9 the weights are %s", got)
	}
	if told := l.deployments[d.Id]; told == nil || told.state != "ROLLED_BACK" || told.ends != 1 {
		t.Errorf("the audit chain tells %+v", told)
	}
	_, err := s.client.StartDeployment(s.ctx, &donav1.StartDeploymentRequest{ReleaseId: "web/1", Strategy: donav1.StartDeploymentRequest_STRATEGY_RECREATE})
	if status.Code(err) != codes.FailedPrecondition {
		t.Errorf("the quarantined variant again: %v", err)
	}
}

// TestRulesOutliveTheHost: ingress rules and sharing are there after kill -9, and
// who was shut out stays so.
func TestRulesOutliveTheHost(t *testing.T) {
	t.Parallel()
	p := newProcess(t)
	p.start()
	s := ship(t, p)
	s.up("v1")
	s.serving("v1")
	for _, prefix := range []string{"/", "/api", "/old"} {
		if _, err := s.client.SetIngress(s.ctx, &donav1.SetIngressRequest{Service: "web", Host: "www.example.com", PathPrefix: prefix, AllowedRegions: []string{"eu"}}); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := s.client.SetIngress(s.ctx, &donav1.SetIngressRequest{Service: "web", Host: "www.example.com", PathPrefix: "/old", Delete: true}); err != nil {
		t.Fatal(err)
	}
	watch := func(caller string) error {
		stream, err := s.client.WatchConfig(s.ctx, &donav1.WatchConfigRequest{Service: "web", CallerService: caller}, grpc.WaitForReady(true))
		if err == nil {
			_, err = stream.Recv()
		}
		return err
	}
	if err := watch("pay"); err != nil {
		t.Fatal(err)
	}
	if _, err := s.client.SetSharedService(s.ctx, &donav1.SetSharedServiceRequest{Service: "web", Consumers: []string{"shop"}}); err != nil {
		t.Fatal(err)
	}
	s.again()
	var got *donav1.StatusReply
	until(t, "the status after kill -9", func() bool { got = s.status(); return got != nil })
	if len(got.GetIngresses()) != 2 || got.Ingresses[1].PathPrefix != "/api" || len(got.Shared.GetConsumers()) != 1 {
		t.Errorf("after kill -9 the rules are %v, shared is %v", got.GetIngresses(), got.GetShared())
	}
	if err := watch("pay"); status.Code(err) != codes.PermissionDenied {
		t.Errorf("who is not named watches after kill -9: %v", err)
	}
	if err := watch("shop"); err != nil {
		t.Errorf("who is named watches after kill -9: %v", err)
	}
}
