// Package report gathers what requests came to and delivers it to a host: call
// outcomes, flag exposures, residency audits and which snapshots are in use.
//
// Noting something never blocks and allocates nothing: it goes into a bounded
// queue, and what does not fit is dropped and counted. One goroutine folds equal
// things together; another sends one batch at a time. A batch has a sequence and
// is sent again with the same content until a host answered, so that it counts
// once. While it is on its way the next one gathers, up to a bound.
package report

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	donav1 "github.com/dodona-project/dodona/proto/dona/v1"
	"github.com/dodona-project/dodona/sdk/dona/decide"
)

// Config is what a Reporter works with.
type Config struct {
	// Send delivers a batch. try counts the attempts for this batch, so that
	// another host can be tried. It must not keep or change the batch.
	Send     func(ctx context.Context, try int, batch *donav1.StatsBatch) (*donav1.ReportAck, error)
	Caller   string         // service on whose behalf calls are made, or empty
	Interval time.Duration  // how long a batch gathers
	Random   func() float64 // in [0, 1), for waits
	Log      *slog.Logger
}

// Outcome says how a call went.
type Outcome struct {
	Success bool
	Latency time.Duration
	Code    string
}

// Stats are counts since the start.
type Stats struct {
	Reported uint64 // items acknowledged
	Dropped  uint64 // items or events lost
}

// Reporter gathers and delivers. Safe for concurrent use.
type Reporter struct {
	cfg   Config
	id    atomic.Pointer[identity]
	rings [rings]*ring

	asleep atomic.Bool // the folder waits for wake
	wake   chan struct{}
	hurry  chan struct{} // a ring is half full: do not wait for the tick

	_        [64]byte      // all above is read by each event, what follows is written
	dropped  atomic.Uint64 // beside what the rings lost
	reported atomic.Uint64

	mu      sync.Mutex // guards next; never taken by Decision or Outcome
	next    *gather
	applied map[string]standing // by service: what a host was not told yet
	due     chan struct{}       // something waits to be sent
	there   chan struct{}       // a host has just been heard of

	closing    chan struct{}
	closeOnce  sync.Once
	folded     chan struct{} // the folder has ended
	sent       chan struct{} // the sender has ended
	told       time.Time     // when it was last said that a host did not count items; of the sender alone
	sendCtx    context.Context
	sendCancel context.CancelCauseFunc
}

// New starts a reporter. Close it.
func New(cfg Config) *Reporter {
	r := &Reporter{cfg: cfg, wake: make(chan struct{}, 1), hurry: make(chan struct{}, 1), next: newGather(), applied: map[string]standing{},
		due: make(chan struct{}, 1), there: make(chan struct{}, 1), closing: make(chan struct{}), folded: make(chan struct{}), sent: make(chan struct{})}
	for i := range r.rings {
		r.rings[i] = newRing(ringSize)
	}
	r.newID()
	r.sendCtx, r.sendCancel = context.WithCancelCause(context.Background())
	go r.fold()
	go r.send()
	return r
}

// identity is a reporter id for as long as batches carry it.
type identity struct {
	id    string
	ctx   context.Context
	ended context.CancelFunc
}

func (r *Reporter) newID() {
	next := &identity{id: fmt.Sprintf("sdk-%016x%016x", rand.Uint64(), rand.Uint64())}
	next.ctx, next.ended = context.WithCancel(context.Background())
	if old := r.id.Swap(next); old != nil {
		old.ended()
	}
}

// ID is the reporter id that batches carry now. The context ends when they carry
// another one.
func (r *Reporter) ID() (string, context.Context) {
	now := r.id.Load()
	return now.id, now.ctx
}

// Stats returns the counts so far.
func (r *Reporter) Stats() Stats {
	s := Stats{Reported: r.reported.Load(), Dropped: r.dropped.Load()}
	for _, q := range r.rings {
		s.Dropped += q.lost.Load()
	}
	return s
}

