//go:build faults

package rollout_test

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	donav1 "github.com/dodona-project/dodona/proto/dona/v1"
)

const crashDir = "DONA_TEST_ROLLOUT_DIR"

// TestCrashChild is the process that dies: it starts a rollout, lets it begin
// its first step and then breaches it, on the store that its parent names.
func TestCrashChild(t *testing.T) {
	dir := os.Getenv(crashDir)
	if dir == "" {
		t.Skip("is the child of TestCrashPoints")
	}
	c := newClock()
	w := newWorld(t, openEmbedded(t, dir, c), c.now)
	w.endpoints("v2", 1)
	w.start(request())
	w.tick(w.c)
	_, version := w.weights()
	w.report("v2", 20, 20, version)
	c.advance(time.Second)
	// What was reported is soft; a hard write carries it to the disk.
	if _, err := w.control(donav1.ControlRolloutRequest_ACTION_PAUSE); err != nil {
		t.Fatal(err)
	}
	w.tick(w.c)
	t.Fatal("the process outlived its crash point")
}

// TestCrashPoints kills the process around and inside a rollback. Afterwards the
// rollback is there whole or not at all, and a restart finishes it exactly once.
func TestCrashPoints(t *testing.T) {
	for _, c := range []struct {
		point string
		done  bool // the rollback was committed before the process died
	}{{"rollout.before-step:2", false}, {"rollout.inside-step:3", false}, {"rollout.after-step:2", true}} {
		t.Run(c.point, func(t *testing.T) {
			dir := filepath.Join(t.TempDir(), "data")
			cmd := exec.Command(os.Args[0], "-test.run=^TestCrashChild$", "-test.count=1")
			cmd.Env = append(os.Environ(), crashDir+"="+dir, "DONA_CRASH_POINT="+c.point)
			out, err := cmd.CombinedOutput()
			var exit *exec.ExitError
			if !errors.As(err, &exit) || exit.Sys().(syscall.WaitStatus).Signal() != syscall.SIGKILL {
				t.Fatalf("the child was not killed: %v\n%s", err, out)
			}

			clk := newClock()
			clk.advance(time.Minute)
			w := &world{t: t, ctx: t.Context(), store: openEmbedded(t, dir, clk), wall: clk.now}
			w.wire()
			weights, _ := w.weights()
			rolledBack := w.record().GetState() == donav1.RolloutStatus_STATE_ROLLED_BACK
			if rolledBack != c.done || (weights == "v2=0 v1=100") != c.done || (len(w.quarantined()) == 1) != c.done || w.rollbacks() != count(c.done) {
				t.Fatalf("after the crash: %s, weights %s, quarantine %v, %d entries", w.record().GetState(), weights, w.quarantined(), w.rollbacks())
			}
			for range 3 {
				w.tick(w.c)
				clk.advance(time.Second)
			}
			weights, _ = w.weights()
			if w.record().GetState() != donav1.RolloutStatus_STATE_ROLLED_BACK || weights != "v2=0 v1=100" || len(w.quarantined()) != 1 || w.rollbacks() != 1 {
				t.Fatalf("after the restart: %s, weights %s, quarantine %v, %d entries", w.record().GetState(), weights, w.quarantined(), w.rollbacks())
			}
		})
	}
}

func count(done bool) int {
	if done {
		return 1
	}
	return 0
}

func (w *world) rollbacks() (n int) {
	for _, e := range w.chain() {
		if e.Kind == "rollout.rollback" {
			n++
		}
	}
	return n
}
