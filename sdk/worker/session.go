package worker

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	controlplanev1 "github.com/dodona-project/dodona/proto/controlplane/v1"
	"github.com/dodona-project/dodona/sdk/internal/backoff"
	"github.com/dodona-project/dodona/sdk/internal/hosts"
)

// What holds where a registration's answer does not say.
const (
	defaultMaxStale = 120 * time.Second
	defaultTTL      = 30 * time.Second
	defaultInterval = 2 * time.Second
	defaultBatch    = 512

	leastInterval = 100 * time.Millisecond
	maxBatch      = 512
)

var (
	// errGone ends a session: the host has no such session any more, or has another one for
	// this worker.
	errGone = errors.New("the session is over")
	// errFatal ends the worker.
	errFatal = errors.New("no retry changes this")
	// errSilent says that a host took a stream and does not send.
	errSilent = errors.New("no snapshot in time")
)

// verdict says what an error of a call means, beside that it did not work.
func verdict(err error, registering bool) error {
	switch status.Code(err) {
	case codes.InvalidArgument, codes.Unauthenticated, codes.PermissionDenied, codes.Unimplemented:
		return fmt.Errorf("%w: %w", errFatal, err)
	case codes.FailedPrecondition:
		if registering {
			return fmt.Errorf("%w: %w", errFatal, err)
		}
		return fmt.Errorf("%w: %w", errGone, err)
	}
	return err
}

// ending reports whether an error ends the session.
func ending(err error) bool { return errors.Is(err, errGone) || errors.Is(err, errFatal) }

// session is one registration.
type session struct {
	w        *Worker
	id       string
	ttl      time.Duration
	interval time.Duration // between reports
	counters int           // at most so many in a report
	batch    int           // outcomes in one

	mu      sync.Mutex
	pending *acknowledgement
	ack     chan struct{} // there is one
	stream  func(error)   // ends the stream that is open; nil = none is
	on      *host         // where it is open
}

// acknowledgement waits to be sent. The newest counts.
type acknowledgement struct {
	request *controlplanev1.AcknowledgeSnapshotRequest
	sent    chan struct{} // closed when it is, or is not needed any more
}

// supervise registers again and again.
func (w *Worker) supervise(ctx context.Context) error {
	retry := backoff.Backoff{Random: w.config.random}
	for avoid := hosts.None; ctx.Err() == nil; {
		s, h, err := w.register(ctx, avoid)
		if err == nil {
			w.sessions.Add(1)
			began := time.Now()
			w.config.Log.Info("session began", "session", s.id, "host", h.address)
			err = s.run(ctx)
			if time.Since(began) > s.ttl {
				retry.Applied() // it was not two processes under one name that throw each other out
			}
			avoid = hosts.None
		} else {
			avoid = h.place
		}
		if errors.Is(err, errFatal) {
			w.config.Log.Error("the worker ends", "error", err)
			return err
		}
		if ctx.Err() == nil {
			w.config.Log.Warn("session ended", "error", err)
			sleep(ctx, retry.Next(errors.Is(err, errGone) || w.another(h)))
		}
	}
	return nil
}

func (w *Worker) register(ctx context.Context, avoid int) (*session, *host, error) {
	var a *controlplanev1.RegisterWorkerResponse
	h, err := w.call(ctx, avoid, func(ctx context.Context, api controlplanev1.WorkerControlPlaneClient) (err error) {
		a, err = api.RegisterWorker(ctx, &controlplanev1.RegisterWorkerRequest{
			ClusterId: w.config.ClusterID, WorkerId: w.config.WorkerID, InstanceId: w.config.InstanceID, Zone: w.config.Zone,
			SupportedProtocolVersion: ProtocolVersion, MaxConnections: w.config.MaxConnections, Build: w.config.Build,
		})
		return err
	})
	if err != nil {
		return nil, h, fmt.Errorf("register with host %s: %w", h.address, verdict(err, true))
	}
	if v := a.GetProtocolVersion(); v != ProtocolVersion && v != 0 {
		return nil, h, fmt.Errorf("register with host %s: %w: it speaks protocol version %d, this worker %d", h.address, errFatal, v, ProtocolVersion)
	}
	if a.GetSessionId() == "" {
		return nil, h, fmt.Errorf("register with host %s: its answer has no session_id", h.address)
	}
	or := func(d, otherwise time.Duration) time.Duration {
		if d <= 0 {
			return otherwise
		}
		return d
	}
	s := &session{
		w: w, id: a.GetSessionId(), ack: make(chan struct{}, 1), counters: int(a.GetMaxRuntimeCounters()),
		ttl:      or(a.GetSessionTtl().AsDuration(), defaultTTL),
		interval: or(a.GetRuntimeInterval().AsDuration(), defaultInterval),
		batch:    defaultBatch,
	}
	s.interval = max(min(s.interval, s.ttl/3), leastInterval)
	if n := a.GetMaxOutcomeBatch(); n > 0 {
		s.batch = int(min(n, maxBatch))
	}
	w.maxStale.Store(int64(or(a.GetMaxStaleAge().AsDuration(), defaultMaxStale)))
	w.margin.Store(int64(w.config.margin(a.GetSafetyMargin())))
	signal(w.aged)
	return s, h, nil
}

// run works on a session until it is over. The error says why.
func (s *session) run(ctx context.Context) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var work sync.WaitGroup
	for _, loop := range []func(context.Context) error{s.watch, s.report, s.sendOutcomes} {
		work.Go(func() { cancel(loop(ctx)) })
	}
	work.Wait()
	return context.Cause(ctx)
}
