package pool

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/fnv"
	"slices"
	"strings"
	"sync"
	"time"

	donav1 "github.com/dodona-project/dodona/proto/dona/v1"
	pluginv1 "github.com/dodona-project/dodona/proto/plugin/v1"
	statev1 "github.com/dodona-project/dodona/proto/state/v1"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/dodona-project/dodona/host/pool/ownership"
	"github.com/dodona-project/dodona/host/pool/poolconfig"
	"github.com/dodona-project/dodona/host/store"
)

const (
	planPause = 500 * time.Millisecond // least time between two looks at what to plan
	planRetry = 2 * time.Second        // after a compile that failed, and while another host compiles
	planClaim = 10 * time.Second       // a host that died holds a compile up for so long
	planSlots = 4                      // compiles at once
)

// plan keeps the plan of every routing up to date until ctx ends: when its candidates
// or its strategy changed, or when the strategy asked for it. A compile is claimed
// first, so that hosts of one store compile it once; a strategy that fails leaves its
// last good plan in force, or round robin where it has none.
func (p *Pool) plan(ctx context.Context) {
	if p.o.Compiler == nil {
		return
	}
	config, proxies := p.o.Store.Watch(ctx, configKey), p.o.Store.Watch(ctx, proxyPrefix)
	process := drawn()
	for {
		again, err := p.planAll(ctx, process)
		p.report("plan the routings", err)
		timer := time.NewTimer(again)
		open := true
		select {
		case <-ctx.Done():
		case <-timer.C:
		case _, open = <-config:
		case _, open = <-proxies:
		}
		timer.Stop()
		if !open || ctx.Err() != nil {
			return
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(planPause):
		}
	}
}

// planJob is what one compile needs.
type planJob struct {
	routing  string
	strategy string
	config   *structpb.Struct
	request  *pluginv1.CompileRequest
	inputs   []byte            // digest of what makes a new plan necessary
	planning *statev1.Planning // as it was read, then with our claim
}

// planAll compiles what there is to compile, and returns when to look again.
func (p *Pool) planAll(ctx context.Context, process string) (again time.Duration, err error) {
	jobs, again, err := p.planJobs(ctx, process)
	if err != nil {
		return planRetry, err
	}
	slots := make(chan struct{}, planSlots)
	var all sync.WaitGroup
	var mu sync.Mutex
	for _, job := range jobs {
		slots <- struct{}{}
		all.Go(func() {
			defer func() { <-slots }()
			if failed := p.planOne(ctx, process, job); failed != nil && ctx.Err() == nil {
				mu.Lock()
				again, err = planRetry, errors.Join(err, failed)
				mu.Unlock()
			}
		})
	}
	all.Wait()
	return again, err
}

// planJobs reads which routings need a plan.
func (p *Pool) planJobs(ctx context.Context, process string) (jobs []*planJob, again time.Duration, err error) {
	err = p.o.Store.View(ctx, func(tx store.ReadTx) error {
		jobs, again = nil, time.Minute
		have, err := p.lookUp(tx)
		if err != nil || have == nil {
			return err
		}
		active, err := activeUses(tx)
		if err != nil {
			return err
		}
		now := tx.Now()
		if err := fetchPlanning(tx, have, now); err != nil {
			return err
		}
		supplies := map[string][]*statev1.ProxyState{}
		for i := range have.config.Routings {
			r := &have.config.Routings[i]
			if !r.Enabled {
				continue
			}
			job, err := p.planJob(tx, have, r, supplies, active, now)
			if err != nil {
				return err
			}
			if job == nil {
				continue
			}
			n := job.planning
			refresh := n.RefreshMs != 0 && n.RefreshMs <= now.UnixMilli()
			switch {
			case bytes.Equal(n.Inputs, job.inputs) && !refresh && (n.Host != p.o.HostID || n.Process == process):
				if n.RefreshMs != 0 {
					again = min(again, time.Duration(n.RefreshMs-now.UnixMilli())*time.Millisecond)
				}
			case n.UntilMs > now.UnixMilli() && n.Host != p.o.HostID:
				again = min(again, planRetry)
			default:
				jobs = append(jobs, job)
			}
		}
		return nil
	})
	return jobs, max(again, planPause), err
}

// fetchPlanning reads what there is to plan with in a few round trips, whatever the
// number of routings and upstreams.
func fetchPlanning(tx store.ReadTx, have *published, now time.Time) error {
	var keys, names []string
	for _, r := range have.config.Routings {
		if !r.Enabled {
			continue
		}
		keys = append(keys, planningKey(r.Name), planKey(r.Name))
		for _, ref := range r.Upstreams {
			if u, ok := have.config.Upstream(ref.Name); ok && u.Enabled && !slices.Contains(names, u.Name) {
				names = append(names, u.Name)
			}
		}
	}
	if _, err := tx.GetMany(keys...); err != nil {
		return err
	}
	return fetchSupply(tx, uint64(now.UnixMilli()), names...)
}

// activeUses counts the uses of each proxy by the workers' newest reports.
func activeUses(tx store.ReadTx) (map[string]uint32, error) {
	crews, err := loadCrews(tx)
	if err != nil {
		return nil, err
	}
	active := map[string]uint32{}
	for _, c := range crews {
		for _, counter := range ownership.Counters(c.runtime) {
			active[counter.ProxyID] += counter.Active
		}
	}
	return active, nil
}

