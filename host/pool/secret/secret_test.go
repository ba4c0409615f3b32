package secret

import (
	"bytes"
	"encoding/json"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"go.uber.org/goleak"
	"pgregory.net/rapid"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const planted = "pl4nted-s3cret"

func credential(t testing.TB, username, password string) Credential {
	t.Helper()
	c, err := NewCredential(username, password)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// TestNothingPrintsASecret: however a credential or a key is printed, alone or
// inside of something, nothing of it shows.
func TestNothingPrintsASecret(t *testing.T) {
	c := credential(t, planted, planted)
	key, err := ParseKey(strings.Repeat("5e", 32))
	if err != nil {
		t.Fatal(err)
	}
	type holder struct {
		C  Credential
		P  *Credential
		K  Key
		M  map[string]Credential
		in Credential
		ik Key
	}
	h := holder{c, &c, key, map[string]Credential{"a": c}, c, key}
	var log bytes.Buffer
	logger := slog.New(slog.NewTextHandler(&log, nil))
	logger.Info("x", "c", c, "p", &c, "k", key, "any", slog.AnyValue(c))
	slog.New(slog.NewJSONHandler(&log, nil)).Info("x", "c", c, "p", &c, "k", key, "h", h)
	text := log.String()
	for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%q", "%x", "%X", "%d"} {
		text += fmt.Sprintf(verb, c) + fmt.Sprintf(verb, &c) + fmt.Sprintf(verb, key) + fmt.Sprintf(verb, []any{c, key})
	}
	for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%x"} {
		text += fmt.Sprintf(verb, h) + fmt.Sprintf(verb, &h) + fmt.Sprintf(verb, []holder{h})
	}
	raw, err := json.Marshal(h)
	if err != nil {
		t.Fatal(err)
	}
	text += string(raw) + fmt.Sprint(fmt.Errorf("wrapped: %v", c))
	for _, part := range []string{planted, fmt.Sprintf("%x", planted), fmt.Sprintf("%X", planted), "5e5e", "94 94"} {
		if strings.Contains(text, part) {
			t.Errorf("%q shows in %s", part, text)
		}
	}
	if !strings.Contains(text, hidden) {
		t.Error("and nothing says that there is a secret")
	}
}

func TestEqual(t *testing.T) {
	c := credential(t, "u", "p")
	for _, other := range []Credential{{}, credential(t, "u", "q"), credential(t, "v", "p"), credential(t, "u", "")} {
		if c.Equal(other) {
			t.Errorf("u:p equals %q:%q", other.Username(), other.Password())
		}
	}
	if !c.Equal(credential(t, "u", "p")) || c.IsZero() || !(Credential{}).IsZero() {
		t.Error("a credential does not equal itself, or the zero one is some")
	}
}

func TestRefs(t *testing.T) {
	for _, good := range []string{"file:a", "file:a/b.txt", "file:..data/a", "env:PROXY_POOL_SECRET_A", "env:PROXY_POOL_SECRET_A_1"} {
		if r, err := ParseRef(good); err != nil || r.String() != good {
			t.Errorf("%s: %v, %v", good, r, err)
		}
	}
	for _, bad := range []string{
		"", "file:", "file:.", "file:..", "file:../a", "file:a/../b", "file:/etc/shadow", "file:a//b", "file:a\nb", "file:a\x00b", "file:./a",
		"env:", "env:HOME", "env:PROXY_POOL_SECRET_", "env:PROXY_POOL_SECRET_a", "env:PROXY_POOL_SECRET_A=B", "vault:x", planted, "file:" + strings.Repeat("a", refLen),
	} {
		if r, err := ParseRef(bad); err == nil || strings.Contains(err.Error(), planted) {
			t.Errorf("%q: %v, %v", bad, r, err)
		}
	}
}

