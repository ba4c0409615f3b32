//go:build faults

package redis_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/dodona-project/dodona/host/store"
	"github.com/dodona-project/dodona/host/store/redis"
	"github.com/dodona-project/dodona/host/store/redis/redistest"
	"github.com/dodona-project/dodona/host/store/storetest"
)

// rounds is how often a fault is made: more with REPEAT=1.
func rounds(few, many int) int {
	if os.Getenv("REPEAT") != "" {
		return many
	}
	return few
}

// load is what clients of several hosts do while servers die. Hard writes are
// compare-and-sets of a few records and lines of a log; soft ones are lines of
// another.
type load struct {
	h     storetest.History
	start time.Time

	mu       sync.Mutex
	hard     map[string]bool      // lines that were acknowledged
	soft     map[string]time.Time // and when
	versions map[uint64]string    // who was given a revision
	lastSoft time.Time
	acked    []time.Time   // of each host, when its newest hard write was acknowledged
	gap      time.Duration // longest time without a soft write since mark
	unknown  int
	refused  int

	stop atomic.Bool
	wg   sync.WaitGroup
}

func startLoad(t *testing.T, hosts []*redis.Store, clients int) *load {
	l := &load{start: time.Now(), hard: map[string]bool{}, soft: map[string]time.Time{}, versions: map[uint64]string{}, lastSoft: time.Now(), acked: make([]time.Time, len(hosts))}
	for i, s := range hosts {
		for c := range clients {
			id := i*clients + c
			l.wg.Go(func() { l.writeHard(t, s, i, id, len(hosts)*clients) })
		}
		l.wg.Go(func() { l.writeSoft(t, s, i) })
	}
	return l
}

func (l *load) now() int64 { return time.Since(l.start).Nanoseconds() }

// failed notes an error and waits a little, as a client would.
func (l *load) failed(t *testing.T, err error) {
	l.mu.Lock()
	if errors.Is(err, store.ErrUnknown) {
		l.unknown++
	} else {
		l.refused++
	}
	l.mu.Unlock()
	if errors.Is(err, store.ErrForeign) && !strings.Contains(err.Error(), "being looked at") {
		t.Errorf("good data is taken for foreign: %v", err)
	}
	time.Sleep(10 * time.Millisecond)
}

func (l *load) writeHard(t *testing.T, s store.Store, host, client, clients int) {
	ctx := context.Background()
	key := fmt.Sprint("k", client%3)
	for n := int64(1); !l.stop.Load(); n++ {
		op := storetest.Op{Client: client, Key: key}
		call := l.now()
		if err := op.Read(ctx, s); err != nil {
			l.failed(t, err)
			continue
		}
		l.h.Add(op, call, l.now())
		op = storetest.Op{Client: client, Key: key, Write: true, Old: op.Value, New: n*int64(clients) + int64(client)}
		call = l.now()
		err := op.CompareAndSet(ctx, s, store.Hard)
		// A write whose error says that nothing was done is held to that.
		if err == nil || errors.Is(err, store.ErrUnknown) {
			l.h.Add(op, call, l.now())
		}
		if err != nil {
			l.failed(t, err)
		}
		line, revision := fmt.Sprint(client, "-", n), uint64(0)
		err = s.Update(ctx, store.Hard, func(tx store.Tx) error {
			revision = tx.Revision()
			_, err := tx.Append("hard", []byte(line))
			return err
		})
		if err != nil {
			l.failed(t, err)
			continue
		}
		l.mu.Lock()
		l.hard[line] = true
		l.acked[host] = time.Now()
		if who, ok := l.versions[revision]; ok {
			t.Errorf("revision %d was given to %s and %s", revision, who, line)
		}
		l.versions[revision] = line
		l.mu.Unlock()
	}
}

func (l *load) writeSoft(t *testing.T, s store.Store, host int) {
	for n := 0; !l.stop.Load(); n++ {
		line := fmt.Sprint(host, "-", n)
		err := s.Update(context.Background(), store.Soft, func(tx store.Tx) error { return tx.Put("soft/"+line, nil) })
		if err != nil {
			l.failed(t, err)
			continue
		}
		now := time.Now()
		l.mu.Lock()
		l.gap = max(l.gap, now.Sub(l.lastSoft))
		l.lastSoft = now
		l.soft[line] = now
		l.mu.Unlock()
		time.Sleep(time.Millisecond)
	}
}

// mark begins to measure the longest time without a soft write.
func (l *load) mark() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.gap, l.lastSoft = 0, time.Now()
}

// lastHard is when a hard write of a host was acknowledged last.
func (l *load) lastHard(host int) time.Time {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.acked[host]
}

// acknowledged is how many hard lines were.
func (l *load) acknowledged() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.hard)
}

// more waits for so many hard lines more.
func (l *load) more(t *testing.T, n int) {
	t.Helper()
	from := l.acknowledged()
	redistest.Await(t, fmt.Sprint(n, " more hard writes"), func() bool { return l.acknowledged() >= from+n })
}

