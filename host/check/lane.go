package check

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	controlplanev1 "github.com/dodona-project/dodona/proto/controlplane/v1"
	statev1 "github.com/dodona-project/dodona/proto/state/v1"

	"github.com/dodona-project/dodona/host/store"
)

// every are the rules of a task with an interval of its own; 0 = it has none.
func (r Rules) every(ms int64) Rules {
	if ms > 0 {
		r.Interval = time.Duration(ms) * time.Millisecond
		r.Suspect = min(r.Suspect, r.Interval)
	}
	return r
}

// Brake is since when a lane's brake is on, 0 = it is off. It goes on when more than
// half of the targets began to fail within one round, and off when no more than half
// is bad. began are the begins of the last runs of failures of those that are bad, ms:
// they fail, or are not what they were again.
func Brake(r Rules, sinceMs int64, targets int, began []int64, now int64) int64 {
	recent := 0
	for _, ms := range began {
		if ms > now-r.round().Milliseconds() {
			recent++
		}
	}
	switch {
	case 2*len(began) <= targets:
		return 0
	case sinceMs == 0 && 2*recent > targets:
		return now
	}
	return sinceMs
}

// observe counts an observation of a Reducer's task and has the plane decide.
func (b *Broker) observe(tx store.Tx, plane Reducer, p place, t *statev1.Check, o Observation, r Report) (Effect, error) {
	g, rules := group{p.plane, p.scope}, b.o.Rules.every(t.EveryMs)
	s := Sighting{Task: t, Run: Reduce(rules, t.Health, o), Rules: rules, AtMs: o.AtMs, EgressIP: r.Subject.EgressIP}
	s.Counts = (o.Result == success || o.Result == failure) && o.IssuedMs >= t.GetHealth().GetIssuedMs()
	s.Good = o.Result == success
	s.Reason = reason(&statev1.CheckSeen{Result: r.Result, ErrorClass: r.ErrorClass, Detail: r.Detail, Status: r.Status})
	var err error
	if s.Word, err = b.word(tx, g, t, s); err != nil {
		return Effect{}, err
	}
	effect, err := plane.Observe(tx, s)
	if err == nil && s.Counts && s.Good {
		err = b.well(tx, g, t, effect, rules, o.AtMs)
	}
	t.Health = s.Run
	return effect, err
}

// well takes tasks out of those that are bad, after a good check.
func (b *Broker) well(tx store.Tx, g group, t *statev1.Check, e Effect, r Rules, now int64) error {
	for _, member := range e.Well {
		if scope, id, ok := strings.Cut(member, "/"); ok {
			if err := tx.IndexDelete(group{g.plane, scope}.bad(""), id); err != nil {
				return err
			}
		}
	}
	switch {
	case t.GetHealth().GetFailures() > 0 && !e.Bad:
		if err := tx.IndexDelete(g.bad(t.Lane), t.Id); err != nil {
			return err
		}
	case len(e.Well) == 0:
		return nil
	}
	record, err := loadGroup(tx, g)
	if err == nil {
		_, err = b.brake(tx, g, record, t.Lane, r, now)
	}
	return err
}

// word is what a failure counts for now, this one included.
func (b *Broker) word(tx store.Tx, g group, t *statev1.Check, s Sighting) (Word, error) {
	w := Word{Now: s.AtMs}
	if !s.Counts || s.Good {
		return w, nil
	}
	if err := tx.IndexPut(g.bad(t.Lane), t.Id, uint64(s.Run.FailingMs)); err != nil {
		return w, err
	}
	record, err := loadGroup(tx, g)
	if err != nil {
		return w, err
	}
	if w.BrakedMs, err = b.brake(tx, g, record, t.Lane, s.Rules, s.AtMs); err != nil {
		return w, err
	}
	live, err := liveCheckers(tx, s.AtMs)
	if err != nil {
		return w, err
	}
	how, err := b.o.Planes[g.plane].Scope(tx, g.scope)
	if err != nil {
		return w, err
	}
	w.Checkers, w.Doubted = judges(live, how.Probe, how.level()), map[string]int64{}
	for id, c := range live {
		if c.DoubtedMs != 0 {
			w.Doubted[id] = c.DoubtedMs
		}
	}
	return w, nil
}

