package upstream

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"

	controlplanev1 "github.com/dodona-project/dodona/proto/controlplane/v1"
	"github.com/dodona-project/dodona/sdk/worker/target"
)

const (
	maxInformational = 5   // 1xx answers before the one that counts
	answerSize       = 512 // bytes of an answer that are read at once
)

// connect asks an HTTP proxy for a tunnel. The request is one write: some proxies answer
// what they have got of it.
func connect(conn net.Conn, p Proxy, to target.Target) (net.Conn, error) {
	host := to.String()
	head := "CONNECT " + host + " HTTP/1.1\r\nHost: " + host + "\r\n"
	if a := p.Authorization(); a != "" {
		head += "Proxy-Authorization: " + a + "\r\n"
	}
	if _, err := io.WriteString(conn, head+"\r\n"); err != nil {
		return conn, err
	}
	limited := &limited{conn: conn, left: MaxHeader}
	r := bufio.NewReaderSize(limited, answerSize)
	for range maxInformational {
		answer, err := http.ReadResponse(r, &http.Request{Method: http.MethodConnect}) //nolint:bodyclose // to close a body is to read it, and what follows is the tunnel's
		if err != nil {
			if limited.err != nil {
				err = limited.err // half a line is given as a line, and is then called malformed
			}
			return conn, answerError(err)
		}
		// Whatever is framed as a body of a 2xx belongs to the tunnel; of others nobody reads it.
		switch code := answer.StatusCode; {
		case code >= 100 && code < 200 && code != http.StatusSwitchingProtocols:
			continue
		case code >= 200 && code < 300:
			return withRest(conn, r), nil
		default:
			return conn, statusError(code)
		}
	}
	return conn, protocolError("the proxy sends more than %d informational answers", maxInformational)
}

func protocolError(format string, args ...any) *Error {
	return &Error{Stage: Handshake, Class: controlplanev1.ErrorClass_ERROR_CLASS_PROTOCOL, Err: fmt.Errorf(format, args...)}
}

// errLong ends an answer that is too long.
var errLong = fmt.Errorf("the proxy's answer has more than %d bytes", MaxHeader)

func answerError(err error) error {
	var timeout net.Error
	switch {
	case errors.Is(err, errLong):
		return protocolError("%w", errLong)
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF), errors.As(err, &timeout):
		return fmt.Errorf("no answer to CONNECT: %w", err)
	}
	return protocolError("the answer to CONNECT is not HTTP: %.80q", err.Error())
}

// statusError judges a refused CONNECT. The phrase after the number is not shown: it is
// whatever the other side likes.
func statusError(code int) *Error {
	e := &Error{Stage: Handshake, Class: controlplanev1.ErrorClass_ERROR_CLASS_PROXY_STATUS, Status: code}
	switch code {
	case http.StatusProxyAuthRequired:
		e.Class, e.Err = controlplanev1.ErrorClass_ERROR_CLASS_PROXY_AUTH, errors.New("the proxy answers 407: it does not take these credentials")
		return e
	case http.StatusNotFound, http.StatusInternalServerError, http.StatusBadGateway, http.StatusServiceUnavailable, http.StatusGatewayTimeout:
		e.Target = true
	}
	e.Err = fmt.Errorf("the proxy answers CONNECT with %d", code)
	return e
}

// limited reads a connection until so many bytes came, and remembers why it ended.
type limited struct {
	conn net.Conn
	left int
	err  error
}

func (l *limited) Read(p []byte) (int, error) {
	if l.left <= 0 {
		l.err = errLong
		return 0, errLong
	}
	n, err := l.conn.Read(p[:min(len(p), l.left)])
	l.left, l.err = l.left-n, err
	return n, err
}

// withRest returns the connection with what the reader took beyond the answer in front.
func withRest(conn net.Conn, r *bufio.Reader) net.Conn {
	n := r.Buffered()
	if n == 0 {
		return conn
	}
	rest, _ := r.Peek(n) // cannot fail: it is what is there
	return &Early{Conn: conn, rest: append([]byte(nil), rest...)}
}

// Early is a connection of which some bytes were read already. They come first. One
// goroutine reads at a time, as of every connection.
type Early struct {
	net.Conn
	rest []byte
}

// Read gives the early bytes, and then the connection's.
func (e *Early) Read(p []byte) (int, error) {
	if len(e.rest) > 0 {
		n := copy(p, e.rest)
		e.rest = e.rest[n:]
		return n, nil
	}
	return e.Conn.Read(p)
}

// WriteTo writes the early bytes to w and then copies from the connection itself, so
// that the kernel can do it where it could without them.
func (e *Early) WriteTo(w io.Writer) (int64, error) {
	var sum int64
	if len(e.rest) > 0 {
		n, err := w.Write(e.rest)
		sum, e.rest = int64(n), e.rest[n:]
		if err != nil {
			return sum, err
		}
	}
	n, err := io.Copy(w, e.Conn)
	return sum + n, err
}

// CloseWrite ends the writing side only, if the connection can do that.
func (e *Early) CloseWrite() error {
	if half, ok := e.Conn.(interface{ CloseWrite() error }); ok {
		return half.CloseWrite()
	}
	return e.Close()
}
