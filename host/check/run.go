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
			for _, key := range []string{checkerKey(e.Member), heldKey(e.Member)} {
				if err := tx.Delete(key); err != nil {
					return err
				}
			}
			if err := tx.IndexDelete(checkerIndex, e.Member); err != nil {
				return err
			}
		}
		return nil
	})
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