// brake puts a lane's brake on or off, and returns since when it is on.
func (b *Broker) brake(tx store.Tx, g group, record *statev1.CheckGroup, lane string, r Rules, now int64) (int64, error) {
	l := record.Lanes[lane]
	if l == nil {
		return 0, nil // nobody has counted it yet
	}
	bad, err := tx.Scan(g.bad(lane), 0, store.MaxScore, 0)
	if err != nil {
		return 0, err
	}
	began := make([]int64, len(bad))
	for i, e := range bad {
		began[i] = int64(e.Score)
	}
	since := Brake(r, l.BrakedMs, int(l.Targets), began, now)
	if since == l.BrakedMs {
		return since, nil
	}
	l.BrakedMs = since
	return since, store.Save(tx, g.key(), record)
}

// loadGroup reads what is known of a scope; a damaged record reads as none, and is made
// anew by the next look.
func loadGroup(tx store.ReadTx, g group) (*statev1.CheckGroup, error) {
	record := new(statev1.CheckGroup)
	_, err := store.Load(tx, g.key(), record)
	if errors.Is(err, store.ErrDamaged) {
		return new(statev1.CheckGroup), nil
	}
	return record, err
}

// count writes how many targets each lane of a Reducer's scope has.
func (b *Broker) count(tx store.Tx, plane Plane, g group, targets []Target) error {
	if _, ok := plane.(Reducer); !ok {
		return nil
	}
	lanes := map[string]*statev1.CheckLane{}
	for _, t := range targets {
		if lanes[t.Lane] == nil {
			lanes[t.Lane] = &statev1.CheckLane{}
		}
		lanes[t.Lane].Targets++
	}
	record, err := loadGroup(tx, g)
	if err != nil {
		return err
	}
	same := len(lanes) == len(record.Lanes)
	for name, l := range lanes {
		old := record.Lanes[name]
		l.BrakedMs = old.GetBrakedMs()
		same = same && old != nil && old.Targets == l.Targets
	}
	if same {
		return nil
	}
	record.Lanes = lanes
	return store.Save(tx, g.key(), record)
}

// sooner makes a task due by a time at the latest; one that is leased stays.
func (b *Broker) sooner(tx store.Tx, p place, by int64) (moved bool, err error) {
	t, err := loadCheck(tx, p)
	if err != nil || t == nil || t.Token != "" || t.DueMs <= by {
		return false, err
	}
	t.DueMs = by
	return true, saveCheck(tx, p, t)
}

// Hurry has tasks of a scope done at once, in the caller's transaction, but not those
// that were seen within the time in which a suspect is checked again. What it is called
// for may be wrong, and may be told several times.
func (b *Broker) Hurry(tx store.Tx, plane, scope string, ids []string) error {
	return b.hurry(tx, plane, scope, ids, b.o.Rules.Suspect)
}

// Again has tasks of a scope done at once, in the caller's transaction, whenever they were
// seen: what they are checked with is another now. One that is held is not given away
// twice.
func (b *Broker) Again(tx store.Tx, plane, scope string, ids []string) error {
	return b.hurry(tx, plane, scope, ids, 0)
}

func (b *Broker) hurry(tx store.Tx, plane, scope string, ids []string, rest time.Duration) error {
	now, g := tx.Now().UnixMilli(), group{plane, scope}
	any := false
	if err := each(ids, func(id string) error {
		p := place{plane, scope, id}
		t, err := loadCheck(tx, p)
		if err != nil || t == nil || t.GetSeen().GetAtMs() > now-rest.Milliseconds() {
			return err
		}
		moved, err := b.sooner(tx, p, now)
		any = any || moved
		return err
	}); err != nil || !any {
		return err
	}
	return settle(tx, g)
}

// Braked reports whether a brake of a scope is on.
func (b *Broker) Braked(tx store.ReadTx, plane, scope string) (bool, error) {
	record, err := loadGroup(tx, group{plane, scope})
	for _, l := range record.GetLanes() {
		if l.BrakedMs != 0 {
			return true, err
		}
	}
	return false, err
}

