package host

import (
	"context"
	"strconv"
	"time"

	statev1 "github.com/dodona-project/dodona/proto/state/v1"

	"github.com/dodona-project/dodona/host/audit"
	"github.com/dodona-project/dodona/host/store"
)

// replicasKey is the record of how many replicas hard writes wait for.
const replicasKey = adoptedPrefix + "replicas"

// recordReplicas writes the audit entry of a change of store.redis.replicas: whoever
// lowers it gives up some of what hard writes are worth. The first host that starts
// with another number than the last one that said so writes it.
func (h *Host) recordReplicas(ctx context.Context) error {
	if !h.shared() {
		return nil
	}
	retry := time.NewTimer(0)
	defer retry.Stop()
	for warned := false; ; {
		select {
		case <-ctx.Done():
			return nil
		case <-retry.C:
		}
		err := h.recordReplicasOnce(ctx)
		if err == nil {
			h.saidReplicas.Store(true)
			return nil
		}
		if ctx.Err() == nil && !warned { // the number may be the reason why it cannot be written
			h.log.Warn("whether store.redis.replicas has changed is not in the audit log yet; it is tried again", "error", err)
			warned = true
		}
		retry.Reset(adoptedRetry)
	}
}

func (h *Host) recordReplicasOnce(ctx context.Context) error {
	return audit.Guard(h.store).Update(ctx, store.Hard, func(tx store.Tx) error {
		var have statev1.Replicas
		known, err := store.Load(tx, replicasKey, &have)
		now := uint32(h.config.RedisReplicas)
		if err != nil || known > 0 && have.Count == now {
			return err
		}
		if err := store.Save(tx, replicasKey, &statev1.Replicas{Count: now}); err != nil || known == 0 {
			return err
		}
		return h.ledger.Append(tx, audit.HostChain, audit.Entry{Kind: "store.replicas", Actor: "host:" + h.id, Detail: map[string]string{
			"from": strconv.FormatUint(uint64(have.Count), 10), "to": strconv.FormatUint(uint64(now), 10),
		}})
	})
}
