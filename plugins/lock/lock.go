// Package lock reads and writes plugins.lock, the list of the plugins that may run:
// which version of each, and by which digest its file is known on each platform.
//
//	[{name: error-share, version: 0.1.0, kind: analysis, platforms: {linux_amd64: "sha256:5891…"}}]
//
// Package external asks it before it lets a file run, and dona plugin lock writes
// it. What it promises: what [Parse] returns holds as a whole, with one version per
// name, and what is wrong is told with file, line and column, all at once; a file
// that [Write] was interrupted in is the old one or the new one.
package lock

import (
	"cmp"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"

	"go.yaml.in/yaml/v3"
)

// Name is what the file is called, in the directory of plugins.
const Name = "plugins.lock"

// Limits of a lock.
const (
	MaxSize    = 1 << 20 // bytes
	MaxEntries = 256     // plugins
)

// Kinds are those that a plugin can have.
var Kinds = []string{"strategy", "analysis", "probe"}

var (
	nameGrammar     = regexp.MustCompile(`^[a-z0-9][a-z0-9-]{0,62}$`)
	platformGrammar = regexp.MustCompile(`^[a-z0-9]{1,32}_[a-z0-9]{1,32}$`)
	digestGrammar   = regexp.MustCompile(`^sha256:[0-9a-f]{64}$`)
)

// NameWords say which names there can be.
const NameWords = "1 to 63 of a-z, 0-9 and -"

// ValidName reports whether a plugin can have a name.
func ValidName(name string) bool { return nameGrammar.MatchString(name) }

// ValidPlatform reports whether a text has the form <os>_<arch>.
func ValidPlatform(text string) bool { return platformGrammar.MatchString(text) }

// An Entry pins one plugin.
type Entry struct {
	Name      string            `yaml:"name"`
	Version   string            `yaml:"version"`
	Kind      string            `yaml:"kind"`
	Platforms map[string]string `yaml:"platforms"` // sha256:<hex> by <os>_<arch>
}

// A Lock is a list of pinned plugins, sorted by name, each once. Those that are
// read are not changed: With and Without make new ones.
type Lock struct {
	entries []Entry
}

// Entries returns the plugins, sorted by name. Nobody may change them.
func (l *Lock) Entries() []Entry { return l.entries }

// Entry returns what is pinned of a plugin, and whether it is.
func (l *Lock) Entry(name string) (Entry, bool) {
	i, ok := l.find(name)
	if !ok {
		return Entry{}, false
	}
	return l.entries[i], true
}

func (l *Lock) find(name string) (int, bool) {
	return slices.BinarySearchFunc(l.entries, name, func(e Entry, name string) int { return cmp.Compare(e.Name, name) })
}

// With is the lock with a plugin pinned as e says, and no more as it was.
func (l *Lock) With(e Entry) *Lock {
	next := l.Without(e.Name)
	i, _ := next.find(e.Name)
	next.entries = slices.Insert(next.entries, i, e)
	return next
}

// Without is the lock without a plugin.
func (l *Lock) Without(name string) *Lock {
	return &Lock{entries: slices.DeleteFunc(slices.Clone(l.entries), func(e Entry) bool { return e.Name == name })}
}

const head = `# The plugins that may run, and the digests of their files. Written by
# "dona plugin lock"; "dona plugin verify" compares it with what is there.
`

// Format writes a lock as Parse reads it; the same lock is always the same text.
func (l *Lock) Format() []byte {
	if len(l.entries) == 0 {
		return []byte(head + "[]\n")
	}
	text, err := yaml.Marshal(l.entries)
	if err != nil { // strings always marshal
		panic("lock: " + err.Error())
	}
	return append([]byte(head), text...)
}

// Write puts a lock in the place of the file at path, which afterwards is the old
// one or the new one whatever happens, and readable by its owner only.
func Write(path string, l *Lock) error {
	text := l.Format()
	if _, err := Parse(path, text); err != nil {
		return fmt.Errorf("nothing was written, because it would not hold: %w", err)
	}
	dir := filepath.Dir(path)
	f, err := os.CreateTemp(dir, "."+Name+"-*") // with mode 0600
	if err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	defer func() { _ = os.Remove(f.Name()) }()
	_, err = f.Write(text)
	if err == nil {
		err = f.Sync()
	}
	if closed := f.Close(); err == nil {
		err = closed
	}
	if err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	if d, err := os.Open(dir); err == nil {
		_ = d.Sync() // some file systems cannot
		_ = d.Close()
	}
	return nil
}
