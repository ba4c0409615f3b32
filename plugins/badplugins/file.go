package badplugins

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"github.com/dodona-project/dodona/plugins"
)

// A Program is the built program. Make it with Build; Remove it at the end.
type Program struct {
	dir  string
	path string
}

// Build compiles the program into a directory of its own, with the go command
// on the PATH. One build per run of a test binary is enough: it takes seconds.
func Build() (*Program, error) {
	dir, err := os.MkdirTemp("", "badplugins")
	if err != nil {
		return nil, err
	}
	p := &Program{dir: dir, path: filepath.Join(dir, "badplugin")}
	cmd := exec.Command("go", "build", "-o", p.path, "github.com/dodona-project/dodona/plugins/badplugins/program")
	if out, err := cmd.CombinedOutput(); err != nil {
		_ = os.RemoveAll(dir)
		return nil, fmt.Errorf("build the bad plugins: %w: %s", err, bytes.TrimSpace(out))
	}
	return p, nil
}

// Open takes a program that another process has built and will remove.
func Open(path string) *Program { return &Program{path: path} }

// Path is the built file.
func (p *Program) Path() string { return p.path }

// Remove removes what Build made.
func (p *Program) Remove() {
	if p.dir != "" {
		_ = os.RemoveAll(p.dir)
	}
}

// File makes the file of one plugin: it calls itself id, and behaves as the
// behaviour of that name says. It panics when there is none: a test that names
// a wrong one must not pass.
func (p *Program) File(id plugins.ID, behaviour string) plugins.File {
	if _, known := behaviours[behaviour]; !known {
		panic(fmt.Sprintf("badplugins: no behaviour %q: there are %s", behaviour, strings.Join(Names(), ", ")))
	}
	return plugins.File{
		Path: p.path, Args: []string{behaviour, id.String()},
		Digest: "sha256:" + strings.Repeat("0", 64), Source: plugins.SourceFile,
	}
}

// Names lists the behaviours, sorted.
func Names() []string {
	names := make([]string, 0, len(behaviours))
	for name := range behaviours {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

// A Catalog finds bad plugins for a host. The zero value is empty; its methods
// may be called concurrently. A plugin that is put again has another file from
// its next start on, as after an upgrade.
type Catalog struct {
	mu    sync.Mutex
	files map[plugins.ID]plugins.File
}

var _ plugins.Catalog = (*Catalog)(nil)

// Put adds a plugin or changes its file.
func (c *Catalog) Put(id plugins.ID, file plugins.File) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.files == nil {
		c.files = make(map[plugins.ID]plugins.File)
	}
	c.files[id] = file
}

// List names the plugins that were put.
func (c *Catalog) List(context.Context, plugins.Run) []plugins.ID {
	c.mu.Lock()
	defer c.mu.Unlock()
	ids := make([]plugins.ID, 0, len(c.files))
	for id := range c.files {
		ids = append(ids, id)
	}
	return ids
}

// Find returns the file that was put last.
func (c *Catalog) Find(id plugins.ID) (plugins.File, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	f, ok := c.files[id]
	if !ok {
		return plugins.File{}, plugins.ErrUnknown
	}
	return f, nil
}

// Look is Find: nothing is read for it.
func (c *Catalog) Look(id plugins.ID) (plugins.File, error) { return c.Find(id) }
