package host

import (
	"context"

	controlplanev1 "github.com/dodona-project/dodona/proto/controlplane/v1"

	"github.com/dodona-project/dodona/host/pool/ownership"
	"github.com/dodona-project/dodona/host/store"
)

// FindProxies has a check find proxies as available.
func FindProxies(ctx context.Context, h *Host, all []*controlplanev1.ProxyStatus) error {
	return h.store.Update(ctx, store.Soft, func(tx store.Tx) error {
		for _, p := range all {
			if err := h.pool.Find(tx, p.Proxy.ProxyId, ownership.Finding{State: ownership.Available, AtMs: tx.Now().UnixMilli()}); err != nil {
				return err
			}
		}
		return nil
	})
}
