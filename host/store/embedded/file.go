package embedded

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sync/atomic"
	"syscall"

	"go.etcd.io/bbolt"

	"github.com/dodona-project/dodona/host/internal/crash"
	"github.com/dodona-project/dodona/host/store"
)

// file is the disk of a real store: one bbolt file. write is called by one
// goroutine; readLog by any.
type file struct {
	dir       string
	db        *bbolt.DB
	data      *os.File // the file that db uses
	head      head     // as it is on disk
	persisted *state   // what is on disk; only its records, members and log heads are looked at
	unlock    func() error
	syncs     atomic.Uint64 // commits that reached the disk, for tests
}

// growth is the least by which the file is made longer, as bbolt does.
const growth = 16 << 20

func (f *file) write(target *state, changed *dirty, reserved uint64, now int64) (heads map[string]logHead, err error) {
	defer func() {
		// bbolt asserts on damaged pages.
		if p := recover(); p != nil {
			err = fmt.Errorf("store: %s: %v", f.db.Path(), p)
		}
	}()
	tx, err := f.db.Begin(true)
	if err != nil {
		return nil, err
	}
	w := &writer{
		tx: tx, head: f.head, from: f.persisted, to: target,
		heads: make(map[string]logHead),
	}
	w.head.revision, w.head.reserved, w.head.clock = target.revision, reserved, max(now, f.head.clock)
	if err = w.all(changed); err == nil {
		value, _ := seal(kindHead, keyHead, w.head.rest())
		err = tx.Bucket(bucketMeta).Put(keyHead, value)
	}
	if err != nil {
		_ = tx.Rollback()
		return nil, err
	}
	if err := f.grow(tx.Size() + w.bytes); err != nil {
		_ = tx.Rollback()
		return nil, err
	}
	crash.Point("store.before-commit")
	id := tx.ID()
	if err := tx.Commit(); err != nil {
		if f.took(id) {
			return nil, fmt.Errorf("store: %s: head half written: %w", f.db.Path(), err)
		}
		return nil, classify(err)
	}
	crash.Point("store.after-commit")
	f.syncs.Add(1)
	f.head, f.persisted = w.head, target.withoutTail()
	return w.heads, nil
}

// took tells whether bbolt goes on from a commit that it reported as failed: it
// has when the part of the head that counts was written before the error. Then
// the commit cannot be taken back, and not be vouched for either.
func (f *file) took(id int) (took bool) {
	err := f.db.View(func(tx *bbolt.Tx) error {
		took = tx.ID() >= id
		return nil
	})
	return took || err != nil
}

// grow makes the file long enough for what a commit may append. bbolt would do
// it, but its error does not tell a full disk from a failed fsync.
func (f *file) grow(size int64) error {
	info, err := f.data.Stat()
	if err != nil {
		return err
	}
	if size <= info.Size() {
		return nil
	}
	if err := f.data.Truncate(max(size, info.Size()+growth)); err != nil {
		return classify(err)
	}
	return f.data.Sync()
}

// classify turns an error of a write that can be tried again into the store's.
// Only a write may be: the same number from an fsync, which bbolt returns bare,
// means that data is lost.
func classify(err error) error {
	var path *fs.PathError
	if !errors.As(err, &path) || (path.Op != "write" && path.Op != "truncate" && path.Op != "open") {
		return err
	}
	switch {
	case errors.Is(path.Err, syscall.ENOSPC), errors.Is(path.Err, syscall.EDQUOT):
		return fmt.Errorf("%w: %w", store.ErrFull, err)
	case errors.Is(path.Err, syscall.EROFS):
		return fmt.Errorf("%w: %w", store.ErrReadOnly, err)
	}
	return err
}

// probeLen is the space that has to be there before a commit is tried again.
const probeLen = 256 << 10

func (f *file) probe() error {
	path := filepath.Join(f.dir, probeName)
	p, err := os.OpenFile(path, os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o600)
	if err != nil {
		return classify(err)
	}
	_, err = p.Write(make([]byte, probeLen))
	if cerr := p.Close(); err == nil {
		err = cerr
	}
	_ = os.Remove(path)
	return err
}

