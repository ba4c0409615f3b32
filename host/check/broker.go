package check

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	mathrand "math/rand/v2"
	"slices"
	"sync"
	"time"

	statev1 "github.com/dodona-project/dodona/proto/state/v1"
	"github.com/hashicorp/go-hclog"
	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/dodona-project/dodona/host/store"
)

// A Plane has targets, in scopes that are judged by themselves: the service plane's
// are the endpoints of a service. Its functions act inside the caller's
// transaction.
type Plane interface {
	// Scopes lists the scopes whose targets are to be checked.
	Scopes(tx store.ReadTx) ([]string, error)
	// Scope says how.
	Scope(tx store.ReadTx, scope string) (Scope, error)
	// Targets lists them.
	Targets(tx store.ReadTx, scope string) ([]Target, error)
	// SetOut takes a target out of what clients see, or brings it back. A target
	// that is gone, or registered at another time, stays as it is.
	SetOut(tx store.Tx, scope, id string, registeredMs int64, out bool) error
}

// Scope says how the targets of a scope are checked.
type Scope struct {
	Version uint64 // moves whenever the probe or the targets may have changed
	Probe   string // plugin; empty = they are not checked
	Config  *structpb.Struct
}

// digest names a probe with its configuration.
func (s Scope) digest() []byte {
	config, _ := proto.MarshalOptions{Deterministic: true}.Marshal(s.Config)
	sum := sha256.Sum256(append([]byte(s.Probe+"\x00"), config...))
	return sum[:]
}

// Target is what is checked.
type Target struct {
	ID, Address     string
	RegisteredMs    int64 // with the address, which registration of the id it is
	Out             bool
	Variant, Region string // for people
}

// Options wires a Broker.
type Options struct {
	Store      store.Store
	Planes     map[string]Plane // by name, without a slash
	Rules      Rules
	Logger     hclog.Logger          // nil = no log
	Registerer prometheus.Registerer // nil = no metrics
	Random     func() float64        // in [0, 1), for jitter; nil = drawn
}

// Broker keeps the tasks and what is known of the targets. Its methods may be called
// concurrently; several brokers may run over one store.
type Broker struct {
	o       Options
	log     hclog.Logger
	metrics *metrics

	mu     sync.Mutex
	synced map[group]uint64 // version of the scope that the tasks were made by
	alarms map[group]string // as of the last look
}

// New returns a broker. Tasks appear, and verdicts are carried out, while Run runs.
func New(o Options) *Broker {
	if o.Logger == nil {
		o.Logger = hclog.NewNullLogger()
	}
	if o.Random == nil {
		o.Random = mathrand.Float64
	}
	return &Broker{o: o, log: o.Logger, metrics: newMetrics(o.Registerer), synced: map[group]uint64{}, alarms: map[group]string{}}
}

// Rules are what the broker checks and judges by.
func (b *Broker) Rules() Rules { return b.o.Rules }

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
	claimScan  = 32_768                 // overdue tasks that one claim looks at: more than services of a checker's share can hide
	leaseWay   = 5 * time.Second        // for the way of a task and of its report
	shortSleep = 10 * time.Millisecond  // tasks that are due at about the same time are one claim
	longSleep  = 500 * time.Millisecond // longest wait for a task that may appear
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

// offer is what a claim knows of a scope.
type offer struct {
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
	offers := map[group]*offer{}
	entries, err := tx.Scan(dueIndex, 0, uint64(now), claimScan)
	if err != nil {
		return nil, 0, err
	}
	for _, e := range entries {
		if len(tasks) == c.Most {
			break
		}
		task, err := b.lease(tx, e, c, live, offers, now)
		if err != nil {
			return nil, 0, err
		}
		if task != nil {
			tasks = append(tasks, *task)
		}
	}
	next = longSleep
	later, err := tx.Scan(dueIndex, uint64(now)+1, store.MaxScore, 1)
	if err != nil {
		return nil, 0, err
	}
	if len(later) > 0 {
		next = min(next, max(time.Duration(int64(later[0].Score)-now)*time.Millisecond, shortSleep))
	}
	return tasks, next, nil
}

// lease gives the task of an index entry to a checker; nil when it may not have it.
func (b *Broker) lease(tx store.Tx, e store.Entry, c Claim, live map[string]*statev1.Checker, offers map[group]*offer, now int64) (*Task, error) {
	p, ok := parsePlace(e.Member)
	plane := b.o.Planes[p.plane]
	if !ok || plane == nil {
		return nil, nil
	}
	g := group{p.plane, p.scope}
	o := offers[g]
	if o == nil {
		scope, err := plane.Scope(tx, p.scope)
		if errors.Is(err, store.ErrDamaged) {
			scope, err = Scope{}, nil // sync says so; the other scopes are checked
		}
		if err != nil {
			return nil, err
		}
		o = &offer{Scope: scope, free: c.Scope - c.Held[g.member()], others: able(live, scope.Probe, c.Checker) > 0}
		if scope.Probe == "" || len(c.Probes) > 0 && !slices.Contains(c.Probes, scope.Probe) {
			o.free = 0
		}
		offers[g] = o
	}
	if o.free <= 0 {
		return nil, nil
	}
	t, err := loadCheck(tx, p)
	if err != nil || t == nil || t.DueMs > now || t.Token != "" && t.LeaseMs > now {
		return nil, err
	}
	// A second opinion is asked of somebody else, for a while.
	if by := t.GetHealth().GetBy(); o.others && len(by) == 1 && by[0] == c.Checker && now < t.DueMs+b.o.Rules.Interval.Milliseconds() {
		return nil, nil
	}
	if t.Token != "" {
		b.metrics.expired.Inc()
	}
	overdue := now - t.DueMs
	if t.Token, err = newToken(); err != nil {
		return nil, err
	}
	t.Generation++
	t.Holder, t.IssuedMs, t.LeaseMs = c.Checker, now, now+milliseconds(b.o.Rules.lease())
	if err := saveCheck(tx, p, t); err != nil {
		return nil, err
	}
	o.free--
	return &Task{
		Plane: p.plane, Scope: p.scope, ID: p.id, Address: t.Address, Probe: o.Probe, Config: o.Config,
		Token: t.Token, Generation: t.Generation, Timeout: b.o.Rules.Timeout, Attempts: b.o.Rules.Attempts,
		Overdue: time.Duration(overdue) * time.Millisecond,
	}, nil
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
