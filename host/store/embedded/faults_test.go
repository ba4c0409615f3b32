package embedded

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"reflect"
	"sync"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/dodona-project/dodona/host/store"
)

// faultyFile sits between bbolt and its file. bbolt writes through a function
// that its own tests replace too; an fsync it makes on the descriptor, which is
// made to fail by putting another file under that number.
type faultyFile struct {
	t    *testing.T
	file *os.File
	mu   sync.Mutex
	// failWrite is how many writes from now the one is that fails, with err
	// after half of its bytes when short. failing goes on until heal.
	failWrite int
	short     bool
	err       error
	failing   bool
	// breakSync is how many writes from now the one is after which no fsync of
	// the file works any more.
	breakSync int
	writes    int
}

func inject(t *testing.T, f *file) *faultyFile {
	ff := &faultyFile{t: t, file: f.data}
	field := reflect.ValueOf(f.db).Elem().FieldByName("ops").FieldByName("writeAt")
	hook := (*func([]byte, int64) (int, error))(unsafe.Pointer(field.UnsafeAddr()))
	*hook = ff.writeAt
	return ff
}

func (ff *faultyFile) writeAt(b []byte, off int64) (int, error) {
	ff.mu.Lock()
	defer ff.mu.Unlock()
	ff.writes++
	ff.failWrite--
	if ff.failWrite == 0 {
		ff.failing = true
	}
	if ff.failing {
		n := 0
		if ff.short {
			n, _ = ff.file.WriteAt(b[:len(b)/2], off)
		}
		return n, &fs.PathError{Op: "write", Path: ff.file.Name(), Err: ff.err}
	}
	n, err := ff.file.WriteAt(b, off)
	ff.breakSync--
	if ff.breakSync == 0 {
		null, oerr := os.OpenFile(os.DevNull, os.O_RDWR, 0)
		if oerr != nil {
			ff.t.Error(oerr)
			return n, err
		}
		defer null.Close()
		if derr := unix.Dup3(int(null.Fd()), int(ff.file.Fd()), unix.O_CLOEXEC); derr != nil {
			ff.t.Error(derr)
		}
	}
	return n, err
}

func (ff *faultyFile) arm(change func()) {
	ff.mu.Lock()
	defer ff.mu.Unlock()
	change()
}

func put(s *Store, d store.Durability, key, value string) error {
	return s.Update(context.Background(), d, func(tx store.Tx) error { return tx.Put(key, []byte(value)) })
}

