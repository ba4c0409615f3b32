package host_test

import (
	"bufio"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"io"
	"maps"
	"net"
	"net/http"
	"net/http/httptrace"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/spiffe/go-spiffe/v2/bundle/x509bundle"
	"github.com/spiffe/go-spiffe/v2/spiffeid"
	"github.com/spiffe/go-spiffe/v2/spiffetls/tlsconfig"
	"github.com/spiffe/go-spiffe/v2/svid/x509svid"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	"github.com/dodona-project/dodona/host"
	"github.com/dodona-project/dodona/host/config"
	"github.com/dodona-project/dodona/host/store"
	"github.com/dodona-project/dodona/host/store/redis/redistest"
	donav1 "github.com/dodona-project/dodona/proto/dona/v1"
	"github.com/dodona-project/dodona/sdk/dona"
	"github.com/dodona-project/dodona/sdk/dona/svidtest"
)

const domain = "example.org"

// socketDir is a private directory whose path is short enough for a socket.
func socketDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "dona-*")
	check(t, err)
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	return dir
}

func clientTLS(src svidtest.Source) *tls.Config {
	return tlsconfig.MTLSClientConfig(src, src, tlsconfig.AuthorizeID(spiffeid.RequireFromString("spiffe://"+domain+"/host/h1")))
}

// as opens a connection with an identity.
func (r *running) as(src svidtest.Source) *grpc.ClientConn {
	r.t.Helper()
	conn, err := grpc.NewClient(r.grpc, grpc.WithTransportCredentials(credentials.NewTLS(clientTLS(src))))
	check(r.t, err)
	r.t.Cleanup(func() { _ = conn.Close() })
	return conn
}

