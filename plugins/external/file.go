package external

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/dodona-project/dodona/plugins/image"
)

// maxLinks is how many symbolic links may be on the way to one file.
const maxLinks = 16

// A file is a plugin's file that is fit to run, open for reading.
type file struct {
	*os.File
	path   string // absolute; without symbolic links
	info   fs.FileInfo
	script bool   // it is no program by itself: its folder counts
	folder string // that it is looked for in, absolute
	name   string // by which it is looked for there
}

// open walks from DIR to a file, component by component, and refuses it when
// anything on the way lets somebody else choose what is there.
func (d *Dir) open(rel string) (*file, error) {
	info, err := os.Lstat(d.path)
	if err != nil {
		return nil, fmt.Errorf("plugin directory %s: %w", d.path, unwrapped(err))
	}
	if err := trusted(d.path, info); err != nil {
		return nil, err
	}
	at, rest, links := ".", strings.Split(rel, "/"), 0
	for len(rest) > 0 {
		part := rest[0]
		rest = rest[1:]
		switch part {
		case "", ".":
			continue
		case "..":
			if at == "." {
				return nil, fmt.Errorf("%s: a symbolic link on its way leads out of the plugin directory: put the file itself there", filepath.Join(d.path, rel))
			}
			at = filepath.Dir(at)
			continue
		}
		next := filepath.Join(at, part)
		full := filepath.Join(d.path, next)
		info, err := os.Lstat(full)
		if err != nil {
			return nil, fmt.Errorf("%s: %w: put the plugin's file there", full, unwrapped(err))
		}
		switch {
		case info.Mode()&fs.ModeSymlink != 0:
			if links++; links > maxLinks {
				return nil, fmt.Errorf("%s: more than %d symbolic links on its way: put the file itself there", filepath.Join(d.path, rel), maxLinks)
			}
			to, err := os.Readlink(full)
			if err != nil {
				return nil, fmt.Errorf("%s: %w", full, unwrapped(err))
			}
			if filepath.IsAbs(to) {
				return nil, fmt.Errorf("%s is a symbolic link to %s: allowed are relative ones that stay within %s; put the file itself there", full, to, d.path)
			}
			rest = append(strings.Split(filepath.ToSlash(to), "/"), rest...)
			continue
		case len(rest) == 0:
			return d.openFile(full, info, filepath.Join(d.path, rel))
		case !info.IsDir():
			return nil, fmt.Errorf("%s is not a directory: expected %s", full, filepath.Join(d.path, rel))
		}
		if err := trusted(full, info); err != nil {
			return nil, err
		}
		at = next
	}
	return nil, fmt.Errorf("%s is a directory: put the plugin's file in its place", filepath.Join(d.path, rel))
}

// trusted refuses what others than its owner can change, and owners other than
// this user and root.
func trusted(full string, info fs.FileInfo) error {
	if info.Mode().IsRegular() && info.Mode()&(fs.ModeSetuid|fs.ModeSetgid) != 0 {
		return fmt.Errorf("%s is setuid or setgid: a plugin runs as the host's user; run chmod ug-s on it", full)
	}
	if mode := info.Mode().Perm(); mode&0o022 != 0 {
		return fmt.Errorf("%s has mode %#o, so that others can change what runs: expected is that only its owner can write; run chmod go-w on it", full, mode)
	}
	if st, ok := info.Sys().(*syscall.Stat_t); ok && st.Uid != 0 && int(st.Uid) != os.Geteuid() {
		return fmt.Errorf("%s belongs to user %d: it must belong to user %d, who runs the host, or to root; run chown on it", full, st.Uid, os.Geteuid())
	}
	return nil
}

// openFile opens the last component when it is fit to run; place is where it was
// looked for.
func (d *Dir) openFile(full string, info fs.FileInfo, place string) (*file, error) {
	switch {
	case info.IsDir():
		return nil, fmt.Errorf("%s is a directory: put the plugin's file in its place", full)
	case !info.Mode().IsRegular():
		return nil, fmt.Errorf("%s is not a regular file: put the plugin's file in its place", full)
	case info.Mode().Perm()&0o111 == 0:
		return nil, fmt.Errorf("%s is not executable: run chmod +x on it", full)
	case info.Size() > image.MaxSize:
		return nil, fmt.Errorf("%s has %d bytes: allowed are at most %d", full, info.Size(), image.MaxSize)
	}
	if err := trusted(full, info); err != nil {
		return nil, err
	}
	f, err := os.OpenFile(full, os.O_RDONLY|syscall.O_NOFOLLOW|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", full, unwrapped(err))
	}
	now, err := f.Stat()
	if err != nil || !os.SameFile(info, now) {
		_ = f.Close()
		return nil, fmt.Errorf("%s was replaced while it was looked at: try again", full)
	}
	opened := &file{File: f, path: full, info: now, folder: filepath.Dir(place), name: filepath.Base(place)}
	opened.script = isScript(opened)
	if rel, err := filepath.Rel(opened.folder, full); opened.script && (err != nil || !filepath.IsLocal(rel)) {
		_ = f.Close()
		return nil, fmt.Errorf("%s is where a symbolic link in %s leads to: a script runs with its folder, so that it has to be there itself", full, opened.folder)
	}
	return opened, nil
}

// unwrapped is the system's own word: the path is told beside it.
func unwrapped(err error) error {
	var path *fs.PathError
	if errors.As(err, &path) {
		return path.Err
	}
	return err
}
