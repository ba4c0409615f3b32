package pool_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	controlplanev1 "github.com/dodona-project/dodona/proto/controlplane/v1"

	"github.com/dodona-project/dodona/host/audit"
	"github.com/dodona-project/dodona/host/limits"
	"github.com/dodona-project/dodona/host/pool"
	"github.com/dodona-project/dodona/host/pool/ownership"
	"github.com/dodona-project/dodona/host/pool/poolconfig"
	"github.com/dodona-project/dodona/host/refusal"
	"github.com/dodona-project/dodona/host/store"
	"github.com/dodona-project/dodona/host/store/redis/redistest"
)

// measured is a store that remembers how much its largest transaction wrote.
type measured struct {
	store.Store
	most int
	fail func(d store.Durability) error // before an update; nil = none does
}

func (m *measured) Update(ctx context.Context, d store.Durability, fn func(tx store.Tx) error) error {
	if m.fail != nil {
		if err := m.fail(d); err != nil {
			return err
		}
	}
	return m.Store.Update(ctx, d, func(tx store.Tx) error {
		counted := &countedTx{Tx: tx}
		err := fn(counted)
		m.most = max(m.most, counted.n)
		return err
	})
}

type countedTx struct {
	store.Tx
	n int
}

func (t *countedTx) Put(key string, value []byte) error {
	t.n++
	return t.Tx.Put(key, value)
}

func (t *countedTx) IndexPut(index, member string, score uint64) error {
	t.n++
	return t.Tx.IndexPut(index, member, score)
}

// onBoth runs a test on an embedded store on disk and on Redis, with the time that a
// control action has.
func onBoth(t *testing.T, test func(t *testing.T, st store.Store)) {
	t.Run("embedded", func(t *testing.T) { test(t, audit.Guard(onDisk(t))) })
	t.Run("redis", func(t *testing.T) {
		test(t, audit.Guard(openShared(t, redistest.Start(t, redistest.Safe...), "large", "one")))
	})
}

// largeList has n lines, each a proxy of its own.
func largeList(n int) string {
	var list strings.Builder
	for i := range n {
		fmt.Fprintf(&list, "socks5://proxy-%d.with-a-name-that-is-not-short.example:%d\n", i, 1024+i)
	}
	return list.String()
}

// imported sums what the audit entries of imports say.
func (w *world) imported() (entries, added, rejected int) {
	for _, e := range w.chain() {
		if e.Kind == "pool.import" {
			n, err := strconv.Atoi(e.Detail["added"])
			w.must(err)
			bad, err := strconv.Atoi(e.Detail["rejected"])
			w.must(err)
			entries, added, rejected = entries+1, added+n, rejected+bad
		}
	}
	return entries, added, rejected
}

// TestLargeImport imports as many proxies as an upstream has at most, in one call and
// none of it in a transaction that is large; again, and one more.
func TestLargeImport(t *testing.T) {
	onBoth(t, func(t *testing.T, st store.Store) {
		m := &measured{Store: st}
		w := worldOver(t, m, newClock())
		req := &controlplanev1.ImportProxiesRequest{Upstream: "dc", List: "nonsense\n" + largeList(limits.ProxiesPerUpstream)}
		began := time.Now()
		resp, err := w.p.Import(w.ctx, operator, req)
		w.must(err)
		t.Logf("imported after %s, %d bytes", time.Since(began), len(req.List))
		if resp.Added != limits.ProxiesPerUpstream || len(resp.Rejected) != 1 {
			t.Errorf("imported: %d, and rejected %v", resp.Added, resp.Rejected)
		}
		if m.most > 2500 {
			t.Errorf("a transaction has written %d things", m.most)
		}
		if n := len(w.proxies()); n != limits.ProxiesPerUpstream {
			t.Errorf("there are %d proxies", n)
		}
		if _, added, rejected := w.imported(); added != limits.ProxiesPerUpstream || rejected != 1 {
			t.Errorf("the audit log has %d proxies and %d lines that were rejected", added, rejected)
		}
		resp, err = w.p.Import(w.ctx, operator, req)
		w.must(err)
		if resp.Added != 0 || resp.Refreshed != limits.ProxiesPerUpstream {
			t.Errorf("imported again: %d and %d", resp.Added, resp.Refreshed)
		}
		before := len(w.chain())
		_, err = w.p.Import(w.ctx, operator, &controlplanev1.ImportProxiesRequest{Upstream: "dc", List: largeList(limits.ProxiesPerUpstream-1) + "192.0.2.1:80\n192.0.2.2:80\n"})
		refusedAs(t, "more than there may be", err, refusal.Exhausted)
		if len(w.chain()) != before {
			t.Error("what was refused has changed something")
		}
	})
}

