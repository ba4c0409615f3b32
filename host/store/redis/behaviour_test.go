package redis_test

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
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

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func put(s store.Store, d store.Durability, key, value string) error {
	return s.Update(context.Background(), d, func(tx store.Tx) error { return tx.Put(key, []byte(value)) })
}

func get(s store.Store, key string) (value string, err error) {
	err = s.View(context.Background(), func(tx store.ReadTx) error {
		r, err := tx.Get(key)
		value = string(r.Value)
		return err
	})
	return value, err
}

// count adds one to a counter and a line to a log, in one transaction.
func count(s store.Store, d store.Durability, line string) error {
	return s.Update(context.Background(), d, func(tx store.Tx) error { return countIn(tx, line) })
}

func countIn(tx store.Tx, line string) error {
	r, err := tx.Get("n")
	if err != nil {
		return err
	}
	n := 0
	_, _ = fmt.Sscan(string(r.Value), &n)
	if _, err := tx.Append("log", []byte(line)); err != nil {
		return err
	}
	return tx.Put("n", fmt.Append(nil, n+1))
}

// counted returns the counter and the lines of the log, each once.
func counted(t testing.TB, s store.Store) (n int, lines map[string]bool) {
	t.Helper()
	lines = make(map[string]bool)
	must(t, s.View(context.Background(), func(tx store.ReadTx) error {
		r, err := tx.Get("n")
		if err != nil {
			return err
		}
		n = 0
		_, _ = fmt.Sscan(string(r.Value), &n)
		entries, err := tx.ReadLog("log", 1, 0)
		for _, e := range entries {
			if lines[string(e.Payload)] {
				t.Errorf("line %s is there twice", e.Payload)
			}
			lines[string(e.Payload)] = true
		}
		return err
	}))
	if n != len(lines) {
		t.Errorf("the counter says %d, the log has %d lines", n, len(lines))
	}
	return n, lines
}

func state(s store.Store) string { return s.Info().State }

// Two hosts on one server lose none of each other's writes to one record, need few
// tries for them, and hear of them.
func TestTwoHosts(t *testing.T) {
	server := redistest.Start(t, redistest.Safe...)
	cluster := newCluster()
	hosts := []*redis.Store{open(t, options(t, url(server), cluster)), open(t, options(t, url(server), cluster))}
	watch := hosts[1].Watch(t.Context(), "n")
	other := hosts[1].Watch(t.Context(), "m")
	const callers, rounds = 4, 40
	var wg sync.WaitGroup
	var mu sync.Mutex
	most := 0
	for i, s := range hosts {
		for c := range callers {
			wg.Go(func() {
				for r := range rounds {
					tries := 0
					err := s.Update(context.Background(), store.Durability(1+r%2), func(tx store.Tx) error {
						tries++
						return countIn(tx, fmt.Sprint(i, c, r))
					})
					if err != nil {
						t.Error(err)
					}
					mu.Lock()
					most = max(most, tries)
					mu.Unlock()
				}
			})
		}
	}
	wg.Wait()
	// As in TestClaim.
	if t.Logf("most tries of one update: %d", most); most > 10 {
		t.Errorf("an update needed %d tries beside another host", most)
	}
	if n, _ := counted(t, hosts[0]); n != 2*callers*rounds {
		t.Errorf("counted to %d of %d", n, 2*callers*rounds)
	}
	<-watch
	must(t, put(hosts[0], store.Soft, "m", "x"))
	<-other // by notice: the re-list is further away than the test may last
	if a, b := hosts[0].Info(), hosts[1].Info(); a.ID != b.ID || a.Durability != "durable" {
		t.Errorf("%+v and %+v", a, b)
	}
}

