//go:build !windows

package attest

import (
	"fmt"
	"io/fs"
)

// checkMode refuses a memory that others may change or read.
func checkMode(path string, info fs.FileInfo) error {
	if mode := info.Mode().Perm(); mode&0o077 != 0 {
		return fmt.Errorf("%s has mode %04o, others than its owner must have no access: chmod 600 %s", path, mode, path)
	}
	return nil
}