// TestSecuredHost: a host with its identity in files lets in who has one, on every
// listener, and follows its files without a stream noticing.
func TestSecuredHost(t *testing.T) {
	t.Parallel()
	ca := svidtest.NewCA(t, domain)
	own := filepath.Join(t.TempDir(), "own")
	ca.Source("/host/h1").Write(t, own)
	socket := filepath.Join(socketDir(t), "debug")
	r := start(t, map[string]string{"dev": "false", "identity-dir": own, "trust-domain": domain, "http-ops-listen": "127.0.0.1:0", "debug-socket": socket})
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()

	admin := r.as(ca.Source("/admin/ann"))
	web := donav1.NewControlPlaneClient(r.as(ca.Source("/svc/web")))
	reg, err := web.RegisterEndpoint(ctx)
	check(t, err)
	check(t, reg.Send(&donav1.EndpointHeartbeat{Service: "web", EndpointId: "a", Address: "127.0.0.1:80", Variant: "v1"}))
	_, err = reg.Header()
	check(t, err)
	if s, err := donav1.NewControlPlaneClient(admin).GetStatus(ctx, &donav1.GetStatusRequest{Service: "web"}); err != nil || len(s.Config.Endpoints) != 1 {
		t.Errorf("an admin sees %v, %v", s, err)
	}
	if _, err := web.GetStatus(ctx, &donav1.GetStatusRequest{Service: "web"}); status.Code(err) != codes.PermissionDenied {
		t.Errorf("a workload reads a status: %v", err)
	}
	bare, err := grpc.NewClient(r.grpc, grpc.WithTransportCredentials(insecure.NewCredentials()))
	check(t, err)
	defer func() { _ = bare.Close() }()
	if _, err := donav1.NewControlPlaneClient(bare).ListServices(ctx, &donav1.ListServicesRequest{}); status.Code(err) != codes.Unavailable {
		t.Errorf("plaintext: %v", err)
	}

	get := func(config *tls.Config, url string) int {
		t.Helper()
		client := &http.Client{Transport: &http.Transport{TLSClientConfig: config, DisableKeepAlives: true}, Timeout: 10 * time.Second}
		resp, err := client.Get(url)
		if err != nil {
			return 0
		}
		defer func() { _ = resp.Body.Close() }()
		_, _ = io.Copy(io.Discard, resp.Body)
		return resp.StatusCode
	}
	anonymous := tlsconfig.TLSClientConfig(ca.Bundle(), tlsconfig.AuthorizeAny())
	old := clientTLS(ca.Source("/admin/ann"))
	old.MaxVersion = tls.VersionTLS12
	var where struct{ Ops string }
	text, err := os.ReadFile(filepath.Join(r.dir, "host.json"))
	check(t, err)
	check(t, json.Unmarshal(text, &where))
	for _, tc := range []struct {
		name   string
		config *tls.Config
		url    string
		want   int
	}{
		{"liveness for everyone", anonymous, "https://" + r.http + "/healthz", 200},
		{"readiness for everyone", anonymous, "https://" + r.http + "/readyz", 200},
		{"metrics for nobody", anonymous, "https://" + r.http + "/metrics", 401},
		{"metrics for who is known", clientTLS(ca.Source("/svc/web")), "https://" + r.http + "/metrics", 200},
		{"a stranger", clientTLS(svidtest.Source{SVID: svidtest.NewCA(t, domain).Issue("/admin/ann"), Bundle: ca.Bundle()}), "https://" + r.http + "/healthz", 0},
		{"TLS 1.2", old, "https://" + r.http + "/healthz", 0},
		{"plaintext", nil, "http://" + r.http + "/healthz", 400},
		{"ops metrics", nil, "http://" + where.Ops + "/metrics", 200},
		{"ops readiness", nil, "http://" + where.Ops + "/readyz", 200},
		{"ops, nothing else", nil, "http://" + where.Ops + "/debug/pprof/", 404},
	} {
		if tc.want == 200 && strings.HasSuffix(tc.url, "readyz") {
			until(t, tc.name, func() bool { return get(tc.config, tc.url) == 200 })
		} else if got := get(tc.config, tc.url); got != tc.want {
			t.Errorf("%s: %d, want %d", tc.name, got, tc.want)
		}
	}

	info, err := os.Stat(socket)
	check(t, err)
	if info.Mode().Perm() != 0o600 {
		t.Errorf("the debug socket has mode %v", info.Mode())
	}
	debug := &http.Client{Transport: &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", socket)
	}}}
	resp, err := debug.Get("http://debug/debug/pprof/goroutine?debug=1")
	check(t, err)
	if line, _ := bufio.NewReader(resp.Body).ReadString('\n'); !strings.HasPrefix(line, "goroutine profile:") {
		t.Errorf("the profile begins with %q", line)
	}
	_ = resp.Body.Close()

	serial := func() string {
		conn, err := tls.Dial("tcp", r.grpc, clientTLS(ca.Source("/admin/ann")))
		check(t, err)
		defer func() { _ = conn.Close() }()
		return conn.ConnectionState().PeerCertificates[0].SerialNumber.String()
	}
	first := serial()
	check(t, os.WriteFile(filepath.Join(own, "cert.pem"), []byte("half"), 0o600))
	until(t, "the failed reload is counted", func() bool {
		return strings.Contains(metricsOf(t, where.Ops), `dona_identity_reloads_total{result="failed"} 1`)
	})
	if got := serial(); got != first {
		t.Errorf("with files that do not hold it shows %s, had %s", got, first)
	}
	next := ca.Source("/host/h1")
	next.Write(t, own)
	until(t, "the new certificate", func() bool { return serial() == next.Certificates[0].SerialNumber.String() })
	check(t, reg.Send(&donav1.EndpointHeartbeat{Sequence: 1}))
	if ack, err := reg.CloseAndRecv(); err != nil || ack.Heartbeats == 0 {
		t.Errorf("the stream from before ended with %v, %v", ack, err)
	}
	check(t, r.stop())
	if _, err := os.Stat(socket); err == nil {
		t.Error("the debug socket is left behind")
	}
}

// TestMetricsOutliveNoCertificate: who keeps a connection is let in no longer than its
// certificate lasts.
func TestMetricsOutliveNoCertificate(t *testing.T) {
	t.Parallel()
	ca := svidtest.NewCA(t, domain)
	own := filepath.Join(t.TempDir(), "own")
	ca.Source("/host/h1").Write(t, own)
	r := start(t, map[string]string{"dev": "false", "identity-dir": own, "trust-domain": domain})
	var svid svidtest.Source
	var client *http.Client
	get := func() (code int, reused bool) {
		ctx := httptrace.WithClientTrace(t.Context(), &httptrace.ClientTrace{GotConn: func(i httptrace.GotConnInfo) { reused = i.Reused }})
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, "https://"+r.http+"/metrics", nil)
		check(t, err)
		resp, err := client.Do(req)
		if err != nil {
			return 0, reused
		}
		defer func() { _ = resp.Body.Close() }()
		_, err = io.Copy(io.Discard, resp.Body)
		check(t, err)
		return resp.StatusCode, reused
	}
	until(t, "metrics", func() bool { // before it has expired: the machine may stand still
		svid = ca.Source("/svc/web", svidtest.Lasting(3*time.Second))
		client = &http.Client{Transport: &http.Transport{TLSClientConfig: clientTLS(svid)}, Timeout: 10 * time.Second}
		defer client.CloseIdleConnections()
		code, _ := get()
		if code != http.StatusOK {
			return false
		}
		for asked := time.Now(); ; asked = time.Now() { // the connection stays in use
			code, reused := get()
			switch {
			case code != http.StatusOK && !reused:
				return false // it was lost
			case code == http.StatusUnauthorized:
				return true
			case code != http.StatusOK:
				t.Fatalf("it answers %d", code)
			case !asked.Before(svid.Certificates[0].NotAfter):
				t.Fatalf("it lets in whose certificate ended at %s", svid.Certificates[0].NotAfter)
			}
		}
	})
}

