//go:build !linux || race

package forward

import (
	"errors"
	"syscall"
)

// The race detector learns from package syscall that who reads bytes comes after who
// wrote them.

func readNow(fd uintptr, p []byte) (int, syscall.Errno) { return now(syscall.Read(int(fd), p)) }

func writeNow(fd uintptr, p []byte) (int, syscall.Errno) { return now(syscall.Write(int(fd), p)) }

func now(n int, err error) (int, syscall.Errno) {
	var e syscall.Errno
	if err != nil && !errors.As(err, &e) {
		e = syscall.EIO
	}
	return n, e
}
