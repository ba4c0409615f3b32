package main

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	controlplanev1 "github.com/dodona-project/dodona/proto/controlplane/v1"
	"github.com/dodona-project/dodona/sdk/worker/proxytest"
)

// leases is how many places the gateway says that it holds.
func (p *process) leases(t *testing.T) int {
	t.Helper()
	_, shown := p.ask("/metrics")
	m := regexp.MustCompile(`(?m)^proxy_gateway_leases (\d+)$`).FindStringSubmatch(shown)
	if m == nil {
		t.Fatalf("no leases in %q", shown)
	}
	n, err := strconv.Atoi(m[1])
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// keeper sends requests on connections that it keeps, without a pause, until it is told to
// stop. A connection that the gateway closes before it has taken a request, or after an answer
// that said so, is no failure.
type keeper struct {
	address  string
	stop     chan struct{}
	work     sync.WaitGroup
	answered atomic.Int64
	mu       sync.Mutex
	failed   []string
	closed   []time.Time // when the gateway closed a connection, or said that it would
}

func (k *keeper) fail(format string, args ...any) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.failed = append(k.failed, fmt.Sprintf(format, args...))
}

// failures are the first of them.
func (k *keeper) failures() []string {
	k.mu.Lock()
	defer k.mu.Unlock()
	return slices.Clone(k.failed[:min(5, len(k.failed))])
}

func (k *keeper) closes() {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.closed = append(k.closed, time.Now())
}

func (k *keeper) run(n int, pause time.Duration) {
	for range n {
		k.work.Go(func() {
			for {
				conn, err := net.Dial("tcp", k.address)
				if err != nil {
					return // it takes no more connections
				}
				again := k.keep(conn, pause)
				_ = conn.Close()
				if !again {
					return
				}
			}
		})
	}
}

// keep uses one connection, and reports whether another one is worth a try.
func (k *keeper) keep(conn net.Conn, pause time.Duration) bool {
	_ = conn.SetDeadline(time.Now().Add(2 * patience))
	in := bufio.NewReader(conn)
	for {
		select {
		case <-k.stop:
			return false
		case <-time.After(pause):
		}
		if _, err := io.WriteString(conn, "GET http://shop.example/ HTTP/1.1\r\nHost: shop.example\r\n\r\n"); err != nil {
			k.closes()
			return true
		}
		if _, err := in.Peek(1); errors.Is(err, io.EOF) || errors.Is(err, syscall.ECONNRESET) {
			k.closes() // between two requests
			return true
		}
		answer, err := http.ReadResponse(in, nil)
		if err != nil {
			k.fail("no answer: %v", err)
			return false
		}
		text, err := io.ReadAll(answer.Body)
		_ = answer.Body.Close()
		if err != nil || answer.StatusCode != 200 || !strings.HasPrefix(string(text), "hello ") {
			k.fail("answered %d %.100q, %v", answer.StatusCode, text, err)
			return false
		}
		k.answered.Add(1)
		if answer.Close {
			k.closes()
			return true
		}
	}
}

