package service

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"hash/fnv"
	"math"
	"strings"
	"sync"
	"time"

	donav1 "github.com/dodona-project/dodona/proto/dona/v1"
	pluginv1 "github.com/dodona-project/dodona/proto/plugin/v1"
	statev1 "github.com/dodona-project/dodona/proto/state/v1"
	"github.com/hashicorp/go-hclog"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/dodona-project/dodona/host/store"
)

// A Compiler has a strategy plugin turn candidates into a plan that was checked.
// It is the strategy side of the plugin boundary.
type Compiler interface {
	// Compile returns the plan and when to ask again (0 = on change only).
	Compile(ctx context.Context, strategy string, config *structpb.Struct, req *pluginv1.CompileRequest) (*donav1.Plan, time.Duration, error)
	// Changed receives after a strategy plugin became ready or went away.
	Changed() <-chan struct{}
}

// Planner keeps every service's plan up to date. It re-reads what is and
// compiles what changed, beside everything else: a slow or dead strategy plugin
// leaves the last good plan in force and delays nobody. Several may run over one
// store: each compile is claimed first, and what a plan was compiled from is kept
// beside it, so that one of them compiles and the others find it done.
type Planner struct {
	plane    *Plane
	process  string // tells this planner's claims from those of its host's earlier lives
	compiler Compiler
	log      hclog.Logger
	slots    chan struct{} // bounds the compiles under way

	mu    sync.Mutex
	state map[string]*planning
}

// planning is what the planner remembers of one service.
type planning struct {
	version  uint64 // of the head looked at last
	changed  bool   // since the last compile began
	failed   bool   // the last compile did
	running  bool
	refresh  time.Time // compile again, changed or not; zero = never
	earliest time.Time // not before, so that a burst of changes is one compile
}

const (
	planPause = 100 * time.Millisecond // least time between two compiles of a service
	planRetry = time.Second            // while another host compiles, and after a failed one
	planYield = 300 * time.Millisecond // more after one that failed here: others may have a plugin that works
	planClaim = 5 * time.Second        // a host that died holds a compile up for so long; one takes much less
	planSlots = 8
)

// NewPlanner returns a planner; Run makes it work.
func NewPlanner(plane *Plane, compiler Compiler, log hclog.Logger) *Planner {
	var process [8]byte
	_, _ = rand.Read(process[:]) // never fails
	return &Planner{plane: plane, process: hex.EncodeToString(process[:]), compiler: compiler, log: log,
		slots: make(chan struct{}, planSlots), state: map[string]*planning{}}
}

// Run plans until ctx ends and waits for the compiles under way.
func (p *Planner) Run(ctx context.Context) error {
	var compiles sync.WaitGroup
	defer compiles.Wait()
	notice := p.plane.store.Watch(ctx, "svc/")
	// Retries, refreshes and pauses fall due without any notice; and notices come
	// with every report, so that one look at each tick is all they get.
	tick := time.NewTicker(planPause)
	defer tick.Stop()
	for moved := true; ; {
		if moved {
			if err := p.look(ctx); err != nil && ctx.Err() == nil {
				p.log.Error("cannot look at the services to plan", "error", err)
			}
		}
		for _, service := range p.due(time.Now()) {
			select {
			case p.slots <- struct{}{}:
			case <-ctx.Done():
				return nil
			}
			compiles.Go(func() {
				defer func() { <-p.slots }()
				p.plan(ctx, service)
			})
		}
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		case <-p.compiler.Changed():
			p.again()
		}
		select {
		case _, open := <-notice:
			if !open {
				return nil
			}
			moved = true
		default:
			moved = false
		}
	}
}

// look notes which services' heads moved.
func (p *Planner) look(ctx context.Context) error {
	return p.plane.store.View(ctx, func(tx store.ReadTx) error {
		services, err := p.plane.Services(tx)
		if err != nil {
			return err
		}
		for _, service := range services {
			head, err := tx.Get(headKey(service)) // Services has read them all
			if err != nil {
				return err
			}
			p.mu.Lock()
			s := p.state[service]
			if s == nil {
				s = &planning{}
				p.state[service] = s
			}
			if s.version != head.Version {
				s.version, s.changed = head.Version, true
			}
			p.mu.Unlock()
		}
		return nil
	})
}

