package embedded_test

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/dodona-project/dodona/host/store"
	"github.com/dodona-project/dodona/host/store/embedded"
)

// ReadFile reads a backup and a directory that nobody uses, and changes nothing.
func TestReadFile(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "data")
	s, err := embedded.Open(dir, embedded.Options{})
	if err != nil {
		t.Fatal(err)
	}
	ctx := context.Background()
	if err := s.Update(ctx, store.Hard, func(tx store.Tx) error {
		if _, err := tx.Append("log", []byte("line")); err != nil {
			return err
		}
		return tx.Put("k", []byte("v"))
	}); err != nil {
		t.Fatal(err)
	}
	look := func(s store.Store) error {
		if err := s.Update(ctx, store.Soft, func(tx store.Tx) error { return tx.Put("k", nil) }); !errors.Is(err, store.ErrReadOnly) {
			t.Errorf("a write: %v", err)
		}
		return s.View(ctx, func(tx store.ReadTx) error {
			rec, err := tx.Get("k")
			if err != nil || string(rec.Value) != "v" {
				t.Errorf("the record is %q, %v", rec.Value, err)
			}
			lines, err := tx.ReadLog("log", 1, 0)
			if err != nil || len(lines) != 1 || string(lines[0].Payload) != "line" {
				t.Errorf("the log is %v, %v", lines, err)
			}
			return nil
		})
	}
	if err := embedded.ReadDir(dir, look); !errors.Is(err, store.ErrRefused) || !strings.Contains(err.Error(), "another host is running") {
		t.Errorf("a directory in use: %v", err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(dir, "store.db")
	before, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if err := embedded.ReadDir(dir, look); err != nil {
		t.Errorf("a directory at rest: %v", err)
	}
	if err := embedded.ReadFile(file, look); err != nil {
		t.Errorf("a file: %v", err)
	}
	if after, err := os.ReadFile(file); err != nil || !bytes.Equal(before, after) {
		t.Errorf("reading changed the file (%v)", err)
	}
	if err := os.Truncate(file, 10_000); err != nil {
		t.Fatal(err)
	}
	if err := embedded.ReadFile(file, look); !errors.Is(err, store.ErrRefused) {
		t.Errorf("a damaged file: %v", err)
	}
	if err := embedded.ReadDir(filepath.Join(dir, "nowhere"), look); err == nil {
		t.Error("a directory that is not there is read")
	}
}
