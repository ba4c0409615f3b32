package dona

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/dodona-project/dodona/sdk/dona/decide"
	"github.com/dodona-project/dodona/sdk/dona/mirror"
	"github.com/dodona-project/dodona/sdk/dona/plan"
)

// Service decides for the requests to one service.
type Service struct {
	client  *Client
	name    string
	refused error // the name is wrong, or the client was closed

	current         atomic.Pointer[state]
	attributeErrors atomic.Uint64
	changed         atomic.Pointer[watchStatus]

	readyOnce, freshOnce sync.Once
	ready                chan struct{} // closed with the first snapshot, from anywhere
	fresh                chan struct{} // closed with the first that a host gave or confirmed

	telling sync.Mutex
	told    chan struct{} // closed at the next change; nil = nobody waits

	// Owned by the watch: what is decided by, and what its stream got last.
	held     held
	received *mirror.Snapshot
	loads    plan.Loads

	unsaved atomic.Pointer[mirror.Snapshot] // what is not on disk yet
	save    chan struct{}                   // one slot: something is unsaved
}

// state is what a decision reads: one atomic load.
type state struct {
	program *decide.Program
	stale   bool
}

// watchStatus is what the watch last saw.
type watchStatus struct {
	staleSince time.Time // zero while a host confirms the snapshot
	fromDisk   bool
	host       string
	problem    error
	disk       error // why what was kept on disk is of no use
}

// trouble is what hosts have to do with there being no watch, nil before the first
// attempt, and what the disk has.
func (w *watchStatus) trouble() error {
	if w.problem != nil && w.disk != nil {
		return fmt.Errorf("%w; %w", w.problem, w.disk)
	}
	return w.problem
}

// Name returns the name of the service.
func (s *Service) Name() string { return s.name }

// Pick decides one request. It makes no call and does not wait: without any
// snapshot it fails with ErrNoData; see Ready. When nothing may or can serve, the
// error is a *DeniedError or *UnavailableError and the Pick holds the Decision.
func (s *Service) Pick(ctx context.Context, req Request) (pick Pick, err error) {
	// A Pick is large: it is filled in where the caller gets it.
	if err := ctx.Err(); err != nil {
		return pick, err
	}
	st := s.current.Load()
	if st == nil {
		return pick, s.noData()
	}
	p := st.program
	var res decide.Result
	p.DecideInto(&req, &res)
	if res.TypeErrors != 0 {
		s.attributeErrors.Add(uint64(res.TypeErrors))
	}
	d := &pick.Decision
	d.Kind, d.Reason, d.ConfigVersion, d.Stale = res.Kind, res.Reason, p.Version(), st.stale
	if res.View != nil && (req.Unit != "" || res.View.Constrained()) {
		s.client.reporter.Decision(p, &res, req.Unit, req.ID)
	}
	if res.Err != nil {
		if s.client.opts.observer != nil {
			s.observe(ctx, p, res, req.Unit, pick)
		}
		return pick, res.Err
	}
	p.CopyEndpoint(res.Endpoint, &pick.Endpoint)
	d.Variant, d.Flag = pick.Endpoint.Variant, p.Flag(res.Flag)
	pick.service, pick.program, pick.index = s, p, res.Endpoint
	pick.load = res.Load
	pick.load.Begin()
	if s.client.opts.observer != nil {
		pick.ended = s.observe(ctx, p, res, req.Unit, pick)
	}
	return pick, nil
}

// Explain decides a request on the current snapshot and says what each stage saw.
func (s *Service) Explain(req Request) (*decide.Trace, error) {
	st := s.current.Load()
	if st == nil {
		return nil, s.noData()
	}
	return st.program.Explain(req), nil
}

func (s *Service) noData() error {
	if s.refused != nil {
		return s.refused
	}
	if problem := s.changed.Load().trouble(); problem != nil {
		return fmt.Errorf("%w: no snapshot of service %s yet: %w", ErrNoData, s.name, problem)
	}
	return fmt.Errorf("%w: no snapshot of service %s yet", ErrNoData, s.name)
}

// diskGrace is how long Ready prefers a host's answer to a snapshot from disk.
const diskGrace = 100 * time.Millisecond

// Ready waits until the service can decide. A snapshot from disk counts when no
// host answered within 100 ms. Note that a host may know a service without
// endpoints: then Pick is unavailable, but Ready is done.
func (s *Service) Ready(ctx context.Context) error {
	if s.refused != nil {
		return s.refused
	}
	select {
	case <-s.fresh:
		return nil
	default:
	}
	select {
	case <-s.fresh:
		return nil
	case <-s.ready:
	case <-ctx.Done():
		return fmt.Errorf("wait for service %s: %w: %w", s.name, context.Cause(ctx), s.noData())
	case <-s.client.ctx.Done():
		return ErrClosed
	}
	grace := time.NewTimer(diskGrace)
	defer grace.Stop()
	select {
	case <-s.fresh:
	case <-grace.C:
	case <-ctx.Done():
	case <-s.client.ctx.Done():
	}
	return nil
}

// Changed returns a channel that is closed when the service next decides by another
// snapshot, when that becomes stale or is confirmed again, and when an attempt to
// get the first one has failed. Who asks for the channel first and looks then
// misses nothing.
func (s *Service) Changed() <-chan struct{} {
	s.telling.Lock()
	defer s.telling.Unlock()
	if s.told == nil {
		s.told = make(chan struct{})
	}
	return s.told
}

func (s *Service) tell() {
	s.telling.Lock()
	defer s.telling.Unlock()
	if s.told != nil {
		close(s.told)
		s.told = nil
	}
}

// Endpoints returns the endpoints of the current snapshot, draining ones included:
// those that a Pick may give. Before the first snapshot the error says why there is
// none.
func (s *Service) Endpoints() ([]Endpoint, error) {
	st := s.current.Load()
	if st == nil {
		return nil, s.noData()
	}
	out := make([]Endpoint, st.program.Endpoints())
	for i := range out {
		st.program.CopyEndpoint(int32(i), &out[i])
	}
	return out, nil
}

// Status is what a service works with at the moment.
type Status struct {
	Version    uint64    // of the snapshot; 0 = none
	Endpoints  int       // in it
	Stale      bool      // no host confirms it now
	StaleSince time.Time // when the last host was lost, or for a snapshot from disk when it was saved
	FromDisk   bool      // no host has confirmed it since this process began
	Host       string    // the host that serves the watch, or empty
	Problem    error     // why there is no watch, or a snapshot of a host or from disk was refused; nil when all is well
}

// Status returns what the service works with.
func (s *Service) Status() Status {
	st, w := s.current.Load(), s.changed.Load()
	out := Status{Host: w.host, Problem: w.trouble(), FromDisk: w.fromDisk}
	if s.refused != nil {
		out.Problem = s.refused
	}
	if st != nil {
		out.Version, out.Endpoints, out.Stale = st.program.Version(), st.program.Endpoints(), st.stale
		if st.stale {
			out.StaleSince = w.staleSince
		}
	}
	return out
}
