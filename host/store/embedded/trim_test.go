package embedded

import (
	"context"
	"fmt"
	"path/filepath"
	"testing"

	"github.com/dodona-project/dodona/host/store"
)

// TestTrimmedLogOnDisk: what is trimmed is gone from the file, the rest keeps its
// numbers, and the file holds by its own sums; also what was never written.
func TestTrimmedLogOnDisk(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "data")
	s, err := Open(dir, Options{})
	if err != nil {
		t.Fatal(err)
	}
	do := func(d store.Durability, fn func(tx store.Tx) error) {
		t.Helper()
		if err := s.Update(context.Background(), d, fn); err != nil {
			t.Fatal(err)
		}
	}
	add := func(log string, n int) func(tx store.Tx) error {
		return func(tx store.Tx) error {
			for i := range n {
				if _, err := tx.Append(log, fmt.Append(nil, i)); err != nil {
					return err
				}
			}
			return nil
		}
	}
	seqs := func(log string) (seqs []uint64) {
		t.Helper()
		if err := s.View(context.Background(), func(tx store.ReadTx) error {
			got, err := tx.ReadLog(log, 1, 0)
			seqs = nil
			for _, e := range got {
				seqs = append(seqs, e.Seq)
			}
			return err
		}); err != nil {
			t.Fatal(err)
		}
		return seqs
	}
	do(store.Hard, add("a", 5000))
	do(store.Hard, add("b", 3))
	before := s.Info().ID
	do(store.Soft, add("a", 5))
	do(store.Soft, func(tx store.Tx) error { return tx.Trim("a", 5002) }) // of which two are in memory only
	do(store.Soft, add("soft", 4))
	do(store.Soft, func(tx store.Tx) error { return tx.Trim("soft", 3) })
	for range 2 {
		if got := fmt.Sprint(seqs("a"), seqs("b"), seqs("soft")); got != "[5003 5004 5005] [1 2 3] [4]" {
			t.Errorf("the logs have %s", got)
		}
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
		if s, err = Open(dir, Options{}); err != nil { // which checks digest and count
			t.Fatal(err)
		}
	}
	if s.Info().ID != before {
		t.Error("another store")
	}
	do(store.Hard, add("a", 1))
	do(store.Hard, func(tx store.Tx) error { return tx.Trim("a", 5005) })
	if got := fmt.Sprint(seqs("a")); got != "[5006]" {
		t.Errorf("the log has %s", got)
	}
	// A view that began before a trim finds what is left, and no fault.
	if err := s.View(context.Background(), func(tx store.ReadTx) error {
		if _, err := tx.Get("x"); err != nil {
			return err
		}
		do(store.Hard, add("a", 2))
		do(store.Hard, func(tx store.Tx) error { return tx.Trim("a", 5007) })
		got, err := tx.ReadLog("a", 5006, 0)
		if len(got) != 0 {
			t.Errorf("the view finds %d entries that are gone", len(got))
		}
		return err
	}); err != nil {
		t.Errorf("a view that began before: %v", err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
}
