// Package svidtest makes certificate authorities and X.509-SVIDs for tests: good
// ones, and any kind of bad one. Keys are never written but by Write, and nothing
// of it outlives the test.
package svidtest

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"math/big"
	"net/url"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/spiffe/go-spiffe/v2/bundle/x509bundle"
	"github.com/spiffe/go-spiffe/v2/spiffeid"
	"github.com/spiffe/go-spiffe/v2/svid/x509svid"
)

// CA is an authority of one trust domain. It is safe for concurrent use.
type CA struct {
	t      testing.TB
	domain spiffeid.TrustDomain
	cert   *x509.Certificate
	key    crypto.Signer
}

// NewCA makes an authority that is valid for a day.
func NewCA(t testing.TB, trustDomain string) *CA {
	t.Helper()
	domain, err := spiffeid.TrustDomainFromString(trustDomain)
	fatal(t, err)
	ca := &CA{t: t, domain: domain, key: newKey(t)}
	template := &x509.Certificate{
		SerialNumber: serial(t), URIs: []*url.URL{domain.ID().URL()}, NotBefore: time.Now().Add(-time.Minute), NotAfter: time.Now().Add(24 * time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageCRLSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, ca.key.Public(), ca.key)
	fatal(t, err)
	ca.cert, err = x509.ParseCertificate(der)
	fatal(t, err)
	return ca
}

// Issue makes an SVID for an hour. path is "/svc/checkout" or the like; each change
// may turn the certificate into what it likes: the result is not checked.
func (ca *CA) Issue(path string, changes ...func(*x509.Certificate)) *x509svid.SVID {
	ca.t.Helper()
	id, err := spiffeid.FromPath(ca.domain, path)
	fatal(ca.t, err)
	template := &x509.Certificate{
		SerialNumber: serial(ca.t), URIs: []*url.URL{id.URL()}, NotBefore: time.Now().Add(-time.Minute), NotAfter: time.Now().Add(time.Hour),
		BasicConstraintsValid: true, KeyUsage: x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}
	for _, change := range changes {
		change(template)
	}
	key := newKey(ca.t)
	return &x509svid.SVID{ID: id, Certificates: []*x509.Certificate{ca.Sign(template, key.Public())}, PrivateKey: key}
}

// Sign makes a certificate of the authority for a key, from a template that is taken as
// it is.
func (ca *CA) Sign(template *x509.Certificate, key crypto.PublicKey) *x509.Certificate {
	ca.t.Helper()
	der, err := x509.CreateCertificate(rand.Reader, template, ca.cert, key, ca.key)
	fatal(ca.t, err)
	leaf, err := x509.ParseCertificate(der)
	fatal(ca.t, err)
	return leaf
}

// Lasting is a change that ends the certificate after d.
func Lasting(d time.Duration) func(*x509.Certificate) {
	return func(c *x509.Certificate) { c.NotAfter = time.Now().Add(d) }
}

// Bundle is what those hold who trust the authority.
func (ca *CA) Bundle() *x509bundle.Bundle {
	return x509bundle.FromX509Authorities(ca.domain, []*x509.Certificate{ca.cert})
}

// Source is an identity as TLS takes it: an SVID, and whom it trusts.
type Source struct {
	*x509svid.SVID
	*x509bundle.Bundle
}

// Source is an identity of the authority that trusts it.
func (ca *CA) Source(path string, changes ...func(*x509.Certificate)) Source {
	ca.t.Helper()
	return Source{ca.Issue(path, changes...), ca.Bundle()}
}

// Self is an identity whose certificate is signed by its own key, of an authority that
// did not sign it.
func (ca *CA) Self(path string) Source {
	ca.t.Helper()
	s := ca.Source(path)
	template := s.Certificates[0]
	der, err := x509.CreateCertificate(rand.Reader, template, template, s.PrivateKey.Public(), s.PrivateKey)
	fatal(ca.t, err)
	leaf, err := x509.ParseCertificate(der)
	fatal(ca.t, err)
	s.SVID = &x509svid.SVID{ID: s.ID, Certificates: []*x509.Certificate{leaf}, PrivateKey: s.PrivateKey}
	return s
}

// Write puts an identity into dir as cert.pem, key.pem and bundle.pem, each as one
// step. dir is made when it is not there.
func (s Source) Write(t testing.TB, dir string) {
	t.Helper()
	fatal(t, os.MkdirAll(dir, 0o700))
	var chain []byte
	for _, c := range s.Certificates {
		chain = append(chain, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: c.Raw})...)
	}
	key, err := x509.MarshalPKCS8PrivateKey(s.PrivateKey)
	fatal(t, err)
	bundle, err := s.Marshal()
	fatal(t, err)
	for name, data := range map[string][]byte{
		"cert.pem": chain, "key.pem": pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: key}), "bundle.pem": bundle,
	} {
		tmp := filepath.Join(dir, "."+name)
		fatal(t, os.WriteFile(tmp, data, 0o600))
		fatal(t, os.Rename(tmp, filepath.Join(dir, name)))
	}
}

// Marshal is the bundle in PEM.
func (s Source) Marshal() ([]byte, error) { return s.Bundle.Marshal() }

func newKey(t testing.TB) *ecdsa.PrivateKey {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	fatal(t, err)
	return key
}

func serial(t testing.TB) *big.Int {
	t.Helper()
	n, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 127))
	fatal(t, err)
	return n.Add(n, big.NewInt(1))
}

func fatal(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
