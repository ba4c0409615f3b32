// Package dodona holds no code: its one test file keeps the rules of the whole
// tree.
package dodona

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/dodona-project/dodona/builtin"
)

const module = "github.com/dodona-project/dodona"

// walls are imports that must not be. A prefix stands for all below it.
var walls = []struct {
	from, to string
	except   []string // importers the wall does not hold for
	why      string
}{
	{from: "sdk", to: "host", why: "the SDK is built into applications; the host is not"},
	{from: "sdk", to: "plugins", why: "plugin authors and applications need no host side of the boundary"},
	{from: "builtin", to: "host", why: "a built-in knows what any plugin knows"},
	{from: "plugins", to: "host", why: "the boundary serves the host and does not know it"},
	{from: "", to: "builtin", except: []string{"cmd", "host", "builtin"}, why: "only programs choose what is built in"},
	{from: "host", to: "google.golang.org/grpc/codes", except: []string{"host/api"}, why: "transport codes are decided once, at the edge"},
	{from: "host", to: "google.golang.org/grpc/status", except: []string{"host/api"}, why: "transport codes are decided once, at the edge"},
	{from: "host/store", to: "host/service", why: "the store knows no rule of any plane"},
	{from: "host/limits", to: "host", why: "limits lie at the bottom"},
	{from: "host/refusal", to: "host", why: "refusal lies at the bottom"},
	{from: "proto", to: "host", why: "messages know nobody"},
}

type pkg struct {
	dir     string              // relative, with slashes
	imports map[string][]string // import path -> files
	docs    map[string]string   // file -> package comment
	testDoc bool
}

