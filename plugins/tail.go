package plugins

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"
	"unicode"

	"github.com/hashicorp/go-hclog"
)

// Tail gives the last lines of a plugin's log to each, oldest first: what its
// processes wrote, the present one and those before, and what the host said of
// them. With follow it goes on with those that come, until ctx or the host ends.
// A follower that is slower than the plugin loses the oldest lines (see
// LogLine.Missed); nobody waits for it. The last 1,000 lines are kept, of at most
// 256 KiB. each is called by one goroutine; an error of it ends Tail.
//
// Errors: ErrUnknown, ErrFollowers, ErrAway when the host stops, that of each,
// and that of ctx.
func (h *Host) Tail(ctx context.Context, id ID, last int, follow bool, each func(LogLine) error) error {
	s, err := h.find(id)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	if follow {
		defer context.AfterFunc(h.ctx, func() { cancel(fmt.Errorf("log of plugin %s: the host stops: %w", id, ErrAway)) })()
	}
	return s.journal.tail(ctx, last, follow, each)
}

// journaled is the logger of a plugin: what it logs is also kept in the plugin's
// journal, at any level.
type journaled struct {
	hclog.Logger
	journal    *journal
	generation uint64 // of With
}

// With takes the generation of the lines to come from args when it is there.
func (l journaled) With(args ...any) hclog.Logger {
	l.Logger = l.Logger.With(args...)
	for i := 0; i+1 < len(args); i += 2 {
		if n, ok := args[i+1].(uint64); ok && args[i] == "generation" {
			l.generation = n
		}
	}
	return l
}

func (l journaled) Log(level hclog.Level, msg string, args ...any) {
	l.Logger.Log(level, msg, args...)
	l.keep(level, msg, args)
}

func (l journaled) Debug(msg string, args ...any) { l.Log(hclog.Debug, msg, args...) }
func (l journaled) Info(msg string, args ...any)  { l.Log(hclog.Info, msg, args...) }
func (l journaled) Warn(msg string, args ...any)  { l.Log(hclog.Warn, msg, args...) }
func (l journaled) Error(msg string, args ...any) { l.Log(hclog.Error, msg, args...) }

func (l journaled) keep(level hclog.Level, msg string, args []any) {
	line := LogLine{Time: time.Now(), Level: level.String(), Generation: l.generation}
	var text strings.Builder
	text.WriteString(msg)
	for i := 0; i+1 < len(args); i += 2 {
		key := fmt.Sprint(args[i])
		if l.generation == 0 { // the host's own words
			if n, ok := args[i+1].(uint64); ok && key == "generation" {
				line.Generation = n
				continue
			}
			if key == "last_words" {
				continue // they are the lines before
			}
		}
		fmt.Fprintf(&text, " %s=%s", bare(key), bare(fmt.Sprint(args[i+1])))
	}
	line.Text = text.String()
	l.journal.add(line)
}

// bare quotes what would not be read as one word.
func bare(s string) string {
	plain := func(r rune) bool { return unicode.IsPrint(r) && r != ' ' && r != '"' && r != '=' }
	if s == "" || strings.ContainsFunc(s, func(r rune) bool { return !plain(r) }) {
		return strconv.Quote(s)
	}
	return s
}
