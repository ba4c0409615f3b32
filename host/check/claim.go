package check

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"slices"
	"time"

	statev1 "github.com/dodona-project/dodona/proto/state/v1"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/dodona-project/dodona/host/store"
)

// Task is one check that a checker holds.
type Task struct {
	Plane, Scope, ID string
	Address          string
	Probe            string
	Config           *structpb.Struct
	Token            string // of the lease: new at each claim, 128 random bits
	Generation       uint64 // of claims
	Timeout          time.Duration
	Attempts         int
	Overdue          time.Duration // since it was due
}

// Claim is what a checker asks tasks with.
type Claim struct {
	Checker string
	Probes  []string       // that it can run; none = all
	Most    int            // tasks
	Scope   int            // tasks of one scope at once
	Held    map[string]int // tasks that it holds already, by plane/scope
}

const (
	claimScan     = 1_024                  // tasks of one scope that a claim looks at in vain
	claimTogether = 32                     // scopes that are read in one round trip
	leaseWay      = 5 * time.Second        // for the way of a task and of its report
	shortSleep    = 10 * time.Millisecond  // tasks that are due at about the same time are one claim
	longSleep     = 500 * time.Millisecond // longest wait for a task that may appear
)

// lease is how long a checker may hold a task.
func (r Rules) lease() time.Duration { return r.Deadline() + leaseWay }

// presence is how long a checker counts as there after it has claimed.
func (r Rules) presence() time.Duration { return max(r.Interval, longSleep*4) + r.lease() }

// Claim leases due tasks to a checker and counts it as there. next is when to ask
// again.
func (b *Broker) Claim(ctx context.Context, c Claim) (tasks []Task, next time.Duration, err error) {
	err = b.o.Store.Update(ctx, store.Soft, func(tx store.Tx) (err error) {
		tasks, next, err = b.claim(tx, c)
		return err
	})
	if err != nil {
		return nil, longSleep, err
	}
	return tasks, next, nil
}

// claiming is one run of a claim.
type claiming struct {
	*Broker
	Claim
	tx    store.Tx
	now   int64
	live  map[string]*statev1.Checker // without the one that claims
	tasks []Task
	took  []group // scopes whose schedule changed
}

// offer is what a claim knows of a scope.
type offer struct {
	group
	Scope
	others bool // another checker can run the probe
	free   int  // tasks that the checker may still take
}

func (b *Broker) claim(tx store.Tx, c Claim) (tasks []Task, next time.Duration, err error) {
	now := tx.Now().UnixMilli()
	live, err := b.present(tx, c, now)
	if err != nil {
		return nil, 0, err
	}
	due, err := tx.Scan(scopeIndex, 0, uint64(now), 0)
	if err != nil {
		return nil, 0, err
	}
	run := claiming{Broker: b, Claim: c, tx: tx, now: now, live: live}
	for scopes := range slices.Chunk(due, claimTogether) {
		if len(run.tasks) == c.Most {
			break
		}
		if err := each(scopes, func(e store.Entry) error { return run.scope(e.Member) }); err != nil {
			return nil, 0, err
		}
	}
	if err := each(run.took, func(g group) error { return settle(tx, g) }); err != nil {
		return nil, 0, err
	}
	next = longSleep
	later, err := tx.Scan(scopeIndex, uint64(now)+1, store.MaxScore, 1)
	if err != nil {
		return nil, 0, err
	}
	if len(later) > 0 {
		next = min(next, max(time.Duration(int64(later[0].Score)-now)*time.Millisecond, shortSleep))
	}
	return run.tasks, next, nil
}

// scope takes the due tasks of a scope that the checker may have. Those that it may
// not stay in front, so that it looks past them.
func (c *claiming) scope(member string) error {
	o, err := c.offer(member)
	if o == nil || err != nil {
		return err
	}
	changed := false
	defer func() {
		if changed {
			c.took = append(c.took, o.group)
		}
	}()
	for passed := 0; passed < claimScan; {
		want := min(o.free, c.Most-len(c.tasks))
		if want <= 0 {
			return nil
		}
		entries, err := c.tx.Scan(o.due(), 0, uint64(c.now), passed+want)
		if err != nil {
			return err
		}
		changed = changed || len(entries) == 0 // the scope's place is a hint too
		entries = entries[min(passed, len(entries)):]
		if err := store.Fetch(c.tx, entries, func(id string) string { return place{o.plane, o.scope, id}.key() }); err != nil {
			return err
		}
		for _, e := range entries {
			task, stays, err := c.lease(o, e.Member)
			if err != nil {
				return err
			}
			if task != nil {
				c.tasks = append(c.tasks, *task)
			}
			if stays {
				passed++
			}
			changed = changed || !stays
		}
		if len(entries) < want {
			return nil
		}
	}
	return nil
}

