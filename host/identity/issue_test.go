package identity_test

import (
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/asn1"
	"encoding/pem"
	"net"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/dodona-project/dodona/host/identity"
	"github.com/dodona-project/dodona/host/refusal"
)

// TestLeaf: what an SVID says, for each kind of identity and of key, and that go-spiffe
// and OpenSSL take it.
func TestLeaf(t *testing.T) {
	i := open(t, options(t, memory(t)))
	p384, err := ecdsa.GenerateKey(elliptic.P384(), rand.Reader)
	fatal(t, err)
	_, ed, err := ed25519.GenerateKey(rand.Reader)
	fatal(t, err)
	rsaKey, err := rsa.GenerateKey(rand.Reader, 2048)
	fatal(t, err)
	serials := map[string]bool{}
	for _, tc := range []struct {
		service, path string
		csr           []byte
	}{
		{"checkout", "", plain(t)},
		{"", "prod/worker/w1", request(t, p384, x509.CertificateRequest{})},
		{"", "prod/checker/c1", request(t, ed, x509.CertificateRequest{})},
		{"", "admin/alice", request(t, rsaKey, x509.CertificateRequest{})},
		{"", "host/0123456789abcdef", plain(t)},
	} {
		token, err := i.CreateToken(t.Context(), "local:dev", identity.TokenRequest{Service: tc.service, Path: tc.path})
		fatal(t, err)
		began := time.Now()
		s, err := i.WithToken(t.Context(), token.Text, identity.Request{Service: tc.service, Path: tc.path, CSR: tc.csr})
		fatal(t, err)
		leaf := issued(t, s)
		want := "spiffe://example.org/" + tc.path
		var dns []string
		if tc.service != "" {
			want, dns = "spiffe://example.org/svc/"+tc.service, []string{tc.service}
		}
		if len(leaf.URIs) != 1 || leaf.URIs[0].String() != want || !slices.Equal(leaf.DNSNames, dns) || len(leaf.IPAddresses)+len(leaf.EmailAddresses) > 0 {
			t.Errorf("%s: names are %v, %v, %v, %v", want, leaf.URIs, leaf.DNSNames, leaf.IPAddresses, leaf.EmailAddresses)
		}
		if leaf.IsCA || !leaf.BasicConstraintsValid || leaf.KeyUsage != x509.KeyUsageDigitalSignature ||
			!slices.Equal(leaf.ExtKeyUsage, []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth}) {
			t.Errorf("%s: CA %t, usages %v %v", want, leaf.IsCA, leaf.KeyUsage, leaf.ExtKeyUsage)
		}
		for _, e := range leaf.Extensions {
			if e.Id.Equal(asn1.ObjectIdentifier{2, 5, 29, 15}) && !e.Critical {
				t.Errorf("%s: the key usage is not critical", want)
			}
		}
		if n := leaf.SerialNumber.BitLen(); n > 128 || n < 64 || leaf.SerialNumber.Sign() <= 0 || serials[leaf.SerialNumber.String()] {
			t.Errorf("%s: the serial %s has %d bits, or is not new", want, leaf.SerialNumber, n)
		}
		serials[leaf.SerialNumber.String()] = true
		if d := began.Sub(leaf.NotBefore); d < 58*time.Second || d > 62*time.Second {
			t.Errorf("%s: it is valid since %s before its issue", want, d)
		}
		if d := leaf.NotAfter.Sub(began); d < time.Hour-2*time.Second || d > time.Hour+time.Minute || !leaf.NotAfter.Equal(s.Expires) {
			t.Errorf("%s: it is valid for %s, said to end %s", want, d, s.Expires)
		}
		if len(s.Key) > 0 {
			t.Errorf("%s: a key was sent that the host does not have", want)
		}
		opensslVerify(t, s)
	}
}

func opensslVerify(t *testing.T, s *identity.SVID) {
	t.Helper()
	dir := t.TempDir()
	fatal(t, os.WriteFile(filepath.Join(dir, "cert.pem"), s.Cert, 0o600))
	fatal(t, os.WriteFile(filepath.Join(dir, "bundle.pem"), s.Bundle, 0o600))
	cmd := exec.Command("openssl", "verify", "-x509_strict", "-CAfile", "bundle.pem", "cert.pem")
	cmd.Dir = dir
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("openssl: %v\n%s", err, out)
	}
}

