package main

import (
	"bytes"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/reflect/protoreflect"
)

const root = "../../../.."

func TestPageIsFresh(t *testing.T) {
	for _, p := range pages {
		want, err := reference(root, p)
		if err != nil {
			t.Fatal(err)
		}
		have, err := os.ReadFile(filepath.Join(root, p.path))
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(have, want) {
			t.Errorf("%s is older than what it is made from: run make docs", p.path)
		}
	}
}

// TestEveryCallSaysItsRules: each call's comment names codes that exist, entries
// that the audit log takes, and UNIMPLEMENTED when, and only when, the host does
// not serve it.
func TestEveryCallSaysItsRules(t *testing.T) {
	served := regexp.MustCompile(`(?m)^func \(s \*(\w+)\) (\w+)\(`).FindAllStringSubmatch(sources(t, "host/api/*.go"), -1)
	kinds := sources(t, "host/audit/kinds.go")
	code := regexp.MustCompile(`(?m)^- ([A-Z_]+): `)
	entry := regexp.MustCompile("`([a-z]+\\.[a-z]+)`")
	calls := 0
	for _, f := range contract() {
		all, err := readComments(sources(t, "proto/"+f.Path()))
		if err != nil {
			t.Fatal(err)
		}
		for i := range f.Services().Len() {
			methods := f.Services().Get(i).Methods()
			for j := range methods.Len() {
				m := methods.Get(j)
				calls++
				text := all[string(m.FullName())]
				for _, label := range labels {
					if strings.Count("\n"+text, "\n"+label+":") != 1 {
						t.Errorf("%s: its comment does not say once %q", m.FullName(), label+":")
					}
				}
				for _, found := range code.FindAllStringSubmatch(text, -1) {
					var c codes.Code
					if c.UnmarshalJSON([]byte(`"`+found[1]+`"`)) != nil {
						t.Errorf("%s: its comment names %s, which is no code", m.FullName(), found[1])
					}
				}
				for _, found := range entry.FindAllStringSubmatch(text, -1) {
					if !strings.Contains(kinds, `"`+found[1]+`"`) {
						t.Errorf("%s: its comment names the entry %s, which the audit log does not take", m.FullName(), found[1])
					}
				}
				if isServed(served, m) == strings.Contains(text, "- UNIMPLEMENTED: ") {
					t.Errorf("%s: its comment and host/api do not agree whether it is served", m.FullName())
				}
			}
		}
	}
	if calls < 45 {
		t.Errorf("%d calls were looked at", calls)
	}
}

// contract is what all pages are about.
func contract() (files []protoreflect.FileDescriptor) {
	for _, p := range pages {
		files = append(files, p.files...)
	}
	return files
}

func isServed(served [][]string, m protoreflect.MethodDescriptor) bool {
	for _, s := range served {
		if s[1] == string(m.Parent().Name()) && s[2] == string(m.Name()) {
			return true
		}
	}
	return false
}

// sources are the files that match a pattern below the root, one after the other.
func sources(t *testing.T, pattern string) string {
	t.Helper()
	names, err := filepath.Glob(filepath.Join(root, pattern))
	if err != nil || len(names) == 0 {
		t.Fatalf("%s: %v, %v", pattern, names, err)
	}
	var all strings.Builder
	for _, name := range names {
		text, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		all.Write(text)
	}
	return all.String()
}

func TestReadComments(t *testing.T) {
	all, err := readComments(`syntax = "proto3";
package a.v1;

// A heading.

// A service.
service S {
  // First line,
  //   which goes on.
  rpc Do(stream In) returns (Out); // said beside
}
// --------- heading

message In {
  map<string, uint32> m = 1; // a map
  oneof which {
    a.v1.Out o = 2;
  }
  enum E {
    E_NONE = 0; // nothing
  }
}
message Out {} // empty
`)
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]string{
		"a.v1.S": "A service.", "a.v1.S.Do": "First line,\n  which goes on.\nsaid beside", "a.v1.In": "",
		"a.v1.In.m": "a map", "a.v1.In.which.o": "", "a.v1.In.E.E_NONE": "nothing", "a.v1.Out": "empty",
	} {
		if got, known := all[name]; !known || got != want {
			t.Errorf("%s: %q, %v, want %q", name, got, known, want)
		}
	}
	for _, bad := range []string{"}", "message A {\n  what is this\n}", "message A { string b = 1; }"} {
		if all, err := readComments(bad); err == nil {
			t.Errorf("%q is read as %v", bad, all)
		}
	}
}
