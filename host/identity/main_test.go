package identity_test

import (
	"context"
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/spiffe/go-spiffe/v2/bundle/x509bundle"
	"github.com/spiffe/go-spiffe/v2/spiffeid"
	"github.com/spiffe/go-spiffe/v2/svid/x509svid"
	"go.uber.org/goleak"

	"github.com/dodona-project/dodona/host/audit"
	"github.com/dodona-project/dodona/host/identity"
	"github.com/dodona-project/dodona/host/refusal"
	"github.com/dodona-project/dodona/host/store"
	"github.com/dodona-project/dodona/host/store/embedded"
)

const domain = "example.org"

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func fatal(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func memory(t *testing.T) store.Store {
	t.Helper()
	st := embedded.OpenMemory(embedded.Options{})
	t.Cleanup(func() { _ = st.Close() })
	return st
}

// options are those of a host with a data directory of its own.
func options(t *testing.T, st store.Store) identity.Options {
	t.Helper()
	return identity.Options{
		Store: audit.Guard(st), Audit: audit.New(domain), TrustDomain: domain, HostID: "0123456789abcdef", DataDir: t.TempDir(),
		TTL: time.Hour, MinTTL: 5 * time.Minute, Logger: hclog.NewNullLogger(),
	}
}

func open(t *testing.T, o identity.Options) *identity.Issuer {
	t.Helper()
	i, err := identity.Open(t.Context(), o)
	fatal(t, err)
	return i
}

// follow runs the issuer's loop until the test ends.
func follow(t *testing.T, i *identity.Issuer) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- i.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

func newKey(t testing.TB) crypto.Signer {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return key
}

// request is a CSR with whatever a test wants it to ask for.
func request(t testing.TB, key crypto.Signer, template x509.CertificateRequest) []byte {
	t.Helper()
	der, err := x509.CreateCertificateRequest(rand.Reader, &template, key)
	if err != nil {
		t.Fatal(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: der})
}

func plain(t testing.TB) []byte { return request(t, newKey(t), x509.CertificateRequest{}) }

func tokenFor(t *testing.T, i *identity.Issuer, service string, uses uint32) *identity.Token {
	t.Helper()
	token, err := i.CreateToken(t.Context(), "local:dev", identity.TokenRequest{Service: service, Uses: uses})
	fatal(t, err)
	return token
}

// issued takes an SVID apart, and judges it as any SPIFFE client would.
func issued(t *testing.T, s *identity.SVID) *x509.Certificate {
	t.Helper()
	certs := certificates(t, s.Cert)
	bundle, err := x509bundle.Parse(spiffeid.RequireTrustDomainFromString(domain), s.Bundle)
	fatal(t, err)
	id, _, err := x509svid.Verify(certs, bundle)
	fatal(t, err)
	if id.String() != s.ID.String() {
		t.Fatalf("the certificate is for %s, not %s", id, s.ID)
	}
	return certs[0]
}

func certificates(t *testing.T, text []byte) (all []*x509.Certificate) {
	t.Helper()
	for block, rest := pem.Decode(text); block != nil; block, rest = pem.Decode(rest) {
		cert, err := x509.ParseCertificate(block.Bytes)
		fatal(t, err)
		all = append(all, cert)
	}
	if len(all) == 0 {
		t.Fatal("no certificate")
	}
	return all
}

func wantRefusal(t *testing.T, err error, kind refusal.Kind) *refusal.Error {
	t.Helper()
	var e *refusal.Error
	if !errors.As(err, &e) || e.Kind != kind {
		t.Fatalf("the error is %v, want a refusal of kind %d", err, kind)
	}
	return e
}

// entries are the host chain's lines of a kind.
func entries(t *testing.T, st store.Store, kind string) (lines []string) {
	t.Helper()
	fatal(t, st.View(t.Context(), func(tx store.ReadTx) error {
		lines = nil
		all, err := tx.ReadLog("audit/"+audit.HostChain, 1, 0)
		for _, e := range all {
			if contains(e.Payload, `"kind":"`+kind+`"`) {
				lines = append(lines, string(e.Payload))
			}
		}
		return err
	}))
	return lines
}
