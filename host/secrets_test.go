package host_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	"github.com/dodona-project/dodona/host"
	"github.com/dodona-project/dodona/host/audit"
	"github.com/dodona-project/dodona/host/store/redis/redistest"
	controlplanev1 "github.com/dodona-project/dodona/proto/controlplane/v1"
	donav1 "github.com/dodona-project/dodona/proto/dona/v1"
	"github.com/dodona-project/dodona/sdk/worker"
)

// planted is in every secret that a host is given, and in nothing else.
const planted = "pl4nted"

// secretVariable is the variable of the environment that TestMain sets.
const secretVariable = "PROXY_POOL_SECRET_DC2"

// told is what a host lets be seen, all together.
type told struct {
	t   *testing.T
	mu  sync.Mutex
	all map[string]string // by where it was seen
}

func (s *told) note(where, text string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.all[where] += text + "\n"
}

func (s *told) message(where string, m proto.Message, err error) {
	check(s.t, err)
	s.note(where, protojson.Format(m))
}

// refused notes an answer that refuses something, and what else the client learns by it.
func (s *told) refused(where string, err error, want codes.Code) {
	if status.Code(err) != want {
		s.t.Errorf("%s: %v, want %s", where, err, want)
	}
	s.note(where, fmt.Sprint(err, status.Convert(err).Details()))
}

// files notes every file below a directory.
func (s *told) files(dir string) {
	n := 0
	check(s.t, filepath.WalkDir(dir, func(file string, e fs.DirEntry, err error) error {
		if err != nil || !e.Type().IsRegular() {
			return err
		}
		text, err := os.ReadFile(file)
		n++
		s.note(file, string(text))
		return err
	}))
	if n == 0 {
		s.t.Errorf("there are no files in %s", dir)
	}
}

// TestNoSecretStays: a host with secrets from each place there is gives them to a worker
// and in extractions, and nowhere else: not to its store, logs, metrics, errors, audit
// reports, backups and listings, nor does it repeat those that clients send where they
// do not belong.
func TestNoSecretStays(t *testing.T) {
	t.Parallel()
	t.Run("embedded", func(t *testing.T) { t.Parallel(); noSecretStays(t, nil) })
	t.Run("redis", func(t *testing.T) {
		t.Parallel()
		server := redistest.Start(t, redistest.Safe...)
		seen := noSecretStays(t, map[string]string{"store": "redis://" + server.Addr, "redis-cluster": "c"})
		server.Do("SAVE")
		seen.files(server.Dir)
		seen.judge()
	})
}