func metricsOf(t *testing.T, address string) string {
	t.Helper()
	resp, err := http.Get("http://" + address + "/metrics")
	check(t, err)
	defer func() { _ = resp.Body.Close() }()
	text, err := io.ReadAll(resp.Body)
	check(t, err)
	http.DefaultClient.CloseIdleConnections()
	return string(text)
}

// TestBadIdentity: a host whose identity does not hold does not start, and makes
// nothing.
func TestBadIdentity(t *testing.T) {
	ca := svidtest.NewCA(t, domain)
	for name, tc := range map[string]struct {
		write func(dir string)
		want  string
	}{
		"no directory":     {func(string) {}, "no such file"},
		"a workload's":     {func(dir string) { ca.Source("/svc/web").Write(t, dir) }, "a host needs spiffe://example.org/host/<id>"},
		"another domain's": {func(dir string) { svidtest.NewCA(t, "other.org").Source("/host/h1").Write(t, dir) }, "a host needs"},
		"expired":          {func(dir string) { ca.Source("/host/h1", svidtest.Lasting(-time.Second)).Write(t, dir) }, "expired"},
	} {
		own, data := filepath.Join(t.TempDir(), "own"), filepath.Join(t.TempDir(), "data")
		tc.write(own)
		c, err := config.Load("", nil, map[string]string{"data-dir": data, "identity-dir": own, "trust-domain": domain})
		check(t, err)
		_, err = host.New(c, hclog.NewNullLogger())
		var wrong *config.Error
		if !errors.As(err, &wrong) || !strings.Contains(err.Error(), tc.want) || !strings.Contains(err.Error(), "identity.dir") {
			t.Errorf("%s: %v", name, err)
		}
		if _, err := os.Stat(data); err == nil {
			t.Errorf("%s: the data directory was made", name)
		}
	}
}

// TestPlaintextInWords: without dev, plaintext has to be asked for in words, and then
// everyone is an operator under a name of its own.
func TestPlaintextInWords(t *testing.T) {
	t.Parallel()
	r := start(t, map[string]string{"dev": "false", "grpc-plaintext": "anyone-who-connects-is-an-operator"})
	conn, err := grpc.NewClient(r.grpc, grpc.WithTransportCredentials(insecure.NewCredentials()))
	check(t, err)
	defer func() { _ = conn.Close() }()
	_, err = donav1.NewControlPlaneClient(conn).SetFlag(context.Background(), &donav1.SetFlagRequest{Rule: &donav1.FlagRule{Service: "web", Flag: "f"}})
	check(t, err)
}

// TestIdentityFiles: a host's identity may lie in files of any names, which are
// followed as those of a directory are; what does not hold is told by its key.
func TestIdentityFiles(t *testing.T) {
	ca := svidtest.NewCA(t, domain)
	dir := filepath.Join(t.TempDir(), "own")
	ca.Source("/host/h1").Write(t, dir)
	flags := map[string]string{"dev": "false", "trust-domain": domain, "tls-cert": "cert.pem", "tls-key": "key.pem", "tls-ca": "bundle.pem"}
	for flag, from := range maps.Clone(flags) {
		if to := filepath.Join(dir, "of-the-host-"+from); strings.HasSuffix(from, ".pem") {
			check(t, os.Rename(filepath.Join(dir, from), to))
			flags[flag] = to
		}
	}
	r := start(t, flags)
	_, err := donav1.NewControlPlaneClient(r.as(ca.Source("/admin/ann"))).ListServices(t.Context(), &donav1.ListServicesRequest{})
	check(t, err)
	shown := func() string {
		conn, err := tls.Dial("tcp", r.grpc, &tls.Config{InsecureSkipVerify: true, NextProtos: []string{"h2"}}) // it only looks
		check(t, err)
		defer func() { _ = conn.Close() }()
		return conn.ConnectionState().PeerCertificates[0].SerialNumber.String()
	}
	was := shown()
	next := filepath.Join(t.TempDir(), "next")
	ca.Source("/host/h1").Write(t, next)
	for _, name := range []string{"cert.pem", "key.pem", "bundle.pem"} {
		check(t, os.Rename(filepath.Join(next, name), filepath.Join(dir, "of-the-host-"+name)))
	}
	until(t, "the new certificate is shown", func() bool { return shown() != was })

	check(t, os.WriteFile(flags["tls-cert"], []byte("no certificate"), 0o600))
	c, err := config.Load("", nil, flags)
	check(t, err)
	if _, err := host.New(c, hclog.NewNullLogger()); err == nil || !strings.Contains(err.Error(), "controlPlane.tls") || !strings.Contains(err.Error(), flags["tls-cert"]) {
		t.Errorf("a certificate that is none: %v", err)
	}
}

