package dona_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	donav1 "github.com/dodona-project/dodona/proto/dona/v1"
	"github.com/dodona-project/dodona/sdk/dona"
)

func (h *fakeHost) ListServices(context.Context, *donav1.ListServicesRequest) (*donav1.ListServicesReply, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	return &donav1.ListServicesReply{Services: append(slices.Sorted(maps.Keys(h.routes)), "gone")}, h.statusErr
}

func (h *fakeHost) GetStatus(_ context.Context, r *donav1.GetStatusRequest) (*donav1.StatusReply, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	routes, known := h.routes[r.Service]
	if !known && h.statusErr == nil {
		return nil, status.Error(codes.NotFound, "there is no such service")
	}
	return &donav1.StatusReply{Ingresses: routes}, h.statusErr
}

func (h *fakeHost) route(rules ...*donav1.Ingress) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.routes = map[string][]*donav1.Ingress{}
	for _, r := range rules {
		h.routes[r.Service] = append(h.routes[r.Service], r)
	}
}

// backend is an HTTP server that says who it is and what it was asked.
func backend(t *testing.T, name string, status int) (address string, hits *atomic.Int64) {
	hits = &atomic.Int64{}
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		hits.Add(1)
		body, _ := io.ReadAll(r.Body)
		w.WriteHeader(status)
		_, _ = fmt.Fprintf(w, "%s %s %s%s from %s: %s", name, r.Method, r.Host, r.URL.RequestURI(), r.Header.Get("X-Forwarded-For"), body)
	}))
	t.Cleanup(s.Close)
	return s.Listener.Addr().String(), hits
}

func snapshotOf(version uint64, endpoints ...*donav1.Endpoint) *donav1.ConfigSnapshot {
	return &donav1.ConfigSnapshot{Service: "checkout", Version: version, Endpoints: endpoints}
}

func instance(id, address, region string) *donav1.Endpoint {
	return &donav1.Endpoint{Id: id, Address: address, Variant: "v1", Region: region, LbWeight: 100}
}

// newIngress is an ingress of a client that calls as "edge".
func newIngress(t *testing.T, h *fakeHost, config dona.IngressConfig) (*dona.Ingress, *dona.Client) {
	t.Helper()
	client := dial(t, h.address, dona.WithCaller("edge", "eu"))
	if config.Refresh == 0 {
		config.Refresh = 100 * time.Millisecond
	}
	transport := &http.Transport{}
	t.Cleanup(transport.CloseIdleConnections)
	if config.Transport == nil {
		config.Transport = transport
	}
	i, err := client.Ingress(config)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	if err := i.Ready(ctx); err != nil {
		t.Fatal(err)
	}
	return i, client
}

func get(i http.Handler, method, url, body string) (int, string) {
	w := httptest.NewRecorder()
	r := httptest.NewRequest(method, url, strings.NewReader(body))
	if body == "" {
		r = httptest.NewRequest(method, url, nil)
	}
	i.ServeHTTP(w, r)
	return w.Code, w.Body.String()
}

func TestIngressRoutes(t *testing.T) {
	h := startHost(t)
	eu, euHits := backend(t, "eu", http.StatusOK)
	us, usHits := backend(t, "us", http.StatusOK)
	h.publish(snapshotOf(1, instance("a", eu, "eu"), instance("b", us, "us")))
	h.route(
		&donav1.Ingress{Service: "checkout", Host: "shop.example.com", PathPrefix: "/"},
		&donav1.Ingress{Service: "checkout", Host: "shop.example.com", PathPrefix: "/eu", AllowedRegions: []string{"eu"}},
		&donav1.Ingress{Service: "checkout", Host: "shop.example.com", PathPrefix: "/mars", AllowedRegions: []string{"mars"}},
	)
	i, client := newIngress(t, h, dona.IngressConfig{
		Request: func(r *http.Request) dona.Request {
			if region := r.URL.Query().Get("region"); region != "" {
				return dona.Request{Unit: "u", Regions: []string{region}}
			}
			return dona.Request{Unit: "u"}
		},
	})
	for range 20 {
		if code, text := get(i, http.MethodPost, "http://shop.example.com/eu/pay?q=1", "money"); code != 200 || text != "eu POST shop.example.com/eu/pay?q=1 from 192.0.2.1: money" {
			t.Fatalf("%d %s", code, text)
		}
	}
	for _, c := range []struct {
		url, want string
		code      int
	}{
		{"http://shop.example.com:8080/eu", "eu GET", 200},
		{"http://shop.example.com//eu/x", "eu GET", 200},
		{"http://shop.example.com/%65u/x", "eu GET", 200},
		{"http://shop.example.com/else?region=us", "us GET", 200},
		{"http://shop.example.com/eu?region=us", "no endpoint can serve", 503}, // nothing in both lists
		{"http://shop.example.com/mars", "no endpoint can serve", 503},
		{"http://shop.example.com/eu/../us", "segments", 400},
		{"http://shop.example.com/eu/%2e%2e/us", "segments", 400},
		{"http://other.example.com/", "nothing is served", 404},
	} {
		code, text := get(i, http.MethodGet, c.url, "")
		if code != c.code || !strings.HasPrefix(text, c.want) && !strings.Contains(text, c.want) {
			t.Errorf("%s: %d %s, want %d %s", c.url, code, text, c.code, c.want)
		}
		for _, secret := range []string{"mars", "residency", "checkout"} {
			if c.code >= 400 && strings.Contains(text, secret) {
				t.Errorf("%s: %q tells of %s", c.url, text, secret)
			}
		}
	}
	if euHits.Load() != 23 || usHits.Load() != 1 {
		t.Errorf("eu was asked %d times, us %d", euHits.Load(), usHits.Load())
	}
	// The ingress is the caller, of the watch and of every call.
	until(t, "all calls are reported", func() bool { return client.Stats().Reported > 0 && calls(h) == 24 })
	look(h, func() bool {
		for _, b := range h.batches {
			for _, c := range b.Calls {
				if c.CallerService != "edge" {
					t.Errorf("a call of %q", c.CallerService)
				}
			}
			for _, a := range b.Audits {
				if a.Decision == donav1.AuditEvent_DECISION_ALLOW && !slices.Contains(a.AllowedRegions, a.EndpointRegion) {
					t.Errorf("allowed in %v, served in %s", a.AllowedRegions, a.EndpointRegion)
				}
			}
		}
		for _, w := range h.watches {
			if w.CallerService != "edge" || w.CallerRegion != "eu" {
				t.Errorf("watched as %q in %q", w.CallerService, w.CallerRegion)
			}
		}
		return true
	})
}

