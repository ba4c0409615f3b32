package delivery

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	donav1 "github.com/dodona-project/dodona/proto/dona/v1"
	statev1 "github.com/dodona-project/dodona/proto/state/v1"
	"github.com/hashicorp/go-hclog"
	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/protobuf/proto"

	"github.com/dodona-project/dodona/host/audit"
	"github.com/dodona-project/dodona/host/internal/crash"
	"github.com/dodona-project/dodona/host/limits"
	"github.com/dodona-project/dodona/host/refusal"
	"github.com/dodona-project/dodona/host/rollout"
	"github.com/dodona-project/dodona/host/service"
	"github.com/dodona-project/dodona/host/store"
)

// Options wires a Controller.
type Options struct {
	Store      store.Store
	Plane      *service.Plane
	Audit      *audit.Log
	Rollouts   *rollout.Controller   // its Ended has to call RolloutEnded
	Logger     hclog.Logger          // nil = no log
	HostID     string                // names this host in audit entries
	Tick       time.Duration         // between two looks at a deployment; 0 = 1 s
	WallClock  func() time.Time      // nil = time.Now; for ids only
	Registerer prometheus.Registerer // nil = no metrics
}

// Controller keeps artifacts and releases and runs the deployments of all
// services. Its methods may be called concurrently, whether or not Run is
// running; several controllers may run over one store.
type Controller struct {
	o       Options
	log     hclog.Logger
	metrics *metrics
	wake    chan struct{} // one slot: look again now
}

const (
	defaultTick = time.Second
	maxLooks    = 64 // deployments looked at side by side
)

// New returns a controller. It does nothing by itself until Run.
func New(o Options) *Controller {
	if o.Logger == nil {
		o.Logger = hclog.NewNullLogger()
	}
	if o.Tick <= 0 {
		o.Tick = defaultTick
	}
	if o.WallClock == nil {
		o.WallClock = time.Now
	}
	return &Controller{o: o, log: o.Logger.Named("delivery"), metrics: newMetrics(o.Registerer), wake: make(chan struct{}, 1)}
}

// Run ticks every live deployment until ctx ends. It returns nil: a store that
// fails is logged, shown in the metrics and tried again at the next tick.
func (c *Controller) Run(ctx context.Context) error {
	ticker := time.NewTicker(c.o.Tick)
	defer ticker.Stop()
	for {
		c.Tick(ctx)
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
		case <-c.wake:
		}
	}
}

// Tick looks at every live deployment once, as Run does at each tick, and returns
// when all are looked at.
func (c *Controller) Tick(ctx context.Context) {
	var entries []store.Entry
	err := c.o.Store.View(ctx, func(tx store.ReadTx) (err error) {
		entries, err = tx.Scan(liveIndex, 0, store.MaxScore, 0)
		return err
	})
	if err != nil {
		c.failed(ctx, "", err)
		return
	}
	c.metrics.live.Set(float64(len(entries)))
	// A plugin that answers late delays its own deployment and no other.
	var looks sync.WaitGroup
	seats := make(chan struct{}, maxLooks)
	for _, e := range entries {
		seats <- struct{}{}
		looks.Go(func() {
			defer func() { <-seats }()
			if err := c.tick(ctx, e.Member); err != nil {
				c.failed(ctx, e.Member, err)
			}
		})
	}
	looks.Wait()
}

func (c *Controller) failed(ctx context.Context, service string, err error) {
	if ctx.Err() != nil || errors.Is(err, store.ErrClosed) {
		return // on the way out
	}
	c.metrics.failures.Inc()
	c.log.Error("a look at the deployments failed; the next tick tries again", "service", service, "error", err)
}

// again makes Run look now instead of at its next tick.
func (c *Controller) again() {
	select {
	case c.wake <- struct{}{}:
	default:
	}
}

// errTransition ends a soft transaction that would have to be a hard one.
var errTransition = errors.New("delivery: a transition needs a hard transaction")

