package pool

import (
	"context"
	"slices"

	statev1 "github.com/dodona-project/dodona/proto/state/v1"

	"github.com/dodona-project/dodona/host/pool/ownership"
	"github.com/dodona-project/dodona/host/pool/poolconfig"
	"github.com/dodona-project/dodona/host/store"
)

// connections is what a worker can serve that did not say.
const connections = 1_000

// decideMost bounds what one look moves; the next one goes on.
const decideMost = 4_096

// Allocate shares free proxies out and begins the drains that are due. It looks at all
// there is as of one revision, and each transaction that moves something looks at that
// again: what has changed meanwhile is left for the next look.
func (p *Pool) Allocate(ctx context.Context) error {
	var assign []ownership.Assignment
	var drain []ownership.Departure
	err := p.o.Store.View(ctx, func(tx store.ReadTx) error {
		assign, drain = nil, nil
		have, err := p.lookUp(tx)
		if err != nil || have == nil {
			return err
		}
		crews, err := loadCrews(tx)
		if err != nil || len(crews) == 0 {
			return err
		}
		workers, upstreams, err := p.census(tx, have, crews)
		if err != nil {
			return err
		}
		assign, drain = ownership.Decide(workers, upstreams, decideMost)
		return nil
	})
	if err != nil {
		return err
	}
	for some := range slices.Chunk(assign, batch) {
		if err := p.o.Store.Update(ctx, store.Hard, func(tx store.Tx) error { return p.assign(tx, some) }); err != nil {
			return err
		}
	}
	slices.SortStableFunc(drain, func(a, b ownership.Departure) int {
		if a.Worker != b.Worker {
			return compare(a.Worker, b.Worker)
		}
		return compare(a.Reason, b.Reason)
	})
	for len(drain) > 0 {
		n := 1
		for n < len(drain) && n < batch && drain[n].Worker == drain[0].Worker && drain[n].Reason == drain[0].Reason {
			n++
		}
		some := drain[:n]
		if err := p.o.Store.Update(ctx, store.Hard, func(tx store.Tx) error { return p.depart(tx, some) }); err != nil {
			return err
		}
		drain = drain[n:]
	}
	return nil
}

func compare(a, b string) int {
	switch {
	case a < b:
		return -1
	case a > b:
		return 1
	}
	return 0
}

// census is all that is to be shared out, and among whom.
func (p *Pool) census(tx store.ReadTx, have *published, crews []*crew) (workers []ownership.Worker, upstreams []ownership.Upstream, err error) {
	now := tx.Now().UnixMilli()
	byID := map[string]*ownership.Worker{}
	workers = make([]ownership.Worker, len(crews))
	draining := map[string]bool{}
	for i, c := range crews {
		workers[i] = p.capacity(have.times, c, now)
		byID[c.id] = &workers[i]
		for _, t := range c.drains.Tickets {
			draining[t.ProxyId] = true
		}
	}
	names, err := upstreamNames(tx, have)
	if err != nil {
		return nil, nil, err
	}
	if err := fetchSupply(tx, 0, names...); err != nil {
		return nil, nil, err
	}
	var held []store.ScanQuery
	for _, c := range crews {
		held = append(held, store.ScanQuery{Index: heldIndex(c.id), Limit: p.o.MaxCounters})
	}
	holding, err := store.ScanMany(tx, held...)
	if err != nil {
		return nil, nil, err
	}
	short := make([]string, len(names))
	for i, name := range names {
		short[i] = shortfallKey(name)
	}
	if _, err := tx.GetMany(short...); err != nil {
		return nil, nil, err
	}
	wants, err := loadWants(tx, names, now)
	if err != nil {
		return nil, nil, err
	}
	for _, name := range names {
		configured, ok := have.config.Upstream(name)
		if !ok { // as if it were disabled
			configured = &poolconfig.Upstream{Name: name}
		}
		u, err := p.supply(tx, configured, draining, byID, wants, now)
		if err != nil {
			return nil, nil, err
		}
		upstreams = append(upstreams, u)
	}
	takeFrom(upstreams, wants)
	// Those that expired and are held, too, may come up in its reports.
	for i := range workers {
		workers[i].Slots = max(workers[i].Slots-len(holding[i]), 0)
	}
	return workers, upstreams, nil
}

// capacity is what a worker can take. One that has not reported lately, or refused its
// snapshot, takes nothing: what it is doing is not known.
func (p *Pool) capacity(t ownership.Times, c *crew, now int64) ownership.Worker {
	w := ownership.Worker{ID: c.id, Zone: c.worker.Zone, Slots: p.o.MaxCounters}
	serves := int(min(c.worker.MaxConnections, 1<<20))
	if serves == 0 {
		serves = connections
	}
	fresh := c.runtime.SessionId == c.worker.SessionId && now < c.runtime.AcceptedMs+t.ReportTTL.Milliseconds()
	if !ownership.Live(t, c.worker, c.runtime, now) || !fresh || ownership.Shut(c.sent) {
		w.Silent = true
		return w
	}
	w.Leaving = c.runtime.Draining
	used := 0
	for _, counter := range ownership.Counters(c.runtime) {
		used += int(min(counter.Uses(), 1<<20))
	}
	w.Room = max(serves-used, 0)
	return w
}

