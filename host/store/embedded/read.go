package embedded

import (
	"path/filepath"

	"github.com/dodona-project/dodona/host/store"
	"github.com/dodona-project/dodona/host/store/datadir"
)

// readDisk reads the logs of a file and writes nothing.
type readDisk struct{ *file }

func (readDisk) write(*state, *dirty, uint64, int64) (map[string]logHead, error) {
	return nil, store.ErrReadOnly
}
func (readDisk) probe() error   { return store.ErrReadOnly }
func (d readDisk) close() error { return d.db.Close() }

// ReadFile verifies a store's file, such as a backup, and has fn read it. Nothing is
// written: updates are refused with [store.ErrReadOnly]. A file that does not hold is
// refused as Open does.
func ReadFile(path string, fn func(store.Store) error) error {
	if err := datadir.CheckFile(path); err != nil {
		return err
	}
	if err := verify(path); err != nil {
		return refuse("%s: %w", path, err)
	}
	f, st, err := load(path)
	if err != nil {
		return err
	}
	o := Options{}.withDefaults()
	s := run(&backend{
		disk: readDisk{f}, clock: newClock(o.Clock, f.head.clock), cur: st, issued: st.revision, reserved: st.revision + revisionBlock,
		info:   store.Info{Backend: "embedded", Durability: "not durable: read only"},
		failed: store.ErrReadOnly,
	}, o)
	err = fn(s)
	if cerr := s.Close(); err == nil {
		err = cerr
	}
	return err
}

// ReadDir is ReadFile for the store in a data directory, which must not be in use.
func ReadDir(dir string, fn func(store.Store) error) error {
	unlock, err := datadir.Lock(dir, Options{}.withDefaults().LockTimeout)
	if err != nil {
		return err
	}
	defer func() { _ = unlock() }()
	return ReadFile(filepath.Join(dir, dataName), fn)
}
