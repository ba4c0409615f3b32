package pool_test

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	controlplanev1 "github.com/dodona-project/dodona/proto/controlplane/v1"
	"go.uber.org/goleak"

	"github.com/dodona-project/dodona/host/audit"
	"github.com/dodona-project/dodona/host/pool"
	"github.com/dodona-project/dodona/host/pool/ownership"
	"github.com/dodona-project/dodona/host/store"
	"github.com/dodona-project/dodona/host/store/embedded"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// clock is set by hand and read by a real store.
type clock struct{ ms atomic.Int64 }

func newClock() *clock {
	c := &clock{}
	c.ms.Store(1_700_000_000_000)
	return c
}

func (c *clock) now() time.Time          { return time.UnixMilli(c.ms.Load()) }
func (c *clock) advance(d time.Duration) { c.ms.Add(d.Milliseconds()) }

func memory(clk *clock) store.Store { return embedded.OpenMemory(embedded.Options{Clock: clk.now}) }

const operator = "spiffe://example.org/admin/ada"

// document is a small configuration: two upstreams, one routing over both.
const document = `
cluster: {id: c1}
upstreams:
  - name: dc
    protocol: http
    source: {type: static, proxies: [192.0.2.250:3128]}
    ttl: 1h
    labels: {tier: gold}
  - name: spare
    protocol: socks5
    source: {type: static, proxies: [192.0.2.251:1080]}
routings:
  - name: all
    upstreams: [{name: dc, weight: 3}, {name: spare, weight: 1}]
`

// world is a store with a published configuration, and pools over it.
type world struct {
	t     testing.TB
	ctx   context.Context
	clock *clock
	store store.Store
	log   *audit.Log
	p     *pool.Pool
	off   bool // the upstream spare
}

func newWorld(t testing.TB) *world {
	t.Helper()
	clk := newClock()
	if sharedServer != nil && strings.HasPrefix(t.Name(), overRedis) {
		return worldOver(t, byHand{openShared(t, sharedServer, strings.NewReplacer("/", "-", "_", "-").Replace(strings.ToLower(t.Name()[len(overRedis):])), "one"), clk}, clk)
	}
	st := memory(clk)
	t.Cleanup(func() { _ = st.Close() })
	return worldOver(t, st, clk)
}

func worldOver(t testing.TB, st store.Store, clk *clock) *world {
	w := &world{t: t, ctx: t.Context(), clock: clk, store: st, log: audit.New("example.org")}
	w.p = w.host("h1")
	w.publish(document)
	return w
}

func (w *world) host(id string, edit ...func(*pool.Options)) *pool.Pool {
	o := pool.Options{Store: w.store, Audit: w.log, HostID: id, Coalesce: 5 * time.Millisecond}
	for _, f := range edit {
		f(&o)
	}
	return pool.New(o)
}

func (w *world) must(err error) {
	w.t.Helper()
	if err != nil {
		w.t.Fatal(err)
	}
}

func (w *world) publish(yaml string) {
	w.t.Helper()
	_, err := w.p.Publish(w.ctx, operator, &controlplanev1.PublishConfigRequest{Yaml: yaml})
	w.must(err)
}

// add imports n proxies of an upstream and makes them available, as a check would.
func (w *world) add(upstream string, n int) (ids []string) {
	w.t.Helper()
	var list strings.Builder
	for i := range n {
		fmt.Fprintf(&list, "192.0.2.%d:%d\n", 1+i%200, 1000+i/200)
	}
	resp, err := w.p.Import(w.ctx, operator, &controlplanev1.ImportProxiesRequest{Upstream: upstream, List: list.String()})
	w.must(err)
	if len(resp.Rejected) > 0 {
		w.t.Fatalf("rejected: %v", resp.Rejected)
	}
	for _, s := range w.proxies() {
		if s.Proxy.Upstream == upstream {
			ids = append(ids, s.Proxy.ProxyId)
		}
	}
	w.find(ownership.Available, ids...)
	return ids
}

