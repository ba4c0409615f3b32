package pool_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	controlplanev1 "github.com/dodona-project/dodona/proto/controlplane/v1"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/dodona-project/dodona/host/limits"
	"github.com/dodona-project/dodona/host/pool"
	"github.com/dodona-project/dodona/host/pool/ownership"
	"github.com/dodona-project/dodona/host/refusal"
)

// refusedAs demands a kind of refusal; 0 is none.
func refusedAs(t testing.TB, name string, err error, kind refusal.Kind) {
	t.Helper()
	if kind == 0 && err != nil || kind != 0 && !refusal.Is(err, kind) {
		t.Errorf("%s: %v, want kind %d", name, err, kind)
	}
}

// TestRuntimeFence: what a report is to the ones before it, within a session and after
// another one.
func TestRuntimeFence(t *testing.T) {
	w := newWorld(t)
	x := w.join("w1") // its report is 1
	first := x.request()
	first.ReportSequence = 5 // a gap
	_, err := x.send(first)
	refusedAs(t, "a gap", err, 0)
	other := proto.CloneOf(first)
	other.Counters = []*controlplanev1.RuntimeCounter{{ProxyId: "p", Active: 1}}
	for _, tc := range []struct {
		name string
		edit func(r *controlplanev1.ReportRuntimeRequest)
		kind refusal.Kind
	}{
		{"the same again", func(*controlplanev1.ReportRuntimeRequest) {}, 0},
		{"the same number, other content", func(r *controlplanev1.ReportRuntimeRequest) { r.Counters = other.Counters }, refusal.AlreadyExists},
		{"the same number, leaving", func(r *controlplanev1.ReportRuntimeRequest) { r.Draining = true }, refusal.AlreadyExists},
		{"a lower number", func(r *controlplanev1.ReportRuntimeRequest) { r.ReportSequence = 4 }, refusal.Aborted},
		{"a version ahead of what was acknowledged", func(r *controlplanev1.ReportRuntimeRequest) {
			r.ReportSequence, r.SnapshotVersion = 6, r.SnapshotVersion+1
		}, refusal.Precondition},
		{"an epoch ahead", func(r *controlplanev1.ReportRuntimeRequest) {
			r.ReportSequence, r.OwnershipEpoch = 6, r.OwnershipEpoch+1
		}, refusal.Precondition},
		{"another session", func(r *controlplanev1.ReportRuntimeRequest) { r.ReportSequence, r.SessionId = 6, "other" }, refusal.Precondition},
		{"no worker of that name", func(r *controlplanev1.ReportRuntimeRequest) { r.WorkerId = "w9" }, refusal.Precondition},
		{"the next", func(r *controlplanev1.ReportRuntimeRequest) { r.ReportSequence = 7 }, 0},
	} {
		req := proto.CloneOf(first)
		tc.edit(req)
		_, err := x.send(req)
		refusedAs(t, tc.name, err, tc.kind)
	}
	old := x.session
	x.register()
	late := proto.CloneOf(first)
	late.ReportSequence = 8
	_, err = x.send(late)
	refusedAs(t, "of the old session", err, refusal.Precondition)
	late.SessionId = x.session
	_, err = x.send(late)
	refusedAs(t, "before the new session has acknowledged", err, refusal.Precondition)
	if x.session == old {
		t.Error("the session is the same")
	}
	x.watch()
	x.accept(x.next())
	x.report() // numbers begin again
	w.clock.advance(30 * time.Second)
	_, err = x.send(x.request())
	refusedAs(t, "after the session has ended", err, refusal.Precondition)
}

