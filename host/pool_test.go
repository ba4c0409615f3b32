package host_test

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	controlplanev1 "github.com/dodona-project/dodona/proto/controlplane/v1"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
)

// TestPool: a host takes a configuration of the egress plane, lists its proxies, and
// answers over HTTP whom it knows.
func TestPool(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	write := func(name, text string) string {
		t.Helper()
		file := filepath.Join(dir, name)
		check(t, os.MkdirAll(filepath.Dir(file), 0o700))
		check(t, os.WriteFile(file, []byte(text), 0o600))
		return file
	}
	sum := sha256.Sum256([]byte("a-token-of-a-test-that-is-long-enough"))
	tokens := write("tokens", "shop:"+hex.EncodeToString(sum[:])+"\n")
	write("secrets/dc", "ada:planted-password\n")
	write("lists/spare.txt", "192.0.2.9:1080:bob:planted-inline\n192.0.2.10:1080\n")
	r := start(t, map[string]string{"pool-tokens-file": tokens, "pool-secrets-dir": filepath.Join(dir, "secrets"), "pool-lists-dir": filepath.Join(dir, "lists")})
	conn, err := grpc.NewClient(r.grpc, grpc.WithTransportCredentials(insecure.NewCredentials()))
	check(t, err)
	defer func() { _ = conn.Close() }()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	pools := controlplanev1.NewPoolAdminClient(conn)
	publish(ctx, t, pools, `
cluster: {id: c1}
upstreams:
  - {name: dc, protocol: http, check: {basic: false}, secretRef: "file:dc", source: {type: static, proxies: [192.0.2.1:3128, 192.0.2.2:3128]}}
  - {name: spare, protocol: socks5, check: {basic: false}, source: {type: file, path: spare.txt, format: lines, interval: 1s}}
routings:
  - {name: all, upstreams: [{name: dc}, {name: spare}], strategy: least-connections}
`)
	until(t, "the listed proxies", func() bool {
		resp, err := pools.ListProxies(ctx, &controlplanev1.ListProxiesRequest{})
		check(t, err)
		versions := 0
		for _, p := range resp.Proxies {
			versions += int(p.Proxy.CredentialVersion)
		}
		return len(resp.Proxies) == 4 && versions == 3
	})
	for _, tc := range []struct {
		method, path, body string
		want               int
	}{
		{"GET", "/v1/availability", "", http.StatusOK},
		{"POST", "/v1/extractions", `{"upstream":"dc","count":1}`, http.StatusServiceUnavailable}, // no check of them succeeds
		{"POST", "/v1/extractions", `{"upstream":"dc","count":101}`, http.StatusBadRequest},
		{"GET", "/v1/extractions/nope", "", http.StatusNotFound},
	} {
		req, err := http.NewRequestWithContext(ctx, tc.method, "http://"+r.http+tc.path, strings.NewReader(tc.body))
		check(t, err)
		req.Header.Set("Idempotency-Key", "k")
		req.Header.Set("Content-Type", "application/json")
		req.Header.Set("Authorization", "Bearer a-token-of-a-test-that-is-long-enough")
		resp, err := http.DefaultClient.Do(req)
		check(t, err)
		_ = resp.Body.Close()
		if resp.StatusCode != tc.want {
			t.Errorf("%s %s %s: %d, want %d", tc.method, tc.path, tc.body, resp.StatusCode, tc.want)
		}
	}
	http.DefaultClient.CloseIdleConnections()
	check(t, r.stop())
	// No secret is where it would stay.
	check(t, filepath.Walk(r.dir, func(file string, info os.FileInfo, err error) error {
		if err != nil || info.IsDir() {
			return err
		}
		text, err := os.ReadFile(file)
		if strings.Contains(string(text), "planted") {
			t.Errorf("%s holds a secret", file)
		}
		return err
	}))
	if strings.Contains(r.log.String(), "planted") {
		t.Error("the log holds a secret")
	}
}

// publish publishes a configuration of the pool, as soon as the host knows the probe that
// it names.
func publish(ctx context.Context, t *testing.T, pools controlplanev1.PoolAdminClient, yaml string) {
	t.Helper()
	until(t, "the configuration to be published", func() bool {
		_, err := pools.PublishConfig(ctx, &controlplanev1.PublishConfigRequest{Yaml: yaml})
		if status.Code(err) == codes.Unavailable {
			return false
		}
		check(t, err)
		return true
	})
}
