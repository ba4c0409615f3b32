//go:build faults && linux

package main

import (
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	controlplanev1 "github.com/dodona-project/dodona/proto/controlplane/v1"
	"golang.org/x/sys/unix"

	"github.com/dodona-project/dodona/sdk/worker/proxytest"
)

// The two ends of the cable. Nobody else reaches these addresses: the network is between
// two namespaces of this machine.
const (
	nearEnd, farEnd   = "198.51.100.17", "198.51.100.18"
	nearCard, farCard = "donanear", "donafar"
)

// cable is a network of its own for a checker, and the only way from there to anybody.
type cable struct {
	t    *testing.T
	far  chan func() // run where the checker stands
	door string      // of the control plane, at the far end
}

// layCable joins another network namespace to this one. It needs root and ip(8).
func layCable(t *testing.T, controlPlane string) *cable {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("namespaces of the network need root")
	}
	c := &cable{t: t, far: make(chan func())}
	ready := make(chan error)
	go func() {
		runtime.LockOSThread() // and never unlocked: the thread ends with its namespace
		err := unix.Unshare(unix.CLONE_NEWNET)
		ready <- err
		if err != nil {
			return
		}
		for f := range c.far {
			f()
		}
	}()
	if err := <-ready; err != nil {
		close(c.far)
		t.Skipf("no namespace of the network here: %v", err)
	}
	t.Cleanup(func() { close(c.far) })
	c.there("link", "set", "lo", "up")
	var thread int
	c.do(func() { thread = unix.Gettid() })
	c.here("link", "add", nearCard, "type", "veth", "peer", "name", farCard, "netns", strconv.Itoa(thread))
	t.Cleanup(func() { _ = exec.Command("ip", "link", "del", nearCard).Run() })
	c.here("addr", "add", nearEnd+"/30", "dev", nearCard)
	c.here("link", "set", nearCard, "up")
	c.there("addr", "add", farEnd+"/30", "dev", farCard)
	c.there("link", "set", farCard, "up")
	// The other end's card is known for good: what is cut off stays silent, as behind a
	// router, and is not told to be away.
	mac, err := net.InterfaceByName(nearCard)
	fatal(t, err)
	c.there("neigh", "replace", nearEnd, "lladdr", mac.HardwareAddr.String(), "dev", farCard, "nud", "permanent")

	near := c.listen(nearEnd, false)
	c.relay(near, func() (net.Conn, error) { return net.Dial("tcp", controlPlane) })
	door := c.listen("127.0.0.1", true)
	c.door = door.Addr().String()
	c.relay(door, func() (conn net.Conn, err error) {
		c.do(func() { conn, err = net.DialTimeout("tcp", near.Addr().String(), 2*time.Second) })
		return conn, err
	})
	return c
}

// do runs a function where the checker stands.
func (c *cable) do(f func()) {
	done := make(chan struct{})
	c.far <- func() { defer close(done); f() }
	<-done
}

func (c *cable) here(args ...string) {
	c.t.Helper()
	if out, err := exec.Command("ip", args...).CombinedOutput(); err != nil {
		c.t.Fatalf("ip %s: %v %s", strings.Join(args, " "), err, out)
	}
}

func (c *cable) there(args ...string) {
	c.t.Helper()
	var out []byte
	var err error
	c.do(func() { out, err = exec.Command("ip", args...).CombinedOutput() })
	if err != nil {
		c.t.Fatalf("ip %s: %v %s", strings.Join(args, " "), err, out)
	}
}

func (c *cable) listen(host string, far bool) (l net.Listener) {
	c.t.Helper()
	var err error
	open := func() { l, err = net.Listen("tcp", host+":0") }
	if far {
		c.do(open)
	} else {
		open()
	}
	fatal(c.t, err)
	return l
}