// supply is what there is of one upstream, and takes what workers own of it off what
// they may still take, and of wants what is free, is being drained or could be.
func (p *Pool) supply(tx store.ReadTx, u *poolconfig.Upstream, draining map[string]bool, workers map[string]*ownership.Worker, wants []*want, now int64) (ownership.Upstream, error) {
	out := ownership.Upstream{Name: u.Name, Keep: int(u.ExtractReserve), Owned: map[string][]string{}}
	entries, err := tx.Scan(proxiesIndex(u.Name), 0, store.MaxScore, 0)
	if err != nil {
		return out, err
	}
	proxies, err := loadProxies(tx, entries)
	if err != nil {
		return out, err
	}
	for _, proxy := range proxies {
		switch {
		case ownership.Free(proxy):
			if u.Enabled && now < proxy.UsableMs {
				out.Free = append(out.Free, proxy.Id)
			}
		case proxy.Owner == "":
		case draining[proxy.Id]:
			out.Draining++
		default:
			out.Owned[proxy.Owner] = append(out.Owned[proxy.Owner], proxy.Id)
		}
		if w := workers[proxy.Owner]; w != nil {
			w.Slots = max(w.Slots-1, 0)
		}
	}
	if u.Enabled {
		keepWanted(&out, proxies, draining, workers, wants)
	}
	if !u.Enabled { // nothing of it moves, but for workers that leave
		out.Keep = 0
	}
	return out, nil
}

// assign gives free proxies to workers that still take some.
func (p *Pool) assign(tx store.Tx, some []ownership.Assignment) error {
	have, err := p.lookUp(tx)
	if err != nil || have == nil {
		return err
	}
	now := tx.Now().UnixMilli()
	keys := make([]string, 0, 5*len(some))
	var has []store.ScanQuery
	asked := map[string]bool{}
	for _, a := range some {
		keys = append(keys, proxyKey(a.Proxy))
		if asked[a.Worker] {
			continue
		}
		asked[a.Worker] = true
		keys = append(keys, crewKeys(a.Worker)...)
		for _, index := range []string{ownedIndex(a.Worker), heldIndex(a.Worker)} {
			has = append(has, store.ScanQuery{Index: index, Limit: p.o.MaxCounters})
		}
	}
	_, err = tx.GetMany(keys...)
	if _, failed := store.ScanMany(tx, has...); err == nil { // in the same round trip
		err = failed
	}
	if err != nil {
		return err
	}
	// Every assignment moves the epoch, so that no two of them count at the same time.
	takes := map[string]int{}
	for _, a := range some {
		if _, known := takes[a.Worker]; known {
			continue
		}
		c, err := loadCrew(tx, a.Worker)
		if err != nil {
			return err
		}
		if takes[a.Worker], err = p.slots(tx, have, c, now); err != nil {
			return err
		}
	}
	moved := map[string]bool{}
	for _, a := range some {
		proxy, err := loadProxy(tx, a.Proxy)
		if err != nil {
			return err
		}
		if proxy == nil || takes[a.Worker] <= 0 {
			continue
		}
		old := clone(proxy)
		if !ownership.Assign(proxy, a.Worker, now) {
			continue
		}
		if err := saveProxy(tx, old, proxy); err != nil {
			return err
		}
		moved[a.Worker] = true
		takes[a.Worker]--
	}
	if len(moved) == 0 {
		return nil
	}
	if _, err := nextEpoch(tx); err != nil {
		return err
	}
	for worker := range moved {
		if err := touch(tx, worker); err != nil {
			return err
		}
	}
	return nil
}

// slots is how many proxies a worker may still be given.
func (p *Pool) slots(tx store.ReadTx, have *published, c *crew, now int64) (int, error) {
	w := p.capacity(have.times, c, now)
	if !c.known || w.Leaving || w.Room == 0 {
		return 0, nil
	}
	owned, err := tx.Scan(ownedIndex(c.id), 0, 0, p.o.MaxCounters)
	if err != nil {
		return 0, err
	}
	held, err := tx.Scan(heldIndex(c.id), 0, 0, p.o.MaxCounters)
	return max(p.o.MaxCounters-len(owned)-len(held), 0), err // another host may have given it more
}

// depart begins drains of one worker's proxies.
func (p *Pool) depart(tx store.Tx, some []ownership.Departure) error {
	c, err := loadCrew(tx, some[0].Worker)
	if err != nil || !c.known {
		return err
	}
	entries := make([]store.Entry, len(some))
	for i, d := range some {
		entries[i].Member = d.Proxy
	}
	proxies, err := loadProxies(tx, entries)
	if err != nil {
		return err
	}
	proxies = slices.DeleteFunc(proxies, func(s *statev1.ProxyState) bool {
		_, found := ownership.Ticket(c.drains, s.Id)
		return found || s.Owner != c.id
	})
	if len(proxies) == 0 {
		return nil
	}
	_, err = p.drain(tx, c, proxies, some[0].Reason, p.actor)
	return err
}
