package strict

import (
	"math"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"go.yaml.in/yaml/v3"

	"github.com/dodona-project/dodona/host/limits"
)

// String reads a single value as text; check, when there is one, says what is
// wrong with it, in words that continue the key.
func (v Value) String(into *string, check func(string) error) {
	text, ok := v.scalar("text")
	if !ok {
		return
	}
	if check != nil {
		if err := check(text); err != nil {
			v.Refuse("%s", reason(err))
			return
		}
	}
	*into = text
}

// reason is an error in the words of this package: what host/limits says is
// allowed goes into brackets.
func reason(err error) string {
	text := err.Error()
	for _, begins := range []string{": allowed are ", ": allowed is "} {
		if what, allowed, ok := strings.Cut(text, begins); ok {
			return what + " (allowed: " + allowed + ")"
		}
	}
	return text
}

// Bool reads true or false.
func (v Value) Bool(into *bool) {
	text, ok := v.scalar("true, false")
	if !ok {
		return
	}
	if text != "true" && text != "false" {
		v.Refuse("is %s (allowed: true, false)", limits.Quote(text))
		return
	}
	*into = text == "true"
}

// Uint reads a whole number between least and most.
func (v Value) Uint(into *uint32, least, most uint32) {
	allowed := strconv.FormatUint(uint64(least), 10) + " to " + strconv.FormatUint(uint64(most), 10)
	text, ok := v.scalar(allowed)
	if !ok {
		return
	}
	n, err := strconv.ParseUint(text, 10, 32)
	if err != nil || uint32(n) < least || uint32(n) > most || strconv.FormatUint(n, 10) != text {
		v.Refuse("is %s (allowed: %s)", limits.Quote(text), allowed)
		return
	}
	*into = uint32(n)
}

// Duration reads a duration with its unit, between least and most.
func (v Value) Duration(into *time.Duration, least, most time.Duration) {
	allowed := Short(least) + " to " + Short(most) + ", with a unit"
	text, ok := v.scalar(allowed)
	if !ok {
		return
	}
	d, err := time.ParseDuration(text)
	if err != nil || d < least || d > most || !strings.ContainsAny(text, "nuµμmsh") {
		v.Refuse("is %s (allowed: %s)", limits.Quote(text), allowed)
		return
	}
	*into = d
}

// Enum reads one of some words and returns its place among them, -1 for a
// problem.
func (v Value) Enum(words ...string) int {
	allowed := strings.Join(words, ", ")
	text, ok := v.scalar(allowed)
	if !ok {
		return -1
	}
	i := slices.Index(words, text)
	if i < 0 {
		v.Refuse("is %s (allowed: %s)", limits.Quote(text), allowed)
	}
	return i
}

// Any reads what a plugin gives a meaning to, as JSON would hold it: nil, bool,
// float64, string, []any, map[string]any.
func (v Value) Any() any { return v.any(0) }

func (v Value) any(depth int) any {
	if depth > maxDepth {
		v.Refuse("lies deeper than %d levels", maxDepth)
		return nil
	}
	switch v.node.Kind {
	case yaml.MappingNode:
		m := map[string]any{}
		v.Entries(1<<16, func(key string, value Value) { m[key] = value.any(depth + 1) })
		return m
	case yaml.SequenceNode:
		list := []any{}
		v.Items(1<<16, func(_ int, item Value) { list = append(list, item.any(depth+1)) })
		return list
	}
	if !v.is(yaml.ScalarNode, "a value") {
		return nil
	}
	switch v.node.ShortTag() {
	case "!!null":
		return nil
	case "!!bool":
		return v.node.Value == "true" || v.node.Value == "True" || v.node.Value == "TRUE"
	case "!!int", "!!float":
		var f float64
		if err := v.node.Decode(&f); err != nil || math.IsNaN(f) || math.IsInf(f, 0) {
			v.Refuse("is %s (allowed: numbers that JSON has)", limits.Quote(v.node.Value))
			return nil
		}
		return f
	}
	text, _ := v.scalar("text")
	return text
}

// scalar returns the text of a single value that is not empty.
func (v Value) scalar(allowed string) (string, bool) {
	if !v.is(yaml.ScalarNode, allowed) {
		return "", false
	}
	text := v.node.Value
	switch {
	case v.node.ShortTag() == "!!null":
		v.Refuse("is empty (allowed: %s)", allowed)
		return "", false
	case !utf8.ValidString(text) || strings.ContainsRune(text, 0):
		v.Refuse("is not text (allowed: UTF-8 without NUL)")
		return "", false
	}
	return text, true
}

// Short prints a duration without the zero units at its end: 1m, not 1m0s.
func Short(d time.Duration) string {
	s := d.String()
	if strings.HasSuffix(s, "m0s") {
		s = strings.TrimSuffix(s, "0s")
	}
	if strings.HasSuffix(s, "h0m") {
		s = strings.TrimSuffix(s, "0m")
	}
	return s
}

// short keeps a key that the document made up from filling a problem.
func short(word string) string {
	if len(word) <= 64 && !strings.ContainsFunc(word, func(r rune) bool { return r < ' ' || r == 0x7f || r == utf8.RuneError }) {
		return word
	}
	return limits.Quote(word)
}

func sorted(words []string) string {
	slices.Sort(words)
	return strings.Join(words, ", ")
}