// A commit sends a notice only while somebody else listens, which the generation
// record says; who begins to listen hears of all that is committed from then on.
func TestNoticesAreForOthers(t *testing.T) {
	server := redistest.Start(t, redistest.Safe...)
	cluster := newCluster()
	listened := func() bool { return server.Do("HEXISTS", "{dona:"+cluster+"}:meta", "listened") == int64(1) }
	one := open(t, options(t, url(server), cluster))
	must(t, put(one, store.Soft, "k", "alone"))
	if listened() {
		t.Error("a host that is alone sends notices to itself")
	}
	other := open(t, options(t, url(server), cluster))
	if !listened() {
		t.Fatal("a second host listens, and commits send no notices")
	}
	watch := other.Watch(t.Context(), "k")
	hears := func(value string) {
		t.Helper()
		for len(watch) > 0 {
			<-watch
		}
		must(t, put(one, store.Soft, "k", value))
		<-watch // the re-list is further away than the test may last
	}
	hears("both")
	server.Do("CLIENT", "KILL", "TYPE", "pubsub")
	redistest.Await(t, "both to listen again", func() bool {
		n, ok := server.Do("PUBSUB", "NUMSUB", "{dona:"+cluster+"}:notice").([]any)
		return ok && len(n) == 2 && n[1] == int64(2) && listened()
	})
	for n := range 3 { // the first may be told of what it missed
		hears(fmt.Sprint("again ", n))
	}
	must(t, other.Close())
	redistest.Await(t, "notices to end with the other host", func() bool { return !listened() })
}

// What one host was told the time is, no transaction of another that sees its writes
// is before.
func TestOneClock(t *testing.T) {
	server := redistest.Start(t, redistest.Safe...)
	cluster := newCluster()
	hosts := make([]*redis.Store, 2)
	for i := range hosts {
		o := options(t, url(server), cluster)
		o.Probe = time.Hour // commits alone have to keep the clocks together
		hosts[i] = open(t, o)
	}
	for n := range 300 {
		must(t, hosts[n%2].Update(t.Context(), store.Soft, func(tx store.Tx) error {
			r, err := tx.Get("time")
			if err != nil {
				return err
			}
			now := uint64(tx.Now().UnixMicro())
			if r.Exists() && now < binary.BigEndian.Uint64(r.Value) {
				t.Errorf("%d µs before what the other host was told", binary.BigEndian.Uint64(r.Value)-now)
			}
			return tx.Put("time", binary.BigEndian.AppendUint64(nil, now))
		}))
	}
}

// A host that is alone among busy ones gets its turn: it claims the next commit.
func TestClaim(t *testing.T) {
	server := redistest.Start(t, redistest.Safe...)
	cluster := newCluster()
	small, big := open(t, options(t, url(server), cluster)), open(t, options(t, url(server), cluster))
	var stop atomic.Bool
	var wg sync.WaitGroup
	for i := range 32 {
		wg.Go(func() {
			for n := 0; !stop.Load(); n++ {
				if err := count(big, store.Soft, fmt.Sprint("big", i, "-", n)); err != nil {
					t.Error(err)
				}
			}
		})
	}
	most := 0
	for n := range 30 {
		tries := 0
		err := small.Update(t.Context(), store.Soft, func(tx store.Tx) error {
			tries++
			return countIn(tx, fmt.Sprint("small", n))
		})
		must(t, err)
		most = max(most, tries)
	}
	stop.Store(true)
	wg.Wait()
	counted(t, big)
	t.Logf("most tries of one update: %d", most)
	// Three conflicts, one for a claim that ran out on a busy machine, and a miss.
	if most > 10 {
		t.Errorf("an update needed %d tries beside a busy host", most)
	}
}

// A claim from a server whose clock was ahead holds nobody up.
func TestClaimFromTheFuture(t *testing.T) {
	server := redistest.Start(t, redistest.Safe...)
	cluster := newCluster()
	s := open(t, options(t, url(server), cluster))
	end := binary.BigEndian.AppendUint64(nil, uint64(time.Now().Add(time.Hour).UnixMicro()))
	server.Do("HSET", "{dona:"+cluster+"}:meta", "claim", string(end)+"c:0123456789abcdef")
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	must(t, s.Update(ctx, store.Hard, func(tx store.Tx) error { return tx.Put("k", nil) }))
}

