//go:build linux

package external_test

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/dodona-project/dodona/plugins"
	"github.com/dodona-project/dodona/plugins/analysis"
	"github.com/dodona-project/dodona/plugins/restrict"
	donav1 "github.com/dodona-project/dodona/proto/dona/v1"
	pluginv1 "github.com/dodona-project/dodona/proto/plugin/v1"
)

// does has a plugin try something, and returns what it says came of it.
func (h *host) does(name, deed string) string {
	h.t.Helper()
	m, err := analysis.New(h).Evaluate(h.t.Context(), name, &pluginv1.EvaluateRequest{Service: "shop", Query: &donav1.AnalysisQuery{Name: "q", Query: deed}})
	if err != nil {
		h.t.Fatal(err)
	}
	return m.Detail
}

// A restricted plugin serves like any other, and cannot write or read elsewhere, run
// what it makes, gain privileges or signal others; the same plugin without can.
func TestRestricted(t *testing.T) {
	dir, elsewhere := t.TempDir(), t.TempDir()
	secret := filepath.Join(elsewhere, "secret")
	must(t, os.WriteFile(secret, []byte("secret"), 0o600))
	const free, held = "analysis-free", "analysis-held"
	for _, name := range []string{free, held} {
		install(t, dir, name, "1.0.0")
		pin(t, dir, name, "1.0.0")
	}
	h := newPinnedHost(t, dir, map[plugins.ID]plugins.PluginConfig{
		analysisID(held): {Restricted: true, Required: true}, analysisID(free): {Required: true},
	})
	h.await(plugins.KindAnalysis, free)
	h.await(plugins.KindAnalysis, held)
	if v := h.version(held); v != "1.0.0" {
		t.Errorf("it serves as %s", v)
	}
	landlock := restrict.LandlockVersion()
	t.Logf("Landlock version %d", landlock)
	denied := []string{"permission denied", "operation not permitted"}
	for _, tc := range []struct {
		deed       string
		free, held []string // any of
		landlock   int      // version that it takes
	}{
		{"status NoNewPrivs", []string{"done 0"}, []string{"done 1"}, 0},
		{"write-own", []string{"done"}, []string{"done"}, 0},
		{"run echo ran", []string{"done ran"}, []string{"done ran"}, 0},
		{"run cat /etc/hosts >/dev/null && echo read", []string{"done read"}, []string{"done read"}, 0},
		{"write " + filepath.Join(elsewhere, "new"), []string{"done"}, denied, 1},
		{"write " + secret, []string{"done"}, denied, 1},
		{"read " + secret, []string{"done"}, denied, 1},
		{"run echo x >" + filepath.Join(elsewhere, "by-a-child"), []string{"done"}, denied, 1},
		{"run-own", []string{"done"}, denied, 1},
		{"signal " + strconv.Itoa(os.Getpid()), []string{"done"}, denied, 6},
	} {
		if got := h.does(free, tc.deed); !contains(got, tc.free) {
			t.Errorf("%q without restriction: %q, want one of %q", tc.deed, got, tc.free)
		}
		if landlock < tc.landlock {
			t.Logf("%q takes Landlock version %d", tc.deed, tc.landlock)
			continue
		}
		if got := h.does(held, tc.deed); !contains(got, tc.held) {
			t.Errorf("%q restricted: %q, want one of %q", tc.deed, got, tc.held)
		}
	}
	if text, err := os.ReadFile(filepath.Join(elsewhere, "by-a-child")); landlock > 0 && (err != nil || string(text) != "x\n") {
		t.Errorf("it wrote outside after all, or the other one did not: %q, %v", text, err)
	}
	niceness := func(name string) int {
		t.Helper()
		n, err := strconv.Atoi(strings.TrimPrefix(h.does(name, "nice"), "done "))
		must(t, err)
		return n
	}
	if f, r := niceness(free), niceness(held); r != min(f+restrict.Nice, 19) {
		t.Errorf("priorities are %d and, restricted, %d", f, r)
	}
	// The kernel knows them by their names, though they have no file.
	for _, name := range []string{free, held} {
		if got := h.does(name, "comm"); got != "done "+name {
			t.Errorf("%s is called %q", name, got)
		}
	}
	// It goes through its end and comes back as any other.
	pid := h.status(plugins.KindAnalysis, held).GetPid()
	must(t, h.Reload(t.Context(), plugins.KindAnalysis, held))
	until(t, "the old process to end", func() bool { return !alive(int(pid)) })
	if got := h.does(held, "status NoNewPrivs"); got != "done 1" {
		t.Errorf("after a reload: %q", got)
	}
}

