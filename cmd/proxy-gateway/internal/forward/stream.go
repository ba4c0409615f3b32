package forward

import (
	"crypto/tls"
	"errors"
	"io"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/dodona-project/dodona/cmd/proxy-gateway/internal/wire"
	"github.com/dodona-project/dodona/sdk/worker/upstream"
)

// stream is a connection whose reads and writes have limits of time. One goroutine reads
// and one writes at a time; abort and Close are for any.
type stream struct {
	net.Conn
	plain *net.TCPConn // Conn itself when it is TCP and nothing else
	tcp   *net.TCPConn // what carries Conn, if that is TCP
	quick *direct      // to plain's socket, nil without one

	limit time.Duration // of each read, or of all of them together
	whole bool          // all together, from the first one that waits
	armed bool          // with whole: the first one has been

	readBy, writeBy time.Time // the deadlines that are set
	writeLimit      time.Duration
	small           []byte // of a tunnel's side that is no plain TCP
	bulk            bool   // much came through it
	aborted         atomic.Bool
}

func newStream(conn net.Conn, write time.Duration) *stream {
	s := &stream{Conn: conn, writeLimit: write}
	if s.plain, _ = conn.(*net.TCPConn); s.plain != nil {
		if raw, err := s.plain.SyscallConn(); err == nil {
			s.quick = newDirect(raw)
		}
	}
	s.tcp = carrier(conn)
	return s
}

// carrier is the TCP connection below.
func carrier(conn net.Conn) *net.TCPConn {
	switch c := conn.(type) {
	case *net.TCPConn:
		return c
	case *tls.Conn:
		return carrier(c.NetConn())
	case *upstream.Early:
		return carrier(c.Conn)
	}
	return nil
}

// each gives every following read this long.
func (s *stream) each(limit time.Duration) { s.limit, s.whole = limit, false }

// together gives all following reads this long, counted from the first that happens.
func (s *stream) together(limit time.Duration) { s.limit, s.whole, s.armed = limit, true, false }

// due moves a deadline when it is more than an eighth off: to set one costs more than to
// look at the clock.
func due(at *time.Time, limit time.Duration, set func(time.Time) error) error {
	now := time.Now()
	if left := at.Sub(now); left <= limit && left >= limit-limit/8 {
		return nil
	}
	*at = now.Add(limit)
	return set(*at)
}

var errAborted = errors.New("the request was given up")

// arm sets the read's deadline.
func (s *stream) arm() error {
	if s.limit <= 0 || s.whole && s.armed {
		return nil
	}
	s.armed = true
	if err := due(&s.readBy, s.limit, s.SetReadDeadline); err != nil {
		return err
	}
	if s.aborted.Load() { // after the deadline was set, or abort's would be overwritten
		return errAborted
	}
	return nil
}

func (s *stream) Read(p []byte) (int, error) {
	if err := s.arm(); err != nil {
		return 0, err
	}
	if s.quick != nil {
		return s.quick.read(p)
	}
	return s.Conn.Read(p)
}

func (s *stream) Write(p []byte) (int, error) {
	if err := due(&s.writeBy, s.writeLimit, s.SetWriteDeadline); err != nil {
		return 0, err
	}
	if s.quick != nil {
		return s.quick.write(p)
	}
	return s.Conn.Write(p)
}

// noDeadline is none.
var noDeadline time.Time

// longAgo is a deadline that ends a read at once.
var longAgo = time.Unix(1, 0)

// abort ends the reads, for good.
func (s *stream) abort() {
	s.aborted.Store(true)
	_ = s.SetReadDeadline(longAgo)
}

func (s *stream) closeWrite() error {
	if half, ok := s.Conn.(interface{ CloseWrite() error }); ok {
		return half.CloseWrite()
	}
	return s.Conn.Close()
}

// reset closes so that the other side does not take it for an end.
func (s *stream) reset() {
	if s.tcp != nil {
		_ = s.tcp.SetLinger(0)
	}
	_ = s.Conn.Close()
}

// piece is how much is left to the kernel at once before limits are looked at.
const piece = 1 << 20

// ReadFrom copies a body from another stream to this one, in the kernel where both are
// plain TCP. It is what wire.Copy uses for what is long.
func (s *stream) ReadFrom(r io.Reader) (int64, error) {
	left := int64(1<<63 - 1)
	limited, ok := r.(*io.LimitedReader)
	if ok {
		left, r = limited.N, limited.R
	}
	from, isStream := r.(*stream)
	if !isStream || s.plain == nil || from.plain == nil {
		return s.copyFrom(r, left)
	}
	var sum int64
	for left > 0 {
		if err := from.arm(); err != nil {
			return sum, err
		}
		if err := due(&s.writeBy, s.writeLimit, s.SetWriteDeadline); err != nil {
			return sum, &wire.Broken{Writing: true, Err: err}
		}
		part := io.LimitedReader{R: from.plain, N: min(left, piece)}
		n, err := s.plain.ReadFrom(&part)
		sum, left = sum+n, left-n
		switch {
		case err == nil && part.N > 0:
			return sum, nil // the end
		case n > 0 && errors.Is(err, os.ErrDeadlineExceeded) && !from.aborted.Load():
			from.readBy, s.writeBy = time.Time{}, time.Time{} // it moved: it was not idle
		case err != nil:
			return sum, &wire.Broken{Writing: isWriting(err, s), Err: err}
		}
	}
	return sum, nil
}

// isWriting says of an error of the kernel's copy, which does not name a side, whether it
// is of the one that was written to.
func isWriting(err error, to *stream) bool {
	if errors.Is(err, syscall.EPIPE) {
		return true
	}
	look := hungUp
	switch {
	case errors.Is(err, syscall.ECONNRESET):
	case errors.Is(err, os.ErrDeadlineExceeded):
		look = takesNothing
	default:
		return false
	}
	raw, failed := to.plain.SyscallConn()
	if failed != nil {
		return true
	}
	is := false
	failed = raw.Control(func(fd uintptr) { is = look(int(fd)) })
	return failed != nil || is
}

// takesNothing reports whether a socket has no room for what is written to it.
func takesNothing(fd int) bool {
	n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLOUT}}, 0)
	return err == nil && n == 0
}

const (
	copySize  = 16 << 10
	smallSize = 512
)

var copyBuffers = sync.Pool{New: func() any { return new([copySize]byte) }}

// copyFrom copies through a buffer.
func (s *stream) copyFrom(r io.Reader, left int64) (sum int64, err error) {
	buf := copyBuffers.Get().(*[copySize]byte)
	defer copyBuffers.Put(buf)
	for left > 0 {
		n, err := r.Read(buf[:min(left, copySize)])
		if n > 0 {
			if _, err := s.Write(buf[:n]); err != nil {
				return sum, &wire.Broken{Writing: true, Err: err}
			}
			sum, left = sum+int64(n), left-int64(n)
		}
		if errors.Is(err, io.EOF) {
			return sum, nil
		}
		if err != nil {
			return sum, &wire.Broken{Err: err}
		}
	}
	return sum, nil
}

// quiet reports whether an idle connection is open and has nothing to read, which it
// should not have.
func (s *stream) quiet() bool {
	if s.tcp == nil {
		return true
	}
	raw, err := s.tcp.SyscallConn()
	if err != nil {
		return false
	}
	quiet := false
	err = raw.Control(func(fd uintptr) { quiet = nothingToRead(int(fd)) })
	return err == nil && quiet
}
