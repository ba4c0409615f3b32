package pool_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	controlplanev1 "github.com/dodona-project/dodona/proto/controlplane/v1"
	donav1 "github.com/dodona-project/dodona/proto/dona/v1"
	pluginv1 "github.com/dodona-project/dodona/proto/plugin/v1"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/dodona-project/dodona/host/pool"
	"github.com/dodona-project/dodona/host/store"
)

// far is a store that is read as a shared one is: what a View asks for and was not
// fetched ends its run, is fetched in one round trip with all that was fetched before,
// and the View runs again.
type far struct {
	store.Store

	mu             sync.Mutex
	trips, records int // the most of any View since they were asked for
}

var errFar = errors.New("not fetched")

func (f *far) View(ctx context.Context, fn func(tx store.ReadTx) error) error {
	return f.Store.View(ctx, func(tx store.ReadTx) error {
		t := &farTx{ReadTx: tx, known: map[string]bool{}}
		for trips, records := 0, 0; ; {
			err := fn(t)
			if len(t.missed) == 0 {
				return err
			}
			for _, what := range t.missed {
				t.known[what] = true
			}
			t.missed = nil
			trips, records = trips+1, records+len(t.known)
			f.mu.Lock()
			f.trips, f.records = max(f.trips, trips), max(f.records, records)
			f.mu.Unlock()
		}
	})
}

type farTx struct {
	store.ReadTx
	known  map[string]bool
	missed []string
}

func (t *farTx) Get(key string) (store.Record, error) {
	if !t.known[key] {
		t.missed = append(t.missed, key)
		return store.Record{}, errFar
	}
	return t.ReadTx.Get(key)
}

func (t *farTx) GetMany(keys ...string) ([]store.Record, error) {
	var missed error
	records := make([]store.Record, len(keys))
	for i, key := range keys {
		r, err := t.Get(key)
		if err != nil {
			missed = err
		}
		records[i] = r
	}
	return records, missed
}

func (t *farTx) Scan(index string, from, to uint64, limit int) ([]store.Entry, error) {
	what := fmt.Sprint("scan ", index, from, to, limit)
	if !t.known[what] {
		t.missed = append(t.missed, what)
		return nil, errFar
	}
	return t.ReadTx.Scan(index, from, to, limit)
}

// TestRoundTripsAreFew: what is read of many workers, upstreams, routings and proxies
// takes few round trips to a shared store, and reads little more than once.
func TestRoundTripsAreFew(t *testing.T) {
	const upstreams, each, workers = 20, 30, 20
	clk := newClock()
	st := memory(clk)
	t.Cleanup(func() { _ = st.Close() })
	var doc strings.Builder
	doc.WriteString("cluster: {id: c1}\nupstreams:\n")
	for i := range upstreams {
		fmt.Fprintf(&doc, "  - {name: u%d, protocol: http, source: {type: static, proxies: [192.0.2.250:3128]}}\n", i)
	}
	doc.WriteString("routings:\n")
	for i := range upstreams {
		fmt.Fprintf(&doc, "  - {name: r%d, upstreams: [{name: u%d}]}\n", i, i)
	}
	w := worldOver(t, st, clk)
	w.publish(doc.String())
	for i := range upstreams {
		w.add(fmt.Sprint("u", i), each)
	}
	var first *worker
	for i := range workers {
		if x := w.join(fmt.Sprint("w", i)); i == 0 {
			first = x
		}
	}
	w.allocate()
	first.until("with proxies", func(s *controlplanev1.WorkerSnapshot) bool { return len(s.Proxies) > 0 })

	f := &far{Store: st}
	compiled := make(chan string, 2*upstreams)
	p := pool.New(pool.Options{Store: f, Audit: w.log, HostID: "h2", Compiler: compilerFunc(func(req *pluginv1.CompileRequest) (*donav1.Plan, error) {
		compiled <- req.Scope
		return &donav1.Plan{Algorithm: donav1.Algorithm_ALGORITHM_RANDOM}, nil
	})})
	few := func(what string, records int, err error) {
		t.Helper()
		w.must(err)
		f.mu.Lock()
		defer f.mu.Unlock()
		if f.trips == 0 || f.trips > 8 || f.records > records {
			t.Errorf("%s: %d round trips for %d records, at most 8 for %d are few", what, f.trips, f.records, records)
		}
		f.trips, f.records = 0, 0
	}
	const proxies = upstreams * each
	few("a look at all there is", 5*proxies, p.Allocate(w.ctx))
	few("a sweep", 10*workers, p.Sweep(w.ctx))
	_, err := p.Availability(w.ctx)
	few("availability", 5*proxies, err)
	_, err = p.Workers(w.ctx)
	few("workers", 20*workers, err)
	page, err := p.ListProxies(w.ctx, &controlplanev1.ListProxiesRequest{Upstream: "u3"})
	few("a page of proxies", 12*each, err)
	if len(page.Proxies) != each || page.Proxies[0].OwnerWorkerId == "" {
		t.Errorf("the page is %v", page)
	}
	err = p.Watch(w.ctx, &controlplanev1.WatchSnapshotsRequest{WorkerId: first.id, SessionId: first.session}, func(*controlplanev1.SnapshotUpdate) error { return context.Canceled })
	if !errors.Is(err, context.Canceled) {
		t.Fatal(err)
	}
	few("a worker's view", 10*(proxies/workers+upstreams), nil)

	ctx, cancel := context.WithTimeout(w.ctx, patience)
	ended := make(chan struct{})
	go func() { defer close(ended); _ = p.Run(ctx) }()
	for range upstreams {
		select {
		case <-compiled:
		case <-ctx.Done():
			t.Fatal("no plan is asked for")
		}
	}
	cancel()
	<-ended
	few("a host at work", 10*proxies, nil)
}

type compilerFunc func(*pluginv1.CompileRequest) (*donav1.Plan, error)

func (f compilerFunc) Compile(_ context.Context, _ string, _ *structpb.Struct, req *pluginv1.CompileRequest) (*donav1.Plan, time.Duration, error) {
	plan, err := f(req)
	return plan, 0, err
}
