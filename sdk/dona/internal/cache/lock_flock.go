//go:build linux || darwin || freebsd || netbsd || openbsd || dragonfly

package cache

import (
	"os"
	"syscall"
	"time"
)

// lock keeps other processes and goroutines from saving into a folder until unlock
// is called. Whoever holds it for longer than lockPatience is stopped or on a slow
// disk: then it goes on without, as where the system has no such lock.
func lock(dir string) (unlock func()) {
	f, err := os.Open(dir)
	if err != nil {
		return func() {} // saving says why
	}
	for late := time.Now().Add(lockPatience); ; time.Sleep(lockEvery) {
		err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
		if err == nil || time.Now().After(late) {
			return func() { _ = f.Close() } // which unlocks
		}
	}
}
