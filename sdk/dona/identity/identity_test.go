package identity_test

import (
	"context"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"math/big"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/spiffe/go-spiffe/v2/spiffeid"
	"github.com/spiffe/go-spiffe/v2/spiffetls/tlsconfig"
	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"

	donav1 "github.com/dodona-project/dodona/proto/dona/v1"
	"github.com/dodona-project/dodona/sdk/dona/identity"
	"github.com/dodona-project/dodona/sdk/dona/svidfile"
	"github.com/dodona-project/dodona/sdk/dona/svidtest"
)

const domain = "example.org"

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func fatal(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func until(t *testing.T, what string, done func() bool) {
	t.Helper()
	for end := time.Now().Add(time.Minute); !done(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("waited a minute for %s", what)
		}
	}
}

// fakeHost issues as a host does: for a token on one address, over mTLS on another. It
// can go away and come back at the same addresses.
type fakeHost struct {
	donav1.UnimplementedIdentityServer
	t       *testing.T
	own     svidtest.Source
	ca      *x509.Certificate
	sign    func(template *x509.Certificate, key any) *x509.Certificate
	first   string // address for tokens
	hosts   string
	servers []*grpc.Server
	served  sync.WaitGroup

	mu     sync.Mutex
	ttl    time.Duration
	uses   int  // of the token "good"
	deaf   bool // renewals are refused
	issued map[string]int
	bundle []byte
}

func newFakeHost(t *testing.T, ttl time.Duration, path string) *fakeHost {
	t.Helper()
	ca := svidtest.NewCA(t, domain)
	h := &fakeHost{t: t, ttl: ttl, uses: 1, own: ca.Source(path), issued: map[string]int{}}
	h.ca = ca.Bundle().X509Authorities()[0]
	h.sign = func(template *x509.Certificate, key any) *x509.Certificate { return ca.Sign(template, key) }
	h.bundle = pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: h.ca.Raw})
	h.first, h.hosts = h.listen("127.0.0.1:0", "127.0.0.1:0")
	t.Cleanup(h.leave)
	return h
}

func (h *fakeHost) listen(first, hosts string) (string, string) {
	config := tlsconfig.MTLSServerConfig(h.own, h.own, tlsconfig.AuthorizeMemberOf(spiffeid.RequireTrustDomainFromString(domain)))
	config.MinVersion = tls.VersionTLS13
	addresses := []string{first, hosts}
	for i, creds := range []credentials.TransportCredentials{insecure.NewCredentials(), credentials.NewTLS(config)} {
		listener, err := net.Listen("tcp", addresses[i])
		fatal(h.t, err)
		addresses[i] = listener.Addr().String()
		server := grpc.NewServer(grpc.Creds(creds))
		donav1.RegisterIdentityServer(server, h)
		h.served.Go(func() { _ = server.Serve(listener) })
		h.servers = append(h.servers, server)
	}
	return addresses[0], addresses[1]
}

func (h *fakeHost) leave() {
	for _, s := range h.servers {
		s.Stop()
	}
	h.servers = nil
	h.served.Wait()
}

func (h *fakeHost) comeBack() { h.listen(h.first, h.hosts) }

func (h *fakeHost) count(via string) int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.issued[via]
}

func (h *fakeHost) IssueSvid(ctx context.Context, req *donav1.IssueSvidRequest) (*donav1.IssueSvidResponse, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	id, via := "spiffe://"+domain+"/svc/web", "token"
	p, _ := peer.FromContext(ctx)
	if info, secured := p.AuthInfo.(credentials.TLSInfo); secured {
		via = "renewal"
		id = info.State.PeerCertificates[0].URIs[0].String()
		if h.deaf {
			return nil, status.Error(codes.Unavailable, "not now")
		}
	} else {
		if req.BootstrapToken != "good" || h.uses == 0 {
			return nil, status.Error(codes.PermissionDenied, "no")
		}
		h.uses--
	}
	block, _ := pem.Decode(req.CsrPem)
	csr, err := x509.ParseCertificateRequest(block.Bytes)
	if err != nil || csr.CheckSignature() != nil {
		return nil, status.Error(codes.InvalidArgument, "csr_pem")
	}
	uri, err := url.Parse(id)
	if err != nil {
		return nil, err
	}
	n, err := rand.Int(rand.Reader, big.NewInt(1<<62))
	if err != nil {
		return nil, err
	}
	leaf := h.sign(&x509.Certificate{SerialNumber: n, URIs: []*url.URL{uri}, NotBefore: time.Now().Add(-time.Minute), NotAfter: time.Now().Add(h.ttl),
		BasicConstraintsValid: true, KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth}}, csr.PublicKey)
	h.issued[via]++
	return &donav1.IssueSvidResponse{SpiffeId: id, CertPem: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: leaf.Raw}), BundlePem: h.bundle, ExpiresUnix: leaf.NotAfter.Unix()}, nil
}

func good(context.Context) (string, error) { return "good", nil }

func rotating(t *testing.T, c identity.Config) *identity.Rotating {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	r, err := identity.NewRotating(ctx, c)
	fatal(t, err)
	t.Cleanup(r.Close)
	return r
}