// TestAcknowledgements: only what was issued and still holds counts, the highest is
// kept, and a refusal shuts the reports out until something above it is accepted.
func TestAcknowledgements(t *testing.T) {
	w := newWorld(t)
	x := w.join("w1")
	one := x.held
	w.change()
	two := x.next()
	forged := proto.CloneOf(two)
	forged.Checksum = make([]byte, 32)
	refusedAs(t, "another checksum", x.ack(forged, true), refusal.Precondition)
	forged = proto.CloneOf(two)
	forged.OwnershipEpoch++
	refusedAs(t, "another epoch", x.ack(forged, true), refusal.Precondition)
	forged = proto.CloneOf(two)
	forged.Version += 5
	refusedAs(t, "never issued", x.ack(forged, true), refusal.Precondition)
	refusedAs(t, "late, of the one before", x.ack(one, true), 0)
	x.accept(two)
	refusedAs(t, "late, after the next", x.ack(one, true), 0)
	x.report() // under two: the highest is kept

	w.change()
	three := x.next()
	refusedAs(t, "a refusal", x.ack(three, false), 0)
	_, err := x.send(x.request())
	refusedAs(t, "a report after it", err, refusal.Precondition)
	refusedAs(t, "an older acceptance again", x.ack(two, true), 0)
	_, err = x.send(x.request())
	refusedAs(t, "a report after that", err, refusal.Precondition)
	refusedAs(t, "the refused one accepted after all", x.ack(three, true), 0)
	_, err = x.send(x.request())
	refusedAs(t, "a report after that one", err, refusal.Precondition)
	x.watch()
	four := x.next()
	if four.Version <= three.Version {
		t.Errorf("version %d comes after %d", four.Version, three.Version)
	}
	x.accept(four)
	x.report()
	workers, err := w.p.Workers(w.ctx)
	w.must(err)
	if got := workers.Workers[0]; got.Fenced || got.AcknowledgedVersion != four.Version {
		t.Errorf("the worker is %v", got)
	}
	// What has run out is not acknowledged any more.
	w.change()
	five := x.next()
	x.lives(time.Minute)
	refusedAs(t, "one that has run out", x.ack(five, true), refusal.Precondition)
}

// TestReplacedSession: the old stream ends and issues nothing more.
func TestReplacedSession(t *testing.T) {
	w := newWorld(t)
	x := w.join("w1")
	old := x.stream
	x.register()
	select {
	case err := <-old.ended:
		refusedAs(t, "the old stream", err, refusal.Precondition)
	case u := <-old.updates:
		t.Fatalf("the old stream goes on with %v", u)
	case <-time.After(patience):
		t.Fatal("the old stream does not end")
	}
	refusedAs(t, "a watch of the old session", w.p.Watch(w.ctx, &controlplanev1.WatchSnapshotsRequest{WorkerId: "w1", SessionId: "old"}, nil), refusal.Precondition)
	// Within one session the newer stream takes the place of the older.
	x.watch()
	x.accept(x.next())
	older := x.stream
	x.watch()
	x.accept(x.next())
	select {
	case err := <-older.ended:
		refusedAs(t, "the older stream", err, refusal.Aborted)
	case <-time.After(patience):
		t.Fatal("the older stream does not end")
	}
}

// TestOutcomeFence: as of reports, with numbers of their own.
func TestOutcomeFence(t *testing.T) {
	w := newWorld(t)
	x := w.join("w1")
	send := func(edit func(*controlplanev1.OutcomeBatch)) (uint64, error) {
		b := &controlplanev1.OutcomeBatch{WorkerId: "w1", SessionId: x.session, Sequence: 3, Outcomes: []*controlplanev1.Outcome{{Routing: "all", Stage: controlplanev1.Outcome_STAGE_DIAL}}}
		edit(b)
		return w.p.TakeOutcomes(w.ctx, b)
	}
	for _, tc := range []struct {
		name string
		edit func(*controlplanev1.OutcomeBatch)
		kind refusal.Kind
	}{
		{"the first, with a gap", func(*controlplanev1.OutcomeBatch) {}, 0},
		{"the same again", func(*controlplanev1.OutcomeBatch) {}, 0},
		{"the same number, other content", func(b *controlplanev1.OutcomeBatch) { b.Outcomes[0].Success = true }, refusal.AlreadyExists},
		{"a lower number", func(b *controlplanev1.OutcomeBatch) { b.Sequence = 2 }, refusal.Aborted},
		{"another session", func(b *controlplanev1.OutcomeBatch) { b.SessionId, b.Sequence = "other", 4 }, refusal.Precondition},
		{"the next, with a gap", func(b *controlplanev1.OutcomeBatch) { b.Sequence = 9 }, 0},
	} {
		accepted, err := send(tc.edit)
		refusedAs(t, tc.name, err, tc.kind)
		if err == nil && accepted < 3 {
			t.Errorf("%s: accepted is %d", tc.name, accepted)
		}
	}
	x.register()
	_, err := send(func(b *controlplanev1.OutcomeBatch) { b.Sequence = 1 })
	refusedAs(t, "from 1 in a new session", err, 0)
}

