package redis

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/dodona-project/dodona/host/store"
	"github.com/dodona-project/dodona/host/store/datadir"
)

// memory is the file where a host keeps what it has seen of the server: outside
// of it, so that a server that forgets does not make the host forget.
type memory struct {
	name    string
	cluster string
	last    seen // what the file says
	unlock  func() error
}

// memoryFile is the file's content, as JSON.
type memoryFile struct {
	Format  int    `json:"format"`
	Cluster string `json:"cluster"`
	Seen    seen   `json:"seen"`
}

const memoryFormat = 1

// openMemory reads the file in dir, which is made when it is not there. A file
// that does not hold is refused: to go on without it would be to forget.
func openMemory(dir, cluster string) (*memory, seen, error) {
	if err := datadir.Prepare(dir); err != nil {
		return nil, seen{}, err
	}
	unlock, err := datadir.Lock(dir, time.Second)
	if err != nil {
		return nil, seen{}, err
	}
	m := &memory{name: filepath.Join(dir, "redis-"+cluster+".json"), cluster: cluster, unlock: unlock}
	s, err := m.load()
	if err != nil {
		m.close()
		return nil, seen{}, err
	}
	return m, s, nil
}

// close gives the directory free.
func (m *memory) close() { _ = m.unlock() }

// load reads what the file says.
func (m *memory) load() (seen, error) {
	refuse := func(format string, args ...any) (seen, error) {
		return seen{}, fmt.Errorf("%w: "+format, append([]any{store.ErrRefused}, args...)...)
	}
	info, err := os.Lstat(m.name)
	if errors.Is(err, fs.ErrNotExist) {
		return seen{}, nil
	}
	if err != nil {
		return seen{}, fmt.Errorf("store: %w", err)
	}
	if err := datadir.CheckFile(m.name); err != nil {
		return seen{}, err
	}
	if info.Size() > 64<<10 {
		return refuse("%s is not the file where this host remembers its store: it has %d bytes", m.name, info.Size())
	}
	text, err := os.ReadFile(m.name)
	if err != nil {
		return seen{}, fmt.Errorf("store: %w", err)
	}
	var f memoryFile
	d := json.NewDecoder(bytes.NewReader(text))
	d.DisallowUnknownFields()
	if err := d.Decode(&f); err != nil {
		return refuse("%s does not parse: %w; remove it only if the server's data is known to be right", m.name, err)
	}
	if f.Format > memoryFormat {
		return refuse("%s has format %d, this program knows up to %d: use a newer program", m.name, f.Format, memoryFormat)
	}
	if f.Format < 1 || f.Cluster != m.cluster || f.Seen.Generation == 0 || f.Seen.ID == "" {
		return refuse("%s does not say what this host has seen of %s; remove it only if the server's data is known to be right", m.name, m.cluster)
	}
	m.last = f.Seen
	return f.Seen, nil
}

// save replaces the file as one step, if there is something new to say.
func (m *memory) save(s seen) error {
	if s == m.last || s == (seen{}) {
		return nil
	}
	text, err := json.Marshal(memoryFile{Format: memoryFormat, Cluster: m.cluster, Seen: s})
	if err != nil {
		return err
	}
	if err := datadir.WriteFile(m.name, append(text, '\n')); err != nil {
		return err
	}
	m.last = s
	return nil
}
