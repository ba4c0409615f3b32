package session_test

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	donav1 "github.com/dodona-project/dodona/proto/dona/v1"
	statev1 "github.com/dodona-project/dodona/proto/state/v1"

	"github.com/dodona-project/dodona/host/session"
	"github.com/dodona-project/dodona/host/store"
)

func TestMassBreakFreezes(t *testing.T) {
	bubble(t, func(r *rig) {
		all := r.registerMany(50)
		r.end(session.Broken, all[:40]...)
		r.want(40, "a fifth goes at once, the rest is held")
		r.alarms("checkout: mass expiry")
		// Some come back, one says goodbye, and those that beat are safe.
		var live []*session.Stream
		for _, id := range []string{"e20", "e21"} {
			live = append(live, r.register(id))
		}
		r.end(session.Goodbye, all[49])
		live = append(live, all[40:49]...)
		r.want(39, "a goodbye is believed in a freeze")
		time.Sleep(beat)
		r.beat(live...)
		r.sleep(ttl-2*beat, live...)
		time.Sleep(beat - 2*time.Millisecond)
		synctest.Wait()
		r.want(39, "to the end of the freeze")
		r.alarms("checkout: mass expiry")
		r.sleep(beat, live...)
		r.want(11, "after it, those that stayed away go, and no second freeze begins")
		r.alarms()
		r.sleep(5*ttl, live...)
		r.want(11, "later")
	})
}

func TestMassExpiryFreezes(t *testing.T) {
	bubble(t, func(r *rig) {
		r.registerMany(50)
		time.Sleep(ttl + beat)
		synctest.Wait()
		r.want(50, "held when all are overdue together")
		r.alarms("checkout: mass expiry")
		back := r.registerMany(30)
		r.sleep(ttl+beat, back...)
		r.want(30, "after the freeze")
		if r.gone("e40") != session.Expired {
			t.Errorf("went for %q", r.gone("e40"))
		}
		r.alarms()
	})
}

func TestFewMayGoTogether(t *testing.T) {
	bubble(t, func(r *rig) {
		all := r.registerMany(4)
		r.end(session.Broken, all...)
		r.want(0, "four of four")
		r.alarms()
		all = r.registerMany(30)
		r.end(session.Goodbye, all...)
		r.want(0, "thirty goodbyes")
		r.alarms()
	})
}

// One scope's trouble is not another's.
func TestFreezeIsPerScope(t *testing.T) {
	bubble(t, func(r *rig) {
		other, err := r.reg.Register(r.Context(), session.Registration{Scope: "basket", ID: "b", Payload: &statev1.Lease{}})
		if err != nil {
			t.Fatal(err)
		}
		_ = other
		r.registerMany(10)
		time.Sleep(ttl + beat)
		synctest.Wait()
		r.alarms("checkout: mass expiry")
		if l := r.load("lease/service/basket/b", &statev1.Lease{}); l != 0 {
			t.Error("the freeze of another scope held a lease")
		}
	})
}

func (r *rig) load(key string, into *statev1.Lease) (version uint64) {
	r.Helper()
	if err := r.store.View(r.Context(), func(tx store.ReadTx) (err error) {
		version, err = store.Load(tx, key, into)
		return err
	}); err != nil {
		r.Fatal(err)
	}
	return version
}

func TestPausedHostExpiresNothing(t *testing.T) {
	for _, tc := range []struct {
		name  string
		first func(r *rig, all []*session.Stream) // what runs first after the pause
	}{
		{"the sweep", func(r *rig, _ []*session.Stream) {}},
		{"broken streams", func(r *rig, all []*session.Stream) { r.end(session.Broken, all[:3]...) }},
	} {
		t.Run(tc.name, func(t *testing.T) {
			bubble(t, func(r *rig) {
				all := r.registerMany(4)
				r.sleep(ttl, all...)
				r.stop() // as a stopped process: no sweep, no beat
				time.Sleep(3 * ttl)
				tc.first(r, all)
				r.run()
				time.Sleep(beat)
				synctest.Wait()
				r.want(4, "after the pause")
				r.alarms("*: paused")
				back := all[:2]
				if tc.name == "broken streams" {
					back = []*session.Stream{r.register("e00"), r.register("e01")}
				}
				r.beat(back...)
				r.sleep(ttl-2*beat, back...)
				r.want(4, "to the end of the freeze")
				r.sleep(2*beat, back...)
				r.want(2, "after it, only those that stayed away are gone")
				r.alarms()
			})
		})
	}
}