// TestAcknowledgeDrain: it takes the session, a bound ticket, the acknowledged barrier,
// and no use that was reported a moment ago.
func TestAcknowledgeDrain(t *testing.T) {
	w := newWorld(t)
	id := w.add("dc", 1)[0]
	x := w.join("w1")
	w.allocate()
	x.accept(x.until("with the proxy", func(s *controlplanev1.WorkerSnapshot) bool { return has(s, id) }))
	x.uses[id] = 1
	x.report()
	epoch := w.proxy(id).Proxy.AssignmentEpoch
	ack := func(version uint64) error {
		return w.p.AcknowledgeDrain(w.ctx, "w", &controlplanev1.AcknowledgeDrainRequest{WorkerId: "w1", SessionId: x.session, ProxyId: id, AssignmentEpoch: epoch, SnapshotVersion: version})
	}
	refusedAs(t, "without a drain", ack(x.held.Version), refusal.NotFound)
	_, err := w.p.BeginDrain(w.ctx, operator, &controlplanev1.BeginDrainRequest{ProxyId: id})
	w.must(err)
	without := x.until("without it", func(s *controlplanev1.WorkerSnapshot) bool { return !has(s, id) })
	again, err := w.p.BeginDrain(w.ctx, operator, &controlplanev1.BeginDrainRequest{ProxyId: id})
	w.must(err)
	if again.State != ownership.Bound || again.BarrierVersion != without.Version {
		t.Errorf("the drain is %v, want it bound to %d", again, without.Version)
	}
	refusedAs(t, "before the barrier is acknowledged", ack(without.Version), refusal.Precondition)
	x.accept(without)
	x.report()
	refusedAs(t, "while a report counts a use", ack(without.Version), refusal.Precondition)
	w.clock.advance(11 * time.Second) // the report says nothing of now
	refusedAs(t, "under a version before the barrier", ack(without.Version-1), refusal.Precondition)
	refusedAs(t, "under a version not acknowledged", ack(without.Version+1), refusal.Precondition)
	refusedAs(t, "complete", ack(without.Version), 0)
	refusedAs(t, "the same again", ack(without.Version), 0)
	if s := w.proxy(id); s.OwnerWorkerId != "" {
		t.Errorf("it is owned by %s", s.OwnerWorkerId)
	}
	ended, err := w.p.BeginDrain(w.ctx, operator, &controlplanev1.BeginDrainRequest{ProxyId: id})
	if err != nil || ended.State != ownership.Released {
		t.Errorf("a drain of what was released: %v, %v", ended, err)
	}
}

