// Package terminal knows what a text terminal can do: whether a file is one, how
// wide it is, and how to redraw a block of lines in place. The command line and
// the demo write through it; with a file or a pipe instead of a terminal they
// write plain lines, and this package says which of the two it is.
package terminal

import (
	"io"
	"os"
)

// defaultWidth is assumed where a terminal does not tell its width.
const defaultWidth = 80

// Screen is an output and what it can do. A Screen is used by one goroutine at a
// time.
type Screen struct {
	w     io.Writer
	file  *os.File // nil when the output is no file
	live  bool
	color bool
	drawn int // lines of the block on the screen now
}

// New looks at w. Redrawing and colour need a terminal; colour is also left out
// when NO_COLOR is set to anything or TERM is "dumb", as getenv tells.
func New(w io.Writer, getenv func(string) string) *Screen {
	s := &Screen{w: w}
	if f, ok := w.(*os.File); ok {
		if _, isTerminal := width(f); isTerminal && getenv("TERM") != "dumb" {
			s.file, s.live = f, true
			s.color = getenv("NO_COLOR") == ""
		}
	}
	return s
}

// Live reports whether a block can be redrawn in place.
func (s *Screen) Live() bool { return s.live }

// Color reports whether colours may be used.
func (s *Screen) Color() bool { return s.color }

// Width is the number of columns, 0 when lines may have any length.
func (s *Screen) Width() int {
	if s.file == nil {
		return 0
	}
	if n, ok := width(s.file); ok && n > 0 {
		return n
	}
	return defaultWidth
}

// Draw writes the block, in place of the one it drew before when the screen is
// live. Lines are cut to the width, so that none wraps and the count stays true.
func (s *Screen) Draw(lines []string) error {
	var out []byte
	if s.live && s.drawn > 0 {
		out = appendUp(out, s.drawn)
	}
	columns := s.Width()
	for _, line := range lines {
		if s.live {
			out = append(out, "\x1b[2K"...)
			line = Cut(line, columns-1)
		}
		out = append(out, line...)
		out = append(out, '\n')
	}
	if s.live {
		out = append(out, "\x1b[J"...) // what a longer block left below
		s.drawn = len(lines)
	}
	_, err := s.w.Write(out)
	return err
}

// Keep leaves the block on the screen: what comes next is written below it.
func (s *Screen) Keep() { s.drawn = 0 }

// Above writes a line above the block that is on the screen. On a live screen
// the block is taken away: the next Draw shows it again, below the line.
func (s *Screen) Above(line string) error {
	var out []byte
	if s.live && s.drawn > 0 {
		out = append(appendUp(out, s.drawn), "\x1b[J"...)
	}
	s.drawn = 0
	_, err := s.w.Write(append(append(out, line...), '\n'))
	return err
}

func appendUp(out []byte, n int) []byte {
	out = append(out, "\x1b["...)
	out = appendInt(out, n)
	return append(out, 'A')
}

func appendInt(out []byte, n int) []byte {
	if n >= 10 {
		out = appendInt(out, n/10)
	}
	return append(out, byte('0'+n%10))
}

// Cut shortens a line to n visible columns. Escape sequences take none, and one
// that was cut off is closed, so that no colour runs on. n <= 0 cuts nothing.
func Cut(line string, n int) string {
	if n <= 0 {
		return line
	}
	seen, escape, colored := 0, false, false
	for i, r := range line {
		switch {
		case r == '\x1b':
			escape, colored = true, true
		case escape:
			escape = r < '@' || r == '['
		case seen == n:
			if colored {
				return line[:i] + "\x1b[0m"
			}
			return line[:i]
		default:
			seen++
		}
	}
	return line
}
