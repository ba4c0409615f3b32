package snapshot_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	donav1 "github.com/dodona-project/dodona/proto/dona/v1"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/dodona-project/dodona/host/refusal"
	"github.com/dodona-project/dodona/host/snapshot"
	"github.com/dodona-project/dodona/host/store"
	"github.com/dodona-project/dodona/host/store/embedded"
)

// openStore opens a store without a disk that closes with the test.
func openStore(tb testing.TB) store.Store {
	st := embedded.OpenMemory(embedded.Options{})
	tb.Cleanup(func() {
		if err := st.Close(); err != nil {
			tb.Errorf("close: %v", err)
		}
	})
	return st
}

func newFeeds(tb testing.TB, st store.Store, src snapshot.Source, with func(*snapshot.Options)) *snapshot.Feeds {
	tb.Helper()
	o := snapshot.Options{Store: st, Source: src}
	if with != nil {
		with(&o)
	}
	feeds, err := snapshot.New(o)
	if err != nil {
		tb.Fatal(err)
	}
	return feeds
}

func subscribe(tb testing.TB, feeds *snapshot.Feeds, name string, w snapshot.Watcher) *snapshot.Subscription {
	tb.Helper()
	sub, err := feeds.Subscribe(name, w)
	if err != nil {
		tb.Fatal(err)
	}
	return sub
}

func next(tb testing.TB, sub *snapshot.Subscription) *snapshot.Frame {
	tb.Helper()
	f, err := sub.Next(context.Background())
	if err != nil {
		tb.Fatal(err)
	}
	return f
}

// nothing checks that sub has nothing to say for an hour.
func nothing(t *testing.T, sub *snapshot.Subscription) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
	defer cancel()
	if f, err := sub.Next(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Fatalf("got version %d, %v", f.Version, err)
	}
}

// count reads a counter or gauge.
func count(tb testing.TB, reg *prometheus.Registry, name, form string) float64 {
	tb.Helper()
	families, err := reg.Gather()
	if err != nil {
		tb.Fatal(err)
	}
	for _, family := range families {
		if family.GetName() != name {
			continue
		}
		for _, m := range family.GetMetric() {
			if form == "" || m.GetLabel()[0].GetValue() == form {
				return m.GetCounter().GetValue() + m.GetGauge().GetValue()
			}
		}
	}
	tb.Fatalf("there is no metric %s", name)
	return 0
}

func TestFirstFrame(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		st := openStore(t)
		feeds := newFeeds(t, st, &services{}, nil)
		defer feeds.Close()
		apply(t, st, "a", change{put: ids(3)})
		version := apply(t, st, "a", change{put: []string{"x"}})
		sub := subscribe(t, feeds, "a", snapshot.Watcher{})
		full := next(t, sub)
		sub.Close()
		c := decode(t, full)
		if full.Version != version || len(c.Endpoints) != 4 {
			t.Fatalf("version %d with %d endpoints", full.Version, len(c.Endpoints))
		}
		other := make([]byte, len(c.Checksum))
		for _, tc := range []struct {
			name      string
			w         snapshot.Watcher
			unchanged bool
		}{
			{"holds what is current", snapshot.Watcher{LastVersion: version, LastChecksum: c.Checksum}, true},
			{"holds the version with other content", snapshot.Watcher{LastVersion: version, LastChecksum: other}, false},
			{"holds the version and does not say what", snapshot.Watcher{LastVersion: version}, false},
			{"holds an older one", snapshot.Watcher{LastVersion: version - 1, LastChecksum: c.Checksum}, false},
			{"holds none", snapshot.Watcher{LastChecksum: c.Checksum}, false},
			{"holds one from the future", snapshot.Watcher{LastVersion: version + 1, LastChecksum: c.Checksum}, false},
		} {
			sub := subscribe(t, feeds, "a", tc.w)
			f := next(t, sub)
			decode(t, f)
			if f.Unchanged != tc.unchanged || f.Version != version {
				t.Errorf("%s: version %d, unchanged %v", tc.name, f.Version, f.Unchanged)
			}
			nothing(t, sub)
			sub.Close()
		}
	})
}

