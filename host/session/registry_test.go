package session_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	donav1 "github.com/dodona-project/dodona/proto/dona/v1"
	statev1 "github.com/dodona-project/dodona/proto/state/v1"
	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/protobuf/proto"

	"github.com/dodona-project/dodona/host/refusal"
	"github.com/dodona-project/dodona/host/session"
	"github.com/dodona-project/dodona/host/store"
	"github.com/dodona-project/dodona/host/store/embedded"
)

const (
	beat = 200 * time.Millisecond
	ttl  = 3 * beat
	wait = 2 * time.Second // for remembered leases
)

// endpoints is a plane that keeps a record for each lease and remembers why the
// others went.
type endpoints struct {
	refuse error
}

func (p *endpoints) Registered(tx store.Tx, l, previous *statev1.Lease, payload proto.Message) error {
	if p.refuse != nil {
		return p.refuse
	}
	if err := tx.IndexPut("there/"+l.GetScope(), l.GetId(), 0); err != nil {
		return err
	}
	return store.Save(tx, "there/"+l.GetScope()+"/"+l.GetId(), payload)
}

func (p *endpoints) Beat(tx store.Tx, l *statev1.Lease, payload proto.Message) error {
	if p.refuse != nil {
		return p.refuse
	}
	return store.Save(tx, "there/"+l.GetScope()+"/"+l.GetId(), payload)
}

func (p *endpoints) Ended(tx store.Tx, l *statev1.Lease, reason session.Reason) error {
	if err := tx.IndexDelete("there/"+l.GetScope(), l.GetId()); err != nil {
		return err
	}
	if err := tx.Put("gone/"+l.GetScope()+"/"+l.GetId(), []byte(reason)); err != nil {
		return err
	}
	return tx.Delete("there/" + l.GetScope() + "/" + l.GetId())
}

// rig is one host on a store, with its sweep running.
type rig struct {
	*testing.T
	store store.Store
	plane *endpoints
	reg   *session.Registry
	stop  func()
	told  *prometheus.Registry // of its metrics
}

