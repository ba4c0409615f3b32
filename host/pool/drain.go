package pool

import (
	"context"

	controlplanev1 "github.com/dodona-project/dodona/proto/controlplane/v1"
	statev1 "github.com/dodona-project/dodona/proto/state/v1"

	"github.com/dodona-project/dodona/host/limits"
	"github.com/dodona-project/dodona/host/pool/ownership"
	"github.com/dodona-project/dodona/host/refusal"
	"github.com/dodona-project/dodona/host/store"
)

// BeginDrain has a proxy taken from its owner. One that is under way, or has ended
// without a new owner since, is answered and nothing is begun. Refusals: Invalid,
// NotFound, Precondition.
func (p *Pool) BeginDrain(ctx context.Context, actor string, req *controlplanev1.BeginDrainRequest) (*controlplanev1.DrainTicket, error) {
	if err := refusal.Check("proxy_id", limits.ID(req.ProxyId)); err != nil {
		return nil, err
	}
	if err := refusal.Check("reason", limits.Text(req.Reason, limits.ReasonLen)); err != nil {
		return nil, err
	}
	var ticket *controlplanev1.DrainTicket
	return ticket, p.o.Store.Update(ctx, store.Hard, func(tx store.Tx) error {
		proxy, err := loadProxy(tx, req.ProxyId)
		switch {
		case err != nil:
			return err
		case proxy == nil:
			return refusal.New(refusal.NotFound, "there is no proxy %s", req.ProxyId)
		case proxy.Owner == "" && proxy.Drained != controlplanev1.DrainTicket_STATE_UNSPECIFIED && proxy.DrainedEpoch == proxy.AssignmentEpoch:
			ticket = &controlplanev1.DrainTicket{ProxyId: proxy.Id, WorkerId: proxy.DrainedWorker, AssignmentEpoch: proxy.DrainedEpoch, State: proxy.Drained, BarrierVersion: proxy.DrainedBarrier}
			return nil
		case proxy.Owner == "":
			return refusal.New(refusal.Precondition, "proxy %s has no owner: there is nothing to drain", req.ProxyId)
		}
		c, err := loadCrew(tx, proxy.Owner)
		if err != nil {
			return err
		}
		t, found := ownership.Ticket(c.drains, proxy.Id)
		if !found {
			tickets, err := p.drain(tx, c, []*statev1.ProxyState{proxy}, req.Reason, actor)
			if err != nil {
				return err
			}
			t = tickets[0]
		}
		ticket = &controlplanev1.DrainTicket{ProxyId: t.ProxyId, WorkerId: c.id, AssignmentEpoch: t.AssignmentEpoch, State: ownership.StateOf(t), BarrierVersion: t.GetBarrier().GetVersion()}
		return nil
	})
}

// drain begins drains of proxies that a worker owns and that are not being drained,
// with one audit entry.
func (p *Pool) drain(tx store.Tx, c *crew, proxies []*statev1.ProxyState, reason, actor string) (tickets []*statev1.DrainState, err error) {
	epoch, err := nextEpoch(tx)
	if err != nil {
		return nil, err
	}
	for _, proxy := range proxies {
		tickets = append(tickets, ownership.Drain(c.drains, proxy, reason, epoch, tx.Now().UnixMilli()))
	}
	if err := c.saveDrains(tx); err != nil {
		return nil, err
	}
	if err := touch(tx, c.id); err != nil {
		return nil, err
	}
	return tickets, p.auditDrains(tx, actor, c.id, tickets, ownership.Pending)
}

// Find takes over what checks found out about a proxy, in the transaction of the
// checks; one that is gone is none of them. It is the only way in which a proxy
// becomes available.
func (p *Pool) Find(tx store.Tx, id string, f ownership.Finding) error {
	proxy, err := loadProxy(tx, id)
	if err != nil || proxy == nil {
		return err
	}
	old := clone(proxy)
	if !ownership.Find(proxy, f) {
		return nil
	}
	if err := saveProxy(tx, old, proxy); err != nil || proxy.Owner == "" {
		return err
	}
	// Its owner sees the state and what is denied, and none of the rest.
	if old.State == proxy.State && equalStrings(old.DeniedRoutings, proxy.DeniedRoutings) {
		return nil
	}
	return touch(tx, proxy.Owner)
}