// find reports a state of proxies in the transaction that checks use.
func (w *world) find(state controlplanev1.ProxyStatus_State, ids ...string) {
	w.t.Helper()
	w.must(w.store.Update(w.ctx, store.Soft, func(tx store.Tx) error {
		for _, id := range ids {
			if err := w.p.Find(tx, id, ownership.Finding{State: state, AtMs: tx.Now().UnixMilli()}); err != nil {
				return err
			}
		}
		return nil
	}))
}

// change switches an upstream, which changes every worker's view.
func (w *world) change() {
	w.t.Helper()
	w.off = !w.off
	_, err := w.p.SetUpstream(w.ctx, operator, &controlplanev1.SetUpstreamEnabledRequest{Upstream: "spare", Enabled: !w.off})
	w.must(err)
}

// proxies are all there are, by id.
func (w *world) proxies() map[string]*controlplanev1.ProxyStatus {
	w.t.Helper()
	all := map[string]*controlplanev1.ProxyStatus{}
	for token := ""; ; {
		resp, err := w.p.ListProxies(w.ctx, &controlplanev1.ListProxiesRequest{PageSize: 1000, PageToken: token})
		w.must(err)
		for _, s := range resp.Proxies {
			all[s.Proxy.ProxyId] = s
		}
		if token = resp.NextPageToken; token == "" {
			return all
		}
	}
}

func (w *world) proxy(id string) *controlplanev1.ProxyStatus {
	w.t.Helper()
	s := w.proxies()[id]
	if s == nil {
		w.t.Fatalf("there is no proxy %s", id)
	}
	return s
}

// owned are the proxies of a worker, sorted.
func (w *world) owned(worker string) (ids []string) {
	w.t.Helper()
	for id, s := range w.proxies() {
		if s.OwnerWorkerId == worker {
			ids = append(ids, id)
		}
	}
	slices.Sort(ids)
	return ids
}

func (w *world) allocate() {
	w.t.Helper()
	w.must(w.p.Allocate(w.ctx))
}

type entry struct {
	Kind, Actor string
	Detail      map[string]string
}

// chain reads the pool's audit chain and checks every hash in it.
func (w *world) chain() (entries []entry) {
	w.t.Helper()
	w.must(w.store.View(w.ctx, func(tx store.ReadTx) error {
		if _, err := w.log.Check(tx, audit.PoolChain); err != nil {
			return err
		}
		entries = nil
		lines, err := tx.ReadLog("audit/"+audit.PoolChain, 1, 0)
		for _, line := range lines {
			var e entry
			if err := json.Unmarshal(line.Payload, &e); err != nil {
				return err
			}
			entries = append(entries, e)
		}
		return err
	}))
	return entries
}

// worker is a client that follows the protocol by hand.
type worker struct {
	*world
	p           *pool.Pool // the host that it talks to
	id, session string
	sequence    uint64
	stream      *stream
	held        *controlplanev1.WorkerSnapshot // applied and acknowledged
	uses        map[string]uint32
}

// join registers a worker, has it accept its first snapshot and report.
func (w *world) join(id string, edit ...func(*controlplanev1.RegisterWorkerRequest)) *worker {
	w.t.Helper()
	x := &worker{world: w, p: w.p, id: id, uses: map[string]uint32{}}
	x.register(edit...)
	x.watch()
	x.accept(x.next())
	x.report()
	return x
}

func (x *worker) register(edit ...func(*controlplanev1.RegisterWorkerRequest)) {
	x.t.Helper()
	req := &controlplanev1.RegisterWorkerRequest{ClusterId: "c1", WorkerId: x.id, InstanceId: x.id + "-1", SupportedProtocolVersion: 1, MaxConnections: 1000}
	for _, f := range edit {
		f(req)
	}
	resp, err := x.p.Register(x.ctx, req)
	x.must(err)
	x.session, x.sequence = resp.SessionId, 0
}

// stream is an open watch.
type stream struct {
	updates chan *controlplanev1.SnapshotUpdate
	ended   chan error
	cancel  context.CancelFunc
}

