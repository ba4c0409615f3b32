package session

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	statev1 "github.com/dodona-project/dodona/proto/state/v1"

	"github.com/dodona-project/dodona/host/refusal"
	"github.com/dodona-project/dodona/host/store"
)

const (
	endsPerTx  = 1000        // leases that one transaction ends
	fencePause = time.Minute // between two sweeps of the fences
)

// Start remembers the leases that this host has served before and freezes their
// removal until enough of their clients are back, here or at another host. It is
// called once, before the first registration.
func (r *Registry) Start(ctx context.Context) error {
	scopes := make(map[string][]string)
	var now int64
	err := r.store.View(ctx, func(tx store.ReadTx) error {
		clear(scopes)
		now = tx.Now().UnixMilli()
		seen := make(map[string]bool)
		for from := uint64(0); ; {
			entries, err := tx.Scan(leaseIndex, from, store.MaxScore, store.MaxScan)
			if err != nil {
				return err
			}
			fresh := 0
			for _, e := range entries {
				if seen[e.Member] {
					continue
				}
				seen[e.Member] = true
				fresh++
				if n, ok := parseMember(e.Member); ok && n.plane == r.name {
					scopes[n.scope] = append(scopes[n.scope], n.id)
				}
			}
			if len(entries) < store.MaxScan || fresh == 0 {
				return nil
			}
			from = entries[len(entries)-1].Score
		}
	})
	if err != nil {
		return fmt.Errorf("session: start: %w", err)
	}
	for scope, ids := range scopes {
		if err := r.remember(ctx, scope, ids); err != nil {
			return fmt.Errorf("session: start: %s: %w", scope, err)
		}
	}
	r.first.Store(r.store.Info().First)
	r.see(now)
	r.started.Store(true)
	return nil
}

func (r *Registry) remember(ctx context.Context, scope string, ids []string) error {
	return r.store.Update(ctx, store.Soft, func(tx store.Tx) error {
		leases, err := r.leases(tx, scope, ids)
		if err != nil {
			return err
		}
		if r.shared {
			// What others serve goes on, and what nobody serves any more ends as
			// anything does that misses its heartbeats.
			leases = slices.DeleteFunc(leases, func(l *statev1.Lease) bool { return l.GetHost() != r.host })
		}
		if len(leases) == 0 {
			return nil
		}
		fresh := uint32(0)
		for _, l := range leases {
			if !l.Remembered {
				fresh++
			}
			l.Remembered, l.Detached = true, true
			if err := saveLease(tx, l); err != nil {
				return err
			}
		}
		now, total := tx.Now(), uint32(len(leases))
		counts := &statev1.LeaseScope{Leases: total, Remembered: total}
		f := &statev1.Freeze{
			Reason: FreezeRestart, Remembered: total,
			SinceMs: now.UnixMilli(), UntilMs: now.Add(r.rules.Restart).UnixMilli(),
		}
		if r.shared {
			if err := r.join(tx, scope, fresh, counts, f); err != nil {
				return err
			}
		}
		if err := saveScope(tx, r.name, scope, counts); err != nil {
			return err
		}
		return saveFreeze(tx, r.name, scope, f)
	})
}

// join adds a start of this host, with fresh leases that nobody waits for yet, to
// what other hosts have written of the scope: theirs go on to count, and a freeze
// that holds now is not made shorter.
func (r *Registry) join(tx store.Tx, scope string, fresh uint32, counts *statev1.LeaseScope, f *statev1.Freeze) error {
	had := new(statev1.LeaseScope)
	if _, err := store.Load(tx, scopeKey(r.name, scope), had); err != nil {
		return err
	}
	before, err := loadFreeze(tx, r.name, scope)
	if err != nil {
		return err
	}
	counts.Leases = max(had.GetLeases(), counts.GetLeases())
	counts.Remembered = had.GetRemembered() + fresh
	counts.EndedMs = had.GetEndedMs()
	f.Remembered = counts.Remembered
	if active(before, f.SinceMs) {
		f.UntilMs = max(f.UntilMs, before.UntilMs)
	}
	return nil
}

