package worker

import (
	"context"
	"fmt"
	"math"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	controlplanev1 "github.com/dodona-project/dodona/proto/controlplane/v1"
	"github.com/dodona-project/dodona/sdk/internal/backoff"
	"github.com/dodona-project/dodona/sdk/internal/hosts"
)

const (
	// MaxOutcomes is how many outcomes wait to be sent: what does not fit is dropped and
	// counted, so that no request ever waits for a host.
	MaxOutcomes = 65_536

	maxBatches  = 16          // in one call
	sendEvery   = time.Second // less when a batch is full
	maxHostName = 253
)

// Outcome is what became of one attempt through a proxy.
type Outcome struct {
	ProxyID    string
	Routing    string
	Stage      controlplanev1.Outcome_Stage // an outcome without one is dropped
	Success    bool
	Class      controlplanev1.ErrorClass
	Latency    time.Duration
	Status     int // of HTTP; what is none, as the reply of a SOCKS5 proxy, is left out
	TargetHost string
	At         time.Time // zero = now
}

// outcomes is the queue: a ring that grows up to MaxOutcomes. The first inFlight of it are
// in batches that a host has not acknowledged.
type outcomes struct {
	mu       sync.Mutex
	ring     []Outcome // its length is a power of two
	head, n  int
	inFlight int
	reported uint64
	dropped  uint64
	more     chan struct{} // a batch is full
}

const firstRing = 1024

// Report notes an outcome. It never waits for a host.
func (w *Worker) Report(o Outcome) {
	if o.At.IsZero() {
		o.At = time.Now()
	}
	if w.outcomes.put(o) {
		signal(w.outcomes.more)
	}
}

// put adds an outcome and reports whether that fills a batch.
func (q *outcomes) put(o Outcome) (full bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.n >= MaxOutcomes || o.Stage == 0 {
		q.dropped++
		return false
	}
	if q.n == len(q.ring) {
		larger := make([]Outcome, max(2*len(q.ring), firstRing))
		for i := range q.n {
			larger[i] = *q.at(i)
		}
		q.ring, q.head = larger, 0
	}
	*q.at(q.n) = o
	q.n++
	return (q.n-q.inFlight)%maxBatch == 0
}

func (q *outcomes) at(i int) *Outcome { return &q.ring[(q.head+i)&(len(q.ring)-1)] }

func (q *outcomes) stats() (reported, dropped uint64) {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.reported, q.dropped
}

// restart takes all unacknowledged outcomes for unsent: a new session counts from 1.
func (q *outcomes) restart() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.inFlight = 0
}

// take returns the next outcomes that are in no batch, and counts them as in flight.
func (q *outcomes) take(most int) []Outcome {
	q.mu.Lock()
	defer q.mu.Unlock()
	out := make([]Outcome, 0, min(most, q.n-q.inFlight))
	for len(out) < cap(out) {
		out = append(out, *q.at(q.inFlight))
		q.inFlight++
	}
	return out
}

// done forgets the first outcomes, which a host has.
func (q *outcomes) done(n int) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for i := range n {
		*q.at(i) = Outcome{}
	}
	q.head, q.n, q.inFlight, q.reported = q.head+n, q.n-n, q.inFlight-n, q.reported+uint64(n)
	if q.n == 0 && len(q.ring) > firstRing {
		q.ring, q.head = nil, 0 // what a burst needed
	}
}

// sendOutcomes sends batches until the session is over, and once more what there is when
// the worker ends.
func (s *session) sendOutcomes(ctx context.Context) error {
	q := &s.w.outcomes
	q.restart()
	m := mailer{session: s, avoid: hosts.None}
	retry := backoff.Backoff{Random: s.w.config.random}
	wait, more := sendEvery, q.more
	timer := time.NewTimer(wait)
	defer timer.Stop()
	for {
		timer.Reset(wait)
		select {
		case <-timer.C:
		case <-more:
		case <-ctx.Done():
			if !ending(context.Cause(ctx)) {
				last, cancel := context.WithTimeout(context.WithoutCancel(ctx), farewell)
				defer cancel()
				_ = m.send(last) // what does not arrive now is lost, as the queue is with the process
			}
			return context.Cause(ctx)
		}
		err := m.send(ctx)
		switch {
		case err == nil:
			retry.Applied()
			wait, more = sendEvery, q.more
		case ctx.Err() != nil: // above
		case ending(err):
			return fmt.Errorf("report outcomes: %w", err)
		default:
			s.w.config.Log.Info("outcomes not delivered", "session", s.id, "error", err)
			wait, more = max(retry.Next(len(s.w.hosts) > 1), leastInterval), nil // a queue that fills does not hurry it
		}
	}
}

