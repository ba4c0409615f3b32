package host_test

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/dodona-project/dodona/host/store"
	"github.com/dodona-project/dodona/host/store/redis"
	"github.com/dodona-project/dodona/host/store/redis/redistest"
)

// confirmed waits until the replicas have all hard writes, and the server knows: until then
// no host shows anything once a replica is gone.
func confirmed(t *testing.T, master *redistest.Server) {
	t.Helper()
	target, err := redis.ParseURL("redis://" + master.Addr)
	check(t, err)
	target.Cluster = "default" // what a host takes where nothing is said
	s, err := redis.Open(t.Context(), redis.Options{Target: target, Replicas: 1, Dir: filepath.Join(t.TempDir(), "seen")})
	check(t, err)
	defer func() { check(t, s.Close()) }()
	until(t, "all hard writes to be confirmed", func() bool {
		return s.View(t.Context(), func(store.ReadTx) error { return nil }) == nil
	})
}

// TestWaitingKeepsTheAddress: who comes to a host that waits for its store, and that lets
// nobody in until then, is served when it is there: the address was the host's all the time.
func TestWaitingKeepsTheAddress(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t, redistest.Safe...)
	server.Kill()
	r := start(t, map[string]string{"dev": "false", "store": "redis://" + server.Addr})
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	var waiting []*tls.Conn
	for _, address := range []string{r.grpc, r.http} {
		conn, err := net.Dial("tcp", address)
		check(t, err)
		defer func() { _ = conn.Close() }()
		waiting = append(waiting, tls.Client(conn, &tls.Config{InsecureSkipVerify: true, NextProtos: []string{"h2"}})) // it only looks
	}
	server.Restart()
	for _, secure := range waiting {
		if err := secure.HandshakeContext(ctx); err != nil {
			t.Errorf("who came while the host waited: %v", err)
		}
	}
}

// TestStoreFailsDuringTheStart: a shared store may fail at any question of a start, and not
// only at the first one: the host waits, and goes on where it was.
func TestStoreFailsDuringTheStart(t *testing.T) {
	t.Parallel()
	const away = 3 * time.Second // longer than the store itself tries
	server := redistest.Start(t, redistest.Safe...)
	for name, key := range map[string]string{
		"owner": "store/owner", "attestation key": "attestation/key", "authority": "identity/ca", "own identity": "identity/leaf", "gap": "gap/", "leases": "i:lease",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			proxy := redistest.StartProxy(t, server.Addr)
			var first atomic.Int64
			proxy.Decide(func(request []byte) redistest.Cut {
				if !redistest.IsScript(request) || !bytes.Contains(request, []byte(key)) {
					return redistest.Pass
				}
				now := time.Now().UnixNano()
				first.CompareAndSwap(0, now)
				if now-first.Load() > int64(away) {
					return redistest.Pass
				}
				return redistest.Before
			})
			r := start(t, map[string]string{"dev": "false", "trust-domain": domain, "store": "redis://" + proxy.Addr,
				"redis-cluster": "at-" + strings.ReplaceAll(name, " ", "-"), "data-dir": filepath.Join(t.TempDir(), "data"), "http-ops-listen": "127.0.0.1:0"})
			until(t, "ready", func() bool {
				var where struct{ Ops string }
				text, err := os.ReadFile(filepath.Join(r.dir, "host.json"))
				if err != nil || json.Unmarshal(text, &where) != nil {
					return false
				}
				client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: patience}
				resp, err := client.Get("http://" + where.Ops + "/readyz")
				if err != nil {
					return false
				}
				_ = resp.Body.Close()
				return resp.StatusCode == http.StatusOK
			})
			if first.Load() == 0 {
				t.Errorf("the host asked for no %s", key)
			}
			check(t, r.stop())
		})
	}
}