// again has every service whose compile failed tried at once.
func (p *Planner) again() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, s := range p.state {
		if s.failed {
			s.refresh, s.earliest = time.Now(), time.Time{}
		}
	}
}

// due takes the services whose time has come.
func (p *Planner) due(now time.Time) (services []string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for service, s := range p.state {
		refresh := !s.refresh.IsZero() && !s.refresh.After(now)
		if s.running || s.earliest.After(now) || !s.changed && !refresh {
			continue
		}
		s.running, s.changed = true, false
		services = append(services, service)
	}
	return services
}

// done notes how a compile went.
func (p *Planner) done(service string, change func(s *planning)) {
	p.mu.Lock()
	defer p.mu.Unlock()
	s := p.state[service]
	s.running = false
	change(s)
}

// plan compiles one service's plan. A change that leaves what the plan in force
// was compiled from as it was (the plan's own publication is one) needs none, and
// one that another host compiles is left to it.
func (p *Planner) plan(ctx context.Context, service string) {
	p.mu.Lock()
	failedBefore := p.state[service].failed
	p.mu.Unlock()
	now := time.Now()
	retry := func(d time.Duration) func(s *planning) {
		return func(s *planning) { s.failed, s.refresh, s.earliest = true, now.Add(d), now.Add(planPause) }
	}
	// rest waits for a change, or for a refresh in d; 0 = none.
	rest := func(d time.Duration) func(s *planning) {
		return func(s *planning) {
			s.failed, s.refresh, s.earliest = false, time.Time{}, now.Add(planPause)
			if d > 0 {
				s.refresh = now.Add(max(d, planPause))
			}
		}
	}
	job, err := p.plane.planJob(ctx, service)
	var claim planClaimed
	if err == nil && job != nil {
		claim, err = p.plane.claimPlan(ctx, service, job, p.process)
	}
	switch {
	case err != nil:
		if ctx.Err() == nil && !errors.Is(err, errOvertaken) {
			p.log.Error("cannot read what to plan", "service", service, "error", err)
		}
		p.done(service, retry(planRetry))
		return
	case job == nil:
		p.done(service, rest(0))
		return
	case !claim.ours:
		p.done(service, rest(claim.again))
		return
	}
	plan, again, err := p.compiler.Compile(ctx, job.strategy, job.config, job.request)
	switch {
	case ctx.Err() != nil:
		return
	case err != nil:
		if !failedBefore {
			p.log.Warn("no plan from the strategy: the last good one stays", "service", service, "strategy", job.strategy, "error", err)
		}
		if err := p.plane.fallBack(ctx, service, job, err); err != nil && ctx.Err() == nil && !errors.Is(err, errOvertaken) {
			p.log.Error("cannot store the fallback plan", "service", service, "error", err)
		}
		p.done(service, retry(planRetry+planYield))
		return
	}
	if again > 0 {
		again = max(again, planRetry)
	}
	if err := p.plane.acceptPlan(ctx, service, job, plan, again); err != nil {
		if ctx.Err() == nil && !errors.Is(err, errOvertaken) {
			p.log.Error("cannot store the plan", "service", service, "error", err)
		}
		p.done(service, retry(planRetry))
		return
	}
	p.done(service, rest(again))
}

// planJob is what one compile needs.
type planJob struct {
	strategy string
	config   *structpb.Struct
	request  *pluginv1.CompileRequest
	inputs   [sha256.Size]byte // of all that makes a new plan necessary
	planned  uint64            // version of the plan record that this one replaces
	claimed  uint64            // version of the planning record, with our claim once there is one
	claim    *statev1.Planning // our claim
}

