package pool

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"slices"

	statev1 "github.com/dodona-project/dodona/proto/state/v1"
	"google.golang.org/protobuf/proto"

	"github.com/dodona-project/dodona/host/pool/ownership"
	"github.com/dodona-project/dodona/host/store"
)

const (
	configKey   = "pool/config"
	epochKey    = "pool/epoch"
	proxyPrefix = "pool/proxy/"
	planPrefix  = "pool/plan/"

	credentialPrefix = "pool/credential/"

	workersIndex     = "pool/workers"
	dueIndex         = "pool/due"         // proxies, by when something of them is over
	extractionsIndex = "pool/extractions" // by their time
)

func proxyKey(id string) string           { return proxyPrefix + id }
func healthKey(id string) string          { return "pool/health/" + id }
func listedKey(upstream string) string    { return "pool/listed/" + upstream }
func workerKey(id string) string          { return "pool/worker/" + id }
func issuedKey(worker string) string      { return "pool/issued/" + worker }
func runtimeKey(worker string) string     { return "pool/runtime/" + worker }
func outcomesKey(worker string) string    { return "pool/outcomes/" + worker }
func drainsKey(worker string) string      { return "pool/drains/" + worker }
func viewKey(worker string) string        { return "pool/view/" + worker }
func planKey(routing string) string       { return planPrefix + routing }
func planningKey(routing string) string   { return "pool/planning/" + routing }
func shortfallKey(upstream string) string { return "pool/shortfall/" + upstream }
func extractionKey(id string) string      { return "pool/extraction/" + id }
func answerKey(hash []byte) string        { return "pool/extraction-key/" + hex.EncodeToString(hash) }
func proxiesIndex(upstream string) string { return "pool/proxies/" + upstream }
func freeIndex(upstream string) string    { return "pool/free/" + upstream }
func ownedIndex(worker string) string     { return "pool/owned/" + worker }
func heldIndex(worker string) string      { return "pool/held/" + worker }
func credentialKey(secretRef string) string {
	sum := sha256.Sum256([]byte(secretRef))
	return credentialPrefix + hex.EncodeToString(sum[:])
}

// loadSoft is store.Load of what is rebuilt from what clients send again: a damaged
// record reads as none.
func loadSoft(tx store.ReadTx, key string, msg proto.Message) error {
	_, err := store.Load(tx, key, msg)
	if errors.Is(err, store.ErrDamaged) {
		proto.Reset(msg)
		return nil
	}
	return err
}

// crew is what there is of one worker.
type crew struct {
	id      string
	known   bool
	worker  *statev1.WorkerState
	sent    *statev1.WorkerSnapshots
	runtime *statev1.WorkerRuntime
	drains  *statev1.WorkerDrains

	counters map[string]ownership.Counter // of runtime, once they are asked for
}

func crewKeys(id string) []string {
	return []string{workerKey(id), issuedKey(id), runtimeKey(id), drainsKey(id)}
}

// loadCrew reads a worker's records in one round trip.
func loadCrew(tx store.ReadTx, id string) (*crew, error) {
	c := &crew{id: id, worker: new(statev1.WorkerState), sent: new(statev1.WorkerSnapshots), runtime: new(statev1.WorkerRuntime), drains: new(statev1.WorkerDrains)}
	if _, err := tx.GetMany(crewKeys(id)...); err != nil {
		return nil, err
	}
	version, err := store.Load(tx, workerKey(id), c.worker)
	if err != nil {
		return nil, err
	}
	c.known = version != 0
	if err := loadSoft(tx, issuedKey(id), c.sent); err != nil {
		return nil, err
	}
	if err := loadSoft(tx, runtimeKey(id), c.runtime); err != nil {
		return nil, err
	}
	_, err = store.Load(tx, drainsKey(id), c.drains)
	return c, err
}

// loadCrews reads all workers, by id.
func loadCrews(tx store.ReadTx) ([]*crew, error) {
	entries, err := tx.Scan(workersIndex, 0, 0, 0)
	if err != nil {
		return nil, err
	}
	if err := store.Fetch(tx, entries, workerKey, issuedKey, runtimeKey, drainsKey); err != nil {
		return nil, err
	}
	crews := make([]*crew, 0, len(entries))
	for _, e := range entries {
		c, err := loadCrew(tx, e.Member)
		if err != nil {
			return nil, err
		}
		if c.known {
			crews = append(crews, c)
		}
	}
	return crews, nil
}

// counter is what the worker's report says of a proxy.
func (c *crew) counter(proxy string) ownership.Counter {
	if c.counters == nil {
		c.counters = map[string]ownership.Counter{}
		for _, counter := range ownership.Counters(c.runtime) {
			c.counters[counter.ProxyID] = counter
		}
	}
	return c.counters[proxy]
}

// usedBy is the worker whose reports count a proxy; empty = none's.
func usedBy(s *statev1.ProxyState) string { return cmp.Or(s.Owner, s.Holder) }

// loadUsers reads the workers that proxies are used by, in one round trip.
func loadUsers(tx store.ReadTx, proxies []*statev1.ProxyState) (map[string]*crew, error) {
	crews := map[string]*crew{}
	var keys []string
	for _, s := range proxies {
		if by := usedBy(s); by != "" && crews[by] == nil {
			crews[by] = &crew{}
			keys = append(keys, crewKeys(by)...)
		}
	}
	if _, err := tx.GetMany(keys...); err != nil {
		return nil, err
	}
	for by := range crews {
		c, err := loadCrew(tx, by)
		if err != nil {
			return nil, err
		}
		crews[by] = c
	}
	return crews, nil
}