func newRig(t *testing.T, st store.Store) *rig {
	t.Helper()
	r := &rig{T: t, store: st, plane: &endpoints{}, told: prometheus.NewRegistry()}
	var err error
	r.reg, err = session.New(session.Options{
		Store: st, Plane: r.plane, PlaneName: "service", Host: "a", Heartbeat: beat, Restart: wait, Registerer: r.told,
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := r.reg.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	r.run()
	return r
}

func (r *rig) run() {
	ctx, cancel := context.WithCancel(context.Background())
	ran := make(chan struct{})
	go func() {
		defer close(ran)
		if err := r.reg.Run(ctx); !errors.Is(err, context.Canceled) {
			r.Errorf("run: %v", err)
		}
	}()
	r.stop = func() { cancel(); <-ran }
}

func (r *rig) register(id string) *session.Stream {
	r.Helper()
	s, err := r.reg.Register(r.Context(), session.Registration{
		Scope: "checkout", ID: id, Payload: &donav1.EndpointHeartbeat{EndpointId: id},
	})
	if err != nil {
		r.Fatalf("register %s: %v", id, err)
	}
	return s
}

func (r *rig) registerMany(n int) []*session.Stream {
	r.Helper()
	var all []*session.Stream
	for i := range n {
		all = append(all, r.register(fmt.Sprintf("e%02d", i)))
	}
	return all
}

// counted are the values of a metric but those of 0, by the label that is not the
// plane.
func (r *rig) counted(name string) map[string]float64 {
	r.Helper()
	families, err := r.told.Gather()
	if err != nil {
		r.Fatal(err)
	}
	out := map[string]float64{}
	for _, f := range families {
		if f.GetName() != name {
			continue
		}
		for _, m := range f.GetMetric() {
			key := ""
			for _, l := range m.GetLabel() {
				if l.GetName() != "plane" {
					key = l.GetValue()
				}
			}
			if n := m.GetCounter().GetValue() + m.GetGauge().GetValue(); n != 0 {
				out[key] = n
			}
		}
	}
	return out
}

func (r *rig) beat(streams ...*session.Stream) {
	r.Helper()
	for _, s := range streams {
		if err := s.Beat(r.Context(), session.Report{}, &donav1.EndpointHeartbeat{}); err != nil {
			r.Fatalf("beat: %v", err)
		}
	}
}

func (r *rig) end(reason session.Reason, streams ...*session.Stream) {
	r.Helper()
	for _, s := range streams {
		if _, err := s.End(r.Context(), reason); err != nil {
			r.Fatalf("end: %v", err)
		}
	}
}

// sleep lets d pass while the streams beat.
func (r *rig) sleep(d time.Duration, beating ...*session.Stream) {
	r.Helper()
	for d > 0 {
		step := min(d, beat)
		time.Sleep(step)
		d -= step
		r.beat(beating...)
	}
	synctest.Wait()
}

// there counts the endpoints that the plane has, and checks that each has its
// lease and the other way round.
func (r *rig) there() int {
	r.Helper()
	var have, leases []string
	err := r.store.View(r.Context(), func(tx store.ReadTx) error {
		entries, err := tx.Scan("there/checkout", 0, 0, 0)
		for _, e := range entries {
			have = append(have, e.Member)
		}
		all, _ := tx.Scan("lease", 0, store.MaxScore, 0)
		for _, e := range all {
			leases = append(leases, e.Member[len("service/checkout/"):])
		}
		return err
	})
	if err != nil {
		r.Fatal(err)
	}
	slices.Sort(leases)
	if !slices.Equal(have, leases) {
		r.Fatalf("endpoints %v but leases %v", have, leases)
	}
	return len(have)
}

func (r *rig) want(n int, when string) {
	r.Helper()
	if got := r.there(); got != n {
		r.Fatalf("%s: %d endpoints, want %d", when, got, n)
	}
}

func (r *rig) gone(id string) (reason session.Reason) {
	r.Helper()
	if err := r.store.View(r.Context(), func(tx store.ReadTx) error {
		rec, err := tx.Get("gone/checkout/" + id)
		reason = session.Reason(rec.Value)
		return err
	}); err != nil {
		r.Fatal(err)
	}
	return reason
}

func (r *rig) lease(id string) *statev1.Lease {
	r.Helper()
	l := new(statev1.Lease)
	if err := r.store.View(r.Context(), func(tx store.ReadTx) error {
		_, err := store.Load(tx, "lease/service/checkout/"+id, l)
		return err
	}); err != nil {
		r.Fatal(err)
	}
	return l
}

func (r *rig) alarms(want ...string) {
	r.Helper()
	alarms, err := r.reg.Alarms(r.Context())
	if err != nil {
		r.Fatal(err)
	}
	var got []string
	for _, a := range alarms {
		got = append(got, a.Scope+": "+a.Reason)
	}
	if !slices.Equal(got, want) {
		r.Fatalf("alarms %q, want %q", got, want)
	}
}

// openStore opens a store without a disk that closes with the test.
func openStore(t *testing.T) store.Store {
	st := embedded.OpenMemory(embedded.Options{})
	t.Cleanup(func() {
		if err := st.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
	})
	return st
}

// bubble runs fn on one host with a fresh store, in virtual time.
func bubble(t *testing.T, fn func(r *rig)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, openStore(t))
		defer func() { r.stop() }()
		fn(r)
	})
}

func TestLeaseEndsAfterThreeMissedBeats(t *testing.T) {
	bubble(t, func(r *rig) {
		s := r.register("a")
		r.sleep(10*ttl, s)
		r.want(1, "while it beats")
		time.Sleep(ttl - time.Millisecond)
		synctest.Wait()
		r.want(1, "just before the third missed beat")
		time.Sleep(beat)
		synctest.Wait()
		r.want(0, "after the third missed beat")
		if r.gone("a") != session.Expired {
			t.Errorf("went for %q", r.gone("a"))
		}
		select {
		case <-s.Done():
		default:
			t.Error("the stream was not told")
		}
		if !refusal.Is(s.Err(), refusal.Aborted) || !refusal.Is(s.Beat(r.Context(), session.Report{}, nil), refusal.Aborted) {
			t.Errorf("a late beat got %v", s.Err())
		}
	})
}

func TestEndings(t *testing.T) {
	for _, tc := range []struct {
		reason session.Reason
		keeps  bool
	}{
		{session.Goodbye, false}, {session.Broken, false}, {session.Refused, false}, {session.ByHost, true},
	} {
		t.Run(string(tc.reason), func(t *testing.T) {
			bubble(t, func(r *rig) {
				s := r.register("a")
				r.beat(s, s)
				beats, err := s.End(r.Context(), tc.reason)
				if err != nil || beats != 2 {
					t.Fatalf("end: %d beats, %v", beats, err)
				}
				if !tc.keeps {
					r.want(0, "at once")
					if r.gone("a") != tc.reason {
						t.Errorf("went for %q", r.gone("a"))
					}
					if got := r.counted("dona_session_leases_ended_total"); len(got) != 1 || got[string(tc.reason)] != 1 {
						t.Errorf("the metric has %v", got)
					}
					return
				}
				time.Sleep(ttl - time.Millisecond)
				synctest.Wait()
				r.want(1, "within three beats")
				back := r.register("a")
				r.sleep(2*ttl, back)
				r.want(1, "when its client is back")
				r.end(tc.reason, back)
				time.Sleep(ttl + beat)
				synctest.Wait()
				r.want(0, "when its client stays away")
				if got := r.counted("dona_session_leases_ended_total"); len(got) != 1 || got[string(session.Expired)] != 1 {
					t.Errorf("the metric has %v", got)
				}
			})
		})
	}
}