// An Update whose records are cached is one round trip, one with misses two.
func TestRoundTrips(t *testing.T) {
	server := redistest.Start(t, redistest.Safe...)
	proxy := redistest.StartProxy(t, server.Addr)
	o := options(t, "redis://"+proxy.Addr, newCluster())
	o.Probe = time.Hour
	s := open(t, o)
	trips := func(fn func(tx store.Tx) error) int64 {
		before := proxy.Requests.Load()
		must(t, s.Update(t.Context(), store.Soft, fn))
		return proxy.Requests.Load() - before
	}
	many := func(tx store.Tx) error {
		if _, err := tx.GetMany("a", "b", "c"); err != nil {
			return err
		}
		return tx.Put("a", nil)
	}
	trips(func(tx store.Tx) error { return tx.Put("z", nil) }) // the script is on its way
	if n := trips(many); n != 2 {
		t.Errorf("three misses cost %d round trips, want 2", n)
	}
	if n := trips(many); n != 1 {
		t.Errorf("cached records cost %d round trips, want 1", n)
	}
}

// Redis 6.2 answers an INFO of several sections with an error.
func TestOneSectionOfInfo(t *testing.T) {
	server := redistest.Start(t, redistest.Safe...)
	proxy := redistest.StartProxy(t, server.Addr)
	var infos atomic.Int64
	proxy.Decide(func(request []byte) redistest.Cut {
		for _, command := range strings.Split(string(request), "\r\n*") {
			args, rest, _ := strings.Cut(strings.TrimPrefix(command, "*"), "\r\n")
			if strings.HasPrefix(strings.ToLower(rest), "$4\r\ninfo\r\n") {
				infos.Add(1)
				if args != "2" {
					t.Errorf("INFO is asked for %q", rest)
				}
			}
		}
		return redistest.Pass
	})
	o := options(t, "redis://"+proxy.Addr, newCluster())
	o.Probe = 10 * time.Millisecond
	open(t, o)
	redistest.Await(t, "several looks", func() bool { return infos.Load() > 20 })
}

// A large transaction is one: what a script can take on its stack does not bound it.
func TestLargeTransaction(t *testing.T) {
	server := redistest.Start(t, redistest.Safe...)
	s := open(t, options(t, url(server), newCluster()))
	const n = 9000
	must(t, s.Update(t.Context(), store.Hard, func(tx store.Tx) error {
		for i := range n {
			err := errors.Join(tx.Put(fmt.Sprint("k", i), []byte("v")), tx.IndexPut("i", fmt.Sprint("m", i), uint64(i)))
			if err != nil {
				return err
			}
			if _, err := tx.Append("log", fmt.Append(nil, i)); err != nil {
				return err
			}
		}
		return nil
	}))
	keys := make([]string, n)
	for i := range keys {
		keys[i] = fmt.Sprint("k", i)
	}
	must(t, s.Update(t.Context(), store.Hard, func(tx store.Tx) error {
		records, err := tx.GetMany(keys...)
		if err != nil {
			return err
		}
		entries, err := tx.Scan("i", 0, n, 0)
		if err != nil {
			return err
		}
		lines, err := tx.ReadLog("log", 1, 0)
		if err != nil {
			return err
		}
		for i, r := range records {
			if string(r.Value) != "v" || entries[i].Member != fmt.Sprint("m", i) || string(lines[i].Payload) != fmt.Sprint(i) {
				return fmt.Errorf("number %d: %v, %v, %v", i, r, entries[i], lines[i])
			}
			if err := errors.Join(tx.Delete(keys[i]), tx.IndexDelete("i", fmt.Sprint("m", i))); err != nil {
				return err
			}
		}
		return nil
	}))
	must(t, s.View(t.Context(), func(tx store.ReadTx) error {
		records, err := tx.GetMany(keys...)
		if err != nil {
			return err
		}
		entries, err := tx.Scan("i", 0, n, 0)
		if err != nil {
			return err
		}
		for _, r := range records {
			if r.Exists() {
				return fmt.Errorf("a deleted record is %v", r)
			}
		}
		if len(entries) != 0 {
			return fmt.Errorf("%d members of an empty index", len(entries))
		}
		return nil
	}))
}

