// Package external finds plugins that are files in a directory:
//
//	DIR/<name>/<version>/<os>_<arch>/<name>
//
// It is the catalog that a host gives to package plugins: the newest semantic
// version with a folder for this platform is the one that runs, and everything
// that does not fit the pattern is ignored. What it promises: a file that Find
// returns is a regular executable file below DIR, reached without leaving it,
// that only its owner can write, and the owner is the user of this process or
// root; the same holds for every folder on the way. Whatever is wrong is told
// with its path, the reason and what to do.
//
// It has the host run a file only to ask what kind of plugin it is (--describe).
// It does not pin: whoever can write to DIR chooses what runs.
package external

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/dodona-project/dodona/plugins"
)

// Limits of a directory.
const (
	MaxNames    = 256       // plugins
	MaxVersions = 256       // of one plugin, the newest
	MaxSize     = 512 << 20 // bytes of a file

	// maxEntries is how much of one folder is looked through, whatever is in it.
	maxEntries = 16_384
)

// Options say where to look and what is known besides.
type Options struct {
	Dir    string       // has to exist
	Logger hclog.Logger // default: none
	// Named are plugins that the configuration names: they are listed also
	// while there is no file, and their kind is not asked of the file.
	Named []plugins.ID
}

// A Dir is a directory of plugins. Its methods may be called concurrently.
type Dir struct {
	path     string
	platform string
	log      hclog.Logger
	named    map[string][]plugins.ID

	mu      sync.Mutex
	digests map[string]digest // by path
	kinds   map[string]answer // by path, what files said of themselves
	said    map[string]plugins.Kind
	asked   map[string]time.Time // by name, when its file last had the time to answer
}

var _ plugins.Catalog = (*Dir)(nil)

// Open checks that the directory is one; what is in it is looked at by List.
func Open(o Options) (*Dir, error) {
	dir, err := filepath.Abs(o.Dir)
	if err == nil {
		dir, err = filepath.EvalSymlinks(dir)
	}
	if err != nil {
		return nil, fmt.Errorf("plugin directory %s: %w; make it, or choose another", o.Dir, unwrapped(err))
	}
	if info, err := os.Stat(dir); err != nil || !info.IsDir() {
		return nil, fmt.Errorf("plugin directory %s is not a directory: choose another", o.Dir)
	}
	d := &Dir{
		path: dir, platform: runtime.GOOS + "_" + runtime.GOARCH, log: o.Logger,
		named: map[string][]plugins.ID{}, digests: map[string]digest{}, kinds: map[string]answer{}, said: map[string]plugins.Kind{}, asked: map[string]time.Time{},
	}
	if d.log == nil {
		d.log = hclog.NewNullLogger()
	}
	for _, id := range o.Named {
		d.named[id.Name] = append(d.named[id.Name], id)
	}
	return d, nil
}

var nameGrammar = regexp.MustCompile(`^[a-z0-9][a-z0-9-]{0,62}$`)

// List names the plugins in the directory and those that the configuration
// names. A file that cannot be asked for its kind has that of the one before it,
// and plugins.KindUnknown without one. It takes at most five seconds: a file whose
// turn did not come, or for which run is nil, is left out until it has answered.
func (d *Dir) List(ctx context.Context, run plugins.Run) []plugins.ID {
	ask := slices.DeleteFunc(d.names(), func(name string) bool { return d.named[name] != nil })
	ids := make([]plugins.ID, 0, len(ask)+len(d.named))
	for name, kind := range d.kindsOf(ctx, run, ask) {
		ids = append(ids, plugins.ID{Kind: kind, Name: name})
	}
	for _, named := range d.named {
		ids = append(ids, named...)
	}
	slices.SortFunc(ids, func(a, b plugins.ID) int { return cmp.Compare(a.String(), b.String()) })
	return ids
}