func TestNewestGenerationWins(t *testing.T) {
	bubble(t, func(r *rig) {
		old := r.register("a")
		newer := r.register("a")
		if !refusal.Is(old.Err(), refusal.Aborted) {
			t.Fatalf("the older stream was told %v", old.Err())
		}
		if err := old.Beat(r.Context(), session.Report{}, nil); !refusal.Is(err, refusal.Aborted) {
			t.Fatalf("a beat of the older stream: %v", err)
		}
		for _, reason := range []session.Reason{session.Goodbye, session.Broken, session.ByHost} {
			r.end(reason, old)
		}
		r.want(1, "after the end of the older stream")
		if l := r.lease("a"); l.GetGeneration() != newer.Generation() || l.GetDetached() || l.GetLeaseId() != newer.LeaseID() {
			t.Errorf("the older stream changed the lease: %v", l)
		}
		if newer.Err() != nil {
			t.Errorf("the newer stream was told %v", newer.Err())
		}
		r.beat(newer)
	})
}

// Two hosts on one store: the older stream is on the other one and learns of it
// by its next beat.
func TestTakeoverAcrossHosts(t *testing.T) {
	bubble(t, func(r *rig) {
		old := r.register("a")
		other := newRig(r.T, r.store)
		defer other.stop()
		other.register("a")
		if err := old.Beat(r.Context(), session.Report{}, nil); !refusal.Is(err, refusal.Aborted) {
			t.Fatalf("a beat of the older stream: %v", err)
		}
		if !refusal.Is(old.Err(), refusal.Aborted) {
			t.Error("the older stream was not told")
		}
		r.end(session.Broken, old)
		r.want(1, "after the end of the older stream")
	})
}

func TestSequences(t *testing.T) {
	bubble(t, func(r *rig) {
		s := r.register("a")
		for _, step := range []struct {
			sequence uint64
			newest   uint64
			taken    uint64
		}{
			{1, 1, 1}, {2, 2, 2}, {2, 2, 2}, {1, 2, 2}, {0, 2, 3}, {7, 7, 4}, {3, 7, 4},
		} {
			if err := s.Beat(r.Context(), session.Report{Sequence: step.sequence}, &donav1.EndpointHeartbeat{}); err != nil {
				t.Fatalf("sequence %d: %v", step.sequence, err)
			}
			if l := r.lease("a"); l.GetSequence() != step.newest || l.GetHeartbeats() != step.taken {
				t.Fatalf("after sequence %d: newest %d, taken %d, want %d and %d", step.sequence, l.GetSequence(), l.GetHeartbeats(), step.newest, step.taken)
			}
		}
		if got, want := r.counted("dona_session_heartbeats_total"), map[string]float64{"renewed": 4, "replayed": 3}; !maps.Equal(got, want) {
			t.Errorf("the metric has %v, want %v", got, want)
		}
		// A replay does not keep a lease alive.
		for range 8 {
			time.Sleep(beat / 2)
			_ = s.Beat(r.Context(), session.Report{Sequence: 7}, nil)
		}
		synctest.Wait()
		r.want(0, "with replays alone")
	})
}

func TestHeartbeatFlood(t *testing.T) {
	bubble(t, func(r *rig) {
		s := r.register("a")
		var err error
		sent := 0
		for ; err == nil && sent < 200; sent++ {
			time.Sleep(10 * time.Millisecond) // 100 a second
			err = s.Beat(r.Context(), session.Report{}, &donav1.EndpointHeartbeat{})
		}
		if !refusal.Is(err, refusal.Exhausted) {
			t.Fatalf("%d beats at 100 a second: %v", sent, err)
		}
		if got := r.counted("dona_session_heartbeats_total"); got["flood"] != 1 {
			t.Errorf("the metric has %v", got)
		}
		if got := r.counted("dona_session_streams"); got[""] != 1 {
			t.Errorf("the metric of streams has %v while there is one", got)
		}
		r.end(session.Refused, s)
		if got := r.counted("dona_session_streams"); got[""] != 0 {
			t.Errorf("the metric of streams has %v when there is none", got)
		}
		calm := r.register("b")
		r.sleep(200*beat, calm)
	})
}