// TestLargeConfig publishes a document of nearly the most bytes. It is parsed once by
// each host, whoever asks for it at the same time and whatever is switched then.
func TestLargeConfig(t *testing.T) {
	onBoth(t, func(t *testing.T, st store.Store) {
		w := worldOver(t, st, newClock())
		var doc strings.Builder
		doc.WriteString("cluster: {id: c1}\nupstreams:\n  - {name: spare, protocol: http, source: {type: static, proxies: [192.0.2.250:3128]}}\n")
		for i := 0; i < 999 && doc.Len() < limits.PoolConfigLen-2000; i++ {
			fmt.Fprintf(&doc, "  - {name: u%d, protocol: http, source: {type: static, proxies: [192.0.2.250:3128]}, labels: {note: %s}}\n", i, strings.Repeat("x", 250))
		}
		doc.WriteString("routings:\n")
		for i := 0; i < 900 && doc.Len() < limits.PoolConfigLen-2000; i++ {
			fmt.Fprintf(&doc, "  - {name: r%d, match: {hosts: [%sexample]}, upstreams: [{name: u%d}]}\n", i, strings.Repeat(strings.Repeat("h", 60)+".", 3), i)
		}
		began := time.Now()
		w.publish(doc.String())
		t.Logf("%d bytes published after %s", doc.Len(), time.Since(began))
		written := w.p.Document()
		w.change()
		c, err := w.p.InForce(w.ctx)
		w.must(err)
		if u, _ := c.Upstream("spare"); len(c.Upstreams) < 900 || u.Enabled {
			t.Errorf("in force are %d upstreams, and spare is %v", len(c.Upstreams), u)
		}
		if w.p.Document() != written {
			t.Error("switching an upstream had the document parsed again")
		}
		other := w.host("h2")
		found := make(chan *poolconfig.Config, 20)
		for range cap(found) {
			go func() {
				c, _ := other.InForce(w.ctx)
				found <- c
			}()
		}
		first := <-found
		for range cap(found) - 1 {
			if c := <-found; c != first || c == nil {
				t.Fatal("another host has parsed the document twice, or not at all")
			}
		}
	})
}

// TestWhatIsTakenBackIsNotInForce: a configuration that a transaction saw, and that did
// not come to be, is not taken for the one that got its version.
func TestWhatIsTakenBackIsNotInForce(t *testing.T) {
	w := newWorld(t)
	never := errors.New("never")
	err := w.store.Update(w.ctx, store.Hard, func(tx store.Tx) error {
		record, err := tx.Get("pool/config")
		if err != nil {
			return err
		}
		if err := tx.Put("pool/config", bytes.ReplaceAll(record.Value, []byte("weight: 3"), []byte("weight: 4"))); err != nil {
			return err
		}
		if _, err := w.p.Targets(tx, "dc:basic"); err != nil {
			return err
		}
		return never
	})
	if !errors.Is(err, never) {
		t.Fatal(err)
	}
	// Another host's change gets the version.
	_, err = w.host("h2").SetUpstream(w.ctx, operator, &controlplanev1.SetUpstreamEnabledRequest{Upstream: "spare"})
	w.must(err)
	c, err := w.p.InForce(w.ctx)
	w.must(err)
	spare, _ := c.Upstream("spare")
	r, _ := c.Routing("all")
	if spare.Enabled || r.Upstreams[0].Weight != 3 {
		t.Errorf("in force are %+v and %+v", spare, r)
	}
}

