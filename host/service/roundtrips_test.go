package service_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	donav1 "github.com/dodona-project/dodona/proto/dona/v1"
	"github.com/hashicorp/go-hclog"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/dodona-project/dodona/host/check"
	"github.com/dodona-project/dodona/host/service"
	"github.com/dodona-project/dodona/host/store"
)

// trips is a store whose views count the round trips that they would take on a shared
// store: one for each read of what was not read before, and each reads what came
// before once more.
type trips struct {
	store.Store
	most    chan int // the most round trips of any view so far
	records chan int // the most records
}

func (s *trips) View(ctx context.Context, fn func(tx store.ReadTx) error) error {
	return s.Store.View(ctx, func(tx store.ReadTx) error {
		t := &tripping{ReadTx: tx, read: map[string]bool{}}
		err := fn(t)
		s.most <- max(<-s.most, t.trips)
		s.records <- max(<-s.records, t.records)
		return err
	})
}

type tripping struct {
	store.ReadTx
	read           map[string]bool
	trips, records int
}

func (t *tripping) Get(key string) (store.Record, error) {
	records, err := t.GetMany(key)
	if err != nil {
		return store.Record{}, err
	}
	return records[0], nil
}

func (t *tripping) GetMany(keys ...string) ([]store.Record, error) {
	had := len(t.read)
	for _, key := range keys {
		t.read[key] = true
	}
	if len(t.read) > had {
		t.trip()
	}
	return t.ReadTx.GetMany(keys...)
}

func (t *tripping) trip() {
	t.trips++
	t.records += len(t.read)
}

func (t *tripping) Scan(index string, from, to uint64, limit int) ([]store.Entry, error) {
	t.trip()
	return t.ReadTx.Scan(index, from, to, limit)
}

// What is read of many services and endpoints takes few round trips, however many
// there are.
func TestRoundTripsAreFew(t *testing.T) {
	w := newWorld(t)
	st := &trips{Store: w.store, most: make(chan int, 1), records: make(chan int, 1)}
	st.most <- 0
	st.records <- 0
	plane := service.New(st, w.audit, "h1")
	ok := func(context.Context, string, *structpb.Struct) error { return nil }
	const many = 100
	for i := range many {
		name := fmt.Sprint("s", i)
		if err := plane.SetPolicy(t.Context(), "local:dev", &donav1.SetServicePolicyRequest{Service: name, Probe: "tcp"}, ok, ok); err != nil {
			t.Fatal(err)
		}
		w.register(beat(fmt.Sprint("e", i), "v1", "eu"))
		if i >= 50 {
			continue
		}
		if err := plane.SetIngress(t.Context(), "local:dev", &donav1.SetIngressRequest{Service: "web", Host: fmt.Sprintf("h%d.example.com", i)}); err != nil {
			t.Fatal(err)
		}
	}
	if err := plane.SetPolicy(t.Context(), "local:dev", &donav1.SetServicePolicyRequest{Service: "web", Probe: "tcp"}, ok, ok); err != nil {
		t.Fatal(err)
	}
	few := func(what string) {
		t.Helper()
		n, records := <-st.most, <-st.records
		st.most <- 0
		st.records <- 0
		if n == 0 || n > 10 || records > 5*many {
			t.Errorf("%s: a view takes %d round trips for %d records, at most 10 are few, for %d", what, n, records, 5*many)
		}
	}
	if _, err := plane.Collect(t.Context()); err != nil {
		t.Fatal(err)
	}
	few("collect")
	b := check.New(check.Options{Store: st, Planes: map[string]check.Plane{service.CheckPlane: plane}, Rules: check.DefaultRules(30*time.Second, time.Second)})
	if err := b.Look(t.Context(), true); err != nil {
		t.Fatal(err)
	}
	few("a look at the checks")
	for what, read := range map[string]func(tx store.ReadTx) error{
		"checks":    func(tx store.ReadTx) error { _, err := b.Status(tx, service.CheckPlane, "web"); return err },
		"snapshot":  func(tx store.ReadTx) error { _, err := plane.Build(tx, "web", nil); return err },
		"ingresses": func(tx store.ReadTx) error { _, err := plane.Ingresses(tx, "web"); return err },
	} {
		if err := st.View(t.Context(), read); err != nil {
			t.Fatal(err)
		}
		few(what)
	}

	ctx, cancel := context.WithCancel(t.Context())
	c := &compiler{changed: make(chan struct{}, 1)}
	done := make(chan struct{})
	go func() { defer close(done); _ = service.NewPlanner(plane, c, hclog.NewNullLogger()).Run(ctx) }()
	eventually(t, func() bool { return c.count() > 0 }, func() string { return "no plan is asked for" })
	cancel()
	<-done
	few("planning")
}
