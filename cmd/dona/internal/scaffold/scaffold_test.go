package scaffold

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

const checkout = "../../../.."

// A new plugin of each kind builds and passes its own tests as it is, in a folder
// that is not the project's, with nothing to look up. Without faults it is only
// built and looked at; the host's tests run one.
func TestNewPluginsPass(t *testing.T) {
	for _, kind := range Kinds {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			dir := filepath.Join(t.TempDir(), "a folder", "my-"+kind)
			if err := os.Mkdir(filepath.Dir(dir), 0o755); err != nil {
				t.Fatal(err)
			}
			names, err := Write(dir, Options{Kind: kind, Name: "my-" + kind, Checkout: checkout})
			if err != nil || len(names) != 6 {
				t.Fatalf("%v, %v", names, err)
			}
			for _, command := range []string{"gofmt -l .", "make build", "go vet ./...", whole} {
				words := strings.Fields(command)
				if words[0] == "bin/plugin" {
					words[0] = filepath.Join(dir, "bin", "my-"+kind)
				}
				cmd := exec.Command(words[0], words[1:]...)
				cmd.Dir = dir
				cmd.Env = append(os.Environ(), "GOFLAGS=-mod=readonly", "CGO_ENABLED=0")
				out, err := cmd.CombinedOutput()
				if err != nil || command == "gofmt -l ." && len(out) > 0 {
					t.Fatalf("%s: %v\n%s", command, err, out)
				}
			}
			program, err := os.ReadFile(filepath.Join(dir, "main.go"))
			if err != nil {
				t.Fatal(err)
			}
			if n := strings.Count(string(program), "\n"); kind == "analysis" && n > 25 {
				t.Errorf("a whole analysis has %d lines: at most 25", n)
			}
		})
	}
}

func TestNothingIsOverwrittenOrLeft(t *testing.T) {
	dir := t.TempDir()
	if _, err := Write(dir, Options{Kind: "probe", Name: "x", Checkout: checkout}); !errors.Is(err, os.ErrExist) {
		t.Errorf("a folder that is there: %v", err)
	}
	for name, o := range map[string]Options{
		"no such kind":       {Kind: "filter", Name: "x", Checkout: checkout},
		"not a checkout":     {Kind: "probe", Name: "x", Checkout: dir},
		"a checkout of else": {Kind: "probe", Name: "x", Checkout: "../../../../examples/bench"},
	} {
		to := filepath.Join(dir, "x")
		if _, err := Write(to, o); err == nil {
			t.Errorf("%s: no error", name)
		}
		if _, err := os.Stat(to); !os.IsNotExist(err) {
			t.Errorf("%s left %s: %v", name, to, err)
		}
	}
}
