//go:build linux

package external_test

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/dodona-project/dodona/plugins"
	"github.com/dodona-project/dodona/plugins/analysis"
	"github.com/dodona-project/dodona/plugins/probe"
	controlplanev1 "github.com/dodona-project/dodona/proto/controlplane/v1"
	donav1 "github.com/dodona-project/dodona/proto/dona/v1"
	pluginv1 "github.com/dodona-project/dodona/proto/plugin/v1"
	"google.golang.org/protobuf/types/known/durationpb"
)

// host is a plugin host over a directory.
type host struct {
	*plugins.Host
	t      *testing.T
	dir    string
	mu     sync.Mutex
	events []plugins.Event
}

func newHost(t *testing.T, dir string, settings map[plugins.ID]plugins.PluginConfig) *host {
	t.Helper()
	var named []plugins.ID
	for id, c := range settings {
		if !strings.HasSuffix(id.Name, "-mine") || c.OverrideBuiltin {
			named = append(named, id)
		}
	}
	return newHostOver(t, dir, settings, open(t, dir, named...))
}

func newHostOver(t *testing.T, dir string, settings map[plugins.ID]plugins.PluginConfig, catalog plugins.Catalog) *host {
	t.Helper()
	run, err := os.MkdirTemp("", "x")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(run) })
	h := &host{t: t, dir: dir}
	h.Host, err = plugins.New(plugins.Options{
		Logger: hclog.New(&hclog.LoggerOptions{Level: hclog.Info, Output: testWriter{t}}),
		RunDir: filepath.Join(run, "run"), Builtins: builtins(), Plugins: settings, Catalog: catalog,
		// Much more than a start takes, for machines that are busy.
		Limits:  plugins.Limits{Handshake: time.Minute, Describe: time.Minute, Configure: time.Minute, FirstHealth: time.Minute},
		Backoff: plugins.Backoff{Min: 10 * time.Millisecond, Max: 50 * time.Millisecond},
		OnEvent: func(ev plugins.Event) { h.mu.Lock(); defer h.mu.Unlock(); h.events = append(h.events, ev) },
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := h.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { h.Stop(context.Background()) })
	return h
}

func (h *host) status(kind plugins.Kind, name string) *donav1.PluginStatus {
	h.t.Helper()
	s, err := h.Status(kind, name)
	if err != nil {
		h.t.Fatal(err)
	}
	return s
}

// version is what an analysis plugin says; its path is where it is from.
func (h *host) version(name string) string {
	h.t.Helper()
	m, err := analysis.New(h).Evaluate(h.t.Context(), name, &pluginv1.EvaluateRequest{Service: "shop", Query: &donav1.AnalysisQuery{Name: "q"}})
	if err != nil {
		h.t.Fatal(err)
	}
	return m.Detail
}

func (h *host) await(kind plugins.Kind, name string) {
	h.t.Helper()
	ctx, cancel := context.WithTimeout(h.t.Context(), time.Minute)
	defer cancel()
	if err := h.Await(ctx, kind, name); err != nil {
		h.t.Fatal(err)
	}
}

func (h *host) listed() (ids []string) {
	for _, s := range h.List() {
		ids = append(ids, s.GetKind()+"/"+s.GetName())
	}
	return ids
}

func (h *host) event(kind plugins.EventKind, name string) (found plugins.Event) {
	h.t.Helper()
	until(h.t, "event "+string(kind)+" of "+name, func() bool {
		h.mu.Lock()
		defer h.mu.Unlock()
		i := slices.IndexFunc(h.events, func(ev plugins.Event) bool { return ev.Kind == kind && ev.Plugin.Name == name })
		if i >= 0 {
			found = h.events[i]
		}
		return i >= 0
	})
	return found
}