func TestUnknownNameAppears(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		st := openStore(t)
		feeds := newFeeds(t, st, &services{}, nil)
		defer feeds.Close()
		sub := subscribe(t, feeds, "a", snapshot.Watcher{})
		defer sub.Close()
		f := next(t, sub)
		if c := decode(t, f); f.Version != 0 || f.Unchanged || len(c.Endpoints) != 0 || len(c.Checksum) == 0 {
			t.Fatalf("an unknown name: %v", c)
		}
		nothing(t, sub)
		apply(t, st, "b", change{put: ids(1)})
		nothing(t, sub)
		version := apply(t, st, "a", change{put: ids(2)})
		if f := next(t, sub); f.Version != version || len(decode(t, f).Endpoints) != 2 {
			t.Fatalf("after it appeared: version %d", f.Version)
		}
	})
}

func TestNewestWins(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		st := openStore(t)
		feeds := newFeeds(t, st, &services{}, nil)
		defer feeds.Close()
		apply(t, st, "a", change{put: ids(1)})
		slow, fast := subscribe(t, feeds, "a", snapshot.Watcher{}), subscribe(t, feeds, "a", snapshot.Watcher{})
		defer slow.Close()
		defer fast.Close()
		next(t, slow)
		next(t, fast)
		var version uint64
		for range 10 {
			version = apply(t, st, "a", change{put: ids(1)})
			if f := next(t, fast); f.Version != version {
				t.Fatalf("the fast one got %d, want %d", f.Version, version)
			}
		}
		if f := next(t, slow); f.Version != version {
			t.Fatalf("the slow one got %d, want %d", f.Version, version)
		}
		nothing(t, slow)
	})
}

func TestRewinds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		st, src := openStore(t), &services{}
		var seen []snapshot.Rewind
		feeds := newFeeds(t, st, src, func(o *snapshot.Options) {
			o.OnRewind = func(r snapshot.Rewind) { seen = append(seen, r) }
		})
		defer feeds.Close()
		want := func(rewinds ...snapshot.Rewind) {
			t.Helper()
			synctest.Wait()
			if fmt.Sprint(seen) != fmt.Sprint(rewinds) {
				t.Fatalf("rewinds %v, want %v", seen, rewinds)
			}
			seen = nil
			time.Sleep(2 * time.Second)
		}
		apply(t, st, "other", change{put: ids(1)})
		version := apply(t, st, "a", change{put: ids(1)})
		apply(t, st, "other", change{put: ids(1)})

		open := func(w snapshot.Watcher) *snapshot.Frame {
			sub := subscribe(t, feeds, "a", w)
			defer sub.Close()
			return next(t, sub)
		}
		open(snapshot.Watcher{Client: "c", LastVersion: version})
		want()
		open(snapshot.Watcher{Client: "c", LastVersion: version + 1})
		want(snapshot.Rewind{Name: "a", Client: "c", Seen: version + 1, Ours: version})
		open(snapshot.Watcher{Client: "c", LastVersion: version + 100})
		want(snapshot.Rewind{Name: "a", Client: "c", Seen: version + 100, Ours: version, Certain: true})
		for range 3 { // once a second
			open(snapshot.Watcher{Client: "c", LastVersion: version + 100})
		}
		want(snapshot.Rewind{Name: "a", Client: "c", Seen: version + 100, Ours: version, Certain: true})

		// A feed that is merely behind catches up first.
		sub := subscribe(t, feeds, "a", snapshot.Watcher{})
		defer sub.Close()
		next(t, sub)
		apply(t, st, "a", change{put: ids(1)})
		synctest.Wait()
		newest := apply(t, st, "a", change{put: ids(1)})
		synctest.Wait()
		behind := time.Now()
		if f := open(snapshot.Watcher{Client: "c", LastVersion: newest}); f.Version != newest {
			t.Fatalf("a client that was ahead of the feed got %d, want %d", f.Version, newest)
		}
		if waited := time.Since(behind); waited != 0 {
			t.Fatalf("it waited %s, as if for a window", waited)
		}
		want()
		next(t, sub)

		// The store goes back under an open feed: nothing of it is published.
		src.head.Store(1)
		apply(t, st, "a", change{put: ids(1)})
		nothing(t, sub)
		synctest.Wait()
		if len(seen) == 0 || seen[0].Seen != newest || seen[0].Ours != 1 || seen[0].Client != "" {
			t.Fatalf("rewinds %v", seen)
		}
	})
}

