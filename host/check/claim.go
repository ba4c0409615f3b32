package check

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"time"

	controlplanev1 "github.com/dodona-project/dodona/proto/controlplane/v1"
	statev1 "github.com/dodona-project/dodona/proto/state/v1"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/dodona-project/dodona/host/internal/crash"
	"github.com/dodona-project/dodona/host/refusal"
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
	Deadline         time.Time     // by the store's clock, for all attempts
	Overdue          time.Duration // since it was due

	// Of a proxy. The credential was looked up for this claim, and is nowhere kept.
	Level        controlplanev1.CheckLevel // 0 = BASIC
	Proxy        *controlplanev1.Proxy
	Credential   *controlplanev1.Credential
	Routing, URL string
	ExpectStatus []uint32
}

// Subject is what an observation of the task has to speak of.
func (t Task) Subject() Subject {
	s := Subject{Level: t.Level, Proxy: t.Proxy.GetProxyId()}
	if s.Level == controlplanev1.CheckLevel_CHECK_LEVEL_UNSPECIFIED {
		s.Level = basic
	}
	if s.Level == target {
		s.Routing, s.URL = t.Routing, t.URL
	}
	return s
}

// Name is the task's name for a checker outside.
func (t Task) Name() string { return place{t.Plane, t.Scope, t.ID}.member() }

// ParseName is the target of the task of a name.
func ParseName(name string) (plane, scope, id string, ok bool) {
	p, ok := parsePlace(name)
	return p.plane, p.scope, p.id, ok
}