// valid fails unless the SVID that a connection would now use is valid.
func valid(t *testing.T, r *identity.Rotating) string {
	t.Helper()
	own, err := r.GetX509SVID()
	fatal(t, err)
	_, err = r.GetX509BundleForTrustDomain(own.ID.TrustDomain())
	fatal(t, err)
	return own.Certificates[0].SerialNumber.String()
}

// TestRotation: it is renewed between four and six tenths of its life, time and again,
// and there is a valid one at all times.
func TestRotation(t *testing.T) {
	const ttl = 4 * time.Second
	h := newFakeHost(t, ttl, "/host/h1")
	r := rotating(t, identity.Config{Hosts: h.hosts, Bootstrap: h.first, Service: "web", Token: good})
	for n := range 3 {
		s, changed := r.Current()
		begun, left := time.Now(), time.Until(s.Expires()) // a certificate has whole seconds
		for waiting := true; waiting; {
			valid(t, r)
			select {
			case <-changed:
				waiting = false
			case <-time.After(20 * time.Millisecond):
			}
		}
		took := time.Since(begun)
		t.Logf("renewed after %s of %s", took.Round(time.Millisecond), left.Round(time.Millisecond))
		if took < left*3/10 { // 0.4 of what was left when it came, a moment before
			t.Errorf("rotation %d: renewed after %s of %s", n, took, left)
		}
		if next, _ := r.Current(); next == s || next.ID() != s.ID() || time.Now().After(s.Expires()) {
			t.Errorf("rotation %d: it is not another one of the same identity, in time", n)
		}
	}
	if h.count("token") != 1 || h.count("renewal") < 3 {
		t.Errorf("issued: %v", h.issued)
	}
}

// TestHostAway: while no host answers the SVID serves until it ends; once one is back it
// recovers by itself, with another token if it has to.
func TestHostAway(t *testing.T) {
	const ttl = 2 * time.Second
	h := newFakeHost(t, ttl, "/host/h1")
	h.uses = 2
	r := rotating(t, identity.Config{Hosts: h.hosts, Bootstrap: h.first, Service: "web", Token: good})
	s, _ := r.Current()
	h.leave()
	for time.Now().Before(s.Expires().Add(-20 * time.Millisecond)) {
		if now, _ := r.Current(); now == s {
			valid(t, r)
		}
		time.Sleep(10 * time.Millisecond)
	}
	until(t, "the SVID to end", func() bool { _, err := r.GetX509SVID(); return err != nil })
	until(t, "the reason to be told", func() bool {
		_, err := r.GetX509SVID()
		return strings.Contains(err.Error(), "has expired at") && strings.Contains(err.Error(), "could not be renewed: ")
	})
	h.comeBack()
	back := time.Now()
	until(t, "another SVID", func() bool { _, err := r.GetX509SVID(); return err == nil })
	t.Logf("it was back %s after the host", time.Since(back).Round(time.Millisecond))
	if h.count("token") != 2 {
		t.Errorf("issued: %v", h.issued)
	}
}

// TestShortAbsence: a host that is away for less than the SVID lives is no trouble, and
// takes no token.
func TestShortAbsence(t *testing.T) {
	h := newFakeHost(t, 6*time.Second, "/host/h1")
	r := rotating(t, identity.Config{Hosts: "127.0.0.1:1, " + h.hosts, Bootstrap: h.first, Service: "web", Token: good})
	s, changed := r.Current()
	h.mu.Lock()
	h.deaf = true
	h.mu.Unlock()
	until(t, "half of its life", func() bool { return time.Until(s.Expires()) < 2*time.Second })
	valid(t, r)
	h.mu.Lock()
	h.deaf = false
	h.mu.Unlock()
	select {
	case <-changed:
	case <-time.After(time.Until(s.Expires()) + time.Minute):
		t.Fatal("it was not renewed")
	}
	t.Logf("%s of its life was left", time.Until(s.Expires()).Round(time.Millisecond))
}

// TestFirst: what ends a start at once, and what is waited for.
func TestFirst(t *testing.T) {
	h := newFakeHost(t, time.Hour, "/host/h1")
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	bad := func(context.Context) (string, error) { return "bad", nil }
	if _, err := identity.NewRotating(ctx, identity.Config{Hosts: h.hosts, Bootstrap: h.first, Token: bad}); status.Code(err) != codes.PermissionDenied {
		t.Errorf("a bad token: %v", err)
	}
	broken := errors.New("no token today")
	if _, err := identity.NewRotating(ctx, identity.Config{Hosts: h.hosts, Bootstrap: h.first, Token: func(context.Context) (string, error) { return "", broken }}); !errors.Is(err, broken) {
		t.Errorf("no token: %v", err)
	}
	if _, err := identity.NewRotating(ctx, identity.Config{Hosts: h.hosts, Bootstrap: h.first}); err == nil {
		t.Error("nothing to begin with")
	}
	h.leave()
	short, end := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer end()
	if _, err := identity.NewRotating(short, identity.Config{Hosts: h.hosts, Bootstrap: h.first, Token: good}); err == nil || !strings.Contains(err.Error(), h.first) {
		t.Errorf("no host: %v", err)
	}
	got := make(chan error, 1)
	go func() {
		r, err := identity.NewRotating(ctx, identity.Config{Hosts: h.hosts, Bootstrap: h.first, Token: good})
		if err == nil {
			r.Close()
		}
		got <- err
	}()
	h.comeBack()
	fatal(t, <-got)
}

