// Package demo shows the product's main job with real processes on one machine:
// a host, a service in three variants, a client that sends real HTTP requests
// where the SDK decides, and faults. A good canary is promoted although its
// analysis plugin is killed on the way, the host is killed and comes back, and a
// bad canary is rolled back. "dona demo" calls Run; "dona demo-service", which
// Run starts as its children, calls Serve.
//
// Every sentence of the summary is checked against what was observed: Run fails
// with the reasons when something did not happen. It leaves no process and no
// file behind, also when it is interrupted.
package demo

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/dodona-project/dodona/cmd/dona/internal/render"
	"github.com/dodona-project/dodona/cmd/dona/internal/terminal"
	"github.com/dodona-project/dodona/host/spawn"
)

const (
	service = "checkout"
	// longest is when the demo gives up, whatever it waits for.
	longest = 85 * time.Second
	// stopIn is how long a child may take to end when it is asked to.
	stopIn = 4 * time.Second
)

// Options says what to run.
type Options struct {
	Host    string           // path of dona-host
	Self    string           // path of this program, for the variants' processes
	Screen  *terminal.Screen // where the story is told
	Environ []string         // for the children; DONA_ variables are left out
}

// ErrUnfulfilled says that something which the demo shows did not happen.
var ErrUnfulfilled = errors.New("the demo did not show what it promises")

// Report is the summary of a demo that was played to its end.
type Report struct {
	OK      bool    `json:"ok"`
	Seconds float64 `json:"seconds"`
	Seen    []Claim `json:"seen"`
	Logs    string  `json:"logs,omitempty"` // directory that stays when something did not happen
}

// Run plays the demo to its end. The error is ErrUnfulfilled, wrapped with the
// reasons, or that of ctx when it was interrupted; a report goes with none and with
// ErrUnfulfilled.
func Run(ctx context.Context, o Options) (*Report, error) {
	dir, err := os.MkdirTemp("", "dona-demo-")
	if err != nil {
		return nil, fmt.Errorf("demo: no temporary directory: %w", err)
	}
	whole, cancel := context.WithTimeoutCause(ctx, longest, fmt.Errorf("it was not over after %s", longest))
	defer cancel()

	s := &stage{
		options: o, dir: dir,
		story: newStory(o.Screen),
		spawn: spawn.New(spawn.Environ(o.Environ, dir)),
		seen:  newObserver(),
	}
	playErr := s.play(whole)
	if playErr != nil && ctx.Err() == nil && whole.Err() != nil {
		playErr = fmt.Errorf("%w: %w", context.Cause(whole), playErr)
	}
	left := s.end(ctx.Err() == nil && playErr == nil)
	if ctx.Err() != nil {
		if err := os.RemoveAll(dir); err != nil {
			left = append(left, err.Error())
		}
		for _, l := range left {
			s.story.tell("%s", l)
		}
		return nil, ctx.Err()
	}
	return s.judge(playErr, left)
}

// judge writes the summary and says whether all of it is true.
func (s *stage) judge(playErr error, left []string) (*Report, error) {
	claims := s.claims()
	if playErr != nil {
		claims = append(claims, Claim{false, playErr.Error()})
	}
	if len(left) == 0 {
		claims = append(claims, Claim{true, "every process has ended"})
	}
	for _, l := range left {
		claims = append(claims, Claim{false, l})
	}
	ok := true
	for _, c := range claims {
		ok = ok && c.OK
	}
	if ok {
		if err := os.RemoveAll(s.dir); err != nil {
			claims, ok = append(claims, Claim{false, "the temporary directory stays: " + err.Error()}), false
		}
	}
	var failed []string
	s.story.blank()
	s.story.line(s.story.style.Bold("What was seen"))
	for _, c := range claims {
		mark := s.story.style.Good("  ok    ")
		if !c.OK {
			mark = s.story.style.Bad("  FAILED")
			failed = append(failed, c.Text)
		}
		s.story.line(mark + " " + render.Clean(c.Text))
	}
	report := &Report{OK: ok, Seconds: s.story.elapsed().Seconds(), Seen: claims}
	if ok {
		s.story.line(fmt.Sprintf("\nIt took %s. Next: start a host with \"dona-host --dev\" and try \"dona --help\".", render.Seconds(s.story.elapsed())))
		return report, nil
	}
	s.story.line("\nThe logs are in " + s.dir)
	report.Logs = s.dir
	return report, fmt.Errorf("%w: %s", ErrUnfulfilled, strings.Join(failed, "; "))
}

// logFile opens a child's log for appending.
func (s *stage) logFile(name string) (io.WriteCloser, error) {
	return os.OpenFile(filepath.Join(s.dir, name+".log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
}
