package wire

import (
	"bytes"
	"errors"
	"io"
	"strconv"
	"sync"
)

const (
	maxChunkLine = 1 << 10  // bytes of a chunk's size with its extensions, which are dropped
	maxTrailers  = 16 << 10 // bytes of all trailers
	bulk         = 16 << 10 // a body of so many bytes more is left to the connections to move
)

// Writer gathers what is written to one connection. The zero value is to be Reset. One
// goroutine uses it at a time.
type Writer struct {
	dst io.Writer
	buf []byte
}

var writerBuffers = sync.Pool{New: func() any { return new([bufferSize]byte) }}

// Reset makes the Writer write to dst, with nothing gathered.
func (w *Writer) Reset(dst io.Writer) { w.dst, w.buf = dst, w.buf[:0] }

// Release gives the buffer back. What was gathered is gone.
func (w *Writer) Release() {
	if cap(w.buf) == bufferSize {
		writerBuffers.Put((*[bufferSize]byte)(w.buf[:bufferSize]))
	}
	w.buf = nil
}

// Append gathers what do appends.
func (w *Writer) Append(do func(to []byte) []byte) {
	if w.buf == nil {
		w.buf = writerBuffers.Get().(*[bufferSize]byte)[:0]
	}
	w.buf = do(w.buf)
}

// Flush writes what was gathered, in one write.
func (w *Writer) Flush() error {
	if len(w.buf) == 0 {
		return nil
	}
	n, err := w.dst.Write(w.buf)
	w.buf = w.buf[:0]
	if cap(w.buf) > bufferSize { // it grew for a long head
		w.buf = nil
	}
	if err != nil {
		return &Broken{Writing: true, Untouched: n == 0, Err: err}
	}
	return nil
}

// room is how many bytes are gathered before there has to be a write.
func (w *Writer) room() int {
	if w.buf == nil {
		return bufferSize
	}
	return bufferSize - len(w.buf)
}

// take gathers p, and writes when that is too much to gather.
func (w *Writer) take(p []byte) error {
	for len(p) > w.room() {
		if len(w.buf) == 0 {
			if _, err := w.dst.Write(p); err != nil {
				return &Broken{Writing: true, Err: err}
			}
			return nil
		}
		n := max(w.room(), 0)
		w.buf = append(w.buf, p[:n]...)
		p = p[n:]
		if err := w.Flush(); err != nil {
			return err
		}
	}
	w.Append(func(to []byte) []byte { return append(to, p...) })
	return nil
}

// Broken is why a body was not copied to its end: reading or writing failed, or what was
// read is no body.
type Broken struct {
	Writing   bool
	Untouched bool  // not a byte of this write went out
	Err       error // a *Malformed, io.ErrUnexpectedEOF, or what the connection gave
}

func (b *Broken) Error() string {
	if b.Writing {
		return "write body: " + b.Err.Error()
	}
	return "read body: " + b.Err.Error()
}

// Unwrap returns the reason.
func (b *Broken) Unwrap() error { return b.Err }

func reading(err error) error {
	if errors.Is(err, io.EOF) {
		err = io.ErrUnexpectedEOF
	}
	return &Broken{Err: err}
}

// Copy copies a body of this length from r to w and flushes w, also each time before it
// has to wait for more. A chunked body is framed anew with its trailers, or without
// chunks and trailers when plain is set. whole is called, unless it is nil, when
// everything has been read and before the last of it is written. The error is a *Broken.
func Copy(w *Writer, r *Reader, length int64, plain bool, whole func()) error {
	var err error
	switch {
	case length >= 0:
		err = copySized(w, r, length)
	case length == Chunked:
		err = copyChunks(w, r, plain)
	default:
		err = copyToEnd(w, r)
	}
	if err != nil {
		return err
	}
	if whole != nil {
		whole()
	}
	return w.Flush()
}

// more reads more when nothing is buffered, after a flush.
func more(w *Writer, r *Reader) error {
	if r.r < r.w {
		return nil
	}
	if err := w.Flush(); err != nil {
		return err
	}
	if err := r.fill(); err != nil {
		return reading(err)
	}
	return nil
}

func copySized(w *Writer, r *Reader, left int64) error {
	for left > 0 {
		if err := more(w, r); err != nil {
			return err
		}
		p := r.Buffered()
		p = p[:min(int64(len(p)), left)]
		if err := w.take(p); err != nil {
			return err
		}
		r.Discard(len(p))
		left -= int64(len(p))
		if left >= bulk && r.r == r.w {
			n, err := move(w, &io.LimitedReader{R: r.src, N: left})
			if left -= n; err != nil {
				return err
			}
			if left > 0 {
				return reading(io.EOF)
			}
		}
	}
	return nil
}