// planJob reads a routing's candidates; nil when it has none.
func (p *Pool) planJob(tx store.ReadTx, have *published, r *poolconfig.Routing, supplies map[string][]*statev1.ProxyState, active map[string]uint32, now time.Time) (*planJob, error) {
	job := &planJob{routing: r.Name, strategy: r.Strategy, planning: new(statev1.Planning)}
	var err error
	if job.config, err = asStruct(r.StrategyConfig); err != nil {
		return nil, err
	}
	if err := loadSoft(tx, planningKey(r.Name), job.planning); err != nil {
		return nil, err
	}
	before := new(statev1.PlanState)
	if err := loadSoft(tx, planKey(r.Name), before); err != nil {
		return nil, err
	}
	h := fnv.New64a()
	h.Write([]byte(r.Name))
	job.request = &pluginv1.CompileRequest{Scope: "routing/" + r.Name, Seed: h.Sum64(), Previous: before.Plan}
	for _, ref := range r.Upstreams {
		u, ok := have.config.Upstream(ref.Name)
		if !ok || !u.Enabled {
			continue
		}
		supply, read := supplies[u.Name]
		if !read {
			entries, err := tx.Scan(proxiesIndex(u.Name), uint64(now.UnixMilli()), store.MaxScore, 0)
			if err != nil {
				return nil, err
			}
			if supply, err = loadProxies(tx, entries); err != nil {
				return nil, err
			}
			supplies[u.Name] = supply
		}
		for _, s := range supply {
			if (s.State != ownership.Available && s.State != ownership.Suspect) || now.UnixMilli() >= s.UsableMs {
				continue
			}
			job.request.Candidates = append(job.request.Candidates, &pluginv1.Candidate{
				Id: s.Id, Group: u.Name, Weight: max(u.CapacityPerProxy, 1), Priority: ref.Priority, Capacity: u.CapacityPerProxy, Active: active[s.Id], Labels: u.Labels,
			})
		}
	}
	if len(job.request.Candidates) == 0 {
		return nil, nil
	}
	job.inputs = planInputs(job)
	return job, nil
}

// planInputs is a digest of what calls for a new plan. Load moves all the time; a
// strategy that cares for it asks to be refreshed.
func planInputs(j *planJob) []byte {
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
		_ = binary.Write(h, binary.BigEndian, [2]uint32{c.Weight, c.Priority})
	}
	return h.Sum(nil)
}

// planOne claims a compile, makes it, and stores what came of it.
func (p *Pool) planOne(ctx context.Context, process string, job *planJob) error {
	read := job.planning
	claimed := false
	if err := p.o.Store.Update(ctx, store.Soft, func(tx store.Tx) error {
		claimed = false
		n := new(statev1.Planning)
		if err := loadSoft(tx, planningKey(job.routing), n); err != nil {
			return err
		}
		if !proto.Equal(n, read) {
			return nil // another host was quicker
		}
		n.Host, n.Process, n.UntilMs = p.o.HostID, process, tx.Now().Add(planClaim).UnixMilli()
		claimed, job.planning = true, n
		return store.Save(tx, planningKey(job.routing), n)
	}); err != nil || !claimed {
		return err
	}
	plan, refresh, cause := p.o.Compiler.Compile(ctx, job.strategy, job.config, job.request)
	if err := ctx.Err(); err != nil {
		return err // that of the compile, if there is one, is because of it
	}
	err := p.o.Store.Update(ctx, store.Soft, func(tx store.Tx) error { return p.putPlan(tx, job, plan, refresh, cause) })
	if cause != nil {
		return fmt.Errorf("routing %s, strategy %s: %w", job.routing, job.strategy, cause)
	}
	return err
}

// putPlan stores a plan, or why there is none, if our claim still stands.
func (p *Pool) putPlan(tx store.Tx, job *planJob, plan *donav1.Plan, refresh time.Duration, cause error) error {
	n := new(statev1.Planning)
	if err := loadSoft(tx, planningKey(job.routing), n); err != nil {
		return err
	}
	if !proto.Equal(n, job.planning) {
		return nil
	}
	old := new(statev1.PlanState)
	if err := loadSoft(tx, planKey(job.routing), old); err != nil {
		return err
	}
	n.UntilMs, n.RefreshMs, n.Inputs = 0, 0, job.inputs
	next := &statev1.PlanState{Strategy: job.strategy}
	if cause != nil {
		n.Inputs = nil // tried again
		why := cause.Error()
		why = strings.ToValidUTF8(why[:min(len(why), 200)], "") // a record takes no half of a letter
		next.Plan = &donav1.Plan{Algorithm: donav1.Algorithm_ALGORITHM_ROUND_ROBIN}
		next.Note = fmt.Sprintf("fallback to round robin, no plan from %s: %s", job.strategy, why)
		if old.Plan.GetStrategy() == job.strategy && old.Strategy == job.strategy {
			next.Plan, next.Note = old.Plan, fmt.Sprintf("last good plan of %s: %s", job.strategy, why)
		}
	} else {
		if refresh > 0 {
			n.RefreshMs = tx.Now().Add(max(refresh, planPause)).UnixMilli()
		}
		next.Plan = proto.CloneOf(plan)
		next.Plan.Strategy, next.Note = job.strategy, "accepted from "+job.strategy
	}
	if err := store.Save(tx, planningKey(job.routing), n); err != nil {
		return err
	}
	next.Plan.Generation = old.Plan.GetGeneration()
	if proto.Equal(old, next) {
		return nil
	}
	if !proto.Equal(old.Plan, next.Plan) {
		next.Plan = proto.CloneOf(next.Plan)
		next.Plan.Generation++
	}
	return store.Save(tx, planKey(job.routing), next)
}
