package host

import (
	"encoding/hex"
	"net/http"
	"os"

	"github.com/spiffe/go-spiffe/v2/svid/x509svid"

	"github.com/dodona-project/dodona/host/api"
	"github.com/dodona-project/dodona/host/config"
	"github.com/dodona-project/dodona/host/identity"
	"github.com/dodona-project/dodona/host/pool"
	"github.com/dodona-project/dodona/host/pool/rest"
	"github.com/dodona-project/dodona/host/pool/secret"
	"github.com/dodona-project/dodona/host/pool/source"
	"github.com/dodona-project/dodona/host/pool/supply"
	"github.com/dodona-project/dodona/host/store"
)

// openPool makes the egress plane, what supplies it, and its part of the HTTP
// listener.
func (h *Host) openPool(actions store.Store, probes *probes) error {
	// All hosts of a store sign with one key, so they agree on this one too.
	key, err := secret.ParseKey(hex.EncodeToString(h.signer.Derive("pool credentials")))
	if err != nil {
		return err
	}
	h.pool = pool.New(pool.Options{
		Store: actions, Audit: h.ledger, HostID: h.id, Secrets: supplied{h}, Compiler: h.strategy,
		Strategy: h.strategy.check, Probe: probes.checkAnywhere, Checks: brokered{h}, CheckInterval: h.config.CheckInterval,
		MaxCounters: h.config.ControlPlane.MaxRuntimeCounters, Logger: h.log.Named("pool"), Registerer: h.metrics,
	})
	h.supply = supply.New(h.pool, supply.Options{
		Resolver: secret.NewResolver(h.config.PoolSecrets, os.LookupEnv), Key: key,
		Sources: source.Options{Dir: h.config.PoolLists}, Logger: h.log.Named("supply"),
	})
	o := rest.Options{Pool: h.pool, Certificate: h.operator, Logger: h.log.Named("rest")}
	if file := h.config.PoolTokens; file != "" {
		o.Tokens, err = rest.OpenTokens(file, func(err error) {
			if err != nil {
				h.log.Error("the tokens do not hold; those from before go on", "file", file, "error", err)
			}
		})
		if err != nil {
			return &config.Error{Problems: []config.Problem{{Where: "pool.tokens_file", Text: err.Error()}}}
		}
	}
	h.extract = rest.New(o)
	return nil
}

// supplied is the pool's way to the credentials, which come after it.
type supplied struct{ h *Host }

func (s supplied) Credential(ref string, version uint32) (secret.Credential, bool) {
	return s.h.supply.Credential(ref, version)
}

// brokered is the pool's way to the checks, which come after it too.
type brokered struct{ h *Host }

func (b brokered) Hurry(tx store.Tx, plane, scope string, ids []string) error {
	return b.h.checks.Hurry(tx, plane, scope, ids)
}

func (b brokered) Again(tx store.Tx, plane, scope string, ids []string) error {
	return b.h.checks.Again(tx, plane, scope, ids)
}

func (b brokered) Braked(tx store.ReadTx, plane, scope string) (bool, error) {
	return b.h.checks.Braked(tx, plane, scope)
}

// operator says which operator a request over HTTP comes from.
func (h *Host) operator(r *http.Request) (actor string, ok bool) {
	switch {
	case h.config.Dev:
		return api.DevActor, true
	case r.TLS == nil:
		return api.PlaintextActor, h.config.Plaintext
	case len(r.TLS.PeerCertificates) == 0: // verified by the handshake, where there is one
		return "", false
	}
	peer, err := x509svid.IDFromCert(r.TLS.PeerCertificates[0])
	if err != nil {
		return "", false
	}
	id, err := identity.ParseID(peer.String())
	return peer.String(), err == nil && id.Kind == identity.Admin
}
