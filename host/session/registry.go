package session

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"sort"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	statev1 "github.com/dodona-project/dodona/proto/state/v1"
	"github.com/hashicorp/go-hclog"
	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/protobuf/proto"

	"github.com/dodona-project/dodona/host/refusal"
	"github.com/dodona-project/dodona/host/store"
)

// Reason says why a lease ended.
type Reason string

// The reasons of [Stream.End] and [Plane.Ended].
const (
	Goodbye Reason = "deregistered"      // the client closed its side
	Broken  Reason = "stream broken"     // the connection or the stream broke
	Refused Reason = "refused"           // the client broke a rule of the stream
	ByHost  Reason = "ended by the host" // the host drains or stops: the lease lasts for the missed beats
	Expired Reason = "expired"           // too many heartbeats missed; only for Plane.Ended
)

// A Plane writes what depends on a lease. Its methods are called inside the
// lease's own transaction and obey the rules of [store.Store.Update]: they may
// run several times, touch the world only through tx, and keep nothing. An error
// is returned by the call that began the transaction, as it is, and nothing is
// written.
type Plane interface {
	// Registered is called for each registration. previous is the lease of the
	// same id that this one replaces, or nil; when previous is neither detached
	// nor remembered, the newcomer took over from a live stream.
	Registered(tx store.Tx, lease, previous *statev1.Lease, payload proto.Message) error
	// Beat is called for each heartbeat that renewed the lease, which already
	// holds the new figures.
	Beat(tx store.Tx, lease *statev1.Lease, payload proto.Message) error
	// Ended is called once for a lease that ends. It is not called for one that
	// is replaced.
	Ended(tx store.Tx, lease *statev1.Lease, reason Reason) error
}

// Options of a Registry. What is left zero takes the default that is named.
type Options struct {
	Store     store.Store
	Plane     Plane
	PlaneName string        // its name in keys, such as "service"
	Host      string        // this host's name, written into the leases it serves
	Shared    bool          // other hosts serve leases of this store, too
	Heartbeat time.Duration // 5 s
	Missed    int           // 3
	Restart   time.Duration // longest wait for remembered leases after a start: 10 s

	Logger     hclog.Logger          // none
	Registerer prometheus.Registerer // none
}

// A Registry keeps the leases of one plane. Its methods may be called
// concurrently.
type Registry struct {
	store   store.Store
	plane   Plane
	name    string
	host    string
	shared  bool
	rules   Rules
	log     hclog.Logger
	metrics *metrics

	seen     atomic.Int64  // store clock of the last sweep, in ms; a gap tells of a pause
	first    atomic.Uint64 // Info().First of the store at the last sweep
	signed   int64         // store clock of the last sign, in ms; the sweep's
	started  atomic.Bool
	draining atomic.Bool

	mu      sync.Mutex // guards streams; held for map work only
	streams map[name]*Stream
}

// New returns a registry that accepts nothing before [Registry.Start].
func New(o Options) (*Registry, error) {
	if o.Store == nil || o.Plane == nil || o.PlaneName == "" {
		return nil, errors.New("session: options: Store, Plane and PlaneName are needed")
	}
	r := &Registry{
		store: o.Store, plane: o.Plane, name: o.PlaneName, host: o.Host, shared: o.Shared, log: o.Logger,
		rules: Rules{Heartbeat: o.Heartbeat, Missed: o.Missed, Percent: 20, Least: 5, Restart: o.Restart},

		streams: make(map[name]*Stream),
	}
	if r.rules.Heartbeat <= 0 {
		r.rules.Heartbeat = 5 * time.Second
	}
	if r.rules.Missed <= 0 {
		r.rules.Missed = 3
	}
	if r.rules.Restart <= 0 {
		r.rules.Restart = 10 * time.Second
	}
	if r.log == nil {
		r.log = hclog.NewNullLogger()
	}
	var err error
	if r.metrics, err = newMetrics(o.Registerer, r.name); err != nil {
		return nil, fmt.Errorf("session: metrics: %w", err)
	}
	return r, nil
}

// Heartbeat is the interval that clients are told.
func (r *Registry) Heartbeat() time.Duration { return r.rules.Heartbeat }

// TTL is how long a lease lasts without a heartbeat.
func (r *Registry) TTL() time.Duration { return r.rules.TTL() }

// A Report is what a registration or heartbeat says about the client's load.
type Report struct {
	Sequence    uint64  // rising from 1; 0 = unordered, always taken
	Utilization float64 // 0 to 1; 0 = not reported
	InFlight    uint32
	Capacity    uint32 // 0 = not reported
}

// A Registration asks for a lease. The caller has checked all names.
type Registration struct {
	Scope   string // such as the service
	ID      string // such as the endpoint
	Report  Report
	Payload proto.Message // handed to Plane.Registered
}

