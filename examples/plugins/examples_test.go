// Package plugins_test has the examples of plugins judged by the conformance suite, in
// the configurations that their authors mean them for.
package plugins_test

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/dodona-project/dodona/plugins/plugintest"
)

// samples writes a file of latencies of two variants, from the next hour, so that
// they are of any step.
func samples(t *testing.T) string {
	t.Helper()
	var text bytes.Buffer
	for i := range 500 {
		_, _ = fmt.Fprintf(&text, "%d,v2,0.%03d\n%d,v1,0.1\n", time.Now().Add(time.Hour).Unix(), i, time.Now().Unix())
	}
	name := filepath.Join(t.TempDir(), "latencies.csv")
	if err := os.WriteFile(name, text.Bytes(), 0o644); err != nil {
		t.Fatal(err)
	}
	return name
}

// Every Go example is at most 80 lines and keeps the promises of a plugin.
func TestGoExamples(t *testing.T) {
	quantile := `{"source":%q,"quantile":0.99,"min_samples":20}`
	for name, options := range map[string][]plugintest.Option{
		"latency-quantile": {plugintest.Config(fmt.Sprintf(quantile, samples(t))), plugintest.NoData(fmt.Sprintf(quantile, "/nonexistent.csv"))},
		"dns-answers":      {plugintest.Config(`{"expect":["127.0.0.1"]}`)},
		"local-first":      {plugintest.Config(`{"region":"eu","full":0.4}`)},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			text, err := os.ReadFile(filepath.Join(name, "main.go"))
			if n := bytes.Count(text, []byte("\n")); err != nil || n >= 80 {
				t.Errorf("it has %d lines: fewer than 80 are an example: %v", n, err)
			}
			plugintest.Run(t, plugintest.Command(plugintest.Build(t, name)).With(options...).With(calls...))
		})
	}
}

const nodeProbe = "node-http"

// TestNodeExample: a plugin without the SDK, in another language, keeps the same
// promises.
func TestNodeExample(t *testing.T) {
	for _, name := range []string{"node", "npm"} {
		if _, err := exec.LookPath(name); err != nil {
			t.Skipf("%s is not on the PATH", name)
		}
	}
	if _, err := os.Stat(filepath.Join(nodeProbe, "node_modules/@grpc/grpc-js")); err != nil {
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		out, err := exec.CommandContext(ctx, "npm", "install", "--no-fund", "--no-audit", "--no-package-lock", "--loglevel=error", "--prefix", nodeProbe).CombinedOutput()
		if err != nil {
			t.Skipf("npm install: %v: %.200s", err, out)
		}
	}
	t.Parallel()
	plugintest.Run(t, plugintest.Command(filepath.Join(nodeProbe, "main.js")).With(plugintest.Config(`{"path":"/health"}`)).With(calls...))
}
