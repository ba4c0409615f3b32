package plugins

import (
	"context"
	"errors"
	"fmt"
	"os"

	"github.com/dodona-project/dodona/plugins/runner"
)

// A Catalog finds plugins that are not built in. The host asks it from several
// goroutines, and closes it at its stop when it is an io.Closer.
type Catalog interface {
	// List names the plugins there are. It is asked when the host is made, with a
	// nil run: then nothing is run, and what only a run could name is left out.
	// While the host runs it is asked at the start, and when somebody asks for a
	// plugin that is not known or for all of them, at most once a second; then it
	// may take seconds, until ctx ends. A file whose kind cannot be told is
	// listed as KindUnknown, so that operators see it; Find says why.
	List(ctx context.Context, run Run) []ID
	// Find says what to run for a plugin, and runs nothing. It is asked before
	// every start, so that a reload runs what is there now. An error keeps the
	// plugin from starting until it is reset or reloaded; its text is shown to
	// operators.
	Find(id ID) (File, error)
	// Look is Find for those who only tell of the file, each time that they list it,
	// and to see whether it has changed: there is no Program, and the digest may be
	// one that was made before, of the same file unchanged.
	Look(id ID) (File, error)
}

// Run runs a file until it ends or ctx does, behind the same walls as a plugin:
// in a directory of its own, with nothing of the host's environment, and gone
// with all that it started, also when the host is killed. More than most bytes
// on stdout end it. See runner.Output for what is returned.
type Run func(ctx context.Context, file File, most int) (runner.Outcome, error)

// A File is a program that is a plugin.
type File struct {
	Path    string // absolute
	Args    []string
	Digest  string // sha256:<hex> of what is run
	Version string // that the program has to say it has; empty = any
	Source  Source
	Program Program // what is run; nil = the file at Path as it is then
}

// A Program is a copy of a File that was verified. Whoever was given it closes it;
// its methods may be called concurrently.
type Program interface {
	// Place makes it ready to be executed. What it needs for that it makes in dir,
	// which has to exist and to be removed, by image.Remove, when nothing runs from it
	// any more. Its error is that of the file, unless it is a PlaceError.
	Place(dir string) (runner.Program, error)
	// Close lets it go. What runs from it goes on.
	Close()
}

// A PlaceError is one that is not the file's: trying again may help.
type PlaceError struct{ Err error }

func (e *PlaceError) Error() string { return e.Err.Error() }
func (e *PlaceError) Unwrap() error { return e.Err }

// place is what to execute of a file.
func (f File) place(dir string) (runner.Program, error) {
	if f.Program == nil {
		return runner.Program{}, nil
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return runner.Program{}, fmt.Errorf("make directory: %w", err)
	}
	program, err := f.Program.Place(dir)
	var passing *PlaceError
	switch {
	case errors.As(err, &passing):
		return program, passing
	case err != nil:
		return program, permanent("%w", err)
	}
	return program, nil
}

func (f File) close() {
	if f.Program != nil {
		f.Program.Close()
	}
}

// Source is where a plugin's program comes from.
type Source string

// The sources.
const (
	SourceBuiltin Source = "builtin" // the host's own program
	SourceFile    Source = "file"    // found by a Catalog
	// SourceAttached is a process that somebody else has started, such as a
	// debugger: Path is its socket.
	SourceAttached Source = "attached"
)

type noCatalog struct{}

func (noCatalog) List(context.Context, Run) []ID { return nil }
func (noCatalog) Find(ID) (File, error)          { return File{}, ErrUnknown }
func (noCatalog) Look(ID) (File, error)          { return File{}, ErrUnknown }
