// Package line makes one bounded line of printable text of anything. Facades
// judge with it what plugins say for people, and word their own errors with it;
// plugins word with it what servers and targets say.
package line

import (
	"strings"
	"unicode"
	"unicode/utf8"
)

// Is reports whether s is one line of printable text; a tab may be in it, and it
// may be empty.
func Is(s string) bool {
	if !utf8.ValidString(s) {
		return false
	}
	for _, r := range s {
		if r != '\t' && !unicode.IsPrint(r) {
			return false
		}
	}
	return true
}

// Of makes one line of at most most bytes of s: what is not printable becomes a
// space, and what is too long ends with an ellipsis.
func Of(s string, most int) string {
	s = strings.Map(func(r rune) rune {
		if r == utf8.RuneError || !unicode.IsPrint(r) {
			return ' '
		}
		return r
	}, s)
	if len(s) > most {
		s = strings.ToValidUTF8(s[:most-len("…")], "") + "…"
	}
	return s
}
