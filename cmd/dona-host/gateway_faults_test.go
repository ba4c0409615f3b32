//go:build faults

package main

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/dodona-project/dodona/host/spawn/spawntest"
	controlplanev1 "github.com/dodona-project/dodona/proto/controlplane/v1"
	"github.com/dodona-project/dodona/sdk/worker/proxytest"
)

// What the host of the test grants: a dead worker's proxies are others' this long after its
// last report, and no sooner: maxStaleAge, ten seconds to close what runs, and ten more.
const (
	gatewayStale   = 2 * time.Second
	forceReleaseIn = gatewayStale + 20*time.Second
	sessionOfHost  = 30 * time.Second
)

// checksLoopback has a host check proxies on this machine.
const checksLoopback = "plugins:\n  probe:\n    proxy:\n      env:\n        PROBE_ALLOW: loopback\n"

// TestGatewayDrains: a gateway leads requests by a host's snapshots, on either store, under
// load all the time. A proxy that somebody wants for himself is given to nobody new, and
// handed out only once nothing runs through it. The gateway is killed in the middle of the
// next such drain: the proxy is handed out then too, but not before the gateway, had it lived,
// would have closed what ran.
func TestGatewayDrains(t *testing.T) {
	dir := spawntest.Build(t, "cmd/proxy-gateway")
	t.Run("bbolt", func(t *testing.T) {
		t.Parallel()
		p := newProcess(t)
		p.configure(checksLoopback)
		p.start()
		gatewayDrains(t, dir, p)
	})
	t.Run("redis", func(t *testing.T) {
		t.Parallel()
		p := newPair(t)
		for _, h := range p.hosts {
			h.configure(checksLoopback)
		}
		p.start()
		gatewayDrains(t, dir, p.hosts[0])
	})
}

func gatewayDrains(t *testing.T, programs string, host *process) {
	origin := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { _, _ = io.WriteString(w, r.Host) }))
	t.Cleanup(origin.Close)
	var doc strings.Builder
	doc.WriteString("cluster: {id: east}\nupstreams:\n")
	servers := map[string]*proxytest.Server{}
	for _, name := range []string{"first", "second", "rest"} {
		s := proxytest.Start(t, proxytest.Options{Protocol: controlplanev1.Proxy_PROTOCOL_SOCKS5, Hosts: map[string]string{name + ".example:80": strings.TrimPrefix(origin.URL, "http://")}})
		servers[name] = s
		fmt.Fprintf(&doc, "  - {name: %s, protocol: socks5, allowAddresses: [loopback], source: {type: static, proxies: ['127.0.0.1:%d']}}\n", name, s.Proxy().GetPort())
	}
	doc.WriteString("routings:\n")
	for name := range servers {
		fmt.Fprintf(&doc, "  - {name: %[1]s, match: {hosts: [%[1]s.example]}, upstreams: [{name: %[1]s}]}\n", name)
	}
	fmt.Fprintf(&doc, "allocation: {snapshotValidity: 2s, maxStaleAge: %v, safetyMargin: 1s}\n", gatewayStale)
	pools := controlplanev1.NewPoolAdminClient(host.dial())
	publish(t, pools, doc.String())

	gw := startGateway(t, programs, host.grpc)
	client := &http.Client{Timeout: patience, Transport: &http.Transport{MaxIdleConnsPerHost: 8, Proxy: http.ProxyURL(&url.URL{Scheme: "http", Host: gw.listen})}}
	t.Cleanup(client.CloseIdleConnections)
	get := func(name string) (int, error) {
		answer, err := client.Get("http://" + name + ".example/")
		if err != nil {
			return 0, err
		}
		defer func() { _ = answer.Body.Close() }()
		_, err = io.Copy(io.Discard, answer.Body)
		return answer.StatusCode, err
	}
	for name := range servers {
		until(t, "a request to be led to "+name, func() bool { code, _ := get(name); return code == 200 })
	}
	var work sync.WaitGroup
	var served, failed atomic.Int64
	stop := make(chan struct{})
	for range 4 {
		work.Go(func() {
			for {
				select {
				case <-stop:
					return
				case <-time.After(2 * time.Millisecond):
				}
				if code, err := get("rest"); code != 200 || err != nil {
					failed.Add(1)
				}
				served.Add(1)
			}
		})
	}
	endLoad := sync.OnceFunc(func() { close(stop); work.Wait() })
	defer endLoad()

	extract := func(upstream string) bool {
		reply, err := pools.Extract(context.Background(), &controlplanev1.ExtractRequest{IdempotencyKey: "key-" + upstream, Upstream: upstream, Count: 1})
		if err != nil && status.Code(err) != codes.ResourceExhausted && status.Code(err) != codes.Unavailable {
			t.Fatal(err)
		}
		return err == nil && len(reply.GetProxies()) == 1
	}
	// drains begins one that a tunnel holds up, and returns once the gateway leads nothing
	// new through the proxy.
	drains := func(name string) net.Conn {
		conn := gw.tunnel(t, name+".example:80")
		if extract(name) {
			t.Fatalf("%s is given away while it is used", name)
		}
		until(t, "nothing new to be led to "+name, func() bool { code, _ := get(name); return code == 503 })
		until(t, "the host to know the drain", func() bool { return workerStatus(t, pools).GetDrainingProxies() == 1 })
		return conn
	}

	conn := drains("first")
	for end := time.Now().Add(5 * time.Second); time.Now().Before(end); time.Sleep(50 * time.Millisecond) { // more than two reports
		if extract("first") {
			t.Fatal("a proxy is given away while a tunnel runs through it")
		}
		if code, err := get("first"); code != 503 || err != nil {
			t.Fatalf("a request to it is answered %d, %v", code, err)
		}
	}
	if _, err := io.WriteString(conn, "GET / HTTP/1.1\r\nHost: first.example\r\nConnection: close\r\n\r\n"); err != nil {
		t.Error(err)
	}
	if text, err := io.ReadAll(conn); err != nil || !strings.HasSuffix(string(text), "first.example") {
		t.Errorf("the tunnel gives %q, %v", text, err)
	}
	_ = conn.Close()
	began := time.Now()
	until(t, "it to be given away", func() bool { return extract("first") })
	t.Logf("given away %v after the last use", time.Since(began).Round(time.Millisecond))
	until(t, "nothing to be open to it", func() bool { return servers["first"].Open() == 0 })

	_ = drains("second")
	endLoad()
	if failed.Load() > 0 || served.Load() == 0 {
		t.Errorf("%d of %d requests failed", failed.Load(), served.Load())
	}
	gw.kill()
	last := workerStatus(t, pools).GetSessionExpiresAt().AsTime().Add(-sessionOfHost)
	until(t, "the dead gateway's proxy to be given away", func() bool { return extract("second") })
	took := time.Since(last)
	t.Logf("given away %v after the dead gateway's last report; %d requests before", took.Round(time.Millisecond), served.Load())
	if took < forceReleaseIn {
		t.Errorf("given away %v after the last report: %v is the least", took, forceReleaseIn)
	}
	reply, err := pools.ListProxies(context.Background(), &controlplanev1.ListProxiesRequest{})
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range reply.GetProxies() {
		if p.GetProxy().GetUpstream() != "second" {
			continue
		}
		ticket, err := pools.BeginDrain(context.Background(), &controlplanev1.BeginDrainRequest{ProxyId: p.GetProxy().GetProxyId(), Reason: "look"})
		if err != nil || ticket.GetState() != controlplanev1.DrainTicket_STATE_FORCE_RELEASED || p.GetState() != controlplanev1.ProxyStatus_STATE_EXTRACTED {
			t.Errorf("the proxy is %v, its ticket %v, %v", p.GetState(), ticket, err)
		}
	}
}

