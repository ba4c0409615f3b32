package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	donav1 "github.com/dodona-project/dodona/proto/dona/v1"
)

// TestPluginFromNothingToARollout: from an empty folder outside of this repository a
// plugin is written and tested with two commands, and installed and pinned with two
// more. A host for production that runs all the time finds it, and a rollout is decided
// by it, without a restart.
func TestPluginFromNothingToARollout(t *testing.T) {
	t.Parallel()
	root, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	empty, bin := t.TempDir(), t.TempDir()
	folder := filepath.Join(bin, "plugins")
	if err := os.Mkdir(folder, 0o755); err != nil {
		t.Fatal(err)
	}
	run := func(dir, name string, args ...string) string {
		t.Helper()
		cmd := exec.Command(name, args...)
		cmd.Dir = dir
		cmd.Env = append(os.Environ(), "DONA_MODULE_DIR="+root, "DONA_PLUGIN_DIR="+folder)
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("%s %v: %v\n%s", name, args, err, out)
		}
		return string(out)
	}
	p := newProcess(t)
	p.config = filepath.Join(bin, "dona.yaml")
	config := fmt.Sprintf("data_dir: %s\ngrpc: {plaintext: anyone-who-connects-is-an-operator}\nplugins: {dir: %s}\n", p.dir, folder)
	if err := os.WriteFile(p.config, []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}
	p.start()

	dona := donaProgram(t)
	run(empty, dona, "plugin", "new", "analysis", "my-check")
	project := filepath.Join(empty, "my-check")
	t.Logf("make test: %s", run(project, "make", "test"))
	built := filepath.Join(project, "bin", "my-check")
	if report := run(project, dona, "plugin", "test", "--quick", built); !strings.Contains(report, "analysis/my-check 0.1.0: 14 passed, 0 failed, 0 skipped") {
		t.Errorf("dona plugin test:\n%s", report)
	}

	run(empty, dona, "plugin", "install", built)
	run(empty, dona, "plugin", "lock", "my-check")
	conn := p.dial()
	until(t, "the host to find the plugin", func() bool {
		return pluginOf(t.Context(), t, conn, "analysis", "my-check") != nil
	})
	req := &donav1.StartRolloutRequest{StepSeconds: 1, MaxErrorPercent: 100, MinRequests: 1,
		Analysis: []*donav1.AnalysisQuery{{Name: "latency", Provider: "my-check", MaxValue: 0.5}}}
	for percent := uint32(5); percent <= 100; percent += 5 {
		req.Steps = append(req.Steps, percent)
	}
	c := rollOn(t, p, req)
	until(t, "a step that the plugin passes", func() bool {
		s := c.status()
		a := measured(s)
		return s.GetRollout().GetStepIndex() >= 1 && a.GetProvider() == "my-check" && a.GetVerdict() == donav1.Verdict_VERDICT_PASS
	})
	c.bad.Store(true)
	s := c.reach(donav1.RolloutStatus_STATE_ROLLED_BACK)
	if a := measured(s); a.GetProvider() != "my-check" || a.GetVerdict() != donav1.Verdict_VERDICT_BREACH {
		t.Errorf("rolled back by %v: %s", a, s.GetRollout().GetReason())
	}
	p.kill()
	p.ledger()
}