// leases reads those of ids that exist.
func (r *Registry) leases(tx store.ReadTx, scope string, ids []string) ([]*statev1.Lease, error) {
	keys := make([]string, len(ids))
	for i, id := range ids {
		keys[i] = name{r.name, scope, id}.key()
	}
	if _, err := tx.GetMany(keys...); err != nil {
		return nil, err
	}
	leases := make([]*statev1.Lease, 0, len(ids))
	for _, id := range ids {
		l, err := loadLease(tx, name{r.name, scope, id})
		if err != nil {
			return nil, err
		}
		if l != nil {
			leases = append(leases, l)
		}
	}
	return leases, nil
}

// Run ends overdue leases and old fences until ctx ends, and returns its error.
// It must run while streams are served: a pause of it is taken for a pause of the
// host. A failed sweep is logged and made up by the next one.
func (r *Registry) Run(ctx context.Context) error {
	tick := time.NewTicker(min(r.rules.Heartbeat/4, time.Second))
	defer tick.Stop()
	var fences time.Time
	for {
		select {
		case <-ctx.Done():
			if r.draining.Load() {
				r.unsign()
			}
			return ctx.Err()
		case now := <-tick.C:
			if err := r.Sweep(ctx); err != nil && ctx.Err() == nil {
				r.log.Error("sweep of leases failed: it is tried again", "plane", r.name, "error", err)
			}
			if now.Sub(fences) >= fencePause {
				fences = now
				if _, err := SweepFences(ctx, r.store); err != nil && ctx.Err() == nil {
					r.log.Error("sweep of fences failed: it is tried again", "error", err)
				}
			}
		}
	}
}

// Sweep looks once at all overdue leases and ends those whose time has come. Run
// calls it; tests may. A damaged record keeps the leases of its scope, and of no
// other; the error says which.
func (r *Registry) Sweep(ctx context.Context) error {
	first := r.store.Info().First // before what may freeze for it
	var due map[string][]string   // scope -> ids to judge
	var over []string             // scopes whose freeze is over
	var now int64
	var frozen bool
	held := 0
	err := r.store.View(ctx, func(tx store.ReadTx) error {
		var err error
		now, held = tx.Now().UnixMilli(), 0
		if due, held, frozen, err = r.due(tx, now); err != nil {
			return err
		}
		over, err = r.thawed(tx, now)
		return err
	})
	if err != nil {
		return err
	}
	if err := r.sign(ctx, now); err != nil {
		return err
	}
	var damage error
	if len(due) > 0 || r.paused(now) {
		if held, damage, err = r.end(ctx, due, held); err != nil {
			return err
		}
	}
	r.first.Store(first)
	r.see(now)
	r.metrics.held.Set(float64(held))
	if frozen {
		return damage // what sat out a freeze is still there: its record is needed
	}
	for _, scope := range over {
		if err := r.thaw(ctx, scope); err != nil {
			return err
		}
	}
	return damage
}

// due lists the overdue leases by scope, leaving out the scopes where a freeze
// holds them all and already says so. frozen reports a freeze of the whole plane.
func (r *Registry) due(tx store.ReadTx, now int64) (due map[string][]string, held int, frozen bool, err error) {
	entries, err := tx.Scan(leaseIndex, 0, uint64(max(now, 0)), 0)
	if err != nil {
		return nil, 0, false, err
	}
	due = make(map[string][]string)
	newest := make(map[string]int64)
	oldest := make(map[string]int64)
	for _, e := range entries {
		n, ok := parseMember(e.Member)
		if !ok || n.plane != r.name {
			continue
		}
		if len(due[n.scope]) == 0 {
			oldest[n.scope] = int64(e.Score)
		}
		due[n.scope] = append(due[n.scope], n.id)
		newest[n.scope] = int64(e.Score)
	}
	whole, err := loadFreeze(tx, r.name, WholePlane)
	if err != nil {
		return nil, 0, false, err
	}
	frozen = active(whole, now)
	for scope, ids := range due {
		f, err := loadFreeze(tx, r.name, scope)
		if err != nil {
			return nil, 0, false, err
		}
		holds := frozen || active(f, now) && oldest[scope] > max(servedUntil(f, now), servedUntil(whole, now))
		if holds && (frozen || int(f.GetHeld()) == len(ids)) {
			held += len(ids)
			delete(due, scope)
		}
	}
	return due, held, frozen, nil
}

