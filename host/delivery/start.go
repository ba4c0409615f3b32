package delivery

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	donav1 "github.com/dodona-project/dodona/proto/dona/v1"
	statev1 "github.com/dodona-project/dodona/proto/state/v1"
	"google.golang.org/protobuf/proto"

	"github.com/dodona-project/dodona/host/limits"
	"github.com/dodona-project/dodona/host/refusal"
	"github.com/dodona-project/dodona/host/rollout"
	"github.com/dodona-project/dodona/host/service"
	"github.com/dodona-project/dodona/host/store"
)

// defaultReadySeconds is how long a deployment waits that does not say.
const defaultReadySeconds = 600

const canary = donav1.StartDeploymentRequest_STRATEGY_CANARY

// checkStart refuses a request that no state could make right.
func checkStart(req *donav1.StartDeploymentRequest) (svc string, number uint64, err error) {
	svc, number, err = parseReleaseID(req.GetReleaseId())
	if err := refusal.Check("release_id", err); err != nil {
		return "", 0, err
	}
	if err := refusal.Check("environment", limits.OptionalName(req.GetEnvironment())); err != nil {
		return "", 0, err
	}
	if err := service.CheckRegions("regions", req.GetRegions()); err != nil {
		return "", 0, err
	}
	switch s := req.GetStrategy(); s {
	case donav1.StartDeploymentRequest_STRATEGY_RECREATE, donav1.StartDeploymentRequest_STRATEGY_BLUE_GREEN:
		if req.GetCanary() != nil {
			return "", 0, refusal.Field("canary", "is set, and strategy is %s: it is for CANARY alone", strategyName(s))
		}
	case canary:
		if err := checkCanary(req.GetCanary(), svc); err != nil {
			return "", 0, err
		}
	default:
		return "", 0, refusal.Field("strategy", "is %d: allowed are RECREATE, BLUE_GREEN and CANARY", s)
	}
	if n := req.GetReadyTimeoutSeconds(); n > limits.MaxReadySeconds {
		return "", 0, refusal.Field("ready_timeout_seconds", "is %d: allowed are 1 to %d, and 0 for %d", n, limits.MaxReadySeconds, defaultReadySeconds)
	}
	return svc, number, nil
}

func checkCanary(req *donav1.StartRolloutRequest, svc string) error {
	if req == nil {
		return refusal.Field("canary", "is absent: strategy CANARY needs its rollout, with stable_variant, steps and step_seconds")
	}
	if req.GetService() != "" && req.GetService() != svc {
		return refusal.Field("canary.service", "is %s, the release is of %s: leave it out, it comes from the release", limits.Brief(req.GetService()), limits.Brief(svc))
	}
	if err := refusal.Check("canary.stable_variant", limits.Name(req.GetStableVariant())); err != nil {
		return err
	}
	if err := refusal.Check("canary.canary_variant", limits.OptionalName(req.GetCanaryVariant())); err != nil {
		return err
	}
	if req.GetCanaryVariant() == req.GetStableVariant() {
		return refusal.Field("canary.canary_variant", "is %s, the same as canary.stable_variant: leave it out, it comes from the release", limits.Quote(req.GetCanaryVariant()))
	}
	return within("canary", rollout.CheckPlan(req))
}

// within puts the field that a refusal is about below another.
func within(field string, err error) error {
	var refused *refusal.Error
	if !errors.As(err, &refused) || refused.Field == "" {
		return err
	}
	below := *refused
	below.Field = field + "." + refused.Field
	return &below
}

// Start begins a deployment: WAITING, in one durable transaction with its audit
// entry. So that no traffic moves before its time, a service without weights gets
// them here: all to the variant that serves. The request of a deployment that
// lives already, asked again, changes nothing and returns that one; another that
// still waits ends as FAILED and makes room.
//
// Refusals: Invalid; NotFound when there is no such release; Precondition when
// the state does not allow the strategy or another deployment moves traffic;
// Unavailable when a plugin of the canary's queries cannot say whether it takes
// them.
func (c *Controller) Start(ctx context.Context, actor string, req *donav1.StartDeploymentRequest) (*donav1.Deployment, error) {
	svc, number, err := checkStart(req)
	if err != nil {
		return nil, err
	}
	release, spec, err := c.look(ctx, req, svc, number)
	if err != nil {
		return nil, err
	}
	var prepared *rollout.Prepared
	if spec.GetStrategy() == canary {
		if prepared, err = c.o.Rollouts.Prepare(ctx, spec.GetCanary()); err != nil {
			return nil, within("canary", err)
		}
	}
	id := rollout.NewID("d", c.o.WallClock())
	var started, replaced *statev1.DeploymentState
	err = c.o.Store.Update(ctx, store.Hard, func(tx store.Tx) (err error) {
		replaced = nil
		if started, err = live(tx, svc); err != nil {
			return err
		}
		if started != nil {
			if proto.Equal(started.GetSpec(), spec) {
				return nil
			}
			if replaced, err = c.replace(tx, svc, id, actor); err != nil {
				return err
			}
		}
		started, err = c.begin(tx, actor, id, release, spec, prepared)
		return err
	})
	if err != nil {
		return nil, err
	}
	if replaced != nil {
		c.took(Finish, replaced)
	}
	c.again()
	return shown(started), nil
}

