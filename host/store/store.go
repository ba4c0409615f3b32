// Package store is the one place where Dodona keeps state: a small transaction
// contract, and the combining engine that both backends share.
//
// All state of the host goes through a [Store]. A control action and its audit
// entry are one [Store.Update], so neither exists without the other. The rules
// live once, in Go, in the packages that call Update; a backend knows only how
// to read at a revision and how to commit. Backends are host/store/embedded
// (bbolt, nothing to install) and, shared by several hosts, Redis; both pass
// host/store/storetest.
//
// What a caller can rely on: transactions are serialisable; a record's version
// is the store-wide revision of its last write and is never issued twice, not
// across a crash, a fail-over or a restore; [ReadTx.Now] never falls; nothing
// expires by itself.
package store

import (
	"context"
	"errors"
	"time"
)

// Durability says what has to be true when an Update returns.
type Durability int

const (
	// Soft writes may be lost by one fault and are rebuilt from what clients
	// send again: leases, runtime reports, windows.
	Soft Durability = iota + 1
	// Hard writes survive one fault: rollouts, flags, policies, audit. A hard
	// commit carries every earlier soft write of the same process with it.
	Hard
)

var (
	// ErrUnknown means that the commit was sent and its fate is not known. A
	// retry with the same content is applied at most once more; callers tell
	// their clients "outcome unknown".
	ErrUnknown = errors.New("store: outcome unknown")
	// ErrClosed is returned by every call on a store that was closed, or that
	// closed itself because the disk broke its promise (a failed fsync).
	ErrClosed = errors.New("store: closed")
	// ErrFull means that there is no space for writes. Reads go on; writes work
	// again by themselves once there is space.
	ErrFull = errors.New("store: no space left")
	// ErrReadOnly means that the file system takes no writes. As ErrFull.
	ErrReadOnly = errors.New("store: read-only file system")
	// ErrUnavailable means that the store's server cannot be used now: not
	// reached, starting, not the master, or not willing. The text says which and
	// what to do. Nothing was done; it works again by itself once the cause is
	// gone.
	ErrUnavailable = errors.New("store: not available")
	// ErrForeign means that the store's server does not hold the data that this
	// host knows: it is empty, older, or of another history. Reads and writes
	// are refused until somebody has looked and said to go on from there.
	ErrForeign = errors.New("store: foreign")
	// ErrRefused is wrapped by the error of an open that was declined for
	// safety: the data directory is locked by another host, its modes are too
	// loose, its file is damaged, of another program or of a newer format. The
	// text names the file, the reason and what to do. Nothing was changed.
	ErrRefused = errors.New("store: refused")
	// ErrTooLarge refuses a transaction above the backend's limit, or a key,
	// index, member or log name outside the limits below.
	ErrTooLarge = errors.New("store: too large")
)

// Limits of one transaction and its parts.
const (
	MaxKeyLen         = 512       // bytes of a key, index, member or log name; at least 1
	MaxValueLen       = 4 << 20   // bytes of a record or a log payload
	MaxTransactionLen = 8 << 20   // bytes of all that one transaction writes
	MaxScan           = 100_000   // entries one Scan or ReadLog returns
	MaxScore          = 1<<53 - 1 // of an index member: what a double holds exactly
)

// A Store holds records, indexes and logs. All methods may be called
// concurrently.
type Store interface {
	// Update runs fn as one serialisable transaction and returns when its
	// writes have the durability asked for. fn touches the world only through
	// tx, is quick, does not keep tx, and may run several times, also on
	// another caller's goroutine, but not after Update has returned; only what
	// its last run wrote counts. An earlier run may have read what is stale, so
	// fn acts on nothing outside by itself. When fn
	// returns an error, that error is returned as it is (errors.Is and ==
	// hold) and nothing is written. A panic in fn is re-panicked in the caller.
	// When ctx ends first, Update returns its error; the transaction may still
	// be committed.
	Update(ctx context.Context, d Durability, fn func(tx Tx) error) error

	// View runs fn over one consistent revision. The same rules as for Update
	// hold.
	View(ctx context.Context, fn func(tx ReadTx) error) error

	// Watch returns a channel that receives after records below prefix have
	// changed: at least once, coalesced, with nothing to trust in it. Read
	// again what is. It also fires on a timer (every 30 s), so that a lost
	// notice heals. The channel is closed when ctx ends or the store closes.
	Watch(ctx context.Context, prefix string) <-chan struct{}

	// Info says what the store is and how it is, for status and readiness.
	Info() Info

	// Close flushes and releases the store. Updates under way finish or get
	// ErrClosed.
	Close() error
}