// move has the connection itself take what src gives until its end.
func move(w *Writer, src io.Reader) (int64, error) {
	if err := w.Flush(); err != nil {
		return 0, err
	}
	n, err := io.Copy(w.dst, src)
	var broken *Broken
	if err != nil && !errors.As(err, &broken) {
		err = &Broken{Err: err}
	}
	return n, err
}

func copyToEnd(w *Writer, r *Reader) error {
	for sum := 0; ; {
		if r.r == r.w && sum >= bulk {
			_, err := move(w, r.src)
			return err
		}
		if err := more(w, r); err != nil {
			if errors.Is(err, io.ErrUnexpectedEOF) {
				return nil
			}
			return err
		}
		p := r.Buffered()
		if err := w.take(p); err != nil {
			return err
		}
		r.Discard(len(p))
		sum += len(p)
	}
}

func copyChunks(w *Writer, r *Reader, plain bool) error {
	for {
		line, err := nextLine(w, r, maxChunkLine)
		if err != nil {
			return err
		}
		left, err := chunkSize(line)
		if err != nil {
			return &Broken{Err: err}
		}
		if left == 0 {
			return copyTrailers(w, r, plain)
		}
		if !plain {
			w.Append(func(to []byte) []byte { return append(strconv.AppendInt(to, left, 16), "\r\n"...) })
		}
		if err := copySized(w, r, left); err != nil {
			return err
		}
		if _, err = nextLine(w, r, 0); err != nil {
			return err
		}
		if !plain {
			w.Append(func(to []byte) []byte { return append(to, "\r\n"...) })
		}
	}
}

// chunkSize reads a line of hexadecimal digits and perhaps extensions.
func chunkSize(line []byte) (int64, error) {
	digits, extension, extended := bytes.Cut(line, []byte(";"))
	if extended {
		digits = bytes.TrimRight(digits, " \t")
	}
	for _, c := range extension {
		if c < ' ' && c != '\t' || c == 0x7f {
			return 0, malformed("a chunk's extension has the control character %#02x", c)
		}
	}
	var n int64
	for _, c := range digits {
		var d byte
		switch {
		case c >= '0' && c <= '9':
			d = c - '0'
		case c|0x20 >= 'a' && c|0x20 <= 'f':
			d = c | 0x20 - 'a' + 10
		default:
			return 0, malformed("a chunk's size is no hexadecimal number: %.40q", digits)
		}
		if n >= 1<<59 {
			return 0, malformed("a chunk's size is larger than 63 bits")
		}
		n = n<<4 | int64(d)
	}
	if len(digits) == 0 || len(digits) > 16 {
		return 0, malformed("a chunk's size has not 1 to 16 digits: %.40q", digits)
	}
	return n, nil
}

// nextLine consumes a line and returns it without its CRLF, valid until the next read.
func nextLine(w *Writer, r *Reader, longest int) ([]byte, error) {
	for scanned := 0; ; {
		data := r.Buffered()
		if i := bytes.IndexByte(data[scanned:], '\n'); i >= 0 {
			end := scanned + i
			if end == 0 || data[end-1] != '\r' {
				return nil, &Broken{Err: malformed("a line of a chunked body ends in LF alone")}
			}
			if end-1 > longest {
				return nil, tooLong(longest)
			}
			r.Discard(end + 1)
			return data[:end-1], nil
		}
		if scanned = len(data); scanned > longest+1 {
			return nil, tooLong(longest)
		}
		if err := w.Flush(); err != nil {
			return nil, err
		}
		if err := r.fill(); err != nil {
			return nil, reading(err)
		}
	}
}

func tooLong(longest int) error {
	if longest == 0 {
		return &Broken{Err: malformed("a chunk is longer than its size")}
	}
	return &Broken{Err: malformed("a line of a chunked body has more than %d bytes", longest)}
}

// copyTrailers copies what follows the last chunk. Trailers that would frame, route or
// authenticate a message do not go on: they come too late to be judged.
func copyTrailers(w *Writer, r *Reader, plain bool) error {
	end := func(to []byte) []byte { return append(to, "0\r\n"...) }
	if !plain {
		w.Append(end)
	}
	for sum := 0; ; {
		line, err := nextLine(w, r, maxTrailers)
		if err != nil {
			return err
		}
		if len(line) == 0 {
			if !plain {
				w.Append(func(to []byte) []byte { return append(to, "\r\n"...) })
			}
			return nil
		}
		if sum += len(line) + 2; sum > maxTrailers {
			return &Broken{Err: malformed("the trailers have more than %d bytes", maxTrailers)}
		}
		f, err := parseField(line)
		if err != nil {
			return &Broken{Err: err}
		}
		if !plain && f.kind == ordinary && !bytes.EqualFold(f.name, []byte("authorization")) && !bytes.EqualFold(f.name, []byte("trailer")) {
			w.Append(func(to []byte) []byte { return appendField(to, &f) })
		}
	}
}
