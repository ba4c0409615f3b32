package pool_test

import (
	"bytes"
	"slices"
	"strings"
	"testing"
	"time"

	controlplanev1 "github.com/dodona-project/dodona/proto/controlplane/v1"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/dodona-project/dodona/host/pool"
	"github.com/dodona-project/dodona/host/refusal"
	"github.com/dodona-project/dodona/host/store/redis/redistest"
)

// TestRefresh: a snapshot that has not changed is sent again, as the next version and
// with a later end, before half of its time is over.
func TestRefresh(t *testing.T) {
	for _, validity := range []time.Duration{time.Second, time.Minute, 24 * time.Hour} {
		for range 1000 {
			if d := pool.RefreshAfter(validity); d <= 0 || d >= validity/2 {
				t.Fatalf("one that holds for %s is sent again after %s", validity, d)
			}
		}
	}
	w := newWorld(t)
	w.publish(document + "allocation: {snapshotValidity: 1s, maxStaleAge: 1m}\n")
	x := w.join("w1")
	first := x.held
	for range 3 {
		w.clock.advance(400 * time.Millisecond) // as the machine's clock goes on meanwhile
		next := x.next()
		if next.Version != x.held.Version+1 || !bytes.Equal(next.Checksum, first.Checksum) || next.OwnershipEpoch != first.OwnershipEpoch {
			t.Errorf("after version %d comes %v", x.held.Version, next)
		}
		x.accept(next)
	}
	// One that was built before the clock went on may have waited to be sent; others not.
	if !x.held.ValidUntil.AsTime().After(first.ValidUntil.AsTime()) {
		t.Errorf("version %d ends at %s, version %d at %s", x.held.Version, x.held.ValidUntil.AsTime(), first.Version, first.ValidUntil.AsTime())
	}
}

// TestCoalesced: what changes within the time is one snapshot, while changes go on and on.
func TestCoalesced(t *testing.T) {
	const window = 200 * time.Millisecond
	w := newWorld(t)
	w.p = w.host("h1", func(o *pool.Options) { o.Coalesce = window })
	x := w.join("w1")
	before, began := x.held.Version, time.Now()
	pace := time.NewTicker(5 * time.Millisecond)
	defer pace.Stop()
	changes := 0
	for time.Since(began) < 3*window {
		select {
		case <-x.stream.updates: // so that its stream is never busy with sending
		case <-pace.C:
			w.change()
			changes++
		}
	}
	_, err := w.p.SetRouting(w.ctx, operator, &controlplanev1.SetRoutingRequest{Routing: "all"})
	w.must(err)
	last := x.until("without the routing", func(s *controlplanev1.WorkerSnapshot) bool { return len(s.Routings) == 0 })
	took := time.Since(began)
	most := uint64(took/window) + 1
	t.Logf("%d changes are %d snapshots in %s", changes, last.Version-before, took)
	if got := last.Version - before; got > most {
		t.Errorf("%d changes are %d snapshots in %s, want at most %d", changes, got, took, most)
	}
}

// TestRestoredBehindAWorker: of a store that was restored, a worker is sent what comes
// after the version and the epoch that it says it has, and goes on from there.
func TestRestoredBehindAWorker(t *testing.T) {
	w := newWorld(t)
	ids := w.add("dc", 1)
	x := w.join("w1")
	const version, epoch = 1000, 5000
	for _, said := range []struct{ version, epoch uint64 }{{version, epoch}, {1, 1}} { // then it is behind the store
		x.stream.cancel()
		x.stream = x.open(w.p, &controlplanev1.WatchSnapshotsRequest{WorkerId: "w1", SessionId: x.session, LastVersion: said.version, LastOwnershipEpoch: said.epoch})
		before := x.held
		x.accept(x.next())
		if x.held.Version <= max(version, before.Version) || x.held.OwnershipEpoch <= epoch {
			t.Errorf("a worker that has version %d of epoch %d is sent %d of %d", version, epoch, x.held.Version, x.held.OwnershipEpoch)
		}
	}
	w.allocate()
	x.accept(x.until("with its proxy", func(s *controlplanev1.WorkerSnapshot) bool {
		return len(s.Proxies) == 1 && s.Proxies[0].ProxyId == ids[0]
	}))
	x.report()
}

