package plugins

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/dodona-project/dodona/plugins/image"
	"github.com/dodona-project/dodona/plugins/runner"
)

// maxSocketPath is the longest path of a unix socket, in bytes.
var maxSocketPath = func() int {
	if runtime.GOOS == "linux" {
		return 107
	}
	return 103
}()

// runDirOverhead is the most that is added to RunDir for a socket:
// /hPPPPPPx/gNNNNN/plugin-dirRRRRRRRRRR/pluginRRRRRRRRRR
const runDirOverhead = 1 + 8 + 1 + 6 + 1 + 20 + 1 + 16

const (
	runPrefix = "h"
	lockName  = "lock"
	// youngest is how old a run directory without a lock has to be to count as
	// left behind: another host may be making it right now.
	youngest = time.Minute
)

// A runDir is the private directory of one host. A lock on a file in it says
// that the host lives; the kernel releases it however the host goes.
type runDir struct {
	path string
	lock *os.File
}

func openRunDir(parent string) (*runDir, error) {
	if err := os.MkdirAll(parent, 0o700); err != nil {
		return nil, fmt.Errorf("make plugin run directory: %w", err)
	}
	if err := private(parent); err != nil {
		return nil, err
	}
	sweepRunDirs(parent)
	path, err := makeRunDir(parent)
	if err != nil {
		return nil, fmt.Errorf("make plugin run directory: %w", err)
	}
	lock, err := lockFile(filepath.Join(path, lockName))
	if err != nil {
		_ = os.RemoveAll(path)
		return nil, fmt.Errorf("make plugin run directory: %w", err)
	}
	return &runDir{path: path, lock: lock}, nil
}

// makeRunDir makes a directory with a short name of its own: the paths of
// sockets have little room.
func makeRunDir(parent string) (path string, err error) {
	name := runPrefix + strconv.FormatInt(int64(os.Getpid()), 36)
	for c := 'a'; c <= 'z'; c++ {
		path = filepath.Join(parent, name+string(c))
		if err = os.Mkdir(path, 0o700); !errors.Is(err, fs.ErrExist) {
			return path, err
		}
	}
	return "", err
}

func (d *runDir) close() {
	_ = image.Remove(d.path)
	_ = d.lock.Close()
}

// private refuses a directory in which others could put sockets and files.
func private(dir string) error {
	info, err := os.Lstat(dir)
	if err != nil {
		return fmt.Errorf("plugin run directory: %w", err)
	}
	st, ok := info.Sys().(*syscall.Stat_t)
	switch {
	case !info.IsDir():
		return fmt.Errorf("plugin run directory %s is not a directory", dir)
	case ok && int(st.Uid) != os.Getuid():
		return fmt.Errorf("plugin run directory %s belongs to user %d: it must belong to user %d, who runs the host", dir, st.Uid, os.Getuid())
	case info.Mode().Perm()&0o077 != 0:
		return fmt.Errorf("plugin run directory %s has mode %#o: allowed is 0700; run chmod 700 on it or choose another", dir, info.Mode().Perm())
	}
	return nil
}

func lockFile(path string) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, err
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		_ = f.Close()
		return nil, err
	}
	return f, nil
}

// sweepRunDirs removes what hosts that are gone have left behind, and ends what
// still runs out of it.
func sweepRunDirs(parent string) {
	entries, err := os.ReadDir(parent)
	if err != nil {
		return
	}
	for _, e := range entries {
		if !e.IsDir() || !strings.HasPrefix(e.Name(), runPrefix) {
			continue
		}
		dir := filepath.Join(parent, e.Name())
		if !leftBehind(dir) {
			continue
		}
		runner.KillStraysBelow(dir)
		_ = image.Remove(dir)
	}
}

func leftBehind(dir string) bool {
	lock := filepath.Join(dir, lockName)
	info, err := os.Lstat(lock)
	if errors.Is(err, fs.ErrNotExist) {
		info, err = os.Lstat(dir)
		return err == nil && time.Since(info.ModTime()) > youngest
	}
	if err != nil || !info.Mode().IsRegular() {
		return false
	}
	f, err := lockFile(lock)
	if err != nil {
		return false // held: that host lives
	}
	_ = f.Close()
	return true
}
