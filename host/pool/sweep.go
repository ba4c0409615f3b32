package pool

import (
	"context"
	"slices"

	statev1 "github.com/dodona-project/dodona/proto/state/v1"
	"google.golang.org/protobuf/proto"

	"github.com/dodona-project/dodona/host/pool/ownership"
	"github.com/dodona-project/dodona/host/store"
)

func clone(p *statev1.ProxyState) *statev1.ProxyState { return proto.CloneOf(p) }

func equalStrings(a, b []string) bool { return slices.Equal(a, b) }

// Sweep ends what is over: proxies whose time has come, what dead workers owned,
// answers of extractions that are not remembered any longer.
func (p *Pool) Sweep(ctx context.Context) error {
	for _, step := range []func(context.Context) error{p.expire, p.bury, p.forget} {
		if err := step(ctx); err != nil {
			return err
		}
	}
	return nil
}

// expire ends the proxies whose time is over, and forgets those that ended a while
// ago.
func (p *Pool) expire(ctx context.Context) error {
	for {
		// Looked at first: most of the time there is nothing.
		var due []store.Entry
		if err := p.o.Store.View(ctx, func(tx store.ReadTx) (err error) {
			due, err = tx.Scan(dueIndex, 0, uint64(tx.Now().UnixMilli()), batch)
			return err
		}); err != nil || len(due) == 0 {
			return err
		}
		if err := p.o.Store.Update(ctx, store.Hard, func(tx store.Tx) error { return p.expireDue(tx, due) }); err != nil {
			return err
		}
		if len(due) < batch {
			return nil
		}
	}
}

func (p *Pool) expireDue(tx store.Tx, due []store.Entry) error {
	now := tx.Now().UnixMilli()
	proxies, err := loadProxies(tx, due)
	if err != nil {
		return err
	}
	there := map[string]*statev1.ProxyState{}
	for _, proxy := range proxies {
		there[proxy.Id] = proxy
	}
	crews, err := loadUsers(tx, proxies)
	if err != nil {
		return err
	}
	epoch := uint64(0)
	touched, undrained := map[string]*crew{}, map[string]*crew{}
	for _, e := range due {
		proxy := there[e.Member]
		if proxy == nil { // the index is a hint
			if err := tx.IndexDelete(dueIndex, e.Member); err != nil {
				return err
			}
			continue
		}
		if at := dueAt(proxy); at > now {
			if err := tx.IndexPut(dueIndex, proxy.Id, uint64(at)); err != nil {
				return err
			}
			continue
		}
		if proxy.State == ownership.Extracted || proxy.State == ownership.Expired && proxy.Holder == "" {
			if err := deleteProxy(tx, proxy); err != nil {
				return err
			}
			continue
		}
		c := crews[usedBy(proxy)]
		old := clone(proxy)
		if proxy.State == ownership.Expired { // somebody holds it
			if c.known && !ownership.Unused(c.sent, c.runtime, proxy.Id, proxy.HeldEpoch) {
				if err := tx.IndexPut(dueIndex, proxy.Id, uint64(now+keepExpired.Milliseconds())); err != nil {
					return err
				}
				continue
			}
			if err := deleteProxy(tx, old); err != nil {
				return err
			}
			continue
		}
		if proxy.Owner != "" && epoch == 0 {
			if epoch, err = nextEpoch(tx); err != nil {
				return err
			}
		}
		ownership.Expire(proxy, epoch, now)
		if err := saveProxy(tx, old, proxy); err != nil {
			return err
		}
		if c != nil {
			touched[c.id] = c
			if ownership.Drop(c.drains, proxy.Id) {
				undrained[c.id] = c
			}
		}
	}
	for _, c := range undrained { // once: a worker's drains are one record, which may be long
		if err := c.saveDrains(tx); err != nil {
			return err
		}
	}
	for id := range touched {
		if err := touch(tx, id); err != nil {
			return err
		}
	}
	return nil
}

// bury ends what workers own that have been silent for so long that they must have
// closed all they had, and forgets those that own nothing any more.
func (p *Pool) bury(ctx context.Context) error {
	var dead []string
	err := p.o.Store.View(ctx, func(tx store.ReadTx) error {
		dead = nil
		have, err := p.lookUp(tx)
		if err != nil || have == nil {
			return err
		}
		crews, err := loadCrews(tx)
		if err != nil {
			return err
		}
		now := tx.Now().UnixMilli()
		p.listen(crews, now)
		for _, c := range crews {
			if ownership.Live(have.times, c.worker, c.runtime, now) || !p.isDead(have.times, c, now) {
				continue
			}
			dead = append(dead, c.id)
		}
		return nil
	})
	if err != nil {
		return err
	}
	for _, id := range dead {
		if err := p.buryOne(ctx, id); err != nil {
			return err
		}
	}
	return nil
}

// listen notes what is new of each worker.
func (p *Pool) listen(crews []*crew, now int64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	there := map[string]bool{}
	for _, c := range crews {
		there[c.id] = true
		heard := ownership.Heard(c.worker, c.runtime, c.sent)
		if s, known := p.silent[c.id]; !known || s.heard != heard || now < s.since {
			p.silent[c.id] = silence{heard: heard, since: now}
		}
	}
	for id := range p.silent {
		if !there[id] {
			delete(p.silent, id)
		}
	}
}

// isDead reports whether a worker has been silent for long enough, both by what the
// store says and by what this host has seen of it.
func (p *Pool) isDead(t ownership.Times, c *crew, now int64) bool {
	p.mu.Lock()
	s, known := p.silent[c.id]
	p.mu.Unlock()
	heard := ownership.Heard(c.worker, c.runtime, c.sent)
	most := ownership.DeadAfter(t, c.worker).Milliseconds()
	return known && s.heard == heard && now >= heard+most && now >= s.since+most
}