// mailer has the batches of a session that are not acknowledged: they are sent again,
// the same, until a host has them.
type mailer struct {
	*session
	sequence uint64
	batches  []*controlplanev1.OutcomeBatch
	avoid    int
}

// send sends until nothing is left, or a call fails.
func (m *mailer) send(ctx context.Context) error {
	q := &m.w.outcomes
	for {
		for len(m.batches) < maxBatches {
			next := q.take(m.batch)
			if len(next) == 0 {
				break
			}
			m.sequence++
			m.batches = append(m.batches, m.newBatch(m.sequence, next))
		}
		if len(m.batches) == 0 {
			return nil
		}
		accepted, h, err := m.deliver(ctx, m.avoid, m.batches)
		if status.Code(err) == codes.Aborted {
			// It has a later batch, so it has this one too: they are sent in order. The answer
			// that said so was lost.
			accepted, err = m.batches[0].GetSequence(), nil
		}
		n, count := 0, 0
		for n < len(m.batches) && m.batches[n].GetSequence() <= accepted {
			count += len(m.batches[n].GetOutcomes())
			n++
		}
		q.done(count)
		m.batches = m.batches[n:]
		switch {
		case err != nil:
			m.avoid = h.place
			return fmt.Errorf("host %s: %w", h.address, err)
		case n == 0:
			return fmt.Errorf("host %s took no batch: it says that it has %d", h.address, accepted)
		}
		m.avoid = hosts.None
	}
}

// deliver sends batches in one call and returns the last sequence that the host has, 0
// when it is not known.
func (s *session) deliver(ctx context.Context, avoid int, batches []*controlplanev1.OutcomeBatch) (accepted uint64, h *host, err error) {
	h, err = s.w.call(ctx, avoid, func(ctx context.Context, api controlplanev1.WorkerControlPlaneClient) error {
		stream, err := api.ReportOutcomes(ctx)
		if err != nil {
			return err
		}
		for _, b := range batches {
			if stream.Send(b) != nil {
				break // why is in the answer
			}
		}
		answer, err := stream.CloseAndRecv()
		accepted = answer.GetAcceptedSequence()
		return err
	})
	if status.Code(err) == codes.AlreadyExists { // somebody else counts in this session
		return 0, h, fmt.Errorf("%w: %w", errGone, err)
	}
	if err != nil {
		accepted, err = 0, verdict(err, false)
	}
	return accepted, h, err
}

func (s *session) newBatch(sequence uint64, list []Outcome) *controlplanev1.OutcomeBatch {
	b := &controlplanev1.OutcomeBatch{WorkerId: s.w.config.WorkerID, SessionId: s.id, Sequence: sequence}
	for _, o := range list {
		b.Outcomes = append(b.Outcomes, &controlplanev1.Outcome{
			ProxyId: o.ProxyID, Routing: o.Routing, Stage: o.Stage, Success: o.Success, ErrorClass: o.Class,
			LatencyMs: uint32(min(max(0, o.Latency.Milliseconds()), math.MaxUint32)), Status: httpStatus(o.Status),
			UnixMs: o.At.UnixMilli(), TargetHost: text(o.TargetHost, maxHostName),
		})
	}
	return b
}

// httpStatus is a status that a message may have; 0 = none.
func httpStatus(n int) uint32 {
	if n < 100 || n > 599 {
		return 0
	}
	return uint32(n)
}

// text is a string that a message may have.
func text(s string, most int) string {
	return strings.ToValidUTF8(s[:min(len(s), most)], "")
}
