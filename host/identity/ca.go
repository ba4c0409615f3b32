package identity

import (
	"bytes"
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/hex"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"net/url"
	"time"

	"github.com/dodona-project/dodona/host/refusal"
)

const (
	caLife = 10 * 365 * 24 * time.Hour

	// backdate is how long before its issue an SVID is valid, for clocks that are
	// behind.
	backdate = time.Minute
	// Margin is how long before its issuer an SVID ends at the latest.
	Margin = time.Minute
)

// CA is a certificate authority: its certificate, signed by itself, and its key.
// Immutable.
type CA struct {
	Certificate *x509.Certificate
	KeyID       string // "sha256:" and the hex digest of its public key
	key         crypto.Signer
}

// NewCA makes an authority of a trust domain with a P-256 key.
func NewCA(trustDomain string, now time.Time) (*CA, error) { return newCA(trustDomain, now, caLife) }

func newCA(trustDomain string, now time.Time, life time.Duration) (*CA, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	serial, err := newSerial()
	if err != nil {
		return nil, err
	}
	spki, err := x509.MarshalPKIXPublicKey(key.Public())
	if err != nil {
		return nil, err
	}
	id := sha256.Sum256(spki)
	template := &x509.Certificate{
		SerialNumber: serial,
		// Each authority has a name of its own, so that chains are found by name, too.
		Subject:               pkix.Name{CommonName: "Dodona authority " + hex.EncodeToString(id[:8])},
		URIs:                  []*url.URL{{Scheme: "spiffe", Host: trustDomain}},
		NotBefore:             now.Add(-backdate),
		NotAfter:              now.Add(life),
		KeyUsage:              x509.KeyUsageCertSign | x509.KeyUsageCRLSign,
		BasicConstraintsValid: true, IsCA: true, MaxPathLenZero: true,
		SubjectKeyId: id[:20],
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		return nil, err
	}
	return caOf(trustDomain, der, key)
}

// ParseCA reads an authority from PEM: a block CERTIFICATE in certs and a block PRIVATE
// KEY, EC PRIVATE KEY or RSA PRIVATE KEY in keys, each the only one. The two may be the
// same text. The error says what does not hold, and nothing of the key.
func ParseCA(trustDomain string, certs, keys []byte) (*CA, error) {
	der, err := onlyBlock(certs, "CERTIFICATE")
	if err != nil {
		return nil, err
	}
	block, err := onlyBlock(keys, "PRIVATE KEY", "EC PRIVATE KEY", "RSA PRIVATE KEY")
	if err != nil {
		return nil, err
	}
	key, err := parseKey(block)
	if err != nil {
		return nil, err
	}
	return caOf(trustDomain, der.Bytes, key)
}

// onlyBlock finds the one block of these types; blocks of other types are no harm.
func onlyBlock(text []byte, types ...string) (found *pem.Block, err error) {
	for rest := text; ; {
		var block *pem.Block
		if block, rest = pem.Decode(rest); block == nil {
			break
		}
		for _, t := range types {
			if block.Type != t {
				continue
			}
			if found != nil {
				return nil, fmt.Errorf("has two blocks %s: allowed is one", t)
			}
			found = block
		}
	}
	if found == nil {
		return nil, fmt.Errorf("has no block %s in PEM", types[0])
	}
	return found, nil
}

func parseKey(block *pem.Block) (crypto.Signer, error) {
	var key any
	var err error
	switch {
	case block.Headers["Proc-Type"] != "":
		return nil, errors.New("has a private key that is encrypted: allowed is one in clear, in a file for its owner only")
	case block.Type == "EC PRIVATE KEY":
		key, err = x509.ParseECPrivateKey(block.Bytes)
	case block.Type == "RSA PRIVATE KEY":
		key, err = x509.ParsePKCS1PrivateKey(block.Bytes)
	default:
		key, err = x509.ParsePKCS8PrivateKey(block.Bytes)
	}
	signer, ok := key.(crypto.Signer)
	if err != nil || !ok {
		return nil, errors.New("has a private key that does not parse")
	}
	return signer, nil
}

