package forward

import (
	"errors"
	"io"
	"net"
	"os"
	"sync/atomic"
	"time"

	"github.com/dodona-project/dodona/cmd/proxy-gateway/internal/wire"
	controlplanev1 "github.com/dodona-project/dodona/proto/controlplane/v1"
	"github.com/dodona-project/dodona/sdk/worker/fault"
)

const (
	ticks    = 4 // looks at a tunnel in its idle time
	fullRuns = 4 // full buffers in a row after which the kernel copies
)

// tunnel serves a CONNECT. It reports whether another request may follow, which is so
// only after an answer of the gateway's own. A tunnel that stands goes on by itself, on
// goroutines whose stacks never held more than it takes: there may be very many.
func (c *client) tunnel() bool {
	w, no := c.lead()
	if no != nil {
		return c.answer(no)
	}
	if w.lease != nil {
		w.lease.Observe(time.Since(w.began), true)
	}
	c.s.Stats.Led[200].Add(1)
	_, err := io.WriteString(c.conn, "HTTP/1.1 200 Connection established\r\n\r\n")
	// What the client sent with its CONNECT is the tunnel's.
	if early := c.r.Buffered(); err == nil && len(early) > 0 {
		if _, err = w.conn.Write(early); err != nil {
			c.report(w, controlplanev1.Outcome_STAGE_TUNNEL, fault.Class(err), 0)
		}
		c.s.Stats.Up.Add(int64(len(early)))
	}
	if err != nil {
		_ = w.conn.Close()
		c.done(w)
		return false
	}
	c.r.Release()
	c.w.Release()
	c.q, c.p = wire.Request{Target: c.q.Target}, wire.Response{}
	t := &tunnel{c: c, w: w}
	t.open.Store(2)
	c.s.Stats.Tunnels.Add(1)
	if c.s.Limits.Total > 0 {
		t.total = time.AfterFunc(c.s.Limits.Total, c.close)
	}
	c.handed.Store(true)
	go t.upstream()
	go t.downstream()
	return false
}

var errIdle = errors.New("nothing came for too long")

// tunnel copies both ways between two connections until both directions have ended, or
// one of them is broken or both are idle; then both connections are closed. It ends the
// client and the way it was made of.
type tunnel struct {
	c     *client
	w     *way
	total *time.Timer // nil = no limit

	moved  atomic.Uint64 // rises when something came on either side
	half   atomic.Bool   // one direction has ended
	open   atomic.Int32  // directions
	failed atomic.Int32  // the first error that is the upstream's, by its class
}

// upstream copies what the client sends.
func (t *tunnel) upstream() {
	writing, err := t.copy(t.c.conn, t.w.conn, &t.c.s.Stats.Up)
	t.ended(writing, err)
}

// downstream copies what the target sends.
func (t *tunnel) downstream() {
	writing, err := t.copy(t.w.conn, t.c.conn, &t.c.s.Stats.Down)
	t.ended(!writing, err)
}

// ended ends a direction, and with the second one the tunnel.
func (t *tunnel) ended(upstreams bool, err error) {
	if upstreams && err != nil && !errors.Is(err, errIdle) && !errors.Is(err, net.ErrClosed) {
		t.failed.CompareAndSwap(0, int32(fault.Class(err)))
	}
	if t.open.Add(-1) > 0 {
		return
	}
	if t.total != nil {
		t.total.Stop()
	}
	_ = t.w.conn.Close()
	t.c.report(t.w, controlplanev1.Outcome_STAGE_TUNNEL, controlplanev1.ErrorClass(t.failed.Load()), 0)
	t.c.done(t.w)
	t.c.s.Stats.Tunnels.Add(-1)
	t.c.end()
}

// copy copies one direction and passes its end on. writing says that an error is not of
// the side that is read.
func (t *tunnel) copy(from, to *stream, count *atomic.Int64) (writing bool, err error) {
	writing, err = t.pump(from, to, count)
	if err == nil && t.half.Swap(true) {
		return false, nil // both have ended: what closes the connections says so to both sides
	}
	if err == nil {
		writing, err = true, to.closeWrite()
	}
	if err != nil {
		_ = from.Conn.Close()
		_ = to.Conn.Close()
		return writing, err
	}
	_ = to.SetReadDeadline(longAgo) // the other direction has less time now
	return false, nil
}

// patience is how a direction sees that its tunnel is idle.
type patience struct {
	seen  uint64
	since time.Time
}

// still says, when a read had no result in time, whether there is to be another one, and
// sets how long that waits.
func (t *tunnel) still(from *stream, p *patience) bool {
	for {
		now := time.Now()
		if moved := t.moved.Load(); moved != p.seen || p.since.IsZero() {
			p.seen, p.since = moved, now
		}
		limit, half := t.c.s.Limits.Idle, t.half.Load()
		if half {
			limit = min(limit, t.c.s.Limits.HalfClose)
		}
		left := limit - now.Sub(p.since)
		if left <= 0 || from.SetReadDeadline(now.Add(min(left, max(limit/ticks, time.Millisecond)))) != nil {
			return false
		}
		if half == t.half.Load() {
			return true
		}
	}
}

// pump copies until the end of from.
func (t *tunnel) pump(from, to *stream, count *atomic.Int64) (writing bool, err error) {
	var p patience
	if !t.still(from, &p) {
		return false, errIdle
	}
	for full := 0; ; {
		data, err := from.some()
		n := len(data)
		var failed error
		if n > 0 {
			t.moved.Add(1)
			count.Add(int64(n))
			_, failed = to.Write(data)
		}
		if giveBack(data); failed != nil {
			return true, failed
		}
		if full++; n < copySize {
			full = 0
		}
		switch {
		case errors.Is(err, io.EOF):
			return false, nil
		case errors.Is(err, os.ErrDeadlineExceeded):
			if !t.still(from, &p) {
				return false, errIdle
			}
		case err != nil:
			return false, err
		case full >= fullRuns && from.plain != nil && to.plain != nil:
			full = 0
			if end, writing, err := t.splice(from, to, &p, count); end || err != nil {
				return writing, err
			}
		}
	}
}

// splice has the kernel copy for as long as there is much to copy.
func (t *tunnel) splice(from, to *stream, p *patience, count *atomic.Int64) (end, writing bool, err error) {
	for {
		if err := due(&to.writeBy, to.writeLimit, to.SetWriteDeadline); err != nil {
			return false, true, err
		}
		part := io.LimitedReader{R: from.plain, N: piece}
		n, err := to.plain.ReadFrom(&part)
		if n > 0 {
			t.moved.Add(1)
			count.Add(n)
		}
		switch {
		case errors.Is(err, os.ErrDeadlineExceeded):
			if !t.still(from, p) {
				return false, false, errIdle
			}
			to.writeBy = noDeadline
			return false, false, nil
		case err != nil:
			return false, isWriting(err, to), err
		case part.N > 0:
			return true, false, nil
		}
	}
}

// some reads what there is. Who gets something gives it back. While there is nothing to
// read no buffer is held, if the side is plain TCP; else a small one, unless much came
// shortly before.
func (s *stream) some() ([]byte, error) {
	if s.quick != nil {
		return s.quick.borrow()
	}
	if !s.bulk {
		if s.small == nil {
			s.small = make([]byte, smallSize)
		}
		n, err := s.Conn.Read(s.small)
		s.bulk = n == smallSize
		return s.small[:n], err
	}
	buf := copyBuffers.Get().(*[copySize]byte)
	n, err := s.Conn.Read(buf[:])
	s.bulk = !errors.Is(err, os.ErrDeadlineExceeded)
	return buf[:n], err
}