// TestPausedAgain: a pause that ends while the freeze for an earlier one holds makes it
// longer: what was not heard in it is waited for as after any other.
func TestPausedAgain(t *testing.T) {
	bubble(t, func(r *rig) {
		all := r.registerMany(4)
		r.sleep(ttl, all...)
		r.stop()
		time.Sleep(2 * ttl)
		r.run()
		r.sleep(beat/2, all...)
		r.beat(all...)
		r.stop()
		time.Sleep(ttl - beat) // the freeze ends soon
		r.run()
		synctest.Wait()
		time.Sleep(ttl - beat)
		synctest.Wait()
		r.want(4, "to the end of the longer freeze")
		r.beat(all[:2]...)
		r.sleep(2*beat, all[:2]...)
		r.want(2, "after it, only those that stayed away are gone")
	})
}

func TestRestartGrace(t *testing.T) {
	for _, tc := range []struct {
		name        string
		back        int
		inGrace     int           // while they come back
		afterLift   int           // once nine of ten are back and the others' time is over
		graceAlarm  bool          // the wait lasts
		away        time.Duration // before the start
		longerGuard bool          // the guard holds the rest once more
	}{
		{name: "nine of ten are back", back: 18, inGrace: 20, afterLift: 18, away: 5 * ttl},
		{name: "all are back", back: 20, inGrace: 20, afterLift: 20, away: 5 * ttl},
		{name: "a few stay away", back: 17, inGrace: 20, afterLift: 17, away: 5 * ttl, graceAlarm: true},
		{name: "half stay away", back: 10, inGrace: 20, afterLift: 10, away: 5 * ttl, graceAlarm: true, longerGuard: true},
		{name: "a quick restart", back: 18, inGrace: 20, afterLift: 18, away: time.Millisecond},
	} {
		t.Run(tc.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				st := openStore(t)
				before := newRig(t, st)
				before.registerMany(20)
				before.stop() // as by kill -9: nothing was given up
				time.Sleep(tc.away)

				r := newRig(t, st)
				defer r.stop()
				r.alarms("checkout: restart")
				time.Sleep(beat)
				synctest.Wait()
				r.want(tc.inGrace, "in the wait")
				back := r.registerMany(tc.back)
				if tc.graceAlarm {
					r.alarms("checkout: restart")
					r.sleep(wait-2*beat, back...)
					r.want(20, "to the end of the wait")
					r.alarms("checkout: restart")
					r.sleep(2*beat, back...)
				} else {
					r.alarms()
					r.sleep(ttl+beat, back...)
				}
				if tc.longerGuard {
					r.alarms("checkout: mass expiry")
					r.want(20, "in the freeze of the guard")
					r.sleep(ttl+beat, back...)
				}
				r.want(tc.afterLift, "in the end")
				r.alarms()
			})
		})
	}
}

// Streams that break while the host waits for the others do not shrink the set.
func TestBrokenStreamInRestartGrace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		st := openStore(t)
		before := newRig(t, st)
		before.registerMany(20)
		before.stop()
		time.Sleep(ttl)
		r := newRig(t, st)
		defer r.stop()
		s := r.register("e00")
		r.end(session.Broken, s)
		r.want(20, "after a stream broke in the wait")
		if !r.lease("e00").GetDetached() {
			t.Error("the lease does not say that its stream is gone")
		}
	})
}

// A lease that was held is counted once: freezes do not follow on one another.
func TestNoEndlessFreeze(t *testing.T) {
	bubble(t, func(r *rig) {
		r.registerMany(50)
		frozen := 0
		for deadline := time.Now().Add(20 * ttl); time.Now().Before(deadline); time.Sleep(beat / 4) {
			if alarms, err := r.reg.Alarms(r.Context()); err != nil {
				t.Fatal(err)
			} else if len(alarms) > 0 {
				frozen++
			}
		}
		r.want(0, "in the end")
		if most := int(ttl/(beat/4)) + 1; frozen == 0 || frozen > most {
			t.Errorf("frozen at %d looks, want 1 to %d", frozen, most)
		}
		for _, key := range []string{"freeze/service/checkout", "leases/service/checkout"} {
			if r.load(key, &statev1.Lease{}) != 0 {
				t.Errorf("%s was left behind", key)
			}
		}
	})
}

// More leases than one transaction ends.
func TestManyLeasesEnd(t *testing.T) {
	bubble(t, func(r *rig) {
		for i := range 2500 {
			if _, err := r.reg.Register(r.Context(), session.Registration{
				Scope: "checkout", ID: "x" + time.Duration(i).String(), Payload: &statev1.Lease{},
			}); err != nil {
				t.Fatal(err)
			}
		}
		time.Sleep(2*ttl + 2*beat)
		synctest.Wait()
		r.want(0, "after the freeze")
	})
}

