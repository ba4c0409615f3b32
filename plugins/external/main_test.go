//go:build linux

package external_test

import (
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"

	"github.com/hashicorp/go-hclog"
	"go.uber.org/goleak"

	"github.com/dodona-project/dodona/plugins"
	"github.com/dodona-project/dodona/plugins/external"
	pluginv1 "github.com/dodona-project/dodona/proto/plugin/v1"
	"github.com/dodona-project/dodona/sdk/plugin"
)

// The test binary is the host's program: started again it is a built-in or the
// watchdog.
func TestMain(m *testing.M) {
	plugins.Dispatch(builtins())
	_ = flag.Set("test.parallel", "4") // they wait more than they compute; the command line wins
	code := m.Run()
	if built != "" {
		_ = os.RemoveAll(filepath.Dir(built))
	}
	if code == 0 {
		if err := goleak.Find(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			code = 1
		}
	}
	os.Exit(code)
}

func builtins() []*plugin.Plugin {
	return []*plugin.Plugin{plugin.Analysis("analysis-mine", "9.9.9", nil), plugin.Analysis("analysis-other", "9.9.9", nil)}
}

var (
	built string
	once  sync.Once
)

// binary is a plugin of the tests, built once.
func binary(t testing.TB) string {
	t.Helper()
	once.Do(func() {
		dir, err := os.MkdirTemp("", "dona-external-*")
		if err != nil {
			t.Fatal(err)
		}
		built = filepath.Join(dir, "plugin")
		cmd := exec.Command("go", "build", "-ldflags=-s -w", "-o", built, "./testdata/plugin")
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("build: %v\n%s", err, out)
		}
	})
	return built
}

const platform = runtime.GOOS + "_" + runtime.GOARCH

// place is where the file of a plugin belongs; its folder is made.
func place(t testing.TB, dir, name, version string) string {
	t.Helper()
	path := filepath.Join(dir, name, version, platform, name)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	return path
}

// install puts the test's plugin into a directory.
func install(t testing.TB, dir, name, version string) string {
	t.Helper()
	path := place(t, dir, name, version)
	stamp(t, path, name, version, "")
	return path
}

// stamp writes the test's plugin to path, as one that says so of itself.
func stamp(t testing.TB, path, name, version, deed string) {
	t.Helper()
	program, err := os.ReadFile(binary(t))
	if err != nil {
		t.Fatal(err)
	}
	program = fmt.Appendf(program, "\nDONA %s %s %s\n", name, version, deed)
	// In one step: a host may be looking.
	if err := os.WriteFile(path+".new", program, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(path+".new", path); err != nil {
		t.Fatal(err)
	}
}

// script puts a script there.
func script(t testing.TB, dir, name, version, text string) string {
	t.Helper()
	path := place(t, dir, name, version)
	if err := os.WriteFile(path, []byte(text), 0o755); err != nil {
		t.Fatal(err)
	}
	return path
}

// says is a script that describes itself.
func says(name string, kind pluginv1.Kind) string {
	return fmt.Sprintf("#!/bin/sh\necho '{\"name\":%q,\"version\":\"1.0.0\",\"kind\":%q}'\n", name, kind)
}

func open(t testing.TB, dir string, named ...plugins.ID) *external.Dir {
	t.Helper()
	d, err := external.Open(external.Options{Dir: dir, Named: named, Unpinned: true, Logger: hclog.New(&hclog.LoggerOptions{Level: hclog.Info, Output: testWriter{t}})})
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// list is what a host lists that runs files to ask them.
func list(t testing.TB, d *external.Dir) []plugins.ID {
	return d.List(t.Context(), plugins.RunAlone)
}

type testWriter struct{ t testing.TB }

func (w testWriter) Write(p []byte) (int, error) {
	w.t.Log(strings.TrimRight(string(p), "\n"))
	return len(p), nil
}

func analysisID(name string) plugins.ID { return plugins.ID{Kind: plugins.KindAnalysis, Name: name} }
