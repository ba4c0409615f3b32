package embedded_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dodona-project/dodona/host/internal/crash"
	"github.com/dodona-project/dodona/host/store"
	"github.com/dodona-project/dodona/host/store/embedded"
)

func putKey(t *testing.T, s store.Store, d store.Durability, key string) (revision uint64) {
	t.Helper()
	must(t, s.Update(t.Context(), d, func(tx store.Tx) error {
		revision = tx.Revision()
		return tx.Put(key, []byte(key))
	}))
	return revision
}

func has(t *testing.T, s store.Store, key string) (found bool) {
	t.Helper()
	must(t, s.View(t.Context(), func(tx store.ReadTx) error {
		r, err := tx.Get(key)
		found = r.Exists()
		return err
	}))
	return found
}

func TestSyncsPerUpdate(t *testing.T) {
	// An hour: no flush but those that hard updates ask for.
	s, err := embedded.Open(filepath.Join(t.TempDir(), "data"), embedded.Options{Flush: time.Hour})
	must(t, err)
	defer s.Close()
	before := s.Syncs()
	for range 10 {
		putKey(t, s, store.Hard, "k")
	}
	if got := s.Syncs() - before; got != 10 {
		t.Errorf("10 hard updates one after another made %d commits, want 10", got)
	}
	before = s.Syncs()
	for range 1000 {
		putKey(t, s, store.Soft, "k")
	}
	if got := s.Syncs() - before; got != 0 {
		t.Errorf("soft updates made %d commits, want 0", got)
	}
	before = s.Syncs()
	const callers, rounds = 64, 20
	var wg sync.WaitGroup
	for i := range callers {
		wg.Go(func() {
			for range rounds {
				if err := s.Update(context.Background(), store.Hard, func(tx store.Tx) error {
					return tx.Put(fmt.Sprint("k", i), nil)
				}); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	// At worst two groups of callers take turns; four leaves room for a busy
	// machine and still tells sharing from not sharing.
	if got := s.Syncs() - before; got > 4*rounds {
		t.Errorf("%d callers with %d hard updates each made %d commits, at most %d are allowed", callers, rounds, got, 4*rounds)
	}
	before = s.Syncs()
	must(t, s.Update(t.Context(), store.Hard, func(tx store.Tx) error { _, err := tx.Get("k"); return err }))
	if got := s.Syncs() - before; got != 0 {
		t.Errorf("a hard update that wrote nothing made %d commits, want 0", got)
	}
}

func TestHardCarriesSoft(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "data")
	s, err := embedded.Open(dir, embedded.Options{Flush: time.Hour})
	must(t, err)
	putKey(t, s, store.Soft, "before")
	putKey(t, s, store.Hard, "hard")
	last := putKey(t, s, store.Soft, "after")
	// What is on disk now is what a crash would leave.
	copied := copyStore(t, dir)
	must(t, s.Close())

	s, err = embedded.Open(copied, embedded.Options{})
	must(t, err)
	if !has(t, s, "before") || !has(t, s, "hard") || has(t, s, "after") {
		t.Errorf("after a crash: before %t, hard %t, after %t", has(t, s, "before"), has(t, s, "hard"), has(t, s, "after"))
	}
	if next := putKey(t, s, store.Soft, "k"); next <= last {
		t.Errorf("revision %d was lost and %d is issued", last, next)
	}
	must(t, s.Close())

	s, err = embedded.Open(dir, embedded.Options{})
	must(t, err)
	if !has(t, s, "after") {
		t.Error("a soft write is lost by a close")
	}
	must(t, s.Close())
}

func copyStore(t *testing.T, dir string) string {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(dir, "store.db"))
	must(t, err)
	copied := filepath.Join(t.TempDir(), "data")
	must(t, os.Mkdir(copied, 0o700))
	must(t, os.WriteFile(filepath.Join(copied, "store.db"), data, 0o600))
	return copied
}

func TestSoftWritesReachTheDiskByThemselves(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "data")
	s, err := embedded.Open(dir, embedded.Options{Flush: time.Millisecond})
	must(t, err)
	defer s.Close()
	before := s.Syncs()
	putKey(t, s, store.Soft, "k")
	for s.Syncs() == before {
		runtime.Gosched()
	}
	copied, err := embedded.Open(copyStore(t, dir), embedded.Options{})
	must(t, err)
	defer copied.Close()
	if !has(t, copied, "k") {
		t.Error("the soft write is not on disk after a flush")
	}
}

func TestBackupAndRestore(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "data")
	want := fill(t, dir)
	s, err := embedded.Open(dir, embedded.Options{})
	must(t, err)
	var backup bytes.Buffer
	must(t, s.Backup(&backup))
	last := putKey(t, s, store.Hard, "later")
	must(t, s.Close())

	if err := embedded.Restore(dir, bytes.NewReader(backup.Bytes())); !errors.Is(err, store.ErrRefused) || !strings.Contains(err.Error(), "store.db exists") {
		t.Errorf("restore over a store: %v, want a refusal", err)
	}
	fresh := filepath.Join(t.TempDir(), "restored")
	for name, bad := range map[string][]byte{
		"empty":     {},
		"cut off":   backup.Bytes()[:backup.Len()/2],
		"bits lost": append(append([]byte{}, backup.Bytes()[:9000]...), make([]byte, backup.Len()-9000)...),
	} {
		if err := embedded.Restore(fresh, bytes.NewReader(bad)); !errors.Is(err, store.ErrRefused) {
			t.Errorf("restore of a backup that is %s: %v, want a refusal", name, err)
		}
	}
	must(t, embedded.Restore(fresh, &backup))
	s, err = embedded.Open(fresh, embedded.Options{})
	must(t, err)
	defer s.Close()
	if got := content(t, s); got != want {
		t.Error("the restored store has other content")
	}
	if has(t, s, "later") {
		t.Error("a write after the backup is in it")
	}
	if next := putKey(t, s, store.Hard, "k"); next < last+1<<32-1<<22 {
		t.Errorf("revision %d after the restore, %d before", next, last)
	}
}

