package host

import (
	"context"
	"fmt"

	statev1 "github.com/dodona-project/dodona/proto/state/v1"

	"github.com/dodona-project/dodona/host/store"
)

// ownerKey is the record of whose data the store holds.
const ownerKey = adoptedPrefix + "owner"

// errOwned is the refusal of a store with another trust domain's data.
var errOwned = fmt.Errorf("%w: the store holds another trust domain's data", store.ErrRefused)

// claim sees to it that the store holds data of this host's trust domain, and says so in
// a store that holds none yet. Another domain is refused with errOwned: each audit chain
// begins with the domain, so that chains of two in one store read as
// tampered with.
func (h *Host) claim(ctx context.Context) error {
	return h.store.Update(ctx, h.ownDurability(), func(tx store.Tx) error {
		var have statev1.Owner
		version, err := store.Load(tx, ownerKey, &have)
		if err != nil {
			return err
		}
		if version == 0 {
			return store.Save(tx, ownerKey, &statev1.Owner{TrustDomain: h.config.TrustDomain})
		}
		if have.TrustDomain != h.config.TrustDomain {
			return fmt.Errorf("%w: it is of %.255q, trust_domain is %.255q: set it to that, or use another store, or another store.redis.cluster", errOwned, have.TrustDomain, h.config.TrustDomain)
		}
		return nil
	})
}

// ownDurability is that of what a host writes to start and to stay. With a shared store it
// is soft: a host serves also while hard writes are refused because a replica is down.
func (h *Host) ownDurability() store.Durability {
	if h.shared() {
		return store.Soft
	}
	return store.Hard
}
