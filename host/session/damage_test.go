package session_test

import (
	"testing"
	"testing/synctest"
	"time"

	donav1 "github.com/dodona-project/dodona/proto/dona/v1"

	"github.com/dodona-project/dodona/host/session"
	"github.com/dodona-project/dodona/host/store"
)

func (r *rig) damage(key string) {
	r.Helper()
	if err := r.store.Update(r.Context(), store.Hard, func(tx store.Tx) error {
		if rec, err := tx.Get(key); err != nil || !rec.Exists() {
			r.Errorf("%s: %v, %v", key, rec.Exists(), err)
		}
		return tx.Put(key, []byte{0xff})
	}); err != nil {
		r.Fatal(err)
	}
}

// TestDamagedScope: a lease that does not parse keeps its own scope, is not taken
// for a pause of the host, and keeps no other scope's leases from ending, whatever
// the order of their names.
func TestDamagedScope(t *testing.T) {
	bubble(t, func(r *rig) {
		if _, err := r.reg.Register(r.Context(), session.Registration{
			Scope: "a-damaged-one", ID: "x", Payload: &donav1.EndpointHeartbeat{EndpointId: "x"},
		}); err != nil {
			t.Fatal(err)
		}
		s := r.register("y")
		r.damage("lease/service/a-damaged-one/x")
		time.Sleep(20 * ttl)
		synctest.Wait()
		if err := r.reg.Sweep(r.Context()); err == nil {
			t.Error("a sweep does not say what is damaged")
		}
		select {
		case <-s.Done():
		default:
			t.Error("the stream of another scope goes on without heartbeats")
		}
		if reason := r.gone("y"); reason != session.Expired {
			t.Errorf("the lease of another scope ended by %q", reason)
		}
		r.alarms()
	})
}

// TestDamagedFence: a fence that does not parse goes with its hour, and keeps no
// other.
func TestDamagedFence(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := &rig{T: t, store: openStore(t)}
		for _, reporter := range []string{"a", "b"} {
			if _, err := report(r.store, reporter, 9, "a", 0); err != nil {
				t.Fatal(err)
			}
		}
		r.damage("fence/a")
		time.Sleep(session.FenceKept)
		if n, err := session.SweepFences(t.Context(), r.store); n != 2 || err != nil {
			t.Errorf("swept %d, %v", n, err)
		}
	})
}
