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

// TestSeedPages: what the pages of what was asked for, and of the gateway's rules, name is
// there: each test in its folder, each page, and no row is without either or the words that
// it does not hold yet.
func TestSeedPages(t *testing.T) {
	for page, least := range map[string]int{"docs/seed-service.md": 50, "docs/seed-egress.md": 50, "docs/gateway-rules.md": 60} {
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
				!strings.Contains(line, "where it holds") && !strings.Contains(line, "---") {
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

// TestDocumentedCommandsExist takes each command that a page shows, and asks the
// program whether it knows it and its flags.
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
	output(t, "go", "build", "-ldflags=-s -w", "-o", bin+"/", "./cmd/dona", "./cmd/dona-host")
	helps := map[string]string{} // what a command says of itself; empty = it is not known
	help := func(program string, command []string) string {
		key := strings.Join(append([]string{program}, command...), " ")
		if _, asked := helps[key]; !asked {
			// --help after the command's words: an unknown one is a usage error.
			out, err := exec.Command(filepath.Join(bin, program), append(command, "--help")...).CombinedOutput()
			if err != nil {
				out = nil
			}
			helps[key] = string(out)
		}
		return helps[key]
	}
	shown := 0
	for _, page := range allPages(t) {
		text, err := os.ReadFile(page)
		if err != nil {
			t.Fatal(err)
		}
		for _, line := range shellLines(text) {
			words := shellWords(line)
			for len(words) > 0 && strings.Contains(words[0], "=") { // of the environment
				words = words[1:]
			}
			if len(words) == 0 {
				continue
			}
			program := strings.TrimPrefix(words[0], "bin/")
			var command, flags []string
			switch program {
			case "make":
				for _, w := range words[1:] {
					if !strings.Contains(w, "=") && !strings.HasPrefix(w, "-") && !targets[w] {
						t.Errorf("%s: %q: make has no target %s", page, line, w)
					}
				}
				continue
			case "dona", "dona-host":
				command, flags = commandOf(words[1:])
			default:
				continue
			}
			shown++
			text := help(program, command)
			if text == "" {
				t.Errorf("%s: %q: %s knows no such command", page, line, program)
			}
			for _, f := range flags {
				if text != "" && !regexp.MustCompile(regexp.QuoteMeta(f)+`[\s,\]]`).MatchString(text) {
					t.Errorf("%s: %q: %s has no flag %s", page, line, strings.Join(append([]string{program}, command...), " "), f)
				}
			}
		}
	}
	if shown < 60 {
		t.Errorf("the pages show %d commands of dona and dona-host only", shown)
	}
}

// commandOf takes the words of the command, at most three, and the flags out of a
// command line. Global flags may come before the command.
func commandOf(words []string) (command, flags []string) {
	word := regexp.MustCompile(`^[a-z][a-z-]*$`)
	in := true
	for i := 0; i < len(words); i++ {
		switch w := words[i]; {
		case strings.HasPrefix(w, "-") && len(w) > 1:
			name, _, given := strings.Cut(w, "=")
			flags = append(flags, name)
			if len(command) == 0 && !given && slices.Contains([]string{"--host", "--identity", "--timeout"}, name) {
				i++ // its value
			}
			in = in && len(command) == 0
		case in && word.MatchString(w) && len(command) < 3:
			command = append(command, w)
		default:
			in = false
		}
	}
	// The last words may be names: of a service, a folder, a variant.
	groups := map[string]int{"artifact": 2, "attest": 2, "completion": 2, "deploy": 2, "flag": 2, "help": 0, "ingress": 2, "operator": 1, "plugin": 2, "policy": 2,
		"pool": 2, "release": 2, "rollout": 2, "share": 2, "store": 2, "svid": 2}
	if len(command) > 0 {
		n := 1
		if of, ok := groups[command[0]]; ok {
			n = of
		}
		if len(command) > 1 && slices.Contains([]string{"pool config", "pool routing", "pool upstream", "svid ca", "svid token"}, command[0]+" "+command[1]) {
			n = 3
		}
		command = command[:min(len(command), n)]
	}
	return command, flags
}

// shellLines returns the commands that a page shows: the lines of its blocks of
// shell, and indented ones that begin with a program of ours. A line that goes on
// is one with the next.
func shellLines(text []byte) (lines []string) {
	ours := regexp.MustCompile(`^ {4,}(\$ )?(bin/)?dona(-host)? `)
	in, on := false, false
	s := bufio.NewScanner(bytes.NewReader(text))
	for s.Scan() {
		line := strings.TrimSpace(s.Text())
		switch {
		case on:
			lines[len(lines)-1] += " " + line
		case strings.HasPrefix(line, "```"):
			in = !in && (line == "```sh" || line == "```console" || line == "```bash")
			continue
		case in && line != "" && !strings.HasPrefix(line, "#"), ours.MatchString(s.Text()):
			lines = append(lines, strings.TrimPrefix(line, "$ "))
		default:
			continue
		}
		last := &lines[len(lines)-1]
		*last, on = strings.CutSuffix(*last, "\\")
	}
	return lines
}

// shellWords splits a command line as a shell does, up to what only a shell reads:
// a comment, a pipe, a redirection.
func shellWords(line string) (words []string) {
	var quote rune
	var b strings.Builder
	begun := false
	flush := func() {
		if begun {
			words = append(words, b.String())
		}
		b.Reset()
		begun = false
	}
	for _, r := range line {
		switch {
		case quote != 0 && r == quote:
			quote = 0
		case quote != 0:
			b.WriteRune(r)
		case r == '\'' || r == '"':
			quote, begun = r, true
		case r == ' ' || r == '\t':
			flush()
		case !begun && r == '#', r == '|', r == '>', r == '<', r == '&', r == ';':
			flush()
			return words
		default:
			b.WriteRune(r)
			begun = true
		}
	}
	flush()
	return words
}

// allPages are the pages for people.
func allPages(t *testing.T) []string {
	pages := []string{"README.md", "PLUGINS.md"}
	for _, pattern := range []string{"docs/*.md", "docs/*/*.md"} {
		more, err := filepath.Glob(pattern)
		if err != nil {
			t.Fatal(err)
		}
		pages = append(pages, more...)
	}
	return pages
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

// TestSnippetsCompile builds every block of Go that a page shows. A block that is no
// file is one of functions, or of statements; what it names of packages is imported.
func TestSnippetsCompile(t *testing.T) {
	dir, err := os.MkdirTemp(".", ".snippets") // in this module; commands skip what begins with a dot
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	var packages []string
	for _, page := range allPages(t) {
		text, err := os.ReadFile(page)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range regexp.MustCompile("(?ms)^```go\n(.*?)^```").FindAllSubmatchIndex(text, -1) {
			line := 1 + bytes.Count(text[:m[2]], []byte("\n"))
			file := "main.go"
			if bytes.Contains(text[m[2]:m[3]], []byte("(t *testing.T)")) {
				file = "main_test.go"
			}
			folder := filepath.Join(dir, fmt.Sprint(len(packages)))
			if err := os.Mkdir(folder, 0o700); err != nil {
				t.Fatal(err)
			}
			code := fmt.Sprintf("//line %s:%d\n%s", page, line, text[m[2]:m[3]])
			if err := os.WriteFile(filepath.Join(folder, file), []byte(whole(code)), 0o600); err != nil {
				t.Fatal(err)
			}
			packages = append(packages, "./"+folder)
		}
	}
	if len(packages) < 7 {
		t.Errorf("there are %d snippets only", len(packages))
	}
	if out, err := exec.Command("go", append([]string{"vet"}, packages...)...).CombinedOutput(); err != nil {
		t.Errorf("what the pages show does not compile: %v\n%s", err, out)
	}
}

// whole makes a file of a snippet.
func whole(code string) string {
	if regexp.MustCompile(`(?m)^package `).MatchString(code) {
		return code
	}
	if !regexp.MustCompile(`(?m)^(func|type|var|const) `).MatchString(code) {
		code = "func _(ctx context.Context, userID string, took time.Duration) (err error) {\n" + code + "\nreturn err\n}"
	}
	var imports strings.Builder
	for name, path := range map[string]string{
		"context": "context", "errors": "errors", "net": "net", "http": "net/http", "syscall": "syscall", "time": "time",
		"dona": module + "/sdk/dona", "plugin": module + "/sdk/plugin", "donav1": module + "/proto/dona/v1",
		"pluginv1": module + "/proto/plugin/v1", "controlplanev1": module + "/proto/controlplane/v1",
	} {
		if regexp.MustCompile(`(^|[^\w.])` + name + `\.[A-Z]`).MatchString(code) {
			_, _ = fmt.Fprintf(&imports, "import %s %q\n", name, path)
		}
	}
	return "package snippet\n" + imports.String() + code
}
