//go:build faults

package redis_test

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/dodona-project/dodona/host/store"
	"github.com/dodona-project/dodona/host/store/redis"
	"github.com/dodona-project/dodona/host/store/redis/redistest"
)

// networkHosts opens one host of each name in a network.
func networkHosts(t *testing.T, n *redistest.Network, replicas int, names ...string) (hosts []*redis.Store) {
	t.Helper()
	cluster := newCluster()
	for _, name := range names {
		o := options(t, n.Join(name), cluster)
		o.Replicas, o.CallTimeout, o.Probe = replicas, 0, 0
		hosts = append(hosts, open(t, o))
	}
	return hosts
}

// S3, S4: the old master and one host are cut off from the rest, with one replica or
// without. Nothing that was acknowledged as hard on either side is lost, nothing is
// acknowledged as hard by the side that is cut off, and histories are linearizable
// over both sides.
func TestPartition(t *testing.T) {
	redistest.Partitions(t, func(t *testing.T, n *redistest.Network, replicas int) {
		hosts := networkHosts(t, n, 2, "near", "far")
		if d := hosts[0].Info().Durability; d != "durable" {
			t.Errorf("durability: %s", d)
		}
		l := startLoad(t, hosts, 2)
		var since time.Time
		for range rounds(1, 30) {
			l.more(t, 40)
			old := n.Master(t)
			side := []string{"near", old.Name()}
			for _, s := range n.Servers {
				if s != old && len(side) < 2+replicas {
					side = append(side, s.Name())
				}
			}
			n.Split(side...)
			cut := time.Now()
			redistest.Await(t, "another master", func() bool { return n.Master(t) != old })
			redistest.Await(t, "soft writes of the majority", func() bool { return put(hosts[1], store.Soft, "x", "") == nil })
			redistest.Await(t, "the hosts' state", func() bool { return state(hosts[1]) != "ready" && state(hosts[0]) != "ready" })
			redistest.Await(t, "two seconds of it", func() bool { return time.Since(cut) > 2*time.Second })
			last := l.lastHard(0).Sub(cut)
			healed := time.Now()
			n.Heal()
			redistest.Await(t, "both hosts on the new master", func() bool {
				return put(hosts[0], store.Soft, "x", "") == nil && put(hosts[1], store.Soft, "x", "") == nil && state(hosts[0]) == state(hosts[1])
			})
			since = time.Now()
			t.Logf("the minority's last hard write was acknowledged %s after the cut (goal 500 ms); it is on the new master %s after the heal (goal 3 s)",
				last.Round(time.Millisecond), time.Since(healed).Round(time.Millisecond))
			// What replicas had confirmed before may be told a little later.
			if last > 10*time.Second {
				t.Errorf("a host without a majority acknowledges hard writes")
			}
			n.AwaitWhole(t)
			l.more(t, 20)
		}
		l.end(t, hosts[0], since)
	})
}

// S7: a Sentinel that was left behind names the old master, which is a replica by now.
// A host that reaches others too believes the newest configuration; one that reaches
// only that one says what it found there, and neither sends it a write.
func TestStaleSentinel(t *testing.T) {
	t.Parallel()
	n := redistest.StartNetwork(t, 2, time.Second, redistest.Safe...)
	hosts := networkHosts(t, n, 2, "all", "stale")
	for _, s := range hosts {
		redistest.Await(t, "a first write", func() bool { return put(s, store.Hard, "k", "v") == nil })
	}
	old, stale := n.Master(t), n.Sentinels[0].Name()
	member := func(name string) bool { return name != "all" && name != "stale" }
	n.Cut(func(from, to string) bool {
		return (from == stale && member(to)) || (to == stale && member(from)) || // hears nothing new
			from == "stale" && to != stale && !server(n, to) // asks nobody else
	})
	n.Sentinels[1].Do("SENTINEL", "FAILOVER", n.Group.Name)
	redistest.Await(t, "the old master is a replica", func() bool {
		c := old.Client() // which the Sentinel may end with all others
		defer c.Close()
		info, err := c.Info(context.Background(), "replication").Result()
		return err == nil && strings.Contains(info, "role:slave")
	})
	if got := n.Master(t); got != old {
		t.Fatal("the first Sentinel is not stale: it names the new master")
	}
	redistest.Await(t, "the host that asks all is on the new master", func() bool { return put(hosts[0], store.Soft, "x", "") == nil })
	redistest.Await(t, "the other says what it found", func() bool { return strings.Contains(state(hosts[1]), "is a replica, not the master") })
	old.Do("CONFIG", "RESETSTAT")
	for i := range 50 {
		for _, d := range []store.Durability{store.Soft, store.Hard} {
			if err := put(hosts[1], d, "k", "stale"); err == nil {
				t.Errorf("a write to a server that is no master, number %d", i)
			}
		}
		if err := put(hosts[0], store.Soft, "x", ""); err != nil {
			t.Errorf("a write to the master: %v", err)
		}
	}
	if stats := fmt.Sprint(old.Do("INFO", "errorstats")); strings.Contains(stats, "READONLY") {
		t.Errorf("the old master was sent writes: %s", stats)
	}
	n.Heal()
	healed := time.Now()
	redistest.Await(t, "both hosts write hard", func() bool {
		return put(hosts[0], store.Hard, "k", "w") == nil && put(hosts[1], store.Hard, "k", "w") == nil
	})
	t.Logf("both write %s after the Sentinel hears the others again", time.Since(healed).Round(time.Millisecond))
}

