package session

import (
	"context"
	"sync"
	"time"

	controlplanev1 "github.com/dodona-project/dodona/proto/controlplane/v1"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"
)

const (
	pulseEvery   = 500 * time.Millisecond // while checks are made
	pulseTimeout = time.Second            // one that takes longer is a gap of the link
)

// link is what is known of this machine's network: since when the control plane has
// answered whatever it was asked. A check that began before that may have failed because
// nothing went out, and so says nothing of its proxy.
type link struct {
	mu    sync.Mutex
	since time.Time // zero while nothing is answered
}

// heard notes how a call to the control plane ended. What a server says counts as an
// answer, whatever it is.
func (l *link) heard(err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch status.Code(err) {
	case codes.Unavailable, codes.DeadlineExceeded, codes.Canceled:
		l.since = time.Time{}
	default:
		if l.since.IsZero() {
			l.since = time.Now()
		}
	}
}

// whole reports whether there was no gap from a moment on.
func (l *link) whole(from time.Time) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return !l.since.IsZero() && !from.Before(l.since)
}

// pulse asks the control plane whether it is there, and notes whether it answers.
func (s *Session) pulse(ctx context.Context) {
	limited, cancel := context.WithTimeout(ctx, pulseTimeout)
	defer cancel()
	_, err := grpc_health_v1.NewHealthClient(s.host()).Check(limited, &grpc_health_v1.HealthCheckRequest{})
	if ctx.Err() == nil {
		s.link.heard(err)
	}
}

// watch takes the pulse while checks are made, so that a gap is seen also when it is
// over by the time at which they are reported.
func (s *Session) watch(ctx context.Context) {
	tick := time.NewTicker(pulseEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			if s.Running.Load() > 0 {
				s.pulse(ctx)
			}
		}
	}
}

// confirm makes failures inconclusive unless the control plane answers now, and has all
// the while since their checks began: a report that is sent into a network that is gone
// may arrive when it is back.
func (s *Session) confirm(ctx context.Context, batch []result) {
	failed := false
	for _, r := range batch {
		failed = failed || r.Result == controlplanev1.HealthObservation_RESULT_FAILURE
	}
	if !failed {
		return
	}
	s.pulse(ctx)
	for _, r := range batch {
		if !s.link.whole(r.began) {
			doubt(r.HealthObservation)
		}
	}
}