// look reads the release and makes the request whole. What is wrong with the
// request alone is said first, also when only a plugin knows.
func (c *Controller) look(ctx context.Context, req *donav1.StartDeploymentRequest, svc string, number uint64) (release *donav1.Release, spec *donav1.StartDeploymentRequest, err error) {
	if release, err = c.release(ctx, svc, number); err == nil {
		spec, err = specOf(req, release)
	}
	var refused *refusal.Error
	if errors.As(err, &refused) && req.GetStrategy() == canary {
		if invalid := c.o.Rollouts.CheckQueries(ctx, req.GetCanary()); invalid != nil {
			err = within("canary", invalid)
		}
	}
	return release, spec, err
}

func (c *Controller) release(ctx context.Context, svc string, number uint64) (release *donav1.Release, err error) {
	err = c.o.Store.View(ctx, func(tx store.ReadTx) (err error) {
		release, err = loadRelease(tx, svc, number)
		return err
	})
	if err == nil && release == nil {
		err = &refusal.Error{Kind: refusal.NotFound, Field: "release_id",
			Text: fmt.Sprintf("is %s, and there is no such release: create it first", limits.Quote(releaseID(svc, number)))}
	}
	return release, err
}

// specOf is the request as it is kept: whole, with what the release and the
// defaults say.
func specOf(req *donav1.StartDeploymentRequest, release *donav1.Release) (*donav1.StartDeploymentRequest, error) {
	spec := proto.CloneOf(req)
	if spec.ReadyTimeoutSeconds == 0 {
		spec.ReadyTimeoutSeconds = defaultReadySeconds
	}
	if spec.GetStrategy() != canary {
		return spec, nil
	}
	if v := spec.GetCanary().GetCanaryVariant(); v != "" && v != release.GetVariant() {
		return nil, &refusal.Error{Kind: refusal.Precondition, Field: "canary.canary_variant",
			Text: fmt.Sprintf("is %s, the release is of %s: leave it out, it comes from the release", limits.Brief(v), limits.Brief(release.GetVariant()))}
	}
	if spec.GetCanary().GetStableVariant() == release.GetVariant() {
		return nil, &refusal.Error{Kind: refusal.Precondition, Field: "canary.stable_variant",
			Text: fmt.Sprintf("is %s, the variant of the release itself: allowed is the one that serves now", limits.Quote(release.GetVariant()))}
	}
	spec.Canary.Service, spec.Canary.CanaryVariant = release.GetService(), release.GetVariant()
	return spec, nil
}

// replace ends the live deployment to make room for another, if it has moved
// nothing yet.
func (c *Controller) replace(tx store.Tx, svc, by, actor string) (*statev1.DeploymentState, error) {
	s, err := c.scene(tx, svc)
	if err != nil {
		return nil, err
	}
	if s.state.Phase == Running {
		return nil, &refusal.Error{Kind: refusal.Precondition, Field: "release_id", Text: fmt.Sprintf(
			"is of service %s, whose deployment %s (%s) moves traffic: wait for its end, or ABORT its rollout %s", svc, s.state.ID, limits.Quote(s.record.GetSpec().GetReleaseId()), s.state.Rollout)}
	}
	s.evidence.Replaced = by
	d := Step(s.state, s.evidence, s.now)
	next := nextRecord(s.record, d, s.now)
	return next, c.commit(tx, s, d, next, actor)
}