// drained is a worker that owns 4,000 proxies, each with a drain that waits.
func (w *world) drained() *worker {
	const many = 4000
	w.t.Helper()
	w.add("dc", many)
	x := w.join("w1", func(r *controlplanev1.RegisterWorkerRequest) { r.MaxConnections = 1 << 20 })
	w.allocate()
	x.accept(x.until("with its proxies", func(s *controlplanev1.WorkerSnapshot) bool { return len(s.Proxies) == many }))
	x.report(func(r *controlplanev1.ReportRuntimeRequest) { r.Draining = true })
	began := time.Now()
	w.allocate()
	w.t.Logf("%d drains begun after %s", many, time.Since(began))
	x.accept(x.until("without its proxies", func(s *controlplanev1.WorkerSnapshot) bool { return len(s.Proxies) == 0 }))
	return x
}

// TestDrainOfThousands: a worker that leaves has all its proxies released by the first
// report that uses none of them.
func TestDrainOfThousands(t *testing.T) {
	w := newWorld(t)
	m := &measured{Store: w.store}
	w.store, w.p = m, pool.New(pool.Options{Store: m, Audit: w.log, HostID: "h1", Coalesce: 5 * time.Millisecond})
	x := w.drained()
	m.most = 0
	began := time.Now()
	resp := x.report(func(r *controlplanev1.ReportRuntimeRequest) { r.Draining = true })
	t.Logf("%d released after %s", len(resp.ReleasedProxyIds), time.Since(began))
	for id, s := range w.proxies() {
		if s.OwnerWorkerId != "" || s.State != ownership.Available {
			t.Fatalf("%s is %v", id, s)
		}
	}
	if len(resp.ReleasedProxyIds) != 4000 {
		t.Errorf("the report has released %d", len(resp.ReleasedProxyIds))
	}
	if m.most > 1000 {
		t.Errorf("a transaction has written %d things", m.most)
	}
	if workers, err := w.p.Workers(w.ctx); err != nil || workers.Workers[0].DrainingProxies != 0 {
		t.Errorf("the worker is %v, %v", workers, err)
	}
}

// TestThousandsEndWhileTheyDrain: what was imported together ends together.
func TestThousandsEndWhileTheyDrain(t *testing.T) {
	w := newWorld(t)
	x := w.drained()
	usable := w.proxy(slices.Min(slices.Collect(maps.Keys(w.proxies())))).Proxy.UsableUntil.AsTime()
	w.clock.advance(usable.Sub(w.clock.now()) + time.Second)
	w.must(w.p.Sweep(w.ctx))
	for id, s := range w.proxies() {
		if s.State != ownership.Expired {
			t.Fatalf("%s of %s is %v", id, x.id, s)
		}
	}
}

// TestImportCutOff: an import that ends in the middle says how far it came, and the same
// one again does the rest.
func TestImportCutOff(t *testing.T) {
	for name, cause := range map[string]error{
		"a refusal": &refusal.Error{Kind: refusal.Unavailable, Reason: "audit", Text: "outcome unknown"},
		"an error":  store.ErrUnavailable,
	} {
		t.Run(name, func(t *testing.T) {
			clk := newClock()
			m := &measured{Store: memory(clk)}
			defer func() { _ = m.Close() }()
			w := worldOver(t, m, clk)
			hard := 0
			m.fail = func(d store.Durability) error {
				if hard++; d == store.Hard && hard == 4 {
					return cause
				}
				return nil
			}
			req := &controlplanev1.ImportProxiesRequest{Upstream: "dc", List: largeList(4000)}
			resp, err := w.p.Import(w.ctx, operator, req)
			if err == nil || !strings.Contains(err.Error(), "of the 4000 proxies of the list are imported; import the same list again") {
				t.Fatalf("cut off: %v", err)
			}
			var as *refusal.Error
			if errors.As(cause, &as) != refusal.Is(err, refusal.Unavailable) || as == nil && !errors.Is(err, cause) {
				t.Errorf("it became %#v", err)
			}
			done := len(w.proxies())
			if entries, added, _ := w.imported(); entries != 3 || added != done || int(resp.Added) != done || done == 0 {
				t.Errorf("%d are there, the audit log has %d in %d entries, the answer %d", done, added, entries, resp.Added)
			}
			resp, err = w.p.Import(w.ctx, operator, req)
			w.must(err)
			if int(resp.Refreshed) != done || int(resp.Added) != 4000-done {
				t.Errorf("the same again: %v", resp)
			}
		})
	}
}
