// Package strict reads YAML that is configuration: every key is known, stands
// once and has a value of its type, and everything that is wrong is told at
// once, each with file, line, column, key, reason and what is allowed. Aliases,
// anchors, merge keys, tags and second documents are refused, so a document
// means what it shows and cannot grow.
//
// A reader of configuration calls [Read] with a function that takes the
// document's root and says, with [Value.Fields], what may be in it. The package
// does no I/O and knows no setting.
package strict

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"regexp"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/dodona-project/dodona/host/limits"
)

// Bounds of a document.
const (
	MaxBytes    = 1 << 20
	MaxProblems = 20 // that Error prints; it holds all
	maxDepth    = 16 // of what Any reads
)

// Problem is one thing that is wrong.
type Problem struct {
	Where string // file:line:col
	Key   string // path of the setting; empty when the document itself is wrong
	Text  string // continues the key: "is 70000 (allowed: …)"

	line, col int
}

func (p Problem) String() string {
	if p.Key == "" {
		return p.Where + ": " + p.Text
	}
	return p.Where + ": " + p.Key + ": " + p.Text
}

// Error is everything that is wrong with a document, in its order.
type Error struct {
	Problems []Problem
}

func (e *Error) Error() string {
	lines := make([]string, 0, MaxProblems+1)
	for i, p := range e.Problems {
		if i == MaxProblems {
			lines = append(lines, fmt.Sprintf("and %d more", len(e.Problems)-MaxProblems))
			break
		}
		lines = append(lines, p.String())
	}
	return strings.Join(lines, "\n")
}

// Read parses text and gives its root to document. name stands for the text in
// problems, as a file's name does. The error is an *Error or nil; after an
// error, what document has filled in means nothing.
func Read(name string, text []byte, document func(root Value)) error {
	r := &reader{name: name}
	if root, ok := r.parse(text); ok {
		document(root)
	}
	if len(r.problems) > 0 {
		slices.SortStableFunc(r.problems, func(a, b Problem) int {
			return cmp.Or(cmp.Compare(a.line, b.line), cmp.Compare(a.col, b.col))
		})
		return &Error{Problems: r.problems}
	}
	return nil
}

type reader struct {
	name     string
	problems []Problem
}

func (r *reader) add(line, col int, key, format string, args ...any) {
	line, col = max(line, 1), max(col, 1)
	r.problems = append(r.problems, Problem{
		Where: fmt.Sprintf("%s:%d:%d", r.name, line, col), Key: key, Text: fmt.Sprintf(format, args...), line: line, col: col,
	})
}

// atLine is how the parser begins what it says.
var atLine = regexp.MustCompile(`^line (\d+): `)

func (r *reader) parse(text []byte) (root Value, ok bool) {
	if len(text) > MaxBytes {
		r.add(1, 1, "", "has %d bytes: allowed are at most %d", len(text), MaxBytes)
		return root, false
	}
	var doc yaml.Node
	decoder := yaml.NewDecoder(strings.NewReader(string(text)))
	switch err := decoder.Decode(&doc); {
	case errors.Is(err, io.EOF):
		r.add(1, 1, "", "is empty: allowed is a mapping of settings")
		return root, false
	case err != nil:
		said := strings.TrimPrefix(err.Error(), "yaml: ")
		line := 1
		if m := atLine.FindStringSubmatch(said); m != nil {
			said = strings.TrimPrefix(said, m[0])
			_, _ = fmt.Sscan(m[1], &line)
		}
		r.add(line, 1, "", "is not YAML: %s", said)
		return root, false
	}
	if err := decoder.Decode(new(yaml.Node)); !errors.Is(err, io.EOF) {
		r.add(1, 1, "", "has more than one document: allowed is one")
		return root, false
	}
	return Value{r: r, node: doc.Content[0]}, true
}

// Value is one place of a document: a node and the path to it.
type Value struct {
	r    *reader
	node *yaml.Node
	path string
}

// Path is the key as problems name it, such as upstreams[0].source.url.
func (v Value) Path() string { return v.path }

// Refuse says what is wrong with the value; the text continues its path.
func (v Value) Refuse(format string, args ...any) {
	v.r.add(v.node.Line, v.node.Column, v.path, format, args...)
}