func TestBuildFailureIsRetried(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		st, src := openStore(t), &services{}
		feeds := newFeeds(t, st, src, nil)
		defer feeds.Close()
		src.broken.Store(true)
		apply(t, st, "a", change{put: ids(1)})
		sub := subscribe(t, feeds, "a", snapshot.Watcher{})
		defer sub.Close()
		nothing(t, sub)
		src.broken.Store(false)
		first := next(t, sub)
		src.broken.Store(true)
		version := apply(t, st, "a", change{put: ids(2)})
		nothing(t, sub)
		src.broken.Store(false)
		if f := next(t, sub); f.Version != version || first.Version >= version {
			t.Fatalf("got %d after %d, want %d", f.Version, first.Version, version)
		}
	})
}

func TestIdleFeedsGo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		reg := prometheus.NewRegistry()
		st, src := openStore(t), &services{}
		feeds := newFeeds(t, st, src, func(o *snapshot.Options) { o.Registerer, o.MaxFeeds = reg, 2 })
		defer feeds.Close()
		apply(t, st, "a", change{put: ids(1)})
		a, b := subscribe(t, feeds, "a", snapshot.Watcher{}), subscribe(t, feeds, "b", snapshot.Watcher{})
		defer a.Close()
		next(t, a)
		if _, err := feeds.Subscribe("c", snapshot.Watcher{}); !refusal.Is(err, refusal.Exhausted) {
			t.Fatalf("a third name: %v", err)
		}
		b.Close()
		b.Close()
		time.Sleep(30 * time.Second)
		b = subscribe(t, feeds, "b", snapshot.Watcher{}) // again in time
		time.Sleep(time.Hour)
		if n := count(t, reg, "dona_snapshot_feeds", ""); n != 2 {
			t.Fatalf("%v feeds, want 2", n)
		}
		time.Sleep(20 * time.Second)
		b.Close() // shortly before a minute since the last look is over
		time.Sleep(30 * time.Second)
		if n := count(t, reg, "dona_snapshot_feeds", ""); n != 2 {
			t.Fatalf("%v feeds half a minute after the last watcher left, want 2", n)
		}
		time.Sleep(3 * time.Minute)
		if n := count(t, reg, "dona_snapshot_feeds", ""); n != 1 {
			t.Fatalf("%v feeds after the last watcher left, want 1", n)
		}
		builds := src.builds.Load()
		apply(t, st, "b", change{put: ids(1)})
		time.Sleep(time.Minute)
		if src.builds.Load() != builds {
			t.Error("a name that nobody watches was built")
		}
	})
}

func TestCloseEndsSubscriptions(t *testing.T) {
	feeds := newFeeds(t, openStore(t), &services{}, nil)
	sub := subscribe(t, feeds, "a", snapshot.Watcher{})
	next(t, sub)
	feeds.Close()
	if _, err := sub.Next(t.Context()); !refusal.Is(err, refusal.Unavailable) {
		t.Errorf("next: %v", err)
	}
	if _, err := feeds.Subscribe("a", snapshot.Watcher{}); !refusal.Is(err, refusal.Unavailable) {
		t.Errorf("subscribe: %v", err)
	}
	sub.Close()
}

// A name whose build hangs delays no other.
func TestNamesDoNotDelayEachOther(t *testing.T) {
	st := openStore(t)
	hang := make(chan struct{})
	feeds := newFeeds(t, st, &hanging{services: &services{}, name: "a", until: hang}, nil)
	defer feeds.Close()
	defer close(hang)
	a := subscribe(t, feeds, "a", snapshot.Watcher{})
	defer a.Close()
	b := subscribe(t, feeds, "b", snapshot.Watcher{})
	defer b.Close()
	for range 5 {
		next(t, b)
		apply(t, st, "b", change{put: ids(3), urgent: true})
	}
}

type hanging struct {
	*services
	name  string
	until chan struct{}
}

func (h *hanging) Build(tx store.ReadTx, name string, previous *snapshot.Built) (*snapshot.Built, error) {
	if name == h.name {
		<-h.until
	}
	return h.services.Build(tx, name, previous)
}