func TestUtilizationIsSmoothed(t *testing.T) {
	bubble(t, func(r *rig) {
		s := r.register("a")
		for _, step := range []struct{ report, average float64 }{{0, 0}, {0.5, 0.5}, {1, 0.65}, {0, 0.65}, {7, 0.755}, {-1, 0.755}} {
			if err := s.Beat(r.Context(), session.Report{Utilization: step.report, InFlight: 3}, &donav1.EndpointHeartbeat{}); err != nil {
				t.Fatal(err)
			}
			if got := r.lease("a").GetUtilization(); got < step.average-1e-9 || got > step.average+1e-9 {
				t.Fatalf("after %v: %v, want %v", step.report, got, step.average)
			}
		}
	})
}

// Load is as of the last beat; a beat that does not speak of capacity leaves it.
func TestLoadOfABeat(t *testing.T) {
	bubble(t, func(r *rig) {
		s := r.register("a")
		for _, step := range []struct{ inFlight, capacity, want uint32 }{{3, 0, 0}, {4, 50, 50}, {0, 0, 50}, {7, 20, 20}} {
			if err := s.Beat(r.Context(), session.Report{InFlight: step.inFlight, Capacity: step.capacity}, &donav1.EndpointHeartbeat{}); err != nil {
				t.Fatal(err)
			}
			if l := r.lease("a"); l.GetInFlight() != step.inFlight || l.GetCapacity() != step.want {
				t.Errorf("after %+v: %d in flight of %d", step, l.GetInFlight(), l.GetCapacity())
			}
		}
	})
}

func TestRefusedByThePlane(t *testing.T) {
	bubble(t, func(r *rig) {
		r.plane.refuse = refusal.New(refusal.Exhausted, "full")
		_, err := r.reg.Register(r.Context(), session.Registration{Scope: "checkout", ID: "a", Payload: &donav1.EndpointHeartbeat{}})
		if !errors.Is(err, r.plane.refuse) {
			t.Fatalf("got %v", err)
		}
		r.want(0, "after a refusal")
		r.plane.refuse = nil
		s := r.register("a")
		before := r.lease("a")
		r.plane.refuse = errors.New("disk")
		if err := s.Beat(r.Context(), session.Report{Sequence: 5}, &donav1.EndpointHeartbeat{}); !errors.Is(err, r.plane.refuse) {
			t.Fatalf("got %v", err)
		}
		if !proto.Equal(before, r.lease("a")) || s.Err() != nil {
			t.Error("a failed beat changed the lease or ended the stream")
		}
	})
}

func TestBadNames(t *testing.T) {
	bubble(t, func(r *rig) {
		for _, reg := range []session.Registration{{}, {Scope: "a"}, {Scope: "*", ID: "a"}, {Scope: "a/b", ID: "c"}, {Scope: "a", ID: "b/c"}} {
			if _, err := r.reg.Register(r.Context(), reg); err == nil {
				t.Errorf("scope %q, id %q was taken", reg.Scope, reg.ID)
			}
		}
	})
}

func TestDrain(t *testing.T) {
	bubble(t, func(r *rig) {
		all := r.registerMany(4) // too few for the guard to hold them
		r.reg.Drain()
		for i, s := range all {
			if !refusal.Is(s.Err(), refusal.Unavailable) {
				t.Fatalf("a stream was told %v", s.Err())
			}
			r.end([]session.Reason{session.ByHost, session.Broken}[i%2], s)
		}
		if _, err := r.reg.Register(r.Context(), session.Registration{Scope: "checkout", ID: "x"}); !refusal.Is(err, refusal.Unavailable) {
			t.Errorf("registered while draining: %v", err)
		}
		time.Sleep(ttl - time.Millisecond)
		synctest.Wait()
		r.want(4, "after a drain")
	})
}

// TestCountsStayRight plays random lives and compares the scope's counts with the
// leases there are.
func TestCountsStayRight(t *testing.T) {
	bubble(t, func(r *rig) {
		live := make(map[string]*session.Stream)
		reasons := []session.Reason{session.Goodbye, session.Broken, session.Refused, session.ByHost}
		for i := range 400 {
			id := fmt.Sprintf("e%02d", i*7%23)
			if s := live[id]; s != nil && i%3 != 0 {
				r.end(reasons[i%4], s)
				delete(live, id)
			} else {
				live[id] = r.register(id)
			}
			if i%5 == 0 {
				r.sleep(beat/2, slices.Collect(maps.Values(live))...)
			}
			var counts statev1.LeaseScope
			if err := r.store.View(r.Context(), func(tx store.ReadTx) error {
				_, err := store.Load(tx, "leases/service/checkout", &counts)
				return err
			}); err != nil {
				t.Fatal(err)
			}
			if n := r.there(); int(counts.GetLeases()) != n {
				t.Fatalf("step %d: %d counted, %d there", i, counts.GetLeases(), n)
			}
		}
	})
}
