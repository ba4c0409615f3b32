package api_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"net"
	"strings"
	"testing"
	"time"

	donav1 "github.com/dodona-project/dodona/proto/dona/v1"
	"github.com/hashicorp/go-hclog"
	"github.com/spiffe/go-spiffe/v2/bundle/x509bundle"
	"github.com/spiffe/go-spiffe/v2/spiffeid"
	"github.com/spiffe/go-spiffe/v2/svid/x509svid"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/dodona-project/dodona/host/api"
	"github.com/dodona-project/dodona/host/identity"
)

// bootstrap serves the host's bootstrap listener and returns a client of it.
func (e *edge) bootstrap() donav1.IdentityClient {
	e.t.Helper()
	return donav1.NewIdentityClient(e.bootstrapConn())
}

func (e *edge) bootstrapConn() *grpc.ClientConn {
	e.t.Helper()
	conn, err := grpc.NewClient(e.bootstrapAddress(), grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithUnaryInterceptor(patient))
	fatal(e.t, err)
	e.t.Cleanup(func() { _ = conn.Close() })
	return conn
}

// bootstrapAddress is where tokens are taken until the test ends.
func (e *edge) bootstrapAddress() string {
	e.t.Helper()
	server := api.NewBootstrap(e.issuer, hclog.NewNullLogger())
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	fatal(e.t, err)
	served := make(chan struct{})
	go func() { defer close(served); _ = server.Serve(listener) }()
	e.t.Cleanup(func() { server.Stop(); <-served })
	return listener.Addr().String()
}

func newCSR(t *testing.T) []byte {
	t.Helper()
	_, csr := newCSRKey(t)
	return csr
}

func newCSRKey(t *testing.T) (*ecdsa.PrivateKey, []byte) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	fatal(t, err)
	der, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{DNSNames: []string{"bank.example"}}, key)
	fatal(t, err)
	return key, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: der})
}

// TestBootstrap: a token is good for its identity, at the listener for it and nowhere
// else, and what is wrong with one is not told.
func TestBootstrap(t *testing.T) {
	e := newEdge(t, withIssuer(identity.Options{TTL: time.Hour, MinTTL: time.Minute}))
	first := e.bootstrap()
	token, err := e.admin.CreateToken(ctx(t), &donav1.CreateTokenRequest{Service: "checkout", TtlSeconds: 600})
	fatal(t, err)
	if left := time.Until(time.Unix(token.ExpiresUnix, 0)); left < 9*time.Minute || left > 10*time.Minute || token.TokenId == "" || !strings.Contains(token.Token, token.TokenId) {
		t.Errorf("the token is %v, valid for %s", token.TokenId, left)
	}
	ask := func(change func(*donav1.IssueSvidRequest)) (*donav1.IssueSvidResponse, error) {
		req := &donav1.IssueSvidRequest{BootstrapToken: token.Token, Service: "checkout", CsrPem: newCSR(t)}
		change(req)
		return first.IssueSvid(ctx(t), req)
	}
	var denied []string
	for name, change := range map[string]func(*donav1.IssueSvidRequest){
		"no token":        func(r *donav1.IssueSvidRequest) { r.BootstrapToken = "" },
		"a wrong token":   func(r *donav1.IssueSvidRequest) { r.BootstrapToken = token.Token[:len(token.Token)-2] + "xy" },
		"another service": func(r *donav1.IssueSvidRequest) { r.Service = "web" },
		"an operator":     func(r *donav1.IssueSvidRequest) { r.Service, r.Path = "", "admin/checkout" },
	} {
		_, err := ask(change)
		refused(t, name, err, codes.PermissionDenied, "")
		denied = append(denied, status.Convert(err).Message())
	}
	for _, text := range denied {
		if text != denied[0] {
			t.Errorf("%q tells something that %q does not", text, denied[0])
		}
	}
	for name, tc := range map[string]struct {
		field  string
		change func(*donav1.IssueSvidRequest)
	}{
		"no request":  {"csr_pem", func(r *donav1.IssueSvidRequest) { r.CsrPem = nil }},
		"two":         {"csr_pem", func(r *donav1.IssueSvidRequest) { r.CsrPem = append(r.CsrPem, r.CsrPem...) }},
		"20 KiB":      {"csr_pem", func(r *donav1.IssueSvidRequest) { r.CsrPem = make([]byte, 20<<10) }},
		"dots":        {"service", func(r *donav1.IssueSvidRequest) { r.Service = "../x" }},
		"escapes":     {"path", func(r *donav1.IssueSvidRequest) { r.Service, r.Path = "", "prod/worker/a%2Fb" }},
		"both":        {"path", func(r *donav1.IssueSvidRequest) { r.Path = "admin/a" }},
		"a long path": {"path", func(r *donav1.IssueSvidRequest) { r.Service, r.Path = "", "admin/"+strings.Repeat("a", 4096) }},
	} {
		_, err := ask(tc.change)
		refused(t, name, err, codes.InvalidArgument, tc.field)
	}
	_, err = ask(func(r *donav1.IssueSvidRequest) { r.CsrPem = make([]byte, 2<<20) })
	refused(t, "2 MB", err, codes.ResourceExhausted, "")

	s, err := ask(func(*donav1.IssueSvidRequest) {})
	fatal(t, err)
	block, _ := pem.Decode(s.CertPem)
	leaf, err := x509.ParseCertificate(block.Bytes)
	fatal(t, err)
	bundle, err := x509bundle.Parse(spiffeid.RequireTrustDomainFromString("example.org"), s.BundlePem)
	fatal(t, err)
	id, _, err := x509svid.Verify([]*x509.Certificate{leaf}, bundle)
	fatal(t, err)
	if id.String() != "spiffe://example.org/svc/checkout" || s.SpiffeId != id.String() || len(s.KeyPem) > 0 || s.ExpiresUnix != leaf.NotAfter.Unix() {
		t.Errorf("issued: %v for %s", s, id)
	}
	_, err = ask(func(*donav1.IssueSvidRequest) {})
	refused(t, "a second time", err, codes.PermissionDenied, "")
	if status.Convert(err).Message() != denied[0] {
		t.Errorf("%q tells that the token was right", err)
	}
	if err := e.bootstrapConn().Invoke(ctx(t), donav1.HostAdmin_CreateToken_FullMethodName, &donav1.CreateTokenRequest{Path: "admin/eve"}, &donav1.CreateTokenReply{}); status.Code(err) != codes.Unimplemented {
		t.Errorf("the bootstrap listener serves operators: %v", err)
	}
}