func (x *worker) open(p *pool.Pool, req *controlplanev1.WatchSnapshotsRequest) *stream {
	ctx, cancel := context.WithCancel(x.ctx)
	s := &stream{updates: make(chan *controlplanev1.SnapshotUpdate), ended: make(chan error, 1), cancel: cancel}
	go func() {
		s.ended <- p.Watch(ctx, req, func(u *controlplanev1.SnapshotUpdate) error {
			select {
			case s.updates <- u:
				return nil
			case <-ctx.Done():
				return ctx.Err()
			}
		})
	}()
	x.t.Cleanup(cancel)
	return s
}

// watch opens a new stream in the place of the one that there was.
func (x *worker) watch() {
	req := &controlplanev1.WatchSnapshotsRequest{WorkerId: x.id, SessionId: x.session}
	if x.held != nil {
		req.LastVersion, req.LastOwnershipEpoch = x.held.Version, x.held.OwnershipEpoch
	}
	x.stream = x.open(x.p, req)
}

const patience = time.Minute

// next is the next snapshot on the stream, which is whole.
func (x *worker) next() *controlplanev1.WorkerSnapshot {
	x.t.Helper()
	select {
	case u := <-x.stream.updates:
		if u.GetFull() == nil {
			x.t.Fatalf("no whole snapshot: %v", u)
		}
		return u.GetFull()
	case err := <-x.stream.ended:
		x.t.Fatalf("the stream ended: %v", err)
	case <-time.After(patience):
		x.t.Fatal("no snapshot came")
	}
	return nil
}

// until takes snapshots until one holds.
func (x *worker) until(what string, holds func(*controlplanev1.WorkerSnapshot) bool) *controlplanev1.WorkerSnapshot {
	x.t.Helper()
	for began := time.Now(); time.Since(began) < patience; {
		if s := x.next(); holds(s) {
			return s
		}
	}
	x.t.Fatalf("no snapshot %s", what)
	return nil
}

func (x *worker) ack(s *controlplanev1.WorkerSnapshot, accepted bool) error {
	return x.p.Acknowledge(x.ctx, &controlplanev1.AcknowledgeSnapshotRequest{
		WorkerId: x.id, SessionId: x.session, Version: s.Version, OwnershipEpoch: s.OwnershipEpoch, Checksum: s.Checksum, Accepted: accepted,
	})
}

func (x *worker) accept(s *controlplanev1.WorkerSnapshot) {
	x.t.Helper()
	x.must(x.ack(s, true))
	x.held = s
}

func (x *worker) request() *controlplanev1.ReportRuntimeRequest {
	x.sequence++
	req := &controlplanev1.ReportRuntimeRequest{
		WorkerId: x.id, SessionId: x.session, ReportSequence: x.sequence, SnapshotVersion: x.held.Version, OwnershipEpoch: x.held.OwnershipEpoch,
	}
	for id, n := range x.uses {
		if n > 0 {
			req.Counters = append(req.Counters, &controlplanev1.RuntimeCounter{ProxyId: id, Active: n})
		}
	}
	return req
}

func (x *worker) send(req *controlplanev1.ReportRuntimeRequest) (*controlplanev1.ReportRuntimeResponse, error) {
	return x.p.ReportRuntime(x.ctx, "spiffe://example.org/prod/worker/"+x.id, req)
}

func (x *worker) report(edit ...func(*controlplanev1.ReportRuntimeRequest)) *controlplanev1.ReportRuntimeResponse {
	x.t.Helper()
	req := x.request()
	for _, f := range edit {
		f(req)
	}
	resp, err := x.send(req)
	x.must(err)
	return resp
}

// lives has time pass for a worker that reports: in steps that are small beside what a
// session lasts, because whoever reads it just then reads how it was some steps ago.
func (x *worker) lives(d time.Duration) {
	x.t.Helper()
	for ; d > 0; d -= 5 * time.Second {
		x.clock.advance(min(d, 5*time.Second))
		x.report()
	}
}

func has(s *controlplanev1.WorkerSnapshot, id string) bool {
	return slices.ContainsFunc(s.Proxies, func(p *controlplanev1.Proxy) bool { return p.ProxyId == id })
}
