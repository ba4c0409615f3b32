package external

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"

	"github.com/dodona-project/dodona/plugins"
	"github.com/dodona-project/dodona/plugins/lock"
)

// lastLock is the lock as it was last read, and which file it was.
type lastLock struct {
	file identity
	lock *lock.Lock // nil before the first that holds
}

// LockPath is where the lock is.
func (d *Dir) LockPath() string { return filepath.Join(d.path, lock.Name) }

// Pins reads the lock. Without the file nothing is pinned.
func (d *Dir) Pins() (*lock.Lock, error) {
	dir, err := os.Lstat(d.path)
	if err != nil {
		return nil, fmt.Errorf("plugin directory %s: %w", d.path, unwrapped(err))
	}
	if err := trusted(d.path, dir); err != nil {
		return nil, err
	}
	path := d.LockPath()
	info, err := os.Lstat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return new(lock.Lock), nil
	case err != nil:
		return nil, fmt.Errorf("%s: %w", path, unwrapped(err))
	case !info.Mode().IsRegular():
		return nil, fmt.Errorf("%s is not a regular file: put the list itself there", path)
	}
	if err := trusted(path, info); err != nil {
		return nil, err
	}
	d.mu.Lock()
	last := d.pins
	d.mu.Unlock()
	now := identityOf(info)
	if last.lock != nil && last.file == now {
		return last.lock, nil
	}
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NOFOLLOW|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, fmt.Errorf("%s: %w: write it as the user who reads it", path, unwrapped(err))
	}
	defer func() { _ = f.Close() }()
	if opened, err := f.Stat(); err != nil || !os.SameFile(info, opened) {
		return nil, fmt.Errorf("%s was replaced while it was looked at: try again", path)
	}
	text, err := io.ReadAll(io.LimitReader(f, lock.MaxSize+1))
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", path, unwrapped(err))
	}
	read, err := lock.Parse(path, text)
	if err != nil {
		return nil, err
	}
	if now.settled() {
		d.mu.Lock()
		defer d.mu.Unlock()
		d.pins = lastLock{file: now, lock: read}
	}
	return read, nil
}

// lastPins are Pins, or the last ones that could be read, with the reason.
func (d *Dir) lastPins() (*lock.Lock, error) {
	pins, err := d.Pins()
	if err == nil {
		return pins, nil
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.pins.lock != nil {
		return d.pins.lock, err
	}
	return new(lock.Lock), err
}

// A pin is what the lock says of a plugin on this platform; the zero value is that it
// says nothing, and need not.
type pin struct {
	version, digest string
}

// pin is what the lock says of a plugin, or why it does not run.
func (d *Dir) pin(id plugins.ID) (pin, error) {
	pins, err := d.Pins()
	if err != nil {
		return pin{}, err
	}
	e, ok := pins.Entry(id.Name)
	digest := e.Platforms[d.platform]
	switch {
	case !ok && d.unpinned:
		return pin{}, nil
	case !ok:
		return pin{}, fmt.Errorf("%s is not in %s, and what is not pinned does not run: look at it, and run dona plugin lock %s", id.Name, d.LockPath(), id.Name)
	case id.Kind == plugins.KindUnknown:
		return pin{}, fmt.Errorf("%s is pinned as kind %s now: use %s/%s", id.Name, e.Kind, e.Kind, id.Name)
	case string(id.Kind) != e.Kind:
		return pin{}, fmt.Errorf("%s has kind %s in %s: expected %s; name it plugins.%s.%s in the configuration, or pin it again", id.Name, e.Kind, d.LockPath(), id.Kind, e.Kind, id.Name)
	case digest == "":
		return pin{}, fmt.Errorf("%s %s is pinned in %s, but not for %s: put its file for this platform there, and run dona plugin lock %s", id.Name, e.Version, d.LockPath(), d.platform, id.Name)
	}
	return pin{version: e.Version, digest: digest}, nil
}

// differs says that a file is not what the lock pins.
func (d *Dir) differs(path, name string, p pin, actual string) error {
	return fmt.Errorf("%s has the digest %s: expected %s, which %s pins for %s; put the file back, or look at what changed it and run dona plugin lock %s", path, actual, p.digest, lock.Name, p.version, name)
}
