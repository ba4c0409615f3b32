package main

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"sync"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/dodona-project/dodona/host/store"
	"github.com/dodona-project/dodona/host/store/redis"
)

// peerScript does what one of our transactions does here, and can do nothing else:
// it checks a record's version and writes the record under the next revision.
var peerScript = goredis.NewScript(`
local old = redis.call('GETRANGE', KEYS[1], 0, 7)
if old ~= ARGV[1] then return {0, old} end
local new = struct.pack('>I8', redis.call('INCR', KEYS[2]))
redis.call('SET', KEYS[1], new .. ARGV[2])
return {1, new}`)

func redisJob() ([]row, error) {
	var rows []row
	for _, c := range []struct {
		settings []string
		d        store.Durability
		callers  int
		work     string
		goal     float64
	}{
		{[]string{"--appendonly", "no"}, store.Soft, 1, "1 caller, soft, records cached", 0.75},
		{[]string{"--appendonly", "no"}, store.Soft, 64, "64 callers, soft, records cached", 0},
		{[]string{"--appendonly", "yes", "--appendfsync", "always"}, store.Hard, 1, "1 caller, hard, fsync by the server", 0},
		{[]string{"--appendonly", "yes", "--appendfsync", "always"}, store.Hard, 64, "64 callers, hard, fsync by the server", 0},
	} {
		m, err := redisTurns(c.settings, c.d, c.callers)
		if err != nil {
			return nil, err
		}
		rows = append(rows, row{c.work, m[0], m[1], "/s", "a hand-written script, a connection a caller", c.goal, true, nil})
	}
	for _, more := range []func() ([]row, error){redisCounters, twoHosts} {
		r, err := more()
		if err != nil {
			return nil, err
		}
		rows = append(rows, r...)
	}
	return rows, nil
}

// openRedis starts a server and opens so many stores on it, as many hosts do.
func openRedis(settings []string, hosts int) (addr string, stores []*redis.Store, end func(), err error) {
	addr, stop, err := startRedis(settings)
	if err != nil {
		return "", nil, nil, err
	}
	ends := []func(){stop}
	end = func() {
		for _, f := range slices.Backward(ends) {
			f()
		}
	}
	defer func() {
		if err != nil {
			end()
		}
	}()
	dir, err := os.MkdirTemp("", "dona-bench-*")
	if err != nil {
		return "", nil, nil, err
	}
	ends = append(ends, func() { _ = os.RemoveAll(dir) })
	target, err := redis.ParseURL("redis://" + addr)
	if err != nil {
		return "", nil, nil, err
	}
	for i := range hosts {
		st, err := redis.Open(context.Background(), redis.Options{Target: target, Dir: filepath.Join(dir, fmt.Sprint("data", i))})
		if err != nil {
			return "", nil, nil, err
		}
		ends = append(ends, func() { _ = st.Close() })
		stores = append(stores, st)
	}
	return addr, stores, end, nil
}

// redisCounters is what a runtime report costs, beside the same counters as fields of
// a hash.
func redisCounters() ([]row, error) {
	addr, stores, end, err := openRedis([]string{"--appendonly", "no"}, 1)
	if err != nil {
		return nil, err
	}
	defer end()
	peer := goredis.NewClient(&goredis.Options{Addr: addr, Protocol: 2})
	defer func() { _ = peer.Close() }()
	fields := goredis.NewScript("for i = 1, tonumber(ARGV[1]) do redis.call('HINCRBY', KEYS[1], i, 1) end")
	side := func(op func(int) error) func() (float64, error) {
		return func() (float64, error) { return rate(1, storeTurn, op) }
	}
	m, err := turns(repeats, side(countersOp(stores[0], store.Soft)), side(func(int) error {
		err := fields.Run(context.Background(), peer, []string{"counters"}, counters).Err()
		if errors.Is(err, goredis.Nil) { // the script answers nothing
			return nil
		}
		return err
	}))
	if err != nil {
		return nil, err
	}
	return []row{{countersWork + ", soft", m[0], m[1], "/s", "a hand-written script, a hash field each", 0, true, nil}}, nil
}

