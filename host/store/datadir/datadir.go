// Package datadir guards a host's data directory: it is for its owner only, and for
// one host at a time. The backends of the store use it. What must not be used is
// refused with [store.ErrRefused] and is not changed.
package datadir

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"github.com/dodona-project/dodona/host/store"
)

// lockName is the file that the host which runs has locked.
const lockName = "store.lock"

func refuse(format string, args ...any) error {
	return fmt.Errorf("%w: "+format, append([]any{store.ErrRefused}, args...)...)
}

// Prepare makes dir with mode 0700, or checks the one that is there.
func Prepare(dir string) error {
	info, err := os.Stat(dir)
	if errors.Is(err, fs.ErrNotExist) {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return fmt.Errorf("store: data directory: %w", err)
		}
		info, err = os.Stat(dir)
	}
	if err != nil {
		return fmt.Errorf("store: data directory: %w", err)
	}
	if !info.IsDir() {
		return refuse("data directory %s is not a directory", dir)
	}
	if mode := info.Mode().Perm(); mode&0o077 != 0 {
		return refuse("data directory %s has mode %04o, others than its owner must have no access: chmod 700 %s", dir, mode, dir)
	}
	return nil
}

// CheckFile refuses what is not a regular file for its owner only.
func CheckFile(path string) error {
	info, err := os.Lstat(path)
	if err != nil {
		return fmt.Errorf("store: %w", err)
	}
	if !info.Mode().IsRegular() {
		return refuse("%s is not a regular file", path)
	}
	if mode := info.Mode().Perm(); mode&0o077 != 0 {
		return refuse("%s has mode %04o, others than its owner must have no access: chmod 600 %s", path, mode, path)
	}
	return nil
}

// WriteFile replaces a file of the host's own, which only its owner may read, as one
// step.
func WriteFile(name string, data []byte) error {
	tmp, err := os.CreateTemp(filepath.Dir(name), "."+filepath.Base(name)+".*") // 0600
	if err != nil {
		return err
	}
	defer func() { _ = os.Remove(tmp.Name()) }()
	_, err = tmp.Write(data)
	if err := errors.Join(err, tmp.Sync(), tmp.Close()); err != nil {
		return err
	}
	return os.Rename(tmp.Name(), name)
}

// Lock takes dir for this process, or refuses it when another has it for longer
// than timeout. The lock is the kernel's: it ends with the process, and the file
// that carries it stays.
func Lock(dir string, timeout time.Duration) (unlock func() error, err error) {
	path := filepath.Join(dir, lockName)
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, fmt.Errorf("store: lock: %w", err)
	}
	if err := CheckFile(path); err != nil {
		_ = f.Close()
		return nil, err
	}
	for deadline := time.Now().Add(timeout); ; time.Sleep(20 * time.Millisecond) {
		err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if err == nil {
			return f.Close, nil
		}
		if !errors.Is(err, unix.EWOULDBLOCK) && !errors.Is(err, unix.EINTR) {
			_ = f.Close()
			return nil, fmt.Errorf("store: lock %s: %w", path, err)
		}
		if time.Now().After(deadline) {
			_ = f.Close()
			return nil, refuse("%s is locked: another host is running on this data directory; stop it, or use another --data-dir", path)
		}
	}
}