// TestReplacedWhileDraining: a bound drain waits for a snapshot again when the session
// is replaced.
func TestReplacedWhileDraining(t *testing.T) {
	w := newWorld(t)
	id := w.add("dc", 1)[0]
	x := w.join("w1")
	w.allocate()
	x.accept(x.until("with the proxy", func(s *controlplanev1.WorkerSnapshot) bool { return has(s, id) }))
	_, err := w.p.BeginDrain(w.ctx, operator, &controlplanev1.BeginDrainRequest{ProxyId: id})
	w.must(err)
	x.accept(x.until("without it", func(s *controlplanev1.WorkerSnapshot) bool { return !has(s, id) }))
	x.register()
	state := func() controlplanev1.DrainTicket_State {
		ticket, err := w.p.BeginDrain(w.ctx, operator, &controlplanev1.BeginDrainRequest{ProxyId: id})
		w.must(err)
		return ticket.State
	}
	if got := state(); got != ownership.Pending {
		t.Errorf("after the registration it is %s", got)
	}
	x.watch()
	x.accept(x.next())
	if got := state(); got != ownership.Bound {
		t.Errorf("after the snapshot it is %s", got)
	}
	if resp := x.report(); len(resp.ReleasedProxyIds) != 1 {
		t.Errorf("the report is answered %v", resp)
	}
}

// TestForceRelease: a silent worker keeps what it has until it must have closed
// everything, counted from the last it can have been sent, and a host only believes a
// silence that it was there for.
func TestForceRelease(t *testing.T) {
	w := newWorld(t)
	id := w.add("dc", 1)[0]
	x := w.join("w1")
	w.allocate()
	x.accept(x.until("with the proxy", func(s *controlplanev1.WorkerSnapshot) bool { return has(s, id) }))
	x.report()
	w.must(w.p.Sweep(w.ctx))
	w.clock.advance(25 * time.Second)
	w.change()
	x.next() // it was sent one more, without a report since
	w.must(w.p.Sweep(w.ctx))
	late := w.host("h2")
	owned := func(p *pool.Pool, after time.Duration, want bool) {
		t.Helper()
		w.clock.advance(after)
		w.must(p.Sweep(w.ctx))
		if s := w.proxy(id); (s.OwnerWorkerId == "w1") != want {
			t.Fatalf("owned by %q", s.OwnerWorkerId)
		}
	}
	owned(w.p, 140*time.Second-time.Millisecond, true)
	owned(late, time.Millisecond, true) // it has looked for the first time
	owned(w.p, 0, false)
	if s := w.proxy(id); s.State != ownership.Available {
		t.Errorf("it is %s", s.State)
	}
	refusedAs(t, "the dead worker", x.ack(x.held, true), refusal.Precondition)
	entries := w.chain()
	if last := entries[len(entries)-1]; last.Kind != "pool.drain" || last.Detail["state"] != "FORCE_RELEASED" || last.Detail["worker_id"] != "w1" || last.Actor != "host:h1" {
		t.Errorf("on record is %v", last)
	}
	workers, err := w.p.Workers(w.ctx)
	w.must(err)
	w.must(w.p.Sweep(w.ctx))
	if len(workers.Workers) != 0 {
		t.Errorf("the worker is still there: %v", workers)
	}
}

// TestForceReleaseByWhatItWasTold: a shorter configuration does not make a worker close
// earlier that registered under a longer one.
func TestForceReleaseByWhatItWasTold(t *testing.T) {
	w := newWorld(t)
	w.publish(document + "allocation: {maxStaleAge: 10m}\n")
	id := w.add("dc", 1)[0]
	x := w.join("w1")
	w.allocate()
	x.accept(x.until("with the proxy", func(s *controlplanev1.WorkerSnapshot) bool { return has(s, id) }))
	x.report()
	w.publish(document)
	w.change()
	x.next() // it is sent another view, under the shorter one
	w.must(w.p.Sweep(w.ctx))
	for _, step := range []struct {
		after time.Duration
		owner string
	}{{3 * time.Minute, "w1"}, {7*time.Minute + 20*time.Second - time.Millisecond, "w1"}, {time.Millisecond, ""}} {
		w.clock.advance(step.after)
		w.must(w.p.Sweep(w.ctx))
		if s := w.proxy(id); s.OwnerWorkerId != step.owner {
			t.Errorf("%s later it is owned by %q, want %q", step.after, s.OwnerWorkerId, step.owner)
		}
	}
}

