package datadir

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/dodona-project/dodona/host/store"
)

// refused demands a refusal that says what to do.
func refused(t *testing.T, what string, err error, says string) {
	t.Helper()
	if !errors.Is(err, store.ErrRefused) || !strings.Contains(err.Error(), says) {
		t.Errorf("%s: %v, want a refusal with %q", what, err, says)
	}
}

func write(t *testing.T, name string, mode os.FileMode) {
	t.Helper()
	if err := os.WriteFile(name, []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(name, mode); err != nil { // whatever the umask
		t.Fatal(err)
	}
}

// TestPrepare: a directory is made for its owner only; one that others may enter, or
// that is a file, is refused and stays as it is.
func TestPrepare(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "a", "b")
	for range 2 { // made, and found
		if err := Prepare(dir); err != nil {
			t.Fatal(err)
		}
	}
	if info, err := os.Stat(dir); err != nil || info.Mode().Perm() != 0o700 {
		t.Errorf("%v, %v, want mode 0700", info, err)
	}
	if err := os.Chmod(dir, 0o750); err != nil {
		t.Fatal(err)
	}
	refused(t, "a directory of the group", Prepare(dir), "chmod 700 "+dir)
	if info, err := os.Stat(dir); err != nil || info.Mode().Perm() != 0o750 {
		t.Errorf("%v, %v: what is refused was changed", info, err)
	}
	file := filepath.Join(t.TempDir(), "file")
	write(t, file, 0o600)
	refused(t, "a file", Prepare(file), "not a directory")
}

func TestCheckFile(t *testing.T) {
	dir := t.TempDir()
	own, open, link := filepath.Join(dir, "own"), filepath.Join(dir, "open"), filepath.Join(dir, "link")
	write(t, own, 0o600)
	write(t, open, 0o640)
	if err := os.Symlink(own, link); err != nil {
		t.Fatal(err)
	}
	if err := CheckFile(own); err != nil {
		t.Error(err)
	}
	refused(t, "a file of the group", CheckFile(open), "chmod 600 "+open)
	refused(t, "a link", CheckFile(link), "not a regular file")
	refused(t, "a directory", CheckFile(dir), "not a regular file")
	if err := CheckFile(filepath.Join(dir, "none")); err == nil || errors.Is(err, store.ErrRefused) {
		t.Errorf("a file that is not there: %v", err)
	}
}

// TestWriteFile: the file is replaced as a whole, for its owner only, and nothing else
// is left.
func TestWriteFile(t *testing.T) {
	dir := t.TempDir()
	name := filepath.Join(dir, "file")
	for _, text := range []string{"a longer text", "short"} {
		if err := WriteFile(name, []byte(text)); err != nil {
			t.Fatal(err)
		}
		if got, err := os.ReadFile(name); err != nil || string(got) != text {
			t.Errorf("it holds %q, %v", got, err)
		}
	}
	if err := CheckFile(name); err != nil {
		t.Error(err)
	}
	if err := WriteFile(filepath.Join(dir, "none", "file"), nil); err == nil {
		t.Error("written where there is no directory")
	}
	if all, err := os.ReadDir(dir); err != nil || len(all) != 1 {
		t.Errorf("left are %v, %v", all, err)
	}
}

// TestLock: a second host waits as long as it was told and is refused, and has the
// directory once the first is gone.
func TestLock(t *testing.T) {
	dir := t.TempDir()
	unlock, err := Lock(dir, 0)
	if err != nil {
		t.Fatal(err)
	}
	const wait = 100 * time.Millisecond
	began := time.Now()
	_, err = Lock(dir, wait)
	refused(t, "a second host", err, "--data-dir")
	if took := time.Since(began); took < wait {
		t.Errorf("refused after %v, want no sooner than %v", took, wait)
	}
	if err := unlock(); err != nil {
		t.Fatal(err)
	}
	again, err := Lock(dir, 0)
	if err != nil {
		t.Fatalf("after the first is gone: %v", err)
	}
	if err := again(); err != nil {
		t.Error(err)
	}
	if err := os.Chmod(filepath.Join(dir, lockName), 0o666); err != nil {
		t.Fatal(err)
	}
	_, err = Lock(dir, 0)
	refused(t, "a lock that others may write", err, "chmod 600")
}