func TestClock(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "data")
	wall := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	var mu sync.Mutex
	read := func() time.Time { mu.Lock(); defer mu.Unlock(); return wall }
	set := func(to time.Time) { mu.Lock(); defer mu.Unlock(); wall = to }
	now := func(s store.Store) (now time.Time) {
		must(t, s.View(t.Context(), func(tx store.ReadTx) error { now = tx.Now(); return nil }))
		return now
	}
	s, err := embedded.Open(dir, embedded.Options{Clock: read})
	must(t, err)
	start := wall
	set(start.Add(time.Minute))
	if got := now(s); !got.Equal(start.Add(time.Minute)) {
		t.Errorf("after a minute: %v", got)
	}
	set(start.Add(-time.Hour))
	if got := now(s); !got.Equal(start.Add(time.Minute)) {
		t.Errorf("after the clock went back: %v", got)
	}
	putKey(t, s, store.Hard, "k")
	must(t, s.Close())
	s, err = embedded.Open(dir, embedded.Options{Clock: read})
	must(t, err)
	defer s.Close()
	if got := now(s); got.Before(start.Add(time.Minute)) {
		t.Errorf("after reopening with the clock an hour back: %v", got)
	}
}

func TestMemoryInABubble(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := embedded.OpenMemory(embedded.Options{})
		defer s.Close()
		watch := s.Watch(t.Context(), "k")
		start := time.Now()
		<-watch
		if got := time.Since(start); got != 30*time.Second {
			t.Errorf("a watch without changes fired after %v, want 30s", got)
		}
		putKey(t, s, store.Hard, "k")
		<-watch
		if !has(t, s, "k") {
			t.Error("the write is not there")
		}
	})
}

func TestCrashPoints(t *testing.T) {
	if !crash.Enabled {
		t.Skip("crash points are built with -tags faults")
	}
	dir := filepath.Join(t.TempDir(), "data")
	k := newKillRecord()
	round := 0
	for _, point := range []string{"store.before-commit", "store.after-commit"} {
		for hit := 2; hit <= 20; hit += 6 {
			cmd, out := child(t, dir, round, fmt.Sprintf("DONA_CRASH_POINT=%s:%d", point, hit))
			k.follow(t, cmd, out, round, 0)
			k.inspect(t, dir, round)
			round++
		}
	}
	k.h.Check(t)
}