// workerStatus is the one worker's.
func workerStatus(t *testing.T, pools controlplanev1.PoolAdminClient) *controlplanev1.WorkerStatus {
	t.Helper()
	reply, err := pools.ListWorkers(context.Background(), &controlplanev1.ListWorkersRequest{})
	if err != nil || len(reply.GetWorkers()) != 1 {
		t.Fatalf("the workers are %v, %v", reply.GetWorkers(), err)
	}
	return reply.GetWorkers()[0]
}

// gatewayProcess is a proxy-gateway that runs.
type gatewayProcess struct {
	listen string
	kill   func()
}

func startGateway(t *testing.T, programs, host string) *gatewayProcess {
	t.Helper()
	g := &gatewayProcess{listen: freePort(t)}
	config := filepath.Join(t.TempDir(), "gateway.yaml")
	if err := os.WriteFile(config, []byte("controlPlane: {tls: {mode: disabled}}\ngateway: {upstreams: {allow: [loopback]}}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(filepath.Join(programs, "proxy-gateway"), "-control-plane", host, "-cluster-id", "east", "-worker-id", "w1", "-instance-id", "i1", "-config", config, "-listen", g.listen)
	log := &logBuffer{}
	cmd.Stderr = log
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	g.kill = sync.OnceFunc(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	t.Cleanup(func() {
		g.kill()
		if t.Failed() {
			t.Logf("the gateway's log:\n%s", log)
		}
	})
	return g
}

// tunnel opens one that stays.
func (g *gatewayProcess) tunnel(t *testing.T, to string) net.Conn {
	t.Helper()
	conn, err := net.Dial("tcp", g.listen)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	_ = conn.SetDeadline(time.Now().Add(patience))
	if _, err := fmt.Fprintf(conn, "CONNECT %[1]s HTTP/1.1\r\nHost: %[1]s\r\n\r\n", to); err != nil {
		t.Fatal(err)
	}
	in := bufio.NewReader(conn) // the target does not speak first
	line, err := in.ReadString('\n')
	if err != nil || !strings.HasPrefix(line, "HTTP/1.1 200 ") {
		t.Fatalf("CONNECT %s is answered %q, %v", to, line, err)
	}
	if line, err = in.ReadString('\n'); err != nil || line != "\r\n" {
		t.Fatalf("after the answer comes %q, %v", line, err)
	}
	return conn
}
