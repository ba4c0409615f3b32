package rollout

import (
	"context"
	"errors"
	"sync"
	"time"

	donav1 "github.com/dodona-project/dodona/proto/dona/v1"
	statev1 "github.com/dodona-project/dodona/proto/state/v1"
	"github.com/hashicorp/go-hclog"
	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/protobuf/proto"

	"github.com/dodona-project/dodona/host/audit"
	"github.com/dodona-project/dodona/host/internal/crash"
	"github.com/dodona-project/dodona/host/store"
)

// Service is the part of the service plane that a rollout reads and moves. Its
// functions act inside the caller's transaction; each that changes something
// makes a new version of the service's snapshot.
type Service interface {
	Exists(tx store.ReadTx, service string) (bool, error)
	Endpoints(tx store.ReadTx, service, variant string) (int, error)
	LegalEndpoints(tx store.ReadTx, service, variant string) (int, error)
	Weights(tx store.ReadTx, service string) (weights *statev1.Weights, version uint64, err error)
	PutWeights(tx store.Tx, service string, weights []*donav1.VariantWeight, rolloutID string) error
	Quarantined(tx store.ReadTx, service string) (*statev1.Quarantine, error)
	Quarantine(tx store.Tx, service, variant, rolloutID, reason string) error
	LiftQuarantine(tx store.Tx, service, variant string) (lifted bool, err error)
}

// Auditor appends an entry to a service's chain inside the caller's
// transaction.
type Auditor interface {
	Append(tx store.Tx, chain string, e audit.Entry) error
}

// Options wires a Controller.
type Options struct {
	Store      store.Store
	Service    Service
	Audit      Auditor
	Analyzer   Analyzer
	Logger     hclog.Logger          // nil = no log
	HostID     string                // names this host in audit entries
	Heartbeat  time.Duration         // of endpoints; 0 = 5 s
	Tick       time.Duration         // between two looks at a rollout; 0 = 1 s
	WallClock  func() time.Time      // nil = time.Now; never used for dwell or freshness
	Registerer prometheus.Registerer // nil = no metrics

	// Ended is told of each end inside the transaction that writes it, so that
	// what follows a rollout ends with it. An error stops the end: it must be one
	// of the store's, never an opinion.
	Ended func(tx store.Tx, service string, end End) error
}

// End is how a rollout ended.
type End struct {
	ID     string
	Phase  Phase // Promoted, RolledBack, Aborted or Superseded
	Reason string
}

// Controller runs the rollouts of all services. Its methods may be called
// concurrently, whether or not Run is running; several controllers may run over
// one store.
type Controller struct {
	o       Options
	log     hclog.Logger
	metrics *metrics

	wake chan struct{} // one slot: look again now

	mu    sync.Mutex
	evals map[evalKey]*evaluator // guarded by mu; queries of steps that run
	seats chan struct{}          // one per evaluation in flight
	wg    sync.WaitGroup         // evaluations in flight
}

const (
	defaultHeartbeat = 5 * time.Second
	defaultTick      = time.Second
	// maxEvaluations is how many queries are asked at once, over all rollouts;
	// the others wait for the next tick.
	maxEvaluations = 256
)

// New returns a controller. It does nothing by itself until Run.
func New(o Options) *Controller {
	if o.Logger == nil {
		o.Logger = hclog.NewNullLogger()
	}
	if o.Heartbeat <= 0 {
		o.Heartbeat = defaultHeartbeat
	}
	if o.Tick <= 0 {
		o.Tick = defaultTick
	}
	if o.WallClock == nil {
		o.WallClock = time.Now
	}
	return &Controller{
		o: o, log: o.Logger.Named("rollout"), metrics: newMetrics(o.Registerer),
		wake:  make(chan struct{}, 1),
		evals: map[evalKey]*evaluator{},
		seats: make(chan struct{}, maxEvaluations),
	}
}