// TestBootstrapRate: whoever guesses is slowed down.
func TestBootstrapRate(t *testing.T) {
	e := newEdge(t, withIssuer(identity.Options{TTL: time.Hour, MinTTL: time.Minute}))
	first := e.bootstrap()
	csr := newCSR(t)
	var limited error
	for range 3000 {
		if _, err := first.IssueSvid(ctx(t), &donav1.IssueSvidRequest{BootstrapToken: "guess", Service: "checkout", CsrPem: csr}); status.Code(err) != codes.PermissionDenied {
			limited = err
			break
		}
	}
	refused(t, "guessed without end", limited, codes.ResourceExhausted, "")
}

// TestTokenCalls: what operators may not ask of tokens and authorities, and their
// entries.
func TestTokenCalls(t *testing.T) {
	e := newEdge(t, withIssuer(identity.Options{TTL: time.Hour, MinTTL: time.Minute}))
	for name, tc := range map[string]struct {
		field string
		req   *donav1.CreateTokenRequest
	}{
		"nothing":      {"service", &donav1.CreateTokenRequest{}},
		"both":         {"path", &donav1.CreateTokenRequest{Service: "a", Path: "admin/a"}},
		"a service":    {"service", &donav1.CreateTokenRequest{Service: "A"}},
		"a path":       {"path", &donav1.CreateTokenRequest{Path: "admin/a/b"}},
		"a long life":  {"ttl_seconds", &donav1.CreateTokenRequest{Service: "a", TtlSeconds: 30*24*3600 + 1}},
		"very long":    {"ttl_seconds", &donav1.CreateTokenRequest{Service: "a", TtlSeconds: 1<<32 - 1}},
		"10,001 times": {"uses", &donav1.CreateTokenRequest{Service: "a", Uses: 10_001}},
	} {
		_, err := e.admin.CreateToken(ctx(t), tc.req)
		refused(t, name, err, codes.InvalidArgument, tc.field)
	}
	_, err := e.admin.RevokeToken(ctx(t), &donav1.RevokeTokenRequest{TokenId: "x"})
	refused(t, "no id", err, codes.InvalidArgument, "token_id")
	_, err = e.admin.RevokeToken(ctx(t), &donav1.RevokeTokenRequest{TokenId: "0123456789abcdef"})
	refused(t, "an id of nobody", err, codes.NotFound, "")
	token, err := e.admin.CreateToken(ctx(t), &donav1.CreateTokenRequest{Path: "prod/worker/w1", Uses: 3})
	fatal(t, err)
	_, err = e.admin.RevokeToken(ctx(t), &donav1.RevokeTokenRequest{TokenId: token.TokenId})
	fatal(t, err)

	for _, step := range []donav1.RolloverCARequest_Step{0, 5, -1} {
		_, err := e.admin.RolloverCA(ctx(t), &donav1.RolloverCARequest{Step: step})
		refused(t, "no step", err, codes.InvalidArgument, "step")
	}
	for _, step := range []donav1.RolloverCARequest_Step{donav1.RolloverCARequest_STEP_ACTIVATE, donav1.RolloverCARequest_STEP_RETIRE, donav1.RolloverCARequest_STEP_DROP} {
		_, err := e.admin.RolloverCA(ctx(t), &donav1.RolloverCARequest{Step: step})
		refused(t, "too early", err, codes.FailedPrecondition, "")
	}
	before, err := e.admin.GetHost(ctx(t), &donav1.GetHostRequest{})
	fatal(t, err)
	prepared, err := e.admin.RolloverCA(ctx(t), &donav1.RolloverCARequest{Step: donav1.RolloverCARequest_STEP_PREPARE})
	fatal(t, err)
	activated, err := e.admin.RolloverCA(ctx(t), &donav1.RolloverCARequest{Step: donav1.RolloverCARequest_STEP_ACTIVATE})
	fatal(t, err)
	after, err := e.admin.GetHost(ctx(t), &donav1.GetHostRequest{})
	fatal(t, err)
	if prepared.ActiveKeyId != before.Ca.ActiveKeyId || prepared.PreparedKeyId != activated.ActiveKeyId || activated.OldKeyId != before.Ca.ActiveKeyId || !proto.Equal(after.Ca, activated) {
		t.Errorf("the authorities went %v, %v, %v, %v", before.Ca, prepared, activated, after.Ca)
	}
	_, err = e.admin.RolloverCA(ctx(t), &donav1.RolloverCARequest{Step: donav1.RolloverCARequest_STEP_RETIRE})
	fatal(t, err) // it has signed nothing
}