// calls are the calls that the host was told of.
func calls(h *fakeHost) (n uint32) {
	return look(h, func() (n uint32) {
		for _, b := range h.batches {
			for _, c := range b.Calls {
				n += max(c.Count, 1)
			}
		}
		return n
	})
}

// closedPort is an address that refuses connections: nobody is given its port, as the
// next who asks for one would be given that of a listener just closed.
const closedPort = "127.0.0.1:1"

// TestIngressTriesAnother: a request that can be sent again reaches the endpoint
// that lives, one whose body is gone is not sent twice.
func TestIngressTriesAnother(t *testing.T) {
	h := startHost(t)
	good, _ := backend(t, "good", http.StatusOK)
	h.publish(snapshotOf(1, instance("a", good, "eu"), instance("b", closedPort, "eu")))
	h.route(&donav1.Ingress{Service: "checkout", Host: "a", PathPrefix: "/"})
	i, _ := newIngress(t, h, dona.IngressConfig{})
	for range 30 {
		for _, method := range []string{http.MethodGet, http.MethodDelete} {
			if code, text := get(i, method, "http://a/", ""); code != 200 {
				t.Fatalf("%s: %d %s", method, code, text)
			}
		}
	}
	bad := 0
	for range 100 {
		if code, _ := get(i, http.MethodPost, "http://a/", "once"); code == http.StatusBadGateway {
			bad++
		}
	}
	if bad == 0 {
		t.Error("none of 100 requests with a body went to the endpoint that refuses: the test saw nothing")
	}
	h.publish(snapshotOf(2, instance("b", closedPort, "eu")))
	until(t, "the good one is gone", func() bool { code, _ := get(i, http.MethodGet, "http://a/", ""); return code == 503 })
}

// TestIngressOutcomes: an answer of 500 counts as an error of the endpoint.
func TestIngressOutcomes(t *testing.T) {
	h := startHost(t)
	bad, _ := backend(t, "bad", http.StatusInternalServerError)
	h.publish(snapshotOf(1, instance("a", bad, "eu")))
	h.route(&donav1.Ingress{Service: "checkout", Host: "a", PathPrefix: "/"})
	i, _ := newIngress(t, h, dona.IngressConfig{})
	if code, _ := get(i, http.MethodGet, "http://a/", ""); code != 500 {
		t.Fatalf("the answer is %d", code)
	}
	until(t, "the call is reported", func() bool { return calls(h) == 1 })
	look(h, func() bool {
		for _, b := range h.batches {
			for _, c := range b.Calls {
				if c.Success || c.Code != "500" || c.LatencyUs == 0 {
					t.Errorf("the call is reported as %v", c)
				}
			}
		}
		return true
	})
}

