package host

import (
	"context"
	"fmt"
	"time"

	statev1 "github.com/dodona-project/dodona/proto/state/v1"

	"github.com/dodona-project/dodona/host/snapshot"
	"github.com/dodona-project/dodona/host/store"
)

// gapKey is the record of a start of this host whose restart grace is not over.
func (h *Host) gapKey() string { return "gap/" + h.id }

// findLost sees to it that the feeds learn which revisions a fault of the store may have
// taken after clients have seen them: those of its opening, and later those of each
// fail-over, restart or adoption of a shared one.
func (h *Host) findLost(ctx context.Context) error {
	after, err := h.gap(ctx)
	if err != nil {
		return err
	}
	first := h.store.Info().First
	h.lost = func() snapshot.Gap {
		info := h.store.Info()
		if info.First == first {
			return snapshot.Gap{After: after, Before: first}
		}
		return snapshot.Gap{After: info.Kept, Before: info.First}
	}
	return nil
}

// gap returns the revision above which a crash before this start may have taken
// what clients have seen. A host that died within its grace has passed its own on:
// the clients of the life before it may still hold what that crash took, and what
// came back since may be a small part of it. A fail-over that takes the record makes a
// gap of its own.
func (h *Host) gap(ctx context.Context) (after uint64, err error) {
	err = h.store.Update(ctx, h.ownDurability(), func(tx store.Tx) error {
		after = h.store.Info().Kept
		var g statev1.Gap
		version, err := store.Load(tx, h.gapKey(), &g)
		if err != nil {
			return err
		}
		if version != 0 && g.After <= after {
			after = g.After
			return nil
		}
		return store.Save(tx, h.gapKey(), &statev1.Gap{After: after})
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
	err := h.store.Update(ctx, store.Soft, func(tx store.Tx) error { return tx.Delete(h.gapKey()) })
	if err != nil && ctx.Err() == nil {
		// The next start is more careful than it has to be.
		h.log.Warn("cannot write down that the restart grace is over", "error", err)
	}
	return nil
}
