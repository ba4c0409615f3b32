package secret

import (
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"syscall"
)

// maxFile is more than any credential; a file above it is another file.
const maxFile = 4 << 10

// Resolver reads the secrets of a host, anew at each call: a file that is
// replaced is seen at the next one. It is safe for concurrent use.
type Resolver struct {
	dir    string
	lookup func(name string) (string, bool)
}

// NewResolver takes the directory below which files are, empty for none, and the
// environment, such as os.LookupEnv.
func NewResolver(dir string, lookup func(name string) (string, bool)) *Resolver {
	return &Resolver{dir: dir, lookup: lookup}
}

// Resolve returns what a reference stands for: one line, username:password. The
// error names the reference and holds nothing of the secret.
func (r *Resolver) Resolve(ref string) (Credential, error) {
	parsed, err := ParseRef(ref)
	if err != nil {
		return Credential{}, fmt.Errorf("secretRef %w", err)
	}
	text, err := r.text(parsed)
	if err != nil {
		return Credential{}, fmt.Errorf("secret %s %w", parsed, err)
	}
	c, err := ParseCredential(text)
	if err != nil {
		return Credential{}, fmt.Errorf("secret %s %w", parsed, err)
	}
	return c, nil
}

func (r *Resolver) text(ref Ref) (string, error) {
	if ref.Env != "" {
		text, ok := r.lookup(ref.Env)
		if !ok {
			return "", errors.New("is not set in the host's environment")
		}
		return text, nil
	}
	if r.dir == "" {
		return "", errors.New("is a file, and this host has no directory of secrets: set pool.secrets_dir")
	}
	text, err := ReadPrivate(r.dir, ref.File, maxFile)
	return string(text), err
}

// ReadPrivate reads a file below a directory, which no link leaves, that nobody
// but its owner may read, of at most max bytes. The error continues the file's
// name.
func ReadPrivate(dir, name string, max int64) ([]byte, error) {
	return read(dir, name, max, true)
}

// ReadBelow is ReadPrivate for a file that others may read.
func ReadBelow(dir, name string, max int64) ([]byte, error) {
	return read(dir, name, max, false)
}

func read(dir, name string, max int64, private bool) ([]byte, error) {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return nil, fmt.Errorf("is in a directory that cannot be opened: %w", reasonOf(err))
	}
	defer func() { _ = root.Close() }()
	f, err := root.OpenFile(name, os.O_RDONLY|syscall.O_NONBLOCK, 0) // a FIFO would wait for its writer
	if err != nil {
		return nil, fmt.Errorf("cannot be opened: %w", reasonOf(err))
	}
	defer func() { _ = f.Close() }()
	info, err := f.Stat()
	switch {
	case err != nil:
		return nil, fmt.Errorf("cannot be looked at: %w", reasonOf(err))
	case !info.Mode().IsRegular():
		return nil, errors.New("is not a regular file")
	case private && info.Mode().Perm()&0o077 != 0:
		return nil, fmt.Errorf("has mode %04o, others than its owner must have no access: chmod 600", info.Mode().Perm())
	}
	text, err := io.ReadAll(io.LimitReader(f, max+1))
	switch {
	case err != nil:
		return nil, fmt.Errorf("cannot be read: %w", reasonOf(err))
	case int64(len(text)) > max:
		return nil, fmt.Errorf("has more than %d bytes", max)
	}
	if after, err := f.Stat(); err != nil || after.Size() != int64(len(text)) || !after.ModTime().Equal(info.ModTime()) {
		return nil, errors.New("changed while it was read: replace it by renaming a new file over it")
	}
	return text, nil
}

// reasonOf leaves out the path, which the caller names.
func reasonOf(err error) error {
	var p *os.PathError
	if errors.As(err, &p) {
		return p.Err
	}
	return err
}

// ParseCredential reads username:password, one line; the first colon parts them.
func ParseCredential(text string) (Credential, error) {
	line := strings.TrimRight(text, "\r\n")
	username, password, ok := strings.Cut(line, ":")
	if !ok || strings.ContainsAny(line, "\r\n") {
		return Credential{}, errors.New("does not hold one line with username:password")
	}
	return NewCredential(username, password)
}
