package embedded_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"go.etcd.io/bbolt"

	"github.com/dodona-project/dodona/host/store"
	"github.com/dodona-project/dodona/host/store/embedded"
)

// content is everything in a store that fill has written, as text.
func content(t *testing.T, s store.Store) string {
	t.Helper()
	var out strings.Builder
	err := s.View(t.Context(), func(tx store.ReadTx) error {
		out.Reset()
		for i := range 400 {
			r, err := tx.Get(fmt.Sprintf("key/%03d", i))
			if err != nil {
				return err
			}
			fmt.Fprintf(&out, "%d %x\n", r.Version, r.Value)
		}
		entries, err := tx.Scan("index", 0, 1<<50, 0)
		if err != nil {
			return err
		}
		lines, err := tx.ReadLog("log", 1, 0)
		fmt.Fprintf(&out, "%v\n%x\n", entries, lines)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return out.String()
}

// fill writes records over several pages and one over page size, deletes some,
// and adds index entries and log lines.
func fill(t *testing.T, dir string) (want string) {
	t.Helper()
	s, err := embedded.Open(dir, embedded.Options{})
	if err != nil {
		t.Fatal(err)
	}
	for round := range 4 {
		err := s.Update(t.Context(), store.Hard, func(tx store.Tx) error {
			for i := range 100 {
				key := fmt.Sprintf("key/%03d", round*100+i)
				size := 40
				if i == 50 {
					size = 9000
				}
				if err := tx.Put(key, []byte(strings.Repeat(key[4:5], size))); err != nil {
					return err
				}
				if err := tx.IndexPut("index", key, uint64(i*round)); err != nil {
					return err
				}
				if i%3 == 0 && round > 0 {
					if err := errors.Join(tx.Delete(fmt.Sprintf("key/%03d", round*100+i-100)), tx.IndexDelete("index", key)); err != nil {
						return err
					}
				}
				if _, err := tx.Append("log", []byte(key)); err != nil {
					return err
				}
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	want = content(t, s)
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	return want
}

func TestBitFlipsAreDetectedOrHarmless(t *testing.T) {
	want := fill(t, filepath.Join(t.TempDir(), "data"))
	source := filepath.Join(t.TempDir(), "data")
	if got := fill(t, source); got != want {
		t.Fatal("filling twice gives different content")
	}
	good, err := os.ReadFile(filepath.Join(source, "store.db"))
	if err != nil {
		t.Fatal(err)
	}
	// The file ends in a hole; what was ever written is in front.
	used := len(strings.TrimRight(string(good), "\x00"))
	good = good[:(used+4095)/4096*4096]
	dir := filepath.Join(t.TempDir(), "data")
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, "store.db")
	const flips = 300
	rng := rand.New(rand.NewPCG(1, 2))
	refused := 0
	for n := range flips {
		bad := append([]byte{}, good...)
		bit := rng.IntN(used * 8)
		if n < 100 { // the heads and the first bytes of pages, where it hurts most
			bit = rng.IntN(used/4096)*4096*8 + rng.IntN(96*8)
		}
		bad[bit/8] ^= 1 << (bit % 8)
		if err := os.WriteFile(path, bad, 0o600); err != nil {
			t.Fatal(err)
		}
		s, err := embedded.Open(dir, embedded.Options{})
		if err != nil {
			if !errors.Is(err, store.ErrRefused) || !strings.Contains(err.Error(), path) {
				t.Fatalf("bit %d: %v", bit, err)
			}
			if after, _ := os.ReadFile(path); string(after) != string(bad) {
				t.Fatalf("bit %d: the refused file was changed", bit)
			}
			refused++
			continue
		}
		if got := content(t, s); got != want {
			t.Fatalf("bit %d: opens with other content", bit)
		}
		if err := s.Close(); err != nil {
			t.Fatalf("bit %d: %v", bit, err)
		}
	}
	t.Logf("%d of %d flips in %d bytes refused, the others harmless", refused, flips, used)
	if refused < flips/4 {
		t.Errorf("only %d of %d flips were noticed", refused, flips)
	}
}

func TestOpenRefuses(t *testing.T) {
	tests := []struct {
		name  string
		spoil func(t *testing.T, path string)
		want  string
	}{
		{"empty file", func(t *testing.T, path string) { must(t, os.Truncate(path, 0)) }, "is empty"},
		{"a few bytes", func(t *testing.T, path string) { must(t, os.Truncate(path, 40)) }, "is truncated"},
		{"one page", func(t *testing.T, path string) { must(t, os.Truncate(path, 4096)) }, "is truncated"},
		{"half the pages", func(t *testing.T, path string) { must(t, os.Truncate(path, 6*4096)) }, "is truncated"},
		{"text", func(t *testing.T, path string) {
			must(t, os.WriteFile(path, []byte(strings.Repeat("no store\n", 2000)), 0o600))
		}, "is not a bbolt file"},
		{"another program's bbolt file", func(t *testing.T, path string) {
			must(t, os.Remove(path))
			db, err := bbolt.Open(path, 0o600, &bbolt.Options{NoFreelistSync: true})
			must(t, err)
			for range 2 {
				must(t, db.Update(func(tx *bbolt.Tx) error {
					_, err := tx.CreateBucketIfNotExists([]byte("theirs"))
					return err
				}))
			}
			must(t, db.Close())
		}, "not one of this program"},
		{"newer format", func(t *testing.T, path string) {
			db, err := bbolt.Open(path, 0o600, &bbolt.Options{NoFreelistSync: true})
			must(t, err)
			must(t, db.Update(func(tx *bbolt.Tx) error {
				return tx.Bucket([]byte("meta")).Put([]byte("format"), []byte{0, 0, 0, 2})
			}))
			must(t, db.Close())
		}, "has format 2, this program knows format 1"},
		{"missing entry", func(t *testing.T, path string) {
			db, err := bbolt.Open(path, 0o600, &bbolt.Options{NoFreelistSync: true})
			must(t, err)
			must(t, db.Update(func(tx *bbolt.Tx) error {
				return tx.Bucket([]byte("records")).Delete([]byte("key/399"))
			}))
			must(t, db.Close())
		}, "entries that are not"},
		{"loose file", func(t *testing.T, path string) { must(t, os.Chmod(path, 0o640)) }, "chmod 600"},
		{"loose directory", func(t *testing.T, path string) { must(t, os.Chmod(filepath.Dir(path), 0o750)) }, "chmod 700"},
		{"directory in its place", func(t *testing.T, path string) {
			must(t, os.Remove(path))
			must(t, os.Mkdir(path, 0o700))
		}, "not a regular file"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			dir := filepath.Join(t.TempDir(), "data")
			fill(t, dir)
			path := filepath.Join(dir, "store.db")
			tt.spoil(t, path)
			_, err := embedded.Open(dir, embedded.Options{})
			if !errors.Is(err, store.ErrRefused) || !strings.Contains(err.Error(), tt.want) || !strings.Contains(err.Error(), dir) {
				t.Fatalf("got %v, want a refusal with %q and the file's name", err, tt.want)
			}
		})
	}
}

func TestSecondOpenIsRefused(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "data")
	s, err := embedded.Open(dir, embedded.Options{})
	must(t, err)
	_, err = embedded.Open(dir, embedded.Options{})
	if !errors.Is(err, store.ErrRefused) || !strings.Contains(err.Error(), filepath.Join(dir, "store.lock")) {
		t.Fatalf("got %v, want a refusal with the lock's name", err)
	}
	must(t, s.Close())
	s, err = embedded.Open(dir, embedded.Options{})
	must(t, err)
	must(t, s.Close())
	if err := s.Update(context.Background(), store.Hard, func(store.Tx) error { return nil }); !errors.Is(err, store.ErrClosed) {
		t.Errorf("update after close: %v", err)
	}
	if err := s.View(context.Background(), func(store.ReadTx) error { return nil }); !errors.Is(err, store.ErrClosed) {
		t.Errorf("view after close: %v", err)
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