// pluginCap bounds the question whether the plugins of a rollout take it.
const pluginCap = 5 * time.Second

// tick lets Step look at one service's deployment and writes what it decided:
// timers softly, a transition hard and whole.
func (c *Controller) tick(ctx context.Context, service string) error {
	var spec *donav1.StartRolloutRequest
	err := c.try(ctx, service, store.Soft, nil, &spec)
	if !errors.Is(err, errTransition) {
		return err
	}
	var start *start
	if spec != nil {
		if start, err = c.prepare(ctx, spec); err != nil {
			return err
		}
	}
	crash.Point("delivery.before-step")
	err = c.try(ctx, service, store.Hard, start, &spec)
	if err == nil {
		crash.Point("delivery.after-step")
	}
	return err
}

// start is the rollout of a CANARY deployment, as far as it could be prepared.
type start struct {
	rollout *rollout.Prepared
	refused error // nothing will make it right
	away    error // it may be right later
}

// prepare asks what only the plugins of a rollout know. An error means that
// nothing is known.
func (c *Controller) prepare(ctx context.Context, spec *donav1.StartRolloutRequest) (*start, error) {
	ctx, cancel := context.WithTimeout(ctx, pluginCap)
	defer cancel()
	prepared, err := c.o.Rollouts.Prepare(ctx, spec)
	s := &start{rollout: prepared}
	return s, s.sort(err)
}

// sort keeps a refusal for what it means and returns any other error.
func (s *start) sort(err error) error {
	var refused *refusal.Error
	switch {
	case err == nil:
		return nil
	case !errors.As(err, &refused):
		return err
	case refused.Kind == refusal.Unavailable:
		s.away = err
	default:
		s.refused = err
	}
	return nil
}

// try looks once. In a soft transaction rollout is the rollout that would begin,
// when one would.
func (c *Controller) try(ctx context.Context, service string, durability store.Durability, begin *start, rollout **donav1.StartRolloutRequest) error {
	var after *statev1.DeploymentState
	var event Event
	err := c.o.Store.Update(ctx, durability, func(tx store.Tx) error {
		after, event, *rollout = nil, None, nil
		s, err := c.scene(tx, service)
		if err != nil {
			return err
		}
		if s == nil {
			return tx.IndexDelete(liveIndex, service) // the index is a hint; this one is out of date
		}
		if begin != nil {
			if err := s.judge(tx, *begin); err != nil {
				return err
			}
		}
		d := Step(s.state, s.evidence, s.now)
		if d.Event != None && durability != store.Hard {
			if d.Event == Begin {
				*rollout = proto.CloneOf(s.record.GetSpec().GetCanary())
			}
			return errTransition
		}
		if d.Event == Begin && (begin == nil || begin.rollout == nil) {
			return nil // it became ready between the two looks: at the next tick
		}
		if d.Event == Begin {
			if d.Next.Rollout, err = begin.rollout.Start(tx, c.actor()); err != nil {
				return err
			}
			d.Next.Reason = "rollout " + d.Next.Rollout + " moves the traffic"
		}
		after, event = nextRecord(s.record, d, s.now), d.Event
		return c.commit(tx, s, d, after, c.actor())
	})
	if err == nil {
		c.took(event, after)
		if event == Begin {
			begin.rollout.Committed()
		}
	}
	return err
}

// judge asks at this revision whether the rollout may begin.
func (s *scene) judge(tx store.ReadTx, begin start) error {
	if begin.rollout != nil {
		if err := begin.sort(begin.rollout.Check(tx)); err != nil {
			return err
		}
	}
	if begin.refused != nil {
		s.evidence.Blocked = "its rollout is refused: " + begin.refused.Error()
	}
	if begin.away != nil {
		s.evidence.Away = "its rollout cannot begin yet: " + begin.away.Error()
	}
	return nil
}

func (c *Controller) actor() string { return "host:" + c.o.HostID }

