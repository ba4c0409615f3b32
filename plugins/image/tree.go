package image

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"unicode"
	"unicode/utf8"
)

// A leaf is a file or symbolic link of a folder.
type leaf struct {
	path string // relative, with slashes
	info fs.FileInfo
	to   string // of a link
}

// leaves lists a folder, sorted by path. check is asked about every file and folder
// in it. Links have to stay in the folder, and lead somewhere.
func leaves(root *os.Root, check func(path string, info fs.FileInfo) error) (all []leaf, err error) {
	var size int64
	err = fs.WalkDir(root.FS(), ".", func(name string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := root.Lstat(name)
		if err != nil {
			return err
		}
		if !utf8.ValidString(name) || strings.ContainsFunc(name, unicode.IsControl) {
			return fmt.Errorf("the name %.80q is not allowed in a plugin's folder: it has to be text without control characters", name)
		}
		l := leaf{path: name, info: info}
		switch {
		case info.Mode()&fs.ModeSymlink != 0:
			if l.to, err = root.Readlink(name); err != nil {
				return err
			}
			if _, err := root.Stat(name); err != nil {
				return fmt.Errorf("%s is a symbolic link to %.200q: allowed are those that lead to something in the plugin's folder; put the file itself there", name, l.to)
			}
		case info.IsDir():
			return check(name, info)
		case !info.Mode().IsRegular():
			return fmt.Errorf("%s is not a regular file: a plugin's folder has files, folders and links", name)
		default:
			if err := check(name, info); err != nil {
				return err
			}
			size += info.Size()
		}
		all = append(all, l)
		switch {
		case len(all) > MaxFiles:
			return fmt.Errorf("the folder has more than %d files, which is the most", MaxFiles)
		case size > MaxSize:
			return fmt.Errorf("the folder %w", errTooLarge)
		}
		return nil
	})
	slices.SortFunc(all, func(a, b leaf) int { return strings.Compare(a.path, b.path) })
	return all, err
}

// SumTree returns the digest of a folder: the SHA-256 of one line for each file,
// sorted by path,
//
//	<mode> <sha256> <path>
//
// with the permissions in four octal digits, the SHA-256 of the content in hex and
// the path below the folder. For a symbolic link the mode is "link" and the content
// the path that it leads to. check is asked about every file and folder.
func SumTree(folder string, check func(path string, info fs.FileInfo) error) (string, error) {
	return eachLeaf(folder, check, func(leaf, io.Reader) error { return nil })
}

// CopyTree copies a folder to a new one that its owner can read and nobody can write,
// and returns the digest of what it wrote, which is that of SumTree.
func CopyTree(folder, to string, check func(path string, info fs.FileInfo) error) (string, error) {
	if err := os.Mkdir(to, 0o700); err != nil {
		return "", err
	}
	dirs := map[string]bool{".": true}
	sum, err := eachLeaf(folder, check, func(l leaf, content io.Reader) error {
		for dir := path.Dir(l.path); !dirs[dir]; dir = path.Dir(dir) {
			if err := os.MkdirAll(filepath.Join(to, dir), 0o700); err != nil {
				return err
			}
			dirs[dir] = true
		}
		target := filepath.Join(to, l.path)
		if l.to != "" {
			return os.Symlink(l.to, target)
		}
		f, err := os.OpenFile(target, os.O_WRONLY|os.O_CREATE|os.O_EXCL, l.info.Mode().Perm()&0o500)
		if err != nil {
			return err
		}
		_, err = io.Copy(f, content)
		if closed := f.Close(); err == nil {
			err = closed
		}
		return err
	})
	if err != nil {
		return "", err
	}
	for dir := range dirs {
		if err := os.Chmod(filepath.Join(to, dir), 0o500); err != nil {
			return "", err
		}
	}
	return sum, nil
}

// eachLeaf gives take every file of a folder and hashes what it read of it.
func eachLeaf(folder string, check func(string, fs.FileInfo) error, take func(l leaf, content io.Reader) error) (string, error) {
	root, err := os.OpenRoot(folder)
	if err != nil {
		return "", err
	}
	defer func() { _ = root.Close() }()
	all, err := leaves(root, check)
	if err != nil {
		return "", err
	}
	total, left := sha256.New(), int64(MaxSize)
	for _, l := range all {
		mode, sum := "link", sha256.New()
		if l.to != "" {
			_, _ = io.WriteString(sum, l.to)
			err = take(l, nil)
		} else {
			mode = fmt.Sprintf("%04o", l.info.Mode().Perm())
			left, err = readLeaf(root, l, left, sum, take)
		}
		if err != nil {
			return "", err
		}
		_, _ = fmt.Fprintf(total, "%s %x %s\n", mode, sum.Sum(nil), l.path)
	}
	return text(total.Sum(nil)), nil
}

// readLeaf reads a file to its end, which is at most left bytes away.
func readLeaf(root *os.Root, l leaf, left int64, sum io.Writer, take func(leaf, io.Reader) error) (int64, error) {
	f, err := root.OpenFile(l.path, os.O_RDONLY|syscall.O_NOFOLLOW|syscall.O_NONBLOCK, 0)
	if err != nil {
		return 0, err
	}
	defer func() { _ = f.Close() }()
	if now, err := f.Stat(); err != nil || !os.SameFile(l.info, now) || now.Mode() != l.info.Mode() {
		return 0, fmt.Errorf("%s was replaced while it was looked at: try again", l.path)
	}
	content := &io.LimitedReader{R: f, N: left + 1}
	read := io.TeeReader(content, sum)
	if err := take(l, read); err != nil {
		return 0, err
	}
	if _, err := io.Copy(io.Discard, read); err != nil {
		return 0, err
	}
	if content.N == 0 {
		return 0, fmt.Errorf("the folder %w", errTooLarge)
	}
	return content.N - 1, nil
}

// Remove removes a folder with copies in it, also when nobody may write there.
func Remove(dir string) error {
	err := os.RemoveAll(dir)
	if !errors.Is(err, fs.ErrPermission) {
		return err
	}
	_ = filepath.WalkDir(dir, func(name string, d fs.DirEntry, _ error) error {
		if d != nil && d.IsDir() {
			_ = os.Chmod(name, 0o700)
		}
		return nil
	})
	return os.RemoveAll(dir)
}
