package runner

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"runtime"
	"strings"
	"syscall"
)

// A StartError says why the system did not run a file.
type StartError struct {
	Name string // of the process, for people
	Path string
	Gone string // the folder that it was to run in, if that was not there
	Err  error
}

func (e *StartError) Error() string {
	return fmt.Sprintf("start plugin %s: %s cannot be run: %s", e.Name, e.Path, e.why())
}

func (e *StartError) Unwrap() error { return e.Err }

// Permanent reports whether trying again would fail the same way, for the file
// is to blame and not what the machine has left.
func (e *StartError) Permanent() bool {
	if e.Gone != "" {
		return false
	}
	for _, errno := range []error{syscall.ENOEXEC, syscall.ENOENT, syscall.EACCES, syscall.EPERM, syscall.ENOTDIR, syscall.EISDIR, syscall.ELOOP, syscall.EINVAL} {
		if errors.Is(e.Err, errno) {
			return true
		}
	}
	return false
}

// gone returns the folder that a process was to run in if that is why it was not
// started: the system has the same word for it as for a file. It is looked at when the
// start fails, for others may remove the folder later.
func gone(dir string, err error) string {
	if dir == "" || !errors.Is(err, syscall.ENOENT) {
		return ""
	}
	if _, err := os.Stat(dir); !errors.Is(err, fs.ErrNotExist) {
		return ""
	}
	return dir
}

// why adds to the system's word what it usually means.
func (e *StartError) why() string {
	var path *fs.PathError
	text := e.Err.Error()
	if errors.As(e.Err, &path) {
		text = path.Err.Error() // the path is told already
	}
	_, missing := os.Stat(e.Path)
	switch {
	case e.Gone != "":
		return fmt.Sprintf("%s: the folder %s that it was to run in is not there; the host removes it when it stops", text, e.Gone)
	case errors.Is(e.Err, syscall.ENOEXEC):
		return fmt.Sprintf("%s: it is neither a program for %s/%s nor a script that begins with #!", text, runtime.GOOS, runtime.GOARCH)
	case errors.Is(e.Err, syscall.ENOENT) && missing == nil:
		if interpreter := e.interpreter(); interpreter != "" {
			return fmt.Sprintf("%s: its interpreter %q is not there", text, interpreter)
		}
		return text + ": the loader or interpreter it needs is not there"
	case errors.Is(e.Err, syscall.EACCES):
		return text + ": it must be an executable file, on a file system that allows to run files"
	}
	return text
}

// interpreter is what the first line of a script names, empty when it names
// none.
func (e *StartError) interpreter() string {
	f, err := os.Open(e.Path)
	if err != nil {
		return ""
	}
	defer func() { _ = f.Close() }()
	first, _ := bufio.NewReader(io.LimitReader(f, 256)).ReadString('\n')
	script, ok := strings.CutPrefix(first, "#!")
	if words := strings.Fields(script); ok && len(words) > 0 {
		return words[0]
	}
	return ""
}