// took counts and logs a transition that is committed.
func (c *Controller) took(event Event, d *statev1.DeploymentState) {
	if event == None {
		return
	}
	c.metrics.transitions.WithLabelValues(phaseOf(d.GetState()).String()).Inc()
	c.log.Info("deployment moved", "service", d.GetService(), "deployment", d.GetId(), "state", phaseOf(d.GetState()).String(), "reason", d.GetReason())
}

// scene is a deployment and what its service looks like, read in one
// transaction.
type scene struct {
	record   *statev1.DeploymentState
	state    State
	evidence Evidence
	now      time.Time // the store's, in the milliseconds that records keep
}

// scene reads the live deployment of a service and what Step needs to know; nil
// when there is none.
func (c *Controller) scene(tx store.ReadTx, service string) (*scene, error) {
	record, err := live(tx, service)
	if err != nil || record == nil {
		return nil, err
	}
	s := &scene{record: record, now: time.UnixMilli(tx.Now().UnixMilli())}
	if s.state, err = stateOf(record); err != nil {
		return nil, err
	}
	status, err := c.o.Rollouts.Status(tx, service)
	if err != nil {
		return nil, err
	}
	e := &s.evidence
	e.Rollout, e.RolloutEnd, e.RolloutWhy = status.GetId(), endOf(rollout.Phase(status.GetState())), clip(status.GetReason())
	if s.state.Phase == Running {
		return s, nil
	}
	if e.Holder, err = c.holder(tx, service); err != nil {
		return nil, err
	}
	if s.state.Plan.Strategy != donav1.StartDeploymentRequest_STRATEGY_CANARY {
		// For a canary, its rollout says it.
		if e.Blocked, err = c.blocked(tx, service, s.state.Plan.Variant, status); err != nil {
			return nil, err
		}
	}
	e.Missing, err = c.missing(tx, service, s.state.Plan.Variant, record.GetSpec().GetRegions())
	return s, err
}

func endOf(p rollout.Phase) End {
	switch p {
	case rollout.Promoted:
		return Promoted
	case rollout.RolledBack:
		return Worse
	case rollout.Aborted, rollout.Superseded:
		return Stopped
	}
	return NotEnded
}

// holder is the variant that the weights give everything; empty when none does.
func (c *Controller) holder(tx store.ReadTx, service string) (string, error) {
	w, _, err := c.o.Plane.Weights(tx, service)
	if err != nil {
		return "", err
	}
	for _, v := range w.GetWeights() {
		if v.GetWeight() == 100 {
			return v.GetVariant(), nil
		}
	}
	return "", nil
}

// blocked says why the traffic must not be given to a variant at once; empty when
// it may.
func (c *Controller) blocked(tx store.ReadTx, service, variant string, status *donav1.RolloutStatus) (string, error) {
	if status != nil && rollout.Phase(status.GetState()).Live() {
		return fmt.Sprintf("the rollout %s of %s is under way and moves the traffic: end it first", status.GetId(), limits.Quote(status.GetCanaryVariant())), nil
	}
	q, err := c.o.Plane.Quarantined(tx, service)
	if err != nil {
		return "", err
	}
	for _, v := range q.GetVariants() {
		if v.GetVariant() == variant {
			return fmt.Sprintf("%s is quarantined, nothing would pick it: lift the quarantine first", limits.Quote(variant)), nil
		}
	}
	return "", nil
}

// missing lists what has to be there before traffic moves to the variant.
func (c *Controller) missing(tx store.ReadTx, service, variant string, regions []string) (missing []string, err error) {
	if len(regions) == 0 {
		n, err := c.o.Plane.LegalEndpoints(tx, service, variant)
		if err == nil && n == 0 {
			missing = []string{fmt.Sprintf("no endpoint of %s that may serve", variant)}
		}
		return missing, err
	}
	for _, region := range regions {
		n, allowed, err := c.o.Plane.LegalIn(tx, service, variant, region)
		switch {
		case err != nil:
			return nil, err
		case !allowed:
			missing = append(missing, fmt.Sprintf("the residency policy does not allow %s", region))
		case n == 0:
			missing = append(missing, fmt.Sprintf("no endpoint of %s in %s", variant, region))
		}
	}
	return missing, nil
}

