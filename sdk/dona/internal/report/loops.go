package report

import (
	"context"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	donav1 "github.com/dodona-project/dodona/proto/dona/v1"
	"github.com/dodona-project/dodona/sdk/internal/backoff"
)

// foldEvery is how often the queues are emptied while there is traffic. Without
// any, the folder sleeps.
const foldEvery = 10 * time.Millisecond

// fold empties the queues into the batch that gathers.
func (r *Reporter) fold() {
	defer close(r.folded)
	tick := time.NewTicker(foldEvery)
	defer tick.Stop()
	for {
		if !r.drain() {
			// Sleep, unless something came between looking and saying so.
			tick.Stop()
			r.asleep.Store(true)
			if r.drain() && r.asleep.CompareAndSwap(true, false) {
				tick.Reset(foldEvery)
				continue
			}
			select {
			case <-r.wake:
			case <-r.closing:
				r.drain()
				return
			}
			tick.Reset(foldEvery)
		}
		select {
		case <-tick.C:
		case <-r.hurry:
		case <-r.closing:
			r.drain()
			return
		}
	}
}

// drain takes in all that is queued and reports whether there was anything.
func (r *Reporter) drain() bool {
	now := time.Now()
	any, half := false, false
	for _, q := range r.rings {
		lost := uint64(0)
		r.mu.Lock()
		for range ringSize {
			e := q.next()
			if e == nil {
				break
			}
			any = true
			lost += r.next.add(e, now)
			q.release(e)
		}
		half = half || r.next.half()
		r.mu.Unlock()
		if lost > 0 {
			r.dropped.Add(lost)
		}
	}
	if any || half {
		signal(r.due)
	}
	return any
}

// send delivers one batch after the other.
func (r *Reporter) send() {
	defer close(r.sent)
	var sequence uint64
	for {
		closing := false
		select {
		case <-r.due:
		case <-r.closing:
			closing = true
		}
		if !closing {
			closing = r.gatherMore()
		}
		if closing {
			<-r.folded
		}
		if batch := r.take(); batch != nil {
			sequence++
			batch.Sequence = sequence
			batch.ReporterId, _ = r.ID()
			if r.deliver(batch) {
				sequence = 0 // under a new id
			}
		}
		if closing {
			return
		}
	}
}

// gatherMore waits for the interval, less when half a batch is there, and reports
// whether the reporter closes.
func (r *Reporter) gatherMore() (closing bool) {
	timer := time.NewTimer(r.cfg.Interval)
	defer timer.Stop()
	for {
		r.mu.Lock()
		half := r.next.half()
		r.mu.Unlock()
		if half {
			return false
		}
		select {
		case <-timer.C:
			return false
		case <-r.due:
		case <-r.closing:
			return true
		}
	}
}

// take ends the gathering of a batch; nil when there is nothing to say.
func (r *Reporter) take() *donav1.StatsBatch {
	r.mu.Lock()
	g := r.next
	applied := r.applied
	if g.items() == 0 && len(applied) == 0 {
		r.mu.Unlock()
		return nil
	}
	r.next, r.applied = newGather(), map[string]standing{}
	r.mu.Unlock()
	b := &donav1.StatsBatch{}
	g.fill(b, r.cfg.Caller)
	const maxApplied = 128 // keeps the batch within what a host takes
	for service, told := range applied {
		if len(b.Applied)+len(told) > maxApplied {
			r.mu.Lock()
			for _, a := range r.applied[service] {
				told = told.then(a)
			}
			r.applied[service] = told
			r.mu.Unlock()
			signal(r.due)
			continue
		}
		b.Applied = append(b.Applied, told...)
	}
	return b
}

// tellPause is the least time between two warnings of what a host did not count.
const tellPause = time.Minute

// sendTimeout bounds one attempt.
const sendTimeout = 10 * time.Second

// deliver sends a batch until a host answered it, one way or the other. The fence
// of a reporter may turn against it (another process with its id, a host that
// forgot): then it goes on under a new id, and deliver returns true.
func (r *Reporter) deliver(b *donav1.StatsBatch) (renamed bool) {
	retry := backoff.Backoff{Random: r.cfg.Random}
	items := uint64(len(b.Calls) + len(b.Exposures) + len(b.Audits))
	lose := func(why error) {
		r.dropped.Add(items)
		r.cfg.Log.Warn("report lost", "items", items, "sequence", b.Sequence, "error", why)
	}
	for try := 0; ; try++ {
		ctx, cancel := context.WithTimeout(r.sendCtx, sendTimeout)
		ack, err := r.cfg.Send(ctx, try, proto.CloneOf(b))
		cancel()
		if err == nil {
			lost := min(uint64(ack.GetDropped()), items)
			r.reported.Add(items - lost)
			r.dropped.Add(lost)
			if now := time.Now(); lost > 0 && now.Sub(r.told) >= tellPause {
				r.told = now
				r.cfg.Log.Warn("a host did not count items of a report: is this machine's clock off by more than 5 s, or their service or variant gone?", "items", lost, "of", items)
			}
			return false
		}
		if r.sendCtx.Err() != nil {
			lose(context.Cause(r.sendCtx))
			return false
		}
		switch status.Code(err) {
		case codes.Aborted, codes.AlreadyExists:
			r.newID()
			lose(err)
			return true
		case codes.InvalidArgument, codes.PermissionDenied, codes.Unauthenticated, codes.Unimplemented, codes.FailedPrecondition:
			lose(err)
			return false
		}
		if !r.pause(retry.Next(false)) {
			lose(context.Cause(r.sendCtx))
			return false
		}
	}
}

// closingRetry is how often a report is tried when there is little time left.
const closingRetry = 250 * time.Millisecond

// pause waits before the next attempt, less when a host is known to be there or
// the reporter closes. It reports whether there is time for another attempt.
func (r *Reporter) pause(d time.Duration) bool {
	closing := r.closing
	select {
	case <-closing:
		d, closing = min(d, closingRetry), nil
	default:
	}
	wait := time.NewTimer(d)
	defer wait.Stop()
	select {
	case <-wait.C:
	case <-r.there:
	case <-closing:
	case <-r.sendCtx.Done():
	}
	return r.sendCtx.Err() == nil
}