// end stops the load and compares what is there with what was acknowledged, and
// with soft writes that were since the given time.
func (l *load) end(t *testing.T, s store.Store, softSince time.Time) {
	t.Helper()
	l.stop.Store(true)
	l.wg.Wait()
	there := map[string]bool{}
	redistest.Await(t, "the store can be read", func() bool {
		return s.View(context.Background(), func(tx store.ReadTx) error {
			entries, err := tx.ReadLog("hard", 1, 0)
			clear(there)
			for _, e := range entries {
				if there[string(e.Payload)] {
					t.Errorf("line %s is there twice", e.Payload)
				}
				there[string(e.Payload)] = true
			}
			return err
		}) == nil
	})
	lost := 0
	for line := range l.hard {
		if !there[line] {
			lost++
			t.Errorf("acknowledged line %s is lost", line)
		}
	}
	var keys []string
	for line, at := range l.soft {
		if !softSince.IsZero() && at.After(softSince) {
			keys = append(keys, "soft/"+line)
		}
	}
	must(t, s.View(context.Background(), func(tx store.ReadTx) error {
		records, err := tx.GetMany(keys...)
		if err != nil {
			return err
		}
		for i, r := range records {
			if !r.Exists() {
				t.Errorf("%s was acknowledged after the fault and is lost", keys[i])
			}
		}
		return nil
	}))
	l.h.Check(t)
	t.Logf("%d hard lines acknowledged, %d lost, %d outcomes unknown, %d refusals, longest gap of soft writes %s, %d soft writes checked",
		len(l.hard), lost, l.unknown, l.refused, l.gap.Round(time.Millisecond), len(keys))
}

// faultHosts opens hosts that behave as in production, but for what a busy machine
// needs.
func faultHosts(t *testing.T, url string, replicas, n int) (hosts []*redis.Store) {
	t.Helper()
	cluster := newCluster()
	for range n {
		o := options(t, url, cluster)
		o.Replicas, o.CallTimeout, o.Probe = replicas, 0, 0
		hosts = append(hosts, open(t, o))
	}
	return hosts
}

// R1: kill -9 of a server that fsyncs each answer loses nothing acknowledged.
func TestKilledServer(t *testing.T) {
	server := redistest.Start(t, redistest.Safe...)
	hosts := faultHosts(t, url(server), 0, 2)
	l := startLoad(t, hosts, 3)
	for range rounds(5, 30) {
		l.more(t, 60)
		server.Kill()
		l.mark()
		down := time.Now()
		time.Sleep(50 * time.Millisecond)
		server.Restart()
		up := time.Since(down)
		l.more(t, 1)
		t.Logf("the server was away for %s, hard writes for %s", up.Round(time.Millisecond), time.Since(down).Round(time.Millisecond))
	}
	l.end(t, hosts[0], l.start)
}

// R5: connections are cut in the middle of commits, while the server dies too.
func TestCutAndKilled(t *testing.T) {
	server := redistest.Start(t, redistest.Safe...)
	proxy := redistest.StartProxy(t, server.Addr)
	hosts := faultHosts(t, "redis://"+proxy.Addr, 0, 2)
	var n atomic.Int64
	proxy.Decide(func(request []byte) redistest.Cut {
		if !redistest.IsScript(request) {
			return redistest.Pass
		}
		switch n.Add(1) % 20 {
		case 7:
			return redistest.After
		case 13:
			return redistest.Before
		}
		return redistest.Pass
	})
	l := startLoad(t, hosts, 3)
	for range rounds(3, 20) {
		l.more(t, 60)
		server.Kill()
		server.Restart()
	}
	l.more(t, 60)
	l.end(t, hosts[0], l.start)
}

// S1: the master dies; a replica takes over, and nothing acknowledged as hard is
// lost. S8: so again, soon after.
func TestKilledMaster(t *testing.T) {
	t.Parallel()
	g := redistest.StartGroup(t, 2, time.Second, redistest.Safe...)
	hosts := faultHosts(t, g.URL(), 2, 2)
	if d := hosts[0].Info().Durability; d != "durable" {
		t.Errorf("durability: %s", d)
	}
	l := startLoad(t, hosts, 3)
	var since time.Time
	for range rounds(2, 15) {
		l.more(t, 60)
		old := g.Master(t)
		old.Kill()
		l.mark()
		redistest.Await(t, "another master", func() bool { return g.Master(t) != old })
		redistest.Await(t, "soft writes go on", func() bool {
			return put(hosts[0], store.Soft, "x", "") == nil && put(hosts[1], store.Soft, "x", "") == nil
		})
		since = time.Now()
		t.Logf("longest gap of soft writes %s; while replicas lack: %q", l.gapNow().Round(time.Millisecond), state(hosts[0]))
		old.Restart()
		l.more(t, 20)
		g.AwaitWhole(t)
	}
	l.end(t, hosts[1], since)
}

