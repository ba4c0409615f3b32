package service

import (
	"maps"
	"math"
	"math/bits"
	"time"

	donav1 "github.com/dodona-project/dodona/proto/dona/v1"
	statev1 "github.com/dodona-project/dodona/proto/state/v1"
	"google.golang.org/protobuf/proto"

	"github.com/dodona-project/dodona/host/audit"
	"github.com/dodona-project/dodona/host/refusal"
	"github.com/dodona-project/dodona/host/session"
	"github.com/dodona-project/dodona/host/store"
)

// Plane implements session.Plane: an endpoint is there because of its lease and
// goes with it.
var _ session.Plane = (*Plane)(nil)

// Registered writes the endpoint of a new lease. One that comes back unchanged,
// after a restart of the host or a lost connection, writes nothing but its
// generation, so nothing is pushed and no entry is made.
func (p *Plane) Registered(tx store.Tx, lease, previous *statev1.Lease, payload proto.Message) error {
	beat := payload.(*donav1.EndpointHeartbeat)
	key := endpointKey(lease.Scope, lease.Id)
	var old statev1.EndpointState
	version, damaged, err := loadOld(tx, key, &old)
	if err != nil {
		return err
	}
	next := &statev1.EndpointState{
		Endpoint: &donav1.Endpoint{
			Id: beat.EndpointId, Address: beat.Address, Variant: beat.Variant, Region: beat.Region, Zone: beat.Zone,
		},
		Labels:       beat.Labels,
		Capacity:     beat.Capacity,
		Generation:   lease.Generation,
		RegisteredMs: tx.Now().UnixMilli(),
		Draining:     beat.Draining,
	}
	same := version != 0 && !damaged && old.Endpoint.Address == beat.Address && old.Endpoint.Variant == beat.Variant &&
		old.Endpoint.Region == beat.Region && old.Endpoint.Zone == beat.Zone && maps.Equal(old.Labels, beat.Labels)
	if same {
		next.RegisteredMs = old.RegisteredMs
		next.Endpoint.LbWeight = old.Endpoint.LbWeight
		next.Out = old.Out
	}
	next.Endpoint.LbWeight, err = p.weigh(tx, lease, next)
	if err != nil {
		return err
	}
	if err := store.Save(tx, key, next); err != nil {
		return err
	}
	var was *statev1.EndpointState
	if version != 0 && !damaged {
		was = &old
	} else if err := tx.IndexPut(endpointIndex(lease.Scope), lease.Id, 0); err != nil {
		return err
	}
	if same && unseen(&old, next) {
		return nil
	}
	c := endpointChange(was, next)
	c.recount = damaged
	if err := p.touch(tx, lease.Scope, c); err != nil {
		return err
	}
	if same {
		return nil
	}
	reason := ""
	if version != 0 {
		reason = "replaces an endpoint of this id"
	}
	return p.audit.Append(tx, lease.Scope, audit.Entry{Kind: "endpoint.register", Actor: p.host, Detail: map[string]string{
		"endpoint_id": lease.Id, "variant": beat.Variant, "region": beat.Region, "reason": reason,
	}})
}

// Beat moves the endpoint's weight by what the heartbeat and the reports say. It is
// refused as Aborted when the endpoint's record is damaged: registering again writes
// it anew.
func (p *Plane) Beat(tx store.Tx, lease *statev1.Lease, payload proto.Message) error {
	beat := payload.(*donav1.EndpointHeartbeat)
	key := endpointKey(lease.Scope, lease.Id)
	var old statev1.EndpointState
	version, damaged, err := loadOld(tx, key, &old)
	if damaged {
		return refusal.New(refusal.Aborted, "what the host kept of this endpoint is damaged: register again")
	}
	if err != nil || version == 0 {
		return err
	}
	next := proto.Clone(&old).(*statev1.EndpointState)
	next.Draining = beat.Draining
	if beat.Capacity != 0 {
		next.Capacity = beat.Capacity
	}
	if next.Endpoint.LbWeight, err = p.weigh(tx, lease, next); err != nil {
		return err
	}
	if proto.Equal(&old, next) {
		return nil
	}
	if err := store.Save(tx, key, next); err != nil {
		return err
	}
	if unseen(&old, next) {
		return nil
	}
	return p.touch(tx, lease.Scope, endpointChange(&old, next))
}

