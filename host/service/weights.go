package service

import (
	"slices"
	"strings"

	donav1 "github.com/dodona-project/dodona/proto/dona/v1"
	statev1 "github.com/dodona-project/dodona/proto/state/v1"
	"google.golang.org/protobuf/proto"

	"github.com/dodona-project/dodona/host/store"
)

// Weights reads the service's split and the revision that wrote it; version 0
// and an empty list when there is none.
func (p *Plane) Weights(tx store.ReadTx, service string) (*statev1.Weights, uint64, error) {
	var w statev1.Weights
	version, err := store.Load(tx, weightsKey(service), &w)
	return &w, version, err
}

// PutWeights replaces the split. The weights sum to 100 or are empty; a canary
// comes first. It skips the coalescing window: a rollback must not wait, and a
// step changes nobody's sticky bucket twice. The first split of a rollout may be
// refused for the snapshot's size; once it runs, none of its moves is.
func (p *Plane) PutWeights(tx store.Tx, service string, weights []*donav1.VariantWeight, rolloutID string) error {
	old, version, err := p.Weights(tx, service)
	if err != nil {
		return err
	}
	next := &statev1.Weights{Weights: weights, RolloutId: rolloutID}
	if version != 0 && proto.Equal(old, next) {
		return nil
	}
	if err := store.Save(tx, weightsKey(service), next); err != nil {
		return err
	}
	return p.touch(tx, service, change{
		urgent: true, configured: true, must: version != 0 && old.RolloutId == rolloutID,
		bytes: weightBytes(weights) - weightBytes(old.Weights),
	})
}

func weightBytes(weights []*donav1.VariantWeight) (n int) {
	for _, w := range weights {
		n += itemBytes(w)
	}
	return n
}

// Quarantined reads the variants that nothing may pick.
func (p *Plane) Quarantined(tx store.ReadTx, service string) (*statev1.Quarantine, error) {
	var q statev1.Quarantine
	_, err := store.Load(tx, quarantineKey(service), &q)
	return &q, err
}

// Quarantine keeps every weight, flag and bucket from picking the variant until
// LiftQuarantine. Doing it twice changes nothing. It is never refused for the
// snapshot's size: a full service is rolled back like any other.
func (p *Plane) Quarantine(tx store.Tx, service, variant, rolloutID, reason string) error {
	q, err := p.Quarantined(tx, service)
	if err != nil {
		return err
	}
	at, found := slices.BinarySearchFunc(q.Variants, variant, byVariant)
	if found {
		return nil
	}
	q.Variants = slices.Insert(q.Variants, at, &statev1.QuarantinedVariant{
		Variant: variant, RolloutId: rolloutID, Reason: reason, SinceMs: tx.Now().UnixMilli(),
	})
	if err := store.Save(tx, quarantineKey(service), q); err != nil {
		return err
	}
	return p.touch(tx, service, change{urgent: true, configured: true, must: true, bytes: quarantineBytes(variant)})
}

// LiftQuarantine lets the variant be picked again and reports whether it was
// quarantined.
func (p *Plane) LiftQuarantine(tx store.Tx, service, variant string) (lifted bool, err error) {
	q, err := p.Quarantined(tx, service)
	if err != nil {
		return false, err
	}
	at, found := slices.BinarySearchFunc(q.Variants, variant, byVariant)
	if !found {
		return false, nil
	}
	q.Variants = slices.Delete(q.Variants, at, at+1)
	if err := store.Save(tx, quarantineKey(service), q); err != nil {
		return false, err
	}
	return true, p.touch(tx, service, change{urgent: true, bytes: -quarantineBytes(variant)})
}

func byVariant(q *statev1.QuarantinedVariant, variant string) int {
	return strings.Compare(q.Variant, variant)
}

func quarantineBytes(variant string) int { return elementBytes(len(variant)) }
