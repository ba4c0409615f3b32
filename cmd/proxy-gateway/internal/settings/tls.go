package settings

import (
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/spiffe/go-spiffe/v2/bundle/x509bundle"
	"github.com/spiffe/go-spiffe/v2/spiffeid"
	"github.com/spiffe/go-spiffe/v2/svid/x509svid"
)

// Files are where this gateway's identity lies. They are read anew for each connection to
// the control plane, so that they can be replaced while it runs. Files is a source of
// go-spiffe.
type Files struct{ Cert, Key, CA string }

// GetX509SVID implements x509svid.Source.
func (f *Files) GetX509SVID() (*x509svid.SVID, error) { return x509svid.Load(f.Cert, f.Key) }

// GetX509BundleForTrustDomain implements x509bundle.Source.
func (f *Files) GetX509BundleForTrustDomain(domain spiffeid.TrustDomain) (*x509bundle.Bundle, error) {
	return x509bundle.Load(domain, f.CA)
}

// Check reads the files once. A key that others can read is refused.
func (f *Files) Check() error {
	if info, err := os.Stat(f.Key); err == nil && info.Mode().Perm()&0o077 != 0 {
		return fmt.Errorf("controlPlane.gatewayTLS.key: %[1]s has mode %04[2]o, others than its owner must not be able to use it: chmod 600 %[1]s", f.Key, info.Mode().Perm())
	}
	s, err := f.GetX509SVID()
	if err != nil {
		return fmt.Errorf("controlPlane.gatewayTLS.cert and key: %w", err)
	}
	if _, err := f.GetX509BundleForTrustDomain(s.ID.TrustDomain()); err != nil {
		return fmt.Errorf("controlPlane.gatewayTLS.ca: %w", err)
	}
	return nil
}

// WorkerID is the worker that the certificate is of: it has exactly one URI that ends in
// /worker/<worker-id>.
func (f *Files) WorkerID() (string, error) {
	text, err := os.ReadFile(f.Cert)
	if err != nil {
		return "", err
	}
	block, _ := pem.Decode(text)
	if block == nil {
		return "", fmt.Errorf("%s has no certificate", f.Cert)
	}
	leaf, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		return "", fmt.Errorf("%s: %w", f.Cert, err)
	}
	var ids []string
	for _, uri := range leaf.URIs {
		parts := strings.Split(strings.TrimPrefix(uri.Path, "/"), "/")
		if uri.Scheme == "spiffe" && len(parts) == 3 && parts[0] != "" && parts[1] == "worker" && parts[2] != "" {
			ids = append(ids, parts[2])
		}
	}
	if len(ids) != 1 {
		return "", errors.New(f.Cert + fmt.Sprintf(" has %d URIs like spiffe://<trust domain>/<environment>/worker/<worker id>: it has to have one", len(ids)))
	}
	return ids[0], nil
}
