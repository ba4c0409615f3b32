package external

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"syscall"

	"github.com/dodona-project/dodona/plugins"
	"github.com/dodona-project/dodona/plugins/image"
	"github.com/dodona-project/dodona/plugins/runner"
)

// images are the sealed copies of programs: one per digest, as long as anybody uses
// it, and the last one of each name, for the next start.
type images struct {
	mu   sync.Mutex
	all  map[string]*sealed // by digest
	kept map[string]*sealed // by name
}

// A sealed program is one copy in sealed memory.
type sealed struct {
	digest string
	file   *os.File
	users  int // images.mu
}

// use is one user of a sealed program.
type use struct {
	of   *sealed
	name string
	from *images
	once sync.Once
}

// take is one more user of a copy that there is, nil without.
func (m *images) take(name, digest string) *use {
	m.mu.Lock()
	defer m.mu.Unlock()
	s := m.all[digest]
	if s == nil {
		return nil
	}
	return m.useLocked(name, s)
}

// add takes a new copy in. When there is one of this digest by now, that is used.
func (m *images) add(name, digest string, file *os.File) *use {
	m.mu.Lock()
	defer m.mu.Unlock()
	s := m.all[digest]
	if s != nil {
		_ = file.Close()
		return m.useLocked(name, s)
	}
	s = &sealed{digest: digest, file: file}
	if m.all == nil {
		m.all, m.kept = map[string]*sealed{}, map[string]*sealed{}
	}
	m.all[digest] = s
	return m.useLocked(name, s)
}

func (m *images) useLocked(name string, s *sealed) *use {
	s.users++
	return &use{of: s, name: name, from: m}
}

// keep has a copy stay for the next start of its plugin, instead of the one before.
func (m *images) keep(name string, s *sealed) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if old := m.kept[name]; old != s {
		s.users++
		m.kept[name] = s
		m.leaveLocked(old)
	}
}

func (m *images) leaveLocked(s *sealed) {
	if s == nil {
		return
	}
	if s.users--; s.users == 0 {
		delete(m.all, s.digest)
		_ = s.file.Close()
	}
}

// forget drops the copies that nobody uses.
func (m *images) forget() {
	m.mu.Lock()
	defer m.mu.Unlock()
	for name, s := range m.kept {
		delete(m.kept, name)
		m.leaveLocked(s)
	}
}

// Place makes a link to the copy's descriptor: the kernel calls a process by the last
// part of the path that it executed.
func (u *use) Place(dir string) (runner.Program, error) {
	u.from.keep(u.name, u.of)
	link := filepath.Join(dir, u.name)
	if err := os.Symlink(fmt.Sprintf("/proc/self/fd/%d", u.of.file.Fd()), link); err != nil {
		return runner.Program{}, &plugins.PlaceError{Err: err}
	}
	return runner.Program{Path: link, Image: u.of.file}, nil
}

func (u *use) Close() {
	u.once.Do(func() {
		u.from.mu.Lock()
		defer u.from.mu.Unlock()
		u.from.leaveLocked(u.of)
	})
}

// A copied program is a file that is copied for each start, where there is no sealed
// memory.
type copied struct {
	path   string
	info   fs.FileInfo
	digest string
}

func (c *copied) Place(dir string) (runner.Program, error) {
	f, err := os.OpenFile(c.path, os.O_RDONLY|syscall.O_NOFOLLOW|syscall.O_NONBLOCK, 0)
	if err != nil {
		return runner.Program{}, fmt.Errorf("%s: %w", c.path, unwrapped(err))
	}
	defer func() { _ = f.Close() }()
	to := filepath.Join(dir, filepath.Base(c.path))
	got, err := image.CopyFile(f, to)
	switch {
	case err != nil:
		return runner.Program{}, &plugins.PlaceError{Err: fmt.Errorf("copy %s: %w", c.path, err)}
	case got != c.digest:
		return runner.Program{}, changed(c.path, c.digest, got)
	}
	return runner.Program{Path: to, Folder: dir}, nil
}

func (c *copied) Close() {}

// A tree is a script with its folder, which is copied for each start.
type tree struct {
	folder string
	entry  string // name of the script in it
	digest string
}

func (t *tree) Place(dir string) (runner.Program, error) {
	to := filepath.Join(dir, "files")
	got, err := image.CopyTree(t.folder, to, inFolder(t.folder))
	switch {
	case err != nil:
		return runner.Program{}, fmt.Errorf("copy %s: %w", t.folder, err)
	case got != t.digest:
		return runner.Program{}, changed(t.folder, t.digest, got)
	}
	return runner.Program{Path: filepath.Join(to, t.entry), Folder: to}, nil
}

func (t *tree) Close() {}

// changed says that a file is not any more what it was when it was verified.
func changed(path, expected, actual string) error {
	return fmt.Errorf("%s changed while it was being started: it has the digest %s, expected %s; nothing of it was run", path, actual, expected)
}
