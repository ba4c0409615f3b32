package external

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"

	"github.com/dodona-project/dodona/plugins"
	"github.com/dodona-project/dodona/plugins/lock"
)

// What keeps a directory: its plugins are pinned and verified here, and installed in
// install.go. None of it is for hosts. Two at once wait for one another.

// A PinRequest says which version of a plugin is to run.
type PinRequest struct {
	Name    string
	Version string // empty = the newest that is there
	Kind    string // empty = the file says it
}

// What Pin did to a plugin.
const (
	ChangeNew       = "new"
	ChangeVersion   = "version"   // another one is pinned than before
	ChangeDigest    = "digest"    // the same, and its file has changed
	ChangePlatforms = "platforms" // it has files for more platforms
	ChangeNone      = "none"
)

// Pinned is what Pin did.
type Pinned struct {
	lock.Entry
	Change string
	Before string // the version that was pinned; empty = none
}

// Pin writes into the lock that plugins are to run as they are in the directory, and
// leaves the others in it as they are. Without requests it is about all that are
// there, each in its newest version; then a file that changed under a version that is
// pinned is refused, because nobody said that it should. run is used to ask the files
// what they are. With an error nothing is written.
func (d *Dir) Pin(ctx context.Context, run plugins.Run, requests ...PinRequest) (done []Pinned, err error) {
	release, err := d.hold(ctx)
	if err != nil {
		return nil, err
	}
	defer release()
	pins, err := d.Pins()
	if err != nil {
		return nil, err
	}
	all := len(requests) == 0
	if all {
		for _, name := range d.folders() {
			requests = append(requests, PinRequest{Name: name})
		}
	}
	next := pins
	var problems []error
	for _, r := range requests {
		before, was := pins.Entry(r.Name)
		e, err := d.entry(ctx, run, r, before)
		if err == nil && all && changedDigest(before, e) {
			err = fmt.Errorf("%s %s is pinned, and its file has changed since: look at what changed it; to pin it as it is now, run dona plugin lock %s", r.Name, e.Version, r.Name)
		}
		if err != nil {
			problems = append(problems, err)
			continue
		}
		next = next.With(e)
		done = append(done, Pinned{Entry: e, Change: changeOf(before, was, e), Before: before.Version})
	}
	if len(problems) > 0 {
		return nil, errors.Join(problems...)
	}
	return done, lock.Write(d.LockPath(), next)
}

func changeOf(before lock.Entry, was bool, now lock.Entry) string {
	switch {
	case !was:
		return ChangeNew
	case before.Version != now.Version:
		return ChangeVersion
	case changedDigest(before, now):
		return ChangeDigest
	case before.Kind != now.Kind || !maps.Equal(before.Platforms, now.Platforms):
		return ChangePlatforms
	}
	return ChangeNone
}

// changedDigest reports whether the file of a version is another than before.
func changedDigest(before, now lock.Entry) bool {
	if before.Version != now.Version {
		return false
	}
	for platform, digest := range before.Platforms {
		if now.Platforms[platform] != digest {
			return true
		}
	}
	return false
}

// entry is how a plugin is to be pinned. Files of the same version that are pinned for
// other platforms and are not here stay pinned.
func (d *Dir) entry(ctx context.Context, run plugins.Run, r PinRequest, before lock.Entry) (lock.Entry, error) {
	e := lock.Entry{Name: r.Name, Version: r.Version, Kind: r.Kind, Platforms: map[string]string{}}
	if !lock.ValidName(r.Name) {
		return e, fmt.Errorf("plugin name %.64q: allowed are %s", r.Name, lock.NameWords)
	}
	if e.Version == "" {
		var err error
		if e.Version, err = d.newestOfAny(r.Name); err != nil {
			return e, err
		}
	} else if _, ok := lock.ParseVersion(e.Version); !ok {
		return e, fmt.Errorf("version %.64q of %s: allowed is a semantic version, such as 1.2.0", e.Version, r.Name)
	}
	if before.Version == e.Version {
		maps.Copy(e.Platforms, before.Platforms)
		e.Kind = cmp.Or(e.Kind, before.Kind)
	}
	here := false
	for _, platform := range d.entries(path.Join(r.Name, e.Version)) {
		if !lock.ValidPlatform(platform) {
			continue
		}
		said, digest, err := d.examine(ctx, run, path.Join(r.Name, e.Version, platform, r.Name), platform)
		if err != nil {
			return e, err
		}
		e.Platforms[platform] = digest
		if said == nil {
			continue
		}
		here = true
		switch kind, ok := plugins.KindOf(said.Kind); {
		case said.Name != r.Name:
			return e, fmt.Errorf("%s calls itself %.64q: its file and folder must have its name", r.Name, said.Name)
		case said.Version != e.Version:
			return e, fmt.Errorf("%s is in the folder %s and calls itself version %.64s: put it into the folder of its version", r.Name, e.Version, said.Version)
		case !ok:
			return e, fmt.Errorf("%s is of a kind that is not known: known are %s", r.Name, plugins.KindWords)
		case r.Kind != "" && r.Kind != string(kind):
			return e, fmt.Errorf("%s says that it is of kind %s: it cannot be pinned as %s", r.Name, kind, r.Kind)
		default:
			e.Kind = string(kind)
		}
	}
	switch {
	case len(e.Platforms) == 0:
		return e, fmt.Errorf("%s has no <os>_<arch>/%s: put the plugin's file there", filepath.Join(d.path, r.Name, e.Version), r.Name)
	case e.Kind == "" && !here:
		return e, fmt.Errorf("%s %s has no file for %s, so that it cannot be asked which kind of plugin it is: say it with --kind", r.Name, e.Version, d.platform)
	}
	return e, nil
}

