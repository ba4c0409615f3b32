package main

import (
	"context"
	"encoding/binary"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
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
	return rows, nil
}

func redisTurns(settings []string, d store.Durability, callers int) ([]float64, error) {
	addr, stop, err := startRedis(settings)
	if err != nil {
		return nil, err
	}
	defer stop()
	dir, err := os.MkdirTemp("", "dona-bench-*")
	if err != nil {
		return nil, err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	target, err := redis.ParseURL("redis://" + addr)
	if err != nil {
		return nil, err
	}
	ours, err := redis.Open(context.Background(), redis.Options{Target: target, Dir: filepath.Join(dir, "data")})
	if err != nil {
		return nil, err
	}
	defer func() { _ = ours.Close() }()
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
