package redis_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/dodona-project/dodona/host/store"
	"github.com/dodona-project/dodona/host/store/redis"
	"github.com/dodona-project/dodona/host/store/redis/redistest"
)

// reader reads one record again and again, and fails the test when it reads
// anything but what it may. It returns how it is ended.
func reader(t *testing.T, s store.Store, key string, may func(value string) bool) (end func()) {
	var stop atomic.Bool
	var wg sync.WaitGroup
	wg.Go(func() {
		for !stop.Load() {
			v, err := get(s, key)
			if err == nil && !may(v) {
				t.Errorf("read %q of a server that has lost its data", v)
				return
			}
		}
	})
	return func() {
		stop.Store(true)
		wg.Wait()
	}
}

func isForeign(s store.Store) bool { return strings.HasPrefix(state(s), "foreign: ") }

// A server that was emptied under the hosts is recognised; nothing empty is handed
// out, and adopting it is the one way on, for all hosts.
func TestFlushAll(t *testing.T) {
	server := redistest.Start(t, redistest.Safe...)
	o := options(t, url(server), newCluster())
	o.Probe = 0 // as in production
	a := open(t, o)
	o.Dir = dataDir(t)
	b := open(t, o)
	must(t, put(a, store.Hard, "k", "v"))
	if err := a.Adopt(t.Context(), "somebody", "for no reason"); err == nil || !strings.Contains(err.Error(), "nothing to adopt") {
		t.Errorf("good data is adopted: %v", err)
	}
	before := revision(t, a)
	endA := reader(t, a, "k", func(v string) bool { return v == "v" })
	begin := time.Now()
	server.Do("FLUSHALL")
	redistest.Await(t, "the host that nobody calls finds it too", func() bool { return isForeign(a) && isForeign(b) })
	t.Logf("recognised after %s", time.Since(begin).Round(time.Millisecond))
	for _, d := range []store.Durability{store.Soft, store.Hard} {
		if err := put(b, d, "k", "w"); !errors.Is(err, store.ErrForeign) {
			t.Errorf("a write: %v", err)
		}
	}
	if _, err := get(b, "k"); !errors.Is(err, store.ErrForeign) || !strings.Contains(err.Error(), "dona store adopt") {
		t.Errorf("a read: %v", err)
	}
	endA()
	if err := a.Adopt(t.Context(), "somebody", ""); err == nil {
		t.Error("adopted without a reason")
	}
	must(t, a.Adopt(t.Context(), "somebody", "a test"))
	redistest.Await(t, "the other host goes on by itself", func() bool { return state(b) == "ready" })
	for _, s := range []*redis.Store{a, b} {
		// What was cached of the old data is forgotten.
		must(t, s.Update(t.Context(), store.Hard, func(tx store.Tx) error {
			if r, err := tx.Get("k"); err != nil || r.Exists() {
				return fmt.Errorf("the record of before: %v, %w", r, err)
			}
			return tx.Put("other", nil)
		}))
	}
	if after := revision(t, a); after < before+1<<32 {
		t.Errorf("revision %d after adopting, %d before", after, before)
	}
	if i, j := a.Info(), b.Info(); i.ID != j.ID || i.ID == "" {
		t.Errorf("two hosts see two generations: %+v, %+v", i, j)
	}
}