// Ended removes the endpoint of a lease that ended.
func (p *Plane) Ended(tx store.Tx, lease *statev1.Lease, reason session.Reason) error {
	key := endpointKey(lease.Scope, lease.Id)
	var old statev1.EndpointState
	version, damaged, err := loadOld(tx, key, &old)
	if err != nil || version == 0 {
		return err
	}
	if err := tx.Delete(key); err != nil {
		return err
	}
	if err := tx.Delete(callsKey(lease.Scope, lease.Id)); err != nil {
		return err
	}
	if err := tx.IndexDelete(endpointIndex(lease.Scope), lease.Id); err != nil {
		return err
	}
	c := change{recount: true, removal: true}
	if !damaged {
		c = endpointChange(&old, nil)
	}
	if err := p.touch(tx, lease.Scope, c); err != nil {
		return err
	}
	return p.audit.Append(tx, lease.Scope, audit.Entry{Kind: "endpoint.gone", Actor: p.host, Detail: map[string]string{
		"endpoint_id": lease.Id, "variant": old.Endpoint.GetVariant(), "region": old.Endpoint.GetRegion(), "reason": string(reason),
	}})
}

// endpointBytes is what an endpoint adds to the snapshot, whatever it weighs: a
// heartbeat is never refused for its size.
func endpointBytes(e *donav1.Endpoint) int {
	n := proto.Size(e)
	if e.GetLbWeight() == 0 {
		n += 2
	}
	return elementBytes(n)
}

// endpointChange is what going from one state of an endpoint to another does to
// the head; nil stands for not being there.
func endpointChange(from, to *statev1.EndpointState) change {
	var c change
	if from != nil {
		c.endpoints--
		c.bytes -= endpointBytes(from.Endpoint)
	}
	if to != nil {
		c.endpoints++
		c.bytes += endpointBytes(to.Endpoint)
	}
	// What clients must stop using soon, they hear of soon.
	c.removal = live(from) && !live(to)
	c.cell = func(head *statev1.ServiceHead) {
		if live(from) {
			if at := cell(head, from.Endpoint.Variant, from.Endpoint.Region); at.Live > 0 {
				at.Live--
			}
		}
		if live(to) {
			cell(head, to.Endpoint.Variant, to.Endpoint.Region).Live++
		}
	}
	return c
}

// unseen reports whether no snapshot shows a difference between two states of an
// endpoint.
func unseen(a, b *statev1.EndpointState) bool {
	return a.Out && b.Out || a.Out == b.Out && a.Draining == b.Draining && proto.Equal(a.Endpoint, b.Endpoint)
}

// live reports whether an endpoint may be picked: it is there, does not drain, and
// its checks do not keep it out.
func live(e *statev1.EndpointState) bool { return e != nil && !e.Draining && !e.Out }

// weigh computes an endpoint's lb_weight from its lease and what was reported of
// its calls, and keeps the published one unless it moved enough.
func (p *Plane) weigh(tx store.ReadTx, lease *statev1.Lease, ep *statev1.EndpointState) (uint32, error) {
	var calls statev1.EndpointCalls
	if _, err := loadDerived(tx, callsKey(lease.Scope, lease.Id), &calls); err != nil {
		return 0, err
	}
	now := tx.Now()
	recent := recentCalls(&calls, now)
	return Published(ep.Endpoint.LbWeight, LBWeight(Load{
		Utilization: lease.Utilization,
		InFlight:    lease.InFlight,
		Capacity:    ep.Capacity,
		Requests:    recent.requests,
		Errors:      recent.errs,
		Age:         now.Sub(time.UnixMilli(ep.RegisteredMs)),
		Draining:    ep.Draining,
	})), nil
}

// Load is what an endpoint's weight is computed from.
type Load struct {
	Utilization float64 // 0 to 1, smoothed; 0 = not reported
	InFlight    uint32
	Capacity    uint32 // 0 = not reported
	Requests    uint64 // of the last 30 s
	Errors      uint64
	Age         time.Duration // since the endpoint appeared
	Draining    bool
}

const (
	slowStart      = 30 * time.Second
	slowStartFloor = 10
	fewCalls       = 20 // fewer say nothing about errors
)