// thawed lists the scopes whose freeze is over.
func (r *Registry) thawed(tx store.ReadTx, now int64) ([]string, error) {
	entries, err := tx.Scan(freezeIndex, 0, uint64(max(now, 0)), 0)
	if err != nil {
		return nil, err
	}
	var over []string
	for _, e := range entries {
		if plane, scope, ok := strings.Cut(e.Member, "/"); ok && plane == r.name {
			over = append(over, scope)
		}
	}
	return over, nil
}

// end judges the scopes in due, in order of their names. Damage in one keeps no
// other from being judged.
func (r *Registry) end(ctx context.Context, due map[string][]string, held int) (all int, damage, err error) {
	if len(due) == 0 { // only a pause to write down
		due = map[string][]string{WholePlane: nil}
	}
	names := make([]string, 0, len(due))
	for scope := range due {
		names = append(names, scope)
	}
	slices.Sort(names)
	for _, scope := range names {
		for {
			left, more, err := r.sweepScope(ctx, scope, due[scope])
			switch {
			case errors.Is(err, store.ErrDamaged):
				damage = errors.Join(damage, fmt.Errorf("%s: %w", scope, err))
			case err != nil:
				return held, damage, fmt.Errorf("%s: %w", scope, err)
			}
			if !more {
				held += left
				break
			}
		}
	}
	return held, damage, nil
}

// sweepScope judges the leases of one scope in one transaction; more is true when
// some that may end are left for the next.
func (r *Registry) sweepScope(ctx context.Context, scope string, ids []string) (held int, more bool, err error) {
	var ended []*statev1.Lease
	var froze *statev1.Freeze
	err = r.store.Update(ctx, store.Soft, func(tx store.Tx) error {
		ended, held, more = nil, 0, false
		sc, counts, f, err := r.scene(tx, scope)
		if err != nil {
			return err
		}
		froze = f
		leases, err := r.leases(tx, scope, ids)
		if err == nil {
			leases, err = r.ours(tx, leases, sc.Now)
		}
		if err != nil || len(leases) == 0 {
			return err
		}
		deadlines := make([]int64, len(leases))
		for i, l := range leases {
			deadlines[i] = l.GetDeadlineMs()
		}
		j := Judge(r.rules, sc, deadlines)
		held, more = j.Held, len(j.End) > endsPerTx
		for _, i := range j.End[:min(len(j.End), endsPerTx)] {
			ended = append(ended, leases[i])
		}
		if f := r.noted(j, sc); f != nil {
			if j.Freeze != nil {
				froze = f
			}
			if err := saveFreeze(tx, r.name, scope, f); err != nil {
				return err
			}
		}
		if len(ended) == 0 {
			return nil
		}
		counts.EndedMs = j.Ended(sc.Now, len(ended))
		return r.remove(tx, scope, ended, Expired, counts)
	})
	if err != nil {
		return 0, false, err
	}
	if froze != nil {
		r.frozen(scope, froze)
	}
	for _, l := range ended {
		r.metrics.ended.WithLabelValues(string(Expired)).Inc()
		if s := r.stream(name{r.name, scope, l.GetId()}, l.GetGeneration()); s != nil {
			s.stop(refusal.New(refusal.Aborted, "the lease has ended: no heartbeat for %s; register again", r.rules.TTL()))
		}
	}
	if len(ended) > 0 {
		r.log.Info("leases ended: their heartbeats stayed away", "plane", r.name, "scope", scope, "leases", len(ended))
	}
	return held, more, nil
}