// A plugin that is put there while the host runs is found by whoever asks for
// it, used, upgraded, and forgotten when nobody ever used it.
func TestPluginsComeWhileTheHostRuns(t *testing.T) {
	h := newHost(t, t.TempDir(), nil)
	if err := h.Ensure(plugins.KindAnalysis, "analysis-new"); !errors.Is(err, plugins.ErrUnknown) {
		t.Fatalf("before it is there: %v", err)
	}
	install(t, h.dir, "analysis-new", "1.0.0")
	install(t, h.dir, "probe-new", "1.0.0")
	install(t, h.dir, "strategy-new", "1.0.0")
	changed, cancel := h.Watch()
	defer cancel()
	until(t, "Ensure to know it", func() bool { return h.Ensure(plugins.KindAnalysis, "analysis-new") == nil })
	select {
	case <-changed:
	default:
		t.Error("nobody was told that there are new plugins")
	}
	h.await(plugins.KindAnalysis, "analysis-new")
	if v := h.version("analysis-new"); v != "1.0.0" {
		t.Errorf("it is %s", v)
	}
	want := []string{"analysis/analysis-mine", "analysis/analysis-new", "analysis/analysis-other", "probe/probe-new", "strategy/strategy-new"}
	until(t, "all to be listed", func() bool { return slices.Equal(h.listed(), want) })
	if s := h.status(plugins.KindAnalysis, "analysis-new"); s.GetSource() != "file" || s.GetVersion() != "1.0.0" || !strings.HasPrefix(s.GetDigest(), "sha256:") {
		t.Errorf("status %v", s)
	}
	h.await(plugins.KindProbe, "probe-new")
	o, err := probe.New(h).Check(t.Context(), "probe-new", nil, &pluginv1.CheckRequest{
		EndpointAddress: "127.0.0.1:1", Level: controlplanev1.CheckLevel_CHECK_LEVEL_BASIC, Timeout: durationpb.New(time.Minute),
	})
	if err != nil || o.Result != controlplanev1.HealthObservation_RESULT_SUCCESS || o.Detail != "1.0.0" || o.Digest == "" {
		t.Errorf("%+v, %v", o, err)
	}
	// Nobody used the strategy; the two others serve on without their files.
	for _, name := range []string{"strategy-new", "probe-new"} {
		if err := os.RemoveAll(filepath.Join(h.dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	until(t, "the strategy to be forgotten", func() bool { return !slices.Contains(h.listed(), "strategy/strategy-new") })
	if !h.Ready(plugins.KindProbe, "probe-new") {
		t.Error("the probe in use is away")
	}
}

func TestUpgradeAndDowngrade(t *testing.T) {
	h := newHost(t, t.TempDir(), nil)
	install(t, h.dir, "analysis-up", "1.0.0")
	until(t, "Ensure to know it", func() bool { return h.Ensure(plugins.KindAnalysis, "analysis-up") == nil })
	h.await(plugins.KindAnalysis, "analysis-up")
	install(t, h.dir, "analysis-up", "1.1.0")
	if err := h.Reload(t.Context(), plugins.KindAnalysis, "analysis-up"); err != nil || h.version("analysis-up") != "1.1.0" {
		t.Fatalf("after the upgrade: %v", err)
	}
	digest := h.status(plugins.KindAnalysis, "analysis-up").GetDigest()
	for name, put := range map[string]func(path string) error{
		"exec format error":             func(path string) error { return os.WriteFile(path, []byte("text\n"), 0o755) },
		"is not executable":             func(path string) error { return os.WriteFile(path, []byte("text\n"), 0o644) },
		"is a directory":                func(path string) error { return os.Mkdir(path, 0o755) },
		"no such file":                  func(string) error { return nil },
		`its interpreter "/nonexistent`: func(path string) error { return os.WriteFile(path, []byte("#!/nonexistent\n"), 0o755) },
	} {
		path := place(t, h.dir, "analysis-up", "2.0.0")
		if err := put(path); err != nil {
			t.Fatal(err)
		}
		err := h.Reload(t.Context(), plugins.KindAnalysis, "analysis-up")
		if err == nil || !strings.Contains(err.Error(), path) || !strings.Contains(err.Error(), name) || !strings.Contains(err.Error(), "generation 2 stays") {
			t.Errorf("reload: %v, want %q", err, name)
		}
		s := h.status(plugins.KindAnalysis, "analysis-up")
		if s.GetState() != "ready" || !strings.Contains(s.GetReason(), name) || s.GetDigest() != digest || h.version("analysis-up") != "1.1.0" {
			t.Errorf("then it is %v", s)
		}
		if err := os.RemoveAll(path); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.RemoveAll(filepath.Join(h.dir, "analysis-up", "2.0.0")); err != nil {
		t.Fatal(err)
	}
	if err := os.RemoveAll(filepath.Join(h.dir, "analysis-up", "1.1.0")); err != nil {
		t.Fatal(err)
	}
	if err := h.Reload(t.Context(), plugins.KindAnalysis, "analysis-up"); err != nil || h.version("analysis-up") != "1.0.0" {
		t.Errorf("after the downgrade: %v", err)
	}
	until(t, "nothing to be wrong any more", func() bool {
		s := h.status(plugins.KindAnalysis, "analysis-up")
		return s.GetReason() == "" && s.GetExits() == 0
	})
}

// Files that are no plugins: rejected with path and reason, visible whether or
// not they say what they are, and tried again by a reload once they are cured.
func TestFilesThatAreNoPlugins(t *testing.T) {
	elf, err := os.ReadFile(binary(t))
	if err != nil {
		t.Fatal(err)
	}
	foreign := bytes.Clone(elf)
	foreign[18], foreign[19] = 0xf7, 0x00 // e_machine: BPF, which no processor is
	write := func(text []byte, mode os.FileMode) func(string) error {
		return func(path string) error { return os.WriteFile(path, text, mode) }
	}
	for _, tc := range []struct {
		name string
		put  func(path string) error
		want string
	}{
		{"missing", func(string) error { return nil }, "no such file or directory"},
		{"not-executable", write(elf, 0o644), "is not executable: run chmod +x on it"},
		{"wrong-machine", write(foreign, 0o755), "exec format error: it is neither a program for"},
		{"no-first-line", write([]byte("echo '{}'\n"), 0o755), "exec format error"},
		{"no-interpreter", write([]byte("#!/nonexistent/python3\n"), 0o755), `its interpreter "/nonexistent/python3" is not there`},
		{"directory", func(path string) error { return os.Mkdir(path, 0o755) }, "is a directory"},
		{"open-to-all", func(path string) error { return errors.Join(write(elf, 0o755)(path), os.Chmod(path, 0o777)) }, "has mode 0777"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			name := "analysis-" + tc.name
			id := analysisID(name)
			for _, named := range []bool{false, true} {
				dir := t.TempDir()
				path := place(t, dir, name, "1.0.0")
				if err := tc.put(path); err != nil {
					t.Fatal(err)
				}
				var settings map[plugins.ID]plugins.PluginConfig
				kind := plugins.KindUnknown
				if named {
					settings, kind = map[plugins.ID]plugins.PluginConfig{id: {Required: true}}, plugins.KindAnalysis
				}
				h := newHost(t, dir, settings)
				until(t, "it to be rejected", func() bool {
					s, err := h.Status(kind, name) // not known before it had its turn to be asked
					return err == nil && s.GetState() == "rejected"
				})
				s := h.status(kind, name)
				if !strings.Contains(s.GetReason(), path) || !strings.Contains(s.GetReason(), tc.want) || s.GetSource() != "file" || s.GetPid() != 0 {
					t.Errorf("status %v, want %q", s, tc.want)
				}
				if named {
					if m := h.Missing(); len(m) != 1 || m[0] != id {
						t.Errorf("missing are %v", m)
					}
					if ev := h.event(plugins.EventReject, name); !strings.Contains(ev.Reason, path) {
						t.Errorf("event %+v", ev)
					}
				}
				if err := h.Reload(t.Context(), kind, name); err == nil || !strings.Contains(err.Error(), tc.want) {
					t.Errorf("reload of it as it is: %v", err)
				}
				if err := os.RemoveAll(path); err != nil {
					t.Fatal(err)
				}
				stamp(t, path, name, "1.0.0", "")
				until(t, "it to be there when it is cured", func() bool { return h.Reload(t.Context(), plugins.KindAnalysis, name) == nil })
				h.await(plugins.KindAnalysis, name)
				if ids := h.listed(); slices.Contains(ids, "unknown/"+name) || !slices.Contains(ids, "analysis/"+name) {
					t.Errorf("listed are %v", ids)
				}
				if v := h.version(name); v != "1.0.0" || len(h.Missing()) != 0 {
					t.Errorf("it is %s, missing are %v", v, h.Missing())
				}
			}
		})
	}
}

// A file does not take the place of a built-in unless an operator says so.
func TestBuiltinsAreNotShadowed(t *testing.T) {
	dir := t.TempDir()
	path := install(t, dir, "analysis-mine", "1.0.0")
	h := newHost(t, dir, nil)
	until(t, "the file to be noticed", func() bool {
		h.List()
		return h.status(plugins.KindAnalysis, "analysis-mine").GetReason() != "not used yet"
	})
	s := h.status(plugins.KindAnalysis, "analysis-mine")
	if s.GetSource() != "builtin" || !strings.Contains(s.GetReason(), path) || !strings.Contains(s.GetReason(), "plugins.analysis.analysis-mine.override_builtin: true") {
		t.Errorf("status %v", s)
	}
	h.await(plugins.KindAnalysis, "analysis-mine")
	if s := h.status(plugins.KindAnalysis, "analysis-mine"); s.GetSource() != "builtin" || s.GetVersion() != "9.9.9" || !strings.Contains(s.GetReason(), path) {
		t.Errorf("in use: %v", s)
	}
	if err := os.RemoveAll(filepath.Join(dir, "analysis-mine")); err != nil {
		t.Fatal(err)
	}
	until(t, "the note to go", func() bool { h.List(); return h.status(plugins.KindAnalysis, "analysis-mine").GetReason() == "" })
}

func TestOverrideOfABuiltin(t *testing.T) {
	dir := t.TempDir()
	h := newHost(t, dir, map[plugins.ID]plugins.PluginConfig{analysisID("analysis-mine"): {OverrideBuiltin: true}})
	// Without a file there is nothing to run; the built-in does not step in.
	if s := h.status(plugins.KindAnalysis, "analysis-mine"); s.GetState() != "rejected" || !strings.Contains(s.GetReason(), filepath.Join(dir, "analysis-mine")) {
		t.Errorf("without a file: %v", s)
	}
	path := install(t, dir, "analysis-mine", "1.0.0")
	if err := h.Reload(t.Context(), plugins.KindAnalysis, "analysis-mine"); err != nil {
		t.Fatal(err)
	}
	if s := h.status(plugins.KindAnalysis, "analysis-mine"); s.GetSource() != "file" || h.version("analysis-mine") != "1.0.0" {
		t.Errorf("status %v", s)
	}
	if ev := h.event(plugins.EventStart, "analysis-mine"); ev.Reason != path+" runs in place of the built-in: override_builtin is true" || ev.Digest == "" {
		t.Errorf("event %+v", ev)
	}
}

func TestOverrideIsChecked(t *testing.T) {
	for name, o := range map[string]plugins.Options{
		"there is no built-in of this name": {Catalog: open(t, t.TempDir(), analysisID("analysis-x")), Plugins: map[plugins.ID]plugins.PluginConfig{analysisID("analysis-x"): {OverrideBuiltin: true}}},
		"set plugins.dir":                   {Plugins: map[plugins.ID]plugins.PluginConfig{analysisID("analysis-mine"): {OverrideBuiltin: true}}},
	} {
		o.Builtins, o.RunDir = builtins(), "/tmp/x"
		if _, err := plugins.New(o); err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("%v, want %q", err, name)
		}
	}
}