// Claim is what a checker asks tasks with.
type Claim struct {
	Checker string
	Probes  []string       // that it can run; none = all
	Most    int            // tasks
	Scope   int            // tasks of one scope at once
	Held    map[string]int // tasks that it holds already, by plane/scope

	// Instance is of a checker outside the hosts. What it can run, and how much, it
	// registered; what it holds the store knows. Most and Levels may ask for less, 0 and
	// none do not.
	Instance string
	Levels   []controlplanev1.CheckLevel
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
// again. Refusals, outside the hosts only: Precondition (not registered),
// Unavailable (nothing is to be checked at all).
func (b *Broker) Claim(ctx context.Context, c Claim) (tasks []Task, next time.Duration, err error) {
	idle := false
	err = b.o.Store.Update(ctx, store.Soft, func(tx store.Tx) (err error) {
		if tasks, next, err = b.claim(tx, c); err != nil || c.Instance == "" || len(tasks) > 0 {
			idle = false
			return err
		}
		idle, err = nothing(tx)
		return err
	})
	if err != nil {
		return nil, longSleep, err
	}
	if idle { // it counts as there all the same
		return nil, longSleep, refusal.New(refusal.Unavailable, "there is nothing to check: no service has a probe in its policy, and no configuration of the pool is published; ask again later")
	}
	for _, t := range tasks {
		b.metrics.overdue.Observe(t.Overdue.Seconds())
	}
	if len(tasks) > 0 {
		crash.Point("check.after-claim") // leased, and nobody checks
	}
	return tasks, next, nil
}

// claiming is one run of a claim.
type claiming struct {
	*Broker
	Claim
	own   *statev1.Checker
	tx    store.Tx
	now   int64
	live  map[string]*statev1.Checker // without the one that claims
	tasks []Task
	took  []group        // scopes whose schedule changed
	room  map[string]int // under caps, by plane/cap
}

// offer is what a claim knows of a scope.
type offer struct {
	group
	Scope
	plane Plane
	free  int // tasks that the checker may still take

	second bool // there is another one to ask for a second opinion
	spare  bool // there is another one to take what this one did not come to
	yields bool // checkers outside do these checks, and this one is a host's
}

func (b *Broker) claim(tx store.Tx, c Claim) (tasks []Task, next time.Duration, err error) {
	now := tx.Now().UnixMilli()
	own, live, err := b.present(tx, &c, now)
	if err != nil {
		return nil, 0, err
	}
	due, err := tx.Scan(scopeIndex, 0, uint64(now), 0)
	if err != nil {
		return nil, 0, err
	}
	run := claiming{Broker: b, Claim: c, own: own, tx: tx, now: now, live: live, room: map[string]int{}}
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
	if c.Instance != "" && len(run.tasks) > 0 {
		if err := count(tx, heldKey(c.Checker)); err != nil {
			return nil, 0, err
		}
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
		want := min(o.free, c.Most-len(c.tasks), c.under(o))
		if want <= 0 {
			return nil
		}
		entries, err := c.tx.Scan(o.due(), 0, uint64(c.now), passed+want)
		if err != nil {
			return err
		}
		changed = changed || len(entries) == 0 // the scope's place is a hint too
		entries = entries[min(passed, len(entries)):]
		if err := store.Fetch(c.tx, entries, func(id string) string { return place{o.group.plane, o.scope, id}.key() }); err != nil {
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
	o := &offer{group: g, plane: plane, free: c.Claim.Scope - c.Held[member]}
	if o.free <= 0 {
		return nil, nil
	}
	var err error
	switch o.Scope, err = plane.Scope(c.tx, g.scope); {
	case errors.Is(err, store.ErrDamaged):
		return nil, nil // sync says so; the other scopes are checked
	case err != nil:
		return nil, err
	}
	if o.Probe == "" || len(c.Levels) > 0 && !slices.Contains(c.Levels, o.level()) || !checkedInside(c.own, o.Probe) && !checkedOutside(c.own, o.Probe, o.level()) {
		return nil, nil
	}
	if err := c.cap(o); err != nil {
		return nil, err
	}
	outside, inside := able(c.live, o.Probe, o.level())
	o.spare = outside+inside > 0
	o.second = outside > 0 || !c.own.Outside && inside > 0
	o.yields = outside > 0 && !c.own.Outside
	return o, nil
}

// cap finds out how many tasks may still be leased under a scope's cap, by whomever.
func (c *claiming) cap(o *offer) error {
	if o.Cap == "" {
		return nil
	}
	of := capOf{o.group.plane, o.Cap}
	if _, known := c.room[of.member()]; known {
		return nil
	}
	if _, err := counted(c.tx, of.key()); err != nil {
		return err
	}
	past, err := c.tx.Scan(of.leased(), 0, uint64(c.now), 0)
	if err != nil {
		return err
	}
	leased, err := c.tx.Scan(of.leased(), uint64(c.now)+1, store.MaxScore, o.Scope.Most)
	if err != nil {
		return err
	}
	for _, e := range past {
		if err := c.tx.IndexDelete(of.leased(), e.Member); err != nil {
			return err
		}
	}
	c.room[of.member()] = o.Scope.Most - len(leased)
	return nil
}

// under is how many tasks of a scope its cap leaves room for.
func (c *claiming) under(o *offer) int {
	if o.Cap == "" {
		return c.Claim.Most
	}
	return c.room[capOf{o.group.plane, o.Cap}.member()]
}

// may reports whether the checker may have a task that is due.
func (c *claiming) may(o *offer, t *statev1.Check) bool {
	interval := milliseconds(c.o.Rules.Interval)
	late := t.Token != "" // somebody's lease ran out
	switch by := t.GetHealth().GetBy(); {
	case o.second && len(by) == 1 && by[0] == c.Checker && c.now < t.DueMs+interval:
		return false // a second opinion is asked of somebody else, for a while
	case late && o.spare && t.Holder == c.Checker && c.now < t.LeaseMs+interval:
		return false // and so is what it did not come to
	case o.yields && !late && c.now < t.DueMs+milliseconds(c.o.Rules.round()):
		return false
	}
	return true
}

// lease gives a task to the checker; nil when it may not have it, and stays when the
// task is still due.
func (c *claiming) lease(o *offer, id string) (task *Task, stays bool, err error) {
	p := place{o.group.plane, o.scope, id}
	t, err := loadCheck(c.tx, p)
	switch {
	case err != nil:
		return nil, false, err
	case t == nil: // the index is a hint
		return nil, false, c.tx.IndexDelete(o.due(), id)
	case lookedAt(t) > uint64(c.now):
		return nil, false, schedule(c.tx, p, t)
	}
	if !c.may(o, t) {
		return nil, true, nil
	}
	give := &Task{
		Plane: o.group.plane, Scope: o.group.scope, ID: id, Address: t.Address, Probe: o.Probe, Config: o.Config,
		Level: o.level(), Routing: t.Routing, URL: t.Url, Timeout: c.o.Rules.Timeout, Attempts: c.o.Rules.Attempts,
		Deadline: time.UnixMilli(c.now).Add(c.o.Rules.Deadline()), Overdue: time.Duration(c.now-t.DueMs) * time.Millisecond,
	}
	if r, ok := o.plane.(Reducer); ok {
		give.Proxy = &controlplanev1.Proxy{ProxyId: t.ProxyId}
		ready, err := r.Prepare(c.tx, give)
		switch {
		case err != nil:
			return nil, false, err
		case ready == Later:
			return nil, true, nil
		case ready == Gone:
			return nil, false, deleteCheck(c.tx, p, t)
		}
	}
	if t.Token != "" {
		c.metrics.expired.Inc()
	}
	if err := letGo(c.tx, p, t); err != nil {
		return nil, false, err
	}
	if t.Token, err = newToken(); err != nil {
		return nil, false, err
	}
	t.Generation++
	t.Holder, t.IssuedMs, t.LeaseMs, t.Windowed = c.Checker, c.now, c.now+milliseconds(c.o.Rules.lease()), c.own.Outside
	if t.Capped, t.Cap = o.Cap != "", o.Cap; t.Capped {
		if err := c.claimed(o); err != nil {
			return nil, false, err
		}
	}
	if err := saveCheck(c.tx, p, t); err != nil {
		return nil, false, err
	}
	if err := hold(c.tx, p, t); err != nil {
		return nil, false, err
	}
	o.free--
	give.Token, give.Generation = t.Token, t.Generation
	return give, false, nil
}

// claimed counts a lease under its cap.
func (c *claiming) claimed(o *offer) error {
	of := capOf{o.group.plane, o.Cap}
	c.room[of.member()]--
	return count(c.tx, of.key())
}

// counted reads how many claims there were of a bound whose leases are an index, and count
// is one more: by that record claims on several hosts see each other.
func counted(tx store.ReadTx, key string) (*statev1.CheckCap, error) {
	claims := new(statev1.CheckCap)
	if _, err := store.Load(tx, key, claims); err != nil && !errors.Is(err, store.ErrDamaged) {
		return nil, err
	}
	return claims, nil
}

func count(tx store.Tx, key string) error {
	claims, err := counted(tx, key)
	if err != nil {
		return err
	}
	claims.Claims++
	return store.Save(tx, key, claims)
}

func newToken() (string, error) {
	var raw [16]byte
	if _, err := rand.Read(raw[:]); err != nil {
		return "", fmt.Errorf("draw a lease token: %w", err)
	}
	return hex.EncodeToString(raw[:]), nil
}

// nothing reports whether there is no scope to check.
func nothing(tx store.ReadTx) (bool, error) {
	some, err := tx.Scan(scopeIndex, 0, store.MaxScore, 1)
	return len(some) == 0, err
}

// present counts a checker as there, and returns what is known of it and of the
// others that are there. A claim from outside becomes what it may be.
func (b *Broker) present(tx store.Tx, c *Claim, now int64) (own *statev1.Checker, live map[string]*statev1.Checker, err error) {
	own = new(statev1.Checker)
	if _, err := store.Load(tx, checkerKey(c.Checker), own); err != nil {
		return nil, nil, err
	}
	if c.Instance != "" {
		if err := b.windowed(tx, c, own, now); err != nil {
			return nil, nil, err
		}
	}
	until := now + milliseconds(b.o.Rules.presence())
	// Written when half of it is over, so that a claim is not a write by itself.
	if c.Instance == "" && !slices.Equal(own.Probes, c.Probes) || own.UntilMs-now < (until-now)/2 {
		own.UntilMs = until
		if c.Instance == "" {
			own.Probes = c.Probes
		}
		if err := store.Save(tx, checkerKey(c.Checker), own); err != nil {
			return nil, nil, err
		}
		if err := tx.IndexPut(checkerIndex, c.Checker, uint64(until)); err != nil {
			return nil, nil, err
		}
	}
	live, err = liveCheckers(tx, now)
	delete(live, c.Checker)
	return own, live, err
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

// able counts the checkers that can run a probe at a level.
func able(live map[string]*statev1.Checker, probe string, level controlplanev1.CheckLevel) (outside, inside int) {
	for _, c := range live {
		switch {
		case checkedOutside(c, probe, level):
			outside++
		case checkedInside(c, probe):
			inside++
		}
	}
	return outside, inside
}

// judges counts the checkers by whose word targets are judged: those outside, or the
// hosts' where there are none.
func judges(live map[string]*statev1.Checker, probe string, level controlplanev1.CheckLevel) int {
	outside, inside := able(live, probe, level)
	if outside > 0 {
		return outside
	}
	return inside
}