// TestUsableEndsBeforeTheProxy: a worker is told to give a proxy to nobody any more the
// published margin before the proxy ends.
func TestUsableEndsBeforeTheProxy(t *testing.T) {
	w := newWorld(t)
	w.publish(document + "allocation: {safetyMargin: 17s}\n")
	w.add("dc", 1)
	x := w.join("w1")
	w.allocate()
	p := x.until("with its proxy", func(s *controlplanev1.WorkerSnapshot) bool { return len(s.Proxies) == 1 }).Proxies[0]
	if got := p.ExpiresAt.AsTime().Sub(p.UsableUntil.AsTime()); got != 17*time.Second {
		t.Errorf("it is usable until %s before its end, want 17s", got)
	}
}

// TestRoutingsKeepTheirOrder: they are sent as the configuration has them, and another
// order is another view.
func TestRoutingsKeepTheirOrder(t *testing.T) {
	w := newWorld(t)
	named := func(names ...string) string {
		head, _, _ := strings.Cut(document, "routings:")
		for i, n := range names {
			if i == 0 {
				head += "routings:\n"
			}
			head += "  - {name: " + n + ", upstreams: [{name: dc}]}\n"
		}
		return head
	}
	names := func(s *controlplanev1.WorkerSnapshot) (all []string) {
		for _, r := range s.Routings {
			all = append(all, r.Name)
		}
		return all
	}
	w.publish(named("zeta", "alpha", "mid"))
	x := w.join("w1")
	if got := names(x.held); !slices.Equal(got, []string{"zeta", "alpha", "mid"}) {
		t.Errorf("routings are %v", got)
	}
	w.publish(named("alpha", "zeta", "mid"))
	next := x.until("in another order", func(s *controlplanev1.WorkerSnapshot) bool { return names(s)[0] == "alpha" })
	if bytes.Equal(next.Checksum, x.held.Checksum) {
		t.Error("another order has the same checksum")
	}
}

// TestObservedAtDecidesNothing: reports go by their numbers, whatever a worker's clock
// says.
func TestObservedAtDecidesNothing(t *testing.T) {
	w := newWorld(t)
	x := w.join("w1")
	for _, at := range []time.Time{w.clock.now().Add(24 * time.Hour), w.clock.now().Add(-24 * time.Hour), {}} {
		req := x.request()
		if !at.IsZero() {
			req.ObservedAt = timestamppb.New(at)
		}
		resp, err := x.send(req)
		refusedAs(t, at.String(), err, 0)
		if resp.AcceptedSequence != req.ReportSequence {
			t.Errorf("observed at %s: %v", at, resp)
		}
	}
	old := x.request()
	old.ReportSequence -= 2
	old.ObservedAt = timestamppb.New(w.clock.now().Add(48 * time.Hour))
	_, err := x.send(old)
	refusedAs(t, "a lower number that was observed later", err, refusal.Aborted)
	// Nor does it keep a session.
	w.clock.advance(31 * time.Second)
	late := x.request()
	late.ObservedAt = timestamppb.New(w.clock.now().Add(-30 * time.Second))
	_, err = x.send(late)
	refusedAs(t, "one that was observed in time and comes late", err, refusal.Precondition)
}

// TestNoReportNoRoom: a worker without a report that counts has no free capacity: it is
// given nothing, and keeps what it has.
func TestNoReportNoRoom(t *testing.T) {
	w := newWorld(t)
	x, y := w.join("w1"), w.join("w2")
	silent := &worker{world: w, p: w.p, id: "w3", uses: map[string]uint32{}}
	silent.register()
	silent.watch()
	silent.accept(silent.next()) // and has never reported
	w.add("dc", 4)
	w.allocate()
	if a, b, c := len(w.owned("w1")), len(w.owned("w2")), len(w.owned("w3")); a != 2 || b != 2 || c != 0 {
		t.Fatalf("of four are owned %d, %d and %d", a, b, c)
	}
	for _, g := range []*worker{x, y} {
		g.accept(g.until("with its proxies", func(s *controlplanev1.WorkerSnapshot) bool { return len(s.Proxies) == 2 }))
		g.report()
	}
	w.clock.advance(11 * time.Second) // a report counts for 10 s, a session for 30 s
	x.report()
	w.add("spare", 4)
	w.allocate()
	if a, b := len(w.owned("w1")), len(w.owned("w2")); a != 6 || b != 2 {
		t.Errorf("the one that reports owns %d of eight, the silent one %d", a, b)
	}
}

