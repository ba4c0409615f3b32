package delivery

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	donav1 "github.com/dodona-project/dodona/proto/dona/v1"
	statev1 "github.com/dodona-project/dodona/proto/state/v1"
	"google.golang.org/protobuf/proto"

	"github.com/dodona-project/dodona/host/limits"
	"github.com/dodona-project/dodona/host/store"
)

// liveIndex lists the services with a live deployment, by the time it began. A
// service has at most one.
const liveIndex = "deployment/live"

func totalsKey(service string) string            { return "svc/" + service + "/delivery" }
func artifactIndex(service string) string        { return "svc/" + service + "/artifact" }
func artifactKey(service, version string) string { return "svc/" + service + "/artifact/" + version }
func releaseIndex(service string) string         { return "svc/" + service + "/release" }
func releaseKey(service string, n uint64) string {
	return "svc/" + service + "/release/" + strconv.FormatUint(n, 10)
}
func deploymentIndex(service string) string   { return "svc/" + service + "/deployment" }
func deploymentKey(service, id string) string { return "svc/" + service + "/deployment/" + id }

// An artifact's id is SERVICE:VERSION and a release's SERVICE/NUMBER: both say
// what they are, and where their record is.
func artifactID(service, version string) string { return service + ":" + version }
func releaseID(service string, n uint64) string {
	return service + "/" + strconv.FormatUint(n, 10)
}

// parseArtifactID returns what an id names. It does not say that it is there.
func parseArtifactID(id string) (service, version string, err error) {
	service, version, found := strings.Cut(id, ":")
	if !found || limits.Service(service) != nil || limits.Version(version) != nil {
		return "", "", fmt.Errorf("is %s: allowed is the id of an artifact, SERVICE:VERSION", limits.QuoteOrEmpty(id))
	}
	return service, version, nil
}

func parseReleaseID(id string) (service string, number uint64, err error) {
	service, text, found := strings.Cut(id, "/")
	number, err = strconv.ParseUint(text, 10, 64)
	if !found || limits.Service(service) != nil || err != nil || releaseID(service, number) != id {
		return "", 0, fmt.Errorf("is %s: allowed is the id of a release, SERVICE/NUMBER", limits.QuoteOrEmpty(id))
	}
	return service, number, nil
}

// loadRelease reads a release; nil when there is none.
func loadRelease(tx store.ReadTx, service string, number uint64) (*donav1.Release, error) {
	var r statev1.ReleaseState
	_, err := store.Load(tx, releaseKey(service, number), &r)
	return r.GetRelease(), err
}

// live reads the service's live deployment; nil when there is none.
func live(tx store.ReadTx, service string) (*statev1.DeploymentState, error) {
	var totals statev1.Delivery
	if _, err := store.Load(tx, totalsKey(service), &totals); err != nil || totals.GetLiveDeployment() == "" {
		return nil, err
	}
	var d statev1.DeploymentState
	version, err := store.Load(tx, deploymentKey(service, totals.GetLiveDeployment()), &d)
	if err != nil {
		return nil, err
	}
	if version == 0 {
		return nil, fmt.Errorf("delivery: %s names the live deployment %s, which has no record", totalsKey(service), totals.GetLiveDeployment())
	}
	return &d, nil
}

// stateOf reads a record. One that no Step can act on is an error: a damaged
// deployment must stand still and not move traffic.
func stateOf(d *statev1.DeploymentState) (State, error) {
	s := State{
		ID: d.GetId(),
		Plan: Plan{
			Variant: d.GetVariant(), Strategy: d.GetSpec().GetStrategy(),
			Timeout: time.Duration(d.GetSpec().GetReadyTimeoutSeconds()) * time.Second,
		},
		Phase: phaseOf(d.GetState()), Reason: d.GetReason(), Rollout: d.GetRolloutId(),
		Waited:   time.Duration(min(d.GetWaitedMs(), math.MaxInt32*1000)) * time.Millisecond,
		LastTick: time.UnixMilli(d.GetLastTickMs()),
	}
	switch {
	case s.Phase < Waiting || s.Phase > RolledBack:
		return s, fmt.Errorf("delivery: record of %s has the unknown state %d", s.ID, d.GetState())
	case s.Plan.Strategy < donav1.StartDeploymentRequest_STRATEGY_RECREATE || s.Plan.Strategy > donav1.StartDeploymentRequest_STRATEGY_CANARY:
		return s, fmt.Errorf("delivery: record of %s has the unknown strategy %d", s.ID, s.Plan.Strategy)
	case s.Plan.Variant == "":
		return s, fmt.Errorf("delivery: record of %s names no variant", s.ID)
	case s.Phase == Running && s.Rollout == "":
		return s, fmt.Errorf("delivery: record of %s follows no rollout", s.ID)
	}
	return s, nil
}

// nextRecord is the record after d. old is not changed.
func nextRecord(old *statev1.DeploymentState, d Decision, now time.Time) *statev1.DeploymentState {
	r := proto.CloneOf(old)
	n := d.Next
	r.State, r.Reason, r.RolloutId = n.Phase.proto(), n.Reason, n.Rollout
	r.WaitedMs, r.LastTickMs = uint64(n.Waited.Milliseconds()), n.LastTick.UnixMilli()
	if d.Event != None {
		r.Transitions++
		r.UpdatedMs = now.UnixMilli()
	}
	if !n.Phase.Live() && r.EndedMs == 0 {
		r.EndedMs = now.UnixMilli()
	}
	return r
}

// Deployments lists the service's deployments, the newest first: the live one
// and the ended ones that are kept. One whose record is damaged has no state.
func (c *Controller) Deployments(tx store.ReadTx, service string) ([]*donav1.Deployment, error) {
	entries, err := tx.Scan(deploymentIndex(service), 0, store.MaxScore, 0)
	if err != nil {
		return nil, err
	}
	if err := store.Fetch(tx, entries, func(id string) string { return deploymentKey(service, id) }); err != nil {
		return nil, err
	}
	out := make([]*donav1.Deployment, 0, len(entries))
	for _, e := range slices.Backward(entries) {
		var d statev1.DeploymentState
		version, err := store.Load(tx, deploymentKey(service, e.Member), &d)
		if errors.Is(err, store.ErrDamaged) {
			out = append(out, &donav1.Deployment{Id: e.Member, Reason: "its record is damaged; the audit log has what became of it"})
			continue
		}
		if err != nil {
			return nil, err
		}
		if version != 0 {
			out = append(out, shown(&d))
		}
	}
	return out, nil
}

func shown(d *statev1.DeploymentState) *donav1.Deployment {
	reason := d.GetReason()
	if phaseOf(d.GetState()) == Waiting {
		reason = fmt.Sprintf("%s (%d of %d s)", reason, d.GetWaitedMs()/1000, d.GetSpec().GetReadyTimeoutSeconds())
	}
	return &donav1.Deployment{
		Id: d.GetId(), ReleaseId: d.GetSpec().GetReleaseId(), Environment: d.GetSpec().GetEnvironment(),
		Regions: d.GetSpec().GetRegions(), Strategy: d.GetSpec().GetStrategy(),
		State: d.GetState(), Reason: reason,
		CreatedUnix: d.GetCreatedMs() / 1000, UpdatedUnix: d.GetUpdatedMs() / 1000,
	}
}