// A host that knows nothing does not make a new beginning of a server that lost its
// data, nor serve an older state of it, once any host that knows better has looked.
func TestNewHostAfterALoss(t *testing.T) {
	server := redistest.Start(t, redistest.Safe...)
	o := options(t, url(server), newCluster())
	o.Probe, o.CallTimeout = 20*time.Millisecond, time.Second
	a := open(t, o)
	must(t, put(a, store.Hard, "k", "old"))
	data, backup := filepath.Join(server.Dir, "appendonlydir"), filepath.Join(t.TempDir(), "old")
	must(t, os.CopyFS(backup, os.DirFS(data)))
	must(t, put(a, store.Hard, "k", "new"))
	for _, tt := range []struct {
		name, want string
		lose       func()
	}{
		{"older", "rewound", func() {
			server.Kill()
			must(t, os.RemoveAll(data))
			must(t, os.CopyFS(data, os.DirFS(backup)))
			server.Restart()
		}},
		{"empty", "it is empty", func() { server.Do("FLUSHALL") }},
	} {
		before := a.Info().ID
		tt.lose()
		redistest.Await(t, "the host that knows finds it", func() bool { return isForeign(a) })
		redistest.Await(t, "it says so on the server", func() bool {
			return server.Do("HGET", "{dona:"+o.Target.Cluster+"}:meta", "missed") != nil
		})
		o.Dir = dataDir(t)
		b, err := redis.Open(t.Context(), o)
		must(t, err)
		t.Cleanup(func() { _ = b.Close() })
		if s := state(b); !isForeign(b) || !strings.Contains(s, tt.want) || !strings.Contains(s, "another host has seen") {
			t.Fatalf("%s: a new host says %q", tt.name, s)
		}
		if err := put(b, store.Hard, "k", "mine"); !errors.Is(err, store.ErrForeign) {
			t.Errorf("%s: a write at a new host: %v", tt.name, err)
		}
		must(t, b.Adopt(t.Context(), "somebody", "a test"))
		redistest.Await(t, "the host that knows goes on", func() bool { return state(a) == "ready" && a.Info().ID != before })
		if i, j := a.Info(), b.Info(); i.ID != j.ID || i.First <= 1<<32 {
			t.Errorf("%s: adopted at the new host: %+v, %+v", tt.name, i, j)
		}
		must(t, put(a, store.Hard, "k", "again"))
	}
}

// What another program does to our keys is told with the key, and nothing is done by
// halves: a commit that cannot append its audit entry writes nothing else either.
func TestChangedKeys(t *testing.T) {
	server := redistest.Start(t, redistest.Safe...)
	for _, tt := range []struct {
		name, want string
		do         func(prefix string)
	}{
		{"the heads are gone", "entries that its head does not count", func(p string) { server.Do("DEL", p+"heads") }},
		{"an entry above the head", "l:audit", func(p string) { server.Do("XADD", p+"l:audit", "7-0", "p", "x") }},
		{"a log of another type", "another type", func(p string) { server.Do("DEL", p+"l:audit"); server.Do("SET", p+"l:audit", "x") }},
		{"a record of another type", "r:k is no string", func(p string) { server.Do("DEL", p+"r:k"); server.Do("LPUSH", p+"r:k", "x") }},
		{"a record without a version", `at the record key "k"`, func(p string) { server.Do("SET", p+"r:k", "abc") }},
	} {
		o := options(t, url(server), newCluster())
		write := func(s store.Store, value string) error {
			return s.Update(t.Context(), store.Hard, func(tx store.Tx) error {
				if _, err := tx.Get("k"); err != nil {
					return err
				}
				for _, key := range []string{"k", "l"} {
					if err := tx.Put(key, []byte(value)); err != nil {
						return err
					}
					if err := tx.IndexPut("i", key, 1); err != nil {
						return err
					}
				}
				_, err := tx.Append("audit", []byte(value))
				return err
			})
		}
		s := open(t, o)
		must(t, write(s, "old"))
		must(t, s.Close())
		tt.do("{dona:" + o.Target.Cluster + "}:")
		s = open(t, o)
		before := revision(t, s)
		if err := write(s, "new"); !errors.Is(err, store.ErrForeign) || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: a write: %v", tt.name, err)
		}
		if v, err := get(s, "l"); err != nil || v != "old" {
			t.Errorf("%s: half a write: %q, %v", tt.name, v, err)
		}
		if now := revision(t, s); now != before {
			t.Errorf("%s: the revision went from %d to %d", tt.name, before, now)
		}
	}
}

// A generation record with numbers that nobody has written is foreign, and good again
// when it was adopted.
func TestAbsurdRecord(t *testing.T) {
	server := redistest.Start(t, redistest.Safe...)
	for _, tt := range []struct{ field, value string }{
		{"state", strings.Repeat("\xff", 96)},
		{"state", strings.Repeat("f", 56) + strings.Repeat("\x00\x1f\xff\xff\xff\xff\xff\xff", 5)},
		{"state", "short"},
		{"generation", "9007199254740991"},
		{"generation", "-1"},
		{"first", "99999999999999999999"},
		{"missed", "{"},
	} {
		o := options(t, url(server), newCluster())
		o.Probe = 20 * time.Millisecond
		s := open(t, o)
		must(t, put(s, store.Hard, "k", "v"))
		server.Do("HSET", "{dona:"+o.Target.Cluster+"}:meta", tt.field, tt.value)
		redistest.Await(t, "it is foreign", func() bool { return isForeign(s) })
		must(t, s.Adopt(t.Context(), "somebody", "a test"))
		must(t, put(s, store.Hard, "k", "w"))
		must(t, s.Close())
		if s = open(t, o); isForeign(s) {
			t.Errorf("%s %q, adopted: %s", tt.field, tt.value, state(s))
		}
		if v, err := get(s, "k"); err != nil || v != "w" {
			t.Errorf("%s %q, adopted: %q, %v", tt.field, tt.value, v, err)
		}
	}
}