// TestLongSession: what fences outcomes lasts as long as the session, however long that
// is.
func TestLongSession(t *testing.T) {
	w := newWorld(t)
	x := w.join("w1")
	batch := &controlplanev1.OutcomeBatch{WorkerId: "w1", SessionId: x.session, Sequence: 7, Outcomes: []*controlplanev1.Outcome{{Routing: "all", Stage: controlplanev1.Outcome_STAGE_DIAL}}}
	_, err := w.p.TakeOutcomes(w.ctx, batch)
	w.must(err)
	for range 200 {
		w.clock.advance(29 * time.Second)
		x.report()
		w.must(w.p.Sweep(w.ctx))
	}
	lower := proto.CloneOf(batch)
	lower.Sequence = 6
	_, err = w.p.TakeOutcomes(w.ctx, lower)
	refusedAs(t, "a lower number after an hour and a half", err, refusal.Aborted)
	accepted, err := w.p.TakeOutcomes(w.ctx, batch)
	if w.must(err); accepted != 7 {
		t.Errorf("the same again: %d", accepted)
	}
}

// TestNothingIsSentThatIsOver: a host that is slow between building a snapshot and
// putting it on record does not send it when it is over by then.
func TestNothingIsSentThatIsOver(t *testing.T) {
	w := newWorld(t)
	w.publish(document + "allocation: {snapshotValidity: 5s}\n")
	x := &worker{world: w, p: w.p, id: "w1"}
	x.register()
	stream, err := w.p.OpenStream(w.ctx, &controlplanev1.WatchSnapshotsRequest{WorkerId: "w1", SessionId: x.session})
	w.must(err)
	v, err := w.p.BuildView(w.ctx, "w1", x.session, stream, nil)
	w.must(err)
	w.clock.advance(5 * time.Second)
	_, err = w.p.IssueView(w.ctx, "w1", x.session, stream, v)
	refusedAs(t, "when it is over", err, refusal.Unavailable)
	v, err = w.p.BuildView(w.ctx, "w1", x.session, stream, nil)
	w.must(err)
	w.clock.advance(5*time.Second - time.Millisecond)
	s, err := w.p.IssueView(w.ctx, "w1", x.session, stream, v)
	if w.must(err); s.Version != 1 {
		t.Errorf("the first that is sent has version %d", s.Version)
	}
}

// TestSessionEndsByTheServersClock: on Redis, too, by the clock that all hosts share.
func TestSessionEndsByTheServersClock(t *testing.T) {
	server := redistest.Start(t, redistest.Safe...)
	w := worldOver(t, openShared(t, server, "pool", "one"), newClock())
	other := pool.New(pool.Options{Store: openShared(t, server, "pool", "two"), Audit: w.log, HostID: "h2"})
	w.publish(document + "allocation: {sessionTTL: 5s}\n")
	x := w.join("w1")
	x.p = other
	began := time.Now()
	for {
		ack := x.ack(x.held, true) // which renews nothing
		if ack != nil {
			refusedAs(t, "after the session's end", ack, refusal.Precondition)
			break
		}
		if time.Since(began) > patience {
			t.Fatal("the session does not end")
		}
		time.Sleep(20 * time.Millisecond)
	}
	t.Logf("it ended %s after its last report", time.Since(began))
	_, err := x.send(x.request())
	refusedAs(t, "a report after it", err, refusal.Precondition)
	x.register()
	x.watch()
	x.accept(x.next())
	x.report()
}