func (c *crew) saveDrains(tx store.Tx) error {
	if len(c.drains.Tickets) == 0 {
		return tx.Delete(drainsKey(c.id))
	}
	return store.Save(tx, drainsKey(c.id), c.drains)
}

// touch tells the hosts that a worker's view has changed. Only the version of the
// record counts.
func touch(tx store.Tx, worker string) error { return tx.Put(viewKey(worker), []byte{1}) }

// readEpoch is the ownership epoch.
func readEpoch(tx store.ReadTx) (uint64, error) {
	e := new(statev1.PoolEpoch)
	_, err := store.Load(tx, epochKey, e)
	return e.OwnershipEpoch, err
}

// nextEpoch moves the ownership epoch. Once in a transaction is enough.
func nextEpoch(tx store.Tx) (uint64, error) {
	now, err := readEpoch(tx)
	if err != nil {
		return 0, err
	}
	return now + 1, store.Save(tx, epochKey, &statev1.PoolEpoch{OwnershipEpoch: now + 1})
}

// loadProxy reads a proxy; nil when there is none.
func loadProxy(tx store.ReadTx, id string) (*statev1.ProxyState, error) {
	p := new(statev1.ProxyState)
	version, err := store.Load(tx, proxyKey(id), p)
	if err != nil || version == 0 {
		return nil, err
	}
	return p, nil
}

// loadProxies reads the proxies of index entries in one round trip, without those
// that are gone.
func loadProxies(tx store.ReadTx, entries []store.Entry) ([]*statev1.ProxyState, error) {
	keys := make([]string, len(entries))
	for i, e := range entries {
		keys[i] = proxyKey(e.Member)
	}
	records, err := tx.GetMany(keys...)
	if err != nil {
		return nil, err
	}
	all := make([]*statev1.ProxyState, 0, len(entries))
	for i, r := range records {
		if !r.Exists() {
			continue
		}
		p := new(statev1.ProxyState)
		if err := store.Parse(keys[i], r, p); err != nil {
			return nil, err
		}
		all = append(all, p)
	}
	return all, nil
}

// fetchSupply reads all proxies of upstreams that end at from or later, so that scans
// and loads of each upstream find them there: it takes two round trips, whatever their
// number.
func fetchSupply(tx store.ReadTx, from uint64, upstreams ...string) error {
	queries := make([]store.ScanQuery, len(upstreams))
	for i, name := range upstreams {
		queries[i] = store.ScanQuery{Index: proxiesIndex(name), From: from, To: store.MaxScore}
	}
	found, err := store.ScanMany(tx, queries...)
	if err != nil {
		return err
	}
	return store.Fetch(tx, slices.Concat(found...), proxyKey)
}

// places are the indexes that a proxy is in, and its scores there.
func places(p *statev1.ProxyState) map[string]uint64 {
	at := map[string]uint64{proxiesIndex(p.Upstream): uint64(p.ExpiresMs), dueIndex: uint64(dueAt(p))}
	if ownership.Free(p) {
		at[freeIndex(p.Upstream)] = uint64(p.UsableMs)
	}
	if p.Owner != "" {
		at[ownedIndex(p.Owner)] = 0
	}
	if p.Holder != "" {
		at[heldIndex(p.Holder)] = 0
	}
	return at
}

// dueAt is when something of a proxy is over.
func dueAt(p *statev1.ProxyState) int64 {
	switch p.State {
	case ownership.Extracted:
		return p.ExpiresMs
	case ownership.Expired:
		return p.ExpiresMs + keepExpired.Milliseconds()
	case ownership.Unhealthy:
		return min(p.UsableMs, p.UnhealthyMs+evictAfter.Milliseconds())
	}
	return p.UsableMs
}

// saveProxy writes a proxy, and what changed of its places; old is as it was read, nil
// = it is new.
func saveProxy(tx store.Tx, old, p *statev1.ProxyState) error {
	if old != nil && proto.Equal(old, p) {
		return nil
	}
	if err := store.Save(tx, proxyKey(p.Id), p); err != nil {
		return err
	}
	// What is extracted is found out when it is to be checked: that costs the others
	// nothing.
	if was := old != nil && checked(old.State); was != checked(p.State) && p.State != ownership.Extracted {
		if err := tx.Put(listedKey(p.Upstream), []byte{1}); err != nil {
			return err
		}
	}
	if old != nil && old.State == ownership.Expired && p.State == ownership.New { // it begins anew
		if err := tx.Delete(healthKey(p.Id)); err != nil {
			return err
		}
	}
	return place(tx, p.Id, old, p)
}

// deleteProxy removes a proxy as it was read.
func deleteProxy(tx store.Tx, old *statev1.ProxyState) error {
	for _, key := range []string{proxyKey(old.Id), healthKey(old.Id)} {
		if err := tx.Delete(key); err != nil {
			return err
		}
	}
	return place(tx, old.Id, old, nil)
}

func place(tx store.Tx, id string, old, p *statev1.ProxyState) error {
	was, is := map[string]uint64{}, map[string]uint64{}
	if old != nil {
		was = places(old)
	}
	if p != nil {
		is = places(p)
	}
	for index := range was {
		if _, stays := is[index]; !stays {
			if err := tx.IndexDelete(index, id); err != nil {
				return err
			}
		}
	}
	for index, score := range is {
		if before, there := was[index]; !there || before != score {
			if err := tx.IndexPut(index, id, score); err != nil {
				return err
			}
		}
	}
	return nil
}
