// Package scaffold writes the folder of a new plugin: a Go module with a program, a
// conformance test and a Makefile, which builds and passes as it is written.
//
// The command "dona plugin new" calls it. It promises to leave nothing behind when
// it fails, and to overwrite nothing.
package scaffold

import (
	"bufio"
	"bytes"
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"text/template"
)

// Module is what a plugin needs of this project.
const Module = "github.com/dodona-project/dodona"

// Kinds are the kinds of plugins that can be written.
var Kinds = []string{"strategy", "analysis", "probe"}

//go:embed templates
var templates embed.FS

// Options say what is written.
type Options struct {
	Kind     string // one of Kinds
	Name     string // of the plugin and of its program
	Module   string // path of the new module; empty = example.com/Name
	Checkout string // folder with the source of this project, which the module is built with
}

// files are what is written, and from which template.
func (o Options) files() [][2]string {
	return [][2]string{
		{"main.go", o.Kind + ".go.tmpl"}, {"main_test.go", "main_test.go.tmpl"},
		{"Makefile", "Makefile.tmpl"}, {".gitignore", "gitignore.tmpl"},
	}
}

// Write writes the plugin into dir, which must not be there yet, and returns the
// names of the files.
func Write(dir string, o Options) (names []string, err error) {
	if o.Module == "" {
		o.Module = "example.com/" + o.Name
	}
	mod, sum, err := module(o)
	if err != nil {
		return nil, err
	}
	content := map[string][]byte{"go.mod": mod, "go.sum": sum}
	names = []string{"go.mod", "go.sum"}
	for _, f := range o.files() {
		text, err := render(f[1], o)
		if err != nil {
			return nil, err
		}
		content[f[0]] = text
		names = append(names, f[0])
	}
	if err := os.Mkdir(dir, 0o755); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			_ = os.RemoveAll(dir)
		}
	}()
	for _, name := range names {
		if err := os.WriteFile(filepath.Join(dir, name), content[name], 0o644); err != nil {
			return nil, err
		}
	}
	return names, nil
}

func render(name string, o Options) ([]byte, error) {
	text, err := templates.ReadFile("templates/" + name)
	if err != nil {
		return nil, fmt.Errorf("find the template of a plugin of kind %q: %w", o.Kind, err)
	}
	t, err := template.New(name).Parse(string(text))
	if err != nil {
		return nil, fmt.Errorf("read a template: %w", err)
	}
	var b bytes.Buffer
	if err := t.Execute(&b, o); err != nil {
		return nil, fmt.Errorf("fill a template: %w", err)
	}
	return b.Bytes(), nil
}

// ErrNoCheckout means that a folder does not hold the source of this project.
var ErrNoCheckout = errors.New("has no go.mod of " + Module)

// IsCheckout reports whether a folder holds the source of this project: nil, an
// error that is ErrNoCheckout, or that of reading it.
func IsCheckout(dir string) error {
	text, err := os.ReadFile(filepath.Join(dir, "go.mod"))
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return ErrNoCheckout
	case err != nil:
		return err
	}
	line, _, _ := strings.Cut(string(text), "\n")
	if strings.TrimSpace(line) != "module "+Module {
		return ErrNoCheckout
	}
	return nil
}

// module makes go.mod and go.sum. They take over the versions that the checkout was
// tested with, so that nothing has to be resolved and no tool has to look anything
// up but the modules themselves.
func module(o Options) (mod, sum []byte, err error) {
	dir, err := filepath.Abs(o.Checkout)
	if err == nil {
		err = IsCheckout(dir)
	}
	if err != nil {
		return nil, nil, fmt.Errorf("%s: %w", o.Checkout, err)
	}
	theirs, err := os.ReadFile(filepath.Join(dir, "go.mod"))
	if err != nil {
		return nil, nil, err
	}
	if sum, err = os.ReadFile(filepath.Join(dir, "go.sum")); err != nil {
		return nil, nil, err
	}
	var b bytes.Buffer
	_, _ = fmt.Fprintf(&b, "module %s\n", o.Module)
	var required []string
	in := false
	lines := bufio.NewScanner(bytes.NewReader(theirs))
	for lines.Scan() {
		line, _, _ := strings.Cut(lines.Text(), "//")
		words := strings.Fields(line)
		switch {
		case len(words) == 2 && (words[0] == "go" || words[0] == "toolchain"):
			_, _ = fmt.Fprintf(&b, "\n%s %s\n", words[0], words[1])
		case len(words) == 2 && words[0] == "require" && words[1] == "(":
			in = true
		case len(words) == 1 && words[0] == ")":
			in = false
		case len(words) == 3 && words[0] == "require":
			required = append(required, words[1]+" "+words[2])
		case in && len(words) == 2:
			required = append(required, words[0]+" "+words[1])
		}
	}
	_, _ = fmt.Fprintf(&b, "\nrequire %s v0.0.0\n\n", Module)
	_, _ = fmt.Fprintf(&b, "// Built with this folder. To build with another one: go mod edit -replace %s=DIR\nreplace %s => %s\n\n", Module, Module, quoted(dir))
	_, _ = b.WriteString("require (\n")
	for _, r := range required {
		_, _ = fmt.Fprintf(&b, "\t%s // indirect\n", r)
	}
	_, _ = b.WriteString(")\n")
	return b.Bytes(), sum, nil
}

// quoted is a path as go.mod has it.
func quoted(path string) string {
	if strings.ContainsAny(path, " \t\"'`(),;[]{}=!") || strings.Contains(path, "//") {
		return strconv.Quote(path)
	}
	return path
}