// TestTLSDisabled: on loopback a host may be had without identities.
func TestTLSDisabled(t *testing.T) {
	r := start(t, map[string]string{"dev": "false", "tls-mode": "disabled"})
	conn, err := grpc.NewClient(r.grpc, grpc.WithTransportCredentials(insecure.NewCredentials()))
	check(t, err)
	defer func() { _ = conn.Close() }()
	_, err = donav1.NewControlPlaneClient(conn).SetFlag(context.Background(), &donav1.SetFlagRequest{Rule: &donav1.FlagRule{Service: "web", Flag: "f"}})
	check(t, err)
}

// TestOwnIdentityRotates: a host that issues its own SVID shows a new one well before
// the last one ends, and no more often than that takes.
func TestOwnIdentityRotates(t *testing.T) {
	t.Parallel()
	const ttl = 8 * time.Second
	r := start(t, map[string]string{"dev": "false", "trust-domain": domain, "identity-ttl": ttl.String(), "identity-min-ttl": "1s"})
	rotates(t, r, ttl)
}

// rotates demands three SVIDs of a host, none of which had ended when it was asked.
func rotates(t *testing.T, r *running, ttl time.Duration) {
	t.Helper()
	begun := time.Now()
	seen := map[string]bool{}
	until(t, "three SVIDs", func() bool {
		asked := time.Now()
		conn, err := tls.Dial("tcp", r.grpc, &tls.Config{InsecureSkipVerify: true, NextProtos: []string{"h2"}}) // it only looks
		if err != nil {
			t.Logf("no look: %v", err)
			return false
		}
		defer func() { _ = conn.Close() }()
		leaf := conn.ConnectionState().PeerCertificates[0]
		if !asked.Before(leaf.NotAfter) {
			t.Fatalf("asked at %s, the host shows an SVID that ended at %s", asked.UTC(), leaf.NotAfter)
		}
		seen[leaf.SerialNumber.String()] = true
		return len(seen) == 3
	})
	took := time.Since(begun)
	t.Logf("three SVIDs of %s within %s", ttl, took)
	if took < ttl/2 { // two renewals
		t.Error("that is too often")
	}
}

// TestSecuredWithAReplicaDown: a host that issues its own SVID starts and renews it also
// while hard writes are refused.
func TestSecuredWithAReplicaDown(t *testing.T) {
	t.Parallel()
	const ttl = 8 * time.Second
	master := redistest.Start(t, redistest.Safe...)
	replica := redistest.Start(t, append([]string{"replicaof", "127.0.0.1 " + master.Port()}, redistest.Safe...)...)
	(&redistest.Group{}).AwaitReplicas(t, master, 1)
	flags := map[string]string{"dev": "false", "trust-domain": domain, "store": "redis://" + master.Addr, "redis-replicas": "1",
		"data-dir": filepath.Join(t.TempDir(), "data"), "identity-ttl": ttl.String(), "identity-min-ttl": "1s", "http-ops-listen": "127.0.0.1:0"}
	first := start(t, flags)
	check(t, first.stop())
	confirmed(t, master)
	replica.Kill()
	r := start(t, flags)
	rotates(t, r, ttl)
	replica.Restart()
	check(t, r.stop())
}