// newestOfAny is the newest version of a plugin with a file for this platform or,
// without one, for any.
func (d *Dir) newestOfAny(name string) (string, error) {
	if rel, err := d.newest(name); err == nil {
		return path.Base(path.Dir(path.Dir(rel))), nil
	}
	var newest lock.Version
	for _, e := range d.entries(name) {
		v, ok := lock.ParseVersion(e)
		if ok && slices.ContainsFunc(d.entries(path.Join(name, e)), lock.ValidPlatform) && (newest.String() == "" || newest.Less(v)) {
			newest = v
		}
	}
	if newest.String() == "" {
		return "", fmt.Errorf("%s has no <version>/<os>_<arch>/%s: install it with dona plugin install", filepath.Join(d.path, name), name)
	}
	return newest.String(), nil
}

// folders are the names in the directory that have a version of any platform.
func (d *Dir) folders() (names []string) {
	for _, e := range d.entries(".") {
		if !lock.ValidName(e) {
			continue
		}
		if info, err := os.Stat(filepath.Join(d.path, e)); err != nil || !info.IsDir() {
			continue
		}
		if _, err := d.newestOfAny(e); err == nil {
			names = append(names, e)
		}
	}
	return names
}

// said is what a file says of itself.
type said struct {
	Name, Version string
	Kind          pluginKind
}

// examine checks a file and returns its digest, and what it says of itself, nil when
// it is for another platform.
func (d *Dir) examine(ctx context.Context, run plugins.Run, rel, platform string) (*said, string, error) {
	f, err := d.open(rel)
	if err != nil {
		return nil, "", err
	}
	defer func() { _ = f.Close() }()
	if platform != d.platform {
		digest, err := d.sumOf(f)
		return nil, digest, err
	}
	program, digest, err := d.load(f, "")
	if err != nil {
		return nil, "", err
	}
	defer program.Close()
	reply, err := describe(ctx, run, plugins.File{Path: f.path, Digest: digest, Source: plugins.SourceFile, Program: program}, examineTime)
	if err != nil {
		return nil, "", fmt.Errorf("%s does not say what it is: %w", f.path, err)
	}
	return &said{Name: reply.GetName(), Version: reply.GetVersion(), Kind: reply.GetKind()}, digest, nil
}

// Checked is what Verify found of one plugin on one platform.
type Checked struct {
	Name, Version, Kind string
	Platform            string
	Expected, Actual    string // digests; Actual is empty when the file could not be read
	Problem             string // empty = the file is what is pinned
}

// Verify compares the lock with the files of this platform, and of those others that
// have files here, and names the plugins that are here and not pinned. It runs
// nothing. The error is that of the lock or the directory.
func (d *Dir) Verify() (checked []Checked, unpinned []string, err error) {
	pins, err := d.Pins()
	if err != nil {
		return nil, nil, err
	}
	for _, e := range pins.Entries() {
		platforms := slices.Sorted(maps.Keys(e.Platforms))
		if e.Platforms[d.platform] == "" {
			platforms = append(platforms, d.platform)
		}
		for _, platform := range platforms {
			c := Checked{Name: e.Name, Version: e.Version, Kind: e.Kind, Platform: platform, Expected: e.Platforms[platform]}
			rel := path.Join(e.Name, e.Version, platform, e.Name)
			if _, err := os.Lstat(filepath.Join(d.path, rel)); platform != d.platform && errors.Is(err, fs.ErrNotExist) {
				continue // for other machines
			}
			if c.Expected == "" {
				c.Problem = fmt.Sprintf("it is not pinned for %s: run dona plugin lock %s", platform, e.Name)
			} else if f, err := d.open(rel); err != nil {
				c.Problem = err.Error()
			} else {
				if c.Actual, err = d.sumOf(f); err != nil {
					c.Problem = err.Error()
				} else if c.Actual != c.Expected {
					c.Problem = d.differs(f.path, e.Name, pin{e.Version, c.Expected}, c.Actual).Error()
				}
				_ = f.Close()
			}
			checked = append(checked, c)
		}
	}
	for _, name := range d.folders() {
		if _, ok := pins.Entry(name); !ok {
			unpinned = append(unpinned, name)
		}
	}
	return checked, unpinned, nil
}