// commit writes a decision inside tx: the record and, for a transition, the
// weights, the list of live deployments and the audit entry.
func (c *Controller) commit(tx store.Tx, s *scene, d Decision, next *statev1.DeploymentState, actor string) error {
	service := next.GetService()
	if d.Event == None && proto.Equal(s.record, next) {
		return nil
	}
	if len(d.Weights) > 0 {
		if err := c.o.Plane.PutWeights(tx, service, weights(d.Weights), ""); err != nil {
			return err
		}
	}
	if err := store.Save(tx, deploymentKey(service, next.GetId()), next); err != nil {
		return err
	}
	if d.Event != None {
		crash.Point("delivery.inside-step") // weights written, the end not: neither may be left
	}
	if d.Next.Phase.Live() {
		return nil
	}
	if _, err := c.count(tx, service, func(t *statev1.Delivery) error { t.LiveDeployment = ""; return nil }); err != nil {
		return err
	}
	if err := tx.IndexDelete(liveIndex, service); err != nil {
		return err
	}
	return c.o.Audit.Append(tx, service, entry("deployment.end", actor, next))
}

func weights(list []Weight) []*donav1.VariantWeight {
	out := make([]*donav1.VariantWeight, len(list))
	for i, w := range list {
		out[i] = &donav1.VariantWeight{Variant: w.Variant, Weight: w.Percent}
	}
	return out
}

func entry(kind, actor string, d *statev1.DeploymentState) audit.Entry {
	return audit.Entry{Kind: kind, Actor: actor, Detail: map[string]string{
		"id": d.GetId(), "release_id": d.GetSpec().GetReleaseId(), "strategy": strategyName(d.GetSpec().GetStrategy()),
		"state": phaseOf(d.GetState()).String(), "reason": d.GetReason(),
	}}
}

// RolloutEnded ends the deployment that follows the rollout, inside the
// transaction that ends the rollout. A record that cannot be read stands still
// and never keeps a rollout from ending.
func (c *Controller) RolloutEnded(tx store.Tx, service string, end rollout.End) error {
	rec, err := tx.Get(totalsKey(service))
	if err != nil || !rec.Exists() {
		return err
	}
	var totals statev1.Delivery
	if !reads(rec, &totals) || totals.GetLiveDeployment() == "" {
		return nil
	}
	if rec, err = tx.Get(deploymentKey(service, totals.GetLiveDeployment())); err != nil {
		return err
	}
	s := &scene{record: &statev1.DeploymentState{}, now: time.UnixMilli(tx.Now().UnixMilli())}
	if !reads(rec, s.record) || !s.follows(end.ID) {
		return nil // damaged, or of another rollout: the ticks say so
	}
	s.evidence = Evidence{Rollout: end.ID, RolloutEnd: endOf(end.Phase), RolloutWhy: clip(end.Reason)}
	d := Step(s.state, s.evidence, s.now)
	return c.commit(tx, s, d, nextRecord(s.record, d, s.now), c.actor())
}

func reads(rec store.Record, m proto.Message) bool { return proto.Unmarshal(rec.Value, m) == nil }

// follows fills in the state and reports whether it is that of a deployment which
// follows the rollout.
func (s *scene) follows(rollout string) bool {
	var err error
	s.state, err = stateOf(s.record)
	return err == nil && s.state.Phase == Running && s.state.Rollout == rollout
}

// clip keeps the line that says why short enough for a status with many.
func clip(s string) string {
	if len(s) <= limits.ReasonLen {
		return s
	}
	return strings.ToValidUTF8(s[:limits.ReasonLen], "")
}