// LBWeight is the weight of an endpoint, 1 to 100, or 0 when it drains: less for
// one that is busy, fails or has just started. In steps of 5.
func LBWeight(l Load) uint32 {
	if l.Draining {
		return 0
	}
	u := l.Utilization
	if u == 0 && l.Capacity > 0 {
		u = float64(l.InFlight) / float64(l.Capacity)
	}
	var e float64
	if l.Requests >= fewCalls {
		e = float64(l.Errors) / float64(l.Requests)
	}
	w := min(max(math.Round(100*(1-min(u, 1))*(1-e)), 5), 100)
	if l.Age < slowStart {
		w = max(w*max(float64(l.Age), 0)/float64(slowStart), slowStartFloor)
	}
	return uint32(max(math.Round(w/5)*5, 5))
}

// Published is what is told to clients: the weight moves only by 10 or more, or
// to and from 0, so that a snapshot does not change with every heartbeat.
func Published(old, next uint32) uint32 {
	diff := int64(next) - int64(old)
	if old == 0 || next == 0 || diff >= 10 || diff <= -10 {
		return next
	}
	return old
}

const (
	callSlot  = 10 * time.Second
	callSlots = 3
)

// Calls are reported outcomes of one endpoint, added up. Sums stop at the largest
// number.
type Calls struct {
	Requests, Errors uint32
	Measured         uint32 // requests whose latency was reported
	LatencyUs        uint64 // sum of those
}

// Add takes in an outcome.
func (c *Calls) Add(o *donav1.CallOutcome) {
	n := max(o.Count, 1)
	c.Requests = addUpTo(c.Requests, n)
	if !o.Success {
		c.Errors = addUpTo(c.Errors, n)
	}
	if o.LatencyUs > 0 {
		c.Measured = addUpTo(c.Measured, n)
		over, sum := bits.Mul64(o.LatencyUs, uint64(n))
		if over > 0 {
			sum = math.MaxUint64
		}
		c.LatencyUs = addUpTo(c.LatencyUs, sum)
	}
}

// CountCalls adds reported outcomes to what an endpoint's share of errors and its
// latency are computed from. It is called inside the transaction that counts the
// report; an endpoint that is not there counts nothing.
func (p *Plane) CountCalls(tx store.Tx, service, endpoint string, reported Calls) error {
	rec, err := tx.Get(endpointKey(service, endpoint))
	if err != nil || !rec.Exists() {
		return err
	}
	key := callsKey(service, endpoint)
	var calls statev1.EndpointCalls
	if _, err := loadDerived(tx, key, &calls); err != nil {
		return err
	}
	shift(&calls, tx.Now())
	calls.Requests[0] = addUpTo(calls.Requests[0], reported.Requests)
	calls.Errors[0] = addUpTo(calls.Errors[0], reported.Errors)
	calls.Measured[0] = addUpTo(calls.Measured[0], reported.Measured)
	calls.LatencyUs[0] = addUpTo(calls.LatencyUs[0], reported.LatencyUs)
	return store.Save(tx, key, &calls)
}

// addUpTo adds and stops at the largest number.
func addUpTo[N uint32 | uint64](a, b N) N {
	if sum := a + b; sum >= a {
		return sum
	}
	return ^N(0)
}

// shift moves the slots so that the newest is the one of now.
func shift(calls *statev1.EndpointCalls, now time.Time) {
	slot := now.UnixMilli() / callSlot.Milliseconds()
	gone := int(min(max(slot-calls.Slot, 0), callSlots))
	calls.Requests, calls.Errors = moved(calls.Requests, gone), moved(calls.Errors, gone)
	calls.Measured, calls.LatencyUs = moved(calls.Measured, gone), moved(calls.LatencyUs, gone)
	calls.Slot = max(slot, calls.Slot)
}

func moved[N any](slots []N, gone int) []N {
	out := make([]N, callSlots)
	copy(out[gone:], slots)
	return out
}

// recent is what was reported of an endpoint within the last 30 s.
type recent struct {
	requests, errs uint64
	latency        time.Duration // the mean; 0 = not measured
}

func recentCalls(calls *statev1.EndpointCalls, now time.Time) (r recent) {
	shift(calls, now)
	var measured, sum uint64
	for i := range calls.Requests {
		r.requests += uint64(calls.Requests[i])
		r.errs += uint64(calls.Errors[i])
		measured += uint64(calls.Measured[i])
		sum = addUpTo(sum, calls.LatencyUs[i])
	}
	if measured > 0 {
		// No single latency that is taken overflows a Duration, and so no mean does.
		r.latency = time.Duration(sum/measured) * time.Microsecond
	}
	return r
}
