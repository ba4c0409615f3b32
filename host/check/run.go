package check

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	statev1 "github.com/dodona-project/dodona/proto/state/v1"
	"google.golang.org/protobuf/proto"

	"github.com/dodona-project/dodona/host/store"
)

// Run makes tasks of what the planes want checked, and carries out what Judge
// decides, until ctx ends. It returns nil: a store that fails is logged, counted
// and tried again.
func (b *Broker) Run(ctx context.Context) error {
	tick := time.NewTicker(min(time.Second, b.o.Rules.Interval/10))
	defer tick.Stop()
	var sweep time.Time
	for {
		all := sweep.IsZero() || time.Since(sweep) >= 10*b.o.Rules.Interval
		if all {
			sweep = time.Now()
		}
		if err := b.Look(ctx, all); err != nil && ctx.Err() == nil && !errors.Is(err, store.ErrClosed) {
			b.metrics.failures.Inc()
			b.log.Error("a look at the checks failed; the next one tries again", "error", err)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
	}
}

// Look does once what Run does at each tick. With all, scopes that did not change
// are gone through too, so that a task that was lost comes back.
func (b *Broker) Look(ctx context.Context, all bool) error {
	var forgotten error
	if all {
		forgotten = b.forget(ctx)
	}
	return errors.Join(forgotten, b.sync(ctx, all), b.judge(ctx))
}

// forget removes the checkers that have not been there for a long time.
func (b *Broker) forget(ctx context.Context) error {
	return b.o.Store.Update(ctx, store.Soft, func(tx store.Tx) error {
		past := tx.Now().Add(-10 * b.o.Rules.presence()).UnixMilli()
		gone, err := tx.Scan(checkerIndex, 0, uint64(max(past, 0)), 0)
		if err != nil {
			return err
		}
		for _, e := range gone {
			if err := tx.Delete(checkerKey(e.Member)); err != nil {
				return err
			}
			if err := tx.IndexDelete(checkerIndex, e.Member); err != nil {
				return err
			}
		}
		return nil
	})
}

// sync makes tasks for new targets and removes those of targets that are gone. A
// scope that is damaged keeps what it has; the error says so when the others are
// done.
func (b *Broker) sync(ctx context.Context, all bool) error {
	var damage error
	wanted := map[group]uint64{} // version; those that still have tasks are there with 0
	err := b.o.Store.View(ctx, func(tx store.ReadTx) error {
		clear(wanted)
		damage = nil
		entries, err := tx.Scan(scopeIndex, 0, store.MaxScore, 0)
		if err != nil {
			return err
		}
		for _, e := range entries {
			if g, ok := parseGroup(e.Member); ok {
				wanted[g] = 0
			}
		}
		for name, plane := range b.o.Planes {
			scopes, err := plane.Scopes(tx)
			if err != nil {
				return err
			}
			for _, scope := range scopes {
				how, err := plane.Scope(tx, scope)
				if errors.Is(err, store.ErrDamaged) {
					delete(wanted, group{name, scope})
					damage = errors.Join(damage, err)
					continue
				}
				if err != nil {
					return err
				}
				wanted[group{name, scope}] = how.Version
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	b.mu.Lock()
	for g := range b.synced {
		if _, ok := wanted[g]; !ok {
			delete(b.synced, g)
			delete(b.alarms, g)
			delete(b.tallies, g)
		}
	}
	var stale []group
	for g, version := range wanted {
		if all || version == 0 || b.synced[g] != version {
			stale = append(stale, g)
		}
	}
	b.mu.Unlock()
	b.metrics.scopes.Set(float64(len(wanted)))
	for _, g := range stale {
		var version uint64
		if err := b.reconcileAll(ctx, g, all, &version); errors.Is(err, store.ErrDamaged) {
			damage = errors.Join(damage, fmt.Errorf("tasks of %s: %w", g.member(), err))
			continue
		} else if err != nil {
			return fmt.Errorf("tasks of %s: %w", g.member(), err)
		}
		b.mu.Lock()
		b.synced[g] = version
		b.mu.Unlock()
	}
	return damage
}

// reconcileAll makes a scope's tasks, some at a time.
func (b *Broker) reconcileAll(ctx context.Context, g group, all bool, version *uint64) error {
	for goOn := true; goOn; {
		if err := b.o.Store.Update(ctx, store.Soft, func(tx store.Tx) (err error) {
			*version, goOn, err = b.reconcile(tx, g, all)
			return err
		}); err != nil {
			return err
		}
	}
	return nil
}

// reconcileMost is how many tasks one transaction makes or removes: those of a whole
// upstream may be more than a transaction may write.
const reconcileMost = 2_000

// reconcile makes a scope's tasks what its targets ask for, and returns the version
// of the scope that this holds for. goOn says that there is more to do, for another
// transaction.
func (b *Broker) reconcile(tx store.Tx, g group, all bool) (version uint64, goOn bool, err error) {
	plane := b.o.Planes[g.plane]
	if plane == nil {
		return 0, false, nil // of another version of the host
	}
	how, err := plane.Scope(tx, g.scope)
	if err != nil {
		return 0, false, err
	}
	targets, err := plane.Targets(tx, g.scope)
	if err != nil {
		return 0, false, err
	}
	have, err := checksOf(tx, g)
	if err != nil {
		return 0, false, err
	}
	left := reconcileMost
	if how.Probe != "" {
		now := tx.Now().UnixMilli()
		for _, t := range targets {
			changed, err := b.reconcileTarget(tx, g, how, t, have[t.ID], now, all)
			if err != nil {
				return 0, false, err
			}
			delete(have, t.ID)
			if changed {
				if left--; left == 0 {
					return 0, true, settle(tx, g) // the rest in another transaction
				}
			}
		}
		if err := b.count(tx, plane, g, targets); err != nil {
			return 0, false, err
		}
	}
	for id, old := range have { // nobody asks for these
		if left--; left == 0 {
			return 0, true, settle(tx, g)
		}
		if err := deleteCheck(tx, place{g.plane, g.scope, id}, old); err != nil {
			return 0, false, err
		}
		if err := b.setOut(tx, g, id, old.RegisteredMs, false); err != nil {
			return 0, false, err
		}
	}
	if how.Probe != "" {
		return how.Version, false, settle(tx, g)
	}
	for _, index := range []string{scopeIndex, troubleIndex} {
		if err := tx.IndexDelete(index, g.member()); err != nil {
			return 0, false, err
		}
	}
	return how.Version, false, tx.Delete(g.key())
}

// reconcileTarget makes a target's task, keeps it, or begins it anew: for another
// registration altogether, and for another probe with what was found out so far,
// until the new one says something else.
// changed says that it wrote.
func (b *Broker) reconcileTarget(tx store.Tx, g group, how Scope, t Target, old *statev1.Check, now int64, all bool) (changed bool, err error) {
	p, asked := place{g.plane, g.scope, t.ID}, how.digest(t)
	next := &statev1.Check{
		Plane: g.plane, Scope: g.scope, Id: t.ID, Address: t.Address, RegisteredMs: t.RegisteredMs, Asked: asked,
		ProxyId: t.Proxy, Level: how.Level, Routing: t.Routing, Url: t.URL, EveryMs: t.Every.Milliseconds(), Lane: t.Lane,
		DueMs: now + int64(b.o.Random()*float64(min(time.Second, b.o.Rules.Suspect).Milliseconds())),
	}
	switch {
	case old == nil || old.Address != t.Address || old.RegisteredMs != t.RegisteredMs:
		if old != nil {
			next.Generation = old.Generation
		}
		if t.Out { // by what is not known any more
			if err := b.setOut(tx, g, t.ID, t.RegisteredMs, false); err != nil {
				return false, err
			}
		}
		if err := tx.IndexPut(g.key(), t.ID, 0); err != nil {
			return false, err
		}
	case !bytes.Equal(old.Asked, asked):
		next.Generation, next.Seen = old.Generation, old.Seen
		if h := old.GetHealth(); h != nil {
			next.Health = &statev1.CheckHealth{Health: h.Health, IssuedMs: h.IssuedMs, Out: h.Out, OutMs: h.OutMs}
			if h.Health == suspect {
				next.Health.Health = unknown
			}
		}
	case old.EveryMs != next.EveryMs:
		same := proto.CloneOf(old)
		same.EveryMs = next.EveryMs
		if same.DueMs = min(old.DueMs, now+milliseconds(b.drawn(t.Every))); t.Every == 0 {
			same.DueMs = old.DueMs
		}
		return true, saveCheck(tx, p, same)
	case all:
		return false, schedule(tx, p, old)
	default:
		return false, nil
	}
	if old != nil && old.GetHealth().GetFailures() > 0 {
		if err := tx.IndexDelete(g.bad(old.Lane), t.ID); err != nil {
			return false, err
		}
	}
	if err := letGo(tx, p, old); err != nil {
		return false, err
	}
	return true, saveCheck(tx, p, next)
}

// setOut takes a target of a plane that is judged out, or brings it back.
func (b *Broker) setOut(tx store.Tx, g group, id string, registeredMs int64, out bool) error {
	if judged, ok := b.o.Planes[g.plane].(Judged); ok {
		return judged.SetOut(tx, g.scope, id, registeredMs, out)
	}
	return nil
}

// judge looks at the scopes where something fails.
func (b *Broker) judge(ctx context.Context) error {
	var troubled []group
	if err := b.o.Store.View(ctx, func(tx store.ReadTx) (err error) {
		troubled, err = b.troubled(tx)
		return err
	}); err != nil {
		return err
	}
	var damage error
	alarms, tallies := map[group]string{}, map[string]map[string]Tally{} // by checker and scope, or upstream
	for _, g := range troubled {
		look, unit := b.judgeScope, g.member()
		if _, ok := b.o.Planes[g.plane].(Reducer); ok {
			look = func(ctx context.Context, g group) (alarm string, tally map[string]Tally, err error) {
				alarm, unit, tally, err = b.lookLanes(ctx, g)
				return alarm, tally, err
			}
		}
		alarm, tally, err := look(ctx, g)
		if errors.Is(err, store.ErrDamaged) {
			damage = errors.Join(damage, fmt.Errorf("judge %s: %w", g.member(), err))
			continue
		}
		if err != nil {
			return fmt.Errorf("judge %s: %w", g.member(), err)
		}
		if alarm != "" {
			alarms[g] = alarm
		}
		for by, t := range tally {
			if tallies[by] == nil {
				tallies[by] = map[string]Tally{}
			}
			sum := tallies[by][unit]
			tallies[by][unit] = Tally{Seen: sum.Seen + t.Seen, Failing: sum.Failing + t.Failing}
		}
	}
	if err := b.unprobed(ctx, alarms); err != nil {
		return err
	}
	b.tell(alarms)
	return errors.Join(damage, b.doubt(ctx, tallies))
}

// tell shows the alarms, and logs those that came and went.
func (b *Broker) tell(alarms map[group]string) {
	b.mu.Lock()
	before := b.alarms
	b.alarms = alarms
	b.mu.Unlock()
	b.metrics.alarms.Set(float64(len(alarms)))
	for g, alarm := range alarms {
		if before[g] == "" {
			b.log.Warn("targets that fail are kept", "plane", g.plane, "scope", g.scope, "alarm", alarm)
		}
	}
	for g := range before {
		if alarms[g] == "" {
			b.log.Info("the alarm is over", "plane", g.plane, "scope", g.scope)
		}
	}
}

// troubled lists the scopes that have to be judged.
func (b *Broker) troubled(tx store.ReadTx) (scopes []group, err error) {
	entries, err := tx.Scan(troubleIndex, 0, 0, 0)
	for _, e := range entries {
		if g, ok := parseGroup(e.Member); ok && b.o.Planes[g.plane] != nil {
			scopes = append(scopes, g)
		}
	}
	return scopes, err
}

// doubt finds the checkers that fail nearly everything of several of the scopes that
// were judged, and writes down since when. The next look judges by it.
func (b *Broker) doubt(ctx context.Context, tallies map[string]map[string]Tally) error {
	var live map[string]*statev1.Checker
	var now int64
	if err := b.o.Store.View(ctx, func(tx store.ReadTx) (err error) {
		now = tx.Now().UnixMilli()
		live, err = liveCheckers(tx, now)
		return err
	}); err != nil {
		return err
	}
	for id, c := range live {
		doubtful := Doubtful(slices.Collect(maps.Values(tallies[id])))
		if doubtful == (c.DoubtedMs != 0) {
			continue
		}
		if err := b.o.Store.Update(ctx, store.Soft, func(tx store.Tx) error {
			var c statev1.Checker
			version, err := store.Load(tx, checkerKey(id), &c)
			if err != nil || version == 0 || doubtful == (c.DoubtedMs != 0) {
				return err // another host was first
			}
			if c.DoubtedMs = 0; doubtful {
				c.DoubtedMs = now
			}
			return store.Save(tx, checkerKey(id), &c)
		}); err != nil {
			return err
		}
		if doubtful {
			b.log.Warn("a checker fails nearly everything: its word alone counts for less", "checker", id)
		}
	}
	return nil
}

// scene is what a scope's judgement rests on, as it is in the store.
type scene struct {
	Scene
	version uint64 // of the group's record
	checks  map[string]*statev1.Check
}

// scene reads a scope; nil when there is nothing to judge, or nothing yet by the
// probe that is asked for now.
func (b *Broker) scene(tx store.ReadTx, g group) (*scene, error) {
	how, err := b.o.Planes[g.plane].Scope(tx, g.scope)
	if err != nil || how.Probe == "" {
		return nil, err // sync clears it
	}
	s := &scene{Scene: Scene{Now: tx.Now().UnixMilli(), Doubted: map[string]int64{}, Group: &statev1.CheckGroup{}}}
	if s.version, err = store.Load(tx, g.key(), s.Group); err != nil {
		return nil, err
	}
	live, err := liveCheckers(tx, s.Now)
	if err != nil {
		return nil, err
	}
	s.Checkers = judges(live, how.Probe, how.level())
	for id, c := range live {
		if c.DoubtedMs != 0 {
			s.Doubted[id] = c.DoubtedMs
		}
	}
	if s.checks, err = checksOf(tx, g); err != nil {
		return nil, err
	}
	asked := how.digest(Target{})
	for id, c := range s.checks {
		if !bytes.Equal(c.Asked, asked) {
			return nil, nil // sync begins it anew
		}
		s.Members = append(s.Members, Member{ID: id, Health: c.Health})
	}
	return s, nil
}

// changes reports whether a judgement has anything to write.
func (s *scene) changes(j Judgement) bool {
	return len(j.Changed) > 0 || !j.Trouble || s.regroups(j)
}

func (s *scene) regroups(j Judgement) bool {
	return s.version == 0 || j.Group.BrakedMs != s.Group.BrakedMs || j.Group.Alarm != s.Group.Alarm
}

// tally counts a scope's targets by who saw them last.
func (s *scene) tally() map[string]Tally {
	tally := map[string]Tally{}
	for _, c := range s.checks {
		if by := c.GetSeen().GetChecker(); by != "" {
			t := tally[by]
			t.Seen++
			if failing(c.GetHealth()) {
				t.Failing++
			}
			tally[by] = t
		}
	}
	return tally
}

// judgeScope judges one scope and returns its alarm. A judgement that changes
// nothing, as most do, only reads; any other one is made once more by what is
// there when it is written.
func (b *Broker) judgeScope(ctx context.Context, g group) (alarm string, tally map[string]Tally, err error) {
	var s *scene
	var j Judgement
	look := func(tx store.ReadTx) (err error) {
		if s, err = b.scene(tx, g); s == nil || err != nil {
			s, j = nil, Judgement{}
			return err
		}
		j = Judge(b.o.Rules, s.Scene)
		return nil
	}
	if err := b.o.Store.View(ctx, look); err != nil {
		return "", nil, err
	}
	if s != nil && s.changes(j) {
		if err := b.o.Store.Update(ctx, store.Soft, func(tx store.Tx) error {
			if err := look(tx); s == nil || err != nil {
				return err
			}
			return b.carryOut(tx, g, s, j)
		}); err != nil {
			return "", nil, err
		}
		if s != nil {
			b.took(g, s.checks, j)
		}
	}
	if s == nil {
		return "", nil, nil
	}
	return j.Group.GetAlarm(), s.tally(), nil
}

// carryOut writes a judgement.
func (b *Broker) carryOut(tx store.Tx, g group, s *scene, j Judgement) error {
	for _, m := range j.Changed {
		c := s.checks[m.ID]
		if c.GetHealth().GetOut() != m.Health.Out {
			if err := b.setOut(tx, g, m.ID, c.RegisteredMs, m.Health.Out); err != nil {
				return err
			}
		}
		next := proto.CloneOf(c)
		next.Health = m.Health
		if err := store.Save(tx, place{g.plane, g.scope, m.ID}.key(), next); err != nil {
			return err
		}
	}
	if !j.Trouble {
		if err := tx.IndexDelete(troubleIndex, g.member()); err != nil {
			return err
		}
	}
	if !s.regroups(j) {
		return nil
	}
	return store.Save(tx, g.key(), j.Group)
}

// took counts and logs what a judgement changed, once it is committed.
func (b *Broker) took(g group, was map[string]*statev1.Check, j Judgement) {
	for _, m := range j.Changed {
		c := was[m.ID]
		if c.GetHealth().GetOut() == m.Health.Out {
			continue
		}
		direction := "back"
		if m.Health.Out {
			direction = "out"
		}
		b.metrics.moves.WithLabelValues(direction).Inc()
		b.log.Info("a target moved", "plane", g.plane, "scope", g.scope, "target", m.ID, "to", direction,
			"failures", m.Health.Failures, "seen", reason(c.GetSeen()))
	}
}
