package external

import (
	"context"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"

	"github.com/dodona-project/dodona/plugins"
	"github.com/dodona-project/dodona/plugins/image"
	"github.com/dodona-project/dodona/plugins/lock"
	pluginv1 "github.com/dodona-project/dodona/proto/plugin/v1"
)

type pluginKind = pluginv1.Kind

// Installed is where Install put a plugin.
type Installed struct {
	Name, Version, Kind string
	Platform            string
	Path                string // of its file
	Digest              string
	There               bool // it was there already, with the same bytes
}

// Install copies a plugin into the directory, where its name, version and this
// platform say that it belongs. from is its program or script, or a folder with a
// script of the folder's name in it and what that needs. A copy of it is run, with
// --describe, to ask what it is. Other bytes under a version that is there are
// refused, unless replace says that they take its place. It does not pin.
func (d *Dir) Install(ctx context.Context, run plugins.Run, from string, replace bool) (Installed, error) {
	if _, err := d.Pins(); err != nil {
		return Installed{}, err
	}
	stage, err := d.stage(ctx)
	if err != nil {
		return Installed{}, err
	}
	defer stage.remove()
	entry, err := copyIn(from, filepath.Join(stage.path, "new"))
	if err != nil {
		return Installed{}, err
	}
	copied := path.Join(filepath.Base(stage.path), "new")
	said, digest, err := d.examine(ctx, run, path.Join(copied, entry), d.platform)
	if err != nil {
		// The copy is gone when somebody reads this.
		words := strings.ReplaceAll(err.Error(), filepath.Join(stage.path, "new", entry), where(from, entry))
		return Installed{}, fmt.Errorf("%s is not installed: %s", from, strings.ReplaceAll(words, filepath.Join(stage.path, "new"), from))
	}
	kind, known := plugins.KindOf(said.Kind)
	_, version := lock.ParseVersion(said.Version)
	switch {
	case !lock.ValidName(said.Name):
		return Installed{}, fmt.Errorf("%s calls itself %.80q: allowed are %s", from, said.Name, lock.NameWords)
	case !version:
		return Installed{}, fmt.Errorf("%s has version %.80q: allowed is a semantic version, such as 1.2.0", from, said.Version)
	case !known:
		return Installed{}, fmt.Errorf("%s is of a kind that is not known: known are %s", from, plugins.KindWords)
	}
	if entry != said.Name {
		if info, err := os.Stat(from); err == nil && info.IsDir() {
			return Installed{}, fmt.Errorf("%s calls itself %q: its folder and the script in it must have its name", from, said.Name)
		}
		if err := os.Rename(filepath.Join(stage.path, "new", entry), filepath.Join(stage.path, "new", said.Name)); err != nil {
			return Installed{}, err
		}
		// A script's digest has its name in it.
		if digest, err = d.sumAt(path.Join(copied, said.Name)); err != nil {
			return Installed{}, err
		}
	}
	folder := filepath.Join(d.path, said.Name, said.Version, d.platform)
	done := Installed{Name: said.Name, Version: said.Version, Kind: string(kind), Platform: d.platform, Path: filepath.Join(folder, said.Name), Digest: digest}
	release, err := d.hold(ctx)
	if err != nil {
		return Installed{}, err
	}
	defer release()
	if _, err := os.Lstat(folder); err == nil {
		there, err := d.sumAt(path.Join(said.Name, said.Version, d.platform, said.Name))
		switch {
		case err == nil && there == digest:
			done.There = true
			return done, nil
		case !replace:
			return Installed{}, fmt.Errorf("%s is not installed: version %s of %s is there already with other bytes, in %s; raise its version, or replace it with --replace", from, said.Version, said.Name, folder)
		}
		if err := exchange(filepath.Join(stage.path, "new"), folder); err != nil {
			return Installed{}, fmt.Errorf("replace %s: %w", folder, err)
		}
		return done, nil
	}
	if err := os.MkdirAll(filepath.Dir(folder), 0o755); err != nil {
		return Installed{}, fmt.Errorf("make %s: %w", filepath.Dir(folder), unwrapped(err))
	}
	if err := os.Rename(filepath.Join(stage.path, "new"), folder); err != nil {
		return Installed{}, fmt.Errorf("put it into %s: %w", folder, unwrapped(err))
	}
	return done, nil
}

// where is the path of what is executed of what Install is given.
func where(from, entry string) string {
	if info, err := os.Stat(from); err == nil && info.IsDir() {
		return filepath.Join(from, entry)
	}
	return from
}

// sumAt is the digest of the file at a place below the directory.
func (d *Dir) sumAt(rel string) (string, error) {
	f, err := d.open(rel)
	if err != nil {
		return "", err
	}
	defer func() { _ = f.Close() }()
	return d.sumOf(f)
}

// copyIn copies a plugin's file or folder to a new folder, and returns the name of
// what is executed there. Only the owner can write to what it makes.
func copyIn(from, to string) (entry string, err error) {
	info, err := os.Stat(from)
	if err != nil {
		return "", fmt.Errorf("%s: %w: name the plugin's file, or the folder of its script", from, unwrapped(err))
	}
	if info.IsDir() {
		abs, err := filepath.Abs(from)
		if err != nil {
			return "", err
		}
		entry = filepath.Base(abs)
		if _, err := os.Lstat(filepath.Join(from, entry)); err != nil {
			return "", fmt.Errorf("%s is a folder without a script %s in it: name the plugin's file, or the folder of its script", from, entry)
		}
		return entry, copyFolder(from, to)
	}
	if !info.Mode().IsRegular() {
		return "", fmt.Errorf("%s is not a regular file: name the plugin's file, or the folder of its script", from)
	}
	f, err := os.Open(from)
	if err != nil {
		return "", fmt.Errorf("%s: %w", from, unwrapped(err))
	}
	defer func() { _ = f.Close() }()
	if err := os.Mkdir(to, 0o755); err != nil {
		return "", err
	}
	entry = filepath.Base(from)
	target := filepath.Join(to, entry)
	if _, err := image.CopyFile(f, target); err != nil {
		return "", fmt.Errorf("copy %s: %w", from, unwrapped(err))
	}
	return entry, os.Chmod(target, info.Mode().Perm()&0o755|0o600)
}

// copyFolder copies a script's folder, with the modes that it has but that nobody
// else can write there.
func copyFolder(from, to string) error {
	anything := func(string, fs.FileInfo) error { return nil }
	if _, err := image.CopyTree(from, to, anything); err != nil {
		return fmt.Errorf("copy %s: %w", from, unwrapped(err))
	}
	return filepath.WalkDir(to, func(name string, e fs.DirEntry, err error) error {
		if err != nil || e.Type()&fs.ModeSymlink != 0 {
			return err
		}
		rel, err := filepath.Rel(to, name)
		if err != nil {
			return err
		}
		if e.IsDir() {
			return os.Chmod(name, 0o755)
		}
		info, err := os.Stat(filepath.Join(from, rel))
		if err != nil {
			return err
		}
		return os.Chmod(name, info.Mode().Perm()&0o755|0o600)
	})
}
