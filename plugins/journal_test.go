package plugins

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/hashicorp/go-hclog"
)

func addLines(j *journal, from, n int) {
	for i := range n {
		j.add(LogLine{Text: fmt.Sprint(from + i)})
	}
}

// texts is what tail gives without following.
func texts(t *testing.T, j *journal, last int) (all []string) {
	t.Helper()
	if err := j.tail(t.Context(), last, false, func(l LogLine) error {
		if l.Missed != 0 {
			t.Errorf("line %q after %d that were missed", l.Text, l.Missed)
		}
		all = append(all, l.Text)
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	return all
}

func TestJournalKeepsTheLastLines(t *testing.T) {
	var j journal
	if got := texts(t, &j, 10); len(got) != 0 {
		t.Errorf("a new journal holds %q", got)
	}
	addLines(&j, 0, journalLines+3)
	for _, tc := range []struct {
		last, want int
		first      string
	}{{0, 0, ""}, {-1, 0, ""}, {1, 1, "1002"}, {10, 10, "993"}, {journalLines, journalLines, "3"}, {1 << 40, journalLines, "3"}} {
		got := texts(t, &j, tc.last)
		if len(got) != tc.want || len(got) > 0 && (got[0] != tc.first || got[len(got)-1] != "1002") {
			t.Errorf("the last %d: %d lines, want %d from %s", tc.last, len(got), tc.want, tc.first)
		}
	}
}

// TestJournalIsBounded: by the size of a line, and of all of them together.
func TestJournalIsBounded(t *testing.T) {
	var j journal
	j.add(LogLine{Text: strings.Repeat("é", maxLineText)})
	if got := texts(t, &j, 1)[0]; len(got) > maxLineText+len("…") || !utf8.ValidString(got) {
		t.Errorf("a line of %d bytes", len(got))
	}
	for range 2 * journalBytes / 1000 {
		j.add(LogLine{Text: strings.Repeat("x", 1000)})
	}
	size := 0
	got := texts(t, &j, journalLines)
	for _, line := range got {
		size += len(line)
	}
	if size > journalBytes || size < journalBytes-1000 || size != j.bytes {
		t.Errorf("%d lines of %d bytes, counted as %d; want at most %d and no fewer than fit", len(got), size, j.bytes, journalBytes)
	}
}

// TestSlowFollowerLosesTheOldest: while a follower is stuck the journal takes
// lines without end; then it learns how many it missed, and the others are whole.
func TestSlowFollowerLosesTheOldest(t *testing.T) {
	var j journal
	addLines(&j, 0, 1)
	stuck, free := make(chan struct{}), make(chan struct{})
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	seen, missed := 0, uint64(0)
	last := fmt.Sprint(5 * journalLines)
	err := make(chan error, 1)
	go func() {
		err <- j.tail(ctx, 1, true, func(l LogLine) error {
			if seen == 0 {
				close(stuck)
				<-free
			}
			seen++
			missed += l.Missed
			if l.Text == last {
				cancel()
			}
			return nil
		})
	}()
	<-stuck
	addLines(&j, 1, 5*journalLines)
	close(free)
	if err := <-err; !errors.Is(err, context.Canceled) {
		t.Fatal(err)
	}
	if seen != 1+journalLines || missed != 4*journalLines {
		t.Errorf("%d lines seen and %d missed, want %d and %d", seen, missed, 1+journalLines, 4*journalLines)
	}
}

// TestFollowersSeeEveryLineOnce while lines come from several sides.
func TestFollowersSeeEveryLineOnce(t *testing.T) {
	var j journal
	const writers, each = 4, journalLines / 4
	var all sync.WaitGroup
	ready := make(chan struct{}, MaxFollowers)
	for range MaxFollowers {
		all.Go(func() {
			count := map[string]int{}
			enough := errors.New("enough")
			err := j.tail(t.Context(), journalLines, true, func(l LogLine) error {
				if l.Text == "begin" {
					ready <- struct{}{}
					return nil
				}
				count[l.Text]++
				if len(count) == writers*each {
					return enough
				}
				return nil
			})
			if !errors.Is(err, enough) {
				t.Errorf("tail: %v", err)
			}
			for text, n := range count {
				if n != 1 {
					t.Errorf("line %s seen %d times", text, n)
				}
			}
		})
	}
	j.add(LogLine{Text: "begin"})
	for range MaxFollowers {
		<-ready
	}
	if err := j.tail(t.Context(), 0, true, func(LogLine) error { return nil }); !errors.Is(err, ErrFollowers) {
		t.Errorf("one follower more: %v, want ErrFollowers", err)
	}
	if got := texts(t, &j, 1); len(got) != 1 {
		t.Errorf("who does not follow gets %q", got)
	}
	for w := range writers {
		all.Go(func() {
			for i := range each {
				j.add(LogLine{Text: fmt.Sprint(w, "/", i)})
			}
		})
	}
	all.Wait()
	if n := len(j.followers.subs); n != 0 {
		t.Errorf("%d followers are left", n)
	}
}

func TestTailEndsWithItsContext(t *testing.T) {
	var j journal
	why := errors.New("why")
	ctx, cancel := context.WithCancelCause(t.Context())
	done := make(chan error, 1)
	go func() { done <- j.tail(ctx, 0, true, func(LogLine) error { return nil }) }()
	cancel(why)
	if err := <-done; !errors.Is(err, why) {
		t.Errorf("tail ends with %v", err)
	}
	addLines(&j, 0, 2)
	if err := j.tail(ctx, 2, false, func(LogLine) error { return nil }); !errors.Is(err, why) {
		t.Errorf("the tail of a context that is over: %v", err)
	}
	if err := j.tail(t.Context(), 2, false, func(LogLine) error { return why }); !errors.Is(err, why) {
		t.Errorf("the reader's error: %v", err)
	}
}

// kept is what a journal holds of lines that went through a plugin's logger.
func keptOf(t *testing.T, log func(hclog.Logger)) []LogLine {
	t.Helper()
	var j journal
	log(journaled{Logger: hclog.NewNullLogger(), journal: &j})
	lines, _ := j.read(0)
	return lines
}

func TestLoggerKeepsWhatItLogs(t *testing.T) {
	before := time.Now()
	for _, tc := range []struct {
		log   func(hclog.Logger)
		level string
		text  string
		gen   uint64
	}{
		{func(l hclog.Logger) { l.Info("plain") }, "info", "plain", 0},
		{func(l hclog.Logger) { l.Debug("m", "n", 7, "d", time.Second) }, "debug", "m n=7 d=1s", 0},
		{func(l hclog.Logger) { l.Warn("m", "a", "two words", "b", `q"`, "c", "", "d", "x=y") }, "warn", `m a="two words" b="q\"" c="" d="x=y"`, 0},
		{func(l hclog.Logger) { l.Error("m", "reason", errors.New("line\nbreak\x1b[2J")) }, "error", `m reason="line\nbreak\x1b[2J"`, 0},
		{func(l hclog.Logger) { l.Info("ready", "generation", uint64(4), "last_words", "x") }, "info", "ready", 4},
		{func(l hclog.Logger) { l.With("generation", uint64(3)).Log(hclog.Trace, "m") }, "trace", "m", 3},
		// A plugin may use the same words; it cannot change what they mean.
		{func(l hclog.Logger) {
			l.With("generation", uint64(3)).Info("m", "generation", "9", "last_words", "x")
		}, "info", "m generation=9 last_words=x", 3},
	} {
		lines := keptOf(t, tc.log)
		if len(lines) != 1 || lines[0].Level != tc.level || lines[0].Text != tc.text || lines[0].Generation != tc.gen || lines[0].Time.Before(before) {
			t.Errorf("kept %+v, want %s %q of generation %d", lines, tc.level, tc.text, tc.gen)
		}
	}
}

// FuzzKeptLine: whatever a plugin writes, what is kept of it is one line that
// cannot steer a terminal, in bounds, and without its secrets.
func FuzzKeptLine(f *testing.F) {
	for _, s := range []string{"", "x", `{"@message":"m","a b":{"b":["\u001b"]},"c":"secret-token"}`, `{"@message":"a\nb"}`, "\x1b\xff", strings.Repeat("\x00", 9000)} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, raw []byte) {
		for _, l := range keptOf(t, func(log hclog.Logger) {
			newOutput(log.With("generation", uint64(1)), map[string]string{"T": "secret-token"}, func(int) {}).stderr(raw)
		}) {
			steers := strings.ContainsFunc(l.Text, func(r rune) bool { return r != '\t' && !unicode.IsPrint(r) })
			if steers || !utf8.ValidString(l.Text) || len(l.Text) > maxLineText+len("…") || strings.Contains(l.Text, "secret-token") || l.Generation != 1 {
				t.Fatalf("%+v", l)
			}
		}
	})
}
