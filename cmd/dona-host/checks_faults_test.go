//go:build faults

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"syscall"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	controlplanev1 "github.com/dodona-project/dodona/proto/controlplane/v1"
	donav1 "github.com/dodona-project/dodona/proto/dona/v1"
)

// checkPoints are where a host dies in the middle of a check: leased and not made;
// reduced and not written; written and not confirmed.
var checkPoints = []string{"check.after-claim", "check.inside-report", "check.after-report"}

const (
	checkTimeout = 3 * time.Second
	checkLease   = checkTimeout + 5*time.Second
)

// diesAt is a host that dies at a point of its checks, with five endpoints of which
// the last is sick.
func diesAt(t *testing.T, point string) *ward {
	w := admit(t, 5, "DONA_CHECK_TIMEOUT="+checkTimeout.String(), "DONA_CRASH_POINT="+point)
	w.patients[4].sick.Store(true)
	return w
}

// died waits until the host has died where it should.
func (w *ward) died() {
	w.t.Helper()
	select {
	case <-w.p.exited:
	case <-time.After(2 * time.Minute):
		w.t.Fatal("the host never came to the point")
	}
	if s := w.p.cmd.ProcessState.Sys().(syscall.WaitStatus); s.Signal() != syscall.SIGKILL {
		w.t.Fatalf("the host ended otherwise: %v", w.p.cmd.ProcessState)
	}
}

// unharmed demands that the kill took nobody out and counted nothing twice: who is
// well is in, and who is sick failed no more often than it was asked.
func (w *ward) unharmed() {
	w.t.Helper()
	checks := map[string]*donav1.EndpointHealth{}
	for _, h := range w.status().GetChecks().GetEndpoints() {
		checks[h.EndpointId] = h
	}
	for _, e := range w.patients {
		h := checks[e.id]
		if !e.sick.Load() && (h.GetOut() || h.GetState() == donav1.EndpointHealth_STATE_UNHEALTHY) {
			w.t.Fatalf("%s is well, and the host says %v", e.id, h)
		}
		if failures, asked := int64(h.GetFailures()), e.asked.Load(); failures > asked {
			w.t.Fatalf("%s was asked %d times and failed %d times", e.id, asked, failures)
		}
	}
}

// again waits until every endpoint was checked again, and logs how long that took
// beside the lease that the dead host's checks had.
func (w *ward) again() {
	w.t.Helper()
	began := time.Now()
	before := map[string]int64{}
	for _, e := range w.patients {
		before[e.id] = e.asked.Load()
	}
	until(w.t, "every endpoint to be checked again", func() bool {
		w.unharmed()
		for _, e := range w.patients {
			if e.asked.Load() == before[e.id] {
				return false
			}
		}
		return true
	})
	took := time.Since(began)
	w.t.Logf("every endpoint was checked again %v after the start; a lease lasts %v", took.Round(time.Millisecond), checkLease)
	if took > checkLease+20*time.Second { // the rest is for a busy machine
		w.t.Errorf("a check came %v after the start, a lease lasts %v", took, checkLease)
	}
}

// TestKillInACheck (K1): the host is killed with kill -9 between claim, reduce and
// confirm. Tasks are leased again when their lease is over at the latest, a fact
// counts once, and nobody leaves for it.
func TestKillInACheck(t *testing.T) {
	hits := []int{1, 4, 11}
	if os.Getenv("REPEAT") != "" {
		for n := range 10 {
			hits = append(hits, 12+3*n)
		}
	}
	for _, point := range checkPoints {
		for _, hit := range hits {
			t.Run(fmt.Sprintf("%s:%d", point, hit), func(t *testing.T) {
				t.Parallel()
				w := diesAt(t, fmt.Sprintf("%s:%d", point, hit))
				w.probe(map[string]any{"path": "/healthz"})
				w.died()
				w.p.env = w.p.env[:2]
				w.p.env[1] = "DONA_CHECK_TIMEOUT=" + checkTimeout.String()
				w.p.start()
				w.again()
				until(t, "the sick one to leave, and nobody else", func() bool {
					w.unharmed()
					return w.health("e").GetOut() && len(w.in()) == 4
				})
				w.p.kill()
				w.p.ledger()
			})
		}
	}
	t.Run("while targets hang", func(t *testing.T) {
		t.Parallel()
		w := admit(t, 4, "DONA_CHECK_TIMEOUT="+checkTimeout.String())
		w.probe(map[string]any{"path": "/healthz"})
		w.allAvailable()
		for range 3 {
			for _, e := range w.patients {
				e.hangs.Store(true)
			}
			asked := w.patients[0].asked.Load()
			until(t, "a check that hangs", func() bool { return w.patients[0].asked.Load() > asked })
			w.p.kill()
			for _, e := range w.patients {
				e.hangs.Store(false)
			}
			w.p.start()
			w.again()
			w.allAvailable()
		}
		w.p.kill()
		w.p.ledger()
	})
}

// outside is a checker outside the host, as one program of it is.
type outside struct {
	*ward
	client controlplanev1.CheckerControlPlaneClient
}