func TestUnchangedItemsAreReused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		st, src := openStore(t), &services{}
		feeds := newFeeds(t, st, src, nil)
		defer feeds.Close()
		apply(t, st, "a", change{put: ids(100)})
		sub := subscribe(t, feeds, "a", snapshot.Watcher{})
		defer sub.Close()
		next(t, sub)
		apply(t, st, "a", change{put: ids(1)})
		next(t, sub)
		if n := src.reused.Load(); n != 99 {
			t.Errorf("%d of 100 items were reused, want 99", n)
		}
	})
}

func TestSummary(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		st := openStore(t)
		feeds := newFeeds(t, st, &services{}, nil)
		defer feeds.Close()
		feeds.Applied("a", "c1", 1, "") // nobody watches: nothing to remember
		if s := feeds.Summary("a"); s.Connected != 0 || s.OnCurrentVersion != 0 {
			t.Fatalf("without watchers: %+v", s)
		}
		version := apply(t, st, "a", change{put: ids(1)})
		join := func(client string, holds *donav1.ConfigSnapshot) (*snapshot.Subscription, *donav1.ConfigSnapshot) {
			sub := subscribe(t, feeds, "a", snapshot.Watcher{Client: client, LastVersion: holds.GetVersion(), LastChecksum: holds.GetChecksum()})
			return sub, decode(t, next(t, sub))
		}
		var subs []*snapshot.Subscription
		var full *donav1.ConfigSnapshot
		for _, c := range []string{"c1", "c2", "c3", "c4"} {
			sub, f := join(c, nil)
			subs, full = append(subs, sub), f
		}
		want := func(when, s string) {
			t.Helper()
			if got := fmt.Sprintf("%+v", feeds.Summary("a")); got != s {
				t.Fatalf("%s: %s, want %s", when, got, s)
			}
		}
		feeds.Applied("a", "c1", version, "")
		feeds.Applied("a", "c2", version, "checksum mismatch")
		feeds.Applied("a", "c3", version, "checksum mismatch")
		feeds.Applied("a", "c4", version-1, "")
		feeds.Applied("a", "stranger", version, "checksum mismatch") // does not watch
		want("after the reports", fmt.Sprintf("{Connected:4 OnCurrentVersion:1 RejectedClients:2 Rejected:[{Version:%d Reason:checksum mismatch Clients:2}]}", version))
		feeds.Applied("a", "c2", version, "")
		subs[2].Close()
		want("after one took it and one left", "{Connected:3 OnCurrentVersion:2 RejectedClients:0 Rejected:[]}")
		feeds.Applied("a", "c3", version, "too late")
		want("after a report of the one that left", "{Connected:3 OnCurrentVersion:2 RejectedClients:0 Rejected:[]}")

		// One that comes back with what is current has applied it, says its request.
		back, f := join("c5", full)
		if f.Form != donav1.ConfigSnapshot_FORM_UNCHANGED {
			t.Fatalf("it got %v", f)
		}
		want("after one came back", "{Connected:4 OnCurrentVersion:3 RejectedClients:0 Rejected:[]}")
		again, _ := join("c5", nil)
		back.Close()
		want("after it opened a second stream and closed the first", "{Connected:4 OnCurrentVersion:3 RejectedClients:0 Rejected:[]}")
		again.Close()
		want("after it left", "{Connected:3 OnCurrentVersion:2 RejectedClients:0 Rejected:[]}")

		apply(t, st, "a", change{put: ids(1)})
		next(t, subs[0])
		want("after a new version", "{Connected:3 OnCurrentVersion:0 RejectedClients:0 Rejected:[]}")
		for i := range 30 {
			c := fmt.Sprintf("d%d", i)
			sub, _ := join(c, nil)
			subs = append(subs, sub)
			feeds.Applied("a", c, version+1, fmt.Sprintf("reason %02d", i))
		}
		if s := feeds.Summary("a"); len(s.Rejected) != 20 || s.RejectedClients != 30 {
			t.Errorf("%d rejections of %d clients are shown, want 20 of 30", len(s.Rejected), s.RejectedClients)
		}
		for _, sub := range subs {
			sub.Close()
		}
	})
}
