package session

import (
	"context"
	"time"

	statev1 "github.com/dodona-project/dodona/proto/state/v1"

	"github.com/dodona-project/dodona/host/store"
)

// silentTTLs is for how many lease times the leases of a host that fell silent wait
// for it: long enough for their clients to notice and to go to another host.
const silentTTLs = 4

// sign writes down that this host looks after the leases that it serves, twice in a
// heartbeat interval. The sweep alone calls it.
func (r *Registry) sign(ctx context.Context, now int64) error {
	if !r.shared || now-r.signed < r.rules.Heartbeat.Milliseconds()/2 {
		return nil
	}
	err := r.store.Update(ctx, store.Soft, func(tx store.Tx) error {
		return store.Save(tx, servingKey(r.name, r.host), &statev1.Serving{SeenMs: tx.Now().UnixMilli()})
	})
	if err == nil {
		r.signed = now
	}
	return err
}

// unsign leaves what is left of this host's leases to the others.
func (r *Registry) unsign() {
	if !r.shared {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	if err := r.store.Update(ctx, store.Soft, func(tx store.Tx) error {
		return tx.Delete(servingKey(r.name, r.host))
	}); err != nil {
		r.log.Warn("cannot leave the leases of this host to the others: they wait for it", "plane", r.name, "error", err)
	}
}

// ours leaves out of leases those that another host looks after, or did until a short
// while ago: a host that stands still hears no heartbeats, and its silence is not that
// of its clients.
func (r *Registry) ours(tx store.ReadTx, leases []*statev1.Lease, now int64) (ours []*statev1.Lease, err error) {
	if !r.shared {
		return leases, nil
	}
	looked := map[string]bool{r.host: false}
	for _, l := range leases {
		theirs, known := looked[l.GetHost()]
		if !known {
			var s statev1.Serving
			version, err := store.Load(tx, servingKey(r.name, l.GetHost()), &s)
			if err != nil {
				return nil, err
			}
			theirs = version != 0 && now-s.GetSeenMs() <= silentTTLs*r.rules.TTL().Milliseconds()
			looked[l.GetHost()] = theirs
		}
		if !theirs {
			ours = append(ours, l)
		}
	}
	return ours, nil
}