func revision(t testing.TB, s store.Store) (n uint64) {
	t.Helper()
	must(t, s.View(context.Background(), func(tx store.ReadTx) error { n = tx.Revision(); return nil }))
	return n
}

// A server that comes back empty, or with an older file, is recognised after its
// restart, and by a host that was started in between; with its data brought back,
// the hosts go on by themselves.
func TestPutBack(t *testing.T) {
	server := redistest.Start(t, redistest.Safe...)
	o := options(t, url(server), newCluster())
	o.Probe, o.CallTimeout = 20*time.Millisecond, time.Second
	s := open(t, o)
	must(t, put(s, store.Hard, "k", "old"))
	data := filepath.Join(server.Dir, "appendonlydir")
	backup := filepath.Join(t.TempDir(), "old")
	must(t, os.CopyFS(backup, os.DirFS(data)))
	must(t, put(s, store.Hard, "k", "new"))
	for _, tt := range []struct{ name, from, want string }{
		{"empty", "", "it is empty"},
		{"older", backup, "rewound"},
	} {
		end := reader(t, s, "k", func(v string) bool { return v == "new" })
		server.Kill()
		newest := filepath.Join(t.TempDir(), "new")
		must(t, os.CopyFS(newest, os.DirFS(data)))
		must(t, os.RemoveAll(data))
		if tt.from != "" {
			must(t, os.CopyFS(data, os.DirFS(tt.from)))
		}
		server.Restart()
		redistest.Await(t, tt.name+": it is recognised", func() bool {
			return isForeign(s) && strings.Contains(state(s), tt.want)
		})
		end()
		must(t, s.Close())
		again, err := redis.Open(t.Context(), o)
		must(t, err)
		if !isForeign(again) {
			t.Errorf("%s: a host that was restarted says %q", tt.name, state(again))
		}
		s = again
		server.Kill()
		must(t, os.RemoveAll(data))
		must(t, os.CopyFS(data, os.DirFS(newest)))
		server.Restart()
		redistest.Await(t, tt.name+": with its data back, the host goes on", func() bool { return state(s) == "ready" })
		if v, err := get(s, "k"); v != "new" || err != nil {
			t.Errorf("%s: afterwards: %q, %v", tt.name, v, err)
		}
	}
	// What was put back can be adopted, with what it lacks given up.
	before := revision(t, s)
	server.Kill()
	must(t, os.RemoveAll(data))
	must(t, os.CopyFS(data, os.DirFS(backup)))
	server.Restart()
	redistest.Await(t, "it is recognised", func() bool { return isForeign(s) })
	must(t, s.Adopt(t.Context(), "somebody", "a test"))
	if v, err := get(s, "k"); v != "old" || err != nil {
		t.Errorf("adopted: %q, %v", v, err)
	}
	if after := revision(t, s); after < before+1<<32 {
		t.Errorf("revision %d after adopting, %d before", after, before)
	}
	must(t, put(s, store.Hard, "k", "newer"))
	if other, err := redis.Open(t.Context(), o); !errors.Is(err, store.ErrRefused) || !strings.Contains(err.Error(), "another host is running on this data directory") {
		t.Errorf("a second host on one data directory: %v, %v", other, err)
	}
	must(t, s.Close())
}

