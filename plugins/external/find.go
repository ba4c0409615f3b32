package external

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/dodona-project/dodona/plugins"
	"github.com/dodona-project/dodona/plugins/image"
	"github.com/dodona-project/dodona/plugins/lock"
)

// Find returns the file of a plugin with a verified copy of it to run, or says why it
// is not run. It reads all of the file, or of the script's folder.
func (d *Dir) Find(id plugins.ID) (plugins.File, error) { return d.find(id, d.load) }

// Look is Find without the copy, and reads only what has changed since it last did.
func (d *Dir) Look(id plugins.ID) (plugins.File, error) {
	return d.find(id, func(f *file, _ string) (plugins.Program, string, error) {
		digest, err := d.lastSum(f)
		return nil, digest, err
	})
}

type loadFunc func(f *file, expected string) (program plugins.Program, digest string, err error)

func (d *Dir) find(id plugins.ID, load loadFunc) (plugins.File, error) {
	if !lock.ValidName(id.Name) {
		return plugins.File{}, fmt.Errorf("plugin name %.64q: allowed are %s", id.Name, lock.NameWords)
	}
	p, err := d.pin(id)
	if err != nil {
		return plugins.File{}, err
	}
	rel := path.Join(id.Name, p.version, d.platform, id.Name)
	if p.version == "" {
		if rel, err = d.newest(id.Name); err != nil {
			return plugins.File{}, err
		}
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
	program, digest, err := load(f, p.digest)
	if err != nil {
		return plugins.File{}, err
	}
	if p.digest != "" && digest != p.digest {
		if program != nil {
			program.Close()
		}
		return plugins.File{}, d.differs(f.path, id.Name, p, digest)
	}
	return plugins.File{Path: f.path, Digest: digest, Version: p.version, Source: plugins.SourceFile, Program: program}, nil
}

// load makes the copy of a file that is run; expected is the digest that it has to
// have, so that nothing is copied twice, or empty.
func (d *Dir) load(f *file, expected string) (plugins.Program, string, error) {
	if f.script {
		digest, err := d.sumOf(f)
		if err != nil {
			return nil, "", err
		}
		return &tree{folder: f.folder, entry: f.name, digest: digest}, digest, nil
	}
	name := filepath.Base(f.path)
	if kept := d.images.take(name, expected); kept != nil {
		// The bytes are there; the file is read all the same, for it may have changed.
		digest, err := d.sumOf(f)
		if err != nil || digest != expected {
			kept.Close()
			return nil, digest, err
		}
		return kept, digest, nil
	}
	sealed, digest, err := image.Seal(f, name)
	if errors.Is(err, image.ErrNoSeals) {
		d.log.Debug("plugins run from private copies", "reason", err)
		digest, err := d.sumOf(f)
		return &copied{path: f.path, info: f.info, digest: digest}, digest, err
	}
	if err != nil {
		return nil, "", fmt.Errorf("read %s: %w", f.path, unwrapped(err))
	}
	if now := identityOf(f.info); now.settled() {
		d.remember(f, sum{state: now.String(), digest: digest})
	}
	return d.images.add(name, digest, sealed), digest, nil
}

// A sum is the digest of a file, or of a script's folder, and of which it is.
type sum struct {
	state  string // changes with the file, or with anything in the folder
	digest string
}

// sumOf reads a file, or a script's folder, to its end, and remembers the digest
// when the next change would be seen.
func (d *Dir) sumOf(f *file) (string, error) {
	var digest string
	state, settled, err := stateOf(f) // before it is read: a change meanwhile is one that comes after
	if err != nil {
		return "", err
	}
	if f.script {
		if digest, err = image.SumTree(f.folder, inFolder(f.folder)); err != nil {
			return "", fmt.Errorf("%s: %w", f.folder, unwrapped(err))
		}
	} else if digest, err = image.Sum(f); err != nil {
		return "", fmt.Errorf("read %s: %w", f.path, unwrapped(err))
	}
	if settled {
		d.remember(f, sum{state: state, digest: digest})
	}
	return digest, nil
}

func (d *Dir) remember(f *file, s sum) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.sums[f.path] = s
}

// inFolder judges everything in a script's folder as what is on the way to it.
func inFolder(folder string) func(string, fs.FileInfo) error {
	return func(rel string, info fs.FileInfo) error { return trusted(filepath.Join(folder, rel), info) }
}

// lastSum is the digest that is remembered of a file, or sumOf without one.
func (d *Dir) lastSum(f *file) (string, error) {
	d.mu.Lock()
	known, ok := d.sums[f.path]
	d.mu.Unlock()
	if ok {
		if state, _, err := stateOf(f); err == nil && state == known.state {
			return known.digest, nil
		}
	}
	return d.sumOf(f)
}

// stateOf is what changes with a file, or with anything in a script's folder, and
// whether it would with the next change, too.
func stateOf(f *file) (state string, settled bool, err error) {
	if !f.script {
		now := identityOf(f.info)
		return now.String(), now.settled(), nil
	}
	all, settled, entries := sha256.New(), true, 0
	err = filepath.WalkDir(f.folder, func(path string, e fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := e.Info()
		if err != nil {
			return err
		}
		if entries++; entries > 2*image.MaxFiles {
			return fmt.Errorf("has more than %d entries, which is the most", 2*image.MaxFiles)
		}
		now := identityOf(info)
		settled = settled && now.settled()
		_, err = fmt.Fprintf(all, "%s %q\n", now, path)
		return err
	})
	if err != nil {
		return "", false, fmt.Errorf("%s: %w", f.folder, unwrapped(err))
	}
	return string(all.Sum(nil)), settled, nil
}

// settled reports whether the next change of a file would change its identity: within
// one tick of the file system's clock there may be two.
func (id identity) settled() bool {
	return time.Since(time.Unix(id.changed.Unix())) > time.Second
}

func (id identity) String() string {
	return fmt.Sprint(id.dev, " ", id.ino, " ", id.size, " ", id.changed.Nano())
}

// magics begin the files that are programs by themselves: ELF, and the forms of
// Mach-O.
var magics = []string{"\x7fELF", "\xfe\xed\xfa\xce", "\xfe\xed\xfa\xcf", "\xce\xfa\xed\xfe", "\xcf\xfa\xed\xfe", "\xca\xfe\xba\xbe"}

// isScript reports whether a file is no program by itself, so that its folder counts.
func isScript(f *file) bool {
	begin := make([]byte, 4)
	n, _ := f.ReadAt(begin, 0)
	return !slices.ContainsFunc(magics, func(m string) bool { return strings.HasPrefix(string(begin[:n]), m) })
}
