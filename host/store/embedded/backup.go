package embedded

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"go.etcd.io/bbolt"

	"github.com/dodona-project/dodona/host/store/datadir"
)

// restoreGap is what Restore adds to the revision, so that none that was issued
// after the backup was made is issued again with other content.
const restoreGap = 1 << 32

var errInMemory = errors.New("store: one that is kept in memory has no backup")

func (f *file) backup(w io.Writer) error {
	return f.db.View(func(tx *bbolt.Tx) error {
		_, err := tx.WriteTo(w)
		return err
	})
}

// Restore makes dir a store with the content of a backup. The backup is verified
// as Open verifies a store, and what is wrong with it is refused with
// [store.ErrRefused], as is a directory that holds a store already or is in
// use: nothing is overwritten. Every revision of the restored store is above
// those of the one that the backup was made of, unless that one has gone on for
// more than 2^32 of them.
func Restore(dir string, backup io.Reader) error {
	if err := datadir.Prepare(dir); err != nil {
		return err
	}
	unlock, err := datadir.Lock(dir, Options{}.withDefaults().LockTimeout)
	if err != nil {
		return err
	}
	defer unlock()
	path := filepath.Join(dir, dataName)
	if _, err := os.Lstat(path); !errors.Is(err, fs.ErrNotExist) {
		if err != nil {
			return fmt.Errorf("store: restore: %w", err)
		}
		return refuse("%s exists; move it away before restoring a backup in its place", path)
	}
	fresh := filepath.Join(dir, freshName)
	defer os.Remove(fresh) // is not there any more when all went well
	if err := copyTo(fresh, backup); err != nil {
		return fmt.Errorf("store: restore: %w", err)
	}
	if err := verify(fresh); err != nil {
		return refuse("backup: %w", err)
	}
	f, st, err := load(fresh)
	if err != nil {
		return refuse("backup: %w", err)
	}
	st.revision = f.head.reserved + restoreGap
	_, err = f.write(st, newDirty(), st.revision, f.head.clock)
	if cerr := f.db.Close(); err == nil {
		err = cerr
	}
	if err == nil {
		err = os.Rename(fresh, path)
	}
	if err == nil {
		err = syncDir(dir)
	}
	if err != nil {
		return fmt.Errorf("store: restore: %w", err)
	}
	return nil
}

func copyTo(path string, r io.Reader) error {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	_, err = io.Copy(f, r)
	if err == nil {
		err = f.Sync()
	}
	if cerr := f.Close(); err == nil {
		err = cerr
	}
	return err
}
