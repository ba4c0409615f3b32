package plugins

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// fairTime is how much time a call must have had to count as a missed deadline
// of the plugin, when the deadline of its kind is longer: a caller in a hurry
// proves nothing.
const fairTime = time.Second

// deathNotice is the most that a failed call waits to learn that the process died,
// so that its error can say so. It takes a few milliseconds; a call never waits
// longer than its deadline for it.
const deathNotice = 100 * time.Millisecond

// An Identity says which plugin answered.
type Identity struct {
	Name       string
	Version    string
	Digest     string // sha256:<hex> of the file that runs
	Generation uint64
}

// Call runs do with a connection to the plugin, when it is ready, with the
// instance configured, and within the deadline of its kind, of its settings and
// of ctx, whichever is first. It never waits for a plugin to start.
//
// Errors: ErrUnknown, ErrAway, ErrExhausted, ErrDeadline, *ConfigError,
// *AnswerError and *CallError, and the error of ctx. do may run twice, when the
// plugin has forgotten the instance.
func (h *Host) Call(ctx context.Context, id ID, in Instance, method string, do func(context.Context, grpc.ClientConnInterface) error) (Identity, error) {
	return h.CallWithin(ctx, 0, id, in, method, do)
}

// CallWithin is Call for a plugin that is told how long it may take: within is
// the deadline that the call asks for, 0 = none of its own. A call that had less
// of it, because it waited or the settings allow less, proves nothing against
// the plugin.
func (h *Host) CallWithin(ctx context.Context, within time.Duration, id ID, in Instance, method string, do func(context.Context, grpc.ClientConnInterface) error) (Identity, error) {
	s, err := h.find(id)
	if err != nil {
		return Identity{}, err
	}
	began := time.Now()
	g, err := s.acquire()
	if err != nil {
		h.metrics.observe(id, method, "away", time.Since(began))
		return Identity{}, err
	}
	defer g.leave()
	who := Identity{Name: id.Name, Version: g.description.version, Digest: g.file.Digest, Generation: g.number}
	most := s.deadline()
	fair := min(most, fairTime)
	if within > 0 {
		most, fair = min(most, within), within
	}
	cctx, cancel := context.WithTimeout(ctx, most)
	defer cancel()
	defer g.output.mask.hide(secretsOf(ctx))()
	err = h.callIn(ctx, cctx, g, in, method, do, fair*9/10)
	g.meter.done(method, err, time.Since(began))
	return who, err
}

