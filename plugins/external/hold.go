package external

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

const (
	stagePrefix = ".install-"           // no plugin has such a name
	holdPause   = 20 * time.Millisecond // between two tries to get the directory
)

// hold waits until nobody else changes the directory, and keeps others from it until
// release. A file system that knows no locks, as some of networks, keeps nobody.
func (d *Dir) hold(ctx context.Context) (release func(), err error) {
	f, err := os.Open(d.path)
	if err != nil {
		return nil, fmt.Errorf("plugin directory %s: %w", d.path, unwrapped(err))
	}
	for {
		err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if err == nil || !errors.Is(err, unix.EWOULDBLOCK) && !errors.Is(err, unix.EINTR) {
			return func() { _ = f.Close() }, nil
		}
		select {
		case <-ctx.Done():
			_ = f.Close()
			return nil, fmt.Errorf("plugin directory %s is being changed by somebody else: %w; try again", d.path, ctx.Err())
		case <-time.After(holdPause):
		}
	}
}

// A stage is a folder in the directory where an Install prepares what it puts there,
// locked for as long as that goes on.
type stage struct {
	path string
	lock *os.File
}

func (s *stage) remove() {
	_ = os.RemoveAll(s.path)
	_ = s.lock.Close()
}

// stage makes one, and removes those of who was killed.
func (d *Dir) stage(ctx context.Context) (*stage, error) {
	release, err := d.hold(ctx)
	if err != nil {
		return nil, err
	}
	defer release()
	for _, e := range d.entries(".") {
		if !strings.HasPrefix(e, stagePrefix) {
			continue
		}
		old, err := lockStage(filepath.Join(d.path, e))
		if err == nil {
			old.remove()
		}
	}
	path, err := os.MkdirTemp(d.path, stagePrefix+"*") // on the same file system
	if err != nil {
		return nil, fmt.Errorf("plugin directory %s: %w", d.path, unwrapped(err))
	}
	s, err := lockStage(path)
	if err != nil { // no locks here: nobody will remove it
		f, err := os.Open(path)
		if err != nil {
			return nil, err
		}
		return &stage{path: path, lock: f}, nil
	}
	return s, nil
}

// lockStage fails when an Install is at work in the folder.
func lockStage(path string) (*stage, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_DIRECTORY|syscall.O_NOFOLLOW|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		_ = f.Close()
		return nil, err
	}
	return &stage{path: path, lock: f}, nil
}

// exchange swaps two folders: whoever is killed leaves one of them in each place. On
// a file system that cannot, there is a moment with nothing in the second place.
func exchange(a, b string) error {
	err := swap(a, b)
	if !errors.Is(err, unix.EINVAL) && !errors.Is(err, unix.ENOSYS) && !errors.Is(err, unix.EXDEV) && !errors.Is(err, unix.ENOTSUP) {
		return err
	}
	aside := a + ".old"
	if err := os.Rename(b, aside); err != nil {
		return unwrapped(err)
	}
	if err := os.Rename(a, b); err != nil {
		return errors.Join(unwrapped(err), os.Rename(aside, b))
	}
	return nil
}
