package host

import (
	"context"
	"errors"
	"strconv"
	"time"

	statev1 "github.com/dodona-project/dodona/proto/state/v1"

	"github.com/dodona-project/dodona/host/audit"
	"github.com/dodona-project/dodona/host/store"
)

const (
	adoptedPrefix = "store/"
	adoptedKey    = adoptedPrefix + "adopted"
	adoptedRetry  = time.Second
)

// recordAdoption writes the audit entry of the newest adoption, if it is not there.
// An adoption cannot carry its own: before it the store takes no writes. Whoever
// comes first of all hosts writes it, and it is there once.
func (h *Host) recordAdoption(ctx context.Context) error {
	a := h.store.Info().Adoption
	if a == nil {
		return nil
	}
	return audit.Guard(h.store).Update(ctx, store.Hard, func(tx store.Tx) error {
		var have statev1.Adopted
		if _, err := store.Load(tx, adoptedKey, &have); err != nil || have.Generation >= a.Generation {
			return err
		}
		if err := store.Save(tx, adoptedKey, &statev1.Adopted{Generation: a.Generation}); err != nil {
			return err
		}
		return h.ledger.Append(tx, audit.HostChain, audit.Entry{Kind: "store.adopt", Actor: a.Actor, Detail: map[string]string{
			"reason": a.Reason, "found": a.Found, "generation": strconv.FormatUint(a.Generation, 10),
		}})
	})
}

// recordAdoptions does so for each generation that begins while the host runs, and
// says again whose the data is. It returns an error when that is somebody else.
func (h *Host) recordAdoptions(ctx context.Context) error {
	if !h.shared() {
		return nil
	}
	notice := h.store.Watch(ctx, adoptedPrefix) // all fire when there is a new link to the server
	retry := time.NewTimer(0)
	defer retry.Stop()
	done := uint64(0)
	for {
		select {
		case <-ctx.Done():
			return nil
		case _, open := <-notice:
			if !open {
				return nil
			}
		case <-retry.C:
		}
		a := h.store.Info().Adoption
		if a == nil || a.Generation == done {
			continue
		}
		err := h.claim(ctx)
		if errors.Is(err, errOwned) {
			return err
		}
		if err == nil {
			err = h.recordAdoption(ctx)
		}
		if err != nil {
			if ctx.Err() == nil {
				h.log.Warn("the adoption of the store is not in the audit log yet; it is tried again", "generation", a.Generation, "error", err)
			}
			retry.Reset(adoptedRetry)
			continue
		}
		done = a.Generation
	}
}