// planJob reads a service's candidates; nil when it has none.
func (p *Plane) planJob(ctx context.Context, service string) (job *planJob, err error) {
	err = p.store.View(ctx, func(tx store.ReadTx) error {
		job = nil
		entries, err := tx.Scan(endpointIndex(service), 0, 0, 0)
		if err != nil || len(entries) == 0 {
			return err
		}
		policy, err := p.Policy(tx, service)
		if err != nil {
			return err
		}
		j := &planJob{strategy: policy.Strategy, config: policy.StrategyConfig}
		if j.strategy == "" {
			j.strategy = DefaultStrategy
		}
		var plan statev1.PlanState
		if j.planned, err = loadDerived(tx, planKey(service), &plan); err != nil {
			return err
		}
		if j.claimed, err = loadDerived(tx, planningKey(service), new(statev1.Planning)); err != nil {
			return err
		}
		j.request = &pluginv1.CompileRequest{Scope: "service/" + service, Seed: seed(service), Previous: plan.Plan}
		if err := store.Fetch(tx, entries,
			func(id string) string { return endpointKey(service, id) },
			func(id string) string { return leaseKey(service, id) },
			func(id string) string { return callsKey(service, id) }); err != nil {
			return err
		}
		for _, e := range entries {
			candidate, err := p.candidate(tx, service, e.Member)
			if err != nil {
				return err
			}
			if candidate != nil {
				j.request.Candidates = append(j.request.Candidates, candidate)
			}
		}
		if len(j.request.Candidates) > 0 {
			j.inputs = planInputs(j)
			job = j
		}
		return nil
	})
	return job, err
}

// candidate reads one endpoint as the strategy sees it; nil when it drains, is
// kept out or is gone. Endpoints of a service have no configured priority.
func (p *Plane) candidate(tx store.ReadTx, service, id string) (*pluginv1.Candidate, error) {
	var ep statev1.EndpointState
	if version, damaged, err := loadOld(tx, endpointKey(service, id), &ep); err != nil || version == 0 || damaged || !live(&ep) {
		return nil, err
	}
	var lease statev1.Lease
	if _, err := loadDerived(tx, leaseKey(service, id), &lease); err != nil {
		return nil, err
	}
	var calls statev1.EndpointCalls
	if _, err := loadDerived(tx, callsKey(service, id), &calls); err != nil {
		return nil, err
	}
	recent := recentCalls(&calls, tx.Now())
	c := &pluginv1.Candidate{
		Id: id, Group: ep.Endpoint.Zone, Region: ep.Endpoint.Region,
		Weight: max(ep.Endpoint.LbWeight, 1), Capacity: ep.Capacity,
		Active: lease.InFlight, Utilization: min(lease.Utilization, 1), Requests: uint32(min(recent.requests, math.MaxUint32)),
		Age:    durationpb.New(max(tx.Now().Sub(time.UnixMilli(ep.RegisteredMs)), 0)),
		Labels: ep.Labels,
	}
	if recent.requests > 0 {
		c.ErrorRate = float64(recent.errs) / float64(recent.requests)
	}
	if recent.latency > 0 {
		c.Latency = durationpb.New(recent.latency)
	}
	return c, nil
}

// planInputs hashes what calls for a new plan: who the candidates are and what
// they weigh. Load and age move all the time; a strategy that cares for them
// asks to be refreshed.
func planInputs(j *planJob) (sum [sha256.Size]byte) {
	h := sha256.New()
	text := func(s string) {
		_ = binary.Write(h, binary.BigEndian, uint32(len(s)))
		h.Write([]byte(s))
	}
	text(j.strategy)
	config, _ := proto.MarshalOptions{Deterministic: true}.Marshal(j.config)
	text(string(config))
	for _, c := range j.request.Candidates {
		text(c.Id)
		text(c.Group)
		text(c.Region)
		_ = binary.Write(h, binary.BigEndian, [2]uint32{c.Weight, c.Capacity})
	}
	h.Sum(sum[:0])
	return sum
}

// seed is the same on every host, so that all compile the same plan.
func seed(service string) uint64 {
	h := fnv.New64a()
	h.Write([]byte(service))
	return h.Sum64()
}

// errOvertaken means that another host has claimed a compile, or stored a plan,
// since the job was read.
var errOvertaken = errors.New("service: another host plans the service")

// planClaimed says whether a compile is ours, and if not, when to look again; 0 =
// at the next change.
type planClaimed struct {
	ours  bool
	again time.Duration
}

