package main

import (
	"fmt"
	"io"
	"strings"
	"sync"
	"time"
)

// story tells what happens, with the time since the beginning. It is safe for
// concurrent use.
type story struct {
	began time.Time

	mu  sync.Mutex
	out io.Writer
}

func newStory(out io.Writer) *story { return &story{began: time.Now(), out: out} }

func (s *story) elapsed() time.Duration { return time.Since(s.began) }

// line writes a line. A write that fails ends nothing: there are processes to bring
// home.
func (s *story) line(text string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	_, _ = io.WriteString(s.out, text+"\n")
}

// width is how many columns a paragraph has.
const width = 110

// paragraph writes text behind a mark, in lines that are no wider than width where their
// words allow it.
func (s *story) paragraph(mark, text string) {
	var out strings.Builder
	out.WriteString(mark)
	column, indent := len(mark), strings.Repeat(" ", len(mark))
	for i, word := range strings.Fields(text) {
		switch {
		case i == 0:
		case column+1+len(word) > width:
			out.WriteString("\n" + indent)
			column = len(indent)
		default:
			out.WriteByte(' ')
			column++
		}
		out.WriteString(word)
		column += len(word)
	}
	s.line(out.String())
}

// tell is one sentence of the story.
func (s *story) tell(format string, args ...any) {
	s.line(fmt.Sprintf("%5.1f s  ", s.elapsed().Seconds()) + fmt.Sprintf(format, args...))
}

// chapter begins a part of it.
func (s *story) chapter(title string) { s.line("\n" + title) }

// seconds is a time for people.
func seconds(d time.Duration) string {
	if d < time.Second {
		return fmt.Sprintf("%d ms", d.Milliseconds())
	}
	return fmt.Sprintf("%.1f s", d.Seconds())
}
