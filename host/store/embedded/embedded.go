// Package embedded is the store that needs nothing installed: one bbolt file in
// the host's data directory, for one host at a time.
//
// All records and indexes are kept in memory, where transactions run. Soft
// writes reach the disk with the next hard commit, or within a second; a hard
// commit takes one fsync of the data and one of the file's head, shared by all
// who commit meanwhile, and carries every earlier soft write. A View waits until
// the hard writes that it shows are durable, so nobody acts on what a crash
// could undo; a soft Update does not wait. Log entries are read from the file.
//
// [Open] verifies the whole file and refuses, with [store.ErrRefused], what it
// cannot vouch for: a locked or loosely protected directory, damage, other
// programs' files, newer formats. It never puts a fresh store in place of an
// existing file. When an fsync fails, the store closes itself and tells
// [Options].Fatal; when the disk is full or read-only, writes fail with
// [store.ErrFull] or [store.ErrReadOnly] while reads go on, and work again by
// themselves. Writes that could not reach such a disk are taken back, and with
// them soft writes made after the first of them: the few that arrived while the
// disk was being written.
//
// Tests of other packages use [OpenMemory], which is the same without the disk.
package embedded

import (
	"crypto/rand"
	"encoding/hex"
	"io"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/dodona-project/dodona/host/store"
)

// Options of Open. The zero value is right outside tests.
type Options struct {
	// Logger gets what happens to the disk. nil: nothing is logged.
	Logger hclog.Logger

	// Fatal is called once, on a goroutine of its own, when the store has
	// closed itself because the disk broke its promise. The process has to end:
	// what is on disk can only be told by opening it again. nil: nobody is told
	// except by ErrClosed.
	Fatal func(error)

	// Clock is what the store's clock runs by. It is read at open, and from
	// then on only the time that has passed counts; with the default, time.Now,
	// that is monotonic time, and a change of the wall clock has no effect. A
	// clock that goes back makes the store's stand still.
	Clock func() time.Time

	// Flush is how long soft writes stay in memory at most. 0 means 1 s.
	Flush time.Duration

	// Probe is how often a full or read-only disk is tried. 0 means 1 s.
	Probe time.Duration

	// LockTimeout is how long Open waits for another host to leave the
	// directory. 0 means 1 s.
	LockTimeout time.Duration

	// Relist is how often each Watch fires without a change. 0 means 30 s.
	Relist time.Duration
}

func (o Options) withDefaults() Options {
	if o.Logger == nil {
		o.Logger = hclog.NewNullLogger()
	}
	if o.Clock == nil {
		o.Clock = time.Now
	}
	if o.Flush <= 0 {
		o.Flush = time.Second
	}
	if o.Probe <= 0 {
		o.Probe = time.Second
	}
	if o.LockTimeout <= 0 {
		o.LockTimeout = time.Second
	}
	return o
}

// Store is an open embedded store.
type Store struct {
	*store.Engine
	backend *backend
	file    *file // nil in memory
}

var _ store.Store = (*Store)(nil)

// Open opens the store in dir, or creates both. The directory has to be for its
// owner only (0700), its files too (0600). It is locked until Close: a second
// Open of it, by any process, fails within LockTimeout.
func Open(dir string, o Options) (*Store, error) {
	o = o.withDefaults()
	f, st, err := openFile(dir, o)
	if err != nil {
		return nil, err
	}
	b := &backend{
		disk:     f,
		clock:    newClock(o.Clock, f.head.clock),
		cur:      st,
		issued:   st.revision,
		reserved: f.head.reserved,
		info: store.Info{Backend: "embedded", ID: hex.EncodeToString(f.head.id[:]), Durability: "durable",
			Kept: newest(st), First: st.revision + 1},
	}
	s := run(b, o)
	s.file = f
	return s, nil
}

// newest is the highest version of any record.
func newest(st *state) (version uint64) {
	st.records.ascend("", func(_ string, rec store.Record) bool {
		version = max(version, rec.Version)
		return true
	})
	return version
}

// OpenMemory returns a store that keeps nothing on disk: everything is as in an
// opened one, except that hard writes are durable at once, and gone with the
// process. It is for tests; it may be used inside a testing/synctest bubble.
func OpenMemory(o Options) *Store {
	o = o.withDefaults()
	b := &backend{
		disk:     noDisk{},
		clock:    newClock(o.Clock, 0),
		cur:      newState(),
		reserved: revisionBlock,
		info:     store.Info{Backend: "embedded", ID: newID().hex(), Durability: "not durable: kept in memory only", First: 1},
	}
	return run(b, o)
}

func run(b *backend, o Options) *Store {
	b.log, b.fatal, b.every, b.probe = o.Logger, o.Fatal, o.Flush, o.Probe
	b.dirty = newDirty()
	engine := store.New(b, store.Options{Relist: o.Relist})
	b.notify = engine.NotifyAll
	b.start()
	return &Store{Engine: engine, backend: b}
}

// Backup writes a copy of the store to w, as of its newest hard commit and
// without stopping anyone. Put as store.db into a directory of its own, or given
// to [Restore], it is a store.
func (s *Store) Backup(w io.Writer) error {
	if s.file == nil {
		return errInMemory
	}
	return s.file.backup(w)
}

type id [16]byte

func newID() (n id) {
	_, _ = rand.Read(n[:]) // never fails, and ends the program where it would
	return n
}

func (n id) hex() string { return hex.EncodeToString(n[:]) }

// Syncs returns how many commits have reached the disk since Open. Each costs
// two fsyncs.
func (s *Store) Syncs() uint64 {
	if s.file == nil {
		return 0
	}
	return s.file.syncs.Load()
}
