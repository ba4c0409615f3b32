package worker

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/timestamppb"

	controlplanev1 "github.com/dodona-project/dodona/proto/controlplane/v1"
	"github.com/dodona-project/dodona/sdk/internal/backoff"
	"github.com/dodona-project/dodona/sdk/internal/hosts"
)

// farewell bounds the last report.
const farewell = time.Second

// maxConflicts is how many reports in a row may be refused for their number before the
// worker registers again.
const maxConflicts = 3

// report sends acknowledgements, and in between what the proxies are used for. One
// goroutine does both: a report names the snapshot that the host has as acknowledged, and
// must not overtake the acknowledgement of the next.
func (s *session) report(ctx context.Context) error {
	r := reporter{session: s, avoid: hosts.None, retry: backoff.Backoff{Random: s.w.config.random}}
	timer := time.NewTimer(s.interval)
	defer timer.Stop()
	for {
		var err error
		due := false
		select {
		case <-s.ack:
		case <-s.w.idle:
			due = true
		case <-timer.C:
			due = true
		case <-ctx.Done():
			if !ending(context.Cause(ctx)) {
				r.farewell(ctx)
			}
			return context.Cause(ctx)
		}
		if err = r.acknowledge(ctx); err == nil && (due || r.fresh) {
			err = r.send(ctx)
		}
		switch {
		case err == nil:
			timer.Reset(s.interval)
		case ctx.Err() != nil: // above
		case ending(err):
			return fmt.Errorf("report: %w", err)
		default:
			s.w.config.Log.Info("report not delivered", "session", s.id, "error", err)
			timer.Reset(min(r.retry.Next(true)+leastInterval, s.interval))
		}
	}
}

type reporter struct {
	*session
	acked     *controlplanev1.AcknowledgeSnapshotRequest // what the host has as accepted; nil = it takes no reports
	fresh     bool                                       // nothing was reported since
	sequence  uint64
	conflicts int
	avoid     int
	retry     backoff.Backoff
}

// acknowledge sends the newest acknowledgement, if one waits.
func (r *reporter) acknowledge(ctx context.Context) error {
	for {
		r.mu.Lock()
		a := r.pending
		r.mu.Unlock()
		if a == nil {
			return nil
		}
		r.acked = nil // until the answer is there nobody knows which one the host has
		h, err := r.w.call(ctx, r.avoid, func(ctx context.Context, api controlplanev1.WorkerControlPlaneClient) error {
			_, err := api.AcknowledgeSnapshot(ctx, a.request)
			return err
		})
		if err != nil {
			return r.failed(h, fmt.Errorf("acknowledge version %d: %w", a.request.GetVersion(), verdict(err, false)))
		}
		r.avoid = hosts.None
		r.mu.Lock()
		if r.pending == a {
			r.pending = nil
			close(a.sent)
		}
		r.mu.Unlock()
		if a.request.GetAccepted() {
			r.acked, r.fresh = a.request, true
		}
	}
}

func (r *reporter) failed(h *host, err error) error {
	r.avoid = h.place
	if code := status.Code(err); code == codes.DeadlineExceeded || code == codes.Unavailable {
		r.doubt(h)
	}
	return err
}

// send sends one report. Each attempt is a new one, with what is true now.
func (r *reporter) send(ctx context.Context) error {
	if r.acked == nil {
		return nil
	}
	r.sequence++
	request := &controlplanev1.ReportRuntimeRequest{
		WorkerId: r.w.config.WorkerID, SessionId: r.id, ReportSequence: r.sequence,
		SnapshotVersion: r.acked.GetVersion(), OwnershipEpoch: r.acked.GetOwnershipEpoch(),
		ObservedAt: timestamppb.Now(), Counters: r.w.counters(r.counters), Draining: r.w.draining.Load(),
	}
	var answer *controlplanev1.ReportRuntimeResponse
	h, err := r.w.call(ctx, r.avoid, func(ctx context.Context, api controlplanev1.WorkerControlPlaneClient) (err error) {
		answer, err = api.ReportRuntime(ctx, request)
		return err
	})
	switch code := status.Code(err); {
	case err == nil:
		r.fresh, r.conflicts, r.avoid = false, 0, hosts.None
		r.retry.Applied()
		r.w.revoke(answer.GetRevokeProxyIds())
		return nil
	case code == codes.Aborted, code == codes.AlreadyExists:
		if r.conflicts++; r.conflicts >= maxConflicts {
			return fmt.Errorf("%w: the host refuses the numbers of reports: %w", errGone, err)
		}
	}
	return r.failed(h, verdict(err, false))
}

// farewell reports once more when the worker ends, so that a drain need not wait.
func (r *reporter) farewell(ctx context.Context) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), farewell)
	defer cancel()
	if r.acknowledge(ctx) == nil {
		_ = r.send(ctx) // a host finds out by the session's end otherwise
	}
}

// counters is what is used: proxies that are not are left out. Slots that are not used
// and in no View are forgotten.
func (w *Worker) counters(most int) []*controlplanev1.RuntimeCounter {
	w.slots.mu.Lock()
	defer w.slots.mu.Unlock()
	var out []*controlplanev1.RuntimeCounter
	for _, id := range slices.Sorted(maps.Keys(w.slots.byID)) {
		s := w.slots.byID[id]
		active, reserved := s.counts()
		if active+reserved == 0 {
			if s.retired.Load() {
				delete(w.slots.byID, id)
			}
			continue
		}
		out = append(out, &controlplanev1.RuntimeCounter{ProxyId: id, Active: active, Reserved: reserved, Draining: s.retired.Load()})
	}
	if most > 0 && len(out) > most {
		// What drains comes first: of others a host learns by the next report.
		slices.SortStableFunc(out, func(a, b *controlplanev1.RuntimeCounter) int {
			if a.Draining == b.Draining {
				return cmp.Compare(a.ProxyId, b.ProxyId)
			}
			if a.Draining {
				return -1
			}
			return 1
		})
		out = out[:most]
	}
	return out
}

// revoke stops new uses of proxies until they are assigned anew.
func (w *Worker) revoke(ids []string) {
	v := w.view.Load()
	for _, id := range ids {
		if p := v.proxies[id]; p != nil {
			p.slot.revoked.Store(p.epoch + 1)
		}
	}
}
