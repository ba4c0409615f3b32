package embedded

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"go.etcd.io/bbolt"

	"github.com/dodona-project/dodona/host/store"
	"github.com/dodona-project/dodona/host/store/datadir"
)

// Names in the data directory.
const (
	dataName  = "store.db"
	freshName = "store.db.new" // being created; never anybody's data
	probeName = "store.probe"
)

func refuse(format string, args ...any) error {
	return fmt.Errorf("%w: "+format, append([]any{store.ErrRefused}, args...)...)
}

// openFile locks dir, verifies or creates its file, and loads it.
func openFile(dir string, o Options) (f *file, st *state, err error) {
	if err := datadir.Prepare(dir); err != nil {
		return nil, nil, err
	}
	unlock, err := datadir.Lock(dir, o.LockTimeout)
	if err != nil {
		return nil, nil, err
	}
	defer func() {
		if err != nil {
			_ = unlock()
		}
	}()
	path := filepath.Join(dir, dataName)
	_, err = os.Lstat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		if err := create(dir, newID()); err != nil {
			return nil, nil, fmt.Errorf("store: create %s: %w", path, err)
		}
	case err != nil:
		return nil, nil, fmt.Errorf("store: %w", err)
	}
	if err := datadir.CheckFile(path); err != nil {
		return nil, nil, err
	}
	if err := verify(path); err != nil {
		return nil, nil, damaged(path, err)
	}
	f, st, err = load(path)
	if err != nil {
		return nil, nil, err
	}
	f.dir, f.unlock = dir, unlock
	// From here on revisions of a new block are given out, whatever was.
	st.revision = f.head.reserved
	if _, err := f.write(st, newDirty(), f.head.reserved+revisionBlock, f.head.clock); err != nil {
		_ = f.db.Close()
		return nil, nil, fmt.Errorf("store: %s: reserve revisions: %w", path, err)
	}
	return f, st, nil
}

func damaged(path string, err error) error {
	if errors.Is(err, store.ErrRefused) {
		return err
	}
	return refuse("%s: %w; nothing was changed: put a backup in its place, or move it away to begin anew", path, err)
}

func boltOptions() *bbolt.Options {
	return &bbolt.Options{
		Timeout:      time.Second,
		FreelistType: bbolt.FreelistMapType,
		// The list of free pages is found again at open, by the scan that
		// verifies the file anyway; on disk it would be one more thing to write
		// in each commit, and to be damaged.
		NoFreelistSync: true,
		NoGrowSync:     true, // file.grow does it
		NoStatistics:   true,
	}
}

// create makes the file of an empty store beside its place and moves it there,
// so that a crash leaves a whole one or none.
func create(dir string, id id) error {
	fresh := filepath.Join(dir, freshName)
	if err := os.Remove(fresh); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	db, err := bbolt.Open(fresh, 0o600, boltOptions())
	if err != nil {
		return err
	}
	err = db.Update(func(tx *bbolt.Tx) error {
		for _, name := range [][]byte{bucketRecords, bucketIndexes, bucketLogs} {
			if _, err := tx.CreateBucket(name); err != nil {
				return err
			}
		}
		meta, err := tx.CreateBucket(bucketMeta)
		if err != nil {
			return err
		}
		return errors.Join(
			meta.Put(keyProgram, []byte(programName)),
			putFormat(meta, Format),
			putHead(meta, head{id: id}),
		)
	})
	if err == nil {
		// A second commit, so that neither of bbolt's two heads is the one of
		// the file without anything in it.
		err = db.Update(func(tx *bbolt.Tx) error { return putHead(tx.Bucket(bucketMeta), head{id: id}) })
	}
	if cerr := db.Close(); err == nil {
		err = cerr
	}
	if err != nil {
		return err
	}
	if err := os.Rename(fresh, filepath.Join(dir, dataName)); err != nil {
		return err
	}
	return syncDir(dir)
}

func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	err = d.Sync()
	if cerr := d.Close(); err == nil {
		err = cerr
	}
	return err
}

func putFormat(meta *bbolt.Bucket, format uint32) error {
	return meta.Put(keyFormat, binary.BigEndian.AppendUint32(nil, format))
}

func putHead(meta *bbolt.Bucket, h head) error {
	value, _ := seal(kindHead, keyHead, h.rest())
	return meta.Put(keyHead, value)
}

// openBolt opens a file that was verified.
func openBolt(path string) (db *bbolt.DB, data *os.File, err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("%v", p)
		}
	}()
	o := boltOptions()
	o.OpenFile = func(name string, flag int, mode fs.FileMode) (*os.File, error) {
		data, err = os.OpenFile(name, flag&^os.O_CREATE, mode)
		return data, err
	}
	db, err = bbolt.Open(path, 0o600, o)
	return db, data, err
}
