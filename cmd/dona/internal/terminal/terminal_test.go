package terminal_test

import (
	"bytes"
	"testing"

	"github.com/dodona-project/dodona/cmd/dona/internal/terminal"
)

func TestCut(t *testing.T) {
	for _, c := range []struct {
		in   string
		n    int
		want string
	}{
		{"abc", 0, "abc"},
		{"abc", 3, "abc"},
		{"abcd", 3, "abc"},
		{"äöü", 2, "äö"},
		{"\x1b[31mred\x1b[0m", 3, "\x1b[31mred\x1b[0m"},
		{"\x1b[31mred and more\x1b[0m", 3, "\x1b[31mred\x1b[0m"},
	} {
		if got := terminal.Cut(c.in, c.n); got != c.want {
			t.Errorf("Cut(%q, %d) = %q, want %q", c.in, c.n, got, c.want)
		}
	}
}

func TestAPipeGetsPlainLines(t *testing.T) {
	var out bytes.Buffer
	s := terminal.New(&out, func(string) string { return "" })
	if s.Live() || s.Color() || s.Width() != 0 {
		t.Errorf("a buffer counts as a terminal: live %v, color %v, width %d", s.Live(), s.Color(), s.Width())
	}
	for range 2 {
		if err := s.Draw([]string{"one", "two"}); err != nil {
			t.Fatal(err)
		}
	}
	if got, want := out.String(), "one\ntwo\none\ntwo\n"; got != want {
		t.Errorf("drawn %q, want %q", got, want)
	}
}
