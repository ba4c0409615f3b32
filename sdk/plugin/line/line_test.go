package line_test

import (
	"testing"
	"unicode/utf8"

	"github.com/dodona-project/dodona/sdk/plugin/line"
)

func TestIs(t *testing.T) {
	for s, want := range map[string]bool{
		"": true, "plain": true, "a\ttab": true, "ünïcödé ✓": true,
		"two\nlines": false, "\r": false, "\x1b[2J": false, "\xff": false, "\u202e": false, "\x00": false,
	} {
		if line.Is(s) != want {
			t.Errorf("%q: %v", s, !want)
		}
	}
}

func FuzzOf(f *testing.F) {
	f.Add("a\nb\x1b\xff✓", 5)
	f.Add("", 3)
	f.Fuzz(func(t *testing.T, s string, most int) {
		if most < 3 || most > 1<<16 {
			return
		}
		got := line.Of(s, most)
		if len(got) > most || !utf8.ValidString(got) || !line.Is(got) {
			t.Errorf("%q of %q, at most %d bytes", got, s, most)
		}
	})
}
