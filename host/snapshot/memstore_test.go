package snapshot_test

import (
	"bytes"
	"cmp"
	"context"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/dodona-project/dodona/host/store"
)

// memStore is a store of one process and no disk: transactions run one at a time
// under one lock. Its clock is time.Now, so that it runs under synctest too.
type memStore struct {
	mu       sync.Mutex
	revision uint64
	records  map[string]store.Record
	indexes  map[string]map[string]uint64
	watchers map[chan struct{}]string
}

func newMemStore() *memStore {
	return &memStore{
		records:  make(map[string]store.Record),
		indexes:  make(map[string]map[string]uint64),
		watchers: make(map[chan struct{}]string),
	}
}

func (s *memStore) Update(ctx context.Context, _ store.Durability, fn func(store.Tx) error) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	tx := &memTx{memRead: memRead{s: s, revision: s.revision + 1}, before: make(map[string]store.Record), indexes: maps.Clone(s.indexes)}
	for name, members := range s.indexes {
		tx.indexes[name] = maps.Clone(members)
	}
	saved := s.indexes
	s.indexes = tx.indexes
	if err := fn(tx); err != nil {
		s.indexes = saved
		for key, rec := range tx.before {
			if rec.Exists() {
				s.records[key] = rec
			} else {
				delete(s.records, key)
			}
		}
		return err
	}
	s.revision++
	for ch, prefix := range s.watchers {
		for key := range tx.before {
			if strings.HasPrefix(key, prefix) {
				select {
				case ch <- struct{}{}:
				default:
				}
			}
		}
	}
	return nil
}

func (s *memStore) View(ctx context.Context, fn func(store.ReadTx) error) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return fn(memRead{s: s, revision: s.revision})
}

func (s *memStore) Watch(ctx context.Context, prefix string) <-chan struct{} {
	ch := make(chan struct{}, 1)
	s.mu.Lock()
	s.watchers[ch] = prefix
	s.mu.Unlock()
	context.AfterFunc(ctx, func() {
		s.mu.Lock()
		delete(s.watchers, ch)
		close(ch)
		s.mu.Unlock()
	})
	return ch
}

func (s *memStore) Info() store.Info { return store.Info{Backend: "memory", State: "ready"} }
func (s *memStore) Close() error     { return nil }

type memRead struct {
	s        *memStore
	revision uint64
}

func (r memRead) Revision() uint64 { return r.revision }
func (r memRead) Now() time.Time   { return time.Now() }

func (r memRead) Get(key string) (store.Record, error) { return r.s.records[key], nil }

func (r memRead) GetMany(keys ...string) ([]store.Record, error) {
	recs := make([]store.Record, len(keys))
	for i, key := range keys {
		recs[i] = r.s.records[key]
	}
	return recs, nil
}

func (r memRead) Scan(index string, from, to uint64, limit int) ([]store.Entry, error) {
	var entries []store.Entry
	for member, score := range r.s.indexes[index] {
		if score >= from && score <= to {
			entries = append(entries, store.Entry{Member: member, Score: score})
		}
	}
	slices.SortFunc(entries, func(a, b store.Entry) int {
		return cmp.Or(cmp.Compare(a.Score, b.Score), cmp.Compare(a.Member, b.Member))
	})
	if limit == 0 {
		limit = store.MaxScan
	}
	return entries[:min(len(entries), limit)], nil
}

func (r memRead) ReadLog(string, uint64, int) ([]store.LogEntry, error) { return nil, nil }

type memTx struct {
	memRead
	before  map[string]store.Record
	indexes map[string]map[string]uint64
}

func (t *memTx) keep(key string) {
	if _, ok := t.before[key]; !ok {
		t.before[key] = t.s.records[key]
	}
}

func (t *memTx) Put(key string, value []byte) error {
	t.keep(key)
	t.s.records[key] = store.Record{Value: bytes.Clone(value), Version: t.revision}
	return nil
}

func (t *memTx) Delete(key string) error {
	t.keep(key)
	delete(t.s.records, key)
	return nil
}

func (t *memTx) IndexPut(index, member string, score uint64) error {
	if t.indexes[index] == nil {
		t.indexes[index] = make(map[string]uint64)
	}
	t.indexes[index][member] = score
	return nil
}

func (t *memTx) IndexDelete(index, member string) error {
	delete(t.indexes[index], member)
	return nil
}

func (t *memTx) Append(string, []byte) (uint64, error) { return 0, nil }