// Run ticks every live rollout until ctx ends, and returns when the last
// evaluation under way has. It returns nil: a store that fails is logged, shown
// in the metrics and tried again at the next tick.
func (c *Controller) Run(ctx context.Context) error {
	defer c.wg.Wait()
	// What must go back goes back before anything else moves.
	c.round(ctx, onlyRollbacks)
	ticker := time.NewTicker(c.o.Tick)
	defer ticker.Stop()
	for {
		c.round(ctx, everything)
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
		case <-c.wake:
		}
	}
}

// Tick looks at every live rollout once, as Run does at each tick. Evaluations
// that it begins go on when it returns, until they have an answer or ctx ends.
func (c *Controller) Tick(ctx context.Context) { c.round(ctx, everything) }

// again makes Run look now instead of at its next tick.
func (c *Controller) again() {
	select {
	case c.wake <- struct{}{}:
	default:
	}
}

type scope bool

const (
	everything    scope = false
	onlyRollbacks scope = true
)

// round ticks every live rollout once.
func (c *Controller) round(ctx context.Context, only scope) {
	var live []store.Entry
	err := c.o.Store.View(ctx, func(tx store.ReadTx) (err error) {
		live, err = tx.Scan(liveIndex, 0, store.MaxScore, 0)
		return err
	})
	if err != nil {
		c.failed(ctx, "list", "", err)
		return
	}
	c.metrics.live.Set(float64(len(live)))
	running := map[string]string{}
	for _, e := range live {
		if ctx.Err() != nil {
			return
		}
		r, err := c.tick(ctx, e.Member, only)
		if err != nil {
			c.failed(ctx, "tick", e.Member, err)
			running[e.Member] = "" // its evaluators stay until we know better
			continue
		}
		if only == everything && r != nil {
			running[e.Member] = r.GetId()
			c.evaluate(ctx, e.Member, r)
		}
	}
	if only == everything {
		c.forget(running)
	}
}

func (c *Controller) failed(ctx context.Context, op, service string, err error) {
	if ctx.Err() != nil || errors.Is(err, store.ErrClosed) {
		return // on the way out
	}
	c.metrics.failures.Inc()
	c.log.Error("a look at the rollouts failed; the next tick tries again", "op", op, "service", service, "error", err)
}

// errTransition ends a soft transaction that would have to be a hard one.
var errTransition = errors.New("rollout: a transition needs a hard transaction")

// tick lets Step look at one service's rollout and writes what it decided:
// timers softly, a transition hard and whole. It returns the record as it is
// afterwards; nil when the rollout is not live.
func (c *Controller) tick(ctx context.Context, service string, only scope) (*statev1.Rollout, error) {
	r, err := c.tryTick(ctx, service, only, store.Soft)
	if !errors.Is(err, errTransition) {
		return r, err
	}
	crash.Point("rollout.before-step")
	r, err = c.tryTick(ctx, service, only, store.Hard)
	if err == nil {
		crash.Point("rollout.after-step")
	}
	return r, err
}

func (c *Controller) tryTick(ctx context.Context, service string, only scope, durability store.Durability) (*statev1.Rollout, error) {
	var after *statev1.Rollout
	var event Event
	err := c.o.Store.Update(ctx, durability, func(tx store.Tx) error {
		after, event = nil, None
		s, err := c.scene(tx, service)
		if err != nil {
			return err
		}
		if s == nil || !s.state.Phase.Live() {
			return tx.IndexDelete(liveIndex, service) // the index is a hint; this one is out of date
		}
		d := Step(s.state, s.evidence, s.now)
		if only == onlyRollbacks && d.Event != Rollback {
			after = s.record
			return nil
		}
		if d.Event != None && durability != store.Hard {
			return errTransition
		}
		after, err = c.commit(tx, service, s, d, "host:"+c.o.HostID)
		event = d.Event
		return err
	})
	if err != nil {
		return nil, err
	}
	c.took(service, event, after)
	if !phaseOf(after.GetState()).Live() {
		return nil, nil
	}
	return after, nil
}

