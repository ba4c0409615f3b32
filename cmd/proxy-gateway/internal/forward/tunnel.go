package forward

import (
	"errors"
	"io"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	controlplanev1 "github.com/dodona-project/dodona/proto/controlplane/v1"
	"github.com/dodona-project/dodona/sdk/worker/fault"
)

const (
	ticks    = 4 // looks at a tunnel in its idle time
	fullRuns = 4 // full buffers in a row after which the kernel copies
)

// tunnel serves a CONNECT. It reports whether another request may follow, which is so
// only after an answer of the gateway's own.
func (c *client) tunnel() bool {
	w, no := c.lead()
	if no != nil {
		return c.answer(no)
	}
	defer c.done(w)
	defer func() { _ = w.conn.Close() }()
	if w.lease != nil {
		w.lease.Observe(time.Since(w.began), true)
	}
	c.s.Stats.Answers[200].Add(1)
	if _, err := io.WriteString(c.conn, "HTTP/1.1 200 Connection established\r\n\r\n"); err != nil {
		return false
	}
	// What the client sent with its CONNECT is the tunnel's.
	if early := c.r.Buffered(); len(early) > 0 {
		if _, err := w.conn.Write(early); err != nil {
			c.report(w, controlplanev1.Outcome_STAGE_TUNNEL, fault.Class(err), 0)
			return false
		}
		c.s.Stats.Up.Add(int64(len(early)))
	}
	c.r.Release()
	c.w.Release()
	c.s.Stats.Tunnels.Add(1)
	defer c.s.Stats.Tunnels.Add(-1)
	t := &tunnel{idle: c.s.Limits.Idle, halfClose: c.s.Limits.HalfClose, up: &c.s.Stats.Up, down: &c.s.Stats.Down}
	if c.s.Limits.Total > 0 {
		timer := time.AfterFunc(c.s.Limits.Total, c.close)
		defer timer.Stop()
	}
	c.report(w, controlplanev1.Outcome_STAGE_TUNNEL, fault.Class(t.run(c.conn, w.conn)), 0)
	return false
}

var errIdle = errors.New("nothing came for too long")

// tunnel copies both ways between two connections.
type tunnel struct {
	idle, halfClose time.Duration
	up, down        *atomic.Int64 // bytes

	moved atomic.Uint64 // rises when something came on either side
	half  atomic.Bool   // one direction has ended
}

// run copies until both directions have ended, or one of them is broken or both are
// idle; then both connections are closed. The error is the upstream's fault.
func (t *tunnel) run(client, upstream *stream) error {
	var other sync.WaitGroup
	var sent error
	sending := false
	other.Go(func() { sending, sent = t.copy(client, upstream, t.up) })
	writing, err := t.copy(upstream, client, t.down)
	other.Wait()
	for _, e := range []struct {
		upstreams bool
		err       error
	}{{!writing, err}, {sending, sent}} {
		if e.upstreams && e.err != nil && !errors.Is(e.err, errIdle) && !errors.Is(e.err, net.ErrClosed) {
			return e.err
		}
	}
	return nil
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
		limit, half := t.idle, t.half.Load()
		if half {
			limit = min(limit, t.halfClose)
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
