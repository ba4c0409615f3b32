package rollout_test

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/dodona-project/dodona/host/store"
)

// memStore is a serialisable store in memory whose clock the test sets: what a
// real store's clock cannot be made to do (step, stand still) is tested with it.
type memStore struct {
	mu      sync.Mutex
	now     func() time.Time
	rev     uint64
	records map[string]store.Record
	indexes map[string]map[string]uint64
	logs    map[string][][]byte
	fail    error // returned by Updates that are hard, when set
	hard    int   // committed hard transactions
	wrote   int   // committed transactions that wrote anything
}

func newMemStore(now func() time.Time) *memStore {
	return &memStore{now: now, records: map[string]store.Record{}, indexes: map[string]map[string]uint64{}, logs: map[string][][]byte{}}
}

func (m *memStore) Update(ctx context.Context, d store.Durability, fn func(store.Tx) error) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	tx := m.transaction()
	if err := fn(tx); err != nil {
		return err
	}
	if d == store.Hard && m.fail != nil {
		return m.fail
	}
	if tx.wrote {
		m.rev, m.records, m.indexes, m.logs = tx.rev, tx.records, tx.indexes, tx.logs
		m.wrote++
		if d == store.Hard {
			m.hard++
		}
	}
	return nil
}

// transaction is one on a copy of what is there; m is locked.
func (m *memStore) transaction() *memTx {
	tx := &memTx{m: m, rev: m.rev + 1, records: maps.Clone(m.records), indexes: map[string]map[string]uint64{}, logs: maps.Clone(m.logs)}
	for name, ix := range m.indexes {
		tx.indexes[name] = maps.Clone(ix)
	}
	return tx
}

func (m *memStore) View(ctx context.Context, fn func(store.ReadTx) error) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	return fn(&memTx{m: m, rev: m.rev, records: m.records, indexes: m.indexes, logs: m.logs})
}

func (m *memStore) Watch(context.Context, string) <-chan struct{} { return nil }
func (m *memStore) Info() store.Info                              { return store.Info{} }
func (m *memStore) Close() error                                  { return nil }

type memTx struct {
	m       *memStore
	rev     uint64
	wrote   bool
	records map[string]store.Record
	indexes map[string]map[string]uint64
	logs    map[string][][]byte
}

func (t *memTx) Revision() uint64                     { return t.rev }
func (t *memTx) Now() time.Time                       { return t.m.now() }
func (t *memTx) Get(key string) (store.Record, error) { return t.records[key], nil }
func (t *memTx) GetMany(k ...string) (r []store.Record, _ error) {
	for _, key := range k {
		r = append(r, t.records[key])
	}
	return r, nil
}

func (t *memTx) Scan(index string, from, to uint64, limit int) (out []store.Entry, _ error) {
	for member, score := range t.indexes[index] {
		if score >= from && score <= to {
			out = append(out, store.Entry{Member: member, Score: score})
		}
	}
	slices.SortFunc(out, func(a, b store.Entry) int {
		return cmp.Or(cmp.Compare(a.Score, b.Score), cmp.Compare(a.Member, b.Member))
	})
	if limit > 0 && len(out) > limit {
		out = out[:limit]
	}
	return out, nil
}

func (t *memTx) ReadLog(log string, from uint64, limit int) (out []store.LogEntry, _ error) {
	for i, payload := range t.logs[log] {
		if seq := uint64(i + 1); seq >= from && (limit == 0 || len(out) < limit) {
			out = append(out, store.LogEntry{Seq: seq, Payload: payload})
		}
	}
	return out, nil
}

func (t *memTx) Put(key string, value []byte) error {
	t.wrote = true
	t.records[key] = store.Record{Value: value, Version: t.rev}
	return nil
}

func (t *memTx) Delete(key string) error {
	t.wrote = true
	delete(t.records, key)
	return nil
}

func (t *memTx) IndexPut(index, member string, score uint64) error {
	t.wrote = true
	if t.indexes[index] == nil {
		t.indexes[index] = map[string]uint64{}
	}
	t.indexes[index][member] = score
	return nil
}

func (t *memTx) IndexDelete(index, member string) error {
	if _, ok := t.indexes[index][member]; ok {
		t.wrote = true
		delete(t.indexes[index], member)
	}
	return nil
}

func (t *memTx) Trim(string, uint64) error { panic("rollouts trim no log") }

func (t *memTx) Append(log string, payload []byte) (uint64, error) {
	t.wrote = true
	t.logs[log] = append(slices.Clone(t.logs[log]), payload)
	return uint64(len(t.logs[log])), nil
}
