package host

import (
	"context"
	"fmt"
	"time"

	statev1 "github.com/dodona-project/dodona/proto/state/v1"

	"github.com/dodona-project/dodona/host/store"
)

// gapKey is the record of a start whose restart grace is not over.
const gapKey = "host/gap"

// gap returns the revision above which a crash may have taken what clients have
// seen. A host that died within its grace has passed its own on: the clients of
// the life before it may still hold what that crash took, and what came back since
// may be a small part of it.
func (h *Host) gap(ctx context.Context) (after uint64, err error) {
	err = h.store.Update(ctx, store.Hard, func(tx store.Tx) error {
		after = h.store.Info().Kept
		var g statev1.Gap
		version, err := store.Load(tx, gapKey, &g)
		if err != nil {
			return err
		}
		if version != 0 && g.After <= after {
			after = g.After
			return nil
		}
		return store.Save(tx, gapKey, &statev1.Gap{After: after})
	})
	if err != nil {
		return 0, fmt.Errorf("look for a start that was cut short: %w", err)
	}
	return after, nil
}

// closeGap waits for the restart grace and takes the record away. Softly: what
// came back in the meantime was written before it and is not lost without it.
func (h *Host) closeGap(ctx context.Context) error {
	timer := time.NewTimer(h.config.RestartGrace)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return nil
	case <-timer.C:
	}
	err := h.store.Update(ctx, store.Soft, func(tx store.Tx) error { return tx.Delete(gapKey) })
	if err != nil && ctx.Err() == nil {
		// The next start is more careful than it has to be.
		h.log.Warn("cannot write down that the restart grace is over", "error", err)
	}
	return nil
}
