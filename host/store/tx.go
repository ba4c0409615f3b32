package store

import (
	"errors"
	"fmt"
	"time"
)

// errMiss ends a transaction that asked for what the engine has to fetch
// first. It runs again when that is there.
var errMiss = errors.New("store: to be fetched; return this error, the transaction runs again")

// errDead is what a transaction answers after its function has returned.
var errDead = errors.New("store: transaction is over; do not keep it")

// source is what lies below a batch's overlay. The second result is false when
// it is not known here, and has been noted to be fetched.
type source interface {
	get(key string) (Record, bool)
	head(log string) (uint64, bool)
	scan(q ScanQuery) ([]Entry, bool)
	readLog(q LogQuery) ([]LogEntry, bool, error)
}

// txn is one run of one transaction's function.
type txn struct {
	src      source
	below    *overlay // finished transactions of the batch; nil in a View
	own      overlay
	writes   TxWrites
	revision uint64
	now      time.Time
	limit    int // bytes it may write

	reads map[string]uint64  // nil when the source needs no checks
	heads *map[string]uint64 // the same

	exact  bool  // has seen a predicted revision
	missed bool  // asked for what is to be fetched
	failed error // sticks: a transaction that broke a limit cannot commit
	dead   bool
}

var emptyOverlay overlay

func (t *txn) Revision() uint64 {
	t.exact = true
	return t.revision
}

func (t *txn) Now() time.Time { return t.now }

func (t *txn) Get(key string) (Record, error) {
	if err := t.check("key", key); err != nil {
		return Record{}, err
	}
	return t.get(key)
}

func (t *txn) GetMany(keys ...string) ([]Record, error) {
	records := make([]Record, len(keys))
	var first error
	for i, key := range keys {
		if err := t.check("key", key); err != nil {
			return nil, err
		}
		r, err := t.get(key)
		if err != nil && first == nil {
			first = err // go on: the rest is fetched in the same round trip
		}
		records[i] = r
	}
	if first != nil {
		return nil, first
	}
	return records, nil
}

func (t *txn) get(key string) (Record, error) {
	if r, ok := t.own.records.get(key); ok {
		t.exact = true
		return r.Record, nil
	}
	if r, ok := t.below.records.get(key); ok {
		t.exact = true
		return r.Record, nil
	}
	r, ok := t.src.get(key)
	if !ok {
		t.missed = true
		return Record{}, errMiss
	}
	if t.reads != nil {
		t.reads[key] = r.Version
	}
	return r, nil
}

func (t *txn) Scan(index string, from, to uint64, limit int) ([]Entry, error) {
	if err := t.check("index", index); err != nil {
		return nil, err
	}
	q := ScanQuery{Index: index, From: from, To: to, Limit: scanLimit(limit)}
	ask := q
	ask.Limit += members(index, t.below, &t.own)
	found, ok := t.src.scan(ask)
	if !ok {
		t.missed = true
		return nil, errMiss
	}
	return mergeScan(found, q, t.below, &t.own), nil
}

func (t *txn) ReadLog(log string, from uint64, limit int) ([]LogEntry, error) {
	if err := t.check("log", log); err != nil {
		return nil, err
	}
	q := LogQuery{Log: log, From: from, Limit: scanLimit(limit)}
	head, ok := t.src.head(log)
	if !ok {
		t.missed = true
	} else if t.heads != nil {
		keep(t.heads, log, head)
	}
	entries, found, err := t.src.readLog(q)
	if err != nil {
		return nil, err
	}
	if !found || !ok {
		t.missed = true
		return nil, errMiss
	}
	entries = entries[:min(len(entries), q.Limit):min(len(entries), q.Limit)]
	for _, o := range []*overlay{t.below, &t.own} {
		for _, e := range o.logs[log] {
			if e.Seq >= from && len(entries) < q.Limit {
				entries = append(entries, e)
			}
		}
	}
	return entries, nil
}

func (t *txn) Put(key string, value []byte) error {
	if err := t.check("key", key); err != nil {
		return err
	}
	if len(value) > MaxValueLen {
		return t.fail(fmt.Errorf("%w: value of record %.64q has %d bytes, at most %d are allowed", ErrTooLarge, key, len(value), MaxValueLen))
	}
	if err := t.grow(len(key) + len(value)); err != nil {
		return err
	}
	t.own.records.put(key, overlayRecord{Record: Record{Value: value, Version: t.revision}})
	t.writes.Records = append(t.writes.Records, Write{Key: key, Value: value})
	return nil
}

