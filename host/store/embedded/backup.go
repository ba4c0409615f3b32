package embedded

import (
	"errors"
	"io"

	"go.etcd.io/bbolt"
)

var errInMemory = errors.New("store: one that is kept in memory has no backup")

func (f *file) backup(w io.Writer) error {
	return f.db.View(func(tx *bbolt.Tx) error {
		_, err := tx.WriteTo(w)
		return err
	})
}