// R1, S1: the master dies and is back before the Sentinels take it for dead. It still is
// the master, and nothing acknowledged as hard is lost.
func TestRestartedMaster(t *testing.T) {
	t.Parallel()
	g := redistest.StartGroup(t, 2, time.Minute, redistest.Safe...)
	hosts := faultHosts(t, g.URL(), 2, 2)
	l := startLoad(t, hosts, 3)
	master := g.Master(t)
	for range rounds(2, 15) {
		l.more(t, 60)
		master.Kill()
		master.Restart()
		back := time.Now()
		g.AwaitReplicas(t, master, 2)
		l.more(t, 1)
		t.Logf("hard writes go on %s after the master is back", time.Since(back).Round(time.Millisecond))
	}
	l.more(t, 60)
	if g.Master(t) != master {
		t.Error("the Sentinels have made another master")
	}
	l.end(t, hosts[1], l.start)
}

func (l *load) gapNow() time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	return max(l.gap, time.Since(l.lastSoft))
}

// S2: the master stops for longer than Sentinel waits, and goes on as if nothing
// had been: what it takes then is acknowledged to nobody.
func TestStoppedMaster(t *testing.T) {
	t.Parallel()
	g := redistest.StartGroup(t, 2, time.Second, redistest.Safe...)
	hosts := faultHosts(t, g.URL(), 2, 2)
	l := startLoad(t, hosts, 3)
	var since time.Time
	for range rounds(1, 10) {
		l.more(t, 60)
		old := g.Master(t)
		old.Stop()
		l.mark()
		redistest.Await(t, "another master", func() bool { return g.Master(t) != old })
		redistest.Await(t, "soft writes go on", func() bool { return put(hosts[0], store.Soft, "x", "") == nil })
		since = time.Now()
		old.Continue()
		l.more(t, 20)
		g.AwaitWhole(t)
	}
	l.end(t, hosts[1], since)
}

// S4, S9: hard writes that wait for one of two replicas are called what they are;
// and when the other one becomes master, what is missing is recognised and nothing
// older is handed out.
func TestLaggingReplica(t *testing.T) {
	g := redistest.StartGroup(t, 2, time.Second, redistest.Safe...)
	hosts := faultHosts(t, g.URL(), 1, 2)
	s := hosts[0]
	if d := s.Info().Durability; !strings.HasPrefix(d, "not durable: hard writes wait for 1 of 2 replicas") {
		t.Errorf("durability: %s", d)
	}
	must(t, put(s, store.Hard, "k", "old"))
	g.Servers[1].Stop()
	// More than what the connection to the stopped replica holds, and delivers.
	for i := range 16 {
		redistest.Await(t, "a large hard write", func() bool {
			return put(s, store.Hard, fmt.Sprint("large", i), strings.Repeat("x", 2<<20)) == nil
		})
	}
	redistest.Await(t, "a hard write without the stopped replica", func() bool { return put(s, store.Hard, "k", "new") == nil })
	redistest.Await(t, "it is shown", func() bool { v, err := get(hosts[1], "k"); return err == nil && v == "new" })
	g.Servers[0].Kill()
	g.Servers[2].Kill()
	end := reader(t, hosts[1], "k", func(v string) bool { return v == "new" })
	g.Servers[1].Continue()
	redistest.Await(t, "the replica that lags is the master", func() bool { return g.Master(t) == g.Servers[1] })
	redistest.Await(t, "both hosts see that it lacks a confirmed write", func() bool {
		return isForeign(hosts[0]) && isForeign(hosts[1]) && strings.Contains(state(s), "rewound")
	})
	end()
	must(t, s.Adopt(t.Context(), "somebody", "the others are gone"))
	redistest.Await(t, "the other host goes on", func() bool {
		v, err := get(hosts[1], "k")
		return err != nil && strings.Contains(err.Error(), "not confirmed") || err == nil && v == "old"
	})
}

// S6: with all Sentinels gone the master that is there goes on being used.
func TestNoSentinels(t *testing.T) {
	g := redistest.StartGroup(t, 1, time.Second, redistest.Safe...)
	s := faultHosts(t, g.URL(), 1, 1)[0]
	redistest.Await(t, "a first write", func() bool { return put(s, store.Hard, "k", "v") == nil })
	for _, sentinel := range g.Sentinels {
		sentinel.Kill()
	}
	for begin := time.Now(); time.Since(begin) < 3*time.Second; { // several looks
		if err := put(s, store.Hard, "k", "v"); err != nil && !errors.Is(err, store.ErrUnknown) {
			t.Fatalf("a hard write without Sentinels: %v", err)
		}
		if v, err := get(s, "k"); err == nil && v != "v" {
			t.Fatalf("read %q", v)
		}
		if state := state(s); state != "ready" {
			t.Fatalf("the store is %s", state)
		}
	}
}
