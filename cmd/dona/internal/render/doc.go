// Package render turns the host's messages into text for people: tables, the
// block of a rollout, one line about a change. The command line and the demo
// call it. It is pure: the same message gives the same text, and nothing here
// reads a clock or writes anywhere. Everything is ASCII except what the host
// sent, and that is escaped, so that a name cannot steer a terminal.
package render

import (
	"fmt"
	"strconv"
	"strings"
	"time"
	"unicode"
)

// Style says how text may look.
type Style struct {
	Color bool
}

const (
	red    = "31"
	green  = "32"
	yellow = "33"
	cyan   = "36"
	bold   = "1"
	dim    = "2"
)

func (s Style) paint(code, text string) string {
	if !s.Color || text == "" || code == "" {
		return text
	}
	return "\x1b[" + code + "m" + text + "\x1b[0m"
}

// Bold is for names.
func (s Style) Bold(text string) string { return s.paint(bold, text) }

// Dim is for what matters less.
func (s Style) Dim(text string) string { return s.paint(dim, text) }

// Good is for what is as wanted.
func (s Style) Good(text string) string { return s.paint(green, text) }

// Bad is for what is not.
func (s Style) Bad(text string) string { return s.paint(red, text) }

// Warn is for what needs attention.
func (s Style) Warn(text string) string { return s.paint(yellow, text) }

// Clean makes text from elsewhere safe for one line of a terminal: control and
// invisible characters are escaped as Go writes them.
func Clean(text string) string {
	if strings.IndexFunc(text, func(r rune) bool { return !unicode.IsPrint(r) }) < 0 {
		return text
	}
	var b strings.Builder
	for _, r := range text {
		if unicode.IsPrint(r) {
			b.WriteRune(r)
			continue
		}
		q := strconv.QuoteRuneToASCII(r)
		b.WriteString(q[1 : len(q)-1])
	}
	return b.String()
}

// Seconds writes a duration the way a dwell is read: in seconds with one digit.
func Seconds(d time.Duration) string {
	return strconv.FormatFloat(d.Seconds(), 'f', 1, 64) + " s"
}

// count writes "1 endpoint", "2 endpoints".
func count(n int, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return fmt.Sprintf("%d %ss", n, noun)
}

// list writes names, or what stands for none.
func list(names []string, none string) string {
	if len(names) == 0 {
		return none
	}
	clean := make([]string, len(names))
	for i, n := range names {
		clean[i] = Clean(n)
	}
	return strings.Join(clean, ", ")
}
