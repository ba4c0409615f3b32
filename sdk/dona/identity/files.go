package identity

import (
	"crypto/x509"
	"encoding/pem"
	"errors"
	"os"
	"path/filepath"
	"time"

	"github.com/dodona-project/dodona/sdk/dona/svidfile"
)

// Save writes an SVID into a folder, which it makes, for its owner only, as svidfile
// reads it. Each file is replaced as one step; who reads while they are replaced sees
// that they do not belong together.
func Save(dir string, s *SVID) error {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	key, err := x509.MarshalPKCS8PrivateKey(s.X509.PrivateKey)
	if err != nil {
		return err
	}
	var certs, bundle []byte
	for _, c := range s.X509.Certificates {
		certs = append(certs, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: c.Raw})...)
	}
	for _, c := range s.Bundle.X509Authorities() {
		bundle = append(bundle, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: c.Raw})...)
	}
	for _, f := range []struct {
		name string
		text []byte
	}{{svidfile.BundleFile, bundle}, {svidfile.KeyFile, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: key})}, {svidfile.CertFile, certs}} {
		if err := replace(filepath.Join(dir, f.name), f.text); err != nil {
			return err
		}
	}
	return nil
}

func replace(name string, text []byte) error {
	tmp, err := os.CreateTemp(filepath.Dir(name), "."+filepath.Base(name)+".*") // 0600
	if err != nil {
		return err
	}
	defer func() { _ = os.Remove(tmp.Name()) }()
	_, err = tmp.Write(text)
	if err := errors.Join(err, tmp.Sync(), tmp.Close()); err != nil {
		return err
	}
	return os.Rename(tmp.Name(), name)
}

// load reads what Save has written, when it is valid now.
func load(dir string) (*SVID, error) {
	files, err := svidfile.Open(dir, svidfile.Options{})
	if err != nil {
		return nil, err
	}
	defer func() { _ = files.Close() }()
	own, err := files.GetX509SVID()
	if err != nil {
		return nil, err
	}
	bundle, err := files.GetX509BundleForTrustDomain(own.ID.TrustDomain())
	if err != nil {
		return nil, err
	}
	return &SVID{X509: own, Bundle: bundle, got: time.Now()}, nil
}