// twoHosts measures how long a change on one host takes until all watchers of another
// one have it: changes that come by themselves, and some of 100 a second.
func twoHosts() ([]row, error) {
	_, stores, end, err := openRedis([]string{"--appendonly", "yes", "--appendfsync", "always"}, 2)
	if err != nil {
		return nil, err
	}
	defer end()
	here, err := deploy(stores[0], 200)
	if err != nil {
		return nil, err
	}
	defer here.feeds.Close()
	there, err := deploy(stores[1], 0)
	if err != nil {
		return nil, err
	}
	defer there.feeds.Close()
	watched, err := startPusher(there.server(), 50, "dodona true", func() (uint64, error) {
		f, err := there.newest()
		if err != nil {
			return 0, err
		}
		return f.Version, nil
	})
	if err != nil {
		return nil, err
	}
	defer watched.close()
	n := 0
	var changing sync.Mutex
	change := func() error {
		changing.Lock()
		defer changing.Unlock()
		n++
		return here.put(n%200, 1+n%50_000)
	}
	measure := func(times int, pause func() time.Duration) ([]float64, error) {
		var took []float64
		for range times {
			time.Sleep(pause())
			began := time.Now()
			if err := change(); err != nil {
				return nil, err
			}
			version, err := here.version()
			if err == nil {
				err = watched.readers.await(version)
			}
			if err != nil {
				return nil, err
			}
			took = append(took, float64(time.Since(began))/float64(time.Millisecond))
		}
		slices.Sort(took)
		return took, nil
	}
	var rows []row
	add := func(work string, took []float64) {
		const unit, most = "ms", "the most allowed"
		rows = append(rows,
			row{work: work + ", p50", ours: took[len(took)/2], unit: unit},
			row{work + ", p99", took[len(took)*99/100], 500, unit, most, 1, false, nil})
	}
	const work = "a change on one host until 50 watchers of another have it"
	took, err := measure(50, func() time.Duration { return time.Duration(500+rand.IntN(200)) * time.Millisecond })
	if err != nil {
		return nil, err
	}
	add(work, took)
	stop, others := make(chan struct{}), make(chan error, 1)
	go func() {
		tick := time.NewTicker(10 * time.Millisecond)
		defer tick.Stop()
		for {
			select {
			case <-stop:
				others <- nil
				return
			case <-tick.C:
			}
			if err := change(); err != nil {
				others <- err
				return
			}
		}
	}()
	took, err = measure(60, func() time.Duration { return time.Duration(rand.IntN(900)) * time.Millisecond }) // at any moment of a window
	close(stop)
	if err = errors.Join(err, <-others); err != nil {
		return nil, err
	}
	add("the same among 100 changes a second", took)
	return rows, nil
}

func redisTurns(settings []string, d store.Durability, callers int) ([]float64, error) {
	addr, stores, end, err := openRedis(settings, 1)
	if err != nil {
		return nil, err
	}
	defer end()
	ours := stores[0]
	peer := goredis.NewClient(&goredis.Options{Addr: addr, Protocol: 2, PoolSize: 64})
	defer func() { _ = peer.Close() }()

	update := func(caller int) error {
		key := fmt.Sprintf("bench/%04d", caller)
		return ours.Update(context.Background(), d, func(tx store.Tx) error {
			rec, err := tx.Get(key)
			if err != nil {
				return err
			}
			return tx.Put(key, next(rec.Value))
		})
	}
	var mu sync.Mutex
	known := map[int][]byte{} // a caller's record with its version, as our cache has it
	script := func(caller int) error {
		mu.Lock()
		old := known[caller]
		mu.Unlock()
		version, value := "", []byte(nil)
		if len(old) >= 8 {
			version, value = string(old[:8]), old[8:]
		}
		value = next(value)
		answer, err := peerScript.Run(context.Background(), peer, []string{fmt.Sprintf("peer/%04d", caller), "peer"}, version, value).Slice()
		if err != nil {
			return err
		}
		if answer[0] != int64(1) {
			return fmt.Errorf("the peer's record was written by another: %v", answer)
		}
		fresh := append([]byte(answer[1].(string)), value...)
		if binary.BigEndian.Uint64(fresh) == 0 {
			return fmt.Errorf("the peer's record has no version")
		}
		mu.Lock()
		known[caller] = fresh
		mu.Unlock()
		return nil
	}
	side := func(op func(int) error) func() (float64, error) {
		return func() (float64, error) { return rate(callers, storeTurn, op) }
	}
	return turns(repeats, side(update), side(script))
}

// startRedis starts a server on a free port of loopback, with its files in a
// directory of its own.
func startRedis(settings []string) (addr string, stop func(), err error) {
	dir, err := os.MkdirTemp("", "dona-bench-*")
	if err != nil {
		return "", nil, err
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", nil, err
	}
	addr = l.Addr().String()
	_ = l.Close()
	_, port, _ := net.SplitHostPort(addr)
	cmd := exec.Command("redis-server", append([]string{"--port", port, "--bind", "127.0.0.1", "--dir", dir,
		"--save", "", "--maxmemory-policy", "noeviction", "--logfile", filepath.Join(dir, "log")}, settings...)...)
	if err := cmd.Start(); err != nil {
		_ = os.RemoveAll(dir)
		return "", nil, fmt.Errorf("%w: install it with make redis", err)
	}
	stop = func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		_ = os.RemoveAll(dir)
	}
	for deadline := time.Now().Add(10 * time.Second); ; time.Sleep(10 * time.Millisecond) {
		c, err := net.Dial("tcp", addr)
		if err == nil {
			_ = c.Close()
			return addr, stop, nil
		}
		if time.Now().After(deadline) {
			stop()
			return "", nil, fmt.Errorf("redis-server does not start: %w", err)
		}
	}
}
