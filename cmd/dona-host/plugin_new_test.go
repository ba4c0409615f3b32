package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	donav1 "github.com/dodona-project/dodona/proto/dona/v1"
)

// TestPluginFromNothingToARollout: from an empty folder outside of this repository a
// plugin is written and tested with two commands, and put where a running host
// finds it. A rollout is then decided by it, without a restart.
func TestPluginFromNothingToARollout(t *testing.T) {
	t.Parallel()
	root, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	empty, folder, bin := t.TempDir(), t.TempDir(), t.TempDir()
	run := func(dir, name string, args ...string) string {
		t.Helper()
		cmd := exec.Command(name, args...)
		cmd.Dir = dir
		cmd.Env = append(os.Environ(), "DONA_MODULE_DIR="+root)
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("%s %v: %v\n%s", name, args, err, out)
		}
		return string(out)
	}
	p := newProcess(t)
	p.env = []string{"DONA_PLUGIN_DIR=" + folder}
	p.start()

	run(root, "go", "build", "-o", bin+"/", "./cmd/dona")
	dona := filepath.Join(bin, "dona")
	run(empty, dona, "plugin", "new", "analysis", "my-check")
	project := filepath.Join(empty, "my-check")
	t.Logf("make test: %s", run(project, "make", "test"))
	built := filepath.Join(project, "bin", "my-check")
	if report := run(project, dona, "plugin", "test", "--quick", built); !strings.Contains(report, "analysis/my-check 0.1.0: 14 passed, 0 failed, 0 skipped") {
		t.Errorf("dona plugin test:\n%s", report)
	}

	place := filepath.Join(folder, "my-check", "0.1.0", runtime.GOOS+"_"+runtime.GOARCH)
	run(empty, "mkdir", "-p", place)
	run(empty, "cp", built, filepath.Join(place, "my-check"))
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
