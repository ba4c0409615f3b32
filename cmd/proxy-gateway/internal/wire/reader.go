// Package wire reads and writes HTTP/1.1 messages the way a forward proxy has to: heads
// are parsed strictly, so that no other program can read them in another way, and bodies
// are copied piece by piece in a framing of our own making. The gateway's forward package
// is its only user.
//
// What is strict: lines end in CRLF and nothing else; there is no folding, no space
// before a colon, no control character; one Content-Length, or one Transfer-Encoding that
// says chunked, never both. Whatever does not keep to that is a [*Malformed] and ends
// its connection, because where the next message begins is then anybody's guess.
//
// Heads are slices of the [Reader]'s buffer and live until its next read. Nothing here
// knows of connections, deadlines or proxies.
package wire

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"sync"
)

// MaxHead is the most bytes of a message's head, start line and fields together.
const MaxHead = 64 << 10

// bufferSize is what a Reader begins with, and a Writer has.
const bufferSize = 4 << 10

// ErrHeadTooLong ends a head that has more bytes or fields than are read.
var ErrHeadTooLong = fmt.Errorf("the head has more than %d bytes or %d fields", MaxHead, maxFields)

// Malformed is why a message is not read as HTTP/1.1.
type Malformed struct{ Why string }

func (m *Malformed) Error() string { return m.Why }

func malformed(format string, args ...any) error {
	return &Malformed{Why: fmt.Sprintf(format, args...)}
}

// Reader reads messages off one connection. The zero value is to be Reset. One goroutine
// uses it at a time.
type Reader struct {
	src  io.Reader
	buf  []byte
	r, w int // buf[r:w] is not consumed
}

var readerBuffers = sync.Pool{New: func() any { return new([bufferSize]byte) }}

// Reset makes the Reader read from src, with nothing buffered.
func (b *Reader) Reset(src io.Reader) { b.src, b.r, b.w = src, 0, 0 }

// Release gives the buffer back. What was buffered is gone, and heads that were read are
// not valid any more.
func (b *Reader) Release() {
	if len(b.buf) == bufferSize {
		readerBuffers.Put((*[bufferSize]byte)(b.buf))
	}
	b.buf, b.r, b.w = nil, 0, 0
}

// Buffered is what was read and not consumed. It is valid until the next read.
func (b *Reader) Buffered() []byte { return b.buf[b.r:b.w] }

// Discard consumes n buffered bytes.
func (b *Reader) Discard(n int) { b.r += n }

// Await reads until at least one byte is buffered. io.EOF is the end of the connection.
func (b *Reader) Await() error {
	if b.r < b.w {
		return nil
	}
	return b.fill()
}

// fill reads once, and makes room before: by moving what there is to the front, and
// by a larger buffer when that is full.
func (b *Reader) fill() error {
	switch {
	case b.buf == nil:
		b.buf = readerBuffers.Get().(*[bufferSize]byte)[:]
	case b.r == b.w:
		b.r, b.w = 0, 0
	case b.w == len(b.buf) && b.r > 0:
		b.w, b.r = copy(b.buf, b.buf[b.r:b.w]), 0
	case b.w == len(b.buf):
		larger := make([]byte, 2*len(b.buf))
		copy(larger, b.buf)
		if len(b.buf) == bufferSize {
			readerBuffers.Put((*[bufferSize]byte)(b.buf))
		}
		b.buf = larger
	}
	for range 100 {
		n, err := b.src.Read(b.buf[b.w:])
		b.w += n
		if n > 0 {
			return nil
		}
		if err != nil {
			return err
		}
	}
	return io.ErrNoProgress
}

// shrink lets a buffer go that grew for a long head.
func (b *Reader) shrink() {
	if len(b.buf) > bufferSize && b.r == b.w {
		b.buf, b.r, b.w = nil, 0, 0
	}
}

// head returns the next head with the empty line at its end, consumed. One empty
// line before it is skipped when lead is set.
func (b *Reader) head(lead bool) ([]byte, error) {
	b.shrink()
	scanned, line := 0, 0
	for {
		data := b.buf[b.r:b.w]
		if len(data) > 0 && !isToken(data[0]) && data[0] != '\r' && data[0] != '\n' {
			return nil, malformed("the message begins with byte %#02x, which no HTTP message does", data[0])
		}
		for {
			i := bytes.IndexByte(data[scanned:], '\n')
			if i < 0 {
				scanned = len(data)
				break
			}
			end := scanned + i
			if end == 0 || data[end-1] != '\r' {
				return nil, malformed("a line of the head ends in LF alone")
			}
			empty := end-line == 1
			scanned, line = end+1, end+1
			if !empty {
				continue
			}
			if end > 1 {
				if end+1 > MaxHead {
					return nil, ErrHeadTooLong
				}
				b.r += end + 1
				return data[:end+1], nil
			}
			if !lead {
				return nil, malformed("the message begins with an empty line")
			}
			lead = false
			b.r += 2
			data = data[2:]
			scanned, line = 0, 0
		}
		if len(data) > MaxHead {
			return nil, ErrHeadTooLong
		}
		if err := b.fill(); err != nil {
			if errors.Is(err, io.EOF) && b.r < b.w {
				err = io.ErrUnexpectedEOF
			}
			return nil, err
		}
	}
}
