//go:build faults

package delivery_test

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	donav1 "github.com/dodona-project/dodona/proto/dona/v1"

	"github.com/dodona-project/dodona/host/store/embedded"
)

const (
	crashDir      = "DONA_TEST_DELIVERY_DIR"
	crashStrategy = "DONA_TEST_DELIVERY_STRATEGY"
)

func openWorld(t *testing.T, dir string) *world {
	t.Helper()
	clk := newClock()
	st, err := embedded.Open(dir, embedded.Options{Clock: clk.now})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = st.Close() })
	return worldOver(t, st, clk)
}

// TestCrashChild is the process that dies: it deploys to a variant that is ready,
// by the strategy that its parent names, and aborts the rollout of a canary.
func TestCrashChild(t *testing.T) {
	dir := os.Getenv(crashDir)
	if dir == "" {
		t.Skip("is the child of TestCrashPoints")
	}
	w := openWorld(t, dir)
	w.endpoints("v1", "eu", 1)
	strategy := donav1.StartDeploymentRequest_Strategy(donav1.StartDeploymentRequest_Strategy_value["STRATEGY_"+os.Getenv(crashStrategy)])
	w.start(deployment(w.release("2", "v2"), strategy))
	w.endpoints("v2", "eu", 1)
	w.tick()
	w.control(donav1.ControlRolloutRequest_ACTION_ABORT)
	t.Fatal("the process outlived its crash point")
}

// TestCrashPoints kills the process around and inside each transition. Afterwards
// the transition is there whole or not at all, and a restart takes it exactly
// once.
func TestCrashPoints(t *testing.T) {
	const (
		waiting   = donav1.Deployment_STATE_WAITING
		running   = donav1.Deployment_STATE_RUNNING
		succeeded = donav1.Deployment_STATE_SUCCEEDED
		failed    = donav1.Deployment_STATE_FAILED
	)
	for _, c := range []struct {
		strategy, point string
		found, then     donav1.Deployment_State // after the crash, and after three ticks
	}{
		{"RECREATE", "delivery.before-step:1", waiting, succeeded},
		{"RECREATE", "delivery.inside-step:1", waiting, succeeded},
		{"RECREATE", "delivery.after-step:1", succeeded, succeeded},
		{"BLUE_GREEN", "delivery.before-step:1", waiting, succeeded},
		{"BLUE_GREEN", "delivery.inside-step:1", waiting, succeeded},
		{"BLUE_GREEN", "delivery.after-step:1", succeeded, succeeded},
		{"CANARY", "delivery.before-step:1", waiting, running},
		{"CANARY", "delivery.inside-step:1", waiting, running},
		{"CANARY", "delivery.after-step:1", running, running},
		{"CANARY", "delivery.inside-step:2", running, running}, // its end, inside that of the rollout
		{"CANARY", "rollout.inside-step:1", running, running},
	} {
		t.Run(c.strategy+" "+c.point, func(t *testing.T) {
			dir := filepath.Join(t.TempDir(), "data")
			cmd := exec.Command(os.Args[0], "-test.run=^TestCrashChild$", "-test.count=1")
			cmd.Env = append(os.Environ(), crashDir+"="+dir, crashStrategy+"="+c.strategy, "DONA_CRASH_POINT="+c.point)
			out, err := cmd.CombinedOutput()
			var exit *exec.ExitError
			if !errors.As(err, &exit) || exit.Sys().(syscall.WaitStatus).Signal() != syscall.SIGKILL {
				t.Fatalf("the child was not killed: %v\n%s", err, out)
			}
			w := openWorld(t, dir)
			w.whole(c.found)
			w.endpoints("v2", "eu", 1) // soft, and lost with the process: it registers again
			for range 3 {
				w.tick()
			}
			w.whole(c.then)
			if c.then == running {
				w.control(donav1.ControlRolloutRequest_ACTION_ABORT)
				w.whole(failed)
			}
			for range 3 {
				w.tick()
			}
			if n := strings.Count(w.kinds(), "deployment.end"); n != 1 {
				t.Errorf("the chain tells of %d ends: %s", n, w.kinds())
			}
			if n := strings.Count(w.kinds(), "rollout.start"); n > 1 {
				t.Errorf("the chain tells of %d rollouts: %s", n, w.kinds())
			}
		})
	}
}

// whole demands that everything says the deployment is in a state, and nothing
// else.
func (w *world) whole(state donav1.Deployment_State) {
	w.t.Helper()
	w.is(state, "")
	strategy := w.deployments()[0].Strategy
	live := state == donav1.Deployment_STATE_WAITING || state == donav1.Deployment_STATE_RUNNING
	want := map[donav1.StartDeploymentRequest_Strategy]string{recreate: "v2=100", blueGreen: "v2=100 v1=0"}[strategy]
	if state != donav1.Deployment_STATE_SUCCEEDED {
		want = "v2=0 v1=100"
	}
	weights := w.weights()
	if state == donav1.Deployment_STATE_RUNNING && weights == "v2=25 v1=75" {
		weights = want // its rollout may have begun the first step
	}
	if weights != want || strings.Contains(w.kinds(), "deployment.end") == live {
		w.t.Fatalf("%s with weights %s and the chain %s", state, w.weights(), w.kinds())
	}
	st := w.rollout()
	if strategy == canary && (st != nil) != (state != donav1.Deployment_STATE_WAITING) {
		w.t.Fatalf("%s with the rollout %v", state, st)
	}
	if st != nil && (st.State == donav1.RolloutStatus_STATE_ABORTED) != (state == donav1.Deployment_STATE_FAILED) {
		w.t.Fatalf("%s with the rollout %v", state, st)
	}
}
