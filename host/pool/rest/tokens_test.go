package rest

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

func TestTokenFiles(t *testing.T) {
	dir := t.TempDir()
	good := "ann:" + digest(annToken)
	many := func(n int) string {
		var text strings.Builder
		for i := range n {
			fmt.Fprintf(&text, "n%d:%s\n", i, digest(fmt.Sprint(i)))
		}
		return text.String()
	}
	for _, c := range []struct {
		name, text string
		mode       os.FileMode
		says       string // empty: it is taken
	}{
		{"one", good, 0o600, ""},
		{"none", "# nobody\n\n", 0o400, ""},
		{"full", many(MaxTokens), 0o600, ""},
		{"overfull", many(MaxTokens + 1), 0o600, fmt.Sprintf("line %d: is one more", MaxTokens+1)},
		{"readable", good, 0o640, "chmod 600"},
		{"plain", "ann:" + annToken, 0o600, "line 1: is not name:sha256-hex"},
		{"alone", annToken, 0o600, "line 1: is not name:sha256-hex"},
		{"short", good[:len(good)-1], 0o600, "line 1: is not"},
		{"long", good + "0", 0o600, "line 1: is not"},
		{"no name", good[3:], 0o600, "line 1: is not"},
		{"bad name", "a b:" + digest(annToken), 0o600, "line 1: is not"},
		{"blank", good + " ", 0o600, "line 1: is not"},
		{"indented", " " + good, 0o600, "line 1: is not"},
		{"twice", good + "\n#\nann:" + digest(bobToken), 0o600, "line 3: has the name of line 1"},
		{"shared", good + "\nbob:" + digest(annToken), 0o600, "line 2: has the token of line 1"},
		{"all at once", "x\n" + good + "\ny", 0o600, "line 3: is not"},
		{"huge", strings.Repeat("#\n", maxTokenFile/2+1), 0o600, "more than"},
	} {
		path := filepath.Join(dir, c.name)
		writeTokens(t, path, c.text, c.mode)
		_, err := OpenTokens(path, nil)
		switch {
		case c.says == "" && err != nil:
			t.Errorf("%s: %v", c.name, err)
		case c.says != "" && (err == nil || !strings.Contains(err.Error(), c.says) || strings.Contains(err.Error(), annToken) || strings.Contains(err.Error(), digest(annToken))):
			t.Errorf("%s: %v; want an error with %q", c.name, err, c.says)
		}
	}
	for _, path := range []string{filepath.Join(dir, "no such"), dir} {
		if _, err := OpenTokens(path, nil); err == nil {
			t.Errorf("%s was taken", path)
		}
	}
}

// TestTokensChange: a changed file is read within a second; one that does not hold
// changes nothing, and is told once.
func TestTokensChange(t *testing.T) {
	path := filepath.Join(t.TempDir(), "tokens")
	writeTokens(t, path, "ann:"+digest(annToken)+"\n", 0o600)
	var said []error
	tokens, err := OpenTokens(path, func(err error) { said = append(said, err) })
	if err != nil {
		t.Fatal(err)
	}
	now := tokens.looked
	tokens.now = func() time.Time { return now }
	want := func(when, ann, bob string) {
		t.Helper()
		a, _ := tokens.Who(annToken)
		b, _ := tokens.Who(bobToken)
		if a != ann || b != bob {
			t.Errorf("%s: the tokens are of %q and %q, want %q and %q", when, a, b, ann, bob)
		}
	}
	want("at first", "ann", "")
	writeTokens(t, path, "bob:"+digest(bobToken)+"\n", 0o600)
	want("before a second", "ann", "")
	now = now.Add(lookAgain)
	want("after a second", "", "bob")
	writeTokens(t, path, "bad", 0o600)
	for range 3 {
		now = now.Add(lookAgain)
		want("a bad file", "", "bob")
	}
	if len(said) != 1 || !strings.Contains(said[0].Error(), "go on") {
		t.Errorf("said of a bad file: %v", said)
	}
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	now = now.Add(lookAgain)
	want("no file", "", "bob")
	if len(said) != 2 || !errors.Is(said[1], os.ErrNotExist) {
		t.Errorf("said of no file: %v", said)
	}
	writeTokens(t, path, "ann:"+digest(bobToken)+"\n", 0o600)
	now = now.Add(lookAgain)
	want("good again", "", "ann")
	if len(said) != 3 || said[2] != nil {
		t.Errorf("said of a good file: %v", said)
	}
	if err := os.Chmod(path, 0o644); err != nil {
		t.Fatal(err)
	}
	now = now.Add(lookAgain)
	want("readable by others", "", "ann")
	if len(said) != 4 || !strings.Contains(said[3].Error(), "0644") {
		t.Errorf("said of a readable file: %v", said)
	}
	now = now.Add(-time.Hour)
	want("the clock goes back", "", "ann")
}

func FuzzParseTokens(f *testing.F) {
	f.Add([]byte("ann:" + digest(annToken) + "\n# x\r\n"))
	f.Fuzz(func(t *testing.T, text []byte) {
		all, err := parseTokens(text)
		if err != nil && all != nil {
			t.Fatalf("%q: an error and %d tokens", text, len(all))
		}
		seen := map[string]bool{}
		for _, k := range all {
			if k.name == "" || seen[k.name] {
				t.Fatalf("%q: the name %q", text, k.name)
			}
			seen[k.name] = true
		}
	})
}