// TestForeignWishes: whatever a request asks for, the SVID says what the host decides,
// and the wish is in the audit log.
func TestForeignWishes(t *testing.T) {
	st := memory(t)
	i := open(t, options(t, st))
	constraints, err := asn1.Marshal(struct {
		CA bool
	}{true})
	fatal(t, err)
	csr := request(t, newKey(t), x509.CertificateRequest{
		Subject:     pkix.Name{CommonName: "admin", Organization: []string{"Evil"}},
		URIs:        []*url.URL{{Scheme: "spiffe", Host: domain, Path: "/admin/root"}, {Scheme: "spiffe", Host: "other.org", Path: "/svc/a"}},
		DNSNames:    []string{"bank.example"},
		IPAddresses: []net.IP{net.IPv4(10, 0, 0, 1)}, EmailAddresses: []string{"a@b.c"},
		ExtraExtensions: []pkix.Extension{{Id: asn1.ObjectIdentifier{2, 5, 29, 19}, Critical: true, Value: constraints}},
	})
	s, err := i.WithToken(t.Context(), tokenFor(t, i, "checkout", 1).Text, identity.Request{Service: "checkout", CSR: csr})
	fatal(t, err)
	leaf := issued(t, s)
	if leaf.IsCA || len(leaf.URIs) != 1 || leaf.URIs[0].String() != "spiffe://example.org/svc/checkout" || !slices.Equal(leaf.DNSNames, []string{"checkout"}) ||
		len(leaf.IPAddresses)+len(leaf.EmailAddresses) > 0 || leaf.Subject.String() != "O=Dodona" {
		t.Errorf("the SVID says CA %t, %v, %v, %v, %v, %s", leaf.IsCA, leaf.URIs, leaf.DNSNames, leaf.IPAddresses, leaf.EmailAddresses, leaf.Subject)
	}
	lines := entries(t, st, "svid.issue")
	if len(lines) != 1 {
		t.Fatalf("%d entries: %s", len(lines), lines)
	}
	for _, part := range []string{"CN=admin,O=Evil", "uri spiffe://example.org/admin/root", "uri spiffe://other.org/svc/a", "dns bank.example", "ip 10.0.0.1", "email a@b.c", "basic constraints",
		`"spiffe_id":"spiffe://example.org/svc/checkout"`, `"actor":"spiffe://example.org/svc/checkout"`, `"via":"token `} {
		if !strings.Contains(lines[0], part) {
			t.Errorf("the entry has no %s: %s", part, lines[0])
		}
	}
	long := request(t, newKey(t), x509.CertificateRequest{DNSNames: slices.Repeat([]string{"a.very.long.name.example"}, 400)})
	if _, err := i.WithToken(t.Context(), tokenFor(t, i, "checkout", 1).Text, identity.Request{CSR: long}); err != nil {
		t.Error(err)
	}
	if lines := entries(t, st, "svid.issue"); len(lines) != 2 || len(lines[1]) > 2<<10 {
		t.Errorf("a long wish makes an entry of %d bytes", len(lines[len(lines)-1]))
	}
}

// TestRequestsThatDoNotHold: each is refused by its field, and takes no use of the
// token.
func TestRequestsThatDoNotHold(t *testing.T) {
	st := memory(t)
	i := open(t, options(t, st))
	token := tokenFor(t, i, "checkout", 1)
	good := plain(t)
	block, _ := pem.Decode(good)
	flipped := slices.Clone(block.Bytes)
	flipped[len(flipped)-1] ^= 1
	asPEM := func(kind string, der []byte) []byte { return pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}) }
	p224, err := ecdsa.GenerateKey(elliptic.P224(), rand.Reader)
	fatal(t, err)
	p521, err := ecdsa.GenerateKey(elliptic.P521(), rand.Reader)
	fatal(t, err)
	t.Setenv("GODEBUG", "rsa1024min=0")
	weak, err := rsa.GenerateKey(rand.Reader, 1024)
	fatal(t, err)
	strong, err := rsa.GenerateKey(rand.Reader, 2048)
	fatal(t, err)
	for name, csr := range map[string][]byte{
		"none":                        nil,
		"no PEM":                      []byte("hello"),
		"DER":                         block.Bytes,
		"another type":                asPEM("CERTIFICATE", block.Bytes),
		"no request inside":           asPEM("CERTIFICATE REQUEST", []byte("hello")),
		"two blocks":                  append(slices.Clone(good), good...),
		"text before":                 append([]byte("x\n"), good...),
		"text after":                  append(slices.Clone(good), "x"...),
		"bytes after the request":     asPEM("CERTIFICATE REQUEST", append(slices.Clone(block.Bytes), 0)),
		"a signature that is not its": asPEM("CERTIFICATE REQUEST", flipped),
		"P-224":                       request(t, p224, x509.CertificateRequest{}),
		"P-521":                       request(t, p521, x509.CertificateRequest{}),
		"RSA of 1024 bits":            request(t, weak, x509.CertificateRequest{}),
		"SHA-1":                       sha1Request(t, strong),
		"16 KiB and a byte":           append(slices.Clone(good), make([]byte, identity.MaxCSRLen+1-len(good))...),
		"2 MB":                        make([]byte, 2<<20),
	} {
		_, err := i.WithToken(t.Context(), token.Text, identity.Request{Service: "checkout", CSR: csr})
		if e := wantRefusal(t, err, refusal.Invalid); e.Field != "csr_pem" {
			t.Errorf("%s: refused for %s: %v", name, e.Field, e)
		}
	}
	for _, tc := range []struct{ service, path, field string }{
		{"checkout", "admin/a", "path"}, {"../x", "", "service"}, {"a%2Fb", "", "service"}, {"Checkout", "", "service"}, {strings.Repeat("a", 64), "", "service"},
		{"", "svc/checkout", "path"}, {"", "../x", "path"}, {"", "prod/worker/..", "path"}, {"", "prod/worker/a%2Fb", "path"}, {"", "prod//worker/a", "path"}, {"", "/admin/a", "path"},
		{"", "prod/worker/" + strings.Repeat("a", 2048), "path"},
	} {
		_, err := i.WithToken(t.Context(), token.Text, identity.Request{Service: tc.service, Path: tc.path, CSR: good})
		if e := wantRefusal(t, err, refusal.Invalid); e.Field != tc.field {
			t.Errorf("%q, %q: refused for %s: %v", tc.service, tc.path, e.Field, e)
		}
		_, err = i.CreateToken(t.Context(), "local:dev", identity.TokenRequest{Service: tc.service, Path: tc.path})
		if e := wantRefusal(t, err, refusal.Invalid); e.Field != tc.field {
			t.Errorf("a token for %q, %q: refused for %s: %v", tc.service, tc.path, e.Field, e)
		}
	}
	if lines := entries(t, st, "svid.issue"); len(lines) > 0 {
		t.Errorf("issued: %s", lines)
	}
	exact := append(slices.Clone(good), []byte(strings.Repeat("\n", identity.MaxCSRLen-len(good)))...)
	if _, err := i.WithToken(t.Context(), token.Text, identity.Request{Service: "checkout", CSR: exact}); err != nil {
		t.Errorf("the token does no more after refusals, or 16 KiB are too much: %v", err)
	}
}