func TestResolve(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string, mode os.FileMode) {
		t.Helper()
		if err := os.MkdirAll(filepath.Dir(filepath.Join(dir, name)), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), mode); err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(filepath.Join(dir, name), mode); err != nil {
			t.Fatal(err)
		}
	}
	outside := filepath.Join(t.TempDir(), "outside")
	if err := os.WriteFile(outside, []byte("u:"+planted), 0o600); err != nil {
		t.Fatal(err)
	}
	write("acme/one", "u:p:q\r\n", 0o600)
	write("readable", "u:"+planted, 0o640)
	write("empty", "", 0o600)
	write("alone", planted, 0o600)
	write("two", "u:p\n"+planted+":x\n", 0o600)
	write("nameless", ":"+planted, 0o600)
	write("binary", "u:\xff"+planted, 0o600)
	write("long", "u:"+strings.Repeat("p", 256), 0o600)
	write("huge", strings.Repeat(planted, maxFile), 0o600)
	for name, to := range map[string]string{"out": outside, "in": "acme/one", "loop": "loop"} {
		if err := os.Symlink(to, filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	if err := syscall.Mkfifo(filepath.Join(dir, "fifo"), 0o600); err != nil {
		t.Fatal(err)
	}
	env := map[string]string{"PROXY_POOL_SECRET_A": "ann:a:b", "PROXY_POOL_SECRET_BAD": planted, "HOME": planted}
	r := NewResolver(dir, func(name string) (string, bool) { text, ok := env[name]; return text, ok })
	for ref, want := range map[string]Credential{
		"file:acme/one": credential(t, "u", "p:q"), "file:in": credential(t, "u", "p:q"), "env:PROXY_POOL_SECRET_A": credential(t, "ann", "a:b"),
	} {
		if c, err := r.Resolve(ref); err != nil || !c.Equal(want) {
			t.Errorf("%s: %v, %v", ref, c, err)
		}
	}
	for ref, says := range map[string]string{
		"file:none": "no such file", "file:acme": "not a regular file", "file:readable": "mode 0640", "file:empty": "one line",
		"file:alone": "one line", "file:two": "one line", "file:nameless": "empty username", "file:binary": "UTF-8",
		"file:long": "256 bytes", "file:huge": "more than", "file:out": "escapes", "file:loop": "too many", "file:fifo": "not a regular file",
		"env:PROXY_POOL_SECRET_B": "not set", "env:PROXY_POOL_SECRET_BAD": "one line", "env:HOME": "no reference", planted: "no reference",
	} {
		_, err := r.Resolve(ref)
		switch {
		case err == nil || !strings.Contains(err.Error(), says):
			t.Errorf("%s: %v; want an error with %q", ref, err, says)
		case strings.Contains(err.Error(), planted) || strings.Contains(err.Error(), dir):
			t.Errorf("%s: the error has the secret, or where it lies: %v", ref, err)
		}
	}
	if _, err := NewResolver("", os.LookupEnv).Resolve("file:a"); err == nil || !strings.Contains(err.Error(), "pool.secrets_dir") {
		t.Errorf("without a directory: %v", err)
	}
	write("acme/one", "u:new", 0o600)
	if c, err := r.Resolve("file:acme/one"); err != nil || c.Password() != "new" {
		t.Errorf("a changed file: %v", err)
	}
}

func TestKeys(t *testing.T) {
	for _, bad := range []string{"", "00", strings.Repeat("0", 63), strings.Repeat("0", 65), strings.Repeat("g", 64), strings.Repeat("0", 64) + "\n0"} {
		if _, err := ParseKey(bad); err == nil {
			t.Errorf("%q is a key", bad)
		}
	}
	a, err := ParseKey(GenerateKey())
	if err != nil {
		t.Fatal(err)
	}
	b, err := ParseKey(GenerateKey())
	if err != nil {
		t.Fatal(err)
	}
	seen := map[Digest]string{}
	for _, c := range []struct{ u, p string }{{"u", "p"}, {"up", ""}, {"u", "pp"}, {"uu", "p"}, {"u:p", ""}} {
		for name, key := range map[string]Key{"a": a, "b": b} {
			d := key.Digest(credential(t, c.u, c.p))
			if other, ok := seen[d]; ok {
				t.Errorf("%v under %s has the digest of %s", c, name, other)
			}
			seen[d] = fmt.Sprint(c, name)
			if d != key.Digest(credential(t, c.u, c.p)) {
				t.Error("the digest is another one the second time")
			}
		}
	}
	ids := map[string]bool{}
	for _, id := range []string{
		a.ProxyID("u", "http", "h", 80, ""), a.ProxyID("v", "http", "h", 80, ""), a.ProxyID("u", "socks5", "h", 80, ""),
		a.ProxyID("u", "http", "g", 80, ""), a.ProxyID("u", "http", "h", 81, ""), a.ProxyID("u", "http", "h", 80, "n"), b.ProxyID("u", "http", "h", 80, ""),
		a.ProxyID("u", "http", "2001:db8::1", 80, ""),
	} {
		if ids[id] || len(id) != 27 || strings.ToLower(id) != id {
			t.Errorf("the id %s", id)
		}
		ids[id] = true
	}
}

func TestDecide(t *testing.T) {
	one, two, three := Digest{1}, Digest{2}, Digest{3}
	var v Version
	step := func(what string, before *Digest, now Digest, number uint32, want Standing) {
		t.Helper()
		next, got := Decide(v, before, now)
		if got != want || next.Number != number {
			t.Errorf("%s: version %d, standing %d; want %d, %d", what, next.Number, got, number, want)
		}
		v = next
	}
	step("the first host", nil, one, 1, Newer)
	step("the second host", nil, one, 1, Current)
	step("the first host has the new file", &one, two, 2, Newer)
	step("the second host has not", &one, one, 2, Stale)
	step("nor after a restart", nil, one, 2, Stale)
	step("now it has", &one, two, 2, Current)
	step("the first host goes back", &two, one, 3, Newer)
	step("the second host has the version before", &two, two, 3, Stale)
	step("and goes back too", &two, one, 3, Current)
	step("a third secret", &one, three, 4, Newer)
	step("a host that missed one comes with a fourth", &two, Digest{4}, 5, Newer)
}

// TestVersionsSettle: secrets are rolled out over hosts in any order, with hosts
// that look again at any time. The number never falls, and once all hosts have
// the same secret, looking twice more changes nothing.
func TestVersionsSettle(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var v Version
		hosts := make([]Digest, 3)
		before := make([]*Digest, 3)
		look := func(h int) Standing {
			next, standing := Decide(v, before[h], hosts[h])
			if next.Number < v.Number || len(next.Past) > past {
				t.Fatalf("from %+v to %+v", v, next)
			}
			if standing == Newer && next.Digest != hosts[h] || standing == Current && v.Digest != hosts[h] {
				t.Fatalf("standing %d with %+v", standing, next)
			}
			seen := hosts[h]
			v, before[h] = next, &seen
			return standing
		}
		for range rapid.IntRange(1, 12).Draw(t, "rotations") {
			secret := Digest{byte(rapid.IntRange(1, 3).Draw(t, "secret"))}
			for _, h := range rapid.Permutation([]int{0, 1, 2}).Draw(t, "order") {
				hosts[h] = secret
				for range rapid.IntRange(1, 3).Draw(t, "looks") {
					look(rapid.IntRange(0, 2).Draw(t, "who"))
				}
				look(h)
			}
			number := v.Number
			for range 2 {
				for h := range hosts {
					if s := look(h); s == Newer {
						t.Fatalf("all hosts have %v, and host %d makes version %d of it", secret, h, v.Number)
					}
				}
			}
			if v.Number != number {
				t.Fatalf("version %d became %d with nothing new", number, v.Number)
			}
		}
	})
}

func FuzzParseCredential(f *testing.F) {
	f.Add("u:p\n")
	f.Add(":\x00")
	f.Fuzz(func(t *testing.T, text string) {
		c, err := ParseCredential(text)
		if err != nil {
			if !c.IsZero() || len(text) > 12 && strings.Contains(err.Error(), text) {
				t.Fatalf("%q: %v, %v", text, c.Username(), err)
			}
			return
		}
		if c.Username() == "" || len(c.Password()) > MaxPart || c.Username()+":"+c.Password() != strings.TrimRight(text, "\r\n") {
			t.Fatalf("%q became %q and %q", text, c.Username(), c.Password())
		}
	})
}