func (c *Controller) begin(tx store.Tx, actor, id string, release *donav1.Release, spec *donav1.StartDeploymentRequest, prepared *rollout.Prepared) (*statev1.DeploymentState, error) {
	svc, variant := release.GetService(), release.GetVariant()
	if err := c.allowed(tx, svc, variant, spec, prepared); err != nil {
		return nil, err
	}
	stays, err := c.pin(tx, svc, variant, spec)
	if err != nil {
		return nil, err
	}
	missing, err := c.missing(tx, svc, variant, spec.GetRegions())
	if err != nil {
		return nil, err
	}
	reason := "everything is there"
	if len(missing) > 0 {
		reason = "waits: " + strings.Join(missing, "; ")
	}
	if stays != "" {
		reason += "; until then all traffic stays with " + stays
	}
	now := tx.Now().UnixMilli()
	d := &statev1.DeploymentState{
		Id: id, Service: svc, Spec: spec, Variant: variant, State: Waiting.proto(), Reason: reason,
		CreatedMs: now, UpdatedMs: now, LastTickMs: now, Transitions: 1,
	}
	if err := c.forget(tx, svc); err != nil {
		return nil, err
	}
	if err := store.Save(tx, deploymentKey(svc, id), d); err != nil {
		return nil, err
	}
	if err := tx.IndexPut(deploymentIndex(svc), id, uint64(now)); err != nil {
		return nil, err
	}
	if _, err := c.count(tx, svc, func(t *statev1.Delivery) error { t.LiveDeployment = id; return nil }); err != nil {
		return nil, err
	}
	if err := tx.IndexPut(liveIndex, svc, uint64(now)); err != nil {
		return nil, err
	}
	return d, c.o.Audit.Append(tx, svc, entry("deployment.start", actor, d))
}

// allowed refuses what cannot end well as things are.
func (c *Controller) allowed(tx store.ReadTx, svc, variant string, spec *donav1.StartDeploymentRequest, prepared *rollout.Prepared) error {
	if prepared != nil {
		return within("canary", prepared.Check(tx))
	}
	refuse := func(field, format string, args ...any) error {
		return &refusal.Error{Kind: refusal.Precondition, Field: field, Text: fmt.Sprintf(format, args...)}
	}
	status, err := c.o.Rollouts.Status(tx, svc)
	if err != nil {
		return err
	}
	blocked, err := c.blocked(tx, svc, variant, status)
	if err != nil {
		return err
	}
	if blocked != "" {
		return refuse("release_id", "cannot be deployed: %s", blocked)
	}
	holder, err := c.holder(tx, svc)
	if err != nil {
		return err
	}
	if spec.GetStrategy() == donav1.StartDeploymentRequest_STRATEGY_BLUE_GREEN && holder == variant {
		return refuse("strategy", "is BLUE_GREEN, and %s has all traffic already: give the release another variant, or RECREATE", limits.Quote(variant))
	}
	return nil
}

// pin gives a service without weights some that change nothing now and keep the
// traffic from a variant that is not ready. It returns where the traffic stays;
// empty when there is nothing to keep.
func (c *Controller) pin(tx store.Tx, svc, variant string, spec *donav1.StartDeploymentRequest) (stays string, err error) {
	w, _, err := c.o.Plane.Weights(tx, svc)
	if err != nil {
		return "", err
	}
	if len(w.GetWeights()) > 0 {
		if stays, err = c.holder(tx, svc); stays == variant {
			stays = ""
		}
		return stays, err
	}
	if spec.GetStrategy() == canary {
		stays = spec.GetCanary().GetStableVariant()
	} else if stays, err = c.only(tx, svc, variant); err != nil || stays == "" {
		return "", err
	}
	return stays, c.o.Plane.PutWeights(tx, svc, weights([]Weight{{variant, 0}, {stays, 100}}), "")
}

// only is the one variant that serves a service without weights, when the new
// one does not serve yet.
func (c *Controller) only(tx store.ReadTx, svc, variant string) (string, error) {
	serving, err := c.o.Plane.Variants(tx, svc)
	if err != nil || len(serving) == 0 {
		return "", err
	}
	if slices.Contains(serving, variant) {
		return "", nil // it has its share already
	}
	if len(serving) > 1 {
		return "", &refusal.Error{Kind: refusal.Precondition, Field: "strategy", Text: fmt.Sprintf(
			"would move traffic too early: service %s has no weights, so %s would get a share beside %d other variants as soon as it has an endpoint; use CANARY, which says where the traffic stays",
			svc, limits.Quote(variant), len(serving))}
	}
	return serving[0], nil
}

// forget makes room: the oldest ended deployments go, their audit entries stay.
func (c *Controller) forget(tx store.Tx, svc string) error {
	entries, err := tx.Scan(deploymentIndex(svc), 0, store.MaxScore, 0)
	if err != nil {
		return err
	}
	for _, e := range entries[:max(0, len(entries)-limits.DeploymentsKept+1)] {
		if err := tx.Delete(deploymentKey(svc, e.Member)); err != nil {
			return err
		}
		if err := tx.IndexDelete(deploymentIndex(svc), e.Member); err != nil {
			return err
		}
	}
	return nil
}
