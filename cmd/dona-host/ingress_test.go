package main

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os/exec"
	"strings"
	"syscall"
	"testing"

	donav1 "github.com/dodona-project/dodona/proto/dona/v1"
	"github.com/dodona-project/dodona/sdk/dona"
)

// TestIngressProcess: the example's program, a process of its own, brings
// requests to two services by an operator's rules, through changes of the rules
// and a death of the host.
func TestIngressProcess(t *testing.T) {
	t.Parallel()
	p := newProcess(t)
	p.start()
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	admin := donav1.NewControlPlaneClient(p.dial())

	services, err := dona.Dial(ctx, p.grpc, dona.WithoutCache())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = services.Close() })
	for _, e := range []struct{ service, region string }{{"shop", "eu"}, {"shop", "us"}, {"pages", "eu"}} {
		backend := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			_, _ = fmt.Fprintf(w, "%s in %s for %s%s", e.service, e.region, r.Host, r.URL.Path)
		}))
		t.Cleanup(backend.Close)
		if _, err := services.Register(ctx, dona.OwnEndpoint{
			Service: e.service, ID: e.service + "-" + e.region, Address: backend.Listener.Addr().String(), Variant: "v1", Region: e.region,
		}); err != nil {
			t.Fatal(err)
		}
	}
	endpoints := func(service string) int {
		s, err := admin.GetStatus(ctx, &donav1.GetStatusRequest{Service: service})
		if err != nil {
			return 0
		}
		return len(s.Config.Endpoints)
	}
	until(t, "the endpoints", func() bool { return endpoints("shop") == 2 && endpoints("pages") == 1 })
	rule := func(service, host, prefix string, regions ...string) {
		t.Helper()
		if _, err := admin.SetIngress(ctx, &donav1.SetIngressRequest{Service: service, Host: host, PathPrefix: prefix, AllowedRegions: regions}); err != nil {
			t.Fatal(err)
		}
	}
	rule("shop", "shop.example.com", "/")
	rule("shop", "shop.example.com", "/eu", "eu")
	rule("pages", "*.example.com", "/")

	edge := startIngress(t, p.grpc)
	get := func(host, path string) (int, string) {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+edge+path, nil)
		if err != nil {
			t.Fatal(err)
		}
		req.Host = host
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			return 0, err.Error()
		}
		defer func() { _ = resp.Body.Close() }()
		body, _ := io.ReadAll(resp.Body)
		return resp.StatusCode, string(body)
	}
	until(t, "the rules", func() bool { code, _ := get("shop.example.com", "/"); return code == 200 })
	all := func(when string) {
		t.Helper()
		for range 20 {
			if code, body := get("shop.example.com", "/eu/x"); code != 200 || body != "shop in eu for shop.example.com/eu/x" {
				t.Fatalf("%s: %d %s", when, code, body)
			}
			if code, body := get("a.example.com", "/x"); code != 200 || !strings.HasPrefix(body, "pages in eu") {
				t.Fatalf("%s: %d %s", when, code, body)
			}
			if code, body := get("other.org", "/"); code != 404 {
				t.Fatalf("%s: %d %s", when, code, body)
			}
		}
	}
	all("with the host")
	p.kill()
	all("without the host")
	p.start()
	until(t, "the endpoints after kill -9", func() bool { return endpoints("shop") == 2 && endpoints("pages") == 1 })
	all("after kill -9")
	rule("pages", "shop.example.com", "/docs")
	until(t, "a rule that is new", func() bool {
		_, body := get("shop.example.com", "/docs")
		return strings.HasPrefix(body, "pages")
	})
	// A rule whose regions have no endpoint denies, whatever else would serve.
	rule("shop", "shop.example.com", "/mars", "mars")
	until(t, "a rule that denies", func() bool { code, _ := get("shop.example.com", "/mars"); return code == 503 })
}

// startIngress builds and runs the example until the test ends, and returns where
// it listens.
func startIngress(t *testing.T, host string) string {
	t.Helper()
	cmd := exec.Command(ingressProgram(t), "-host", host, "-listen", "127.0.0.1:0", "-caller", "edge", "-region", "eu", "-refresh", "200ms")
	log := &logBuffer{}
	cmd.Stderr = log
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Signal(syscall.SIGTERM)
		if err := cmd.Wait(); err != nil || t.Failed() {
			t.Errorf("the ingress ended: %v\n%s", err, log)
		}
	})
	line, err := bufio.NewReader(stdout).ReadString('\n')
	if err != nil {
		t.Fatalf("the ingress says nothing: %v\n%s", err, log)
	}
	return strings.TrimSpace(strings.TrimPrefix(line, "listening on "))
}