// Register grants a lease and returns its stream. An earlier lease of the same id
// is replaced and the stream that held it is told. Refusals: Unavailable before
// Start and while draining, and what the plane refuses.
func (r *Registry) Register(ctx context.Context, reg Registration) (*Stream, error) {
	if !r.started.Load() || r.draining.Load() {
		return nil, &refusal.Error{Kind: refusal.Unavailable, Reason: "draining", Text: "this host takes no registrations now: try another one, or again later"}
	}
	n := name{r.name, reg.Scope, reg.ID}
	if err := n.check(); err != nil {
		return nil, err
	}
	leaseID, err := newLeaseID()
	if err != nil {
		return nil, err
	}
	var lease, previous *statev1.Lease
	err = r.store.Update(ctx, store.Soft, func(tx store.Tx) error {
		now := tx.Now()
		if previous, err = loadLease(tx, n); err != nil {
			return err
		}
		lease = &statev1.Lease{
			Plane: n.plane, Scope: n.scope, Id: n.id,
			Generation:  tx.Revision(),
			LeaseId:     leaseID,
			Host:        r.host,
			HeartbeatMs: r.rules.Heartbeat.Milliseconds(),
			DeadlineMs:  now.Add(r.rules.TTL()).UnixMilli(),
		}
		take(lease, reg.Report)
		if err := r.arrive(tx, n, previous, now.UnixMilli()); err != nil {
			return err
		}
		if err := saveLease(tx, lease); err != nil {
			return err
		}
		return r.plane.Registered(tx, lease, previous, reg.Payload)
	})
	if err != nil {
		return nil, err
	}
	s := newStream(r, n, lease)
	r.adopt(s)
	kind := "new"
	switch {
	case previous == nil:
	case previous.GetDetached() || previous.GetRemembered():
		kind = "back"
	default:
		kind = "takeover"
		r.log.Warn("registration replaced a live one: two processes may share an id", "plane", n.plane, "scope", n.scope, "id", n.id)
	}
	r.metrics.registrations.WithLabelValues(kind).Inc()
	return s, nil
}

// arrive counts a registration and ends the wait after a start when enough are
// back.
func (r *Registry) arrive(tx store.Tx, n name, previous *statev1.Lease, now int64) error {
	if previous != nil && !previous.GetRemembered() {
		return nil
	}
	var counts statev1.LeaseScope
	if _, err := store.Load(tx, scopeKey(n.plane, n.scope), &counts); err != nil {
		return err
	}
	if previous == nil {
		counts.Leases++
		return saveScope(tx, n.plane, n.scope, &counts)
	}
	counts.Remembered -= min(counts.Remembered, 1)
	if err := saveScope(tx, n.plane, n.scope, &counts); err != nil {
		return err
	}
	f, err := loadFreeze(tx, n.plane, n.scope)
	if err != nil || !active(f, now) || !enoughBack(f, counts.GetRemembered()) {
		return err
	}
	f.UntilMs = now
	return saveFreeze(tx, n.plane, n.scope, f)
}

// adopt makes s the stream of its id, unless a newer one is there already.
func (r *Registry) adopt(s *Stream) {
	r.mu.Lock()
	old := r.streams[s.name]
	if old != nil && old.generation > s.generation {
		old, s = s, old
	}
	r.streams[s.name] = s
	r.metrics.streams.Set(float64(len(r.streams)))
	r.mu.Unlock()
	if old != nil {
		old.stop(replaced())
	}
	if r.draining.Load() {
		s.stop(drained())
	}
}

func (r *Registry) forget(s *Stream) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.streams[s.name] == s {
		delete(r.streams, s.name)
		r.metrics.streams.Set(float64(len(r.streams)))
	}
}

func (r *Registry) stream(n name, generation uint64) *Stream {
	r.mu.Lock()
	defer r.mu.Unlock()
	if s := r.streams[n]; s != nil && s.generation == generation {
		return s
	}
	return nil
}

// Drain tells every stream to move to another host and refuses new ones. The
// callers that hold the streams end them with ByHost, so that the leases last
// until the clients are back.
func (r *Registry) Drain() {
	r.draining.Store(true)
	r.mu.Lock()
	all := make([]*Stream, 0, len(r.streams))
	for _, s := range r.streams {
		all = append(all, s)
	}
	r.mu.Unlock()
	for _, s := range all {
		s.stop(drained())
	}
}

// An Alarm is a freeze that people should know of.
type Alarm struct {
	Plane, Scope string // Scope is WholePlane when all are frozen
	Reason       string // one of the Freeze… constants
	Since, Until time.Time
	Held         int // leases that would have ended
	Waiting      int // FreezeRestart: remembered leases at the start
}

// Alarms lists the freezes of this plane that hold now, by scope.
func (r *Registry) Alarms(ctx context.Context) ([]Alarm, error) {
	var alarms []Alarm
	err := r.store.View(ctx, func(tx store.ReadTx) error {
		alarms = nil
		now := tx.Now().UnixMilli()
		entries, err := tx.Scan(freezeIndex, uint64(max(now, 0)), store.MaxScore, 0)
		if err != nil {
			return err
		}
		for _, e := range entries {
			plane, scope, ok := strings.Cut(e.Member, "/")
			if !ok || plane != r.name {
				continue
			}
			f, err := loadFreeze(tx, plane, scope)
			if err != nil {
				return err
			}
			if active(f, now) {
				alarms = append(alarms, Alarm{
					Plane: plane, Scope: scope, Reason: f.GetReason(), Held: int(f.GetHeld()), Waiting: int(f.GetRemembered()),
					Since: time.UnixMilli(f.GetSinceMs()), Until: time.UnixMilli(f.GetUntilMs()),
				})
			}
		}
		return nil
	})
	sort.Slice(alarms, func(i, j int) bool { return alarms[i].Scope < alarms[j].Scope })
	return alarms, err
}

// take moves the lease's figures by one report.
func take(l *statev1.Lease, rep Report) {
	l.Sequence = max(l.Sequence, rep.Sequence)
	l.Utilization = smooth(l.Utilization, rep.Utilization)
	l.InFlight = rep.InFlight
	if rep.Capacity != 0 {
		l.Capacity = rep.Capacity
	}
}

func newLeaseID() (string, error) {
	var b [12]byte
	if _, err := rand.Read(b[:]); err != nil {
		return "", fmt.Errorf("session: lease id: %w", err)
	}
	return hex.EncodeToString(b[:]), nil
}

func replaced() *refusal.Error {
	return refusal.New(refusal.Aborted, "a newer registration of this id has taken over")
}

func drained() *refusal.Error {
	return &refusal.Error{Kind: refusal.Unavailable, Reason: "draining", Text: "this host is stopping: register with another one, or again"}
}