// A commit whose answer is lost, or that never arrives, is applied exactly once,
// and the caller learns nothing of it.
func TestCutCommits(t *testing.T) {
	server := redistest.Start(t, redistest.Safe...)
	cluster := newCluster()
	proxy := redistest.StartProxy(t, server.Addr)
	hosts := make([]*redis.Store, 2)
	for i := range hosts {
		hosts[i] = open(t, options(t, "redis://"+proxy.Addr, cluster))
	}
	var mu sync.Mutex
	rng := rand.New(rand.NewPCG(1, 2))
	var cuts atomic.Int64
	proxy.Decide(func(request []byte) redistest.Cut {
		mu.Lock()
		defer mu.Unlock()
		if !redistest.IsScript(request) || rng.IntN(10) != 0 {
			return redistest.Pass
		}
		cuts.Add(1)
		return redistest.Cut(1 + rng.IntN(2))
	})
	const callers, rounds = 4, 50
	var wg sync.WaitGroup
	for i, s := range hosts {
		for c := range callers {
			wg.Go(func() {
				for r := range rounds {
					if err := count(s, store.Durability(1+r%2), fmt.Sprint(i, " ", c, " ", r)); err != nil {
						t.Error(err)
					}
				}
			})
		}
	}
	wg.Wait()
	proxy.Decide(nil)
	if n, _ := counted(t, hosts[0]); n != 2*callers*rounds {
		t.Errorf("%d transactions were acknowledged, %d were applied", 2*callers*rounds, n)
	}
	t.Logf("%d connections were cut", cuts.Load())
}

// When the server goes before anybody can tell, the outcome is unknown; the same
// request again, which looks first, is applied once.
func TestUnknown(t *testing.T) {
	server := redistest.Start(t, redistest.Safe...)
	proxy := redistest.StartProxy(t, server.Addr)
	o := options(t, "redis://"+proxy.Addr, newCluster())
	o.CallTimeout, o.Probe = 100*time.Millisecond, 20*time.Millisecond
	s := open(t, o)
	redistest.Await(t, "a first write", func() bool { return put(s, store.Hard, "k", "old") == nil })
	proxy.Decide(func(request []byte) redistest.Cut { return redistest.Swallow })
	err := put(s, store.Hard, "k", "new")
	if !errors.Is(err, store.ErrUnknown) {
		t.Errorf("a write without an answer: %v", err)
	}
	proxy.Decide(nil)
	proxy.Reset()
	redistest.Await(t, "the server answers again", func() bool { return state(s) == "ready" })
	redistest.Await(t, "the same request again", func() bool {
		return s.Update(context.Background(), store.Hard, func(tx store.Tx) error {
			r, err := tx.Get("k")
			if err != nil || string(r.Value) == "new" {
				return err
			}
			return tx.Put("k", []byte("new"))
		}) == nil
	})
	if v, err := get(s, "k"); v != "new" || err != nil {
		t.Errorf("%q, %v", v, err)
	}
}

// A server that does not answer holds nobody up for longer than a few calls take,
// and calls do not pile up at it.
func TestSilentServer(t *testing.T) {
	server := redistest.Start(t, redistest.Safe...)
	o := options(t, url(server), newCluster())
	o.CallTimeout, o.Probe = 0, 0 // as in production
	s := open(t, o)
	redistest.Await(t, "a first write", func() bool { return put(s, store.Hard, "k", "v") == nil })
	server.Stop()
	var wg sync.WaitGroup
	var longest atomic.Int64
	for i := range 200 {
		wg.Go(func() {
			begin := time.Now()
			var err error
			if i%2 == 0 {
				err = put(s, store.Soft, "k", "w")
			} else {
				_, err = get(s, "k")
			}
			if err == nil {
				t.Error("a stopped server has answered")
			}
			for d := time.Since(begin).Nanoseconds(); ; {
				if l := longest.Load(); d <= l || longest.CompareAndSwap(l, d) {
					break
				}
			}
		})
	}
	wg.Wait()
	if d := time.Duration(longest.Load()); d > 30*time.Second {
		t.Errorf("a caller waited for %s", d)
	}
	begin := time.Now()
	if err := put(s, store.Soft, "k", "w"); err == nil {
		t.Error("a stopped server has answered")
	} else if d := time.Since(begin); d > 10*time.Second {
		t.Errorf("while the server is known to be away, a caller waited for %s: %v", d, err)
	}
	server.Continue()
	begin = time.Now()
	redistest.Await(t, "the server is used again", func() bool { return put(s, store.Soft, "k", "w") == nil })
	t.Logf("the longest wait was %s, the first write came %s after the server", time.Duration(longest.Load()).Round(time.Millisecond), time.Since(begin).Round(time.Millisecond))
}