// beside starts another host on the rig's store. Its sweep does not run.
func (r *rig) beside(name string) *session.Registry {
	r.Helper()
	reg, err := session.New(session.Options{
		Store: r.store, Plane: r.plane, PlaneName: "service", Host: name, Shared: true, Heartbeat: beat, Restart: wait,
	})
	if err != nil {
		r.Fatal(err)
	}
	if err := reg.Start(r.Context()); err != nil {
		r.Fatal(err)
	}
	return reg
}

// A host that starts beside another waits for the endpoints that it served itself.
// Those of the other stay as they are, and both hosts' waits add up.
func TestStartBesideAnotherHost(t *testing.T) {
	bubble(t, func(r *rig) {
		first := r.registerMany(10) // at a
		b := r.beside("b")
		for i := range 10 {
			if _, err := b.Register(r.Context(), session.Registration{
				Scope: "checkout", ID: fmt.Sprintf("b%02d", i), Payload: &donav1.EndpointHeartbeat{},
			}); err != nil {
				r.Fatal(err)
			}
		}
		remembered := func() (n int) {
			r.Helper()
			var counts statev1.LeaseScope
			if err := r.store.View(r.Context(), func(tx store.ReadTx) error {
				n = 0
				if _, err := store.Load(tx, "leases/service/checkout", &counts); err != nil {
					return err
				}
				leases, err := tx.Scan("lease", 0, store.MaxScore, 0)
				for _, e := range leases {
					var l statev1.Lease
					if _, err := store.Load(tx, "lease/"+e.Member, &l); err != nil {
						return err
					}
					if l.Remembered != l.Detached || l.Remembered && l.Host != "b" {
						r.Errorf("the lease %v after a start of b", &l)
					}
					if l.Remembered {
						n++
					}
				}
				return err
			}); err != nil {
				r.Fatal(err)
			}
			if int(counts.Leases) != 20 || int(counts.Remembered) != n {
				r.Errorf("counted are %d leases and %d remembered, there are 20 and %d", counts.Leases, counts.Remembered, n)
			}
			return n
		}
		r.beside("b") // its next life
		if n := remembered(); n != 10 {
			r.Errorf("%d leases are remembered, want those of b", n)
		}
		r.alarms("checkout: restart")
		r.beside("b") // again, within its wait
		if n := remembered(); n != 10 {
			r.Errorf("%d leases are remembered after a second start", n)
		}
		for i := range 9 { // they come back, to the other host
			r.register(fmt.Sprintf("b%02d", i))
		}
		if n := remembered(); n != 1 {
			r.Errorf("%d leases are remembered after nine are back", n)
		}
		r.alarms()
		r.beat(first...)
	})
}

// While a host stands still nobody hears its endpoints. Another host does not take
// that for their silence, and ends them only when the host stays away; what it serves
// itself ends as always.
func TestSilentHost(t *testing.T) {
	bubble(t, func(r *rig) {
		hosts, stop := map[string]*session.Registry{}, map[string]func(){}
		run := func(name string) {
			ctx, cancel := context.WithCancel(context.Background())
			ran, reg := make(chan struct{}), hosts[name]
			go func() { defer close(ran); _ = reg.Run(ctx) }()
			stop[name] = func() { cancel(); <-ran }
		}
		for _, name := range []string{"b", "c"} {
			hosts[name] = r.beside(name)
			run(name)
		}
		r.stop() // the rig's own host is not one of these
		defer func() { stop["b"](); stop["c"]() }()
		register := func(host, id string) *session.Stream {
			s, err := hosts[host].Register(r.Context(), session.Registration{Scope: "checkout", ID: id, Payload: &donav1.EndpointHeartbeat{}})
			if err != nil {
				r.Fatal(err)
			}
			return s
		}
		var atB []*session.Stream
		for i := range 10 {
			atB = append(atB, register("b", fmt.Sprintf("b%02d", i)))
		}
		stays, mute := register("c", "stays"), register("c", "mute")
		r.sleep(ttl, append(atB, stays, mute)...)
		stop["b"]() // as a stopped process: no sweep, no beat
		r.sleep(3*ttl, stays)
		r.want(11, "after three lease times: all of b and the one of c that beats")
		run("b")
		r.sleep(beat, append(atB, stays)...)
		r.want(11, "when b goes on")
		r.sleep(5*ttl, append(atB, stays)...)
		r.want(11, "later")

		stop["b"]()
		r.sleep(4*ttl, stays)
		r.want(11, "while b may come back")
		r.sleep(3*ttl, stays)
		r.want(1, "when b stays away")
		run("b")
		time.Sleep(beat)
	})
}
