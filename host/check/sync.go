package check

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"time"

	statev1 "github.com/dodona-project/dodona/proto/state/v1"
	"google.golang.org/protobuf/proto"

	"github.com/dodona-project/dodona/host/store"
)

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
