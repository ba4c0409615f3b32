package clients_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/dodona-project/dodona/cmd/proxy-gateway/internal/clients"
)

func write(t *testing.T, name, text string) string {
	t.Helper()
	if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return name
}

func TestCheck(t *testing.T) {
	dir := t.TempDir()
	a := write(t, filepath.Join(dir, "a"), "one\n")
	b := write(t, filepath.Join(dir, "b"), " two:with:colons \r\n")
	s, err := clients.Load([]clients.Client{{Name: "alice", PasswordFile: a}, {Name: "bob", PasswordFile: b}})
	if err != nil {
		t.Fatal(err)
	}
	check := func(name, password string, want bool) {
		t.Helper()
		if s.Check(name, password) != want {
			t.Errorf("%s with %q: %v", name, password, !want)
		}
	}
	check("alice", "one", true)
	check("bob", " two:with:colons ", true)
	for _, wrong := range [][2]string{{"alice", "two"}, {"alice", ""}, {"alice", "one\n"}, {"bob", "one"}, {"nobody", "one"}, {"", ""}, {"alice", strings.Repeat("x", 1<<20)}} {
		check(wrong[0], wrong[1], false)
	}
	write(t, a, "three")
	check("alice", "one", true)
	if err := s.Reload(); err != nil {
		t.Fatal(err)
	}
	check("alice", "one", false)
	check("alice", "three", true)
	write(t, b, "\n")
	if err := s.Reload(); err == nil || !strings.Contains(err.Error(), "client bob") {
		t.Errorf("an empty file: %v", err)
	}
	check("bob", " two:with:colons ", true)
	check("alice", "three", true)
}

func TestFilesThatDoNotHold(t *testing.T) {
	dir := t.TempDir()
	for text, want := range map[string]string{"": "no password", "\n": "no password", "a\nb\n": "more than one line", strings.Repeat("x", 1025): "1025 bytes"} {
		_, err := clients.Load([]clients.Client{{Name: "alice", PasswordFile: write(t, filepath.Join(dir, "p"), text)}})
		if err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), "client alice") {
			t.Errorf("%.10q: %v, want %q", text, err, want)
		}
	}
	if _, err := clients.Load([]clients.Client{{Name: "a", PasswordFile: filepath.Join(dir, "none")}, {Name: "b", PasswordFile: filepath.Join(dir, "neither")}}); err == nil || strings.Count(err.Error(), "password file of client") != 2 {
		t.Errorf("two files that are not there: %v", err)
	}
}
