package forward

import (
	"errors"
	"io"
	"net"
	"os"
	"sync/atomic"
	"syscall"
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
	c.s.Stats.Answers[200].Add(1)
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
	if writing, err = t.pump(from, to, count); err == nil {
		writing, err = true, to.closeWrite()
	}
	if err != nil {
		_ = from.Conn.Close()
		_ = to.Conn.Close()
		return writing, err
	}
	if !t.half.Swap(true) {
		_ = to.SetReadDeadline(longAgo) // the other direction has less time now
	}
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
	src := newSource(from)
	defer src.release()
	for full := 0; ; {
		n, err := src.read()
		if n > 0 {
			t.moved.Add(1)
			count.Add(int64(n))
			_, failed := to.Write(src.buf[:n])
			src.release()
			if failed != nil {
				return true, failed
			}
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

// source reads a tunnel's side. While there is nothing to read it holds no buffer, if
// the side is plain TCP.
type source struct {
	s   *stream
	raw syscall.RawConn
	try func(fd uintptr) bool
	buf *[copySize]byte
	n   int
	err error
}

func newSource(s *stream) *source {
	x := &source{s: s}
	if s.plain != nil {
		if raw, err := s.plain.SyscallConn(); err == nil {
			x.raw, x.try = raw, x.attempt
		}
	}
	return x
}

// read reads into buf, which is valid until release.
func (x *source) read() (int, error) {
	if x.raw == nil {
		if x.buf == nil {
			x.buf = copyBuffers.Get().(*[copySize]byte)
		}
		return x.s.Conn.Read(x.buf[:])
	}
	x.n, x.err = 0, nil
	if err := x.raw.Read(x.try); err != nil {
		return 0, err
	}
	return x.n, x.err
}

// attempt reads once. False has it called again when there may be something.
func (x *source) attempt(fd uintptr) bool {
	if x.buf == nil {
		x.buf = copyBuffers.Get().(*[copySize]byte)
	}
	for {
		x.n, x.err = syscall.Read(int(fd), x.buf[:])
		switch {
		case errors.Is(x.err, syscall.EINTR):
			continue
		case errors.Is(x.err, syscall.EAGAIN):
			x.release()
			return false
		case x.err != nil:
			x.n, x.err = 0, os.NewSyscallError("read", x.err)
		case x.n == 0:
			x.err = io.EOF
		}
		return true
	}
}

func (x *source) release() {
	if x.buf != nil {
		copyBuffers.Put(x.buf)
		x.buf = nil
	}
}
