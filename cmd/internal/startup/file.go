package startup

import (
	"fmt"
	"path/filepath"

	"github.com/dodona-project/dodona/host/config/strict"
)

// ReadFile reads a program's file, none when it has no name. One file may serve several
// programs. The error has a line for each thing that is wrong: file:line:col: key: reason.
func ReadFile(name string, fields strict.Fields) error {
	if name == "" {
		return nil
	}
	text, err := strict.Load(name)
	if err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	return strict.Read(name, text, func(root strict.Value) { root.Fields(fields) })
}

// Path reads the name of a file, which is relative to the folder of the file called name.
func Path(name string, to *string) func(strict.Value) {
	return func(v strict.Value) {
		v.String(to, nil)
		if *to != "" && !filepath.IsAbs(*to) {
			*to = filepath.Join(filepath.Dir(name), *to)
		}
	}
}

// Other leaves a key alone that another program reads.
func Other(v strict.Value) { _ = v.Any() }
