package plugins

import (
	"context"
	"slices"
	"strings"
	"sync"
	"time"
)

const (
	hidden = "***"
	// minSecretLen is the shortest text that is hidden, in bytes: shorter ones
	// would take ordinary words out of the log.
	minSecretLen = 4
	// hiddenAfter is how long the secrets of a call that ended stay hidden: what
	// a plugin writes arrives later than what it answers.
	hiddenAfter = 10 * time.Second
	// maxSecretsAfter bounds the secrets of calls that ended; the oldest go first.
	maxSecretsAfter = 1024
)

type secretsKey struct{}

// WithSecrets says that a call under ctx carries these texts, such as
// credentials: they are hidden in what the plugin writes and says while the call
// is in flight and for ten seconds after. Texts of less than four bytes are not.
func WithSecrets(ctx context.Context, texts ...string) context.Context {
	return context.WithValue(ctx, secretsKey{}, texts)
}

func secretsOf(ctx context.Context) []string {
	texts, _ := ctx.Value(secretsKey{}).([]string)
	return texts
}

// HideSecrets returns text without the secrets that ctx carries.
func HideSecrets(ctx context.Context, text string) string {
	for _, s := range secretsOf(ctx) {
		if len(s) >= minSecretLen {
			text = strings.ReplaceAll(text, s, hidden)
		}
	}
	return text
}

// A mask hides secrets in what a process writes: those of its settings for ever,
// those of calls as long as they matter. Safe for concurrent use.
type mask struct {
	mu       sync.Mutex
	held     map[string]int // by how many
	after    []passed       // of calls that ended, oldest first; each counts in held
	replacer *strings.Replacer
}

type passed struct {
	text string
	at   time.Time
}

func newMask(settings map[string]string) *mask {
	m := &mask{held: make(map[string]int)}
	for _, v := range settings {
		m.hold(v)
	}
	return m
}

// hold hides a text; the caller holds mu, or nobody else knows m yet.
func (m *mask) hold(text string) bool {
	if len(text) < minSecretLen {
		return false
	}
	if m.held[text]++; m.held[text] == 1 {
		m.replacer = nil
	}
	return true
}

// let shows a text again when nobody holds it any more; the caller holds mu.
func (m *mask) let(text string) {
	if m.held[text]--; m.held[text] == 0 {
		delete(m.held, text)
		m.replacer = nil
	}
}

// hide hides the secrets of a call until a while after done.
func (m *mask) hide(texts []string) (done func()) {
	if len(texts) == 0 {
		return func() {}
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	var mine []string
	for _, t := range texts {
		if m.hold(t) {
			mine = append(mine, t)
		}
	}
	return func() {
		m.mu.Lock()
		defer m.mu.Unlock()
		now := time.Now()
		for _, t := range mine {
			m.after = append(m.after, passed{t, now})
		}
		m.forget(now)
	}
}

// forget lets go of what calls have left long enough ago; the caller holds mu.
func (m *mask) forget(now time.Time) {
	n := max(0, len(m.after)-maxSecretsAfter)
	for n < len(m.after) && now.Sub(m.after[n].at) > hiddenAfter {
		n++
	}
	for _, p := range m.after[:n] {
		m.let(p.text)
	}
	m.after = slices.Delete(m.after, 0, n)
}

// replace returns s without the secrets. With cut, s is the beginning of a longer
// text, which may have cut one in two.
func (m *mask) replace(s string, cut bool) string {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.forget(time.Now())
	if len(m.held) == 0 {
		return s
	}
	if m.replacer == nil {
		pairs := make([]string, 0, 2*len(m.held))
		for text := range m.held {
			pairs = append(pairs, text, hidden)
		}
		m.replacer = strings.NewReplacer(pairs...)
	}
	if s = m.replacer.Replace(s); !cut {
		return s
	}
	longest := 0
	for text := range m.held {
		for n := min(len(text)-1, len(s)); n > longest; n-- {
			if strings.HasSuffix(s, text[:n]) {
				longest = n
			}
		}
	}
	if longest == 0 {
		return s
	}
	return s[:len(s)-longest] + hidden
}