// Decision notes a decision that had a unit or a constraint.
func (r *Reporter) Decision(p *decide.Program, res *decide.Result, unit, id string) {
	e, at := r.claim()
	if e == nil {
		return
	}
	e.program, e.view = p, res.View
	e.missed, e.endpoint, e.flag, e.reason = res.Missed, res.Endpoint, res.Flag, uint8(res.Reason)
	e.denied = res.Kind == decide.KindDenied
	e.setUnit(unit)
	if id != "" {
		e.text = strings.Clone(id)
	}
	e.turn.Store(at + 1)
	r.rouse(at)
}

// noEndpoints stands for the endpoints of an evaluation that served nobody: nothing is
// to be audited.
var noEndpoints = &decide.View{}

// Evaluation notes that a unit was exposed to one flag.
func (r *Reporter) Evaluation(p *decide.Program, res *decide.FlagResult, unit string) {
	e, at := r.claim()
	if e == nil {
		return
	}
	e.program, e.view = p, noEndpoints
	e.missed, e.endpoint, e.flag, e.reason, e.denied = 0, res.Endpoint, res.Index, uint8(res.Reason), false
	if res.Endpoint < 0 && res.Index < 64 {
		e.missed, e.flag = 1<<res.Index, -1
	}
	e.setUnit(unit)
	e.turn.Store(at + 1)
	r.rouse(at)
}

// Outcome notes how a call to an endpoint of p went.
func (r *Reporter) Outcome(p *decide.Program, endpoint int32, o Outcome) {
	e, at := r.claim()
	if e == nil {
		return
	}
	e.program, e.view, e.endpoint = p, nil, endpoint
	e.success, e.latency, e.text = o.Success, uint32(min(max(0, o.Latency.Microseconds()), math.MaxUint32)), o.Code
	e.turn.Store(at + 1)
	r.rouse(at)
}

// rouse wakes the folder when it sleeps, and hurries it each time half a ring was
// filled.
func (r *Reporter) rouse(at uint64) {
	if at%(ringSize/2) == ringSize/2-1 {
		signal(r.hurry)
	}
	if r.asleep.Load() && r.asleep.CompareAndSwap(true, false) {
		r.wake <- struct{}{} // has room: only who ends the sleep sends
	}
}

// standing is what a host was not told of a service's snapshots: the newest that was
// applied and the newest that was refused, in the order in which that came. One that
// was refused is told of also when what followed at once is in use: a host that sent
// damage learns of it.
type standing []*donav1.AppliedConfig

func (s standing) then(a *donav1.AppliedConfig) standing {
	if a.RejectedReason == "" && len(s) > 0 && s[0].RejectedReason != "" {
		return standing{s[0], a}
	}
	return standing{a}
}

// Applied notes the version that a service decides by. As it comes from a host, a
// report that waits for one is tried again at once.
func (r *Reporter) Applied(service string, version uint64) {
	r.tell(&donav1.AppliedConfig{Service: service, Version: version})
	signal(r.there)
}

// Rejected notes a snapshot that was refused. The reason is cut to 256 bytes.
func (r *Reporter) Rejected(service string, version uint64, reason string) {
	if len(reason) > 256 {
		reason = strings.ToValidUTF8(reason[:256], "")
	}
	r.tell(&donav1.AppliedConfig{Service: service, Version: version, RejectedReason: reason})
}

func (r *Reporter) tell(a *donav1.AppliedConfig) {
	r.mu.Lock()
	r.applied[a.Service] = r.applied[a.Service].then(a)
	r.mu.Unlock()
	signal(r.due)
}

func signal(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// errGaveUp ends retries when Close has no time left.
var errGaveUp = errors.New("no host acknowledged the last report in time")

// Close sends what was noted before it, until ctx ends. What is noted afterwards
// is dropped.
func (r *Reporter) Close(ctx context.Context) error {
	r.closeOnce.Do(func() { close(r.closing) })
	<-r.folded
	select {
	case <-r.sent:
	case <-ctx.Done():
		r.sendCancel(errGaveUp)
		<-r.sent
	}
	defer r.sendCancel(nil)
	r.mu.Lock()
	left := r.next.items()
	r.mu.Unlock()
	if left > 0 || errors.Is(context.Cause(r.sendCtx), errGaveUp) {
		return fmt.Errorf("report: %w", errGaveUp)
	}
	return nil
}