// buryOne takes everything from a dead worker, and forgets it. It looks again in each
// transaction: a worker that is heard of meanwhile keeps what it has.
func (p *Pool) buryOne(ctx context.Context, id string) error {
	for done := false; !done; {
		err := p.o.Store.Update(ctx, store.Hard, func(tx store.Tx) (err error) {
			done, err = p.strip(tx, id)
			return err
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// strip is one transaction of buryOne; done when nothing is left to do.
func (p *Pool) strip(tx store.Tx, id string) (done bool, err error) {
	have, err := p.lookUp(tx)
	if err != nil || have == nil {
		return true, err
	}
	c, err := loadCrew(tx, id)
	if err != nil || !c.known {
		return true, err
	}
	now := tx.Now().UnixMilli()
	if ownership.Live(have.times, c.worker, c.runtime, now) || !p.isDead(have.times, c, now) {
		return true, nil
	}
	held, err := tx.Scan(heldIndex(id), 0, 0, batch)
	if err != nil {
		return false, err
	}
	if done, err := p.letGo(tx, id, held); !done || err != nil {
		return false, err
	}
	owned, err := tx.Scan(ownedIndex(id), 0, 0, batch)
	if err != nil {
		return false, err
	}
	if len(owned) == 0 {
		return true, p.forgetWorker(tx, id)
	}
	return false, p.takeOwned(tx, c, owned)
}

// letGo ends what a dead worker held; done when there was nothing.
func (p *Pool) letGo(tx store.Tx, id string, held []store.Entry) (done bool, err error) {
	proxies, err := loadProxies(tx, held)
	if err != nil {
		return false, err
	}
	done = len(held) == 0
	for _, proxy := range proxies {
		old := clone(proxy)
		if !ownership.LetGo(proxy, id) {
			continue
		}
		if err := saveProxy(tx, old, proxy); err != nil {
			return false, err
		}
	}
	return done, dropStale(tx, heldIndex(id), held, proxies, func(s *statev1.ProxyState) bool { return s.Holder == id })
}

// dropStale removes members of an index that their records do not bear out.
func dropStale(tx store.Tx, index string, entries []store.Entry, proxies []*statev1.ProxyState, holds func(*statev1.ProxyState) bool) error {
	for _, e := range entries {
		if !slices.ContainsFunc(proxies, func(s *statev1.ProxyState) bool { return s.Id == e.Member && holds(s) }) {
			if err := tx.IndexDelete(index, e.Member); err != nil {
				return err
			}
		}
	}
	return nil
}

func (p *Pool) takeOwned(tx store.Tx, c *crew, owned []store.Entry) error {
	if _, err := nextEpoch(tx); err != nil {
		return err
	}
	proxies, err := loadProxies(tx, owned)
	if err != nil {
		return err
	}
	if err := dropStale(tx, ownedIndex(c.id), owned, proxies, func(s *statev1.ProxyState) bool { return s.Owner == c.id }); err != nil {
		return err
	}
	var tickets []*statev1.DrainState
	for _, proxy := range proxies {
		if proxy.Owner != c.id {
			continue
		}
		t, found := ownership.Ticket(c.drains, proxy.Id)
		if !found {
			t = &statev1.DrainState{ProxyId: proxy.Id, AssignmentEpoch: proxy.AssignmentEpoch}
		}
		tickets = append(tickets, t)
	}
	if len(tickets) == 0 {
		return nil
	}
	_, err = p.release(tx, c, tickets, ownership.ForceReleased, p.actor)
	return err
}

func (p *Pool) forgetWorker(tx store.Tx, id string) error {
	for _, key := range append(crewKeys(id), outcomesKey(id), viewKey(id)) {
		if err := tx.Delete(key); err != nil {
			return err
		}
	}
	return tx.IndexDelete(workersIndex, id)
}

// forget removes the answers of extractions that are older than they are kept.
func (p *Pool) forget(ctx context.Context) error {
	for {
		n := 0
		var old []store.Entry
		if err := p.o.Store.View(ctx, func(tx store.ReadTx) (err error) {
			old, err = tx.Scan(extractionsIndex, 0, uint64(max(tx.Now().Add(-keepAnswers).UnixMilli(), 0)), batch)
			return err
		}); err != nil || len(old) == 0 {
			return err
		}
		err := p.o.Store.Update(ctx, store.Hard, func(tx store.Tx) error {
			n = len(old)
			for _, e := range old {
				x := new(statev1.Extraction)
				if _, err := store.Load(tx, extractionKey(e.Member), x); err != nil {
					return err
				}
				if x.CreatedMs > tx.Now().Add(-keepAnswers).UnixMilli() {
					continue
				}
				if err := forgetKey(tx, x.Key, e.Member); err != nil {
					return err
				}
				if err := tx.Delete(extractionKey(e.Member)); err != nil {
					return err
				}
				if err := tx.IndexDelete(extractionsIndex, e.Member); err != nil {
					return err
				}
			}
			return nil
		})
		if err != nil || n < batch {
			return err
		}
	}
}

// forgetKey removes what a key is remembered by, unless it stands for another extraction
// than that one by now: a key may be used anew once its answer is a day old.
func forgetKey(tx store.Tx, key []byte, extraction string) error {
	if len(key) == 0 {
		return nil
	}
	k := new(statev1.ExtractionKey)
	if _, err := store.Load(tx, answerKey(key), k); err != nil || k.ExtractionId != extraction {
		return err
	}
	return tx.Delete(answerKey(key))
}