func noSecretStays(t *testing.T, flags map[string]string) *told {
	seen := &told{t: t, all: map[string]string{}}
	dir := t.TempDir()
	write := func(name, text string) string {
		t.Helper()
		file := filepath.Join(dir, name)
		check(t, os.MkdirAll(filepath.Dir(file), 0o700))
		check(t, os.WriteFile(file+".new", []byte(text), 0o600))
		check(t, os.Rename(file+".new", file))
		return file
	}
	token := planted + "-token-that-is-long-enough-to-hold"
	sum := sha256.Sum256([]byte(token))
	write("secrets/dc", "ada:"+planted+"-of-file\n")
	write("secrets/odd", planted+"-without-a-colon\n")
	write("lists/vendor.txt", "192.0.2.9:1080:bob:"+planted+"-inline\nsocks5://carl:"+planted+"%2Duserinfo@192.0.2.10:1080\n192.0.2.11:70000:eve:"+planted+"-of-bad-line\n")
	lists := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, "http://fay:"+planted+"-fetched@192.0.2.12:3128\nhttp://gil:"+planted+"-of-bad-host@127.1:3128\n")
	}))
	defer lists.Close()
	all := map[string]string{"pool-tokens-file": write("tokens", "shop:"+hex.EncodeToString(sum[:])+"\n"), "log-level": "trace",
		"pool-secrets-dir": filepath.Join(dir, "secrets"), "pool-lists-dir": filepath.Join(dir, "lists")}
	for k, v := range flags {
		all[k] = v
	}
	r := start(t, all)
	conn, err := grpc.NewClient(r.grpc, grpc.WithTransportCredentials(insecure.NewCredentials()))
	check(t, err)
	defer func() { _ = conn.Close() }()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	until(t, "/readyz", func() bool { code, _ := r.get("/readyz"); return code == 200 })
	pools := controlplanev1.NewPoolAdminClient(conn)
	document := `
cluster: {id: c1}
upstreams:
  - {name: dc, protocol: http, check: {basic: false}, secretRef: "file:dc", source: {type: static, proxies: [192.0.2.1:3128, 192.0.2.2:3128]}}
  - {name: dc2, protocol: http, check: {basic: false}, secretRef: "env:` + secretVariable + `", source: {type: static, proxies: [192.0.2.3:3128]}}
  - {name: odd, protocol: http, check: {basic: false}, secretRef: "file:odd", source: {type: static, proxies: [192.0.2.4:3128]}}
  - {name: vendor, protocol: socks5, check: {basic: false}, source: {type: file, path: vendor.txt, interval: 1s}}
  - {name: fetched, protocol: http, check: {basic: false}, source: {type: http, url: "` + lists.URL + `/list", interval: 1s}}
routings:
  - {name: all, upstreams: [{name: dc}, {name: dc2}, {name: odd}, {name: vendor}, {name: fetched}]}
`
	publish(ctx, t, pools, document)

	// Where secrets do not belong they are refused, and not repeated.
	for what, wrong := range map[string]string{
		"a credential in the list": strings.Replace(document, "192.0.2.1:3128", "\"ada:"+planted+"-in-yaml@192.0.2.1:3128\"", 1),
		"userinfo in the URL":      strings.Replace(document, "http://127", "http://ada:"+planted+"-in-url@127", 1),
		"a secret as a reference":  strings.Replace(document, "file:dc", planted+"-as-reference", 1),
	} {
		_, err := pools.PublishConfig(ctx, &controlplanev1.PublishConfigRequest{Yaml: wrong})
		seen.refused("the refusal of "+what, err, codes.InvalidArgument)
	}
	_, err = pools.ImportProxies(ctx, &controlplanev1.ImportProxiesRequest{Upstream: "dc", List: "http://ada:" + planted + "-imported@192.0.2.5:3128\n192.0.2.6:3128:ada:" + planted + "-imported\n"})
	seen.refused("the refusal of an import", err, codes.InvalidArgument)

	var proxies []*controlplanev1.ProxyStatus
	until(t, "the proxies", func() bool {
		resp, err := pools.ListProxies(ctx, &controlplanev1.ListProxiesRequest{})
		check(t, err)
		ready := 0
		for _, p := range resp.Proxies {
			if p.Proxy.CredentialVersion > 0 {
				ready++
			}
		}
		proxies = resp.Proxies
		return ready == 6 && len(proxies) == 7
	})
	check(t, host.FindProxies(ctx, r.host, proxies))

	// A client takes some over HTTP.
	for _, tc := range []struct {
		what, token, upstream string
		want                  int
	}{
		{"extraction", token, "dc", http.StatusCreated},
		{"its replay", token, "dc", http.StatusOK},
		{"another body", token, "dc2", http.StatusConflict},
	} {
		req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+r.http+"/v1/extractions", strings.NewReader(`{"upstream":"`+tc.upstream+`","count":1}`))
		check(t, err)
		req.Header.Set("Idempotency-Key", "k")
		req.Header.Set("Content-Type", "application/json")
		req.Header.Set("Authorization", "Bearer "+tc.token)
		resp, err := http.DefaultClient.Do(req)
		check(t, err)
		text, err := io.ReadAll(resp.Body)
		check(t, err)
		_ = resp.Body.Close()
		if resp.StatusCode != tc.want {
			t.Errorf("%s: %d %s, want %d", tc.what, resp.StatusCode, text, tc.want)
		}
		if gives := resp.StatusCode < 300; gives != strings.Contains(string(text), planted+"-of-file") {
			t.Errorf("%s: %d with %s", tc.what, resp.StatusCode, text)
		} else if !gives {
			seen.note("the answer to "+tc.what, fmt.Sprint(resp.Header, string(text)))
		}
	}
	http.DefaultClient.CloseIdleConnections()

	// A worker is given the rest, and says how they did.
	w, err := worker.New(worker.Config{Target: r.grpc, ClusterID: "c1", WorkerID: "w1", InstanceID: "i1", MaxConnections: 100})
	check(t, err)
	working, leave := context.WithCancel(ctx)
	ended := make(chan error, 1)
	go func() { ended <- w.Run(working) }()
	defer func() {
		leave()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}()
	passwords := func() string {
		var all strings.Builder
		v := w.View()
		if v == nil {
			return ""
		}
		for _, p := range proxies {
			if x := v.Proxy(p.Proxy.ProxyId); x != nil {
				all.WriteString(x.Via.Password + " ")
			}
		}
		return all.String()
	}
	until(t, "a worker with every secret", func() bool {
		got := passwords()
		for _, want := range []string{"-of-file", "-of-env", "-inline", "-userinfo", "-fetched"} {
			if !strings.Contains(got, planted+want) {
				return false
			}
		}
		return true
	})
	l, err := w.Pick(w.View().Route(&worker.Request{}), 1, nil)
	check(t, err)
	w.Report(worker.Outcome{ProxyID: l.Proxy.ID, Routing: "all", Stage: controlplanev1.Outcome_STAGE_TUNNEL, Success: true, At: time.Now()})
	l.Release()
	// Another credential reaches the worker.
	write("secrets/dc", "ada:"+planted+"-of-second-file\n")
	until(t, "a worker with the new secret", func() bool { return strings.Contains(passwords(), planted+"-of-second-file") })

	// What operators see.
	listed, err := pools.ListProxies(ctx, &controlplanev1.ListProxiesRequest{})
	seen.message("ListProxies", listed, err)
	workers, err := pools.ListWorkers(ctx, &controlplanev1.ListWorkersRequest{})
	seen.message("ListWorkers", workers, err)
	config, err := pools.GetConfig(ctx, &controlplanev1.GetConfigRequest{})
	seen.message("GetConfig", config, err)
	free, err := pools.GetAvailability(ctx, &controlplanev1.GetAvailabilityRequest{})
	seen.message("GetAvailability", free, err)
	about, err := donav1.NewHostAdminClient(conn).GetHost(ctx, &donav1.GetHostRequest{})
	seen.message("GetHost", about, err)
	chain, err := donav1.NewControlPlaneClient(conn).GetAttestation(ctx, &donav1.AttestationRequest{Service: audit.PoolChain})
	seen.message("the audit report", chain, err)
	_, metrics := r.get("/metrics")
	if !strings.Contains(metrics, "dona_") {
		t.Error("there are no metrics")
	}
	seen.note("the metrics", metrics)
	backup, err := donav1.NewHostAdminClient(conn).BackupStore(ctx, &donav1.BackupStoreRequest{})
	check(t, err)
	var copied bytes.Buffer
	for {
		chunk, err := backup.Recv()
		if err != nil {
			if !errors.Is(err, io.EOF) && flags == nil { // a Redis is copied by its own means
				t.Errorf("backup: %v", err)
			}
			break
		}
		copied.Write(chunk.Data)
	}
	seen.note("the backup", copied.String())
	leave()
	check(t, r.stop())
	seen.files(r.dir)
	seen.note("the log", r.log.String())
	if !strings.Contains(r.log.String(), "file:odd") || !strings.Contains(r.log.String(), "supply") {
		t.Error("the log says nothing of what is wrong")
	}
	seen.judge()
	return seen
}

// judge looks for secrets in all that was seen, as they are and as formats write them.
func (s *told) judge() {
	s.t.Helper()
	if len(s.all) < 12 {
		s.t.Errorf("only %d places were looked at", len(s.all))
	}
	for where, text := range s.all {
		for _, form := range []string{planted, hex.EncodeToString([]byte(planted)), "cGw0bnRlZ", "BsNG50ZW", "wbDRudGVk"} {
			if i := strings.Index(text, form); i >= 0 {
				s.t.Errorf("%s holds a secret: %q", where, text[max(0, i-60):min(len(text), i+60)])
			}
		}
	}
}