// claimPlan claims a compile for this host, unless the plan in force was compiled
// from the same or another host is compiling. What this host compiled in an earlier
// life is compiled again: its plugins may be others now.
func (p *Plane) claimPlan(ctx context.Context, service string, job *planJob, process string) (c planClaimed, err error) {
	err = p.store.Update(ctx, store.Soft, func(tx store.Tx) error {
		c = planClaimed{}
		n := new(statev1.Planning)
		version, err := loadDerived(tx, planningKey(service), n)
		if err != nil {
			return err
		}
		if version != job.claimed {
			return errOvertaken
		}
		now := tx.Now().UnixMilli()
		left := func(ms int64) time.Duration { return max(time.Duration(ms-now)*time.Millisecond, 1) }
		earlier := n.Host == p.host && n.Process != process
		due := n.RefreshMs != 0 && n.RefreshMs <= now
		switch {
		case bytes.Equal(n.Inputs, job.inputs[:]) && !due && !earlier:
			if n.RefreshMs != 0 {
				c.again = left(n.RefreshMs)
			}
			return nil
		case n.UntilMs > now && n.Host != p.host:
			c.again = min(left(n.UntilMs), planRetry)
			return nil
		}
		n.Host, n.Process, n.UntilMs = p.host, process, now+planClaim.Milliseconds()
		c.ours, job.claim = true, n
		return store.Save(tx, planningKey(service), n)
	})
	return c, err
}

func (p *Plane) acceptPlan(ctx context.Context, service string, job *planJob, plan *donav1.Plan, again time.Duration) error {
	return p.putPlan(ctx, service, job, func(now time.Time, old *statev1.PlanState, n *statev1.Planning) *statev1.PlanState {
		n.Inputs, n.RefreshMs = job.inputs[:], 0
		if again > 0 {
			n.RefreshMs = now.Add(again).UnixMilli()
		}
		plan := proto.Clone(plan).(*donav1.Plan)
		plan.Strategy = job.strategy
		return &statev1.PlanState{Plan: plan, Strategy: job.strategy, Note: "accepted from " + job.strategy}
	})
}

// fallBack keeps the last good plan, or, where there is none of this strategy,
// publishes round robin by lb_weight. The note says why.
func (p *Plane) fallBack(ctx context.Context, service string, job *planJob, cause error) error {
	why := cause.Error()
	why = strings.ToValidUTF8(why[:min(len(why), 200)], "") // a record takes no half of a letter
	return p.putPlan(ctx, service, job, func(_ time.Time, old *statev1.PlanState, n *statev1.Planning) *statev1.PlanState {
		n.Inputs, n.RefreshMs = nil, 0
		if old.Plan != nil && old.Plan.Strategy == job.strategy {
			return &statev1.PlanState{Plan: old.Plan, Strategy: job.strategy,
				Note: fmt.Sprintf("last good plan of %s: %s", job.strategy, why)}
		}
		return &statev1.PlanState{Plan: &donav1.Plan{Algorithm: donav1.Algorithm_ALGORITHM_ROUND_ROBIN}, Strategy: job.strategy,
			Note: fmt.Sprintf("fallback to round robin by lb_weight, no plan from %s: %s", job.strategy, why)}
	})
}

// putPlan stores what next makes of the plan record, if that is still the one
// the job was read with and the claim is still ours, and gives the claim back. Only
// another plan moves the snapshot's version.
func (p *Plane) putPlan(ctx context.Context, service string, job *planJob, next func(now time.Time, old *statev1.PlanState, n *statev1.Planning) *statev1.PlanState) error {
	return p.store.Update(ctx, store.Soft, func(tx store.Tx) error {
		var old statev1.PlanState
		version, damaged, err := loadOld(tx, planKey(service), &old)
		if err != nil {
			return err
		}
		claim := new(statev1.Planning)
		if _, err := loadDerived(tx, planningKey(service), claim); err != nil {
			return err
		}
		if version != job.planned || !proto.Equal(claim, job.claim) {
			return errOvertaken
		}
		n := next(tx.Now(), &old, claim)
		claim.UntilMs = 0
		if err := store.Save(tx, planningKey(service), claim); err != nil {
			return err
		}
		n.Plan.Generation = old.Plan.GetGeneration()
		same := !damaged && proto.Equal(old.Plan, n.Plan)
		if same && proto.Equal(&old, n) {
			return nil
		}
		if !same {
			n.Plan = proto.Clone(n.Plan).(*donav1.Plan)
			n.Plan.Generation++
		}
		if err := store.Save(tx, planKey(service), n); err != nil || same {
			return err
		}
		return p.touch(tx, service, change{bytes: itemBytes(n.Plan) - itemBytes(old.Plan), recount: damaged})
	})
}