// caOf joins a certificate and its key and checks that they are an authority.
func caOf(trustDomain string, der []byte, key crypto.Signer) (*CA, error) {
	cert, err := parseAuthority(trustDomain, der)
	if err != nil {
		return nil, err
	}
	pub, ok := cert.PublicKey.(interface{ Equal(crypto.PublicKey) bool })
	if !ok || !pub.Equal(key.Public()) {
		return nil, errors.New("has a private key that is not the certificate's")
	}
	return &CA{Certificate: cert, KeyID: keyID(cert), key: key}, nil
}

// parseAuthority reads the certificate of an authority of the trust domain.
func parseAuthority(trustDomain string, der []byte) (*x509.Certificate, error) {
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, errors.New("has a certificate that does not parse")
	}
	want := scheme + trustDomain
	switch {
	case !cert.BasicConstraintsValid || !cert.IsCA || cert.KeyUsage&x509.KeyUsageCertSign == 0:
		return nil, errors.New("has a certificate that is no authority's: it needs CA true and the key usage certificate sign")
	case len(cert.URIs) != 1 || cert.URIs[0].String() != want:
		return nil, fmt.Errorf("has a certificate of another trust domain: its one URI has to be %s", want)
	case len(cert.SubjectKeyId) == 0:
		return nil, errors.New("has a certificate without a subject key id")
	case !bytes.Equal(cert.RawIssuer, cert.RawSubject) || cert.CheckSignatureFrom(cert) != nil:
		return nil, errors.New("has a certificate that is not signed by itself: an authority above it is not taken")
	}
	if err := checkKey(cert.PublicKey); err != nil {
		return nil, err
	}
	return cert, nil
}

func keyID(cert *x509.Certificate) string {
	sum := sha256.Sum256(cert.RawSubjectPublicKeyInfo)
	return "sha256:" + hex.EncodeToString(sum[:])
}

// pem is the certificate and the key, as ParseCA reads them.
func (ca *CA) pem() ([]byte, error) {
	key, err := x509.MarshalPKCS8PrivateKey(ca.key)
	if err != nil {
		return nil, err
	}
	return append(certPEM(ca.Certificate.Raw), pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: key})...), nil
}

func certPEM(der []byte) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
}

// Leaf is the certificate of an SVID.
type Leaf struct {
	Raw      []byte // DER
	Serial   *big.Int
	NotAfter time.Time
}

// Sign makes the SVID of id for a key: valid from a minute ago, for ttl and not past the
// authority. It is refused when less than least would be left. What the SVID says
// comes from id alone.
func (ca *CA) Sign(id ID, key crypto.PublicKey, now time.Time, ttl, least time.Duration) (*Leaf, error) {
	end := now.Add(ttl).UTC().Truncate(time.Second) // as a certificate has it
	if last := ca.Certificate.NotAfter.Add(-Margin); end.After(last) {
		end = last
	}
	if end.Sub(now) < least {
		return nil, refusal.New(refusal.Precondition, "the authority ends at %s, and less than %s would be left of an SVID: put another in its place, with \"dona svid ca prepare\" and \"activate\", or while the host does not run with dona-host operator --new-authority",
			ca.Certificate.NotAfter.UTC().Format(time.RFC3339), least)
	}
	serial, err := newSerial()
	if err != nil {
		return nil, err
	}
	leaf := &x509.Certificate{
		SerialNumber:          serial,
		Subject:               pkix.Name{Organization: []string{"Dodona"}},
		URIs:                  []*url.URL{{Scheme: "spiffe", Host: id.TrustDomain, Path: "/" + id.Path()}},
		NotBefore:             now.Add(-backdate),
		NotAfter:              end,
		KeyUsage:              x509.KeyUsageDigitalSignature,
		ExtKeyUsage:           []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
		BasicConstraintsValid: true,
	}
	if id.Kind == Service {
		leaf.DNSNames = []string{id.Name}
	}
	der, err := x509.CreateCertificate(rand.Reader, leaf, ca.Certificate, key, ca.key)
	if err != nil {
		return nil, fmt.Errorf("sign an SVID: %w", err)
	}
	return &Leaf{Raw: der, Serial: serial, NotAfter: end}, nil
}

// newSerial is 128 random bits, and not zero.
func newSerial() (*big.Int, error) {
	var b [16]byte
	if _, err := rand.Read(b[:]); err != nil {
		return nil, err
	}
	n := new(big.Int).SetBytes(b[:])
	if n.Sign() == 0 {
		n.SetInt64(1)
	}
	return n, nil
}
