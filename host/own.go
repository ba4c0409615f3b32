package host

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/spiffe/go-spiffe/v2/bundle/x509bundle"
	"github.com/spiffe/go-spiffe/v2/spiffeid"
	"github.com/spiffe/go-spiffe/v2/svid/x509svid"

	"github.com/dodona-project/dodona/host/identity"
	"github.com/dodona-project/dodona/host/store"
)

const (
	ownRetry    = time.Second // after a renewal that failed, doubled each time
	ownMaxRetry = time.Minute
)

// own is the identity that a host issues to itself: host/<id>, renewed at half of its
// life. Its key is in memory only. The bundle is the issuer's, always the newest.
type own struct {
	issuer     *identity.Issuer
	domain     spiffeid.TrustDomain
	durability store.Durability // of the audit entries
	log        hclog.Logger
	svid       atomic.Pointer[x509svid.SVID]
}

func newOwn(ctx context.Context, issuer *identity.Issuer, d store.Durability, log hclog.Logger) (*own, error) {
	domain, err := spiffeid.TrustDomainFromString(issuer.TrustDomain())
	if err != nil {
		return nil, err
	}
	o := &own{issuer: issuer, domain: domain, durability: d, log: log}
	if err := o.renew(ctx); err != nil {
		return nil, err
	}
	log.Info("this host is", "spiffe_id", issuer.OwnID().String())
	return o, nil
}

func (o *own) renew(ctx context.Context) error {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return err
	}
	request, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{}, key)
	if err != nil {
		return err
	}
	issued, err := o.issuer.Own(ctx, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: request}), o.durability)
	if err != nil {
		return err
	}
	secret, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return err
	}
	svid, err := x509svid.Parse(issued.Cert, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: secret}))
	if err != nil {
		return err
	}
	if _, _, err := x509svid.Verify(svid.Certificates, o); err != nil {
		return err
	}
	o.svid.Store(svid)
	return nil
}

// run renews until ctx ends. While that fails, the SVID serves until it expires.
func (o *own) run(ctx context.Context) error {
	for retry := ownRetry; ; {
		leaf := o.svid.Load().Certificates[0]
		wait := time.Until(leaf.NotAfter) / 2 // of what is left: it is valid since before it was issued
		if retry > ownRetry {
			wait = retry
		}
		timer := time.NewTimer(max(wait, 0))
		select {
		case <-ctx.Done():
			timer.Stop()
			return nil
		case <-timer.C:
		}
		if err := o.renew(ctx); err != nil {
			retry = min(2*retry, ownMaxRetry)
			o.log.Error("this host's identity cannot be renewed: the present one serves until it expires", "expires", leaf.NotAfter, "again_in", retry, "error", err)
			continue
		}
		retry = ownRetry
	}
}

// GetX509SVID returns the newest SVID.
func (o *own) GetX509SVID() (*x509svid.SVID, error) { return o.svid.Load(), nil }

// GetX509BundleForTrustDomain returns the authorities of the host's own trust domain.
func (o *own) GetX509BundleForTrustDomain(domain spiffeid.TrustDomain) (*x509bundle.Bundle, error) {
	if domain != o.domain {
		return nil, fmt.Errorf("this host knows the authorities of %s alone", o.domain)
	}
	return x509bundle.FromX509Authorities(domain, o.issuer.Bundle()), nil
}
