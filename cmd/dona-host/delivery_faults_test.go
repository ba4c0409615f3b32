//go:build faults

package main

import (
	"fmt"
	"strings"
	"syscall"
	"testing"
	"time"

	donav1 "github.com/dodona-project/dodona/proto/dona/v1"
)

// TestDeliveryCrashPoints: the host dies before, in and after each transition of
// a deployment, and afterwards every action is there with its audit entry or not
// at all; a restart brings the deployment to its end, once.
func TestDeliveryCrashPoints(t *testing.T) {
	const (
		recreate  = donav1.StartDeploymentRequest_STRATEGY_RECREATE
		blueGreen = donav1.StartDeploymentRequest_STRATEGY_BLUE_GREEN
		canary    = donav1.StartDeploymentRequest_STRATEGY_CANARY
	)
	for _, c := range []struct {
		strategy donav1.StartDeploymentRequest_Strategy
		points   []string
		weights  string
		bad      bool // the canary fails
	}{
		{recreate, []string{"delivery.before-step:1", "delivery.inside-step:1", "delivery.after-step:1"}, "v2=100", false},
		{blueGreen, []string{"delivery.before-step:1", "delivery.inside-step:1", "delivery.after-step:1"}, "v2=100 v1=0", false},
		// The second visit inside a step is its end, within that of its rollout:
		// the first step, the second, and the promotion.
		{canary, []string{
			"delivery.before-step:1", "delivery.inside-step:1", "delivery.after-step:1", "delivery.inside-step:2",
			"rollout.before-step:1", "rollout.inside-step:2", "rollout.after-step:2", "rollout.before-step:3", "rollout.inside-step:3", "rollout.after-step:3",
		}, "v2=100 v1=0", false},
		// The rollback is the second step of the rollout.
		{canary, []string{"rollout.before-step:2", "rollout.inside-step:2", "delivery.inside-step:2", "rollout.after-step:2"}, "v2=0 v1=100", true},
	} {
		for _, point := range c.points {
			t.Run(fmt.Sprint(c.strategy, " ", point, map[bool]string{true: " rolled back"}[c.bad]), func(t *testing.T) {
				t.Parallel()
				p := newProcess(t)
				p.env = []string{"DONA_CRASH_POINT=" + point}
				p.spawn()
				s := ship(t, p)
				s.bad.Store(c.bad)
				s.up("v1")
				s.serving("v1")
				d := s.deploy(s.release("2", "v2"), c.strategy)
				s.up("v2")
				select {
				case <-p.exited:
				case <-time.After(2 * time.Minute):
					t.Fatalf("the host never came to %s", point)
				}
				if w := p.cmd.ProcessState.Sys().(syscall.WaitStatus); w.Signal() != syscall.SIGKILL {
					t.Fatalf("the host ended otherwise than at %s: %v", point, p.cmd.ProcessState)
				}
				if l := p.ledger(); l.deployments[d.Id] == nil {
					t.Errorf("the deployment was acknowledged, and the audit chain does not know it")
				}
				p.env = nil
				p.start()
				end := donav1.Deployment_STATE_SUCCEEDED
				if c.bad {
					end = donav1.Deployment_STATE_ROLLED_BACK
				}
				if got := s.reach(d.Id, end); split(got) != c.weights {
					t.Errorf("it ended with weights %s, want %s", split(got), c.weights)
				}
				p.kill()
				l := p.ledger()
				rollouts := 0
				if c.strategy == canary {
					rollouts = 1
				}
				if told := l.deployments[d.Id]; told.state != strings.TrimPrefix(end.String(), "STATE_") || told.ends != 1 || len(l.rollouts) != rollouts || len(l.deployments) != 1 {
					t.Errorf("the audit chain tells %+v, of %d deployments and %d rollouts", told, len(l.deployments), len(l.rollouts))
				}
			})
		}
	}
}