func (w *ward) outside() *outside {
	return &outside{ward: w, client: controlplanev1.NewCheckerControlPlaneClient(w.conn)}
}

// registered calls something until it is neither out of reach nor asked to register,
// which it then does.
func (o *outside) registered(what string, call func(context.Context) error) {
	o.t.Helper()
	until(o.t, what, func() bool {
		ctx, cancel := context.WithTimeout(o.ctx, 5*time.Second)
		defer cancel()
		switch err := call(ctx); status.Code(err) {
		case codes.OK:
			return true
		case codes.FailedPrecondition:
			_, _ = o.client.RegisterChecker(ctx, &controlplanev1.RegisterCheckerRequest{
				CheckerId: "ambulance", InstanceId: "1", MaxInFlight: 64, SupportedProtocolVersion: 1,
				Levels: []controlplanev1.CheckLevel{controlplanev1.CheckLevel_CHECK_LEVEL_BASIC}, Probes: []*controlplanev1.ProbePlugin{{Name: "http"}},
			})
		case codes.Unavailable, codes.DeadlineExceeded:
		default:
			o.t.Fatalf("%s: %v", what, err)
		}
		return false
	})
}

// vain asks once for tasks that there are none of, so that the checker is there.
func (o *outside) vain() {
	o.t.Helper()
	o.registered("to ask in vain", func(ctx context.Context) error {
		s, err := o.client.StreamCheckTasks(ctx, &controlplanev1.StreamCheckTasksRequest{CheckerId: "ambulance", InstanceId: "1"})
		if err == nil {
			_, err = s.Recv()
		}
		if status.Code(err) == codes.Unavailable && o.p.serves() {
			return nil
		}
		return err
	})
}

// TestKillBeforeAnAnswer (K1): the host dies with a report of a checker outside in its
// hands. The checker says it again to the next life of the host; whatever became of
// it, it counts once at most, and the task is given away again.
func TestKillBeforeAnAnswer(t *testing.T) {
	for _, point := range checkPoints {
		t.Run(point, func(t *testing.T) {
			t.Parallel()
			w := admit(t, 3, "DONA_CHECK_TIMEOUT="+checkTimeout.String(), "DONA_CRASH_POINT="+point+":1")
			o := w.outside()
			o.vain()
			w.probe(map[string]any{"path": "/healthz"})
			var reports []*controlplanev1.HealthObservation
			tell := func(ctx context.Context) error {
				reply, err := o.client.ReportObservations(ctx, &controlplanev1.ReportObservationsRequest{CheckerId: "ambulance", Observations: reports})
				for _, r := range reply.GetReceipts() {
					t.Logf("%s: accepted %v %s", r.TaskId, r.Accepted, r.Reason)
				}
				return err
			}
			ctx, cancel := context.WithTimeout(w.ctx, time.Minute)
			defer cancel()
			dead := func() bool {
				select {
				case <-w.p.exited:
					return true
				default:
					return false
				}
			}
			until(t, "a task, or the host's end", func() bool { // the stream ends while there is nothing
				s, err := o.client.StreamCheckTasks(ctx, &controlplanev1.StreamCheckTasksRequest{CheckerId: "ambulance", InstanceId: "1"})
				var task *controlplanev1.CheckTask
				if err == nil {
					task, err = s.Recv()
				}
				if code := status.Code(err); err != nil && code != codes.Unavailable && !errors.Is(err, io.EOF) {
					t.Fatal(err)
				}
				if err != nil {
					return dead()
				}
				reports = append(reports, &controlplanev1.HealthObservation{TaskId: task.TaskId, LeaseToken: task.LeaseToken, Level: task.Level,
					Result: controlplanev1.HealthObservation_RESULT_FAILURE, ErrorClass: controlplanev1.ErrorClass_ERROR_CLASS_REFUSED})
				return true
			})
			if (len(reports) > 0) != (point != "check.after-claim") {
				t.Fatalf("%d tasks came from a host that dies %s", len(reports), point)
			}
			if len(reports) > 0 {
				// A hard write takes the lease to the disk: the next life knows it.
				if _, err := w.api.SetFlag(ctx, &donav1.SetFlagRequest{Rule: &donav1.FlagRule{Service: "shop", Flag: "f", RolloutPercent: 1, RolloutVariant: "v1"}}); err != nil {
					t.Fatal(err)
				}
				if err := tell(ctx); status.Code(err) != codes.Unavailable {
					t.Errorf("the answer of a host that dies: %v", err)
				}
			}
			w.died()
			w.p.env = w.p.env[:2]
			w.p.env[1] = "DONA_CHECK_TIMEOUT=" + checkTimeout.String()
			w.p.start()
			if len(reports) > 0 {
				for range 3 {
					o.registered("to say it again", tell)
				}
			}
			for _, e := range w.status().GetChecks().GetEndpoints() {
				if e.Failures > 1 || e.Out || e.State == donav1.EndpointHealth_STATE_UNHEALTHY {
					t.Errorf("one report, and %v", e)
				}
			}
			// The checker is gone: the host's own finds all well.
			w.allAvailable()
			w.unharmed()
			w.p.kill()
			w.p.ledger()
		})
	}
}