// noted is the scope's freeze record when it has to be written: a new freeze, or
// one that holds another number than it says. Of several hosts each holds some: the
// record has the most.
func (r *Registry) noted(j Judgement, sc Scene) *statev1.Freeze {
	if j.Freeze != nil {
		return j.Freeze
	}
	if !active(sc.Plane, sc.Now) && active(sc.Scope, sc.Now) && int(sc.Scope.GetHeld()) != j.Held && !(r.shared && int(sc.Scope.GetHeld()) > j.Held) {
		sc.Scope.Held = uint32(j.Held)
		return sc.Scope
	}
	return nil
}

// scene reads what a judgement about scope rests on. When the host was paused, it
// freezes the whole plane first, or has a freeze that holds last as long as a new one
// would, and returns that freeze.
func (r *Registry) scene(tx store.Tx, scope string) (sc Scene, counts *statev1.LeaseScope, froze *statev1.Freeze, err error) {
	sc.Now = tx.Now().UnixMilli()
	counts = new(statev1.LeaseScope)
	if _, err = store.Load(tx, scopeKey(r.name, scope), counts); err != nil {
		return sc, nil, nil, err
	}
	sc.Leases, sc.Ended = int(counts.GetLeases()), counts.GetEndedMs()
	if sc.Scope, err = loadFreeze(tx, r.name, scope); err != nil {
		return sc, nil, nil, err
	}
	if sc.Plane, err = loadFreeze(tx, r.name, WholePlane); err != nil {
		return sc, nil, nil, err
	}
	if until := sc.Now + r.rules.TTL().Milliseconds(); r.paused(sc.Now) && (!active(sc.Plane, sc.Now) || sc.Plane.GetUntilMs() < until) {
		froze = &statev1.Freeze{Reason: FreezePaused, SinceMs: sc.Now, UntilMs: until}
		if active(sc.Plane, sc.Now) {
			froze.SinceMs = sc.Plane.GetSinceMs()
		}
		sc.Plane = froze
		err = saveFreeze(tx, r.name, WholePlane, froze)
	}
	return sc, counts, froze, err
}

// paused reports whether the last sweep is so long ago that this host cannot have
// served heartbeats meanwhile, or whether the store has gone on from less than it had:
// a fail-over loses the newest heartbeats.
func (r *Registry) paused(now int64) bool {
	return now-r.seen.Load() > r.rules.TTL().Milliseconds()/2 || r.store.Info().First != r.first.Load()
}

func (r *Registry) see(now int64) {
	if now > r.seen.Load() {
		r.seen.Store(now)
	}
}

// remove ends leases of one scope. counts may be nil: then the faults that the
// guard counts stay as they are.
func (r *Registry) remove(tx store.Tx, scope string, leases []*statev1.Lease, reason Reason, counts *statev1.LeaseScope) error {
	if counts == nil {
		counts = new(statev1.LeaseScope)
		if _, err := store.Load(tx, scopeKey(r.name, scope), counts); err != nil {
			return err
		}
	}
	for _, l := range leases {
		counts.Leases -= min(counts.Leases, 1)
		if l.GetRemembered() {
			counts.Remembered -= min(counts.Remembered, 1)
		}
		if err := deleteLease(tx, name{r.name, scope, l.GetId()}); err != nil {
			return err
		}
		if err := r.plane.Ended(tx, l, reason); err != nil {
			return err
		}
	}
	return saveScope(tx, r.name, scope, counts)
}

// thaw removes the record of a freeze that is over, once all that sat it out have
// ended.
func (r *Registry) thaw(ctx context.Context, scope string) error {
	return r.store.Update(ctx, store.Soft, func(tx store.Tx) error {
		f, err := loadFreeze(tx, r.name, scope)
		if err != nil || f == nil || active(f, tx.Now().UnixMilli()) {
			return err
		}
		return deleteFreeze(tx, r.name, scope)
	})
}

func (r *Registry) frozen(scope string, f *statev1.Freeze) {
	r.metrics.freezes.WithLabelValues(f.GetReason()).Inc()
	if f.GetReason() == FreezePaused {
		scope = WholePlane
	}
	r.log.Warn("removals are frozen", "plane", r.name, "scope", scope, "reason", f.GetReason(),
		"held", f.GetHeld(), "until", time.UnixMilli(f.GetUntilMs()).UTC().Format(time.RFC3339))
}
