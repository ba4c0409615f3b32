package host

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/dodona-project/dodona/host/audit"
	"github.com/dodona-project/dodona/host/config"
	"github.com/dodona-project/dodona/host/identity"
)

// An Operator is an identity of the kind admin/<name>, in PEM.
type Operator struct {
	ID                string
	Cert, Key, Bundle []byte
}

// InitActor is on record for what is issued at the machine of a host that does not
// run: whoever may read its data directory.
const InitActor = "local:init"

// operatorTTL is how long such an identity is valid: as long as any may be, because
// nobody renews it until its owner does.
const operatorTTL = 24 * time.Hour

// An OperatorRequest says who is to be an operator, and what is replaced first.
type OperatorRequest struct {
	Name           string // admin/<name>
	NewAuthority   bool   // the active authority, by that of identity.ca_cert or a new one
	NewAttestation bool   // the attestation key, by that of audit.key_file or one that the next start makes
}

// IssueOperator opens the store of a host that does not run, makes the authority of
// its trust domain if it has none, and issues the identity of an operator, which is on
// record like any other. What is replaced may be lost. A store that is in use is refused
// with store.ErrRefused.
func IssueOperator(ctx context.Context, c *config.Config, req OperatorRequest, log hclog.Logger) (o *Operator, err error) {
	lasting := *c
	lasting.SVIDTTL = operatorTTL
	h := &Host{config: &lasting, log: log, ledger: audit.New(c.TrustDomain), metrics: prometheus.NewRegistry()}
	if h.store, err = openStore(c, log.Named("store"), func(err error) { log.Error("the store closed itself", "error", err) }); err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, h.store.Close()) }()
	if h.id, err = hostID(c.DataDir); err != nil {
		return nil, err
	}
	if err := h.claim(ctx); err != nil {
		return nil, err
	}
	replacedBy := ""
	if req.NewAuthority {
		replacedBy = InitActor
	}
	if err := h.openIssuer(ctx, replacedBy); err != nil {
		return nil, err
	}
	if h.issuer == nil {
		return nil, errors.New("this host issues no identities: it is configured for dev or plaintext")
	}
	if req.NewAttestation {
		if err := h.forgetSigner(ctx, InitActor); err != nil {
			return nil, err
		}
	}
	token, err := h.issuer.CreateToken(ctx, InitActor, identity.TokenRequest{Path: string(identity.Admin) + "/" + req.Name})
	if err != nil {
		return nil, err
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	request, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{}, key)
	if err != nil {
		return nil, err
	}
	issued, err := h.issuer.WithToken(ctx, token.Text, identity.Request{CSR: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: request})})
	if err != nil {
		return nil, fmt.Errorf("issue %s: %w", token.ID, err)
	}
	secret, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return nil, err
	}
	return &Operator{ID: issued.ID.String(), Cert: issued.Cert, Key: pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: secret}), Bundle: issued.Bundle}, nil
}