// TestIngressUpgrade: a connection that switches its protocol is passed on both
// ways.
func TestIngressUpgrade(t *testing.T) {
	h := startHost(t)
	echo := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		conn, buffered, err := http.NewResponseController(w).Hijack()
		if err != nil {
			t.Error(err)
			return
		}
		defer func() { _ = conn.Close() }()
		_, _ = io.WriteString(conn, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: echo\r\n\r\n")
		line, _ := buffered.ReadString('\n')
		_, _ = io.WriteString(conn, "echo "+line)
	}))
	t.Cleanup(echo.Close)
	h.publish(snapshotOf(1, instance("a", echo.Listener.Addr().String(), "eu")))
	h.route(&donav1.Ingress{Service: "checkout", Host: "a", PathPrefix: "/"})
	i, _ := newIngress(t, h, dona.IngressConfig{})
	front := httptest.NewServer(i)
	t.Cleanup(front.Close)
	conn, err := net.Dial("tcp", front.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	_ = conn.SetDeadline(time.Now().Add(30 * time.Second))
	if _, err := io.WriteString(conn, "GET / HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: echo\r\n\r\n"); err != nil {
		t.Fatal(err)
	}
	read := bufio.NewReader(conn)
	resp, err := http.ReadResponse(read, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	if resp.StatusCode != http.StatusSwitchingProtocols {
		t.Fatalf("the answer is %v", resp)
	}
	if _, err := io.WriteString(conn, "hello\n"); err != nil {
		t.Fatal(err)
	}
	if line, err := read.ReadString('\n'); err != nil || line != "echo hello\n" {
		t.Errorf("the other side says %q, %v", line, err)
	}
	_ = conn.Close()
	until(t, "the call is reported", func() bool { return calls(h) == 1 })
}

// TestIngressRulesChange: rules come and go, and stay as they are while no host
// answers or one of them is wrong.
func TestIngressRulesChange(t *testing.T) {
	h := startHost(t)
	good, _ := backend(t, "good", http.StatusOK)
	h.publish(snapshotOf(1, instance("a", good, "eu")))
	h.route(&donav1.Ingress{Service: "checkout", Host: "a", PathPrefix: "/"})
	i, _ := newIngress(t, h, dona.IngressConfig{})
	serves := func(host string) bool { code, _ := get(i, http.MethodGet, "http://"+host+"/", ""); return code == 200 }
	if !serves("a") || serves("b") {
		t.Fatal("the first rules are not in use")
	}
	h.route(&donav1.Ingress{Service: "checkout", Host: "b", PathPrefix: "/"}, &donav1.Ingress{Service: "checkout", Host: "C", PathPrefix: "/"})
	until(t, "the new rules are in use", func() bool { return serves("b") && !serves("a") })
	until(t, "the wrong one is told", func() bool { return i.Problem() != nil && strings.Contains(i.Problem().Error(), `"C"`) })
	look(h, func() bool { h.statusErr = status.Error(codes.Unavailable, "the host is away"); return true })
	until(t, "the absence is told", func() bool { return i.Problem() != nil && strings.Contains(i.Problem().Error(), "away") })
	if !serves("b") {
		t.Error("without a host the last rules are gone")
	}
	look(h, func() bool { h.statusErr = nil; return true })
	h.route(&donav1.Ingress{Service: "checkout", Host: "a", PathPrefix: "/"})
	until(t, "all is well", func() bool { return serves("a") && i.Problem() == nil })
	if rules := i.Table().Rules(); len(rules) != 1 || rules[0].Host != "a" {
		t.Errorf("the rules are %v", rules)
	}
}

func TestIngressNeedsACaller(t *testing.T) {
	h := startHost(t)
	if _, err := dial(t, h.address).Ingress(dona.IngressConfig{}); err == nil || !strings.Contains(err.Error(), "WithCaller") {
		t.Errorf("without a caller: %v", err)
	}
	client := dial(t, h.address, dona.WithCaller("edge", ""))
	look(h, func() bool { h.statusErr = status.Error(codes.Unavailable, "not yet"); return true })
	i, err := client.Ingress(dona.IngressConfig{})
	if err != nil {
		t.Fatal(err)
	}
	if code, _ := get(i, http.MethodGet, "http://a/", ""); code != 503 {
		t.Errorf("before there are rules the answer is %d", code)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	if err := i.Ready(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("ready without rules: %v", err)
	}
	if err := client.Close(); err != nil {
		t.Error(err)
	}
	if _, err := client.Ingress(dona.IngressConfig{}); !errors.Is(err, dona.ErrClosed) {
		t.Errorf("after the end: %v", err)
	}
	if err := i.Ready(t.Context()); !errors.Is(err, dona.ErrClosed) {
		t.Errorf("ready after the end: %v", err)
	}
}

// Whoever gives up before a first attempt has ended hears how it ended, and no more.
func TestIngressReadyBeforeAnyAnswer(t *testing.T) {
	never := func(ctx context.Context, _ string) (net.Conn, error) {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	i, err := dial(t, "127.0.0.1:1", dona.WithCaller("edge", ""), dona.WithDialer(never)).Ingress(dona.IngressConfig{})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := i.Ready(ctx); err == nil || err.Error() != "wait for the ingress rules: context canceled" {
		t.Errorf("ready: %v", err)
	}
}
