package plugins

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"
)

// Limits of what is kept of a plugin's log for those who ask later.
const (
	journalLines = 1000
	journalBytes = 256 << 10 // of text
	maxLineText  = 8 << 10   // of one line
)

// MaxFollowers is how many may follow the log of one plugin at the same time.
const MaxFollowers = 16

// ErrFollowers means that as many follow the plugin's log as may.
var ErrFollowers = errors.New("too many follow the log")

// A LogLine is one line of a plugin's log as the host logged it: masked,
// printable, bounded, without a line break.
type LogLine struct {
	Time       time.Time
	Level      string // trace, debug, info, warn, error
	Text       string // message and fields, as in: slow ms=7 who="a b"
	Generation uint64 // of the process it is about; 0 when it is about none
	Missed     uint64 // lines before this one that its reader came too late for
}

// A journal keeps the last lines of a plugin's log, across its processes. A
// reader holds a place in it and no lines of its own: one that is slow loses the
// oldest and is told how many, and whoever adds never waits.
type journal struct {
	followers notices // of lines that were added

	mu    sync.Mutex
	lines []LogLine // oldest first
	next  uint64    // number of the line that comes next
	bytes int
}

func (j *journal) add(l LogLine) {
	l.Text = clip(l.Text, maxLineText)
	j.mu.Lock()
	defer j.mu.Unlock()
	j.lines = append(j.lines, l)
	j.next++
	j.bytes += len(l.Text)
	for len(j.lines) > journalLines || j.bytes > journalBytes {
		j.bytes -= len(j.lines[0].Text)
		j.lines[0] = LogLine{} // the array below keeps what is in it
		j.lines = j.lines[1:]
	}
	j.followers.notify()
}

// tail gives each of the last lines to each, oldest first, and with follow those
// that come, until ctx ends. The error is that of each, the cause of ctx's end,
// or ErrFollowers.
func (j *journal) tail(ctx context.Context, last int, follow bool, each func(LogLine) error) error {
	var more <-chan struct{}
	if follow {
		changed, cancel, ok := j.followers.subscribe(MaxFollowers)
		if !ok {
			return fmt.Errorf("%d follow it: %w", MaxFollowers, ErrFollowers)
		}
		defer cancel()
		more = changed
	}
	for at := j.place(last); ; {
		var lines []LogLine
		lines, at = j.read(at)
		for _, l := range lines {
			if ctx.Err() != nil {
				return context.Cause(ctx)
			}
			if err := each(l); err != nil {
				return err
			}
		}
		if !follow {
			return nil
		}
		select {
		case <-more:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// place is the number of the first of the last lines.
func (j *journal) place(last int) uint64 {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.next - uint64(min(max(last, 0), len(j.lines)))
}

// read returns the lines from a place on, and the place after them.
func (j *journal) read(at uint64) ([]LogLine, uint64) {
	j.mu.Lock()
	defer j.mu.Unlock()
	oldest := j.next - uint64(len(j.lines))
	var missed uint64
	if at < oldest {
		missed, at = oldest-at, oldest
	}
	lines := slices.Clone(j.lines[at-oldest:])
	if missed > 0 {
		lines[0].Missed = missed // a journal that has dropped a line holds a later one
	}
	return lines, j.next
}