// A set-user-ID program that a restricted plugin runs stays what the plugin is.
func TestRestrictedGainsNoPrivileges(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root can make a program set-user-ID to somebody else")
	}
	// Somebody else's id, because root cannot gain any: what counts is that it changes.
	dir, outside := t.TempDir(), t.TempDir()
	id, err := os.ReadFile("/usr/bin/id")
	if err != nil {
		t.Skip("there is no id to run: ", err)
	}
	program := filepath.Join("/usr/local/bin", "dona-test-id-"+filepath.Base(filepath.Dir(outside)))
	must(t, os.WriteFile(program, id, 0o755)) // where a restricted plugin may run programs
	t.Cleanup(func() { _ = os.Remove(program) })
	must(t, os.Chown(program, 65534, 65534))
	must(t, os.Chmod(program, os.ModeSetuid|0o755))
	for _, name := range []string{"analysis-free", "analysis-held"} {
		install(t, dir, name, "1.0.0")
		pin(t, dir, name, "1.0.0")
	}
	h := newPinnedHost(t, dir, map[plugins.ID]plugins.PluginConfig{
		analysisID("analysis-held"): {Restricted: true, Required: true}, analysisID("analysis-free"): {Required: true},
	})
	h.await(plugins.KindAnalysis, "analysis-free")
	h.await(plugins.KindAnalysis, "analysis-held")
	if got := h.does("analysis-free", "run "+program+" -u"); got != "done 65534" {
		t.Skipf("set-user-ID programs do not work here: %q", got)
	}
	if got := h.does("analysis-held", "run "+program+" -u"); got != "done 0" {
		t.Errorf("it became %q", got)
	}
}

// Scripts and built-ins are restricted, too, and what cannot be started so is
// rejected, with the reason.
func TestRestrictedKinds(t *testing.T) {
	dir := t.TempDir()
	path := place(t, dir, "analysis-script", "1.0.0")
	stamp(t, filepath.Join(filepath.Dir(path), "program"), "analysis-script", "1.0.0", "")
	must(t, os.WriteFile(path, []byte("#!/bin/sh\nexec \"$(dirname \"$0\")/program\" \"$@\"\n"), 0o755))
	pin(t, dir, "analysis-script", "1.0.0")
	bad := place(t, dir, "analysis-none", "1.0.0")
	must(t, os.WriteFile(bad, []byte("#!/nonexistent/interpreter\n"), 0o755))
	l := openPinned(t, dir)
	pins, err := l.Pins()
	must(t, err)
	e, _ := pins.Entry("analysis-script")
	none := e
	none.Name, none.Platforms = "analysis-none", map[string]string{platform: folderDigest(t, filepath.Dir(bad))}
	write(t, dir, e, none)
	h := newPinnedHost(t, dir, map[plugins.ID]plugins.PluginConfig{
		analysisID("analysis-script"): {Restricted: true, Required: true}, analysisID("analysis-other"): {Restricted: true, Required: true},
		analysisID("analysis-none"): {Restricted: true, Required: true},
	})
	h.await(plugins.KindAnalysis, "analysis-script")
	h.await(plugins.KindAnalysis, "analysis-other")
	if got := h.does("analysis-script", "status NoNewPrivs"); got != "done 1" {
		t.Errorf("the script: %q", got)
	}
	text, err := os.ReadFile("/proc/" + strconv.Itoa(int(h.status(plugins.KindAnalysis, "analysis-other").GetPid())) + "/status")
	must(t, err)
	if !strings.Contains(string(text), "NoNewPrivs:\t1\n") {
		t.Errorf("the built-in has %s", text)
	}
	until(t, "the one that cannot be run to be rejected", func() bool { return h.status(plugins.KindAnalysis, "analysis-none").GetState() == "rejected" })
	if s := h.status(plugins.KindAnalysis, "analysis-none"); !strings.Contains(s.GetReason(), "cannot be started restricted") || !strings.Contains(s.GetReason(), "no such file or directory") {
		t.Errorf("status %v", s)
	}
}

func contains(got string, any []string) bool {
	for _, want := range any {
		if got == want || !strings.HasPrefix(want, "done") && strings.Contains(strings.ToLower(got), want) {
			return true
		}
	}
	return false
}
