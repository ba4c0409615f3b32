package service

import (
	"context"
	"errors"

	statev1 "github.com/dodona-project/dodona/proto/state/v1"

	"github.com/dodona-project/dodona/host/store"
)

// Collect removes what is left of services that have nothing but past endpoints
// for a day, and returns how many they were. Their audit chains stay. A service
// of the same name later starts at a higher version: revisions never repeat.
func (p *Plane) Collect(ctx context.Context) (removed int, err error) {
	var candidates []string
	err = p.store.View(ctx, func(tx store.ReadTx) error {
		candidates = candidates[:0]
		entries, err := tx.Scan(servicesIndex, 0, 0, 0)
		if err != nil {
			return err
		}
		if err := store.Fetch(tx, entries, headKey); err != nil {
			return err
		}
		for _, e := range entries {
			var head statev1.ServiceHead
			_, err := load(tx, headKey(e.Member), &head)
			if errors.Is(err, store.ErrDamaged) {
				continue // it is no reason to keep the others
			}
			if err != nil {
				return err
			}
			if past(&head, tx.Now().UnixMilli()) {
				candidates = append(candidates, e.Member)
			}
		}
		return nil
	})
	for _, service := range candidates {
		gone := false
		if err := p.store.Update(ctx, store.Soft, func(tx store.Tx) (err error) {
			gone, err = p.collect(tx, service)
			return err
		}); err != nil {
			return removed, err
		}
		if gone {
			removed++
		}
	}
	return removed, err
}

// collect looks again: an endpoint may have come meanwhile.
func (p *Plane) collect(tx store.Tx, service string) (bool, error) {
	var head statev1.ServiceHead
	version, err := load(tx, headKey(service), &head)
	if err != nil || version == 0 || !past(&head, tx.Now().UnixMilli()) {
		return false, err
	}
	for _, key := range []string{headKey(service), urgentKey(service), removedKey(service), weightsKey(service), quarantineKey(service), policyKey(service), planKey(service), planningKey(service)} {
		if err := tx.Delete(key); err != nil {
			return false, err
		}
	}
	for _, index := range []string{servicesIndex, probedIndex} {
		if err := tx.IndexDelete(index, service); err != nil {
			return false, err
		}
	}
	var list statev1.ServiceList
	if _, err := store.Load(tx, servicesKey, &list); err != nil {
		return false, err
	}
	list.Count -= min(list.Count, 1)
	return true, store.Save(tx, servicesKey, &list)
}