func server(n *redistest.Network, name string) bool {
	for _, s := range n.Servers {
		if s.Name() == name {
			return true
		}
	}
	return false
}

// R4: a line that is slow, or thin. Each call ends within its time, no more of them are
// under way than may be, and the store is used again when the line is good.
func TestSlowLine(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t, redistest.Safe...)
	proxy := redistest.StartProxy(t, server.Addr)
	s := faultHosts(t, "redis://"+proxy.Addr, 0, 1)[0]
	must(t, put(s, store.Hard, "k", "v"))
	for _, tt := range []struct {
		name    string
		latency time.Duration
		rate    int
	}{{"latency 200 ms", 200 * time.Millisecond, 0}, {"10 KiB/s", 0, 10 << 10}, {"both", 200 * time.Millisecond, 10 << 10}} {
		proxy.Slow(tt.latency, tt.rate)
		var longest, done, refused, busy atomic.Int64
		most := func(a *atomic.Int64, n int64) {
			for {
				if old := a.Load(); n <= old || a.CompareAndSwap(old, n) {
					return
				}
			}
		}
		var wg sync.WaitGroup
		stop := time.Now().Add(3 * time.Second)
		for i := range 200 {
			wg.Go(func() {
				for time.Now().Before(stop) {
					begin := time.Now()
					var err error
					if i%2 == 0 {
						_, err = get(s, fmt.Sprint("read", i))
					} else {
						err = put(s, store.Soft, fmt.Sprint("write", i), strings.Repeat("x", 100))
					}
					most(&longest, time.Since(begin).Nanoseconds())
					if err != nil {
						refused.Add(1)
						time.Sleep(10 * time.Millisecond)
					} else {
						done.Add(1)
					}
				}
			})
		}
		wg.Go(func() {
			for time.Now().Before(stop) {
				most(&busy, int64(s.Busy()))
				time.Sleep(time.Millisecond)
			}
		})
		wg.Wait()
		proxy.Slow(0, 0)
		good := time.Now()
		redistest.Await(t, tt.name+": the store is used again", func() bool { return put(s, store.Hard, "k", "v") == nil })
		t.Logf("%s: %d calls done and %d refused, the longest took %s; at most %d connections taken; good %s after the line", tt.name, done.Load(),
			refused.Load(), time.Duration(longest.Load()).Round(time.Millisecond), busy.Load(), time.Since(good).Round(time.Millisecond))
		// The pool's two numbers are not of one instant, and a look at the server
		// is no call.
		if busy.Load() > 64+8 {
			t.Errorf("%s: %d calls were under way at once, 64 are allowed", tt.name, busy.Load())
		}
		if d := time.Duration(longest.Load()); d > 30*time.Second {
			t.Errorf("%s: a caller waited for %s", tt.name, d)
		}
	}
}

// R4: a server whose answers take 85 ms is far away, but there: connecting, looking
// and calling each get by with as few round trips as fit into the time of a call.
func TestFarServer(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t, redistest.Safe...)
	proxy := redistest.StartProxy(t, server.Addr)
	proxy.Slow(85*time.Millisecond, 0)
	s := faultHosts(t, "redis://"+proxy.Addr, 0, 1)[0]
	for i := range 5 {
		redistest.Await(t, fmt.Sprint("hard write ", i), func() bool { return put(s, store.Hard, "k", fmt.Sprint(i)) == nil })
	}
}