// sha1Request is signed with SHA-1, which the standard library does not make: OpenSSL does.
func sha1Request(t *testing.T, key *rsa.PrivateKey) []byte {
	t.Helper()
	name := filepath.Join(t.TempDir(), "key.pem")
	fatal(t, os.WriteFile(name, pem.EncodeToMemory(&pem.Block{Type: "RSA PRIVATE KEY", Bytes: x509.MarshalPKCS1PrivateKey(key)}), 0o600))
	out, err := exec.Command("openssl", "req", "-new", "-sha1", "-subj", "/CN=x", "-key", name).Output()
	fatal(t, err)
	return out
}

// TestHostKeys: a host that may makes the key, and it is the certificate's.
func TestHostKeys(t *testing.T) {
	o := options(t, memory(t))
	o.HostKeys = true
	i := open(t, o)
	s, err := i.WithToken(t.Context(), tokenFor(t, i, "checkout", 1).Text, identity.Request{Service: "checkout"})
	fatal(t, err)
	leaf := issued(t, s)
	block, _ := pem.Decode(s.Key)
	if block == nil || block.Type != "PRIVATE KEY" {
		t.Fatal("no key in PEM")
	}
	key, err := x509.ParsePKCS8PrivateKey(block.Bytes)
	fatal(t, err)
	if !leaf.PublicKey.(*ecdsa.PublicKey).Equal(key.(*ecdsa.PrivateKey).Public()) {
		t.Error("the key is not the certificate's")
	}
}

// TestRenewal: an SVID stands for its own identity and no other.
func TestRenewal(t *testing.T) {
	st := memory(t)
	i := open(t, options(t, st))
	me, err := identity.ParseID("spiffe://example.org/svc/checkout")
	fatal(t, err)
	for _, req := range []identity.Request{{Service: "checkout"}, {}} {
		req.CSR = plain(t)
		s, err := i.Renew(t.Context(), me, req)
		fatal(t, err)
		issued(t, s)
	}
	for _, req := range []identity.Request{{Service: "web"}, {Path: "admin/alice"}, {Path: "prod/worker/checkout"}} {
		req.CSR = plain(t)
		_, err := i.Renew(t.Context(), me, req)
		wantRefusal(t, err, refusal.Denied)
	}
	if lines := entries(t, st, "svid.issue"); len(lines) != 2 || !strings.Contains(lines[0], `"via":"renewal"`) {
		t.Errorf("entries: %s", lines)
	}
}

// FuzzCSR: nothing that is sent is a panic, and what is taken is one block.
func FuzzCSR(f *testing.F) {
	good := plain(f)
	f.Add(good)
	f.Add(append(slices.Clone(good), good...))
	f.Add([]byte("-----BEGIN CERTIFICATE REQUEST-----\n-----END CERTIFICATE REQUEST-----\n"))
	f.Fuzz(func(t *testing.T, text []byte) {
		c, err := identity.ParseCSR(text)
		if err == nil && (c.Key == nil || len(text) > identity.MaxCSRLen || strings.Count(string(text), "-----BEGIN") != 1 || len(c.Asked) > 1<<10) {
			t.Fatalf("taken: %+v", c)
		}
	})
}
