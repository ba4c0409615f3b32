package host

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"net"
	"net/http"

	"github.com/spiffe/go-spiffe/v2/bundle/x509bundle"
	"github.com/spiffe/go-spiffe/v2/spiffeid"
	"github.com/spiffe/go-spiffe/v2/svid/x509svid"

	"github.com/dodona-project/dodona/host/api"
	"github.com/dodona-project/dodona/host/config"
	"github.com/dodona-project/dodona/host/identity"
	"github.com/dodona-project/dodona/sdk/dona/svidfile"
)

// secured reports whether callers have to have identities.
func (h *Host) secured() bool { return !h.config.Dev && !h.config.Plaintext }

// openIdentity reads this host's own SVID, when it lies in files.
func (h *Host) openIdentity() error {
	if !h.secured() {
		return nil
	}
	var err error
	if h.domain, err = spiffeid.TrustDomainFromString(h.config.TrustDomain); err != nil {
		return wrong("trust_domain", "is %q: %v", h.config.TrustDomain, err)
	}
	dir, names, key := h.config.IdentityDir, h.config.ControlPlane, "identity.dir"
	if names.TLSCert != "" {
		key = "controlPlane.tls"
	} else if dir == "" {
		return nil // it is issued once there is a store
	}
	log := h.log.Named("identity")
	options := svidfile.Options{
		Failed: func(err error) {
			h.reloads.WithLabelValues("failed").Inc()
			log.Error("the files of this host's identity do not hold: what was there before goes on", "error", err)
		},
		Replaced: func() {
			h.reloads.WithLabelValues("ok").Inc()
			log.Info("this host's identity was replaced")
		},
	}
	open := func() (*svidfile.Source, error) { return svidfile.Open(dir, options) }
	if names.TLSCert != "" {
		open = func() (*svidfile.Source, error) {
			return svidfile.OpenFiles(names.TLSCert, names.TLSKey, names.TLSCA, options)
		}
	}
	files, err := open()
	if err != nil {
		return wrong(key, "does not hold: %v", err)
	}
	if id, err := identity.ParseID(files.ID().String()); err != nil || id.Kind != identity.Host || id.TrustDomain != h.config.TrustDomain {
		_ = files.Close()
		return wrong(key, "holds %s: a host needs spiffe://%s/host/<id>", files.ID(), h.config.TrustDomain)
	}
	h.identity, h.closeIdentity = files, files.Close
	log.Info("this host is", "spiffe_id", files.ID().String())
	return nil
}

// wrong is one setting that does not hold.
func wrong(key, format string, args ...any) error {
	return &config.Error{Problems: []config.Problem{{Where: "configuration", Key: key, Text: fmt.Sprintf(format, args...)}}}
}

// edge is how the gRPC services are served, but for the services.
func (h *Host) edge() api.Options {
	return api.Options{
		Dev: h.config.Dev, Plaintext: h.config.Plaintext && !h.config.Dev, Identity: h.identity, TrustDomain: h.domain, Environment: h.config.Environment,
		Caps: api.Caps(h.config.Caps), Bounds: h.bounds(), Memory: memory, Health: h.health, Logger: h.log.Named("api"), HostAdmin: h.admin(),
	}
}

func (h *Host) bounds() api.Bounds {
	c := h.config.ControlPlane
	return api.Bounds{
		MessageBytes: c.MaxMessageBytes, Streams: uint32(c.MaxConcurrentStreams), StreamDuration: c.MaxStreamDuration,
		KeepaliveTime: c.KeepaliveTime, KeepaliveTimeout: c.KeepaliveTimeout, KeepaliveMinTime: c.KeepaliveMinTime,
	}
}

// issueIdentity has this host issue its SVID to itself, unless it has one.
func (h *Host) issueIdentity(ctx context.Context) error {
	if !h.secured() || h.identity != nil {
		return nil
	}
	own, err := newOwn(ctx, h.issuer, h.ownDurability(), h.log.Named("identity"))
	if err != nil {
		return fmt.Errorf("the host's own identity: %w", err)
	}
	h.identity, h.own = own, own
	return nil
}

// serveHTTP serves on the HTTP listener: TLS where callers have identities. Liveness
// and readiness are for everyone, and the rest for who has one.
func (h *Host) serveHTTP(l net.Listener) error {
	if !h.secured() {
		return h.http.Serve(l)
	}
	return h.http.ServeTLS(l, "", "") // without an identity it has no configuration, and fails
}

// httpTLS is the host's TLS, but that a client may come without a certificate.
func (h *Host) httpTLS() *tls.Config {
	c := api.ServerTLS(h.identity, h.domain)
	c.ClientAuth = tls.RequestClientCert
	verify := c.VerifyPeerCertificate
	c.VerifyPeerCertificate = func(certs [][]byte, chains [][]*x509.Certificate) error {
		if len(certs) == 0 {
			return nil
		}
		return verify(certs, chains)
	}
	c.NextProtos = []string{"h2", "http/1.1"}
	return c
}

// known lets those in who came with a certificate, as long as it holds: a connection may
// outlive it.
func known(bundle x509bundle.Source, next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.TLS == nil {
			next.ServeHTTP(w, r)
			return
		}
		no := ""
		if certs := r.TLS.PeerCertificates; len(certs) == 0 {
			no = "this needs a client certificate of the host's trust domain"
		} else if _, _, err := x509svid.Verify(certs, bundle); err != nil {
			no = "the certificate of this connection has expired or is no longer trusted: connect again with a new one"
		}
		if no != "" {
			w.Header().Set("Connection", "close")
			http.Error(w, no, http.StatusUnauthorized)
			return
		}
		next.ServeHTTP(w, r)
	})
}
