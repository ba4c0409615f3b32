package storetest

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/dodona-project/dodona/host/store"
)

func runContract(t *testing.T, open Factory) {
	for _, tt := range []struct {
		name string
		test func(t *testing.T, s store.Store)
	}{
		{"versions are revisions", testVersions},
		{"an error leaves no trace", testErrorLeavesNoTrace},
		{"a panic is the caller's", testPanic},
		{"own writes are seen", testOwnWrites},
		{"limits", testLimits},
		{"scan", testScan},
		{"log", testLog},
		{"trim", testTrim},
		{"contexts", testContexts},
		{"the clock never falls", testClock},
		{"a view is of one revision", testViewConsistent},
		{"increments are not lost", testIncrements},
		{"watch", testWatch},
		{"close", testClose},
	} {
		t.Run(tt.name, func(t *testing.T) { tt.test(t, open(t)) })
	}
}

// update runs fn as a hard transaction that must succeed. fn says what is wrong
// by its error and not to t: a run on stale reads does not count.
func update(t *testing.T, s store.Store, fn func(tx store.Tx) error) {
	t.Helper()
	if err := s.Update(t.Context(), store.Hard, fn); err != nil {
		t.Fatal(err)
	}
}

func get(t *testing.T, s store.Store, key string) (r store.Record) {
	t.Helper()
	err := s.View(t.Context(), func(tx store.ReadTx) (err error) {
		r, err = tx.Get(key)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func testVersions(t *testing.T, s store.Store) {
	var last uint64
	for i, d := range []store.Durability{store.Hard, store.Soft, store.Hard, store.Soft} {
		var revision uint64
		err := s.Update(t.Context(), d, func(tx store.Tx) error {
			revision = tx.Revision()
			return errors.Join(tx.Put("a", []byte{byte(i)}), tx.Put("b", nil))
		})
		if err != nil {
			t.Fatal(err)
		}
		a, b := get(t, s, "a"), get(t, s, "b")
		if revision <= last || a.Version != revision || b.Version != revision || string(a.Value) != string([]byte{byte(i)}) {
			t.Fatalf("write %d: revision %d after %d, records %v and %v", i, revision, last, a, b)
		}
		last = revision
		update(t, s, func(tx store.Tx) error { return tx.Delete("a") })
		if a := get(t, s, "a"); a.Exists() || a.Value != nil {
			t.Fatalf("after delete: %v", a)
		}
	}
	if b := get(t, s, "b"); b.Version != last {
		t.Errorf("record b has version %d, it was last written at %d", b.Version, last)
	}
	if r := get(t, s, "never"); r.Exists() {
		t.Errorf("a record never written is %v", r)
	}
}

func testErrorLeavesNoTrace(t *testing.T, s store.Store) {
	update(t, s, func(tx store.Tx) error {
		_, err := tx.Append("log", []byte("one"))
		return errors.Join(err, tx.Put("k", []byte("old")), tx.IndexPut("i", "m", 1))
	})
	want := errors.New("no")
	before := get(t, s, "k")
	for _, d := range []store.Durability{store.Soft, store.Hard} {
		err := s.Update(t.Context(), d, func(tx store.Tx) error {
			_, err := tx.Append("log", []byte("two"))
			if err := errors.Join(err, tx.Put("k", []byte("new")), tx.IndexPut("i", "m", 2), tx.Put("k2", nil)); err != nil {
				return err
			}
			return want
		})
		if err != want { //nolint:errorlint // the very error, not one that wraps it
			t.Fatalf("got %v, want the very error of the function", err)
		}
	}
	err := s.View(t.Context(), func(tx store.ReadTx) error {
		lines, err := tx.ReadLog("log", 1, 0)
		if err != nil {
			return err
		}
		entries, err := tx.Scan("i", 0, 9, 0)
		if err != nil {
			return err
		}
		if len(lines) != 1 || len(entries) != 1 || entries[0].Score != 1 {
			t.Errorf("log %v, index %v", lines, entries)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if r := get(t, s, "k"); r.Version != before.Version || string(r.Value) != "old" || get(t, s, "k2").Exists() {
		t.Errorf("record is %v", r)
	}
}

func testPanic(t *testing.T, s store.Store) {
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() {
			defer func() {
				if p := recover(); i%2 == 0 && p != any(i) || i%2 == 1 && p != nil {
					t.Errorf("caller %d: recovered %v", i, p)
				}
			}()
			err := s.Update(context.Background(), store.Hard, func(tx store.Tx) error {
				if err := tx.Put(fmt.Sprint("k", i), nil); err != nil {
					return err
				}
				if i%2 == 0 {
					panic(i)
				}
				return nil
			})
			if err != nil {
				t.Errorf("caller %d: %v", i, err)
			}
		})
	}
	wg.Wait()
	for i := range 8 {
		if got := get(t, s, fmt.Sprint("k", i)).Exists(); got != (i%2 == 1) {
			t.Errorf("record %d exists: %t", i, got)
		}
	}
}

func testOwnWrites(t *testing.T, s store.Store) {
	update(t, s, func(tx store.Tx) error { return tx.Put("a", []byte("1")) })
	update(t, s, func(tx store.Tx) error {
		if err := errors.Join(tx.Put("a", []byte("2")), tx.Put("b", []byte("3")), tx.Delete("b")); err != nil {
			return err
		}
		records, err := tx.GetMany("a", "b", "c")
		if err != nil {
			return err
		}
		if string(records[0].Value) != "2" || records[0].Version != tx.Revision() || records[1].Exists() || records[2].Exists() {
			return fmt.Errorf("got %v", records)
		}
		return nil
	})
}

func testLimits(t *testing.T, s store.Store) {
	long := strings.Repeat("k", store.MaxKeyLen)
	update(t, s, func(tx store.Tx) error {
		_, err := tx.Append(long, nil)
		return errors.Join(err, tx.Put(long, nil), tx.IndexPut(long, long, 1<<53-1), tx.Put("v", make([]byte, store.MaxValueLen)))
	})
	if r := get(t, s, "v"); len(r.Value) != store.MaxValueLen {
		t.Errorf("largest value came back with %d bytes", len(r.Value))
	}
	for name, fn := range map[string]func(tx store.Tx) error{
		"no key":            func(tx store.Tx) error { return tx.Put("", nil) },
		"long key":          func(tx store.Tx) error { return tx.Put(long+"k", nil) },
		"long key read":     func(tx store.Tx) error { _, err := tx.Get(long + "k"); return err },
		"long value":        func(tx store.Tx) error { return tx.Put("k", make([]byte, store.MaxValueLen+1)) },
		"high score":        func(tx store.Tx) error { return tx.IndexPut("i", "m", 1<<53) },
		"no member":         func(tx store.Tx) error { return tx.IndexPut("i", "", 1) },
		"long payload":      func(tx store.Tx) error { _, err := tx.Append("l", make([]byte, store.MaxValueLen+1)); return err },
		"error passed over": func(tx store.Tx) error { _ = tx.Put("", nil); return nil },
		"large transaction": func(tx store.Tx) error {
			for i := range 3 {
				if err := tx.Put(fmt.Sprint("k", i), make([]byte, store.MaxTransactionLen/3)); err != nil {
					return err
				}
			}
			return nil
		},
	} {
		if err := s.Update(t.Context(), store.Hard, fn); !errors.Is(err, store.ErrTooLarge) {
			t.Errorf("%s: got %v, want ErrTooLarge", name, err)
		}
	}
}

func testScan(t *testing.T, s store.Store) {
	update(t, s, func(tx store.Tx) error {
		return errors.Join(
			tx.IndexPut("i", "c", 5), tx.IndexPut("i", "a", 5), tx.IndexPut("i", "b", 7), tx.IndexPut("i", "d", 0),
			tx.IndexPut("i2", "z", 5), tx.IndexPut("h", "y", 5), tx.IndexPut("i", "gone", 6), tx.IndexDelete("i", "gone"),
			tx.IndexDelete("i", "never"),
		)
	})
	update(t, s, func(tx store.Tx) error { return tx.IndexPut("i", "b", 6) })
	for _, tt := range []struct {
		from, to uint64
		limit    int
		want     string
	}{
		{0, 100, 0, "[{d 0} {a 5} {c 5} {b 6}]"},
		{5, 5, 0, "[{a 5} {c 5}]"},
		{0, 100, 2, "[{d 0} {a 5}]"},
		{7, 100, 0, "[]"},
		{6, 5, 0, "[]"},
	} {
		err := s.View(t.Context(), func(tx store.ReadTx) error {
			got, err := tx.Scan("i", tt.from, tt.to, tt.limit)
			if err != nil {
				return err
			}
			if fmt.Sprint(got) != tt.want {
				t.Errorf("scan %d to %d, limit %d: got %v, want %s", tt.from, tt.to, tt.limit, got, tt.want)
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	// A transaction's own changes lie over what is there.
	update(t, s, func(tx store.Tx) error {
		if err := errors.Join(tx.IndexDelete("i", "d"), tx.IndexPut("i", "a", 9), tx.IndexPut("i", "e", 5)); err != nil {
			return err
		}
		got, err := tx.Scan("i", 0, 100, 3)
		if err != nil {
			return err
		}
		if want := "[{c 5} {e 5} {b 6}]"; fmt.Sprint(got) != want {
			return fmt.Errorf("scan over own changes: got %v, want %s", got, want)
		}
		return err
	})
}

func testLog(t *testing.T, s store.Store) {
	for i := range 5 {
		update(t, s, func(tx store.Tx) error {
			for j := range 2 {
				seq, err := tx.Append("log", fmt.Append(nil, 2*i+j))
				if err != nil {
					return err
				}
				if want := uint64(2*i + j + 1); seq != want {
					return fmt.Errorf("append gives %d, want %d", seq, want)
				}
			}
			got, err := tx.ReadLog("log", 1, 0)
			if err != nil {
				return err
			}
			if len(got) != 2*i+2 {
				return fmt.Errorf("own entries are not read: %v", got)
			}
			return err
		})
	}
	err := s.View(t.Context(), func(tx store.ReadTx) error {
		for _, tt := range []struct {
			from  uint64
			limit int
			want  string
		}{{1, 2, "1=0 2=1 "}, {9, 0, "9=8 10=9 "}, {11, 0, ""}, {0, 1, "1=0 "}} {
			got, err := tx.ReadLog("log", tt.from, tt.limit)
			if err != nil {
				return err
			}
			var text strings.Builder
			for _, e := range got {
				fmt.Fprintf(&text, "%d=%s ", e.Seq, e.Payload)
			}
			if text.String() != tt.want {
				t.Errorf("from %d, limit %d: got %q, want %q", tt.from, tt.limit, text.String(), tt.want)
			}
		}
		none, err := tx.ReadLog("other", 1, 0)
		if err != nil {
			return err
		}
		if len(none) != 0 {
			t.Errorf("a log never written has %v", none)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}

func testContexts(t *testing.T, s store.Store) {
	ended, cancel := context.WithCancel(context.Background())
	cancel()
	if err := s.Update(ended, store.Hard, func(tx store.Tx) error { return tx.Put("k", nil) }); !errors.Is(err, context.Canceled) {
		t.Errorf("update: %v", err)
	}
	if err := s.View(ended, func(store.ReadTx) error { return nil }); !errors.Is(err, context.Canceled) {
		t.Errorf("view: %v", err)
	}
	if get(t, s, "k").Exists() {
		t.Error("an update whose context had ended before was committed")
	}
	// One that ends while others go on does not disturb them.
	var wg sync.WaitGroup
	for i := range 16 {
		wg.Go(func() {
			ctx, cancel := context.WithCancel(context.Background())
			defer cancel()
			for j := range 20 {
				if i%2 == 0 && j == 10 {
					time.AfterFunc(0, cancel)
				}
				err := s.Update(ctx, store.Hard, func(tx store.Tx) error { return tx.Put(fmt.Sprint("c", i), nil) })
				if err != nil && !(i%2 == 0 && errors.Is(err, context.Canceled)) {
					t.Errorf("caller %d: %v", i, err)
				}
			}
		})
	}
	wg.Wait()
	if err := s.Update(t.Context(), 0, func(store.Tx) error { return nil }); err == nil {
		t.Error("an update without a durability is accepted")
	}
}

func testClock(t *testing.T, s store.Store) {
	var last time.Time
	for i := range 100 {
		check := func(tx store.ReadTx) error {
			if now := tx.Now(); now.Before(last) {
				t.Errorf("clock fell from %v to %v", last, now)
			} else {
				last = now
			}
			return nil
		}
		var err error
		if i%2 == 0 {
			err = s.View(t.Context(), check)
		} else {
			err = s.Update(t.Context(), store.Soft, func(tx store.Tx) error { return check(tx) })
		}
		if err != nil {
			t.Fatal(err)
		}
	}
}

func testViewConsistent(t *testing.T, s store.Store) {
	var wg sync.WaitGroup
	for i := range 4 {
		wg.Go(func() {
			for j := range 50 {
				d := store.Soft
				if i%2 == 0 {
					d = store.Hard
				}
				err := s.Update(context.Background(), d, func(tx store.Tx) error {
					n := fmt.Append(nil, i, j)
					return errors.Join(tx.Put("left", n), tx.Put("right", n))
				})
				if err != nil {
					t.Error(err)
				}
			}
		})
	}
	for range 100 {
		err := s.View(t.Context(), func(tx store.ReadTx) error {
			left, err := tx.Get("left")
			if err != nil {
				return err
			}
			right, err := tx.Get("right")
			if err != nil {
				return err
			}
			if left.Version != right.Version || string(left.Value) != string(right.Value) || left.Version > tx.Revision() {
				t.Errorf("at revision %d: %v and %v", tx.Revision(), left, right)
			}
			return err
		})
		if err != nil {
			t.Error(err)
		}
	}
	wg.Wait()
}

func testIncrements(t *testing.T, s store.Store) {
	const callers, rounds = 16, 25
	var mu sync.Mutex
	seen := make(map[uint64]bool)
	var wg sync.WaitGroup
	for i := range callers {
		wg.Go(func() {
			for j := range rounds {
				var revision uint64
				err := s.Update(context.Background(), store.Durability(1+(i+j)%2), func(tx store.Tx) error {
					r, err := tx.Get("n")
					if err != nil {
						return err
					}
					revision = tx.Revision()
					return tx.Put("n", append(r.Value[:len(r.Value):len(r.Value)], 1))
				})
				mu.Lock()
				if err != nil || seen[revision] {
					t.Errorf("revision %d: %v, issued before: %t", revision, err, seen[revision])
				}
				seen[revision] = true
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	if r := get(t, s, "n"); len(r.Value) != callers*rounds {
		t.Errorf("counted to %d of %d", len(r.Value), callers*rounds)
	}
}
