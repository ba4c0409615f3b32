package identity

import (
	"bytes"
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rsa"
	"crypto/x509"
	"encoding/asn1"
	"encoding/pem"
	"errors"
	"fmt"
	"strings"
)

// MaxCSRLen bounds a certificate request, in bytes of PEM.
const MaxCSRLen = 16 << 10

const (
	minRSA = 2048
	maxRSA = 8192 // larger ones only cost time

	maxAsked = 1 << 10 // bytes of what a request asked for in an audit entry
)

// A CSR is a checked certificate request: whoever sent it has the key. Nothing else
// that it says is heeded.
type CSR struct {
	Key   crypto.PublicKey
	Asked string // the names and rights that it asked for, for the audit log; at most 1 KiB
}

// ParseCSR checks a PKCS#10 request: one PEM block, signed by its own key, which is of a
// kind that is allowed. The error continues the field's name.
func ParseCSR(text []byte) (*CSR, error) {
	if len(text) > MaxCSRLen {
		return nil, fmt.Errorf("has %d bytes: allowed are at most %d", len(text), MaxCSRLen)
	}
	const head = "-----BEGIN CERTIFICATE REQUEST-----"
	trimmed := bytes.TrimSpace(text)
	block, rest := pem.Decode(trimmed)
	if !bytes.HasPrefix(trimmed, []byte(head)) || block == nil || block.Type != "CERTIFICATE REQUEST" {
		return nil, errors.New("is no PKCS#10 request in PEM: allowed is one block CERTIFICATE REQUEST")
	}
	if len(bytes.TrimSpace(rest)) > 0 {
		return nil, errors.New("has something after its first PEM block: allowed is one block CERTIFICATE REQUEST")
	}
	req, err := x509.ParseCertificateRequest(block.Bytes)
	if err != nil {
		return nil, errors.New("does not parse as a PKCS#10 request: make it with a current tool")
	}
	if err := checkKey(req.PublicKey); err != nil {
		return nil, err
	}
	switch req.SignatureAlgorithm {
	case x509.SHA1WithRSA, x509.ECDSAWithSHA1, x509.MD5WithRSA, x509.UnknownSignatureAlgorithm:
		return nil, errors.New("is signed in a way that is too weak or not known: sign it with SHA-256 or better")
	}
	if err := req.CheckSignature(); err != nil {
		return nil, errors.New("is not signed by its own key")
	}
	return &CSR{Key: req.PublicKey, Asked: asked(req)}, nil
}

// checkKey refuses a public key that an SVID must not have.
func checkKey(key crypto.PublicKey) error {
	switch k := key.(type) {
	case *ecdsa.PublicKey:
		if k.Curve == elliptic.P256() || k.Curve == elliptic.P384() {
			return nil
		}
	case ed25519.PublicKey:
		return nil
	case *rsa.PublicKey:
		if n := k.N.BitLen(); n >= minRSA && n <= maxRSA {
			return nil
		}
	}
	return fmt.Errorf("has a key that is not allowed: allowed are P-256, P-384, Ed25519 and RSA of %d to %d bits", minRSA, maxRSA)
}

var (
	oidExtensionBasicConstraints = asn1.ObjectIdentifier{2, 5, 29, 19}
	oidExtensionSAN              = asn1.ObjectIdentifier{2, 5, 29, 17}
)

// asked is what a request would have liked, in short.
func asked(req *x509.CertificateRequest) string {
	var all []string
	if len(req.Subject.Names) > 0 {
		all = append(all, "subject "+req.Subject.String())
	}
	for _, u := range req.URIs {
		all = append(all, "uri "+u.String())
	}
	for _, d := range req.DNSNames {
		all = append(all, "dns "+d)
	}
	for _, ip := range req.IPAddresses {
		all = append(all, "ip "+ip.String())
	}
	for _, m := range req.EmailAddresses {
		all = append(all, "email "+m)
	}
	for _, e := range req.Extensions {
		switch {
		case e.Id.Equal(oidExtensionBasicConstraints):
			all = append(all, "basic constraints")
		case !e.Id.Equal(oidExtensionSAN):
			all = append(all, "extension "+e.Id.String())
		}
	}
	if len(all) == 0 {
		return ""
	}
	text := strings.ToValidUTF8(strings.Join(all, "; "), "\uFFFD")
	if len(text) > maxAsked {
		text = strings.ToValidUTF8(text[:maxAsked-len("…")], "") + "…"
	}
	return text
}