// smallDisk mounts a small file system for a test, with a file that fills it up.
func smallDisk(t *testing.T) (dir string, fill, free func()) {
	t.Helper()
	dir = t.TempDir()
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size=4m,mode=700"); err != nil {
		t.Skipf("needs the right to mount a small file system: %v", err)
	}
	t.Cleanup(func() { _ = unix.Unmount(dir, unix.MNT_DETACH) })
	ballast := filepath.Join(dir, "ballast")
	fill = func() {
		t.Helper()
		f, err := os.Create(ballast)
		must(t, err)
		defer f.Close()
		for _, size := range []int{4096, 1} { // to the last byte
			for err = nil; err == nil; {
				_, err = f.Write(make([]byte, size))
			}
		}
		if !errors.Is(err, syscall.ENOSPC) {
			t.Fatalf("the disk is not full: %v", err)
		}
	}
	return dir, fill, func() { must(t, os.Remove(ballast)) }
}

// R8: the disk of the log is full. A server that fsyncs each second refuses writes
// until there is space, and goes on by itself; one that fsyncs each answer ends, and is
// started again by whoever runs it. Either way no acknowledged hard write is lost,
// reads of the former go on, and the hosts need no restart.
func TestFullDisk(t *testing.T) {
	for _, fsync := range []string{"everysec", "always"} {
		t.Run(fsync, func(t *testing.T) {
			t.Parallel()
			dir, fill, free := smallDisk(t)
			server := redistest.Start(t, "appendonly", "yes", "appendfsync", fsync, "dir", dir)
			s := faultHosts(t, url(server), 0, 1)[0]
			acked := 0
			write := func() error {
				err := put(s, store.Hard, fmt.Sprint("n", acked), strings.Repeat("x", 1000))
				if err == nil {
					acked++
				}
				return err
			}
			for range 100 {
				must(t, write())
			}
			fill()
			var err error
			redistest.Await(t, "writes are refused", func() bool { err = write(); return err != nil })
			if fsync == "everysec" {
				redistest.Await(t, "the server says why", func() bool {
					err = write()
					return errors.Is(err, store.ErrFull) && strings.Contains(err.Error(), "cannot write to its disk")
				})
				begin := time.Now()
				err = write()
				t.Logf("refused after %s: %v", time.Since(begin).Round(time.Microsecond), err)
				if v, err := get(s, "n0"); len(v) != 1000 || err != nil {
					t.Errorf("reads do not go on: %d bytes, %v", len(v), err)
				}
				if state(s) != "ready" {
					t.Errorf("the store is %q, but reads go on", state(s))
				}
			} else {
				redistest.Await(t, "the server to end", func() bool { return strings.Contains(server.Log(), "Exiting") })
				if !errors.Is(err, store.ErrUnavailable) && !errors.Is(err, store.ErrUnknown) {
					t.Errorf("a write to a server that has ended: %v", err)
				}
				server.Kill() // reaps it
			}
			free()
			if fsync == "always" {
				server.Restart()
			}
			freed := time.Now()
			redistest.Await(t, "writes are taken again", func() bool { return write() == nil })
			t.Logf("written %s after there was space", time.Since(freed).Round(time.Millisecond))
			for i := range acked {
				if v, err := get(s, fmt.Sprint("n", i)); len(v) != 1000 || err != nil {
					t.Errorf("acknowledged write %d is lost: %d bytes, %v", i, len(v), err)
				}
			}
		})
	}
}

// tunnel speaks TLS to hosts and plain text to a server, as stunnel does.
type tunnel struct {
	t      *testing.T
	addr   string
	server string

	mu    sync.Mutex
	cert  tls.Certificate
	l     net.Listener
	conns map[net.Conn]struct{}
	plain atomic.Int64 // connections that did not begin with a handshake of TLS
	wg    sync.WaitGroup
}

func newTunnel(t *testing.T, server string) *tunnel {
	u := &tunnel{t: t, addr: "127.0.0.1:0", server: server, conns: make(map[net.Conn]struct{})}
	u.start()
	t.Cleanup(u.kill)
	return u
}

// start listens, at the address that it had before.
func (u *tunnel) start() {
	l, err := net.Listen("tcp", u.addr)
	must(u.t, err)
	u.mu.Lock()
	defer u.mu.Unlock()
	u.l, u.addr = l, l.Addr().String()
	u.wg.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			u.wg.Go(func() { u.serve(c) })
		}
	})
}

// kill ends it with all connections.
func (u *tunnel) kill() {
	u.mu.Lock()
	_ = u.l.Close()
	for c := range u.conns {
		_ = c.Close()
	}
	u.mu.Unlock()
	u.wg.Wait()
}

// present sets the certificate of new connections, and ends those there are.
func (u *tunnel) present(cert, key string) {
	pair, err := tls.LoadX509KeyPair(cert, key)
	must(u.t, err)
	u.mu.Lock()
	defer u.mu.Unlock()
	u.cert = pair
	for c := range u.conns {
		_ = c.Close()
	}
}

