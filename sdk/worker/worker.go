package worker

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	controlplanev1 "github.com/dodona-project/dodona/proto/controlplane/v1"
	"github.com/dodona-project/dodona/sdk/internal/hosts"
	"github.com/dodona-project/dodona/sdk/internal/link"
)

// State is what a worker may do, by the age of its snapshot.
type State uint8

// The states, in the order of an outage.
const (
	Starting State = iota // no snapshot yet: nothing is accepted
	Serving               // the snapshot is valid
	Expired               // it is not: nothing can be picked, what runs goes on
	Stale                 // it is older than the host allows: accept nothing, drain what runs
	Ended                 // what still runs is to be closed: its proxies may be somebody else's soon
)

var stateNames = [...]string{"starting", "serving", "expired", "stale", "ended"}

func (s State) String() string { return stateNames[min(int(s), len(stateNames)-1)] }

// Worker has a session with a control plane. Its methods are safe for concurrent use.
type Worker struct {
	config Config
	hosts  []*host
	health *hosts.Set
	base   time.Time

	view  atomic.Pointer[View]
	slots slots

	maxStale atomic.Int64 // nanoseconds, as the last registration had it
	margin   atomic.Int64 // between Stale and Ended
	draining atomic.Bool
	aged     chan struct{} // a View was swapped in: its times are new
	idle     chan struct{} // a report is worth sending now
	outcomes outcomes

	sessions, refused atomic.Uint64
}

// host is one address of a control-plane host.
type host struct {
	place   int
	address string
	conn    *grpc.ClientConn
	api     controlplanev1.WorkerControlPlaneClient
}

// New makes a worker. It does nothing until Run. The error names all that is wrong with
// the configuration.
func New(config Config) (*Worker, error) {
	addresses, err := config.fill()
	if err != nil {
		return nil, err
	}
	w := &Worker{config: config, health: hosts.New(len(addresses), config.random), base: time.Now(),
		aged: make(chan struct{}, 1), idle: make(chan struct{}, 1)}
	w.outcomes.more = make(chan struct{}, 1)
	w.maxStale.Store(int64(defaultMaxStale))
	w.margin.Store(int64(config.margin(nil)))
	for i, a := range addresses {
		conn, err := link.New(a, link.Options{Credentials: config.Credentials, Dialer: config.Dialer})
		if err != nil {
			return nil, errors.Join(fmt.Errorf("host %s: %w", a, err), w.disconnect())
		}
		w.hosts = append(w.hosts, &host{place: i, address: a, conn: conn, api: controlplanev1.NewWorkerControlPlaneClient(conn)})
	}
	return w, nil
}

func (w *Worker) disconnect() (first error) {
	for _, h := range w.hosts {
		if err := h.conn.Close(); err != nil && first == nil {
			first = err
		}
	}
	return first
}

// now is the worker's monotonic clock.
func (w *Worker) now() int64 { return int64(time.Since(w.base)) }

// View returns the current snapshot, nil before the first. It may have ended: see State.
func (w *Worker) View() *View { return w.view.Load() }

// State is what the worker may do now.
func (w *Worker) State() State {
	s, _ := w.stateAt(w.now())
	return s
}

// stateAt returns the state at an instant, and when the next one begins by itself.
func (w *Worker) stateAt(now int64) (State, int64) {
	v := w.view.Load()
	if v == nil {
		return Starting, never
	}
	stale := max(v.received+w.maxStale.Load(), v.until)
	ended := stale + w.margin.Load()
	switch {
	case now < v.until:
		return Serving, v.until
	case now < stale:
		return Expired, stale
	case now < ended:
		return Stale, ended
	}
	return Ended, never
}

// watchState calls OnState at each change until ctx ends.
func (w *Worker) watchState(ctx context.Context) {
	last := Starting
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for {
		now := w.now()
		state, next := w.stateAt(now)
		if state != last {
			w.config.Log.Info("state of the worker", "state", state, "was", last)
			last = state
			if w.config.OnState != nil {
				w.config.OnState(state)
			}
		}
		timer.Reset(min(time.Duration(next-now), time.Hour))
		select {
		case <-timer.C:
		case <-w.aged:
		case <-ctx.Done():
			return
		}
	}
}