// took counts and logs a transition that is committed.
func (c *Controller) took(service string, event Event, r *statev1.Rollout) {
	if event == None {
		return
	}
	c.metrics.transitions.WithLabelValues(string(event)).Inc()
	c.log.Info("rollout moved", "service", service, "rollout", r.GetId(), "event", string(event),
		"state", phaseOf(r.GetState()).String(), "step", r.GetStepIndex(), "reason", r.GetReason())
}

// scene is a rollout and its evidence, read in one transaction.
type scene struct {
	record   *statev1.Rollout
	state    State
	evidence Evidence
	counts   *statev1.StepCounts
	now      time.Time // the store's, in the milliseconds that records keep
}

// scene reads the rollout of a service and what Step needs to know; nil when
// there is none.
func (c *Controller) scene(tx store.ReadTx, service string) (*scene, error) {
	s := &scene{record: &statev1.Rollout{}, now: fromMS(toMS(tx.Now()))}
	version, err := store.Load(tx, recordKey(service), s.record)
	if err != nil || version == 0 {
		return nil, err
	}
	if s.state, err = stateOf(s.record); err != nil {
		return nil, err
	}
	if s.counts, err = loadCounts(tx, service, s.record); err != nil {
		return nil, err
	}
	s.evidence = Evidence{
		Heartbeat: c.o.Heartbeat,
		Counts:    Counts{Requests: s.counts.GetCanary().GetRequests(), Errors: s.counts.GetCanary().GetErrors()},
		Results:   c.results(service, s.record),
	}
	s.evidence.Endpoints, err = c.o.Service.LegalEndpoints(tx, service, s.state.Plan.Canary)
	return s, err
}

// commit writes a decision inside tx: the record and, for a transition, the
// weights, the quarantine, the audit entry and the list of live rollouts. It
// returns the record as it then is.
func (c *Controller) commit(tx store.Tx, service string, s *scene, d Decision, actor string) (*statev1.Rollout, error) {
	var revision uint64
	if d.NewStep { // asked only then: it ties the transaction to one base
		revision = tx.Revision()
	}
	next := nextRecord(s.record, d, s.evidence.Counts, c.o.WallClock(), s.now, revision)
	if d.Event == None {
		if proto.Equal(s.record, next) {
			return next, nil
		}
		return next, store.Save(tx, recordKey(service), next)
	}
	if d.Next.Percent() != s.state.Percent() {
		if err := c.o.Service.PutWeights(tx, service, split(d.Next), d.Next.ID); err != nil {
			return nil, err
		}
	}
	if d.Quarantine {
		if err := c.o.Service.Quarantine(tx, service, d.Next.Plan.Canary, d.Next.ID, d.Next.Reason); err != nil {
			return nil, err
		}
	}
	if err := store.Save(tx, recordKey(service), next); err != nil {
		return nil, err
	}
	crash.Point("rollout.inside-step") // weights written, audit not: neither may be left
	if !d.Next.Phase.Live() {
		if err := tx.IndexDelete(liveIndex, service); err != nil {
			return nil, err
		}
	}
	if err := c.o.Audit.Append(tx, service, transitionEntry(s, d, next, actor)); err != nil {
		return nil, err
	}
	if !d.Next.Phase.Live() && c.o.Ended != nil {
		return next, c.o.Ended(tx, service, End{ID: d.Next.ID, Phase: d.Next.Phase, Reason: d.Next.Reason})
	}
	return next, nil
}

// split is the weights of a state: the canary first, so that its growing share
// only adds units.
func split(s State) []*donav1.VariantWeight {
	return []*donav1.VariantWeight{
		{Variant: s.Plan.Canary, Weight: s.Percent()},
		{Variant: s.Plan.Stable, Weight: 100 - s.Percent()},
	}
}