func (t *txn) Delete(key string) error {
	if err := t.check("key", key); err != nil {
		return err
	}
	if err := t.grow(len(key)); err != nil {
		return err
	}
	t.own.records.put(key, overlayRecord{deleted: true})
	t.writes.Records = append(t.writes.Records, Write{Key: key, Delete: true})
	return nil
}

func (t *txn) IndexPut(index, member string, score uint64) error {
	if score > MaxScore {
		return t.fail(fmt.Errorf("%w: score %d of member %.64q of index %.64q, at most %d is allowed", ErrTooLarge, score, member, index, uint64(MaxScore)))
	}
	return t.indexWrite(IndexWrite{Index: index, Member: member, Score: score})
}

func (t *txn) IndexDelete(index, member string) error {
	return t.indexWrite(IndexWrite{Index: index, Member: member, Delete: true})
}

func (t *txn) indexWrite(w IndexWrite) error {
	if err := t.check("index", w.Index); err != nil {
		return err
	}
	if err := t.check("member", w.Member); err != nil {
		return err
	}
	if err := t.grow(len(w.Index) + len(w.Member) + 8); err != nil {
		return err
	}
	t.own.putMember(w.Index, w.Member, overlayMember{score: w.Score, deleted: w.Delete})
	t.writes.Indexes = append(t.writes.Indexes, w)
	return nil
}

func (t *txn) Append(log string, payload []byte) (uint64, error) {
	if err := t.check("log", log); err != nil {
		return 0, err
	}
	if len(payload) > MaxValueLen {
		return 0, t.fail(fmt.Errorf("%w: payload for log %.64q has %d bytes, at most %d are allowed", ErrTooLarge, log, len(payload), MaxValueLen))
	}
	head, ok := t.src.head(log)
	if !ok {
		t.missed = true
		return 0, errMiss
	}
	if t.heads != nil {
		keep(t.heads, log, head)
	}
	for _, o := range []*overlay{t.below, &t.own} {
		if n := len(o.logs[log]); n > 0 {
			head = o.logs[log][n-1].Seq
		}
	}
	if err := t.grow(len(log) + 8 + len(payload)); err != nil {
		return 0, err
	}
	seq := head + 1
	t.own.append(log, LogEntry{Seq: seq, Payload: payload})
	t.writes.Appends = append(t.writes.Appends, Append{Log: log, Seq: seq, Payload: payload})
	return seq, nil
}

func (t *txn) Trim(log string, through uint64) error {
	if err := t.check("log", log); err != nil {
		return err
	}
	head, ok := t.src.head(log)
	if !ok {
		t.missed = true
		return errMiss
	}
	if t.heads != nil {
		keep(t.heads, log, head)
	}
	if through >= head {
		return t.fail(fmt.Errorf("store: log %.64q cannot be trimmed up to entry %d: its newest, %d, stays", log, through, head))
	}
	if err := t.grow(len(log) + 8); err != nil {
		return err
	}
	t.writes.Trims = append(t.writes.Trims, Trim{Log: log, Through: through})
	return nil
}

// check refuses a name outside the limits, and everything on a dead
// transaction.
func (t *txn) check(what, name string) error {
	if t.dead {
		return errDead
	}
	if len(name) == 0 || len(name) > MaxKeyLen {
		return t.fail(fmt.Errorf("%w: %s %.64q has %d bytes, 1 to %d are allowed", ErrTooLarge, what, name, len(name), MaxKeyLen))
	}
	return nil
}

// grow counts one write of n bytes.
func (t *txn) grow(n int) error {
	if t.own.size+n > t.limit {
		return t.fail(fmt.Errorf("%w: the transaction writes more than %d bytes", ErrTooLarge, t.limit))
	}
	t.own.size += n
	t.own.count++
	return nil
}

func (t *txn) fail(err error) error {
	if t.failed == nil {
		t.failed = err
	}
	return err
}

func scanLimit(limit int) int {
	if limit <= 0 || limit > MaxScan {
		return MaxScan
	}
	return limit
}

// residentSource reads a snapshot, which knows everything.
type residentSource struct{ Snapshot }

func (s residentSource) get(key string) (Record, bool)  { return s.Get(key), true }
func (s residentSource) head(log string) (uint64, bool) { return s.LogHead(log), true }
func (s residentSource) scan(q ScanQuery) ([]Entry, bool) {
	return s.Scan(q.Index, q.From, q.To, q.Limit), true
}
func (s residentSource) readLog(q LogQuery) ([]LogEntry, bool, error) {
	entries, err := s.ReadLog(q.Log, q.From, q.Limit)
	return entries, true, err
}