// names are the folders of DIR that can be plugins and have something for this
// platform.
func (d *Dir) names() (names []string) {
	for _, e := range d.entries(".") {
		if !nameGrammar.MatchString(e) {
			d.log.Debug("ignored in the plugin directory: a name is 1 to 63 of a-z, 0-9 and -", "entry", e)
			continue
		}
		if _, err := d.newest(e); err != nil {
			d.log.Debug("ignored in the plugin directory", "entry", e, "reason", err)
			continue
		}
		if len(names) == MaxNames {
			d.log.Warn("too many plugins in the plugin directory, those from here on are ignored", "entry", e, "allowed", MaxNames)
			break
		}
		names = append(names, e)
	}
	return names
}

// entries returns the names in a folder, sorted. A folder that cannot be read has
// none: Find says why.
func (d *Dir) entries(rel string) []string {
	// Without waiting: a pipe could be there.
	f, err := os.OpenFile(filepath.Join(d.path, rel), os.O_RDONLY|syscall.O_DIRECTORY|syscall.O_NONBLOCK, 0)
	if err != nil {
		d.log.Debug("cannot be read in the plugin directory", "entry", rel, "error", unwrapped(err))
		return nil
	}
	defer func() { _ = f.Close() }()
	names, err := f.Readdirnames(maxEntries + 1)
	if len(names) > maxEntries {
		d.log.Warn("too many entries in the plugin directory, some are ignored", "entry", rel, "allowed", maxEntries)
		names = names[:maxEntries]
	}
	if err != nil && len(names) == 0 {
		d.log.Debug("nothing in the plugin directory", "entry", rel, "error", err)
	}
	slices.Sort(names)
	return names
}

// newest returns the place below DIR where the newest version of a plugin for
// this platform has its file.
func (d *Dir) newest(name string) (rel string, err error) {
	var versions []version
	for _, e := range d.entries(name) {
		v, ok := parseVersion(e)
		if !ok {
			d.log.Debug("ignored in the plugin directory: not a semantic version", "entry", path.Join(name, e))
			continue
		}
		versions = append(versions, v)
	}
	slices.SortFunc(versions, func(v, w version) int {
		if w.less(v) {
			return -1
		}
		return 1
	})
	for _, v := range versions[:min(len(versions), MaxVersions)] {
		if info, err := os.Stat(filepath.Join(d.path, name, v.text, d.platform)); err == nil && info.IsDir() {
			return path.Join(name, v.text, d.platform, name), nil
		}
		d.log.Debug("ignored in the plugin directory: not for this platform", "entry", path.Join(name, v.text), "platform", d.platform)
	}
	return "", fmt.Errorf("%s has no <version>/%s/%s: put the plugin's file there",
		filepath.Join(d.path, name), d.platform, name)
}

// Find returns the file of a plugin, or says why it is not run. It reads the whole
// file.
func (d *Dir) Find(id plugins.ID) (plugins.File, error) { return d.find(id, d.digest) }

// Look is Find, and reads the file only when it has changed since it last did.
func (d *Dir) Look(id plugins.ID) (plugins.File, error) { return d.find(id, d.lastDigest) }

func (d *Dir) find(id plugins.ID, digest func(*file) (string, error)) (plugins.File, error) {
	if !nameGrammar.MatchString(id.Name) {
		return plugins.File{}, fmt.Errorf("plugin name %.64q: allowed are 1 to 63 of a-z, 0-9 and -", id.Name)
	}
	rel, err := d.newest(id.Name)
	if err != nil {
		return plugins.File{}, err
	}
	f, err := d.open(rel)
	if err != nil {
		return plugins.File{}, err
	}
	defer func() { _ = f.Close() }()
	if id.Kind == plugins.KindUnknown {
		kind, err := d.ask(context.Background(), nil, id.Name, f)
		if err == nil {
			err = fmt.Errorf("%s is of kind %s now: use %s/%s", f.path, kind, kind, id.Name)
		}
		return plugins.File{}, err
	}
	sum, err := digest(f)
	if err != nil {
		return plugins.File{}, err
	}
	return plugins.File{Path: f.path, Digest: sum, Source: plugins.SourceFile}, nil
}
