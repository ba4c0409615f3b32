package pool_test

import (
	"context"
	"fmt"
	"path/filepath"
	"testing"
	"time"

	controlplanev1 "github.com/dodona-project/dodona/proto/controlplane/v1"

	"github.com/dodona-project/dodona/host/pool"
	"github.com/dodona-project/dodona/host/refusal"
	"github.com/dodona-project/dodona/host/store"
	"github.com/dodona-project/dodona/host/store/redis"
	"github.com/dodona-project/dodona/host/store/redis/redistest"
)

// openShared opens one of several stores over a Redis.
func openShared(t testing.TB, server *redistest.Server, cluster, name string) store.Store {
	t.Helper()
	return openAt(t, "redis://"+server.Addr, cluster, name)
}

func openAt(t testing.TB, url, cluster, name string) store.Store {
	t.Helper()
	target, err := redis.ParseURL(url)
	if err != nil {
		t.Fatal(err)
	}
	target.Cluster = cluster
	st, err := redis.Open(t.Context(), redis.Options{Target: target, Dir: filepath.Join(t.TempDir(), name), CallTimeout: 10 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = st.Close() })
	redistest.Await(t, "the store is ready", func() bool { return st.Info().State == "ready" })
	return st
}

// twoHosts are two pools over one Redis, with a world that acts through the first.
func twoHosts(t *testing.T) (server *redistest.Server, w *world, other *pool.Pool) {
	t.Helper()
	server = redistest.Start(t, redistest.Safe...)
	one, two := openShared(t, server, "pool", "one"), openShared(t, server, "pool", "two")
	w = worldOver(t, one, newClock())
	return server, w, pool.New(pool.Options{Store: two, Audit: w.log, HostID: "h2", Coalesce: 5 * time.Millisecond})
}

// TestExtractorsOverRedis: a hundred callers over two hosts and fifty proxies, while
// the server is killed and comes back; whose answer was lost asks again.
func TestExtractorsOverRedis(t *testing.T) {
	server, w, other := twoHosts(t)
	w.add("dc", 50)
	won := extractAll(t, []*pool.Pool{w.p, other}, 100, func(won int) {
		if won == 10 {
			server.Kill()
			server.Restart()
		}
	})
	if len(won) != 50 {
		t.Errorf("%d have won 50 proxies", len(won))
	}
}

// TestAcrossHosts: what one host changes reaches the streams of another through the
// store, and a session is the same one on both.
func TestAcrossHosts(t *testing.T) {
	_, w, other := twoHosts(t)
	ids := w.add("dc", 4)
	x := w.join("w1")
	x.p = other // from here on it talks to the other host
	x.watch()
	x.accept(x.until("at the other host", func(*controlplanev1.WorkerSnapshot) bool { return true }))
	x.report()
	began := time.Now()
	w.allocate()
	x.accept(x.until("with the proxies", func(s *controlplanev1.WorkerSnapshot) bool { return len(s.Proxies) == 4 }))
	t.Logf("given by one host, seen at the other after %s", time.Since(began))
	x.report()
	began = time.Now()
	_, err := w.p.BeginDrain(w.ctx, operator, &controlplanev1.BeginDrainRequest{ProxyId: ids[0]})
	w.must(err)
	x.accept(x.until("without the drained", func(s *controlplanev1.WorkerSnapshot) bool { return !has(s, ids[0]) }))
	t.Logf("drained at one host, gone at the other after %s", time.Since(began))
	if resp := x.report(); len(resp.ReleasedProxyIds) != 1 {
		t.Errorf("released are %v", resp)
	}
	began = time.Now()
	w.change()
	x.accept(x.until("with the upstream off", func(s *controlplanev1.WorkerSnapshot) bool { return len(s.Routings[0].Upstreams) == 1 }))
	t.Logf("switched at one host, seen at the other after %s", time.Since(began))
	// Registered at the first, its stream at the other is over.
	old := x.stream
	(&worker{world: w, p: w.p, id: "w1"}).register()
	select {
	case err := <-old.ended:
		refusedAs(t, "the stream", err, refusal.Precondition)
	case <-time.After(patience):
		t.Error("the stream of the old session goes on")
	}
}

