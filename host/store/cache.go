package store

import (
	"context"
	"sync"
)

// cache keeps records and log heads of a Remote, those that are not there too.
// All of it may be stale; a commit finds out. Only the leader uses it, and the
// lock is for those who lead in turn.
type cache struct {
	mu       sync.Mutex
	max      int
	records  map[string]Record
	heads    map[string]uint64
	revision uint64 // the newest seen
	epoch    uint64 // of all the above
}

func newCache(limit int) *cache {
	return &cache{max: limit, records: make(map[string]Record), heads: make(map[string]uint64)}
}

// put remembers a record and drops another one, whichever, when it is full.
func (c *cache) put(key string, r Record) {
	if _, ok := c.records[key]; !ok && len(c.records) >= c.max {
		for k := range c.records {
			delete(c.records, k)
			break
		}
	}
	c.records[key] = r
}

func (c *cache) putHead(log string, head uint64) {
	if _, ok := c.heads[log]; !ok && len(c.heads) >= c.max {
		for k := range c.heads {
			delete(c.heads, k)
			break
		}
	}
	c.heads[log] = head
}

// enter forgets all that is of another epoch, and returns the newest revision.
func (c *cache) enter(epoch uint64) (revision uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.epoch != epoch {
		c.epoch, c.revision = epoch, 0
		clear(c.records)
		clear(c.heads)
	}
	return c.revision
}

func (c *cache) fill(a *Answer) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.revision = max(c.revision, a.Revision)
	for key, r := range a.Records {
		c.put(key, r)
	}
	for log, head := range a.Heads {
		c.putHead(log, head)
	}
}

// pinned is what one batch, or one View, has fetched: kept for as long as it
// runs, so that the cache dropping a record cannot make it run for ever.
type pinned struct {
	cache   *cache // nil in a View
	epoch   uint64
	rev     uint64
	records recordSet
	known   Answer // all but the records
	miss    Query
	asked   Query // all that was ever missed
}

func newPinned(c *cache, epoch uint64) *pinned {
	p := &pinned{cache: c, epoch: epoch}
	p.forget()
	if c != nil {
		p.rev = c.enter(epoch)
	}
	return p
}

func (p *pinned) forget() { p.records, p.known = recordSet{}, Answer{} }

// keep adds one thing to a map that is made when it is needed.
func keep[K comparable, V any](m *map[K]V, key K, value V) {
	if *m == nil {
		*m = make(map[K]V)
	}
	(*m)[key] = value
}

func (p *pinned) revision() uint64 { return p.rev }

func (p *pinned) get(key string) (Record, bool) {
	if r, ok := p.records.get(key); ok {
		return r.Record, true
	}
	if p.cache != nil {
		p.cache.mu.Lock()
		r, ok := p.cache.records[key]
		p.cache.mu.Unlock()
		if ok {
			p.records.put(key, overlayRecord{Record: r})
			return r, true
		}
	}
	p.miss.Records = append(p.miss.Records, key)
	return Record{}, false
}

func (p *pinned) head(log string) (uint64, bool) {
	if h, ok := p.known.Heads[log]; ok {
		return h, true
	}
	if p.cache != nil {
		p.cache.mu.Lock()
		h, ok := p.cache.heads[log]
		p.cache.mu.Unlock()
		if ok {
			keep(&p.known.Heads, log, h)
			return h, true
		}
	}
	p.miss.Heads = append(p.miss.Heads, log)
	return 0, false
}

func (p *pinned) scan(q ScanQuery) ([]Entry, bool) {
	if found, ok := p.known.Scans[q]; ok {
		return found, true
	}
	p.miss.Scans = append(p.miss.Scans, q)
	return nil, false
}

func (p *pinned) readLog(q LogQuery) ([]LogEntry, bool, error) {
	if found, ok := p.known.Logs[q]; ok {
		return found, true, nil
	}
	p.miss.Logs = append(p.miss.Logs, q)
	// What is read and where the log ends have to be of one revision.
	p.miss.Heads = append(p.miss.Heads, q.Log)
	return nil, false, nil
}

// wanted is the query for what was missed since the last one.
func (p *pinned) wanted() *Query {
	q := p.miss
	p.miss = Query{}
	return &q
}

// wantedAll is the query for all that was ever missed, to have it anew at one
// revision.
func (p *pinned) wantedAll() *Query {
	p.asked.Records = append(p.asked.Records, p.miss.Records...)
	p.asked.Heads = append(p.asked.Heads, p.miss.Heads...)
	p.asked.Scans = append(p.asked.Scans, p.miss.Scans...)
	p.asked.Logs = append(p.asked.Logs, p.miss.Logs...)
	p.miss = Query{}
	return &p.asked
}

func (p *pinned) fill(a *Answer) {
	p.rev = max(p.rev, a.Revision)
	for key, r := range a.Records {
		p.records.put(key, overlayRecord{Record: r})
	}
	for log, head := range a.Heads {
		keep(&p.known.Heads, log, head)
	}
	for q, found := range a.Scans {
		keep(&p.known.Scans, q, found)
	}
	for q, found := range a.Logs {
		keep(&p.known.Logs, q, found)
	}
	if p.cache != nil {
		p.cache.fill(a)
	}
}

// conflict takes over the fresh records and forgets scans and log entries,
// which belong to an older revision.
func (p *pinned) conflict(a *Answer) {
	clear(p.known.Scans)
	clear(p.known.Logs)
	p.miss = Query{}
	p.fill(a)
}

// committed puts what the batch wrote into the cache.
func (p *pinned) committed(base uint64, txs []TxWrites) {
	c := p.cache
	c.mu.Lock()
	defer c.mu.Unlock()
	// What was read was checked by the commit, so it is fresh.
	for key, r := range p.records.all {
		c.put(key, r.Record)
	}
	for i, tx := range txs {
		for _, w := range tx.Records {
			r := Record{}
			if !w.Delete {
				r = Record{Value: w.Value, Version: base + 1 + uint64(i)}
			}
			c.put(w.Key, r)
		}
		for _, a := range tx.Appends {
			c.putHead(a.Log, a.Seq)
		}
	}
	c.revision = max(c.revision, base+uint64(len(txs)))
}

// viewRemote runs fn until all it asks for was answered at one revision, and
// waits until the hard writes that it has seen are durable.
func (e *Engine) viewRemote(ctx context.Context, fn func(tx ReadTx) error) (again bool, err error) {
	p := newPinned(nil, 0)
	a, err := e.remote.Read(ctx, &Query{})
	if err != nil {
		return false, err
	}
	now := e.backend.Now() // for all runs: what fn asks for by the time is what is fetched
	for {
		p.rev = a.Revision
		p.forget()
		p.fill(a)
		t := &txn{src: p, below: &emptyOverlay, revision: a.Revision, now: now}
		err = fn(readOnly{t})
		t.dead = true
		if !t.missed {
			if a.Durable != nil {
				if derr := a.Durable(ctx); derr != nil {
					return false, derr
				}
			}
			return false, err
		}
		if a, err = e.remote.Read(ctx, p.wantedAll()); err != nil {
			return false, err
		}
	}
}
