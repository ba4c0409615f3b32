package host_test

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	controlplanev1 "github.com/dodona-project/dodona/proto/controlplane/v1"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/dodona-project/dodona/sdk/worker"
	"github.com/dodona-project/dodona/sdk/worker/proxytest"
)

// TestProxiesAreChecked: what is imported is checked by a real probe process, becomes
// available and reaches a worker; what a target refuses is denied to its routing only,
// and a proxy that dies is kept from traffic until it is back.
func TestProxiesAreChecked(t *testing.T) {
	t.Parallel()
	var shut atomic.Bool
	web := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch {
		case r.URL.Path == "/ip":
			_, _ = io.WriteString(w, "198.51.100.7\n")
		case shut.Load():
			w.WriteHeader(http.StatusForbidden)
		}
	}))
	defer web.Close()
	// Three protocols; of one upstream more than two proxies, so that one that dies is no
	// mass failure.
	good := []*proxytest.Server{}
	list := func(p controlplanev1.Proxy_Protocol, n int) string {
		var lines []string
		for range n {
			s := proxytest.Start(t, proxytest.Options{Protocol: p})
			good = append(good, s)
			lines = append(lines, net.JoinHostPort(s.Proxy().Host, fmt.Sprint(s.Proxy().Port)))
		}
		return strings.Join(lines, ", ")
	}
	r := start(t, map[string]string{"check-interval": "1s", "check-timeout": "5s"})
	conn, err := grpc.NewClient(r.grpc, grpc.WithTransportCredentials(insecure.NewCredentials()))
	check(t, err)
	defer func() { _ = conn.Close() }()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	pools := controlplanev1.NewPoolAdminClient(conn)
	publish(ctx, t, pools, fmt.Sprintf(`
cluster: {id: c1}
upstreams:
  - {name: dc, protocol: http, allowAddresses: [loopback], source: {type: static, proxies: [%s]}, check: {egress: {url: "%s/ip"}}}
  - {name: socks, protocol: socks5, allowAddresses: [loopback], source: {type: static, proxies: [%s]}}
routings:
  - {name: site, upstreams: [{name: dc}], check: {targets: [{url: "%s/page", interval: 1s}]}}
  - {name: all, upstreams: [{name: dc}, {name: socks}]}
`, list(controlplanev1.Proxy_PROTOCOL_HTTP, 3), web.URL, list(controlplanev1.Proxy_PROTOCOL_SOCKS5, 2), web.URL))
	in := func(state string) (all []*controlplanev1.ProxyStatus) {
		resp, err := pools.ListProxies(ctx, &controlplanev1.ListProxiesRequest{State: state})
		check(t, err)
		return resp.Proxies
	}
	defer func() {
		if t.Failed() {
			_, text := r.get("/metrics")
			for line := range strings.Lines(text) {
				if strings.HasPrefix(line, "dona_check_") && !strings.Contains(line, "bucket") {
					t.Log(strings.TrimSpace(line))
				}
			}
			for _, p := range in("") {
				t.Logf("%s %s: %s", p.Proxy.Upstream, p.State, p.LastError)
			}
		}
	}()
	began := time.Now()
	until(t, "all proxies to be available", func() bool { return len(in("AVAILABLE")) == 5 })
	t.Logf("available after %s", time.Since(began))
	until(t, "their exit addresses", func() bool {
		n := 0
		for _, p := range in("AVAILABLE") {
			if p.EgressIp == "198.51.100.7" && p.LastCheckedAt != nil {
				n++
			}
		}
		return n == 3
	})

	w, err := worker.New(worker.Config{Target: r.grpc, ClusterID: "c1", WorkerID: "w", InstanceID: "w-1", MaxConnections: 100})
	check(t, err)
	life, end := context.WithCancel(ctx)
	ended := make(chan error, 1)
	go func() { ended <- w.Run(life) }()
	defer func() { end(); <-ended }()
	until(t, "the worker to have them", func() bool { v := w.View(); return v != nil && v.Proxies() == 5 })

	// One dies: it is suspect, then unhealthy, and the others go on.
	dead := good[0].Proxy()
	good[0].Close()
	until(t, "the dead one to be unhealthy", func() bool {
		bad := in("UNHEALTHY")
		return len(bad) == 1 && bad[0].Proxy.Port == dead.Port && bad[0].LastError != ""
	})
	if n := len(in("AVAILABLE")); n != 4 {
		t.Errorf("%d are available, and one of five is dead", n)
	}

	// The target refuses everybody: that is the target's, and the brake's.
	shut.Store(true)
	until(t, "the brake of the target's lane", func() bool {
		resp, err := pools.GetAvailability(ctx, &controlplanev1.GetAvailabilityRequest{})
		check(t, err)
		for _, u := range resp.Upstreams {
			if u.Upstream == "dc" {
				return u.Brake
			}
		}
		return false
	})
	if n := len(in("AVAILABLE")); n != 4 {
		t.Errorf("%d are available, and only a target is down", n)
	}
	until(t, "the routing to be denied, once that has gone on", func() bool {
		n := 0
		for _, p := range in("AVAILABLE") {
			if len(p.Proxy.DeniedRoutings) == 1 && p.Proxy.DeniedRoutings[0] == "site" {
				n++
			}
		}
		return n == 2
	})
	shut.Store(false)
	until(t, "the routing to be allowed again", func() bool {
		for _, p := range in("AVAILABLE") {
			if len(p.Proxy.DeniedRoutings) > 0 {
				return false
			}
		}
		return true
	})
}