func (u *tunnel) serve(c net.Conn) {
	defer c.Close()
	u.mu.Lock()
	u.conns[c] = struct{}{}
	cert := u.cert
	u.mu.Unlock()
	defer func() {
		u.mu.Lock()
		defer u.mu.Unlock()
		delete(u.conns, c)
	}()
	first := &firstByte{Conn: c}
	secure := tls.Server(first, &tls.Config{Certificates: []tls.Certificate{cert}})
	err := secure.Handshake()
	if first.got && first.b != 0x16 {
		u.plain.Add(1)
	}
	if err != nil {
		return
	}
	server, err := net.Dial("tcp", u.server)
	if err != nil {
		return
	}
	defer server.Close()
	var wg sync.WaitGroup
	wg.Go(func() {
		_, _ = io.Copy(secure, server)
		_ = c.Close()
	})
	_, _ = io.Copy(server, secure)
	_ = server.Close()
	wg.Wait()
}

// firstByte remembers what a connection began with.
type firstByte struct {
	net.Conn
	got bool
	b   byte
}

func (f *firstByte) Read(p []byte) (int, error) {
	n, err := f.Conn.Read(p)
	if n > 0 && !f.got {
		f.got, f.b = true, p[0]
	}
	return n, err
}

// R9: the TLS proxy in front of the server dies, comes back with a certificate of
// another authority or for another name, one that has expired, or not speaking TLS at
// all. Each is refused with its reason, nothing is ever sent in plain text, and with
// the right one the store goes on by itself.
func TestTunnel(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	good, other := newAuthority(t, dir, "good"), newAuthority(t, dir, "other")
	server := redistest.Start(t, redistest.Safe...)
	u := newTunnel(t, server.Addr)
	cert, key := good.issue(t, dir, "right.test", time.Now().Add(time.Hour))
	u.present(cert, key)
	o := options(t, "rediss://"+u.addr, newCluster())
	o.Target.CAFile, o.Target.ServerName, o.CallTimeout, o.Probe = good.file, "right.test", 0, 0
	s := open(t, o)
	must(t, put(s, store.Hard, "k", "v"))
	strangerCert, strangerKey := other.issue(t, dir, "right.test-of-other", time.Now().Add(time.Hour))
	nameCert, nameKey := good.issue(t, dir, "wrong.test", time.Now().Add(time.Hour))
	oldCert, oldKey := good.issue(t, dir, "old.test", time.Now().Add(-time.Hour))
	for _, tt := range []struct {
		name, want string
		fault      func()
	}{
		{"dead", "nobody listens", u.kill},
		{"of another authority", "certificate does not hold", func() { u.present(strangerCert, strangerKey) }},
		{"for another name", "certificate does not hold", func() { u.present(nameCert, nameKey) }},
		{"expired", "certificate does not hold", func() { u.present(oldCert, oldKey) }},
	} {
		tt.fault()
		redistest.Await(t, tt.name+": the store says so", func() bool { return strings.Contains(state(s), tt.want) })
		for _, d := range []store.Durability{store.Soft, store.Hard} {
			if err := put(s, d, "k", "bad"); !errors.Is(err, store.ErrUnavailable) {
				t.Errorf("%s: a write: %v", tt.name, err)
			}
		}
		if tt.name == "dead" {
			u.start()
		}
		u.present(cert, key)
		begin := time.Now()
		redistest.Await(t, tt.name+": the store is used again", func() bool { return put(s, store.Hard, "k", tt.name) == nil })
		t.Logf("%s: good again after %s (goal 2 s)", tt.name, time.Since(begin).Round(time.Millisecond))
	}
	// In its place somebody listens who speaks the server's own protocol, in plain text.
	u.kill()
	l, err := net.Listen("tcp", u.addr)
	must(t, err)
	var told sync.Map
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			wg.Go(func() {
				defer c.Close()
				b := make([]byte, 4096)
				n, _ := c.Read(b)
				told.Store(string(b[:min(n, 1)]), true)
				_, _ = c.Write([]byte("-NOAUTH Authentication required.\r\n"))
			})
		}
	})
	redistest.Await(t, "a proxy without TLS is refused", func() bool { return strings.Contains(state(s), "does not speak TLS") })
	must(t, l.Close())
	wg.Wait()
	told.Range(func(first, _ any) bool {
		if first != "\x16" && first != "" {
			t.Errorf("the host began a connection with %q, which is no handshake of TLS", first)
		}
		return true
	})
	u.start()
	redistest.Await(t, "the store is used again", func() bool { return put(s, store.Hard, "k", "v") == nil })
	if n := u.plain.Load(); n > 0 {
		t.Errorf("%d connections were begun in plain text", n)
	}
}
