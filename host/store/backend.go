package store

import (
	"context"
	"time"
)

// A Backend makes unions durable. It is what a new kind of store has to bring;
// everything else, from combining to watching, is the [Engine]'s. A backend is
// also either a [Resident] or a [Remote], which is how it is read.
//
// The engine has at most one Commit under way.
type Backend interface {
	// Commit applies u as one step, or says that what u read has changed. It
	// must not wait for the durability of hard transactions: what is left to
	// wait for is in the outcome. An error means that nothing was applied,
	// except ErrUnknown, which means what it says.
	Commit(ctx context.Context, u *Union) (Outcome, error)

	// Now is the store's clock. It never falls.
	Now() time.Time

	// Info describes the backend to people.
	Info() Info

	// Close makes what was committed durable and releases the backend.
	Close() error
}

// A Resident backend holds all of its data in this process and is the only
// writer of it: reading never misses.
type Resident interface {
	Backend

	// Snapshot returns the newest state, unchanging.
	Snapshot() (Snapshot, error)
}

// A Snapshot is the whole store at one revision. It may be read by several
// goroutines; what it returns is shared and must not be changed.
type Snapshot interface {
	Revision() uint64
	Get(key string) Record
	Scan(index string, from, to uint64, limit int) []Entry
	LogHead(log string) uint64
	ReadLog(log string, from uint64, limit int) ([]LogEntry, error)

	// Settle returns true when each hard transaction that this snapshot shows
	// is durable, and false when one of them failed and was taken back, so that
	// the snapshot shows what never was.
	Settle(ctx context.Context) (bool, error)
}

// A Remote backend is read over a network and written by others too. The
// engine keeps a cache of its records, which may be stale: Commit finds out.
type Remote interface {
	Backend

	// Read answers q at one revision.
	Read(ctx context.Context, q *Query) (*Answer, error)

	// Admit says, before a transaction runs, why none of durability d can be
	// committed now; nil lets it in. It does not wait.
	Admit(d Durability) error

	// Epoch changes when the server's data is not the one that was read before,
	// so that nothing remembered of it counts any more. A Commit with another
	// Epoch than the current one is a conflict without answers.
	Epoch() uint64
}

// A Query asks a Remote for everything a batch of transactions still misses.
type Query struct {
	Records []string
	Heads   []string // logs whose newest sequence number is asked for
	Scans   []ScanQuery
	Logs    []LogQuery
}

// A ScanQuery asks for what [ReadTx.Scan] returns; Limit is never 0.
type ScanQuery struct {
	Index    string
	From, To uint64
	Limit    int
}

// A LogQuery asks for what [ReadTx.ReadLog] returns; Limit is never 0.
type LogQuery struct {
	Log   string
	From  uint64
	Limit int
}

// An Answer is what a Query found, all of it at Revision.
type Answer struct {
	Revision uint64
	Records  map[string]Record // also those that are not there, with Version 0
	Heads    map[string]uint64
	Scans    map[ScanQuery][]Entry
	Logs     map[LogQuery][]LogEntry

	// Durable waits until each hard transaction that the answer shows is
	// durable; nil when they are. After an error the answer may show what a
	// fault takes back.
	Durable func(ctx context.Context) error
}

// A Union is a batch of transactions that is committed as one step. The n-th
// of Txs gets revision base + 1 + n, where base is the store's revision before
// the commit.
type Union struct {
	// Exact demands that the store's revision still is Base: a transaction has
	// seen a revision that was computed from it. Towards a Resident it is
	// always set, and then stands for Reads and Heads too.
	Exact bool
	Base  uint64

	Reads map[string]uint64 // the version of each record read; 0 = was not there
	Heads map[string]uint64 // the newest sequence number of each log appended to

	Txs []TxWrites

	// Epoch is that of what was read. Conflicts is how often in a row this batch
	// has met one. Both are for a Remote.
	Epoch     uint64
	Conflicts int

	// Hard says that a transaction of the batch is hard, even if that one has
	// written nothing: it may rest on what is not durable yet.
	Hard bool
}

// TxWrites is what one transaction writes. It has at least one write.
type TxWrites struct {
	Hard    bool
	Records []Write
	Indexes []IndexWrite
	Appends []Append
	Trims   []Trim
}

// A Write puts or deletes one record.
type Write struct {
	Key    string
	Value  []byte
	Delete bool
}

// An IndexWrite moves a member to a score or deletes it.
type IndexWrite struct {
	Index  string
	Member string
	Score  uint64
	Delete bool
}

// An Append adds one payload to a log under the sequence number that the
// transaction has seen.
type Append struct {
	Log     string
	Seq     uint64
	Payload []byte
}

// A Trim removes a log's entries up to Through, which is below its newest.
type Trim struct {
	Log     string
	Through uint64
}

// An Outcome is how a commit went.
type Outcome struct {
	// Conflict is not nil when nothing was applied because something read has
	// changed. A Remote puts fresh records and heads there.
	Conflict *Answer

	// Base is the revision before the union's first transaction.
	Base uint64

	// Durable waits until the hard transactions of the union, and those it
	// rests on, are durable. nil when there is nothing to wait for. After an
	// error none of them has happened, except with ErrUnknown.
	Durable func(ctx context.Context) error
}