// What hard writes are worth is said in words, and is true.
func TestDurabilityInWords(t *testing.T) {
	for _, tt := range []struct {
		settings []string
		want     string
	}{
		{redistest.Safe, "durable"},
		{[]string{"appendonly", "yes", "appendfsync", "everysec"}, "not durable: appendfsync of the server is everysec"},
		{nil, "not durable: the server keeps no append-only file"},
		{append([]string{"user", "default on nopass ~* &* +@all -config"}, redistest.Safe...), "not durable: cannot be verified"},
	} {
		server := redistest.Start(t, tt.settings...)
		s := open(t, options(t, url(server), newCluster()))
		if got := s.Info().Durability; !strings.HasPrefix(got, tt.want) {
			t.Errorf("%v: %q, want %q", tt.settings, got, tt.want)
		}
	}
	server := redistest.Start(t, redistest.Safe...)
	o := options(t, url(server), newCluster())
	o.Probe = 10 * time.Millisecond
	s := open(t, o)
	server.Do("CONFIG", "SET", "appendfsync", "no")
	redistest.Await(t, "a change of appendfsync is told", func() bool {
		return strings.HasPrefix(s.Info().Durability, "not durable: appendfsync of the server is no")
	})
}

// A master that comes back without its newest writes before it is replaced takes them
// from its replicas, too: its log counts whatever the number of replicas.
func TestDurabilityOfAMaster(t *testing.T) {
	g := redistest.StartGroup(t, 1, time.Minute, "maxmemory-policy", "noeviction")
	o := options(t, g.URL(), newCluster())
	o.Replicas, o.Probe = 1, 20*time.Millisecond
	s := open(t, o)
	for _, tt := range []struct{ setting, value, want string }{
		{"", "", "not durable: the server keeps no append-only file"},
		{"appendonly", "yes", "not durable: appendfsync of the server is everysec"},
		{"appendfsync", "always", "durable"},
	} {
		if tt.setting != "" {
			g.Servers[0].Do("CONFIG", "SET", tt.setting, tt.value)
		}
		redistest.Await(t, tt.want, func() bool { return strings.HasPrefix(s.Info().Durability, tt.want) })
	}
}

// A server that may throw keys away is refused, at open and later.
func TestEviction(t *testing.T) {
	server := redistest.Start(t, "maxmemory-policy", "allkeys-lru")
	o := options(t, url(server), newCluster())
	if s, err := redis.Open(t.Context(), o); !errors.Is(err, store.ErrRefused) || !strings.Contains(err.Error(), "noeviction") {
		t.Errorf("opened: %v, %v", s, err)
	}
	server.Do("CONFIG", "SET", "maxmemory-policy", "noeviction")
	o.Probe = 10 * time.Millisecond
	s := open(t, o)
	must(t, put(s, store.Hard, "k", "v"))
	server.Do("CONFIG", "SET", "maxmemory-policy", "volatile-ttl")
	redistest.Await(t, "the store refuses the server", func() bool { return strings.Contains(state(s), "noeviction") })
	if err := put(s, store.Soft, "k", "w"); !errors.Is(err, store.ErrRefused) {
		t.Errorf("a write: %v", err)
	}
	server.Do("CONFIG", "SET", "maxmemory-policy", "noeviction")
	redistest.Await(t, "the store is ready again", func() bool { return state(s) == "ready" })
	if v, err := get(s, "k"); v != "v" || err != nil {
		t.Errorf("after it: %q, %v", v, err)
	}
}