// TestOnDisk: the SVID is kept, for its owner only, found again, and read by others.
func TestOnDisk(t *testing.T) {
	h := newFakeHost(t, time.Hour, "/host/h1")
	dir := filepath.Join(t.TempDir(), "identity")
	first := rotating(t, identity.Config{Hosts: h.hosts, Bootstrap: h.first, Service: "web", Token: good, Dir: dir})
	for name, want := range map[string]os.FileMode{"": 0o700, svidfile.CertFile: 0o600, svidfile.KeyFile: 0o600, svidfile.BundleFile: 0o600} {
		info, err := os.Stat(filepath.Join(dir, name))
		fatal(t, err)
		if info.Mode().Perm() != want {
			t.Errorf("%q has mode %v, want %v", name, info.Mode(), want)
		}
	}
	files, err := svidfile.Open(dir, svidfile.Options{})
	fatal(t, err)
	defer func() { _ = files.Close() }()
	again := rotating(t, identity.Config{Hosts: h.hosts, Bootstrap: h.first, Service: "web", Dir: dir})
	read, err := files.GetX509SVID()
	fatal(t, err)
	if serial := valid(t, first); valid(t, again) != serial || read.Certificates[0].SerialNumber.String() != serial || h.count("token") != 1 {
		t.Errorf("it was not found again: %v", h.issued)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	if _, err := identity.NewRotating(ctx, identity.Config{Hosts: h.hosts, Bootstrap: h.first, Service: "api", Dir: dir}); err == nil || !strings.Contains(err.Error(), "/svc/web") {
		t.Errorf("another's SVID is used: %v", err)
	}
	fatal(t, os.Chmod(filepath.Join(dir, svidfile.KeyFile), 0o640))
	if _, err := identity.NewRotating(ctx, identity.Config{Hosts: h.hosts, Bootstrap: h.first, Dir: dir}); err == nil || !strings.Contains(err.Error(), "0640") {
		t.Errorf("a key that others can read is used: %v", err)
	}
}

// TestHalfWritten: whoever reads while files are replaced keeps the pair that it has.
func TestHalfWritten(t *testing.T) {
	h := newFakeHost(t, time.Hour, "/host/h1")
	h.uses = 2
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	one, err := identity.Bootstrap(ctx, h.first, identity.Request{Token: "good"})
	fatal(t, err)
	two, err := identity.Bootstrap(ctx, h.first, identity.Request{Token: "good"})
	fatal(t, err)
	dir, next := t.TempDir(), filepath.Join(t.TempDir(), "next")
	fatal(t, os.Chmod(dir, 0o700))
	fatal(t, identity.Save(dir, one))
	fatal(t, identity.Save(next, two))
	failed := make(chan error, 100)
	files, err := svidfile.Open(dir, svidfile.Options{Every: 5 * time.Millisecond, Failed: func(err error) { failed <- err }})
	fatal(t, err)
	defer func() { _ = files.Close() }()
	serial := func() string {
		own, err := files.GetX509SVID()
		fatal(t, err)
		return own.Certificates[0].SerialNumber.String()
	}
	fatal(t, os.Rename(filepath.Join(next, svidfile.KeyFile), filepath.Join(dir, svidfile.KeyFile)))
	select {
	case err := <-failed:
		if serial() != one.X509.Certificates[0].SerialNumber.String() {
			t.Errorf("a half of a pair is used: %v", err)
		}
	case <-time.After(time.Minute):
		t.Fatal("nothing was said of a key that is another certificate's")
	}
	fatal(t, identity.Save(dir, two))
	until(t, "the whole pair", func() bool { return serial() == two.X509.Certificates[0].SerialNumber.String() })
}

// TestPeers: the other side has to be a host of the own trust domain.
func TestPeers(t *testing.T) {
	for path, want := range map[string]bool{"/host/h1": true, "/svc/web": false, "/admin/host": false, "/host/a/b": false, "/prod/worker/host": false} {
		h := newFakeHost(t, time.Hour, path)
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		s, err := identity.Bootstrap(ctx, h.first, identity.Request{Token: "good"})
		fatal(t, err)
		conn, err := tls.Dial("tcp", h.hosts, alpn(identity.ClientTLS(svidtest.Source{SVID: s.X509, Bundle: s.Bundle})))
		if (err == nil) != want {
			t.Errorf("a peer that is %s: %v", path, err)
		}
		if err == nil {
			if v := conn.ConnectionState().Version; v != tls.VersionTLS13 {
				t.Errorf("the version is %x", v)
			}
			_ = conn.Close()
		}
		cancel()
		h.leave()
	}
}

func alpn(c *tls.Config) *tls.Config { c.NextProtos = []string{"h2"}; return c }
