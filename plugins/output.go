package plugins

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"sort"
	"strings"
	"sync"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/hashicorp/go-hclog"

	"github.com/dodona-project/dodona/plugins/runner"
)

// Limits of a plugin's output. What is over them is read and dropped, so that a
// plugin never blocks on its pipe and never fills the host's log.
const (
	linesPerSecond = 200
	linesBurst     = 1000
	keptLines      = 40      // last lines kept for errors and crash records
	keptBytes      = 8 << 10 // of each the end, all together
	maxLogFields   = 16
	maxFieldLen    = 1 << 10
	maxStackLen    = 6 << 10
	maxCauseLen    = 300
	maxKeptLen     = 2 << 10
	maxKeptStdout  = 256
)

// output takes the lines a process writes, logs them and keeps the last ones.
// It never trusts a line: it is text that happens to look like JSON at times.
type output struct {
	logger  hclog.Logger
	mask    *mask
	dropped func(lines int)

	mu     sync.Mutex
	last   []kept
	tokens float64
	filled time.Time
	missed int

	// The first line of a panic that ends the process: the stacks that follow it
	// are longer than what is kept.
	headline  string
	headlined time.Time
}

func newOutput(logger hclog.Logger, secrets map[string]string, dropped func(int)) *output {
	return &output{logger: logger, mask: newMask(secrets), dropped: dropped, tokens: linesBurst, filled: time.Now()}
}

// kept is one of the last lines.
type kept struct {
	text   string
	stdout bool
}

func (o *output) stderr(raw []byte) { o.line(raw, false) }
func (o *output) stdout(raw []byte) { o.line(raw, true) }

// line takes one line; it does not keep the slice.
func (o *output) line(raw []byte, stdout bool) {
	hide := o.hiding(raw)
	text := hide(printable(string(raw)))
	o.mu.Lock()
	// What is printed is rarely why a process dies: it must not push out what is.
	keep := maxKeptLen
	if stdout {
		keep = maxKeptStdout
	}
	o.keep(kept{clip(text, keep), stdout})
	missed, ok := o.admit(time.Now())
	o.mu.Unlock()
	if !ok {
		o.dropped(1)
		return
	}
	if missed > 0 {
		o.logger.Warn("plugin writes too much, lines were dropped", "lines", missed)
	}
	level, msg, fields := parseLine(raw, hide)
	o.logger.Log(level, msg, fields...)
}

// hiding returns what takes the secrets out of texts of a line.
func (o *output) hiding(raw []byte) func(string) string {
	cut := len(raw) >= runner.MaxLineLen
	return func(s string) string { return o.mask.replace(s, cut) }
}

// headlineFor is how long after it a process must end for a panic's first line to
// be why: some programs only print one.
const headlineFor = 10 * time.Second

// keep adds to the last lines; the caller holds mu.
func (o *output) keep(k kept) {
	if !k.stdout && strings.HasPrefix(k.text, "{") {
		o.headline = "" // it logs on: that was not its end
	}
	if !k.stdout && (strings.HasPrefix(k.text, "panic: ") || strings.HasPrefix(k.text, "fatal error: ")) &&
		(o.headline == "" || time.Since(o.headlined) > headlineFor) {
		o.headline, o.headlined = k.text, time.Now()
	}
	o.last = append(o.last, k)
	size := 0
	for _, l := range o.last {
		size += len(l.text)
	}
	for len(o.last) > 1 && (len(o.last) > keptLines || size > keptBytes) {
		size -= len(o.last[0].text)
		o.last = o.last[1:]
	}
}

// admit says whether one more line may be logged, and how many were not since
// the last that was; the caller holds mu.
func (o *output) admit(now time.Time) (missed int, ok bool) {
	o.tokens = min(linesBurst, o.tokens+now.Sub(o.filled).Seconds()*linesPerSecond)
	o.filled = now
	if o.tokens < 1 {
		o.missed++
		return 0, false
	}
	o.tokens--
	missed, o.missed = o.missed, 0
	return missed, true
}

