//go:build linux

package external_test

import (
	"crypto/sha256"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/dodona-project/dodona/plugins"
	"github.com/dodona-project/dodona/plugins/analysis"
	"github.com/dodona-project/dodona/plugins/lock"
	"github.com/dodona-project/dodona/plugins/probe"
	"github.com/dodona-project/dodona/plugins/strategy"
	controlplanev1 "github.com/dodona-project/dodona/proto/controlplane/v1"
	donav1 "github.com/dodona-project/dodona/proto/dona/v1"
	pluginv1 "github.com/dodona-project/dodona/proto/plugin/v1"
)

// The plugin of the first wire version is frozen: a change of the wire that it does not
// survive breaks plugins that are out there. These digests do not change.
var frozen = map[string]string{
	"main.go":    "22aa730fde75adcd4bf1cbb40642f6af77b4d22efb9be09c583a37cef4a7f449",
	"wire.binpb": "4fe14002fb26620bdb193c866064f12367e9720c79f1bae044421f2155c3a0a3",
}

func TestTheFirstVersionIsFrozen(t *testing.T) {
	for name, want := range frozen {
		text, err := os.ReadFile(filepath.Join("testdata", "first", name))
		must(t, err)
		if got := fmt.Sprintf("%x", sha256.Sum256(text)); got != want {
			t.Errorf("testdata/first/%s has changed: it has the SHA-256 %s, and had %s when the first version was frozen; a new version gets a folder of its own", name, got, want)
		}
	}
}

var buildFirst = sync.OnceValues(func() ([]byte, error) {
	dir, err := os.MkdirTemp("", "dona-first-*")
	if err != nil {
		return nil, err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	built := filepath.Join(dir, "first")
	if out, err := exec.Command("go", "build", "-ldflags=-s -w", "-o", built, "./testdata/first").CombinedOutput(); err != nil {
		return nil, fmt.Errorf("build: %w\n%s", err, out)
	}
	return os.ReadFile(built)
})

// first is the frozen plugin, built once; what it returns puts it somewhere under a
// name.
func first(t *testing.T) func(path, name, deed string) {
	t.Helper()
	program, err := buildFirst()
	must(t, err)
	return func(path, name, deed string) {
		t.Helper()
		must(t, os.WriteFile(path, fmt.Appendf(nil, "%s\nDONA %s 1.0.0 %s\n", program, name, deed), 0o755))
	}
}

// A plugin of the first wire version works on this host, whole: it is described,
// configured, watched, asked in every kind, reloaded and drained.
func TestFirstWireVersionWorks(t *testing.T) {
	t.Parallel()
	dir, put := t.TempDir(), first(t)
	for _, name := range []string{"analysis-first", "probe-first", "strategy-first"} {
		put(place(t, dir, name, "1.0.0"), name, "")
		pin(t, dir, name, "1.0.0")
	}
	h := newPinnedHost(t, dir, nil)
	for _, kind := range []plugins.Kind{plugins.KindAnalysis, plugins.KindProbe, plugins.KindStrategy} {
		name := string(kind) + "-first"
		until(t, name+" to be known", func() bool { return h.Ensure(kind, name) == nil })
		h.await(kind, name)
		if s := h.status(kind, name); s.GetVersion() != "1.0.0" || s.GetSource() != "file" {
			t.Errorf("status %v", s)
		}
	}
	config, err := structpb.NewStruct(map[string]any{"word": "x"})
	must(t, err)
	m, err := analysis.New(h).Evaluate(t.Context(), "analysis-first", &pluginv1.EvaluateRequest{Service: "shop", Query: &donav1.AnalysisQuery{Name: "q", Config: config}})
	if err != nil || m.Value != 0.25 || m.Detail != "asked about shop" || string(m.Evidence) != "evidence" || string(m.State) != "state" || m.RetryAfter != 1500*time.Millisecond {
		t.Errorf("%+v, %v", m, err)
	}
	o, err := probe.New(h).Check(t.Context(), "probe-first", nil, &pluginv1.CheckRequest{
		EndpointAddress: "127.0.0.1:1", Level: controlplanev1.CheckLevel_CHECK_LEVEL_BASIC, Timeout: durationpb.New(time.Minute),
	})
	if err != nil || o.Result != controlplanev1.HealthObservation_RESULT_SUCCESS || o.Detail != "asked about 127.0.0.1:1" {
		t.Errorf("%+v, %v", o, err)
	}
	var p strategy.Result
	until(t, "a plan in time", func() bool { // a busy machine is late for its 250 ms now and then
		p, err = strategy.New(h).CompileWith(t.Context(), "strategy-first", nil, &pluginv1.CompileRequest{
			Scope: "service/shop", Seed: 1, Candidates: []*pluginv1.Candidate{{Id: "a", Weight: 1}},
		})
		return err == nil || !strings.Contains(err.Error(), "in time")
	})
	if err != nil || p.Plan.GetAlgorithm() != donav1.Algorithm_ALGORITHM_ROUND_ROBIN || p.RefreshAfter != 30*time.Second {
		t.Errorf("%+v, %v", p, err)
	}
	must(t, h.Reload(t.Context(), plugins.KindAnalysis, "analysis-first"))
}

// A plugin of a later wire version is refused with both versions, and says which side
// to upgrade; so is one from before the first. Nothing else is disturbed.
func TestOtherWireVersionsAreRefused(t *testing.T) {
	t.Parallel()
	dir, put := t.TempDir(), first(t)
	for version, want := range map[int]string{
		2: "plugin speaks plugin protocol 2, the host 1: upgrade the host",
		9: "plugin speaks plugin protocol 9, the host 1: upgrade the host",
		0: "plugin speaks plugin protocol 0, the host 1: upgrade the plugin",
	} {
		name := fmt.Sprint("analysis-", version)
		path := place(t, dir, name, "1.0.0")
		put(path, name, fmt.Sprint("protocol=", version))
		write(t, dir, lock.Entry{Name: name, Version: "1.0.0", Kind: "analysis", Platforms: map[string]string{platform: fileDigest(t, path)}})
		h := newPinnedHost(t, dir, map[plugins.ID]plugins.PluginConfig{analysisID(name): {Required: true}})
		until(t, name+" to be rejected", func() bool { return h.status(plugins.KindAnalysis, name).GetState() == "rejected" })
		if s := h.status(plugins.KindAnalysis, name); !strings.Contains(s.GetReason(), want) {
			t.Errorf("status %v, want %q", s, want)
		}
		h.await(plugins.KindAnalysis, "analysis-mine")
	}
}