// byHand is a store whose clock is set by hand.
type byHand struct {
	store.Store
	clock *clock
}

func (s byHand) Update(ctx context.Context, d store.Durability, fn func(store.Tx) error) error {
	return s.Store.Update(ctx, d, func(tx store.Tx) error { return fn(handTx{tx, s.clock}) })
}

func (s byHand) View(ctx context.Context, fn func(store.ReadTx) error) error {
	return s.Store.View(ctx, func(tx store.ReadTx) error { return fn(handRead{tx, s.clock}) })
}

type handTx struct {
	store.Tx
	clock *clock
}

func (t handTx) Now() time.Time { return t.clock.now() }

type handRead struct {
	store.ReadTx
	clock *clock
}

func (t handRead) Now() time.Time { return t.clock.now() }

const overRedis = "TestOverRedis/"

// sharedServer is what newWorld has its stores on, in tests below TestOverRedis.
var sharedServer *redistest.Server

// TestOverRedis runs the tests of single hosts on Redis, whose clock is set by hand.
func TestOverRedis(t *testing.T) {
	sharedServer = redistest.Start(t, redistest.Safe...)
	defer func() { sharedServer = nil }()
	for name, test := range map[string]func(*testing.T){
		"RuntimeFence": TestRuntimeFence, "Acknowledgements": TestAcknowledgements, "ReplacedSession": TestReplacedSession, "OutcomeFence": TestOutcomeFence,
		"AcknowledgeDrain": TestAcknowledgeDrain, "ReplacedWhileDraining": TestReplacedWhileDraining, "ForceRelease": TestForceRelease,
		"ForceReleaseByWhatItWasTold": TestForceReleaseByWhatItWasTold, "LeavingWithoutItsUpstream": TestLeavingWithoutItsUpstream, "Import": TestImport,
		"HeldAfterItsEnd": TestHeldAfterItsEnd, "Register": TestRegister, "DrainThenExtract": TestDrainThenExtract, "Deltas": TestDeltas,
		"Credentials": TestCredentials, "NewCredential": TestNewCredential, "Plans": TestPlans, "ExtractKeys": TestExtractKeys,
		"ExtractOnlyWhatMay": TestExtractOnlyWhatMay, "Shortfall": TestShortfall, "HundredExtractors": TestHundredExtractors,
		"Refresh": TestRefresh, "Coalesced": TestCoalesced, "RoutingsKeepTheirOrder": TestRoutingsKeepTheirOrder,
		"ObservedAtDecidesNothing": TestObservedAtDecidesNothing, "NoReportNoRoom": TestNoReportNoRoom, "LongSession": TestLongSession,
		"NothingIsSentThatIsOver": TestNothingIsSentThatIsOver, "KeyUsedAgainAfterADay": TestKeyUsedAgainAfterADay,
		"ShortfallOfAKind": TestShortfallOfAKind, "ExtractWithoutCredentials": TestExtractWithoutCredentials,
		"RestoredBehindAWorker": TestRestoredBehindAWorker, "ExtractedCredential": TestExtractedCredential, "UsableEndsBeforeTheProxy": TestUsableEndsBeforeTheProxy,
	} {
		t.Run(name, test)
	}
}

// TestModelOverRedis is TestModel with two hosts that have a store each, over one
// Redis.
func TestModelOverRedis(t *testing.T) {
	server := redistest.Start(t, redistest.Safe...)
	seen := map[string]int{}
	for i := range uint64(*redisSeeds) {
		seed, clk := *modelFirst+i, newClock()
		cluster := fmt.Sprint("seed", seed)
		one, two := byHand{openShared(t, server, cluster, "one"), clk}, byHand{openShared(t, server, cluster, "two"), clk}
		m := newModel(t, seed, one, clk)
		m.hosts[1] = pool.New(pool.Options{Store: two, Audit: m.log, HostID: "h2"})
		m.run(modelSteps)
		m.sum(seen)
		_, _ = one.Close(), two.Close()
	}
	t.Logf("over %d seeds: %v", *redisSeeds, seen)
}