// Info describes a store to people.
type Info struct {
	Backend    string // embedded, redis
	ID         string // of this data, made at its creation
	Durability string // "durable", or "not durable: <why>"
	State      string // "ready", or what is wrong and what to do; "foreign: <why>"

	// Kept is the newest revision of any record that was there when the store
	// was opened, First the lowest one that this opening can give out. A version
	// between them was given out in an earlier life, and its soft writes were
	// lost with it.
	Kept, First uint64

	// Adoption is the newest one of this data; nil: nobody ever had to.
	Adoption *Adoption
}

// An Adoption is somebody's word to go on from what a shared store held, although
// it was not what its hosts knew.
type Adoption struct {
	Generation uint64 // that began with it
	Actor      string // who said so, as audit entries name people
	Reason     string // why, in their words
	Found      string // what the store held
}

// A Record is a value and the revision that wrote it.
type Record struct {
	Value   []byte // shared with the store: must not be changed
	Version uint64 // 0 = there is no such record
}

// Exists reports whether the record is there.
func (r Record) Exists() bool { return r.Version != 0 }

// An Entry is a member of an index.
type Entry struct {
	Member string
	Score  uint64
}

// A LogEntry is one payload of a log.
type LogEntry struct {
	Seq     uint64
	Payload []byte // shared with the store: must not be changed
}

// ReadTx reads at one revision. It is not safe for concurrent use and is dead
// when the function that received it returns.
type ReadTx interface {
	// Revision is, in a View, the revision read; in an Update, the revision
	// that this transaction's writes get when it commits. No two committed
	// transactions that wrote have the same one.
	Revision() uint64

	// Now is the store's clock, at millisecond precision or better. It never
	// falls, and it is the only clock that leases and dwell times are judged by.
	Now() time.Time

	// Get returns the record, or one with Version 0 when there is none. An
	// error must be returned by the transaction's function as it is: it may
	// mean "run again".
	Get(key string) (Record, error)

	// GetMany is Get for several keys, in their order, in one round trip.
	GetMany(keys ...string) ([]Record, error)

	// Scan lists members with from <= score <= to, by score, then by member
	// bytes; limit 0 means MaxScan. It is a hint: validate what it names by
	// reading the record.
	Scan(index string, from, to uint64, limit int) ([]Entry, error)

	// ReadLog returns up to limit entries with seq >= from; limit 0 means
	// MaxScan.
	ReadLog(log string, from uint64, limit int) ([]LogEntry, error)
}

// Tx reads and writes. It sees its own writes.
type Tx interface {
	ReadTx

	// Put writes a record. The store keeps value: do not change it afterwards.
	Put(key string, value []byte) error
	// Delete removes a record; removing one that is not there is no error.
	Delete(key string) error
	// IndexPut adds member to index, or moves it to score. Scores are at
	// most MaxScore.
	IndexPut(index, member string, score uint64) error
	// IndexDelete removes a member; removing one that is not there is no error.
	IndexDelete(index, member string) error
	// Append adds payload to log and returns its sequence number: 1 for the
	// first, then one more each, without gaps.
	Append(log string, payload []byte) (seq uint64, err error)
	// Trim removes a log's entries up to through; later ones keep their numbers.
	// The newest entry stays, so through is below it. Until the commit they may
	// still be read, and a View that began before may not find them any more.
	Trim(log string, through uint64) error
}