// TestLeavingWithoutItsUpstream: a worker that leaves is taken also what is of an
// upstream that is not configured any more.
func TestLeavingWithoutItsUpstream(t *testing.T) {
	w := newWorld(t)
	id := w.add("dc", 1)[0]
	x := w.join("w1")
	w.allocate()
	x.accept(x.until("with the proxy", func(s *controlplanev1.WorkerSnapshot) bool { return has(s, id) }))
	w.publish(strings.Replace(strings.Replace(document, "name: dc", "name: new", 1), "{name: dc,", "{name: new,", 1))
	x.accept(x.until("of the new document", func(s *controlplanev1.WorkerSnapshot) bool { return s.Routings[0].Upstreams[0].Name == "new" }))
	x.report(func(r *controlplanev1.ReportRuntimeRequest) { r.Draining = true })
	w.allocate()
	x.accept(x.until("without the proxy", func(s *controlplanev1.WorkerSnapshot) bool { return !has(s, id) }))
	if resp := x.report(func(r *controlplanev1.ReportRuntimeRequest) { r.Draining = true }); len(resp.ReleasedProxyIds) != 1 {
		t.Errorf("released are %v", resp)
	}
}

// TestImport: what is listed lasts, and what does not hold is told by line; a password
// in it is refused whole and not told.
func TestImport(t *testing.T) {
	w := newWorld(t)
	list := func(text string) (*controlplanev1.ImportProxiesResponse, error) {
		return w.p.Import(w.ctx, operator, &controlplanev1.ImportProxiesRequest{Upstream: "dc", List: text})
	}
	got, err := list("192.0.2.1:80\n# a comment\nnonsense\n127.0.0.1:80\n169.254.169.254:80\nsocks5://192.0.2.2:1080\r\n")
	w.must(err)
	if got.Added != 2 || len(got.Rejected) != 3 || !strings.HasPrefix(got.Rejected[0], "line 3: ") {
		t.Errorf("imported: %v", got)
	}
	again, err := list("192.0.2.1:80\n")
	w.must(err)
	if again.Added != 0 || again.Refreshed != 1 {
		t.Errorf("imported again: %v", again)
	}
	before := len(w.chain())
	_, err = list("192.0.2.3:80\n192.0.2.4:80:ada:planted\n")
	refusedAs(t, "with a password", err, refusal.Invalid)
	if err == nil || strings.Contains(err.Error(), "planted") || !strings.Contains(err.Error(), "line 2") || len(w.chain()) != before {
		t.Errorf("with a password: %v", err)
	}
	_, err = w.p.Import(w.ctx, operator, &controlplanev1.ImportProxiesRequest{Upstream: "dc", List: "192.0.2.3:80", Ttl: durationpb.New(10 * time.Second)})
	refusedAs(t, "for as long as nothing uses them", err, refusal.Invalid)
	for _, s := range w.proxies() {
		if s.State != ownership.New || s.Proxy.Health != controlplanev1.Health_HEALTH_UNSPECIFIED {
			t.Errorf("before any check it is %v", s)
		}
	}
}