// Fields are the keys that a mapping may have, and who reads each.
type Fields map[string]func(Value)

func (f Fields) String() string {
	names := make([]string, 0, len(f))
	for name := range f {
		names = append(names, name)
	}
	return sorted(names)
}

// Fields reads a mapping: each value goes to the function of its key, in the
// document's order. Keys that are unknown or stand twice, and required ones that
// are missing, are problems.
func (v Value) Fields(fields Fields, required ...string) {
	if !v.is(yaml.MappingNode, "a mapping with "+fields.String()) {
		return
	}
	seen := map[string]bool{}
	v.each(func(key Value, word string, value Value) {
		read, known := fields[word]
		switch {
		case !known:
			key.Refuse("is not a setting (allowed: %s)", fields)
		case seen[word]:
			key.Refuse("is there a second time (allowed: once)")
		default:
			read(value)
		}
		seen[word] = true
	})
	for _, word := range required {
		if !seen[word] {
			v.child(word).Refuse("is missing (it is required)")
		}
	}
}

// Entries reads a mapping whose keys are the operator's own words, at most most
// of them. Keys that stand twice are problems.
func (v Value) Entries(most int, read func(key string, value Value)) {
	if !v.is(yaml.MappingNode, "a mapping") {
		return
	}
	if n := len(v.node.Content) / 2; n > most {
		v.Refuse("has %d entries (allowed: at most %d)", n, most)
		return
	}
	seen := map[string]bool{}
	v.each(func(key Value, word string, value Value) {
		if seen[word] {
			key.Refuse("is there a second time (allowed: once)")
			return
		}
		seen[word] = true
		read(word, value)
	})
}

// Items reads a sequence of at most most values.
func (v Value) Items(most int, read func(i int, item Value)) {
	if !v.is(yaml.SequenceNode, "a list") {
		return
	}
	if n := len(v.node.Content); n > most {
		v.Refuse("has %d items (allowed: at most %d)", n, most)
		return
	}
	for i, item := range v.node.Content {
		read(i, Value{r: v.r, node: item, path: fmt.Sprintf("%s[%d]", v.path, i)})
	}
}

// each calls read with every key of a mapping, its word, and its value.
func (v Value) each(read func(key Value, word string, value Value)) {
	for i := 0; i+1 < len(v.node.Content); i += 2 {
		keyNode, valueNode := v.node.Content[i], v.node.Content[i+1]
		key := Value{r: v.r, node: keyNode, path: v.child(keyNode.Value).path}
		if keyNode.Kind != yaml.ScalarNode || !key.plain() {
			if keyNode.Kind != yaml.ScalarNode {
				key.path = v.path
				key.Refuse("has a key that is no word")
			}
			continue
		}
		read(key, keyNode.Value, Value{r: v.r, node: valueNode, path: key.path})
	}
}

func (v Value) child(word string) Value {
	word = short(word)
	if v.path != "" {
		word = v.path + "." + word
	}
	return Value{r: v.r, node: v.node, path: word}
}

// is reports whether the value is of a kind; it refuses the value otherwise.
func (v Value) is(kind yaml.Kind, what string) bool {
	if !v.plain() {
		return false
	}
	if v.node.Kind != kind {
		v.Refuse("is %s (allowed: %s)", v.kind(), what)
		return false
	}
	return true
}

// plain refuses what would make a document mean more than it shows.
func (v Value) plain() bool {
	switch {
	case v.node.Kind == yaml.AliasNode, v.node.Anchor != "":
		v.Refuse("has an anchor or an alias (allowed: values written out)")
	case v.node.Style&yaml.TaggedStyle != 0:
		v.Refuse("has the tag %s (allowed: values without tags)", limits.Quote(v.node.Tag))
	default:
		return true
	}
	return false
}

func (v Value) kind() string {
	switch v.node.Kind {
	case yaml.MappingNode:
		return "a mapping"
	case yaml.SequenceNode:
		return "a list"
	}
	if v.node.ShortTag() == "!!null" {
		return "empty"
	}
	return "a single value"
}
