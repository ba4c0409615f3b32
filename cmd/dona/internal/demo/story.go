package demo

import (
	"fmt"
	"sync"
	"time"

	"github.com/dodona-project/dodona/cmd/dona/internal/render"
	"github.com/dodona-project/dodona/cmd/dona/internal/terminal"
)

// story tells what happens, with the time since the beginning. It is safe for
// concurrent use.
type story struct {
	style render.Style
	began time.Time

	mu     sync.Mutex
	screen *terminal.Screen
	mark   string
}

func newStory(screen *terminal.Screen) *story {
	return &story{style: render.Style{Color: screen.Color()}, began: time.Now(), screen: screen}
}

func (s *story) elapsed() time.Duration { return time.Since(s.began) }

// A write that fails ends nothing: the demo has processes to bring home, and
// what it returns does not depend on who listens.

func (s *story) line(text string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	_ = s.screen.Above(text)
}

func (s *story) blank() { s.line("") }

func (s *story) stamp() string { return s.style.Dim(fmt.Sprintf("%5.1f s", s.elapsed().Seconds())) }

// tell is one sentence of the story.
func (s *story) tell(format string, args ...any) {
	s.line(s.stamp() + "  " + fmt.Sprintf(format, args...))
}

// chapter begins a part of it.
func (s *story) chapter(title string) {
	s.settle()
	s.line("")
	s.line(s.style.Bold(title))
}

// settle leaves the picture that was drawn last on the screen.
func (s *story) settle() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.screen.Keep()
	s.mark = ""
}

// picture shows a rollout: redrawn in place on a terminal, a line per change
// elsewhere.
func (s *story) picture(r render.Rollout) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.screen.Live() {
		_ = s.screen.Draw(append([]string{""}, s.style.Block(r)...))
		return
	}
	if mark := render.Mark(r); mark != s.mark {
		s.mark = mark
		_ = s.screen.Above(s.stamp() + "    " + render.Brief(r, false))
	}
}
