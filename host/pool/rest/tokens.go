package rest

import (
	"bytes"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/dodona-project/dodona/host/limits"
	"github.com/dodona-project/dodona/host/pool/secret"
)

// Bounds of a file of tokens.
const (
	MaxTokens     = 1_000
	maxTokenFile  = 1 << 20
	maxTokenBytes = 1 << 10
)

// lookAgain is how long a look at the file holds: that long a token lives on after
// its line is gone.
const lookAgain = time.Second

// Tokens are the bearer tokens of a file: a name and the SHA-256 of a token a line,
// so that who reads the file cannot use them. The file is read again when it
// changes. It is safe for concurrent use.
type Tokens struct {
	path   string
	now    func() time.Time
	report func(error)

	mu     sync.Mutex
	looked time.Time
	info   os.FileInfo // of the file that was read
	failed string      // what was last reported
	all    []token
}

type token struct {
	name   string
	digest [sha256.Size]byte
}

// OpenTokens reads a file of tokens, which nobody but its owner may read. When a
// changed file does not hold, what was there before goes on, and report, which may
// be nil, is told once; it is told nil when the file holds again.
func OpenTokens(path string, report func(error)) (*Tokens, error) {
	t := &Tokens{path: path, now: time.Now, report: report}
	if report == nil {
		t.report = func(error) {}
	}
	info, err := os.Stat(path)
	if err == nil {
		err = t.read(info)
	}
	if err != nil {
		return nil, fmt.Errorf("tokens: %w", err)
	}
	t.looked = t.now()
	return t, nil
}

// Who returns the name that a token has. How long it takes says nothing about how
// much of a token is right.
func (t *Tokens) Who(text string) (name string, ok bool) {
	if text == "" || len(text) > maxTokenBytes {
		return "", false
	}
	digest := sha256.Sum256([]byte(text))
	for _, known := range t.current() {
		if subtle.ConstantTimeCompare(digest[:], known.digest[:]) == 1 {
			name, ok = known.name, true
		}
	}
	return name, ok
}

// current looks whether the file changed, now and then.
func (t *Tokens) current() []token {
	t.mu.Lock()
	defer t.mu.Unlock()
	now := t.now()
	if since := now.Sub(t.looked); since >= 0 && since < lookAgain {
		return t.all
	}
	t.looked = now
	info, err := os.Stat(t.path)
	if err == nil && t.failed == "" && os.SameFile(info, t.info) && info.Size() == t.info.Size() && info.ModTime().Equal(t.info.ModTime()) && info.Mode() == t.info.Mode() {
		return t.all
	}
	if err == nil {
		err = t.read(info)
	}
	switch {
	case err != nil && err.Error() != t.failed:
		t.failed = err.Error()
		t.report(fmt.Errorf("tokens: %w; those that were read before go on", err))
	case err == nil && t.failed != "":
		t.failed = ""
		t.report(nil)
	}
	return t.all
}

func (t *Tokens) read(info os.FileInfo) error {
	dir, name := filepath.Split(t.path)
	if dir == "" {
		dir = "."
	}
	text, err := secret.ReadPrivate(dir, name, maxTokenFile)
	if err != nil {
		return fmt.Errorf("%s %w", t.path, err)
	}
	all, err := parseTokens(text)
	if err != nil {
		return fmt.Errorf("%s: %w", t.path, err)
	}
	t.all, t.info = all, info
	return nil
}

// parseTokens reads lines of name:sha256-hex; comments and blank lines are nothing.
// The errors, all of them, name lines and quote nothing.
func parseTokens(text []byte) (all []token, err error) {
	var wrong []error
	names, digests := map[string]int{}, map[[sha256.Size]byte]int{}
	for i, line := range bytes.Split(text, []byte("\n")) {
		refuse := func(format string, args ...any) {
			wrong = append(wrong, fmt.Errorf("line %d: %s", i+1, fmt.Sprintf(format, args...)))
		}
		s := strings.TrimSuffix(string(line), "\r")
		if s == "" || strings.HasPrefix(s, "#") {
			continue
		}
		name, digits, ok := strings.Cut(s, ":")
		raw, err := hex.DecodeString(digits)
		if !ok || limits.Name(name) != nil || err != nil || len(raw) != sha256.Size {
			refuse("is not name:sha256-hex (allowed: a name of A-Z, a-z, 0-9 and ._-, and the 64 hex digits of the token's SHA-256)")
			continue
		}
		next := token{name: name, digest: [sha256.Size]byte(raw)}
		switch {
		case names[name] != 0:
			refuse("has the name of line %d", names[name])
		case digests[next.digest] != 0:
			refuse("has the token of line %d", digests[next.digest])
		case len(all) == MaxTokens:
			refuse("is one more than %d tokens", MaxTokens)
			return nil, errors.Join(wrong...)
		}
		names[name], digests[next.digest] = i+1, i+1
		all = append(all, next)
	}
	if len(wrong) > 0 {
		return nil, errors.Join(wrong...)
	}
	return all, nil
}
