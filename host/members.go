package host

import (
	"context"
	"fmt"
	"slices"
	"time"

	statev1 "github.com/dodona-project/dodona/proto/state/v1"

	"github.com/dodona-project/dodona/host/store"
)

const (
	memberBeat  = 2 * time.Second // between two signs of life of a host
	memberGone  = 3 * memberBeat  // a host is silent after this time without one
	memberKept  = 24 * time.Hour  // a host that went silent is shown for so long
	memberIndex = "host"
)

func memberKey(id string) string { return "host/" + id }

// beMember keeps this host's record among those of a shared store until ctx ends,
// and takes it away then. It returns at once when the store is not shared.
func (h *Host) beMember(ctx context.Context) error {
	if !h.shared() {
		return nil
	}
	tick := time.NewTicker(memberBeat)
	defer tick.Stop()
	for {
		if err := h.signOfLife(ctx); err != nil && ctx.Err() == nil {
			h.log.Warn("cannot tell the other hosts that this one is there", "error", err)
		}
		select {
		case <-ctx.Done():
			ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
			defer cancel()
			_ = h.store.Update(ctx, store.Soft, func(tx store.Tx) error { // others see that it is silent, without it
				var have statev1.HostRecord
				if _, err := store.Load(tx, memberKey(h.id), &have); err != nil || have.Process != h.process {
					return err
				}
				return removeMember(tx, h.id)
			})
			return nil
		case <-tick.C:
		}
	}
}

// signOfLife writes this host's record, and removes those of hosts that went long
// ago.
func (h *Host) signOfLife(ctx context.Context) error {
	var twin *statev1.HostRecord
	var joined int64
	var replicas statev1.Replicas
	var told uint64 // version of replicas
	authorities := h.authorities()
	err := h.store.Update(ctx, store.Soft, func(tx store.Tx) error {
		now := tx.Now()
		twin, joined = nil, h.joined
		var err error
		if told, err = store.Load(tx, replicasKey, &replicas); err != nil {
			return err
		}
		have := new(statev1.HostRecord)
		if _, err := store.Load(tx, memberKey(h.id), have); err != nil {
			return err
		}
		if joined == 0 {
			joined = now.UnixMilli()
		} else if have.Process != "" && have.Process != h.process {
			twin = have
		}
		if err := store.Save(tx, memberKey(h.id), &statev1.HostRecord{
			Id: h.id, Version: Version, Grpc: h.grpcListener.Addr().String(), Process: h.process,
			StartedMs: joined, SeenMs: now.UnixMilli(), Authorities: authorities,
		}); err != nil {
			return err
		}
		if err := tx.IndexPut(memberIndex, h.id, uint64(now.UnixMilli())); err != nil {
			return err
		}
		past, err := tx.Scan(memberIndex, 0, uint64(max(now.Add(-memberKept).UnixMilli(), 0)), 0)
		if err != nil {
			return err
		}
		for _, e := range past {
			if err := removeMember(tx, e.Member); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	h.joined = joined
	if want := h.config.RedisReplicas; h.saidReplicas.Load() && told != 0 && int(replicas.Count) != want {
		h.alarms.add(fmt.Sprintf("hard writes of this host wait for %d replicas, those of a host that started later for %d: they are worth the lower number at all of them; give all hosts the same store.redis.replicas", want, replicas.Count))
	}
	if twin != nil {
		h.alarms.add(fmt.Sprintf("another host has this one's id, %s: %s was started with a copy of its data directory; stop it, remove its host.id and redis-*.json, and start it again", h.id, twin.Grpc))
	}
	return nil
}

func removeMember(tx store.Tx, id string) error {
	if err := tx.Delete(memberKey(id)); err != nil {
		return err
	}
	return tx.IndexDelete(memberIndex, id)
}

// others lists the other hosts of a shared store, for people.
func (h *Host) others(ctx context.Context) (lines []string, err error) {
	err = h.store.View(ctx, func(tx store.ReadTx) error {
		lines = nil
		entries, err := tx.Scan(memberIndex, 0, store.MaxScore, 0)
		if err != nil {
			return err
		}
		for _, e := range entries {
			var m statev1.HostRecord
			version, err := store.Load(tx, memberKey(e.Member), &m)
			if err != nil {
				return err
			}
			if version == 0 || m.Id == h.id {
				continue
			}
			silent := tx.Now().Sub(time.UnixMilli(m.SeenMs))
			line := fmt.Sprintf("%s at %s, version %s", m.Id, m.Grpc, m.Version)
			if silent > memberGone {
				line += fmt.Sprintf(", silent for %s", silent.Round(time.Second))
			}
			lines = append(lines, line)
		}
		return nil
	})
	slices.Sort(lines)
	return lines, err
}