// Drain says that this worker leaves: hosts assign it nothing new, and take back what it
// has as it becomes unused. There is no way back.
func (w *Worker) Drain() {
	w.draining.Store(true)
	signal(w.idle)
}

// InUse is how many places are reserved or active on all proxies together.
func (w *Worker) InUse() int {
	w.slots.mu.Lock()
	defer w.slots.mu.Unlock()
	sum := 0
	for _, s := range w.slots.byID {
		active, reserved := s.counts()
		sum += int(active) + int(reserved)
	}
	return sum
}

// Stats are counts since the worker was made.
type Stats struct {
	Sessions uint64 // registered
	Refused  uint64 // snapshots
	Reported uint64 // outcomes that a host has
	Dropped  uint64 // outcomes that found the queue full
}

// Stats returns the counts so far.
func (w *Worker) Stats() Stats {
	reported, dropped := w.outcomes.stats()
	return Stats{Sessions: w.sessions.Load(), Refused: w.refused.Load(), Reported: reported, Dropped: dropped}
}

// Run keeps the session until ctx ends, and then returns nil once it told a host what
// it uses. It is called once. An error is one that no retry changes: this worker's
// identity, its cluster or its protocol is not what the host takes. The View goes on until
// its times are over.
func (w *Worker) Run(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	var work sync.WaitGroup
	work.Go(func() { w.watchState(ctx) })
	err := w.supervise(ctx)
	cancel()
	work.Wait()
	return errors.Join(err, w.disconnect())
}

// swap makes a View the current one.
func (w *Worker) swap(v *View) {
	old := w.view.Swap(v)
	w.slots.mu.Lock()
	if w.slots.byID == nil {
		w.slots.byID = map[string]*slot{}
	}
	for id, s := range w.slots.byID {
		gone := v.proxies[id] == nil
		s.retired.Store(gone)
		if gone && s.load.InFlight() == 0 {
			delete(w.slots.byID, id)
		}
	}
	for id, p := range v.proxies { // one that came back may have been forgotten meanwhile
		p.slot.retired.Store(false)
		w.slots.byID[id] = p.slot
	}
	w.slots.mu.Unlock()
	for _, err := range v.skipped {
		w.config.Log.Warn("a proxy of the snapshot cannot be used", "version", v.Version(), "error", err)
	}
	if w.config.OnView != nil {
		w.config.OnView(old, v)
	}
	signal(w.aged)
}

// next returns the host to ask now, not avoid's if there is another.
func (w *Worker) next(avoid int) *host { return w.hosts[w.health.Next(avoid, time.Now())] }

// another reports whether there is a host besides h that nothing speaks against.
func (w *Worker) another(h *host) bool { return w.health.Another(h.place, time.Now()) == 0 }

// note remembers what an attempt says of its host.
func (w *Worker) note(h *host, err error) {
	switch {
	case err == nil:
		w.health.Worked(h.place)
	case errors.Is(err, link.ErrAway), errors.Is(err, errSilent),
		status.Code(err) == codes.Unavailable, status.Code(err) == codes.DeadlineExceeded:
		w.health.Failed(h.place, time.Now())
	}
}

// callTimeout bounds one call.
const callTimeout = 5 * time.Second

// call makes one call on the host to ask now, and remembers how it did.
func (w *Worker) call(ctx context.Context, avoid int, f func(context.Context, controlplanev1.WorkerControlPlaneClient) error) (*host, error) {
	h := w.next(avoid)
	err := link.Ready(ctx, h.conn, w.another(h))
	if err == nil {
		limited, cancel := context.WithTimeout(ctx, callTimeout)
		err = f(limited, h.api)
		cancel()
	}
	if ctx.Err() == nil {
		w.note(h, err)
	}
	return h, err
}

func signal(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// sleep waits for d and reports whether ctx still lives.
func sleep(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}