func (f *file) readLog(log string, from, to uint64, limit int) ([]store.LogEntry, error) {
	var found []store.LogEntry
	err := f.db.View(func(tx *bbolt.Tx) error {
		c := tx.Bucket(bucketLogs).Cursor()
		want := from
		for key, value := c.Seek(logEntryKey(log, from)); want <= to && len(found) < limit; key, value = c.Next() {
			if k, ok := parseLogKey(key); !ok || k.log != log || k.seq != want {
				return fmt.Errorf("store: %s: entry %d of log %s is missing", f.db.Path(), want, log)
			}
			rest, _, err := unseal(kindLog, key, value)
			if err != nil {
				return fmt.Errorf("store: %s: log %s: %w", f.db.Path(), log, err)
			}
			found = append(found, store.LogEntry{Seq: want, Payload: append([]byte{}, rest...)})
			want++
		}
		return nil
	})
	return found, err
}

func (f *file) close() error {
	err := f.db.Close()
	if uerr := f.unlock(); err == nil {
		err = uerr
	}
	return err
}

// writer puts the difference of two states into a transaction of bbolt.
type writer struct {
	tx       *bbolt.Tx
	head     head
	from, to *state
	heads    map[string]logHead
	bytes    int64 // upper bound of what the file may grow by

	records, indexes, logs *bbolt.Bucket // as far as there is something to write
}

func (w *writer) all(changed *dirty) error {
	if len(changed.records) > 0 {
		w.records = w.tx.Bucket(bucketRecords)
	}
	for key := range changed.records {
		if err := w.record(key); err != nil {
			return err
		}
	}
	if len(changed.members) > 0 {
		w.indexes = w.tx.Bucket(bucketIndexes)
	}
	for key := range changed.members {
		if err := w.member(key); err != nil {
			return err
		}
	}
	if len(changed.logs) > 0 {
		w.logs = w.tx.Bucket(bucketLogs)
	}
	for log := range changed.logs {
		if err := w.log(log); err != nil {
			return err
		}
	}
	return nil
}

func (w *writer) record(key string) error {
	old, had := w.from.records.get(key)
	now, has := w.to.records.get(key)
	if had && has && old.Version == now.Version {
		return nil
	}
	k := []byte(key)
	if had {
		w.gone(kindRecord, recordSum(k, old))
		if !has {
			return w.records.Delete(k)
		}
	}
	if !has {
		return nil
	}
	value, sum := sealRecord(k, now)
	return w.putSealed(w.records, kindRecord, k, value, sum)
}

func (w *writer) member(key memberKey) error {
	old, had := w.from.members.get(key)
	now, has := w.to.members.get(key)
	if had == has && old == now {
		return nil
	}
	if had {
		k := indexKey(key.index, old, key.member)
		w.gone(kindIndex, checksum(kindIndex, k, nil))
		if err := w.indexes.Delete(k); err != nil {
			return err
		}
	}
	if !has {
		return nil
	}
	return w.put(w.indexes, kindIndex, indexKey(key.index, now, key.member), nil)
}

func (w *writer) log(log string) error {
	old, _ := w.from.logs.get(log)
	now, _ := w.to.logs.get(log)
	for seq := max(old.last, now.trimmed) + 1; seq <= now.last; seq++ {
		payload, _ := w.to.tail.get(logKey{log, seq})
		if err := w.put(w.logs, kindLog, logEntryKey(log, seq), payload); err != nil {
			return err
		}
	}
	if now.last > old.last {
		w.heads[log] = logHead{last: now.last}
	}
	for seq := old.trimmed + 1; seq <= min(now.trimmed, old.last); seq++ {
		if err := w.trim(log, seq); err != nil {
			return err
		}
	}
	return nil
}

func (w *writer) trim(log string, seq uint64) error {
	key := logEntryKey(log, seq)
	_, sum, err := unseal(kindLog, key, w.logs.Get(key))
	if err != nil {
		return fmt.Errorf("store: log %s: entry %d, to be trimmed: %w", log, seq, err)
	}
	w.gone(kindLog, sum)
	const page, depth = 4096, 6
	w.bytes += depth * page
	return w.logs.Delete(key)
}

func (w *writer) put(b *bbolt.Bucket, kind byte, key, rest []byte) error {
	value, sum := seal(kind, key, rest)
	return w.putSealed(b, kind, key, value, sum)
}

func (w *writer) putSealed(b *bbolt.Bucket, kind byte, key, value []byte, sum uint32) error {
	w.head.digest += share(kind, sum)
	w.head.entries++
	const page, depth = 4096, 6
	w.bytes += int64(len(key)+len(value)+page-1)/page*page + depth*page
	return b.Put(key, value)
}

func (w *writer) gone(kind byte, sum uint32) {
	w.head.digest -= share(kind, sum)
	w.head.entries--
}
