package reach

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"net"
)

// TLS is how a probe speaks TLS, as configurations have it.
type TLS struct {
	// ServerName is the name that the certificate has to be for; empty = the host of
	// the endpoint's address.
	ServerName string `json:"server_name,omitempty" jsonschema:"maxLength=253,description=name that the certificate has to be for; empty = the host of the endpoint's address"`
	// CA are PEM certificates that are trusted instead of the system's.
	CA string `json:"ca,omitempty" jsonschema:"maxLength=32768,description=PEM certificates that are trusted instead of the system's"`
	// SkipVerify takes any certificate, whoever signed it and whatever its name.
	SkipVerify bool `json:"skip_verify,omitempty" jsonschema:"description=take any certificate whoever signed it and whatever its name"`
}

// Check says what is wrong with it.
func (t *TLS) Check() error {
	if t == nil {
		return nil
	}
	if t.CA != "" && !x509.NewCertPool().AppendCertsFromPEM([]byte(t.CA)) {
		return errors.New("ca holds no PEM certificate")
	}
	if t.SkipVerify && t.CA != "" {
		return errors.New("skip_verify and ca contradict each other: leave one of them out")
	}
	return nil
}

// Client returns the settings of a client for an endpoint's address.
func (t *TLS) Client(address string) *tls.Config {
	c := &tls.Config{MinVersion: tls.VersionTLS12}
	if host, _, err := net.SplitHostPort(address); err == nil {
		c.ServerName = host
	}
	if t == nil {
		return c
	}
	if t.ServerName != "" {
		c.ServerName = t.ServerName
	}
	if t.CA != "" {
		c.RootCAs = x509.NewCertPool()
		c.RootCAs.AppendCertsFromPEM([]byte(t.CA))
	}
	c.InsecureSkipVerify = t.SkipVerify // what an operator asked for in words
	return c
}
