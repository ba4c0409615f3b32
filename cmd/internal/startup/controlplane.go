package startup

import (
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"net"
	"os"
	"slices"
	"strings"

	"github.com/spiffe/go-spiffe/v2/bundle/x509bundle"
	"github.com/spiffe/go-spiffe/v2/spiffeid"
	"github.com/spiffe/go-spiffe/v2/svid/x509svid"

	"github.com/dodona-project/dodona/host/config/strict"
)

// A ControlPlane is what a file says of the connection to the control plane: whether it is
// plaintext, and where this program's identity lies. The files are read anew for each
// connection, so that they can be replaced while it runs: a ControlPlane is a source of
// go-spiffe.
type ControlPlane struct {
	Plain         bool
	Key           string // of the identity: gatewayTLS or checkerTLS
	Kind          string // worker or checker
	cert, key, ca string
}

// Fields reads controlPlane in the file called name.
func (c *ControlPlane) Fields(name string) func(strict.Value) {
	fields := strict.Fields{
		"tls": func(v strict.Value) {
			v.Fields(strict.Fields{
				"mode": func(v strict.Value) { c.Plain = v.Enum("mtls", "disabled") == 1 },
				"cert": Other, "key": Other, "ca": Other,
			})
		},
		"gatewayTLS": Other, "checkerTLS": Other,
		"listen": Other, "trustDomain": Other, "maxMessageBytes": Other, "maxConcurrentStreams": Other,
		"maxStreamDuration": Other, "maxCheckClaim": Other, "keepalive": Other, "maxRuntimeCounters": Other,
	}
	fields[c.Key] = func(v strict.Value) {
		v.Fields(strict.Fields{"cert": Path(name, &c.cert), "key": Path(name, &c.key), "ca": Path(name, &c.ca)})
	}
	return func(v strict.Value) { v.Fields(fields) }
}

// Check reads the files once. A key that others can read is refused.
func (c *ControlPlane) Check() error {
	at := "controlPlane." + c.Key
	if c.Plain {
		return nil
	}
	if c.cert == "" || c.key == "" || c.ca == "" {
		return errors.New(at + ": cert, key and ca have to be set in the file that -config names; for a control plane on this machine without identities, controlPlane.tls.mode may be disabled")
	}
	if info, err := os.Stat(c.key); err == nil && info.Mode().Perm()&0o077 != 0 {
		return fmt.Errorf("%[1]s.key: %[2]s has mode %04[3]o, others than its owner must not be able to use it: chmod 600 %[2]s", at, c.key, info.Mode().Perm())
	}
	s, err := c.GetX509SVID()
	if err != nil {
		return fmt.Errorf("%s.cert and key: %w", at, err)
	}
	if _, err := c.GetX509BundleForTrustDomain(s.ID.TrustDomain()); err != nil {
		return fmt.Errorf("%s.ca: %w", at, err)
	}
	return nil
}

// Addresses splits a list of addresses of the control plane. In plaintext they have to be
// on loopback.
func (c *ControlPlane) Addresses(list string) (addresses []string, err error) {
	var wrong []error
	for address := range strings.SplitSeq(list, ",") {
		address = strings.TrimSpace(address)
		host, _, err := net.SplitHostPort(address)
		switch {
		case err != nil:
			wrong = append(wrong, Usagef("-control-plane is %.80q: allowed is host:port, or several separated by commas", address))
		case c.Plain && !Loopback(host):
			wrong = append(wrong, fmt.Errorf("control plane %.80s is not on loopback, and controlPlane.tls.mode is disabled: credentials of proxies would cross a network in the clear; set it to mtls", address))
		}
		addresses = append(addresses, address)
	}
	return addresses, errors.Join(wrong...)
}

// Identify takes the logical id, and unless there is one the instance's, from the
// certificate.
func (c *ControlPlane) Identify(id, instance *string) error {
	if c.Plain {
		return Usagef("-auto-identity takes the %[1]s's id from its certificate, and controlPlane.tls.mode is disabled: set it to mtls, or give -%[1]s-id and -instance-id", c.Kind)
	}
	found, err := c.id()
	if err != nil {
		return Usagef("-auto-identity: %w", err)
	}
	if *id != "" && *id != found {
		return Usagef("-auto-identity finds %[1]s %[2]s in the certificate, and -%[1]s-id is %.80[3]q: leave one of them out", c.Kind, found, *id)
	}
	*id = found
	if *instance == "" {
		*instance = found
	}
	return nil
}

// id is whom the certificate is of: it has exactly one URI that ends in /<kind>/<id>.
func (c *ControlPlane) id() (string, error) {
	text, err := os.ReadFile(c.cert)
	if err != nil {
		return "", err
	}
	block, _ := pem.Decode(text)
	if block == nil {
		return "", fmt.Errorf("%s has no certificate", c.cert)
	}
	leaf, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		return "", fmt.Errorf("%s: %w", c.cert, err)
	}
	var ids []string
	for _, uri := range leaf.URIs {
		parts := strings.Split(strings.TrimPrefix(uri.Path, "/"), "/")
		if uri.Scheme == "spiffe" && len(parts) == 3 && parts[1] == c.Kind && !slices.Contains(parts, "") {
			ids = append(ids, parts[2])
		}
	}
	if len(ids) != 1 {
		return "", fmt.Errorf("%[1]s has %[2]d URIs like spiffe://<trust domain>/<environment>/%[3]s/<%[3]s id>: it has to have one", c.cert, len(ids), c.Kind)
	}
	return ids[0], nil
}

// GetX509SVID implements x509svid.Source.
func (c *ControlPlane) GetX509SVID() (*x509svid.SVID, error) { return x509svid.Load(c.cert, c.key) }

// GetX509BundleForTrustDomain implements x509bundle.Source.
func (c *ControlPlane) GetX509BundleForTrustDomain(domain spiffeid.TrustDomain) (*x509bundle.Bundle, error) {
	return x509bundle.Load(domain, c.ca)
}