// TestSecuredStandBy: a host whose store is away and whose identity the store has to
// know lets nobody in, in plaintext or not, and says at its ops address why.
func TestSecuredStandBy(t *testing.T) {
	t.Parallel()
	r := start(t, map[string]string{"dev": "false", "store": "redis://127.0.0.1:1", "http-ops-listen": "127.0.0.1:0"})
	var where struct{ Ops string }
	text, err := os.ReadFile(filepath.Join(r.dir, "host.json"))
	check(t, err)
	check(t, json.Unmarshal(text, &where))
	for path, want := range map[string]int{"/healthz": 200, "/readyz": 503} {
		resp, err := http.Get("http://" + where.Ops + path)
		check(t, err)
		_ = resp.Body.Close()
		if resp.StatusCode != want {
			t.Errorf("%s: %d, want %d", path, resp.StatusCode, want)
		}
	}
	http.DefaultClient.CloseIdleConnections()
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: time.Second}
	if resp, err := client.Get("http://" + r.http + "/healthz"); err == nil {
		_ = resp.Body.Close()
		t.Errorf("in plaintext it answers %d", resp.StatusCode)
	}
	if err := r.stop(); err != nil {
		t.Error(err)
	}
}

// renewed is an identity that is a new one, for a few seconds, at each handshake.
type renewed struct {
	ca   *svidtest.CA
	path string
	life time.Duration
	made atomic.Int64
}

func (s *renewed) GetX509SVID() (*x509svid.SVID, error) {
	s.made.Add(1)
	return s.ca.Issue(s.path, svidtest.Lasting(s.life)), nil
}

func (s *renewed) GetX509BundleForTrustDomain(domain spiffeid.TrustDomain) (*x509bundle.Bundle, error) {
	return s.ca.Bundle().GetX509BundleForTrustDomain(domain)
}

// TestClientOutlivesItsCertificates: an application whose certificates last seconds
// stays registered and keeps its snapshots fresh over several of them.
func TestClientOutlivesItsCertificates(t *testing.T) {
	t.Parallel()
	ca := svidtest.NewCA(t, domain)
	own := filepath.Join(t.TempDir(), "own")
	ca.Source("/host/h1").Write(t, own)
	r := start(t, map[string]string{"dev": "false", "identity-dir": own, "trust-domain": domain})
	admin := donav1.NewControlPlaneClient(r.as(ca.Source("/admin/ann")))
	id := &renewed{ca: ca, path: "/svc/web", life: 4 * time.Second}
	client, err := dona.Dial(t.Context(), r.grpc, dona.WithIdentity(id), dona.WithoutCache(), dona.WithCaller("web", ""))
	check(t, err)
	reg, err := client.Register(t.Context(), dona.OwnEndpoint{Service: "web", ID: "a", Address: "127.0.0.1:80", Variant: "v1"})
	check(t, err)
	check(t, reg.Wait(t.Context()))
	web := client.Service("web")
	check(t, web.Ready(t.Context()))
	watch, err := admin.WatchConfig(t.Context(), &donav1.WatchConfigRequest{Service: "web"})
	check(t, err)
	gone := make(chan struct{}, 100)
	go func() {
		for {
			s, err := watch.Recv()
			if err != nil {
				return
			}
			if len(s.Endpoints) == 0 {
				gone <- struct{}{}
			}
		}
	}()
	first := id.made.Load()
	until(t, "three more certificates", func() bool { return id.made.Load() >= first+3 })
	_, err = admin.SetFlag(t.Context(), &donav1.SetFlagRequest{Rule: &donav1.FlagRule{Service: "web", Flag: "f", RolloutPercent: 100, RolloutVariant: "v1"}})
	check(t, err)
	until(t, "the flag", func() bool {
		e, err := web.Flag(t.Context(), "f", dona.Request{Unit: "u"})
		if err != nil {
			t.Logf("no flag: %v", err)
		}
		return err == nil && e.Variant == "v1"
	})
	if len(gone) > 0 {
		t.Errorf("the endpoint was out of the snapshot %d times", len(gone))
	}
	check(t, client.Close())
}

// TestRefusedStartsAreClean: a start that is refused after the identity was opened, or
// the store, ends in its error.
func TestRefusedStartsAreClean(t *testing.T) {
	ca := svidtest.NewCA(t, domain)
	own := filepath.Join(t.TempDir(), "own")
	ca.Source("/host/h1").Write(t, own)
	for name, prepare := range map[string]func(data string){
		"a directory that is open to others": func(data string) { check(t, os.Mkdir(data, 0o755)); check(t, os.Chmod(data, 0o755)) },
		"a host id that is none": func(data string) {
			check(t, os.Mkdir(data, 0o700))
			check(t, os.WriteFile(filepath.Join(data, "host.id"), []byte("x"), 0o600))
		},
	} {
		data := filepath.Join(t.TempDir(), "data")
		prepare(data)
		c, err := config.Load("", nil, map[string]string{"data-dir": data, "identity-dir": own, "trust-domain": domain})
		check(t, err)
		if _, err := host.New(c, hclog.NewNullLogger()); !errors.Is(err, store.ErrRefused) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
