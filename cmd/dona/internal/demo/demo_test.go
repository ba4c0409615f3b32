package demo_test

import (
	"bytes"
	"encoding/json"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/dodona-project/dodona/cmd/dona/internal/demo"
	"github.com/dodona-project/dodona/host/spawn/spawntest"
)

// programs builds what the demo runs, side by side, and returns dona.
func programs(t *testing.T) string {
	return filepath.Join(spawntest.Build(t, "cmd/dona", "cmd/dona-host"), "dona")
}

// TestDemo plays it with --json, so that what was seen is on stdout and the story
// on stderr; TestInterruptEndsTheDemo reads the story where it is without.
func TestDemo(t *testing.T) {
	t.Parallel()
	program := programs(t)
	cmd := spawntest.Command(t, program, "demo", "--json")
	var story bytes.Buffer
	cmd.Stderr = &story
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("dona demo: %v\n%s\n%s", err, out, story.Bytes())
	}
	for _, word := range []string{"PROMOTED", "ROLLED_BACK", "HOLDING", "failed requests: 0 of ", "the signed attestation of all this verifies", "one changed byte is caught", "every process has ended"} {
		if !bytes.Contains(story.Bytes(), []byte(word)) {
			t.Errorf("the demo does not say %q:\n%s", word, story.Bytes())
		}
	}
	if bytes.Contains(story.Bytes(), []byte("\x1b")) {
		t.Errorf("escape sequences in a pipe:\n%q", story.Bytes())
	}
	var report demo.Report
	if err := json.Unmarshal(out, &report); err != nil || bytes.Count(out, []byte("\n")) != 1 {
		t.Fatalf("stdout is not one object: %v\n%s", err, out)
	}
	if !report.OK || report.Seconds <= 0 || report.Logs != "" || len(report.Seen) < 5 ||
		slices.ContainsFunc(report.Seen, func(c demo.Claim) bool { return !c.OK || !strings.Contains(story.String(), c.Text) }) {
		t.Errorf("the report is %+v\n%s", report, story.Bytes())
	}
	cmd.NothingLeft(t)
}

func TestInterruptEndsTheDemo(t *testing.T) {
	t.Parallel()
	cmd := spawntest.Command(t, programs(t), "demo")
	cmd.Interrupted(t, "PROGRESSING step 1/3", 4, 130, "dona: interrupted")
}