// lookLanes looks at a Reducer's scope where something fails: its alarm, and how much of
// it each checker fails. unit is what counts as one where a checker fails several.
func (b *Broker) lookLanes(ctx context.Context, g group) (alarm, unit string, tally map[string]Tally, err error) {
	var now int64
	fresh, settled := false, false // the tally is; there is something to write
	if err := b.o.Store.View(ctx, func(tx store.ReadTx) error {
		how, err := b.o.Planes[g.plane].Scope(tx, g.scope)
		if err != nil {
			return err
		}
		unit, now = g.plane+"/"+how.Cap, tx.Now().UnixMilli()
		tally, fresh = b.tallied(g, now)
		record, err := loadGroup(tx, g)
		if err != nil {
			return err
		}
		failing := 0
		alarm, settled = "", false
		for name, l := range record.Lanes {
			bad, err := tx.Scan(g.bad(name), 0, store.MaxScore, 0)
			if err != nil {
				return err
			}
			failing += len(bad)
			settled = settled || l.BrakedMs != 0 && 2*len(bad) <= int(l.Targets)
			if l.BrakedMs != 0 {
				alarm = fmt.Sprintf("%d of %d fail or did so just now, and began to within one round of checks: nobody is judged worse by one checker's word while more than half fails", len(bad), l.Targets)
			}
		}
		if settled = settled || failing == 0; settled || fresh {
			return nil
		}
		checks, err := checksOf(tx, g)
		tally = (&scene{checks: checks}).tally()
		return err
	}); err != nil {
		return "", "", nil, err
	}
	if settled {
		return "", unit, nil, b.o.Store.Update(ctx, store.Soft, func(tx store.Tx) error { return b.release(tx, g) })
	}
	if !fresh {
		b.mu.Lock()
		b.tallies[g] = tallied{atMs: now, by: tally}
		b.mu.Unlock()
	}
	return alarm, unit, tally, nil
}

// release takes the brakes off that nothing holds any more, and ends the looks at a scope
// where nothing fails.
func (b *Broker) release(tx store.Tx, g group) error {
	record, err := loadGroup(tx, g)
	if err != nil {
		return err
	}
	failing := 0
	for name := range record.Lanes {
		bad, err := tx.Scan(g.bad(name), 0, store.MaxScore, 0)
		if err != nil {
			return err
		}
		failing += len(bad)
		if _, err := b.brake(tx, g, record, name, b.o.Rules, tx.Now().UnixMilli()); err != nil {
			return err
		}
	}
	if failing > 0 {
		return nil
	}
	return tx.IndexDelete(troubleIndex, g.member())
}

// tallied is what was counted of a scope, and when, by the store's clock: all of it is
// read for that.
type tallied struct {
	atMs int64
	by   map[string]Tally
}

func (b *Broker) tallied(g group, now int64) (map[string]Tally, bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	t, ok := b.tallies[g]
	age := now - t.atMs
	return t.by, ok && age >= 0 && age < b.o.Rules.Suspect.Milliseconds()
}

// unprobed adds an alarm for each scope whose tasks wait because no checker that is there
// has their probe.
func (b *Broker) unprobed(ctx context.Context, alarms map[group]string) error {
	return b.o.Store.View(ctx, func(tx store.ReadTx) error {
		now := tx.Now()
		late := now.Add(-b.o.Rules.Interval).UnixMilli()
		waiting, err := tx.Scan(scopeIndex, 0, uint64(max(late, 0)), 0)
		if err != nil || len(waiting) == 0 {
			return err
		}
		live, err := liveCheckers(tx, now.UnixMilli())
		if err != nil {
			return err
		}
		for _, e := range waiting {
			g, _ := parseGroup(e.Member)
			plane := b.o.Planes[g.plane]
			if plane == nil {
				continue
			}
			how, err := plane.Scope(tx, g.scope)
			if errors.Is(err, store.ErrDamaged) {
				continue // sync says so
			}
			if err != nil {
				return err
			}
			if how.Probe != "" && judges(live, how.Probe, how.level()) == 0 {
				alarms[g] = fmt.Sprintf("no checker that is there can run probe %q at %s, so nothing of it is checked", how.Probe, levelWord(how.level()))
			}
		}
		return nil
	})
}

func levelWord(l controlplanev1.CheckLevel) string {
	switch l {
	case egress:
		return "EGRESS"
	case target:
		return "TARGET"
	}
	return "BASIC"
}
