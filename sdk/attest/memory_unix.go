//go:build !windows

package attest

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"syscall"
)

// checkMode refuses a memory that others may change or read.
func checkMode(path string, info fs.FileInfo) error {
	if mode := info.Mode().Perm(); mode&0o077 != 0 {
		return fmt.Errorf("%s has mode %04o, others than its owner must have no access: chmod 600 %s", path, mode, path)
	}
	return nil
}

// lock waits until no other process has the file locked. It goes with the process that
// has it.
func lock(path string) (unlock func(), err error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, err
	}
	for {
		err = syscall.Flock(int(f.Fd()), syscall.LOCK_EX)
		if !errors.Is(err, syscall.EINTR) {
			break
		}
	}
	if err != nil {
		_ = f.Close()
		return nil, fmt.Errorf("lock %s: %w", path, err)
	}
	return func() { _ = f.Close() }, nil
}
