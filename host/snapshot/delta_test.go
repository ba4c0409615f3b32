package snapshot_test

import (
	"testing"
	"testing/synctest"
	"time"

	donav1 "github.com/dodona-project/dodona/proto/dona/v1"
	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/protobuf/proto"

	"github.com/dodona-project/dodona/host/snapshot"
)

// deltaWorld is a feed of 100 endpoints, and watchers that keep what they get.
type deltaWorld struct {
	*testing.T
	reg   *prometheus.Registry
	src   *services
	feeds *snapshot.Feeds
	put   func(c change) uint64
}

func deltas(t *testing.T, with func(*snapshot.Options), run func(w *deltaWorld)) {
	synctest.Test(t, func(t *testing.T) {
		st := openStore(t)
		w := &deltaWorld{T: t, reg: prometheus.NewRegistry(), src: &services{}}
		w.feeds = newFeeds(t, st, w.src, func(o *snapshot.Options) {
			o.Registerer = w.reg
			if with != nil {
				with(o)
			}
		})
		defer w.feeds.Close()
		w.put = func(c change) uint64 {
			c.urgent = true
			v := apply(t, st, "a", c)
			synctest.Wait()
			return v
		}
		w.put(change{put: ids(100)})
		run(w)
	})
}

type deltaWatcher struct {
	*deltaWorld
	sub  *snapshot.Subscription
	held holder
}

func (w *deltaWorld) watch(accept bool) *deltaWatcher {
	w.Helper()
	d := &deltaWatcher{deltaWorld: w, sub: subscribe(w, w.feeds, "a", snapshot.Watcher{AcceptDelta: accept})}
	w.Cleanup(d.sub.Close)
	d.gets("the first frame", 0)
	return d
}

// gets takes the next frame, which must be a delta against base, or whole.
func (d *deltaWatcher) gets(what string, base uint64) *snapshot.Frame {
	d.Helper()
	f := next(d, d.sub)
	if f.Base != base {
		d.Fatalf("%s: the frame is against %d, want %d", what, f.Base, base)
	}
	d.held.take(d, f)
	return f
}

func (w *deltaWorld) count(form string) float64 {
	return count(w, w.reg, "dona_snapshot_encodings_total", form)
}

func TestDeltasAreShared(t *testing.T) {
	deltas(t, nil, func(w *deltaWorld) {
		var many []*deltaWatcher
		for range 50 {
			many = append(many, w.watch(true))
		}
		slow, old := w.watch(true), w.watch(false)
		v1 := many[0].held.snapshot.Version()
		v2 := w.put(change{put: ids(1)})
		var shared []byte
		for _, d := range many {
			f := d.gets("one change", v1)
			if shared == nil {
				shared = f.EncodedMessage()
			}
			if &shared[0] != &f.EncodedMessage()[0] {
				t.Fatal("two watchers at one version got two copies")
			}
		}
		old.gets("who takes no deltas", 0)
		if n := w.src.deltas.Load(); n != 1 {
			t.Errorf("the plane made %d deltas for 50 watchers at one version", n)
		}
		w.put(change{del: ids(2)})
		many[0].gets("the next change", v2)
		f := slow.gets("who missed one", v1)
		if c := decode(t, f); len(c.Endpoints) != 0 || len(c.RemovedEndpoints) != 2 {
			t.Errorf("the delta over two versions is %v, want what is left of both", c)
		}
		if !proto.Equal(slow.held.snapshot.Config(), many[0].held.snapshot.Config()) {
			t.Error("two ways to one version differ")
		}
		if full, d := w.count("full"), w.count("delta"); full != 3 || d != 3 {
			t.Errorf("%v full frames and %v deltas were encoded, want 3 and 3", full, d)
		}
	})
}

