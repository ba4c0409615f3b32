package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/dodona-project/dodona/host/audit"
	"github.com/dodona-project/dodona/host/store"
	donav1 "github.com/dodona-project/dodona/proto/dona/v1"
	statev1 "github.com/dodona-project/dodona/proto/state/v1"
)

// A host for production without its required plugin is not ready, and says which one
// is missing. Installed and pinned with two commands, the plugin is there without a
// restart, restricted, and measures a rollout, whose audit entries name it with version
// and digest. An upgrade and a way back are two more commands.
func TestPinnedPluginMeasuresARollout(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	folder := filepath.Join(dir, "plugins")
	if err := os.Mkdir(folder, 0o755); err != nil {
		t.Fatal(err)
	}
	keep := func(args ...string) string {
		t.Helper()
		cmd := exec.Command(donaProgram(t), append([]string{"plugin"}, args...)...)
		cmd.Env = append(os.Environ(), "DONA_PLUGIN_DIR="+folder)
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("dona plugin %q: %v\n%s", args, err, out)
		}
		return string(out)
	}
	const name = "analysis-pinned"
	install := func(version string) {
		t.Helper()
		path := filepath.Join(dir, name)
		stampPlugin(t, path, name, version)
		keep("install", path)
	}

	p := newProcess(t)
	p.config = filepath.Join(dir, "dona.yaml")
	config := fmt.Sprintf("data_dir: %s\ngrpc: {plaintext: anyone-who-connects-is-an-operator}\nplugins:\n  dir: %s\n  analysis:\n    %s: {required: true, restricted: true}\n", p.dir, folder, name)
	if err := os.WriteFile(p.config, []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}
	p.start()
	ready := func() (int, string) {
		reply, err := http.Get("http://" + p.http + "/readyz")
		if err != nil {
			return 0, err.Error()
		}
		defer func() { _ = reply.Body.Close() }()
		text, _ := io.ReadAll(reply.Body)
		return reply.StatusCode, string(text)
	}
	until(t, "the host to say what it lacks", func() bool {
		code, text := ready()
		return code == http.StatusServiceUnavailable && strings.Contains(text, "analysis/"+name)
	})
	conn := p.dial()
	plugin := func() *donav1.PluginStatus {
		t.Helper()
		return pluginOf(context.Background(), t, conn, "analysis", name)
	}
	if s := plugin(); s.GetState() != "rejected" || !strings.Contains(s.GetReason(), "dona plugin lock "+name) {
		t.Errorf("the plugin is %v", s)
	}
	install("1.0.0")
	keep("lock", name)
	until(t, "the host to be ready", func() bool { code, _ := ready(); return code == http.StatusOK })
	_ = conn.Close()

	p.kill() // and its rollout is one of a host that found it pinned
	c := roll(t, p, &donav1.StartRolloutRequest{Steps: []uint32{50, 100}, StepSeconds: 1, MaxErrorPercent: 100, MinRequests: 1,
		Analysis: []*donav1.AnalysisQuery{{Name: "latency", Provider: name}}})
	conn = c.conn
	first := plugin()
	if pid := first.GetPid(); pid != 0 {
		text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
		if err == nil && !strings.Contains(string(text), "NoNewPrivs:\t1\n") {
			t.Errorf("it is not restricted: %s", text)
		}
	}
	c.reach(donav1.RolloutStatus_STATE_PROMOTED)

	install("1.1.0")
	keep("lock", name)
	until(t, "the upgrade", func() bool { s := plugin(); return s.GetVersion() == "1.1.0" && s.GetState() == "ready" })
	keep("lock", name+"@1.0.0")
	until(t, "the way back", func() bool { s := plugin(); return s.GetVersion() == "1.0.0" && s.GetState() == "ready" })
	if s := plugin(); s.GetDigest() != first.GetDigest() || !strings.Contains(keep("verify"), first.GetDigest()) {
		t.Errorf("the plugin is %v, and was %v", s, first)
	}
	p.kill()
	p.ledger()
	inspect(t, p.dir, func(tx store.ReadTx, _ *audit.Log) {
		if n := measuredBy(t, tx, name, "1.0.0", first.GetDigest()); n < 2 {
			t.Errorf("%d entries of the rollout say who measured", n)
		}
	})
}

// measuredBy counts the entries whose evidence names a plugin with version and digest,
// and demands that none names it otherwise.
func measuredBy(t *testing.T, tx store.ReadTx, name, version, digest string) (n int) {
	t.Helper()
	lines, err := tx.ReadLog("audit/web", 1, 1000)
	if err != nil {
		t.Fatal(err)
	}
	for _, line := range lines {
		var e struct {
			Kind     string
			Evidence []struct{ Kind, SHA256 string }
		}
		if err := json.Unmarshal(line.Payload, &e); err != nil {
			t.Fatal(err)
		}
		for _, ev := range e.Evidence {
			if ev.Kind != "checks" {
				continue
			}
			var blob statev1.EvidenceBlob
			if _, err := store.Load(tx, "audit/web/blob/"+ev.SHA256, &blob); err != nil || len(blob.GetData()) == 0 {
				t.Fatalf("the evidence of %s: %v", e.Kind, err)
			}
			var sum struct {
				Checks []struct {
					Provider string `json:"provider"`
					Version  string `json:"plugin_version"`
					Digest   string `json:"plugin_digest"`
					Verdict  string `json:"verdict"`
				}
			}
			if err := json.Unmarshal(blob.Data, &sum); err != nil {
				t.Fatal(err)
			}
			for _, c := range sum.Checks {
				if c.Provider != name || c.Verdict != "PASS" {
					continue
				}
				if n++; c.Version != version || c.Digest != digest {
					t.Errorf("%s was measured by %+v, want %s %s", e.Kind, c, version, digest)
				}
			}
		}
	}
	return n
}
