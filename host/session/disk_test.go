package session_test

import (
	"testing"
	"time"

	donav1 "github.com/dodona-project/dodona/proto/dona/v1"

	"github.com/dodona-project/dodona/host/session"
	"github.com/dodona-project/dodona/host/store/embedded"
)

// TestLeasesSurviveOnDisk closes and opens a data directory in real time: a new
// process remembers what the old one served, and a client that comes back has a
// newer generation than before.
func TestLeasesSurviveOnDisk(t *testing.T) {
	dir := t.TempDir() + "/data"
	open := func() (*rig, *embedded.Store) {
		st, err := embedded.Open(dir, embedded.Options{})
		if err != nil {
			t.Fatal(err)
		}
		return newRig(t, st), st
	}
	r, st := open()
	streams := r.registerMany(3)
	for _, s := range streams {
		r.end(session.ByHost, s)
	}
	r.stop()
	if err := st.Close(); err != nil {
		t.Fatal(err)
	}
	r, st = open()
	defer func() { r.stop(); _ = st.Close() }()
	r.want(3, "after a restart")
	if l := r.lease("e00"); !l.GetRemembered() || !l.GetDetached() {
		t.Fatalf("the lease is not remembered: %v", l)
	}
	back := r.register("e00")
	if back.Generation() <= streams[0].Generation() {
		t.Errorf("generation %d after %d", back.Generation(), streams[0].Generation())
	}
	r.want(3, "with one of three back")
	deadline := time.Now().Add(time.Minute)
	for tick := time.NewTicker(beat / 4); r.there() != 1; <-tick.C {
		if err := back.Beat(r.Context(), session.Report{}, &donav1.EndpointHeartbeat{}); err != nil {
			t.Fatal(err)
		}
		if time.Now().After(deadline) {
			t.Fatalf("%d endpoints a minute after the wait", r.there())
		}
	}
}