func TestFullInsteadOfADelta(t *testing.T) {
	for _, tc := range []struct {
		name string
		with func(*snapshot.Options)
		run  func(w *deltaWorld, d *deltaWatcher)
	}{
		{"the delta is longer", nil, func(w *deltaWorld, d *deltaWatcher) {
			w.put(change{put: ids(100)})
			d.gets("all endpoints changed", 0)
		}},
		{"too many versions since", func(o *snapshot.Options) { o.History = 2 }, func(w *deltaWorld, d *deltaWatcher) {
			other := w.watch(true)
			w.put(change{put: ids(1)})
			base := w.put(change{put: ids(1)})
			other.gets("two versions later", w.baseOf(other))
			w.put(change{put: ids(1)})
			d.gets("three versions later", 0)
			other.gets("one version later", base)
		}},
		{"too many bytes since", func(o *snapshot.Options) { o.HistoryBytes = 100 * 100 * 5 / 2 }, func(w *deltaWorld, d *deltaWatcher) {
			other := w.watch(true)
			w.put(change{put: ids(1)})
			base := w.put(change{put: ids(1)})
			other.gets("two versions later", w.baseOf(other))
			w.put(change{put: ids(1)})
			d.gets("three versions later", 0)
			other.gets("one version later", base)
		}},
		{"one version alone has too many bytes", func(o *snapshot.Options) { o.HistoryBytes = 1 }, func(w *deltaWorld, d *deltaWatcher) {
			other := w.watch(true)
			base := w.put(change{put: ids(1)})
			other.gets("the version before is kept all the same", w.baseOf(other))
			w.put(change{put: ids(1)})
			d.gets("two versions later", 0)
			other.gets("one version later", base)
		}},
		{"nothing changed for long", nil, func(w *deltaWorld, d *deltaWatcher) {
			other := w.watch(true)
			base := w.put(change{put: ids(1)})
			other.gets("at once", w.baseOf(other))
			time.Sleep(3 * time.Minute)
			d.gets("after minutes", 0)
			w.put(change{put: ids(1)})
			other.gets("the next change", base)
		}},
		{"the plane fails", nil, func(w *deltaWorld, d *deltaWatcher) {
			w.src.noDelta.Store(true)
			w.put(change{put: ids(1)})
			d.gets("without a delta", 0)
			if n := count(w, w.reg, "dona_snapshot_failures_total", ""); n != 1 {
				w.Errorf("%v failures counted", n)
			}
		}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			deltas(t, tc.with, func(w *deltaWorld) { tc.run(w, w.watch(true)) })
		})
	}
}

func (w *deltaWorld) baseOf(d *deltaWatcher) uint64 { return d.held.snapshot.Version() }

// The first frame of a stream is never a delta, whatever the watcher holds; after
// "unchanged" the next one may be.
func TestFirstFrameIsNoDelta(t *testing.T) {
	deltas(t, nil, func(w *deltaWorld) {
		d := w.watch(true)
		version, sum := d.held.snapshot.Version(), d.held.snapshot.Checksum()
		same := subscribe(t, w.feeds, "a", snapshot.Watcher{LastVersion: version, LastChecksum: sum[:], AcceptDelta: true})
		defer same.Close()
		if f := next(t, same); !f.Unchanged {
			t.Fatalf("who holds what is current got %v", decode(t, f))
		}
		w.put(change{put: ids(1)})
		if f := next(t, same); f.Base != version {
			t.Errorf("after unchanged: base %d, want %d", f.Base, version)
		}
		behind := subscribe(t, w.feeds, "a", snapshot.Watcher{LastVersion: version, LastChecksum: sum[:], AcceptDelta: true})
		defer behind.Close()
		if c := decode(t, next(t, behind)); c.Form != donav1.ConfigSnapshot_FORM_FULL {
			t.Errorf("who comes back with the version before got %s", c.Form)
		}
	})
}

// A delta cannot name version 0, the empty snapshot of a name that is not there.
func TestNoDeltaFromNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		st := openStore(t)
		feeds := newFeeds(t, st, &services{}, nil)
		defer feeds.Close()
		sub := subscribe(t, feeds, "a", snapshot.Watcher{AcceptDelta: true})
		defer sub.Close()
		next(t, sub)
		apply(t, st, "a", change{put: ids(3)})
		if f := next(t, sub); f.Base != 0 || len(decode(t, f).Endpoints) != 3 {
			t.Errorf("the first version is a delta against %d", f.Base)
		}
	})
}
