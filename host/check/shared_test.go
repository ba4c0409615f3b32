package check_test

import (
	"context"
	"math/rand/v2"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/dodona-project/dodona/host/check"
	"github.com/dodona-project/dodona/host/store"
	"github.com/dodona-project/dodona/host/store/redis"
	"github.com/dodona-project/dodona/host/store/redis/redistest"
)

// Two hosts over one Redis check the same targets side by side: no task is held by
// both, none is lost, and after a sweep each is where it is found when it is due.
func TestTwoHostsOverRedis(t *testing.T) {
	server := redistest.Start(t, redistest.Safe...)
	f := newFleet()
	f.put("web", 1, targets(150)...)
	f.put("shop", 1, targets(150)...)
	open := func(name string) (*check.Broker, store.Store) {
		target, err := redis.ParseURL("redis://" + server.Addr)
		if err != nil {
			t.Fatal(err)
		}
		target.Cluster = "checks"
		st, err := redis.Open(t.Context(), redis.Options{Target: target, Dir: filepath.Join(t.TempDir(), name), CallTimeout: 10 * time.Second})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = st.Close() })
		redistest.Await(t, "the store is ready", func() bool { return st.Info().State == "ready" })
		quick := check.DefaultRules(300*time.Millisecond, 30*time.Second)
		return check.New(check.Options{Store: st, Planes: map[string]check.Plane{"service": f}, Rules: quick}), st
	}
	one, st := open("one")
	two, _ := open("two")
	if err := one.Look(t.Context(), true); err != nil {
		t.Fatal(err)
	}
	var mu sync.Mutex
	held, done := map[string]string{}, map[string]int{}
	enough := func() bool {
		mu.Lock()
		defer mu.Unlock()
		for _, n := range done {
			if n < 2 {
				return false
			}
		}
		return len(done) == 300
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	var hosts sync.WaitGroup
	for id, b := range map[string]*check.Broker{"host-1": one, "host-2": two} {
		hosts.Go(func() {
			for ctx.Err() == nil && !enough() {
				tasks, next, err := b.Claim(ctx, check.Claim{Checker: id, Most: 1 + rand.IntN(64), Scope: 40})
				if err != nil {
					t.Errorf("%s: claim: %v", id, err)
					return
				}
				mu.Lock()
				for _, task := range tasks {
					if by := held[task.Name()]; by != "" {
						t.Errorf("%s is held by %s and given to %s", task.Name(), by, id)
					}
					held[task.Name()] = id
				}
				mu.Unlock()
				var reports []check.Report
				mu.Lock()
				for _, task := range tasks {
					reports = append(reports, report(task, check.Report{Result: good}))
					held[task.Name()] = "" // it may be given away from here on
					done[task.Name()]++
				}
				mu.Unlock()
				if len(reports) == 0 {
					select {
					case <-time.After(min(next, 20*time.Millisecond)):
					case <-ctx.Done():
					}
					continue
				}
				receipts, err := b.Report(ctx, id, reports)
				if err != nil {
					t.Errorf("%s: report: %v", id, err)
					return
				}
				for i, r := range receipts {
					if !r.Accepted {
						t.Errorf("%s: %s: %s", id, reports[i].Name(), r.Reason)
					}
				}
			}
		})
	}
	hosts.Wait()
	if !enough() {
		t.Errorf("not every target was checked twice within a minute: %d were checked", len(done))
	}
	if err := two.Look(t.Context(), true); err != nil {
		t.Fatal(err)
	}
	(&desk{t: t}).scheduledIn(st)
}