// relay carries connections on, until the test ends.
func (c *cable) relay(l net.Listener, onward func() (net.Conn, error)) {
	var all sync.WaitGroup
	var mu sync.Mutex
	open, closed := []net.Conn{}, false
	keep := func(conns ...net.Conn) bool {
		mu.Lock()
		defer mu.Unlock()
		if closed {
			for _, conn := range conns {
				_ = conn.Close()
			}
			return false
		}
		open = append(open, conns...)
		return true
	}
	all.Go(func() {
		for {
			in, err := l.Accept()
			if err != nil {
				return
			}
			all.Go(func() {
				out, err := onward()
				if err != nil {
					_ = in.Close()
					return
				}
				if !keep(in, out) {
					return
				}
				all.Go(func() { _, _ = io.Copy(out, in); _ = out.Close(); _ = in.Close() })
				_, _ = io.Copy(in, out)
				_ = out.Close()
				_ = in.Close()
			})
		}
	})
	c.t.Cleanup(func() {
		_ = l.Close()
		mu.Lock()
		closed = true
		for _, conn := range open {
			_ = conn.Close()
		}
		mu.Unlock()
		all.Wait()
	})
}

// TestCheckerOffline: a checker whose own network is gone changes nothing in the pool,
// however it is gone and however long: silent as behind a router that lost its line, so
// that checks run into their timeouts and reports wait in their connection until the line
// is back; or with its own card down. What really dies is found by it all the same.
func TestCheckerOffline(t *testing.T) {
	p := startPlane(t, map[string]string{"check-timeout": "3s"})
	c := layCable(t, p.grpc)
	var proxies []*proxytest.Server
	var lines []string
	for range 12 {
		s, err := proxytest.Listen(nearEnd+":0", proxytest.Options{Protocol: controlplanev1.Proxy_PROTOCOL_HTTP})
		fatal(t, err)
		t.Cleanup(s.Close)
		proxies = append(proxies, s)
		lines = append(lines, net.JoinHostPort(s.Proxy().Host, fmt.Sprint(s.Proxy().Port)))
	}
	file := filepath.Join(t.TempDir(), "checker.yaml")
	fatal(t, os.WriteFile(file, []byte("controlPlane: {tls: {mode: disabled}}\nchecker: {drain: 1s}\n"), 0o600))
	log := &output{}
	cmd := exec.Command(os.Args[0], "-control-plane", c.door, "-checker-id", "far", "-instance-id", "far-1", "-config", file, "-log-level", "debug")
	cmd.Env, cmd.Stderr = append(os.Environ(), asProgram+"=1"), log
	c.do(func() { fatal(t, cmd.Start()) })
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		if t.Failed() {
			t.Log(log)
		}
	})
	eventually(t, "the checker has registered", func() bool { return strings.Contains(log.String(), "registered") })
	p.publishAt(lines, "")
	eventually(t, "all proxies are available", func() bool { return len(p.in("AVAILABLE")) == 12 })
	asked := func() (n int) {
		for _, s := range proxies {
			n += s.Accepted()
		}
		return n
	}
	same := func(long time.Duration) {
		for end := time.Now().Add(long); time.Now().Before(end); <-time.After(20 * time.Millisecond) {
			for _, s := range p.in("") {
				if s.State != controlplanev1.ProxyStatus_STATE_AVAILABLE {
					t.Fatalf("the checker's network is gone, and a proxy is %s: %s", s.State, s.LastError)
				}
			}
		}
	}
	for _, gone := range []struct {
		how       string
		cut, join []string
		far       bool
	}{
		{"silent", []string{"link", "set", nearCard, "down"}, []string{"link", "set", nearCard, "up"}, false},
		{"its card is down", []string{"link", "set", farCard, "down"}, []string{"link", "set", farCard, "up"}, true},
	} {
		ip := c.here
		if gone.far {
			ip = c.there
		}
		for _, long := range []time.Duration{700 * time.Millisecond, 2 * time.Second, 4 * time.Second, 9 * time.Second} {
			ip(gone.cut...)
			same(long)
			ip(gone.join...)
			if gone.far { // the card has forgotten
				mac, err := net.InterfaceByName(nearCard)
				fatal(t, err)
				c.there("neigh", "replace", nearEnd, "lladdr", mac.HardwareAddr.String(), "dev", farCard, "nud", "permanent")
			}
			back, before := time.Now(), asked()
			same(4 * time.Second)
			eventually(t, "they are checked again", func() bool { return asked() > before+12 })
			t.Logf("%s for %v: nothing changed; checked again within %v", gone.how, long, time.Since(back).Round(time.Millisecond))
		}
	}
	proxies[0].Close()
	eventually(t, "one that is dead is unhealthy", func() bool { return len(p.in("UNHEALTHY")) == 1 })
	if n := len(p.in("AVAILABLE")); n != 11 {
		t.Errorf("%d are available", n)
	}
}
