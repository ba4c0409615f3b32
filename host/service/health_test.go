package service_test

import (
	"testing"

	"github.com/dodona-project/dodona/host/session"
	"github.com/dodona-project/dodona/host/store"
)

// What is out is in no snapshot, no plan and no count of endpoints, keeps its place
// within the limits, and comes back as it was.
func TestOut(t *testing.T) {
	w, _ := newWorldWithClock(t)
	w.register(beat("a", "v1", "eu"))
	w.register(beat("b", "v1", "eu"))
	registered := map[string]int64{}
	targets := func(out string) {
		t.Helper()
		w.view(func(tx store.ReadTx) error {
			all, err := w.plane.Targets(tx, "web")
			for _, e := range all {
				registered[e.ID] = e.RegisteredMs
				if e.Out != (e.ID == out) {
					t.Errorf("target %+v, out is %q", e, out)
				}
			}
			if len(all) != 2 {
				t.Errorf("%d targets", len(all))
			}
			return err
		})
	}
	targets("")
	put := func(id string, ms int64, out bool) {
		t.Helper()
		w.update(func(tx store.Tx) error { return w.plane.SetOut(tx, "web", id, ms, out) })
	}
	live := func(want int) {
		t.Helper()
		s := w.build(nil)
		if len(s.Config.Endpoints) != want {
			t.Errorf("the snapshot has %d endpoints, want %d", len(s.Config.Endpoints), want)
		}
		w.view(func(tx store.ReadTx) error {
			n, err := w.plane.LegalEndpoints(tx, "web", "v1")
			if n != want {
				t.Errorf("%d legal endpoints, want %d", n, want)
			}
			return err
		})
		if got := w.candidates(); len(got) != want {
			t.Errorf("%d candidates, want %d", len(got), want)
		}
	}
	before := w.build(nil)
	put("a", registered["a"]-1, true) // another registration's
	live(2)
	put("a", registered["a"], true)
	live(1)
	targets("a")
	after := w.build(before)
	if after.Config.Version <= before.Config.Version || after.Config.Endpoints[0].Id != "b" {
		t.Errorf("after %v: %v", before.Config, after.Config)
	}
	w.view(func(tx store.ReadTx) error {
		head, err := w.plane.Head(tx, "web")
		if head.Removed != head.Version {
			t.Errorf("leaving skips the window: %+v", head)
		}
		return err
	})

	version := w.version()
	w.register(beat("a", "v1", "eu")) // comes back unchanged, as after a restart
	put("a", registered["a"], true)
	if got := w.version(); got != version {
		t.Errorf("nothing changed, and the version moved from %d to %d", version, got)
	}
	live(1)
	put("a", registered["a"], false)
	live(2)

	put("a", registered["a"], true)
	other := beat("a", "v1", "eu")
	other.Address = "10.0.0.9:80"
	w.register(other) // another endpoint of this id has not been checked
	live(2)
	targets("")
	put("a", registered["a"], true)
	w.update(func(tx store.Tx) error { return w.plane.Ended(tx, w.lease("a"), session.Broken) })
	live(1)
}

// What drains is not checked: nobody asks it any more.
func TestDrainingIsNotChecked(t *testing.T) {
	w, _ := newWorldWithClock(t)
	w.register(beat("a", "v1", "eu"))
	drains := beat("b", "v1", "eu")
	drains.Draining = true
	w.register(drains)
	w.view(func(tx store.ReadTx) error {
		all, err := w.plane.Targets(tx, "web")
		if len(all) != 1 || all[0].ID != "a" {
			t.Errorf("the targets are %+v, want a alone", all)
		}
		return err
	})
}
