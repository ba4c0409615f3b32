package redis

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"os"
	"strings"
)

// maxSecret is more than any password; a file above it is another file.
const maxSecret = 4 << 10

// secretError is one of a file with a secret: nothing was sent without it.
type secretError struct{ error }

func (e *secretError) Unwrap() error { return e.error }

// readSecret returns what a password file holds, without its line break. No file,
// no password. key is the setting that names it.
func readSecret(key, name string) (string, error) {
	if name == "" {
		return "", nil
	}
	refuse := func(format string, args ...any) error {
		return &secretError{fmt.Errorf("%s: "+format, append([]any{key}, args...)...)}
	}
	info, err := os.Stat(name)
	if err != nil {
		return "", refuse("%w", err)
	}
	if !info.Mode().IsRegular() || info.Size() > maxSecret {
		return "", refuse("%s is not a file with a password of up to %d bytes", name, maxSecret)
	}
	if mode := info.Mode().Perm(); mode&0o077 != 0 {
		return "", refuse("%s has mode %04o, others than its owner must have no access: chmod 600 %s", name, mode, name)
	}
	text, err := os.ReadFile(name)
	if err != nil {
		return "", refuse("%w", err)
	}
	secret := strings.TrimRight(string(text), "\r\n")
	if secret == "" || strings.ContainsAny(secret, "\r\n\x00") {
		return "", refuse("%s does not hold one line with a password", name)
	}
	return secret, nil
}

// tls returns the TLS settings, nil without TLS.
func (t *Target) tls() (*tls.Config, error) {
	if !t.TLS {
		return nil, nil
	}
	c := &tls.Config{MinVersion: tls.VersionTLS12, ServerName: t.ServerName}
	if t.CAFile == "" {
		return c, nil
	}
	text, err := os.ReadFile(t.CAFile)
	if err != nil {
		return nil, fmt.Errorf("store.redis.ca_file: %w", err)
	}
	c.RootCAs = x509.NewCertPool()
	if !c.RootCAs.AppendCertsFromPEM(text) {
		return nil, fmt.Errorf("store.redis.ca_file: %s holds no certificate in PEM", t.CAFile)
	}
	return c, nil
}