// words returns the last lines, for errors.
func (o *output) words() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	lines := make([]string, len(o.last))
	for i, l := range o.last {
		lines[i] = l.text
	}
	return strings.Join(lines, "\n")
}

// digest identifies the last lines without telling them; empty without any.
func (o *output) digest() string {
	w := o.words()
	if w == "" {
		return ""
	}
	sum := sha256.Sum256([]byte(w))
	return hex.EncodeToString(sum[:])
}

// cause returns the line that says best why a process died: of a panic, else
// the last one of stderr, else the last one of stdout.
func (o *output) cause() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	best := ""
	if o.headline != "" && time.Since(o.headlined) < headlineFor {
		return clip(o.headline, maxCauseLen)
	}
	for _, stdout := range []bool{true, false} {
		for _, l := range o.last {
			if l.stdout == stdout && strings.TrimSpace(l.text) != "" {
				best = l.text
			}
		}
	}
	_, msg, fields := parseLine([]byte(best), o.hiding([]byte(best)))
	for i := 0; i+1 < len(fields); i += 2 {
		if fields[i] == "error" {
			msg += ": " + fields[i+1].(string)
		}
	}
	return clip(msg, maxCauseLen)
}

// hostFields are what the host says of a line. A plugin that says the same word
// must not be taken for the host, or for another plugin.
var hostFields = map[string]bool{"kind": true, "plugin": true, "version": true, "generation": true, "pid": true}

// parseLine reads a line of hclog's JSON if it is one, and otherwise takes it
// as it is. Every field may have any type: what is not text is written as JSON.
// Time and name are the host's own, a level counts only if it is one.
// hide takes secrets out of each text before it is cut to its length.
func parseLine(raw []byte, hide func(string) string) (hclog.Level, string, []any) {
	plain := func() (hclog.Level, string, []any) { return hclog.Info, hide(printable(string(raw))), nil }
	if len(raw) == 0 || raw[0] != '{' {
		return plain()
	}
	var m map[string]any
	if err := json.Unmarshal(raw, &m); err != nil {
		return plain()
	}
	msg, ok := m["@message"].(string)
	if !ok {
		return plain()
	}
	level := hclog.Info
	if s, ok := m["@level"].(string); ok {
		if l := hclog.LevelFromString(s); l >= hclog.Trace && l <= hclog.Error {
			level = l
		}
	}
	keys := make([]string, 0, len(m))
	for k := range m {
		if !strings.HasPrefix(k, "@") {
			keys = append(keys, k)
		}
	}
	sort.Strings(keys)
	var fields []any
	for _, k := range keys[:min(len(keys), maxLogFields)] {
		name := k
		if hostFields[k] {
			name = "said_" + k
		}
		most := maxFieldLen
		if k == "stack" {
			most = maxStackLen
		}
		fields = append(fields, clip(hide(printable(name)), 64), clip(hide(fieldText(m[k])), most))
	}
	return level, hide(printable(msg)), fields
}

func fieldText(v any) string {
	if s, ok := v.(string); ok {
		return printable(s)
	}
	text, err := json.Marshal(v)
	if err != nil {
		return fmt.Sprint(v)
	}
	return printable(string(text))
}

// printable escapes what could move a terminal's cursor or forge a line. A tab
// stays.
func printable(s string) string {
	clean := true
	for _, r := range s {
		if r == utf8.RuneError || (r != '\t' && !unicode.IsPrint(r)) {
			clean = false
			break
		}
	}
	if clean {
		return s
	}
	var b strings.Builder
	for i := 0; i < len(s); {
		r, n := utf8.DecodeRuneInString(s[i:])
		switch {
		case r == utf8.RuneError && n == 1:
			fmt.Fprintf(&b, `\x%02x`, s[i])
		case r != '\t' && !unicode.IsPrint(r):
			fmt.Fprintf(&b, `\u%04x`, r)
		default:
			b.WriteRune(r)
		}
		i += n
	}
	return b.String()
}
