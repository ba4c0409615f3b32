package pool

import (
	statev1 "github.com/dodona-project/dodona/proto/state/v1"

	"github.com/dodona-project/dodona/host/pool/secret"
	"github.com/dodona-project/dodona/host/store"
)

// credentialVersion is which version the material of a reference is; 0 for none.
func credentialVersion(tx store.ReadTx, secretRef string) (uint32, error) {
	if secretRef == "" {
		return 0, nil
	}
	c := new(statev1.CredentialVersion)
	_, err := store.Load(tx, credentialKey(secretRef), c)
	return c.Version, err
}

// credential is the material of a reference; ok is false where this host does not have
// that version. No reference is no material.
func (p *Pool) credential(secretRef string, version uint32) (c secret.Credential, ok bool) {
	if secretRef == "" {
		return c, true
	}
	if p.o.Secrets == nil {
		return c, false
	}
	return p.o.Secrets.Credential(secretRef, version)
}
