package session

import (
	"context"
	"sync"
	"time"

	statev1 "github.com/dodona-project/dodona/proto/state/v1"
	"google.golang.org/protobuf/proto"

	"github.com/dodona-project/dodona/host/refusal"
	"github.com/dodona-project/dodona/host/store"
)

// A Stream is one client stream and its registration. Beat is called by one
// goroutine at a time; End once, at the end, by whoever leaves the stream; Done
// and Err by anyone.
type Stream struct {
	registry   *Registry
	name       name
	generation uint64
	leaseID    string

	allow bucket // heartbeats; only Beat touches it
	beats uint64 // only Beat and End touch it

	once sync.Once
	done chan struct{}
	err  error // set before done is closed
}

func newStream(r *Registry, n name, l *statev1.Lease) *Stream {
	return &Stream{
		registry: r, name: n, generation: l.GetGeneration(), leaseID: l.GetLeaseId(),
		allow: newBucket(r.rules.Heartbeat), done: make(chan struct{}),
	}
}

// LeaseID is told to the client.
func (s *Stream) LeaseID() string { return s.leaseID }

// Generation is the store revision of the registration.
func (s *Stream) Generation() uint64 { return s.generation }

// Done is closed when the stream has to end for a reason on the host's side: a
// newer registration took over, the lease expired, or the host drains.
func (s *Stream) Done() <-chan struct{} { return s.done }

// Err is nil until Done is closed, and then the refusal to answer with.
func (s *Stream) Err() error {
	select {
	case <-s.done:
		return s.err
	default:
		return nil
	}
}

func (s *Stream) stop(why *refusal.Error) {
	s.once.Do(func() {
		s.err = why
		close(s.done)
	})
}

// Beat renews the lease and hands payload to the plane. A sequence that is not
// newer than the last is ignored; 0 is always taken. Refusals: Exhausted when
// heartbeats come faster than the bound, Aborted when the lease is no longer this
// stream's; after either the stream has to end. Any other error is the store's:
// the lease stands, and the next heartbeat may work.
func (s *Stream) Beat(ctx context.Context, rep Report, payload proto.Message) error {
	if err := s.Err(); err != nil {
		return err
	}
	r := s.registry
	if !s.allow.take(time.Now()) {
		r.metrics.beats.WithLabelValues("flood").Inc()
		return refusal.New(refusal.Exhausted, "heartbeats come too fast: one every %s is expected, at most %d a second are taken", r.rules.Heartbeat, int(s.allow.rate))
	}
	var result string
	err := r.store.Update(ctx, store.Soft, func(tx store.Tx) error {
		l, err := s.load(tx)
		if err != nil {
			return err
		}
		if l == nil {
			result = "late"
			return nil
		}
		if rep.Sequence != 0 && rep.Sequence <= l.GetSequence() {
			result = "replayed"
			return nil
		}
		result = "renewed"
		take(l, rep)
		l.Heartbeats++
		l.Detached = false
		l.DeadlineMs = tx.Now().Add(r.rules.TTL()).UnixMilli()
		if err := saveLease(tx, l); err != nil {
			return err
		}
		return r.plane.Beat(tx, l, payload)
	})
	if err != nil {
		return err
	}
	r.metrics.beats.WithLabelValues(result).Inc()
	switch result {
	case "late":
		s.stop(replacedOrGone())
		return s.Err()
	case "renewed":
		s.beats++
	}
	return nil
}

// load reads the lease; nil when it is gone or belongs to another stream.
func (s *Stream) load(tx store.ReadTx) (*statev1.Lease, error) {
	l, err := loadLease(tx, s.name)
	if err != nil || l == nil || l.GetGeneration() != s.generation {
		return nil, err
	}
	return l, nil
}

// End gives the lease up for the reason named and returns how many heartbeats
// renewed it. Goodbye and Refused end it at once; Broken too, unless removals are
// frozen or would have to be: then the lease waits for its client. ByHost keeps
// it for the heartbeats that may be missed, and while the host drains Broken is taken
// for ByHost. The end of a stream that was replaced changes nothing.
func (s *Stream) End(ctx context.Context, reason Reason) (beats uint64, err error) {
	r := s.registry
	defer r.forget(s)
	if reason == Broken && r.draining.Load() {
		reason = ByHost // a stopping host breaks its streams itself
	}
	var froze *statev1.Freeze
	var ended bool
	err = r.store.Update(ctx, store.Soft, func(tx store.Tx) error {
		froze, ended = nil, false
		l, err := s.load(tx)
		if err != nil || l == nil {
			return err
		}
		now := tx.Now()
		switch reason {
		case ByHost:
			l.Detached = true
			l.DeadlineMs = now.Add(r.rules.TTL()).UnixMilli()
			return saveLease(tx, l)
		case Broken:
			froze, ended, err = r.breakOff(tx, s.name, l)
			return err
		default:
			ended = true
			return r.remove(tx, s.name.scope, []*statev1.Lease{l}, reason, nil)
		}
	})
	if err == nil && ended {
		r.metrics.ended.WithLabelValues(string(reason)).Inc()
	}
	if err == nil && froze != nil {
		r.frozen(s.name.scope, froze)
	}
	s.stop(refusal.New(refusal.Aborted, "the stream has ended"))
	return s.beats, err
}

// breakOff ends a lease whose stream broke, or leaves it to the sweep when a
// freeze holds it.
func (r *Registry) breakOff(tx store.Tx, n name, l *statev1.Lease) (froze *statev1.Freeze, ended bool, err error) {
	sc, counts, froze, err := r.scene(tx, n.scope)
	if err != nil {
		return nil, false, err
	}
	l.DeadlineMs = sc.Now
	j := Judge(r.rules, sc, []int64{l.GetDeadlineMs()})
	if j.Freeze != nil {
		froze = j.Freeze
		if err := saveFreeze(tx, n.plane, n.scope, froze); err != nil {
			return nil, false, err
		}
	}
	if len(j.End) == 0 {
		l.Detached = true
		return froze, false, saveLease(tx, l)
	}
	counts.EndedMs = j.Ended(sc.Now, 1)
	return froze, true, r.remove(tx, n.scope, []*statev1.Lease{l}, Broken, counts)
}

func replacedOrGone() *refusal.Error {
	return refusal.New(refusal.Aborted, "the lease has ended or was taken over: register again")
}

// A bucket bounds heartbeats: a steady rate and a burst of two seconds' worth.
type bucket struct {
	rate   float64 // a second
	tokens float64
	last   time.Time
}

func newBucket(heartbeat time.Duration) bucket {
	rate := max(10, 4/heartbeat.Seconds())
	return bucket{rate: rate, tokens: 2 * rate}
}

func (b *bucket) take(now time.Time) bool {
	if !b.last.IsZero() {
		b.tokens = min(2*b.rate, b.tokens+b.rate*now.Sub(b.last).Seconds())
	}
	b.last = now
	if b.tokens < 1 {
		return false
	}
	b.tokens--
	return true
}