// callIn is the call on a generation: ctx is the caller's, cctx has the deadline.
// With less than least left it is not the plugin that missed it.
func (h *Host) callIn(ctx, cctx context.Context, g *generation, in Instance, method string, do func(context.Context, grpc.ClientConnInterface) error, least time.Duration) error {
	if err := g.slots.acquire(cctx); err != nil {
		if errors.Is(err, ErrExhausted) {
			h.metrics.shed.WithLabelValues(string(g.id.Kind), g.id.Name).Inc()
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
		return fmt.Errorf("%s of plugin %s: %w", method, g.id, err)
	}
	defer g.slots.release()
	g.meter.inflight.Inc()
	defer g.meter.inflight.Dec()

	deadline, _ := cctx.Deadline()
	fair := time.Until(deadline) >= least
	err := g.ready(cctx, in, false)
	if err == nil {
		err = do(cctx, g.conn)
		if status.Code(err) == codes.FailedPrecondition {
			if err = g.ready(cctx, in, true); err == nil {
				err = do(cctx, g.conn)
			}
		}
	}
	if err == nil {
		g.missed.Store(0)
		return nil
	}
	return h.classify(ctx, cctx, g, method, err, fair)
}

// classify turns what gRPC says into what callers know.
func (h *Host) classify(ctx, cctx context.Context, g *generation, method string, err error, fair bool) error {
	var refused *ConfigError
	var answer *AnswerError
	if errors.As(err, &refused) || errors.As(err, &answer) {
		g.missed.Store(0)
		return err
	}
	code := status.Code(err)
	awaitDeadline(cctx, code)
	late := code == codes.DeadlineExceeded || errors.Is(cctx.Err(), context.DeadlineExceeded)
	if late && fair && !g.attached() {
		if n := int(g.missed.Add(1)); n >= g.limits.MissedInRow {
			g.replace(fmt.Sprintf("missed %d deadlines in a row", n))
		}
	}
	switch {
	case ctx.Err() != nil:
		return fmt.Errorf("%s of plugin %s: %w", method, g.id, ctx.Err())
	case late && !deadlineOf(ctx).IsZero() && !deadlineOf(ctx).After(deadlineOf(cctx)):
		return fmt.Errorf("%s of plugin %s: %w", method, g.id, context.DeadlineExceeded)
	case late:
		return fmt.Errorf("%s of plugin %s: %w", method, g.id, ErrDeadline)
	case code == codes.ResourceExhausted && strings.Contains(err.Error(), "larger than max"):
		return h.Reject(g.id, "too_large", g.said(err))
	case code == codes.Internal && strings.Contains(err.Error(), "unmarshal"):
		return h.Reject(g.id, "encoding", "the message cannot be decoded")
	case code == codes.Unavailable, code == codes.Canceled && cctx.Err() == nil:
		// The latter is our own closing of the connection, which comes first
		// when the process is already known to be dead.
		return g.death(cctx, method, err)
	}
	g.missed.Store(0)
	return &CallError{Plugin: g.id, Method: method, Text: g.said(err), Cause: err}
}

// clockSlack is how much earlier than ours the plugin's clock may end a call.
const clockSlack = 50 * time.Millisecond

// awaitDeadline waits for a deadline that is about to pass when the other side,
// which has the same one, was first to end the call: it was late all the same.
func awaitDeadline(ctx context.Context, code codes.Code) {
	d, has := ctx.Deadline()
	if has && (code == codes.Canceled || code == codes.DeadlineExceeded) && time.Until(d) < clockSlack {
		<-ctx.Done()
	}
}

// death says what became of the process when the connection broke in a call.
func (g *generation) death(ctx context.Context, method string, err error) error {
	text := g.said(err)
	if p := g.process.Load(); p != nil {
		select {
		case <-p.Done():
			text = "the process ended during the call (" + p.Exit().String() + ")"
			if words := g.output.cause(); words != "" {
				text += "; it said: " + words
			}
		case <-ctx.Done():
		case <-time.After(deathNotice):
		}
	}
	return &CallError{Plugin: g.id, Method: method, Text: text, Cause: ErrAway}
}

// Reject counts a refused answer and returns the error that says so. Facades
// call it for everything a plugin answers that they do not accept.
func (h *Host) Reject(id ID, reason, detail string) *AnswerError {
	h.metrics.rejected.WithLabelValues(string(id.Kind), id.Name, reason).Inc()
	return &AnswerError{Plugin: id, Reason: reason, Detail: detail}
}

// outcome is the label of a call that ended with err.
func outcome(err error) string {
	if err == nil {
		return "ok"
	}
	var answer *AnswerError
	var config *ConfigError
	switch {
	case errors.As(err, &answer):
		return "rejected"
	case errors.As(err, &config):
		return "config"
	case errors.Is(err, ErrExhausted):
		return "shed"
	case errors.Is(err, ErrDeadline), errors.Is(err, context.DeadlineExceeded):
		return "deadline"
	case errors.Is(err, context.Canceled):
		return "canceled"
	}
	return "error"
}

// said is the message of a gRPC error, as words gives it.
func (g *generation) said(err error) string {
	return g.words(status.Convert(err).Message(), 1<<10)
}

// words is what the plugin says for people, printable, without the secrets that
// the process was given, and of at most most bytes.
func (g *generation) words(text string, most int) string {
	return clip(g.output.mask.replace(printable(text), false), most)
}

// slots bound the calls in flight, and those that wait for one.
type slots struct {
	most    int
	queue   int
	taken   chan struct{}
	waiting atomic.Int32
}

func newSlots(most int) *slots {
	return &slots{most: most, queue: max(most, 16), taken: make(chan struct{}, most)}
}

func (s *slots) acquire(ctx context.Context) error {
	select {
	case s.taken <- struct{}{}:
		return nil
	default:
	}
	if int(s.waiting.Add(1)) > s.queue {
		s.waiting.Add(-1)
		return ErrExhausted
	}
	defer s.waiting.Add(-1)
	select {
	case s.taken <- struct{}{}:
		return nil
	case <-ctx.Done():
		return ErrDeadline
	}
}

func (s *slots) release() { <-s.taken }