// Each thing that a server can say against us has one reason of ours, which says
// what to do.
func TestReasons(t *testing.T) {
	ctx := context.Background()
	fast := func(o redis.Options) redis.Options {
		o.Probe, o.CallTimeout = 20*time.Millisecond, time.Second
		return o
	}
	expect := func(t *testing.T, err error, is error, text string) {
		t.Helper()
		if !errors.Is(err, is) || !strings.Contains(err.Error(), text) {
			t.Errorf("got %v, want %v with %q", err, is, text)
		}
	}
	t.Run("OOM", func(t *testing.T) {
		server := redistest.Start(t, redistest.Safe...)
		s := open(t, fast(options(t, url(server), newCluster())))
		must(t, put(s, store.Hard, "k", "v"))
		must(t, s.Update(ctx, store.Soft, func(tx store.Tx) error { return tx.IndexPut("i", "m", 1) }))
		server.Do("CONFIG", "SET", "maxmemory", "1")
		expect(t, s.Update(ctx, store.Hard, func(tx store.Tx) error {
			return errors.Join(tx.Put("k", []byte("w")), tx.Delete("l"), tx.IndexDelete("i", "m"))
		}), store.ErrFull, "raise its maxmemory")
		if v, err := get(s, "k"); v != "v" || err != nil {
			t.Errorf("reads do not go on: %q, %v", v, err)
		}
		must(t, s.View(ctx, func(tx store.ReadTx) error {
			if found, err := tx.Scan("i", 0, 9, 0); err != nil || len(found) != 1 {
				return fmt.Errorf("half of a refused commit was applied: %v, %w", found, err)
			}
			return nil
		}))
		server.Do("CONFIG", "SET", "maxmemory", "0")
		must(t, put(s, store.Hard, "k", "w"))
	})
	t.Run("wrong type", func(t *testing.T) {
		server := redistest.Start(t, redistest.Safe...)
		cluster := newCluster()
		s := open(t, fast(options(t, url(server), cluster)))
		tag := "{dona:" + cluster + "}:"
		server.Do("LPUSH", tag+"r:k", "x")
		server.Do("SET", tag+"i:i", "x")
		server.Do("SET", tag+"l:l", "x")
		server.Do("SET", tag+"l:t", "x")
		server.Do("HSET", tag+"heads", "t", "3")
		_, err := get(s, "k")
		expect(t, err, store.ErrForeign, "another type")
		for name, fn := range map[string]func(tx store.Tx) error{
			"record": func(tx store.Tx) error { _, err := tx.Get("k"); return errors.Join(err, tx.Put("k", nil)) },
			"index":  func(tx store.Tx) error { return errors.Join(tx.Put("other", nil), tx.IndexPut("i", "m", 1)) },
			"log":    func(tx store.Tx) error { _, err := tx.Append("l", nil); return errors.Join(err, tx.Put("other", nil)) },
			"trim":   func(tx store.Tx) error { return errors.Join(tx.Trim("t", 1), tx.Put("other", nil)) },
		} {
			t.Run(name, func(t *testing.T) {
				expect(t, s.Update(ctx, store.Hard, func(tx store.Tx) error {
					if err := fn(tx); err != nil && strings.Contains(err.Error(), "runs again") {
						return err
					}
					return nil
				}), store.ErrForeign, "another type")
			})
		}
		must(t, s.View(ctx, func(tx store.ReadTx) error {
			if r, err := tx.Get("other"); err != nil || r.Exists() {
				return fmt.Errorf("half of a refused commit was applied: %v, %w", r, err)
			}
			return nil
		}))
		server.Do("DEL", tag+"meta")
		server.Do("SET", tag+"meta", "x")
		redistest.Await(t, "the generation record is missed", func() bool { return strings.HasPrefix(state(s), "foreign: ") })
	})
	t.Run("passwords", func(t *testing.T) {
		server := redistest.Start(t, append([]string{"requirepass", "geheim"}, redistest.Safe...)...)
		o := fast(options(t, url(server), newCluster()))
		s, err := redis.Open(ctx, o)
		must(t, err)
		expect(t, put(s, store.Soft, "k", "v"), store.ErrUnavailable, "wants a password")
		must(t, s.Close())
		file := filepath.Join(t.TempDir(), "password")
		must(t, os.WriteFile(file, []byte("falsch\n"), 0o600))
		o.Target.PasswordFile = file
		s, err = redis.Open(ctx, o)
		must(t, err)
		defer s.Close()
		err = put(s, store.Soft, "k", "v")
		expect(t, err, store.ErrUnavailable, "does not know this user with this password")
		if strings.Contains(err.Error(), "falsch") {
			t.Errorf("the error tells the password: %v", err)
		}
		must(t, os.WriteFile(file, []byte("geheim\n"), 0o600))
		redistest.Await(t, "the right password is read", func() bool { return state(s) == "ready" })
		must(t, put(s, store.Hard, "k", "v"))
	})
	t.Run("ACL", func(t *testing.T) {
		server := redistest.Start(t, redistest.Safe...)
		cluster := newCluster()
		server.Do("ACL", "SETUSER", "dona", "on", ">geheim", "resetchannels", "&{dona:"+cluster+"}:*", "~{dona:"+cluster+"}:*", "-@all")
		file := filepath.Join(t.TempDir(), "password")
		must(t, os.WriteFile(file, []byte("geheim"), 0o600))
		o := fast(options(t, "redis://dona@"+server.Addr, cluster))
		o.Target.PasswordFile = file
		s, err := redis.Open(ctx, o)
		must(t, err)
		defer s.Close()
		expect(t, put(s, store.Soft, "k", "v"), store.ErrUnavailable, "ACL")
		server.Do(append([]any{"ACL", "SETUSER", "dona"}, anys(strings.Fields(commandsNeeded(t)))...)...)
		redistest.Await(t, "the user may do what the page lists", func() bool { return state(s) == "ready" })
		if got := s.Info().Durability; got != "durable" {
			t.Errorf("durability: %s", got)
		}
		must(t, count(s, store.Hard, "1"))
		must(t, s.Update(ctx, store.Hard, func(tx store.Tx) error {
			_, err := tx.Scan("i", 0, 1, 0)
			return errors.Join(err, tx.Delete("n"), tx.IndexPut("i", "m", 1), tx.IndexDelete("i", "l"))
		}))
		must(t, s.Update(ctx, store.Hard, func(tx store.Tx) error {
			_, err := tx.Append("log", nil)
			_, again := tx.Append("log", nil)
			return errors.Join(err, again)
		}))
		must(t, s.Update(ctx, store.Hard, func(tx store.Tx) error { return tx.Trim("log", 1) }))
	})
	t.Run("database", func(t *testing.T) {
		server := redistest.Start(t, redistest.Safe...)
		o := fast(options(t, url(server)+"/99", newCluster()))
		s, err := redis.Open(ctx, o)
		must(t, err)
		defer s.Close()
		expect(t, put(s, store.Soft, "k", "v"), store.ErrUnavailable, "no such database")
	})
	t.Run("replica", func(t *testing.T) {
		server := redistest.Start(t, redistest.Safe...)
		s := open(t, fast(options(t, url(server), newCluster())))
		must(t, put(s, store.Soft, "k", "v"))
		server.Do("REPLICAOF", "127.0.0.1", "1")
		expect(t, put(s, store.Soft, "k", "w"), store.ErrUnavailable, "replica")
		server.Do("REPLICAOF", "NO", "ONE")
		redistest.Await(t, "the master is used again", func() bool { return put(s, store.Soft, "k", "w") == nil })
	})
	t.Run("busy", func(t *testing.T) {
		server := redistest.Start(t, append([]string{"busy-reply-threshold", "1"}, redistest.Safe...)...)
		o := fast(options(t, url(server), newCluster()))
		s := open(t, o)
		c := server.Client()
		defer c.Close()
		ended := make(chan error, 1)
		go func() { ended <- c.Eval(ctx, "while true do end", nil).Err() }()
		redistest.Await(t, "the server is busy", func() bool { return strings.Contains(state(s), "busy with somebody's script") })
		expect(t, put(s, store.Soft, "k", "v"), store.ErrUnavailable, "SCRIPT KILL")
		server.Do("SCRIPT", "KILL")
		if err := <-ended; err == nil {
			t.Error("the script was not killed")
		}
		redistest.Await(t, "the server is used again", func() bool { return put(s, store.Soft, "k", "v") == nil })
	})
	t.Run("loading", func(t *testing.T) {
		server := redistest.Start(t, redistest.Safe...)
		s := open(t, fast(options(t, url(server), newCluster())))
		must(t, s.Update(ctx, store.Hard, func(tx store.Tx) error {
			for range 20_000 {
				if _, err := tx.Append("log", nil); err != nil {
					return err
				}
			}
			return tx.Put("k", []byte("v"))
		}))
		server.Kill()
		// It takes seconds to load these, and says so from time to time.
		server.Set("key-load-delay", "200")
		server.Restart()
		redistest.Await(t, "the server is loading", func() bool { return strings.Contains(state(s), "loading its data; wait") })
		redistest.Await(t, "it has loaded", func() bool { v, err := get(s, "k"); return err == nil && v == "v" })
	})
	t.Run("misconf", func(t *testing.T) {
		server := redistest.Start(t, "stop-writes-on-bgsave-error", "yes")
		s := open(t, fast(options(t, url(server), newCluster())))
		must(t, put(s, store.Soft, "k", "v"))
		server.Do("CONFIG", "SET", "save", "3600 1")
		// Root may write anywhere but to a file that is a directory.
		must(t, os.Mkdir(filepath.Join(server.Dir, "dump.rdb"), 0o700))
		server.Do("BGSAVE")
		redistest.Await(t, "the save has failed", func() bool {
			return strings.Contains(fmt.Sprint(server.Do("INFO", "persistence")), "rdb_last_bgsave_status:err")
		})
		expect(t, put(s, store.Soft, "k", "w"), store.ErrFull, "cannot write to its disk")
		if v, err := get(s, "k"); v != "v" || err != nil {
			t.Errorf("reads do not go on: %q, %v", v, err)
		}
	})
	t.Run("refused connection", func(t *testing.T) {
		server := redistest.Start(t, redistest.Safe...)
		o := fast(options(t, url(server), newCluster()))
		server.Kill()
		s, err := redis.Open(ctx, o)
		must(t, err)
		defer s.Close()
		expect(t, put(s, store.Soft, "k", "v"), store.ErrUnavailable, "nobody listens")
		server.Restart()
		redistest.Await(t, "a store that was opened without its server is ready", func() bool { return state(s) == "ready" })
		must(t, put(s, store.Hard, "k", "v"))
	})
}

func anys(list []string) (out []any) {
	for _, s := range list {
		out = append(out, s)
	}
	return out
}

// commandsNeeded is the list that the page for operators gives.
func commandsNeeded(t *testing.T) string {
	t.Helper()
	text, err := os.ReadFile("../../../docs/operations.md")
	must(t, err)
	_, after, ok := strings.Cut(string(text), "~{dona:CLUSTER}:*\n")
	if !ok {
		t.Fatal("docs/operations.md lists no ACL rules")
	}
	list, _, _ := strings.Cut(after, "\n```")
	return list
}
