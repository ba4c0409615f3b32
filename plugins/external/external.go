// Package external finds plugins that are files in a directory:
//
//	DIR/<name>/<version>/<os>_<arch>/<name>
//	DIR/plugins.lock
//
// It is the catalog that a program gives to package plugins, and what "dona plugin
// install", "lock" and "verify" work with. The lock says which version of a plugin
// runs, of which kind it is, and the digest that its file has to have (package lock).
// What it does not name does not run, unless Options.Unpinned lets it: then the
// newest version for this platform does. Everything that does not fit the pattern is
// ignored.
//
// What it promises: what Find returns is a copy that nobody can change, of a file
// with the digest that is pinned (package image). The file is a regular executable
// below DIR, reached without leaving it, that only its owner can write, and the owner
// is the user of this process or root; the same holds for every folder on the way,
// and for the lock. A program runs alone, without what is beside its file; anything
// else, a script, runs with its folder, and the digest is the folder's. Whatever is
// wrong is told with its path, what was expected, what is there and what to do.
//
// A file that is not pinned is run, with --describe, to ask what kind of plugin it is.
package external

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"os"
	"path"
	"path/filepath"
	"runtime"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/dodona-project/dodona/plugins"
	"github.com/dodona-project/dodona/plugins/lock"
)

// Limits of a directory.
const (
	MaxNames    = 256 // plugins
	MaxVersions = 256 // of one plugin, the newest

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
	// Unpinned lets plugins run that the lock does not name: for development.
	Unpinned bool
}

// A Dir is a directory of plugins. Its methods may be called concurrently.
type Dir struct {
	path     string
	platform string
	unpinned bool
	log      hclog.Logger
	named    map[string][]plugins.ID

	images images
	mu     sync.Mutex
	pins   lastLock
	sums   map[string]sum    // by path, of files and folders
	kinds  map[string]answer // by path, what files said of themselves
	said   map[string]plugins.Kind
	asked  map[string]time.Time // by name, when its file last had the time to answer
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
		path: dir, platform: Platform, unpinned: o.Unpinned, log: o.Logger,
		named: map[string][]plugins.ID{}, sums: map[string]sum{}, kinds: map[string]answer{}, said: map[string]plugins.Kind{}, asked: map[string]time.Time{},
	}
	if d.log == nil {
		d.log = hclog.NewNullLogger()
	}
	for _, id := range o.Named {
		d.named[id.Name] = append(d.named[id.Name], id)
	}
	return d, nil
}

// Platform is that of this program, as the directory and the lock name it.
const Platform = runtime.GOOS + "_" + runtime.GOARCH

// Path is the directory's, absolute and without symbolic links.
func (d *Dir) Path() string { return d.path }

// Close lets go of the copies that are kept for the next start of their plugin. What
// runs from them goes on.
func (d *Dir) Close() error {
	d.images.forget()
	return nil
}

// List names the plugins that are pinned, with the kind that the lock says, those that
// the configuration names, and those whose file is there: what is not pinned is
// plugins.KindUnknown, so that operators see it and Find can say why it does not run.
// Where it does run, the file says which kind it is; one that cannot be asked has the
// kind of the file before it, and plugins.KindUnknown without one. It takes at most
// five seconds: a file whose turn did not come, or for which run is nil, is left out
// until it has answered.
func (d *Dir) List(ctx context.Context, run plugins.Run) []plugins.ID {
	all := map[plugins.ID]bool{}
	for _, named := range d.named {
		for _, id := range named {
			all[id] = true
		}
	}
	pinned, _ := d.lastPins() // what is wrong with it, Find says of each
	for _, e := range pinned.Entries() {
		if d.named[e.Name] == nil {
			all[plugins.ID{Kind: plugins.Kind(e.Kind), Name: e.Name}] = true
		}
	}
	others := slices.DeleteFunc(d.names(), func(name string) bool {
		_, ok := pinned.Entry(name)
		return ok || d.named[name] != nil
	})
	if d.unpinned {
		for name, kind := range d.kindsOf(ctx, run, others) {
			all[plugins.ID{Kind: kind, Name: name}] = true
		}
	} else {
		for _, name := range others {
			all[plugins.ID{Kind: plugins.KindUnknown, Name: name}] = true
		}
	}
	return slices.SortedFunc(maps.Keys(all), func(a, b plugins.ID) int { return cmp.Compare(a.String(), b.String()) })
}

// names are the folders of DIR that can be plugins and have something for this
// platform.
func (d *Dir) names() (names []string) {
	for _, e := range d.entries(".") {
		if !lock.ValidName(e) {
			d.log.Debug("ignored in the plugin directory: a name is "+lock.NameWords, "entry", e)
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
	var versions []lock.Version
	for _, e := range d.entries(name) {
		v, ok := lock.ParseVersion(e)
		if !ok {
			d.log.Debug("ignored in the plugin directory: not a semantic version", "entry", path.Join(name, e))
			continue
		}
		versions = append(versions, v)
	}
	slices.SortFunc(versions, func(v, w lock.Version) int {
		if w.Less(v) {
			return -1
		}
		return 1
	})
	for _, v := range versions[:min(len(versions), MaxVersions)] {
		if info, err := os.Stat(filepath.Join(d.path, name, v.String(), d.platform)); err == nil && info.IsDir() {
			return path.Join(name, v.String(), d.platform, name), nil
		}
		d.log.Debug("ignored in the plugin directory: not for this platform", "entry", path.Join(name, v.String()), "platform", d.platform)
	}
	return "", fmt.Errorf("%s has no <version>/%s/%s: put the plugin's file there",
		filepath.Join(d.path, name), d.platform, name)
}