// Under load, snapshots come ten times a second, in each of which something is otherwise: a proxy
// is gone or back, another credential version, other capacities. No request fails, what runs
// through a proxy that is gone goes on, and each place is counted, and counted once. Then the
// gateway is told to end: it is not ready and takes no new connections, what it has begun it
// ends, and it sends its clients away one after the other, not all at once.
func TestSwapsAndDrainUnderLoad(t *testing.T) {
	t.Parallel()
	content := world(t, controlplanev1.OnUnavailable_ON_UNAVAILABLE_FAIL)
	other := proxytest.Start(t, proxytest.Options{
		Protocol: controlplanev1.Proxy_PROTOCOL_SOCKS5, Username: "user", Password: "secret", Hosts: map[string]string{"shop.example:80": greeter(t, "other")},
	})
	second := proto.CloneOf(content.GetProxies()[0])
	second.ProxyId, second.Port = other.Proxy().GetProxyId(), other.Proxy().GetPort()
	content.Proxies = append(content.Proxies, second)
	for _, p := range content.GetProxies() {
		p.Capacity = 1000
	}
	host := startPlane(t, content)
	p := startGateway(t, "controlPlane: {tls: {mode: disabled}}\ngateway: {upstreams: {allow: [loopback]}, limits: {drain: 4s}}\n", "-control-plane", host.address)
	eventually(t, "the gateway is ready", func() bool { code, _ := p.ask("/readyz"); return code == 200 })
	const tunnels = 6
	var held []net.Conn
	for range tunnels {
		conn, _ := p.tunnel(t, "")
		held = append(held, conn)
	}
	k := &keeper{address: p.clients, stop: make(chan struct{})}
	k.run(4, 0)
	k.run(40, 20*time.Millisecond)
	both := content.GetProxies()
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	const swaps = 25
	for n := range swaps {
		<-tick.C
		next := proto.CloneOf(content)
		next.Proxies = [][]*controlplanev1.Proxy{both, both[:1], both[1:], both}[n%4]
		next = proto.CloneOf(next)
		for _, p := range next.Proxies {
			p.Capacity = 1000 + uint32(n)
			p.CredentialVersion = uint32(1 + n/4%2)
			p.AssignmentEpoch = uint64(1 + n)
		}
		for _, c := range next.Credentials {
			c.CredentialVersion = uint32(1 + n/4%2)
		}
		host.mu.Lock()
		host.content = next
		host.mu.Unlock()
		host.push()
		if n := p.leases(t); n < tunnels || n > tunnels+44 {
			t.Errorf("%d places are held by %d tunnels and at most 44 requests", n, tunnels)
		}
	}
	eventually(t, "the last snapshot is used", func() bool {
		host.mu.Lock()
		last := host.version // on a busy machine some are made into one
		host.mu.Unlock()
		_, shown := p.ask("/metrics")
		return strings.Contains(shown, fmt.Sprintf("proxy_gateway_snapshot_version %d\n", last))
	})
	if failed := k.failures(); len(failed) > 0 || k.answered.Load() == 0 {
		t.Errorf("%d requests were answered, and failed: %v", k.answered.Load(), failed)
	}
	swapped := k.answered.Load()

	// The drain, with all of it running.
	began := time.Now()
	if err := p.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	eventually(t, "it is not ready any more", func() bool { code, text := p.ask("/readyz"); return code == 503 && strings.HasPrefix(text, "draining") })
	eventually(t, "it takes no more connections", func() bool {
		c, err := net.Dial("tcp", p.clients)
		if err == nil {
			_ = c.Close()
		}
		return errors.Is(err, syscall.ECONNREFUSED)
	})
	k.work.Wait() // each has been sent away
	away := time.Since(began)
	var cut sync.WaitGroup
	var ends [tunnels]time.Duration
	for i, conn := range held {
		cut.Go(func() {
			_, err := conn.Read(make([]byte, 1))
			ends[i] = time.Since(began)
			if errors.Is(err, os.ErrDeadlineExceeded) {
				t.Error("a tunnel is not cut")
			}
		})
	}
	cut.Wait()
	if err := p.Wait(); err != nil {
		t.Errorf("it ends with %v", err)
	}
	took := time.Since(began)
	if failed := k.failures(); len(failed) > 0 {
		t.Errorf("in the drain failed: %v", failed)
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	slices.SortFunc(k.closed, time.Time.Compare)
	slices.Sort(ends[:])
	spread := k.closed[len(k.closed)-1].Sub(k.closed[0])
	t.Logf("%d requests with %d swaps, %d in the drain; its %d connections ended over %v, all within %v; tunnels after %v; it took %v",
		swapped, swaps, k.answered.Load()-swapped, len(k.closed), spread, away, ends, took)
	if spread < 50*time.Millisecond {
		t.Errorf("%d clients are sent away within %v", len(k.closed), spread)
	}
	// A busy machine makes all of it later, never earlier.
	if ends[0] < 2*time.Second-100*time.Millisecond || ends[tunnels-1]-ends[0] < 50*time.Millisecond {
		t.Errorf("tunnels were cut after %v", ends)
	}
	host.mu.Lock()
	defer host.mu.Unlock()
	if n := len(host.last.GetCounters()); n != 0 || !host.last.GetDraining() {
		t.Errorf("the last report has %d proxies in use", n)
	}
}