// offer is what the checker may take of a scope; nil when that is nothing.
func (c *claiming) offer(member string) (*offer, error) {
	g, ok := parseGroup(member)
	plane := c.o.Planes[g.plane]
	if !ok || plane == nil {
		return nil, nil // of another version of the host
	}
	o := &offer{group: g, free: c.Claim.Scope - c.Held[member]}
	if o.free <= 0 {
		return nil, nil
	}
	var err error
	if o.Scope, err = plane.Scope(c.tx, g.scope); err != nil {
		return nil, err
	}
	if o.Probe == "" || len(c.Probes) > 0 && !slices.Contains(c.Probes, o.Probe) {
		return nil, nil
	}
	o.others = able(c.live, o.Probe, c.Checker) > 0
	return o, nil
}

// lease gives a task to the checker; nil when it may not have it, and stays when the
// task is still due.
func (c *claiming) lease(o *offer, id string) (task *Task, stays bool, err error) {
	p := place{o.plane, o.scope, id}
	t, err := loadCheck(c.tx, p)
	switch {
	case err != nil:
		return nil, false, err
	case t == nil: // the index is a hint
		return nil, false, c.tx.IndexDelete(o.due(), id)
	case lookedAt(t) > uint64(c.now):
		return nil, false, schedule(c.tx, p, t)
	}
	// A second opinion is asked of somebody else, for a while.
	if by := t.GetHealth().GetBy(); o.others && len(by) == 1 && by[0] == c.Checker && c.now < t.DueMs+c.o.Rules.Interval.Milliseconds() {
		return nil, true, nil
	}
	if t.Token != "" {
		c.metrics.expired.Inc()
	}
	overdue := c.now - t.DueMs
	if t.Token, err = newToken(); err != nil {
		return nil, false, err
	}
	t.Generation++
	t.Holder, t.IssuedMs, t.LeaseMs = c.Checker, c.now, c.now+milliseconds(c.o.Rules.lease())
	if err := saveCheck(c.tx, p, t); err != nil {
		return nil, false, err
	}
	o.free--
	return &Task{
		Plane: o.plane, Scope: o.scope, ID: id, Address: t.Address, Probe: o.Probe, Config: o.Config,
		Token: t.Token, Generation: t.Generation, Timeout: c.o.Rules.Timeout, Attempts: c.o.Rules.Attempts,
		Overdue: time.Duration(overdue) * time.Millisecond,
	}, false, nil
}

func newToken() (string, error) {
	var raw [16]byte
	if _, err := rand.Read(raw[:]); err != nil {
		return "", fmt.Errorf("draw a lease token: %w", err)
	}
	return hex.EncodeToString(raw[:]), nil
}

// present counts a checker as there, and returns those that are, without the one
// that asks.
func (b *Broker) present(tx store.Tx, c Claim, now int64) (map[string]*statev1.Checker, error) {
	var own statev1.Checker
	if _, err := store.Load(tx, checkerKey(c.Checker), &own); err != nil {
		return nil, err
	}
	until := now + milliseconds(b.o.Rules.presence())
	// Written when half of it is over, so that a claim is not a write by itself.
	if !slices.Equal(own.Probes, c.Probes) || own.UntilMs-now < (until-now)/2 {
		own.UntilMs, own.Probes = until, c.Probes
		if err := store.Save(tx, checkerKey(c.Checker), &own); err != nil {
			return nil, err
		}
		if err := tx.IndexPut(checkerIndex, c.Checker, uint64(until)); err != nil {
			return nil, err
		}
	}
	live, err := liveCheckers(tx, now)
	delete(live, c.Checker)
	return live, err
}

func liveCheckers(tx store.ReadTx, now int64) (map[string]*statev1.Checker, error) {
	entries, err := tx.Scan(checkerIndex, uint64(now)+1, store.MaxScore, 0)
	if err != nil {
		return nil, err
	}
	if err := store.Fetch(tx, entries, checkerKey); err != nil {
		return nil, err
	}
	live := make(map[string]*statev1.Checker, len(entries))
	for _, e := range entries {
		c := new(statev1.Checker)
		if _, err := store.Load(tx, checkerKey(e.Member), c); err != nil {
			return nil, err
		}
		live[e.Member] = c
	}
	return live, nil
}

// able counts the checkers that can run a probe, without one of them.
func able(live map[string]*statev1.Checker, probe, without string) (n int) {
	for id, c := range live {
		if id != without && (len(c.Probes) == 0 || slices.Contains(c.Probes, probe)) {
			n++
		}
	}
	return n
}
