package attest

import (
	"bytes"
	"crypto/ed25519"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/fstest"
)

func TestMemory(t *testing.T) {
	path := filepath.Join(t.TempDir(), "below", "seen.json")
	open := func() *Memory {
		t.Helper()
		m, err := OpenMemory(path)
		if err != nil {
			t.Fatal(err)
		}
		return m
	}
	m := open()
	if m.Seen(domain, service) != nil || m.Key(domain) != nil {
		t.Error("an empty memory remembers")
	}
	stale := open()
	r := verify(t, Options{}, sign(honest(10)))
	if err := m.Remember(r, public); err != nil {
		t.Fatal(err)
	}
	got := open()
	if seen := got.Seen(domain, service); seen == nil || *seen != r.Now {
		t.Errorf("remembered is %+v, want %+v", seen, r.Now)
	}
	if !got.Key(domain).Equal(public) || got.Key("other.org") != nil || got.Seen(domain, "web") != nil || got.Seen("other.org", service) != nil {
		t.Error("the key, or what belongs to others")
	}
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("%v, %v", info, err)
	}
	// Another process that read before and writes now does not bring back the past.
	if err := stale.Remember(verify(t, Options{}, sign(honest(4))), public); err != nil {
		t.Fatal(err)
	}
	if seen := open().Seen(domain, service); seen.Seq != 10 {
		t.Errorf("the memory fell to %d", seen.Seq)
	}
	if left, err := filepath.Glob(filepath.Join(filepath.Dir(path), ".*")); err != nil || len(left) != 0 {
		t.Errorf("left behind is %v, %v", left, err)
	}
	good, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{
		"empty": "", "not JSON": "{", "another format": `{"format":2}`, "unknown member": `{"format":1,"more":1}`,
		"no head":    strings.Replace(string(good), `"seq": 10`, `"seq": 0`, 1),
		"no hash":    strings.Replace(string(good), `"hash": "`, `"hash": "x`, 1),
		"no key":     strings.Replace(string(good), "BEGIN PUBLIC", "BEGIN PRIVATE", 1),
		"wrong type": `[]`,
	} {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := OpenMemory(path); err == nil || !strings.Contains(err.Error(), path) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if err := os.WriteFile(path, good, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(path, 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := OpenMemory(path); err == nil || !strings.Contains(err.Error(), "chmod 600") {
		t.Errorf("a memory that others can read: %v", err)
	}
	if _, err := OpenMemory(filepath.Dir(path)); err == nil {
		t.Error("a folder is taken for a memory")
	}
}

func TestParseKey(t *testing.T) {
	good := EncodeKey(public)
	if key, err := ParseKey(good); err != nil || !key.Equal(public) {
		t.Error(key, err)
	}
	for name, text := range map[string][]byte{
		"empty": nil, "not PEM": []byte("key"), "two keys": append(bytes.Clone(good), good...),
		"private":    bytes.ReplaceAll(good, []byte("PUBLIC"), []byte("PRIVATE")),
		"no SPKI":    []byte("-----BEGIN PUBLIC KEY-----\nAAAA\n-----END PUBLIC KEY-----\n"),
		"no ed25519": []byte("-----BEGIN PUBLIC KEY-----\nMFkwEwYHKoZIzj0CAQYIKoZIzj0DAQcDQgAEEVs/o5+uQbTjL3chynL4wXgUg2R9\nq9UU8I5mEovUf86QZ7kOBIjJwqnzD1omageEHWwHdBO6B+dFabmdT9POxg==\n-----END PUBLIC KEY-----\n"),
	} {
		if _, err := ParseKey(text); err == nil {
			t.Errorf("%s passes", name)
		}
	}
	if len(public) != ed25519.PublicKeySize {
		t.Error(len(public))
	}
}

func TestSegments(t *testing.T) {
	all, hashes := lines(service, 9)
	file := func(entries ...[]byte) *fstest.MapFile {
		return &fstest.MapFile{Data: append(bytes.Join(entries, []byte("\n")), '\n')}
	}
	good := func() fstest.MapFS {
		return fstest.MapFS{"checkout/1-4.ndjson": file(all[:4]...), "checkout/5-9.ndjson": file(all[4:]...), "checkout/notes.txt": file([]byte("x"))}
	}
	got, err := VerifySegments(good(), domain)
	if err != nil {
		t.Fatal(err)
	}
	want := Segments{Chain: service, Files: 2, FirstSeq: 1, LastSeq: 9, LastHash: hex.EncodeToString(hashes[9][:]), Genesis: true}
	if len(got) != 1 || got[0] != want {
		t.Errorf("%+v, want %+v", got, want)
	}
	one := fstest.MapFS{"5-9.ndjson": file(all[4:]...)} // the folder of one chain, the first part not at hand
	want.Files, want.FirstSeq, want.Genesis = 1, 5, false
	if got, err := VerifySegments(one, domain); err != nil || len(got) != 1 || got[0] != want {
		t.Errorf("%+v, %v, want %+v", got, err, want)
	}
	for _, tc := range []struct {
		name string
		do   func(fs fstest.MapFS)
		seq  uint64
		want string
	}{
		{"none", func(fs fstest.MapFS) { clear(fs) }, 0, "there is no segment file"},
		{"a file is missing", func(fs fstest.MapFS) {
			fs["checkout/6-9.ndjson"] = file(all[5:]...)
			delete(fs, "checkout/5-9.ndjson")
		}, 5, "missing"},
		{"a file is there twice", func(fs fstest.MapFS) { fs["checkout/4-9.ndjson"] = file(all[3:]...) }, 5, "there twice"},
		{"a byte changed", func(fs fstest.MapFS) {
			fs["checkout/1-4.ndjson"].Data = bytes.Replace(fs["checkout/1-4.ndjson"].Data, []byte("f1"), []byte("f2"), 1)
		}, 2, "does not continue"},
		{"a byte changed at a file's end", func(fs fstest.MapFS) {
			fs["checkout/1-4.ndjson"].Data = bytes.Replace(fs["checkout/1-4.ndjson"].Data, []byte("gdpr"), []byte("none"), 1)
		}, 5, "does not continue"},
		{"an entry is missing", func(fs fstest.MapFS) { fs["checkout/1-4.ndjson"] = file(all[:3]...) }, 4, "the file's name says"},
		{"an entry too many", func(fs fstest.MapFS) { fs["checkout/1-4.ndjson"] = file(all[:5]...) }, 4, "another follows"},
		{"the last line is cut", func(fs fstest.MapFS) {
			d := fs["checkout/5-9.ndjson"].Data
			fs["checkout/5-9.ndjson"].Data = d[:len(d)-1]
		}, 0, "no line break"},
		{"empty", func(fs fstest.MapFS) { fs["checkout/5-9.ndjson"].Data = nil }, 5, "missing"},
		{"another name", func(fs fstest.MapFS) { fs["checkout/05-9.ndjson"] = file(all[:1]...) }, 0, "its name is not"},
		{"another folder", func(fs fstest.MapFS) { fs["web/1-4.ndjson"] = fs["checkout/1-4.ndjson"] }, 1, "its folder is"},
		{"a huge line", func(fs fstest.MapFS) { fs["checkout/5-9.ndjson"].Data = bytes.Repeat([]byte("x"), MaxLine+2) }, 0, "more than 65536 bytes"},
	} {
		fs := good()
		tc.do(fs)
		_, err := VerifySegments(fs, domain)
		var f *Fault
		if !errors.As(err, &f) || f.Seq != tc.seq || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%s: %v, want entry %d and %q", tc.name, err, tc.seq, tc.want)
		}
	}
	if _, err := VerifySegments(good(), "other.org"); err == nil || !strings.Contains(err.Error(), "entry 1 does not continue") {
		t.Errorf("another trust domain: %v", err)
	}
}

// TestMemoryOfMany: who verifies at the same time takes nothing from what others have seen.
func TestMemoryOfMany(t *testing.T) {
	path := filepath.Join(t.TempDir(), "seen.json")
	var all sync.WaitGroup
	for n := range 16 {
		all.Go(func() {
			for k := range 8 {
				m, err := OpenMemory(path)
				if err == nil {
					err = m.Remember(&Result{TrustDomain: domain, Service: fmt.Sprintf("s%d-%d", n, k), Now: Seen{Head: Head{1, strings.Repeat("0", 64)}}}, public)
				}
				if err != nil {
					t.Error(err)
				}
			}
		})
	}
	all.Wait()
	m, err := OpenMemory(path)
	if err != nil {
		t.Fatal(err)
	}
	for n := range 16 {
		for k := range 8 {
			if chain := fmt.Sprintf("s%d-%d", n, k); m.Seen(domain, chain) == nil {
				t.Errorf("the head of %s is forgotten", chain)
			}
		}
	}
}
