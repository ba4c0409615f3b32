package lock

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

var sum = "sha256:" + strings.Repeat("0a", 32)

func entry(name, version string) Entry {
	return Entry{Name: name, Version: version, Kind: "probe", Platforms: map[string]string{"linux_amd64": sum, "darwin_arm64": sum}}
}

func TestWhatIsWrittenIsRead(t *testing.T) {
	path := filepath.Join(t.TempDir(), Name)
	l := (&Lock{}).With(entry("b", "1.0.0")).With(entry("null", "1.0.0-rc.1+x")).With(entry("123", "2.0.0")).With(entry("b", "1.1.0"))
	for _, l := range []*Lock{{}, l, l.Without("b")} {
		if err := Write(path, l); err != nil {
			t.Fatal(err)
		}
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		read, err := Parse(path, text)
		if err != nil || !bytes.Equal(read.Format(), l.Format()) || len(read.Entries()) != len(l.Entries()) {
			t.Errorf("%v of\n%s", err, text)
		}
		info, err := os.Stat(path)
		if err != nil || info.Mode().Perm() != 0o600 {
			t.Errorf("mode %v, %v", info.Mode(), err)
		}
	}
	if e, ok := l.Entry("b"); !ok || e.Version != "1.1.0" {
		t.Errorf("b is %+v", e)
	}
	if _, ok := l.Without("b").Entry("b"); ok {
		t.Error("b is still there")
	}
	if names, err := filepath.Glob(filepath.Join(filepath.Dir(path), "*")); err != nil || len(names) != 1 {
		t.Errorf("left are %v, %v", names, err)
	}
}

// What would not be read again is not written, and the file stays as it was.
func TestNothingBadIsWritten(t *testing.T) {
	path := filepath.Join(t.TempDir(), Name)
	if err := Write(path, &Lock{}); err != nil {
		t.Fatal(err)
	}
	if err := Write(path, (&Lock{}).With(entry("A", "1.0.0"))); err == nil || !strings.Contains(err.Error(), "nothing was written") {
		t.Errorf("%v", err)
	}
	if text, err := os.ReadFile(path); err != nil || !bytes.Equal(text, (&Lock{}).Format()) {
		t.Errorf("%q, %v", text, err)
	}
	if err := Write(filepath.Join(t.TempDir(), "none", Name), &Lock{}); err == nil {
		t.Error("written into a folder that is not there")
	}
}

func TestRefusedWithPlaceAndCure(t *testing.T) {
	good := "- name: mine\n  version: 1.0.0\n  kind: probe\n  platforms:\n    linux_amd64: " + sum + "\n"
	if _, err := Parse("l", []byte(good)); err != nil {
		t.Fatal(err)
	}
	change := func(old, new string) string { return strings.Replace(good, old, new, 1) }
	for name, tc := range map[string]struct{ text, want string }{
		"empty":            {"", "l: is empty: a lock without plugins is []"},
		"no YAML":          {"- {", "l: is not YAML: "},
		"two documents":    {good + "---\n[]\n", "l: has more than one document"},
		"no list":          {"name: mine\n", "l:1:1: is not a list of plugins"},
		"no mapping":       {"- mine\n", "l:1:3: a plugin is a mapping with name, version, kind, platforms"},
		"unknown key":      {good + "  digest: x\n", `l:6:3: "digest" is not known here: allowed are name, version, kind, platforms`},
		"twice a key":      {good + "  kind: probe\n", `l:6:3: "kind" is there a second time`},
		"twice a plugin":   {good + strings.Replace(good, "1.0.0", "2.0.0", 1), "l:6:3: plugin mine is there a second time, first in line 1: one version"},
		"name":             {change("mine", "../x"), `l:1:9: name is "../x": allowed is 1 to 63 of a-z, 0-9 and -`},
		"version":          {change("1.0.0", "latest"), `l:2:12: version is "latest": allowed is a semantic version`},
		"kind":             {change("probe", "unknown"), `l:3:9: kind is "unknown": allowed is strategy, analysis, probe`},
		"kind is a list":   {change("probe", "[probe]"), `l:3:9: kind is not a single value`},
		"no kind":          {change("  kind: probe\n", ""), `l:1:3: kind is missing: allowed is strategy, analysis, probe`},
		"no platforms":     {"- name: mine\n  version: 1.0.0\n  kind: probe\n", `l:1:3: platforms is missing`},
		"empty platforms":  {"- name: mine\n  version: 1.0.0\n  kind: probe\n  platforms: {}\n", `l:4:14: platforms is empty`},
		"platform":         {change("linux_amd64", "linux/amd64"), `l:5:5: "linux/amd64" is no platform: allowed is <os>_<arch>`},
		"digest":           {change(sum, "sha256:0A"), `l:5:18: linux_amd64 has the digest "sha256:0A": allowed is sha256: and 64 of`},
		"digest in caps":   {change(sum, strings.ToUpper(sum)), `allowed is sha256: and 64 of 0-9 and a-f`},
		"digest with more": {change(sum, "\""+sum+"\\n\""), `allowed is sha256: and 64 of 0-9 and a-f`},
		"anchor":           {change("probe", "&a probe"), `l:3:9: kind is not a single value`},
		"alias":            {"- &a {name: mine, version: 1.0.0, kind: probe, platforms: {linux_amd64: " + sum + "}}\n- *a\n", `l:1:3: a plugin is a mapping`},
		"tag":              {change("probe", "!!str probe"), `l:3:9: kind is not a single value`},
		"null":             {"~\n", "l:1:1: is not a list"},
		"too long":         {good + "#" + strings.Repeat("x", MaxSize), "allowed are at most 1048576"},
		"too many":         {strings.Repeat("- {}\n", MaxEntries+1), "l:1:1: has 257 plugins: allowed are at most 256"},
	} {
		_, err := Parse("l", []byte(tc.text))
		var bad *Error
		if !errors.As(err, &bad) || !slices.ContainsFunc(bad.Problems, func(p string) bool { return strings.Contains(p, tc.want) }) {
			t.Errorf("%s: %v, want %q", name, err, tc.want)
		}
	}
	// All of it is told at once, up to a bound.
	_, err := Parse("l", []byte(strings.Repeat("- {name: A, version: 1}\n", 30)))
	var bad *Error
	if !errors.As(err, &bad) || len(bad.Problems) != maxProblems+1 || bad.Problems[maxProblems] != fmt.Sprintf("and %d more", 30*4-maxProblems) {
		t.Errorf("%v", err)
	}
}

func FuzzParse(f *testing.F) {
	f.Add((&Lock{}).With(entry("mine", "1.0.0")).Format())
	f.Add([]byte("- &a {name: *a}\n"))
	f.Add([]byte("[[["))
	f.Fuzz(func(t *testing.T, data []byte) {
		l, err := Parse("l", data)
		if err != nil {
			return
		}
		again, err := Parse("l", l.Format())
		if err != nil || !bytes.Equal(again.Format(), l.Format()) {
			t.Errorf("%v: what was read from %q is not read again:\n%s", err, data, l.Format())
		}
	})
}
