package session

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"math"
	"time"

	statev1 "github.com/dodona-project/dodona/proto/state/v1"

	"github.com/dodona-project/dodona/host/refusal"
	"github.com/dodona-project/dodona/host/store"
)

// FenceKept is how long a fence outlives its last use.
const FenceKept = time.Hour

const fenceIndex = "fence"

// FenceKind says what a report is to the ones before it.
type FenceKind int

const (
	Unfenced FenceKind = iota + 1 // sequence 0: nothing is remembered of it
	Accepted                      // newer than all before: process it
	Replay                        // processed before: acknowledge it again, and process nothing
)

// FenceResult is the answer of [Fence].
type FenceResult struct {
	Kind    FenceKind
	Gap     uint64 // Accepted: sequences between the last one and this
	Dropped uint32 // Replay: what was answered for it the first time
}

// Fence admits the report sequence of reporter, whose content has digest, and
// remembers it in tx. The same sequence with other content is refused as
// AlreadyExists, a lower one as Aborted. The first report of a reporter that is
// not remembered may have any sequence.
func Fence(tx store.Tx, reporter string, sequence uint64, digest [sha256.Size]byte) (FenceResult, error) {
	if sequence == 0 {
		return FenceResult{Kind: Unfenced}, nil
	}
	var have statev1.Fence
	version, err := store.Load(tx, fenceKey(reporter), &have)
	if err != nil {
		return FenceResult{}, err
	}
	res := FenceResult{Kind: Accepted}
	switch {
	case version == 0:
	case sequence < have.GetSequence():
		return FenceResult{}, refusal.New(refusal.Aborted, "sequence is %d: this reporter has already sent %d; take a new reporter id or go on from there", sequence, have.GetSequence())
	case sequence > have.GetSequence():
		res.Gap = sequence - have.GetSequence() - 1
	case bytes.Equal(digest[:], have.GetDigest()):
		res = FenceResult{Kind: Replay, Dropped: have.GetDropped()}
	default:
		return FenceResult{}, refusal.New(refusal.AlreadyExists, "sequence is %d: it was sent before with other content; a retry must repeat the same bytes", sequence)
	}
	now := tx.Now().UnixMilli()
	if err := store.Save(tx, fenceKey(reporter), &statev1.Fence{
		Sequence: sequence, Digest: digest[:], LastUsedMs: now, Dropped: res.Dropped,
	}); err != nil {
		return FenceResult{}, err
	}
	return res, tx.IndexPut(fenceIndex, reporter, uint64(now))
}

// FenceDropped notes, in the transaction that accepted a report, how many of its
// items were dropped, so that a replay is answered alike.
func FenceDropped(tx store.Tx, reporter string, dropped uint32) error {
	var have statev1.Fence
	version, err := store.Load(tx, fenceKey(reporter), &have)
	if err != nil {
		return err
	}
	if version == 0 {
		return fmt.Errorf("session: fence of %s: none was taken in this transaction", reporter)
	}
	have.Dropped = dropped
	return store.Save(tx, fenceKey(reporter), &have)
}

// SweepFences removes the fences whose last use is longer ago than FenceKept and
// returns how many went.
func SweepFences(ctx context.Context, st store.Store) (removed int, err error) {
	const batch = 1000
	for {
		n, idle := 0, 0
		err := st.Update(ctx, store.Soft, func(tx store.Tx) error {
			n = 0
			limit := tx.Now().Add(-FenceKept).UnixMilli()
			entries, err := tx.Scan(fenceIndex, 0, uint64(min(max(limit, 0), math.MaxInt64)), batch)
			if err != nil {
				return err
			}
			idle = len(entries)
			for _, e := range entries {
				var f statev1.Fence
				// The index says that it is idle: one that does not parse goes, too.
				if _, err := store.Load(tx, fenceKey(e.Member), &f); err != nil && !errors.Is(err, store.ErrDamaged) {
					return err
				}
				if f.GetLastUsedMs() > limit {
					continue
				}
				if err := tx.Delete(fenceKey(e.Member)); err != nil {
					return err
				}
				if err := tx.IndexDelete(fenceIndex, e.Member); err != nil {
					return err
				}
				n++
			}
			return nil
		})
		if err != nil {
			return removed, fmt.Errorf("session: sweep fences: %w", err)
		}
		removed += n
		if idle < batch || n == 0 {
			return removed, nil
		}
	}
}

func fenceKey(reporter string) string { return "fence/" + reporter }
