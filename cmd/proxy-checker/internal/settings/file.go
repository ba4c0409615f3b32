package settings

import (
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/spiffe/go-spiffe/v2/bundle/x509bundle"
	"github.com/spiffe/go-spiffe/v2/spiffeid"
	"github.com/spiffe/go-spiffe/v2/svid/x509svid"

	"github.com/dodona-project/dodona/host/config/strict"
	"github.com/dodona-project/dodona/host/limits"
	"github.com/dodona-project/dodona/plugins"
)

// file is what the file says.
type file struct {
	plain   bool
	tls     Files
	dir     string
	drain   time.Duration
	plugins map[plugins.ID]plugins.PluginConfig
}

// readFile reads a file, none when it has no name. The error has a line for each thing
// that is wrong: file:line:col: key: reason.
func readFile(name string) (*file, error) {
	f := &file{drain: defaultDrain, plugins: map[plugins.ID]plugins.PluginConfig{}}
	if name != "" {
		in, err := os.Open(name)
		if err != nil {
			return nil, err
		}
		defer func() { _ = in.Close() }()
		text, err := io.ReadAll(io.LimitReader(in, strict.MaxBytes+1))
		if err != nil {
			return nil, err
		}
		if err := strict.Read(name, text, f.read(filepath.Dir(name))); err != nil {
			return nil, err
		}
	}
	if f.plain {
		return f, nil
	}
	if f.tls.Cert == "" || f.tls.Key == "" || f.tls.CA == "" {
		return nil, errors.New("controlPlane.checkerTLS: cert, key and ca have to be set in the file that -config names; for a control plane on this machine without identities, controlPlane.tls.mode may be disabled")
	}
	return f, f.tls.Check()
}

// read reads the keys of this program. One file may serve several: what others read is
// left alone.
func (f *file) read(dir string) func(strict.Value) {
	path := func(to *string) func(strict.Value) {
		return func(v strict.Value) {
			v.String(to, nil)
			if *to != "" && !filepath.IsAbs(*to) {
				*to = filepath.Join(dir, *to)
			}
		}
	}
	other := func(v strict.Value) { _ = v.Any() }
	return func(root strict.Value) {
		root.Fields(strict.Fields{
			"controlPlane": func(v strict.Value) {
				v.Fields(strict.Fields{
					"tls": func(v strict.Value) {
						v.Fields(strict.Fields{
							"mode": func(v strict.Value) { f.plain = v.Enum("mtls", "disabled") == 1 },
							"cert": other, "key": other, "ca": other,
						})
					},
					"checkerTLS": func(v strict.Value) {
						v.Fields(strict.Fields{"cert": path(&f.tls.Cert), "key": path(&f.tls.Key), "ca": path(&f.tls.CA)})
					},
					"listen": other, "trustDomain": other, "gatewayTLS": other, "maxMessageBytes": other, "maxConcurrentStreams": other,
					"maxStreamDuration": other, "maxCheckClaim": other, "keepalive": other, "maxRuntimeCounters": other,
				})
			},
			"checker": func(v strict.Value) {
				v.Fields(strict.Fields{"drain": func(v strict.Value) { v.Duration(&f.drain, time.Second, time.Hour) }})
			},
			"plugins": func(v strict.Value) {
				v.Fields(strict.Fields{"dir": path(&f.dir), "probe": f.readProbes, "backoff": other, "strategy": other, "analysis": other})
			},
			"store": other, "audit": other, "identity": other, "http": other, "gateway": other,
		})
	}
}

// readProbes reads the settings of probes by their names.
func (f *file) readProbes(v strict.Value) {
	v.Entries(limits.Probes, func(name string, v strict.Value) {
		if err := limits.Name(name); err != nil {
			v.Refuse("%s", err)
			return
		}
		var c plugins.PluginConfig
		v.Fields(strict.Fields{
			"env": func(v strict.Value) {
				c.Env = map[string]string{}
				v.Entries(64, func(key string, v strict.Value) {
					var value string
					v.String(&value, nil)
					c.Env[key] = value
				})
			},
			"deadline":         func(v strict.Value) { v.Duration(&c.Deadline, 100*time.Millisecond, time.Minute) },
			"required":         func(v strict.Value) { v.Bool(&c.Required) },
			"override_builtin": func(v strict.Value) { v.Bool(&c.OverrideBuiltin) },
		})
		f.plugins[plugins.ID{Kind: plugins.KindProbe, Name: name}] = c
	})
}

// Files are where this checker's identity lies. They are read anew for each connection to
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
		return fmt.Errorf("controlPlane.checkerTLS.key: %[1]s has mode %04[2]o, others than its owner must not be able to use it: chmod 600 %[1]s", f.Key, info.Mode().Perm())
	}
	s, err := f.GetX509SVID()
	if err != nil {
		return fmt.Errorf("controlPlane.checkerTLS.cert and key: %w", err)
	}
	if _, err := f.GetX509BundleForTrustDomain(s.ID.TrustDomain()); err != nil {
		return fmt.Errorf("controlPlane.checkerTLS.ca: %w", err)
	}
	return nil
}

// CheckerID is the checker that the certificate is of: it has exactly one URI that ends
// in /checker/<checker-id>.
func (f *Files) CheckerID() (string, error) {
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
		if uri.Scheme == "spiffe" && len(parts) == 3 && parts[0] != "" && parts[1] == "checker" && parts[2] != "" {
			ids = append(ids, parts[2])
		}
	}
	if len(ids) != 1 {
		return "", fmt.Errorf("%s has %d URIs like spiffe://<trust domain>/<environment>/checker/<checker id>: it has to have one", f.Cert, len(ids))
	}
	return ids[0], nil
}