func value(t *testing.T, s *Store, key string) (value string) {
	t.Helper()
	err := s.View(t.Context(), func(tx store.ReadTx) error {
		r, err := tx.Get(key)
		value = string(r.Value)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return value
}

// writesOfOneCommit is how many writes a commit of the tests here makes: its
// pages and the head.
const writesOfOneCommit = 2

func TestFailedSyncEndsTheStore(t *testing.T) {
	for at := 1; at <= 3*writesOfOneCommit; at++ {
		t.Run(fmt.Sprint("after write ", at), func(t *testing.T) {
			dir := filepath.Join(t.TempDir(), "data")
			told := make(chan error, 2)
			s, err := Open(dir, Options{Fatal: func(err error) { told <- err }})
			if err != nil {
				t.Fatal(err)
			}
			ff := inject(t, s.file)
			ff.arm(func() { ff.breakSync = at })
			acknowledged := 0
			for n := 1; ; n++ {
				if err = put(s, store.Hard, "k", fmt.Sprint(n)); err != nil {
					break
				}
				acknowledged = n
			}
			if !errors.Is(err, store.ErrUnknown) {
				t.Errorf("the write whose fsync failed: %v, want ErrUnknown", err)
			}
			<-told
			if want := (at - 1) / writesOfOneCommit; acknowledged > want {
				t.Errorf("%d writes acknowledged, the fsync of number %d failed", acknowledged, want+1)
			}
			for range 2 { // never tried again
				if err := put(s, store.Hard, "k", "later"); !errors.Is(err, store.ErrClosed) {
					t.Errorf("write after the failure: %v, want ErrClosed", err)
				}
			}
			if err := s.View(t.Context(), func(store.ReadTx) error { return nil }); !errors.Is(err, store.ErrClosed) {
				t.Errorf("read after the failure: %v, want ErrClosed", err)
			}
			_ = s.Close()
			if len(told) != 0 {
				t.Error("Fatal was called twice")
			}
			s, err = Open(dir, Options{})
			if err != nil {
				t.Fatal(err)
			}
			defer s.Close()
			if got := value(t, s, "k"); got != fmt.Sprint(acknowledged) && got != fmt.Sprint(acknowledged+1) && (acknowledged > 0 || got != "") {
				t.Errorf("reopened with %q, %d writes were acknowledged", got, acknowledged)
			}
		})
	}
}

func TestFailedWrites(t *testing.T) {
	for _, tt := range []struct {
		name  string
		errno syscall.Errno
		short bool
		want  error
	}{
		{"full", syscall.ENOSPC, false, store.ErrFull},
		{"full, short write", syscall.ENOSPC, true, store.ErrFull},
		{"quota", syscall.EDQUOT, false, store.ErrFull},
		{"read-only", syscall.EROFS, false, store.ErrReadOnly},
		{"broken", syscall.EIO, false, store.ErrUnknown},
		{"broken, short write", syscall.EIO, true, store.ErrUnknown},
	} {
		for at := 1; at <= 2*writesOfOneCommit; at++ {
			t.Run(fmt.Sprintf("%s at write %d", tt.name, at), func(t *testing.T) {
				dir := filepath.Join(t.TempDir(), "data")
				s, err := Open(dir, Options{Probe: 5 * time.Millisecond})
				if err != nil {
					t.Fatal(err)
				}
				ff := inject(t, s.file)
				ff.arm(func() { ff.failWrite, ff.err, ff.short = at, tt.errno, tt.short })
				watch := s.Watch(t.Context(), "k")
				acknowledged := 0
				for n := 1; ; n++ {
					if err = put(s, store.Hard, "k", fmt.Sprint(n)); err != nil {
						break
					}
					acknowledged = n
				}
				want := tt.want
				if tt.short && at%writesOfOneCommit == 0 {
					want = store.ErrUnknown // half of a head's page is all of the head
				}
				if !errors.Is(err, want) {
					t.Fatalf("got %v, want %v", err, want)
				}
				if errors.Is(want, store.ErrUnknown) {
					if err := put(s, store.Hard, "k", "later"); !errors.Is(err, store.ErrClosed) {
						t.Errorf("write after the failure: %v, want ErrClosed", err)
					}
					_ = s.Close()
				} else {
					recovers(t, s, ff, acknowledged, want, watch)
					if err := s.Close(); err != nil {
						t.Error(err)
					}
					acknowledged = -1
				}
				if s, err = Open(dir, Options{}); err != nil {
					t.Fatal(err)
				}
				defer s.Close()
				got := value(t, s, "k")
				healed := acknowledged == -1 && got == "healed"
				kept := acknowledged == 0 && got == "" || got == fmt.Sprint(acknowledged) || errors.Is(want, store.ErrUnknown) && got == fmt.Sprint(acknowledged+1)
				if !healed && !kept {
					t.Errorf("reopened with %q, %d writes were acknowledged", got, acknowledged)
				}
			})
		}
	}
}

// recovers looks at a store whose disk takes no writes, and then lets it take
// them again.
func recovers(t *testing.T, s *Store, ff *faultyFile, acknowledged int, want error, watch <-chan struct{}) {
	t.Helper()
	<-watch
	last := ""
	if acknowledged > 0 {
		last = fmt.Sprint(acknowledged)
	}
	if got := value(t, s, "k"); got != last {
		t.Errorf("reads %q after the refused write, %q was acknowledged", got, last)
	}
	for _, d := range []store.Durability{store.Soft, store.Hard} {
		// In between, a probe may have found the disk well and a flush not.
		for err := error(nil); !errors.Is(err, want); {
			if err = put(s, d, "other", "x"); err != nil && !errors.Is(err, want) {
				t.Fatalf("write while the disk takes none: %v, want %v", err, want)
			}
		}
	}
	ff.arm(func() { ff.failing = false })
	for put(s, store.Hard, "k", "healed") != nil {
	}
	if got := value(t, s, "k"); got != "healed" {
		t.Errorf("reads %q after the disk was healed", got)
	}
	if state := s.Info().State; state != "ready" {
		t.Errorf("state is %q", state)
	}
}

func TestFullFileSystem(t *testing.T) {
	mount := t.TempDir()
	if err := unix.Mount("tmpfs", mount, "tmpfs", 0, "size=4m,mode=700"); err != nil {
		t.Skipf("needs the right to mount a small file system: %v", err)
	}
	defer unix.Unmount(mount, unix.MNT_DETACH)
	dir := filepath.Join(mount, "data")
	s, err := Open(dir, Options{Probe: 5 * time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	ballast := filepath.Join(mount, "ballast")
	if err := put(s, store.Hard, "k", "first"); err != nil {
		t.Fatal(err)
	}
	b, err := os.Create(ballast)
	if err != nil {
		t.Fatal(err)
	}
	for err == nil {
		_, err = b.Write(make([]byte, 4096))
	}
	_ = b.Close()
	if !errors.Is(err, syscall.ENOSPC) {
		t.Fatal(err)
	}
	big := string(make([]byte, 100<<10))
	if err := put(s, store.Hard, "big", big); !errors.Is(err, store.ErrFull) {
		t.Fatalf("write to the full disk: %v, want ErrFull", err)
	}
	if got := value(t, s, "k"); got != "first" {
		t.Errorf("reads %q from the full disk", got)
	}
	if got := value(t, s, "big"); got != "" {
		t.Errorf("reads %d bytes of the refused write", len(got))
	}
	if err := os.Remove(ballast); err != nil {
		t.Fatal(err)
	}
	for err = store.ErrFull; errors.Is(err, store.ErrFull); {
		err = put(s, store.Hard, "big", big)
	}
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if s, err = Open(dir, Options{}); err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if got := value(t, s, "big"); got != big {
		t.Error("the write after the disk had space again is lost")
	}
}

func TestOnlyWritesCanBeTriedAgain(t *testing.T) {
	for _, tt := range []struct {
		err  error
		want error
	}{
		{&fs.PathError{Op: "write", Err: syscall.ENOSPC}, store.ErrFull},
		{&fs.PathError{Op: "truncate", Err: syscall.EROFS}, store.ErrReadOnly},
		{&fs.PathError{Op: "sync", Err: syscall.ENOSPC}, nil},
		{syscall.ENOSPC, nil}, // as fdatasync returns it
		{&fs.PathError{Op: "write", Err: syscall.EIO}, nil},
	} {
		got := classify(tt.err)
		if tt.want == nil && (errors.Is(got, store.ErrFull) || errors.Is(got, store.ErrReadOnly)) || tt.want != nil && !errors.Is(got, tt.want) {
			t.Errorf("%v is taken for %v", tt.err, got)
		}
	}
}