// packages parses every Go file of the module, tests included.
func packages(t *testing.T) map[string]*pkg {
	t.Helper()
	all := map[string]*pkg{}
	err := filepath.WalkDir(".", func(name string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() {
			base := d.Name()
			if name != "." && (strings.HasPrefix(base, ".") || base == "testdata" || base == "bin" || base == "node_modules") {
				return fs.SkipDir
			}
			if name != "." {
				if _, err := os.Stat(filepath.Join(name, "go.mod")); err == nil {
					return fs.SkipDir // a module of its own
				}
			}
			return nil
		}
		if !strings.HasSuffix(name, ".go") {
			return nil
		}
		f, err := parser.ParseFile(token.NewFileSet(), name, nil, parser.ImportsOnly|parser.ParseComments)
		if err != nil {
			return err
		}
		dir := filepath.ToSlash(filepath.Dir(name))
		p := all[dir]
		if p == nil {
			p = &pkg{dir: dir, imports: map[string][]string{}, docs: map[string]string{}}
			all[dir] = p
		}
		for _, i := range f.Imports {
			at := strings.Trim(i.Path.Value, `"`)
			p.imports[at] = append(p.imports[at], name)
		}
		if f.Doc != nil && !strings.Contains(name, ".pb.go") {
			if strings.HasSuffix(name, "_test.go") {
				p.testDoc = true
			} else {
				p.docs[name] = f.Doc.Text()
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}

func below(dir, prefix string) bool {
	return prefix == "" || dir == prefix || strings.HasPrefix(dir, prefix+"/")
}

func TestWalls(t *testing.T) {
	for dir, p := range packages(t) {
		for _, w := range walls {
			if !below(dir, w.from) || slices.ContainsFunc(w.except, func(e string) bool { return below(dir, e) }) {
				continue
			}
			to := w.to
			if !strings.Contains(strings.Split(to, "/")[0], ".") {
				to = module + "/" + to
			}
			for imported, files := range p.imports {
				if !below(imported, to) || below(module+"/"+dir, to) {
					continue
				}
				for _, file := range files {
					if strings.HasSuffix(file, "_test.go") && !strings.HasPrefix(w.to, "host") && w.to != "plugins" {
						continue // tests are clients too, and judge codes; no test crosses into host or plugins
					}
					t.Errorf("%s imports %s: %s", file, imported, w.why)
				}
			}
		}
	}
}

func TestEveryPackageHasOneDoc(t *testing.T) {
	for dir, p := range packages(t) {
		if strings.HasPrefix(dir, "proto/") || dir == "." {
			continue
		}
		switch len(p.docs) {
		case 1:
			for file, doc := range p.docs {
				if len(strings.Fields(doc)) < 6 {
					t.Errorf("%s: the package comment says too little: %q", file, doc)
				}
			}
		case 0:
			if !p.testDoc {
				t.Errorf("%s: no file has a package comment: say what the package is for, who calls it, what it promises", dir)
			}
		default:
			t.Errorf("%s: %d files have a package comment: one is right", dir, len(p.docs))
		}
	}
}

func TestNames(t *testing.T) {
	for dir := range packages(t) {
		switch path.Base(dir) {
		case "util", "utils", "common", "helpers", "misc":
			t.Errorf("%s: the name says nothing of what is in it", dir)
		}
	}
	allowed := []string{"proto", "host", "plugins", "sdk", "builtin", "cmd", "examples", "docs", "PLUGINS.md", "README.md",
		"Makefile", "go.mod", "go.sum", "buf.yaml", "buf.gen.yaml", "rules_test.go", "LICENSE"}
	for _, name := range strings.Fields(output(t, "git", "ls-tree", "--name-only", "HEAD")) {
		if !strings.HasPrefix(name, ".") && !slices.Contains(allowed, name) {
			t.Errorf("%s: the top level holds %s and nothing else", name, strings.Join(allowed, ", "))
		}
	}
}

func TestFilesStaySmall(t *testing.T) {
	const most = 500
	for _, name := range strings.Fields(output(t, "git", "ls-files", "*.go")) {
		if strings.HasSuffix(name, ".pb.go") || strings.HasSuffix(name, "_test.go") {
			continue
		}
		text, err := os.ReadFile(name)
		if err != nil {
			continue // removed and not committed yet
		}
		if n := bytes.Count(text, []byte("\n")); n > most {
			t.Errorf("%s has %d lines: at most %d, or it is two files", name, n, most)
		}
	}
}

// TestDependencies compares docs/dependencies.md with go.mod.
func TestDependencies(t *testing.T) {
	var mod struct {
		Require []struct {
			Path     string
			Indirect bool
		}
		Replace []struct{ Old struct{ Path string } }
	}
	if err := json.Unmarshal([]byte(output(t, "go", "mod", "edit", "-json")), &mod); err != nil {
		t.Fatal(err)
	}
	for _, r := range mod.Replace {
		t.Errorf("go.mod replaces %s: nothing is replaced", r.Old.Path)
	}
	doc, err := os.ReadFile("docs/dependencies.md")
	if err != nil {
		t.Fatal(err)
	}
	listed := map[string]bool{}
	for _, m := range regexp.MustCompile("(?m)^\\| `([^`]+)` \\|").FindAllSubmatch(doc, -1) {
		listed[string(m[1])] = true
	}
	for _, r := range mod.Require {
		if r.Indirect {
			continue
		}
		if !listed[r.Path] {
			t.Errorf("docs/dependencies.md has no line for %s: what for, why this one", r.Path)
		}
		delete(listed, r.Path)
	}
	for name := range listed {
		t.Errorf("docs/dependencies.md lists %s, which go.mod does not require", name)
	}
}

func TestEveryBuiltinHasAPage(t *testing.T) {
	for _, p := range builtin.All() {
		kind := strings.ToLower(strings.TrimPrefix(p.Kind().String(), "KIND_"))
		name := fmt.Sprintf("docs/plugins/%s-%s.md", kind, p.Name())
		if _, err := os.Stat(name); err != nil {
			t.Errorf("built-in %s %s has no page: %v", kind, p.Name(), err)
		}
	}
}

// TestSeedPages: what the pages of what was asked for name is there: each test in its
// folder, each page, and no row is without either or the words that it does not hold
// yet.
func TestSeedPages(t *testing.T) {
	for page, least := range map[string]int{"docs/seed-service.md": 50, "docs/seed-egress.md": 50} {
		text, err := os.ReadFile(page)
		if err != nil {
			t.Fatal(err)
		}
		tests := regexp.MustCompile("`([a-z.][\\w/-]*) (Test\\w+)`").FindAllSubmatch(text, -1)
		if len(tests) < least {
			t.Errorf("%s names %d tests", page, len(tests))
		}
		for _, m := range tests {
			dir, name := string(m[1]), string(m[2])
			files, err := filepath.Glob(filepath.Join(dir, "*_test.go"))
			if err != nil {
				t.Fatal(err)
			}
			if !slices.ContainsFunc(files, func(file string) bool {
				code, err := os.ReadFile(file)
				return err == nil && bytes.Contains(code, []byte("\nfunc "+name+"(t *testing.T) {"))
			}) {
				t.Errorf("%s names %s of %s, which is not there", page, name, dir)
			}
		}
		for _, m := range regexp.MustCompile(`\]\(([\w./-]+)\)`).FindAllSubmatch(text, -1) {
			if _, err := os.Stat(filepath.Join("docs", string(m[1]))); err != nil {
				t.Errorf("%s: %v", page, err)
			}
		}
		for _, line := range strings.Split(string(text), "\n") {
			cells := strings.Split(line, "|")
			if len(cells) == 4 && !strings.Contains(cells[2], "`") && !strings.Contains(cells[2], "](") && !strings.Contains(cells[2], "**not yet**") &&
				!strings.Contains(line, "asked for") && !strings.Contains(line, "---") {
				t.Errorf("%s does not say where this holds: %s", page, line)
			}
		}
	}
}

// TestTestsThatPagesNameExist: a page that says which test shows something names one
// that is there.
func TestTestsThatPagesNameExist(t *testing.T) {
	have := map[string]bool{}
	declared := regexp.MustCompile(`(?m)^func ((?:Test|Fuzz|Benchmark)\w+)\(`)
	for _, name := range strings.Fields(output(t, "git", "ls-files", "--cached", "--others", "--exclude-standard", "*_test.go")) {
		text, err := os.ReadFile(name)
		if err != nil {
			continue // removed and not committed yet
		}
		for _, m := range declared.FindAllSubmatch(text, -1) {
			have[string(m[1])] = true
		}
	}
	pages, err := filepath.Glob("docs/*-faults.md")
	if err != nil || len(pages) < 3 {
		t.Fatalf("the pages are %v: %v", pages, err)
	}
	pages = append(pages, "docs/security.md")
	for _, page := range pages {
		text, err := os.ReadFile(page)
		if err != nil {
			t.Fatal(err)
		}
		named := regexp.MustCompile("`(Test[A-Z]\\w+)(/[^`]*)?`").FindAllSubmatch(text, -1)
		if len(named) < 10 {
			t.Errorf("%s names %d tests only", page, len(named))
		}
		for _, m := range named {
			if !have[string(m[1])] {
				t.Errorf("%s names %s, which does not exist", page, m[1])
			}
		}
	}
}

// TestDocumentedCommandsExist takes each command that a page shows in a block of
// shell, and asks the program whether it knows it.
func TestDocumentedCommandsExist(t *testing.T) {
	targets := map[string]bool{}
	makefile, err := os.ReadFile("Makefile")
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range regexp.MustCompile(`(?m)^([a-z-]+):`).FindAllSubmatch(makefile, -1) {
		targets[string(m[1])] = true
	}
	bin := t.TempDir()
	output(t, "go", "build", "-o", bin+"/", "./cmd/dona", "./cmd/dona-host")
	for _, page := range []string{"README.md", "PLUGINS.md"} {
		text, err := os.ReadFile(page)
		if err != nil {
			t.Fatal(err)
		}
		for _, line := range shellLines(text) {
			words := strings.Fields(line)
			switch strings.TrimPrefix(words[0], "bin/") {
			case "make":
				for _, w := range words[1:] {
					if !strings.Contains(w, "=") && !strings.HasPrefix(w, "-") && !targets[w] {
						t.Errorf("%s: %q: make has no target %s", page, line, w)
					}
				}
			case "dona":
				// --help after the command's words: an unknown one is a usage error.
				var command []string
				for _, w := range words[1:] {
					if !regexp.MustCompile(`^[a-z][a-z-]*$`).MatchString(w) {
						break
					}
					command = append(command, w)
				}
				command = command[:min(len(command), 2)]
				if out, err := exec.Command(filepath.Join(bin, "dona"), append(command, "--help")...).CombinedOutput(); err != nil {
					t.Errorf("%s: %q: %v\n%s", page, line, err, out)
				}
			}
		}
	}
}

// shellLines returns the commands in a page's ```sh blocks.
func shellLines(text []byte) (lines []string) {
	in := false
	s := bufio.NewScanner(bytes.NewReader(text))
	for s.Scan() {
		line := strings.TrimSpace(s.Text())
		switch {
		case strings.HasPrefix(line, "```"):
			in = !in && (line == "```sh" || line == "```console" || line == "```bash")
		case in && line != "" && !strings.HasPrefix(line, "#"):
			lines = append(lines, strings.TrimPrefix(line, "$ "))
		}
	}
	return lines
}

func output(t *testing.T, name string, args ...string) string {
	t.Helper()
	cmd := exec.Command(name, args...)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%s %s: %v\n%s", name, strings.Join(args, " "), err, stderr.Bytes())
	}
	return string(out)
}