// TestHeldAfterItsEnd: a proxy that ended while it was owned is nobody's until its last
// owner has said, under a view without it, that it does not use it; listed again
// before that, it owes a drain.
func TestHeldAfterItsEnd(t *testing.T) {
	w := newWorld(t)
	id := w.add("dc", 1)[0]
	x := w.join("w1")
	w.allocate()
	x.accept(x.until("with the proxy", func(s *controlplanev1.WorkerSnapshot) bool { return has(s, id) }))
	x.uses[id] = 1
	x.report()
	usable := w.proxy(id).Proxy.UsableUntil.AsTime()
	x.lives(usable.Sub(w.clock.now()) + time.Second)
	w.must(w.p.Sweep(w.ctx))
	if s := w.proxy(id); s.State != ownership.Expired || s.OwnerWorkerId != "" || s.Active != 1 {
		t.Fatalf("at its end it is %v", s)
	}
	x.accept(x.until("without it", func(s *controlplanev1.WorkerSnapshot) bool { return !has(s, id) }))
	for range 6 { // it is not forgotten while it is used
		x.lives(20 * time.Second)
		w.must(w.p.Sweep(w.ctx))
	}
	if _, problems := verified(t, w.store); len(problems) > 0 {
		t.Errorf("in the store does not hold: %q", problems)
	}
	w.add("dc", 1) // listed again, and found available
	s := w.proxy(id)
	if s.State != ownership.Available || s.OwnerWorkerId != "w1" {
		t.Fatalf("listed again it is %v", s)
	}
	if _, err := w.p.Extract(w.ctx, operator, &controlplanev1.ExtractRequest{IdempotencyKey: "k", Upstream: "dc", Count: 1}); !refusal.Is(err, refusal.Exhausted) {
		t.Errorf("extracted while in use: %v", err)
	}
	x.accept(x.until("for the drain", func(s *controlplanev1.WorkerSnapshot) bool { return true }))
	if resp := x.report(); len(resp.ReleasedProxyIds) != 0 {
		t.Errorf("released in use: %v", resp)
	}
	x.uses = nil
	if resp := x.report(); len(resp.ReleasedProxyIds) != 1 {
		t.Errorf("not released: %v", resp)
	}
	if _, err := w.p.Extract(w.ctx, operator, &controlplanev1.ExtractRequest{IdempotencyKey: "k", Upstream: "dc", Count: 1}); err != nil {
		t.Errorf("extracted when it is free: %v", err)
	}
}

// TestRegister: who is refused, and how many there may be.
func TestRegister(t *testing.T) {
	w := newWorld(t)
	req := func(edit func(*controlplanev1.RegisterWorkerRequest)) error {
		r := &controlplanev1.RegisterWorkerRequest{ClusterId: "c1", WorkerId: "w1", InstanceId: "i", SupportedProtocolVersion: 1}
		edit(r)
		_, err := w.p.Register(w.ctx, r)
		return err
	}
	refusedAs(t, "a good one", req(func(*controlplanev1.RegisterWorkerRequest) {}), 0)
	refusedAs(t, "of another cluster", req(func(r *controlplanev1.RegisterWorkerRequest) { r.ClusterId = "c2" }), refusal.Precondition)
	refusedAs(t, "of no protocol", req(func(r *controlplanev1.RegisterWorkerRequest) { r.SupportedProtocolVersion = 0 }), refusal.Precondition)
	refusedAs(t, "of a newer protocol", req(func(r *controlplanev1.RegisterWorkerRequest) { r.SupportedProtocolVersion = 2 }), refusal.Precondition)
	for i := range limits.Workers - 1 { // w1 is there
		w.must(req(func(r *controlplanev1.RegisterWorkerRequest) { r.WorkerId = fmt.Sprint("x", i) }))
	}
	refusedAs(t, "one more than may be", req(func(r *controlplanev1.RegisterWorkerRequest) { r.WorkerId = "more" }), refusal.Exhausted)
	refusedAs(t, "the last that is there, again", req(func(r *controlplanev1.RegisterWorkerRequest) { r.WorkerId = fmt.Sprint("x", limits.Workers-2) }), 0)
	empty := memory(w.clock)
	defer func() { _ = empty.Close() }()
	p := pool.New(pool.Options{Store: empty, Audit: w.log, HostID: "h1"})
	_, err := p.Register(context.Background(), &controlplanev1.RegisterWorkerRequest{ClusterId: "c1", WorkerId: "w1", InstanceId: "i", SupportedProtocolVersion: 1})
	refusedAs(t, "before anything is published", err, refusal.Unavailable)
}
