package lock

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"
)

// maxProblems is how many an error lists.
const maxProblems = 20

// An Error is everything that is wrong with a lock, each line with file, line and
// column; at most 20 of them.
type Error struct {
	Problems []string
}

func (e *Error) Error() string { return strings.Join(e.Problems, "\n") }

// Parse reads a lock. name is the file's, for errors; the error is an *Error.
func Parse(name string, data []byte) (*Lock, error) {
	p := parser{name: name}
	entries := p.parse(data)
	if more := len(p.problems) - maxProblems; more > 0 {
		p.problems = append(p.problems[:maxProblems], fmt.Sprintf("and %d more", more))
	}
	if len(p.problems) > 0 {
		return nil, &Error{Problems: p.problems}
	}
	slices.SortFunc(entries, func(a, b Entry) int { return cmp.Compare(a.Name, b.Name) })
	return &Lock{entries: entries}, nil
}

type parser struct {
	name     string
	problems []string
}

func (p *parser) add(n *yaml.Node, format string, args ...any) {
	where := p.name
	if n != nil {
		where = fmt.Sprintf("%s:%d:%d", p.name, n.Line, n.Column)
	}
	p.problems = append(p.problems, where+": "+fmt.Sprintf(format, args...))
}

func (p *parser) parse(data []byte) (entries []Entry) {
	if len(data) > MaxSize {
		p.add(nil, "is too long: allowed are at most %d bytes", MaxSize)
		return nil
	}
	var doc yaml.Node
	decoder := yaml.NewDecoder(bytes.NewReader(data))
	switch err := decoder.Decode(&doc); {
	case errors.Is(err, io.EOF):
		p.add(nil, "is empty: a lock without plugins is []")
		return nil
	case err != nil:
		p.add(nil, "is not YAML: %s", strings.TrimPrefix(err.Error(), "yaml: "))
		return nil
	}
	if err := decoder.Decode(new(yaml.Node)); !errors.Is(err, io.EOF) {
		p.add(nil, "has more than one document: allowed is one")
		return nil
	}
	list := doc.Content[0]
	if list.Kind != yaml.SequenceNode || !plain(list) {
		p.add(list, "is not a list of plugins, each with name, version, kind and platforms")
		return nil
	}
	if n := len(list.Content); n > MaxEntries {
		p.add(list, "has %d plugins: allowed are at most %d", n, MaxEntries)
		return nil
	}
	first := map[string]int{}
	for _, n := range list.Content {
		e, ok := p.entry(n)
		if line, twice := first[e.Name]; twice && ok {
			p.add(n, "plugin %s is there a second time, first in line %d: one version of a plugin is pinned; keep the one that is to run", e.Name, line)
			continue
		}
		first[e.Name] = n.Line
		entries = append(entries, e)
	}
	return entries
}

// plain refuses anchors, aliases and tags: nothing may stand for something that is
// written elsewhere.
func plain(n *yaml.Node) bool {
	return n.Kind != yaml.AliasNode && n.Anchor == "" && n.Style&yaml.TaggedStyle == 0
}

var keys = []string{"name", "version", "kind", "platforms"}

// entry reads one plugin, and reports whether all of it held.
func (p *parser) entry(n *yaml.Node) (e Entry, ok bool) {
	before := len(p.problems)
	fields := p.mapping(n, "a plugin is a mapping with "+strings.Join(keys, ", "))
	if len(p.problems) > before {
		return e, false
	}
	for _, f := range fields {
		if !slices.Contains(keys, f.key.Value) {
			p.add(f.key, "%s is not known here: allowed are %s", quote(f.key.Value), strings.Join(keys, ", "))
		}
	}
	text := func(key string, valid func(string) bool, allowed string) string {
		f, there := find(fields, key)
		switch {
		case !there:
			p.add(n, "%s is missing: allowed is %s", key, allowed)
		case f.value.Kind != yaml.ScalarNode || !plain(f.value):
			p.add(f.value, "%s is not a single value: allowed is %s", key, allowed)
		case !valid(f.value.Value):
			p.add(f.value, "%s is %s: allowed is %s", key, quote(f.value.Value), allowed)
		default:
			return f.value.Value
		}
		return ""
	}
	e.Name = text("name", ValidName, NameWords)
	e.Version = text("version", func(s string) bool { _, ok := ParseVersion(s); return ok }, "a semantic version, such as 1.2.0")
	e.Kind = text("kind", func(s string) bool { return slices.Contains(Kinds, s) }, strings.Join(Kinds, ", "))
	if f, there := find(fields, "platforms"); there {
		e.Platforms = p.platforms(f.value)
	} else {
		p.add(n, "platforms is missing: it says the digest of the file, such as linux_amd64: sha256:…")
	}
	return e, len(p.problems) == before
}

func (p *parser) platforms(n *yaml.Node) map[string]string {
	all := map[string]string{}
	for _, f := range p.mapping(n, "platforms is a mapping of <os>_<arch> to sha256:…") {
		switch {
		case !ValidPlatform(f.key.Value):
			p.add(f.key, "%s is no platform: allowed is <os>_<arch>, such as linux_amd64", quote(f.key.Value))
		case f.value.Kind != yaml.ScalarNode || !plain(f.value) || !digestGrammar.MatchString(f.value.Value):
			p.add(f.value, "%s has the digest %s: allowed is sha256: and 64 of 0-9 and a-f", f.key.Value, quote(f.value.Value))
		}
		all[f.key.Value] = f.value.Value
	}
	if len(all) == 0 && n.Kind == yaml.MappingNode {
		p.add(n, "platforms is empty: it says the digest of the file, such as linux_amd64: sha256:…")
	}
	return all
}

type field struct{ key, value *yaml.Node }

func find(fields []field, key string) (field, bool) {
	i := slices.IndexFunc(fields, func(f field) bool { return f.key.Value == key })
	if i < 0 {
		return field{}, false
	}
	return fields[i], true
}

// mapping returns the fields of a mapping, and refuses those that are there twice.
func (p *parser) mapping(n *yaml.Node, expected string) (fields []field) {
	if n.Kind != yaml.MappingNode || !plain(n) {
		p.add(n, "%s", expected)
		return nil
	}
	for i := 0; i+1 < len(n.Content); i += 2 {
		f := field{n.Content[i], n.Content[i+1]}
		switch _, twice := find(fields, f.key.Value); {
		case f.key.Kind != yaml.ScalarNode || !plain(f.key):
			p.add(f.key, "%s", expected)
		case twice:
			p.add(f.key, "%s is there a second time", quote(f.key.Value))
		default:
			fields = append(fields, f)
		}
	}
	return fields
}

func quote(s string) string {
	if len(s) > 80 {
		s = strings.ToValidUTF8(s[:80], "") + "…"
	}
	return fmt.Sprintf("%q", s)
}
