package forward

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"strconv"
	"time"

	"github.com/dodona-project/dodona/cmd/proxy-gateway/internal/wire"
	controlplanev1 "github.com/dodona-project/dodona/proto/controlplane/v1"
	"github.com/dodona-project/dodona/sdk/worker/fault"
	"github.com/dodona-project/dodona/sdk/worker/target"
	"github.com/dodona-project/dodona/sdk/worker/upstream"
)

// refusal is an answer of the gateway's own.
type refusal struct {
	status int
	token  string // the error type of RFC 9209
	why    string // for people; no addresses of proxies and no credentials
	close  bool   // the connection is of no use any more
	silent bool   // nobody is there to be answered
}

// retryAfter is what a client is told to wait when nothing has room.
const retryAfter = 1 // second

// proxyName is how this gateway calls itself in Proxy-Status.
const proxyName = "proxy-gateway"

func (r *refusal) append(to []byte, body bool, last bool) []byte {
	to = append(strconv.AppendInt(append(to, "HTTP/1.1 "...), int64(r.status), 10), ' ')
	to = append(append(to, http.StatusText(r.status)...), "\r\nProxy-Status: "+proxyName+"; error="...)
	to = append(append(to, r.token...), "; details="...)
	to = append(appendQuoted(to, r.why), "\r\n"...)
	switch r.status {
	case http.StatusProxyAuthRequired:
		to = append(to, "Proxy-Authenticate: Basic realm=\"proxy-gateway\", charset=\"UTF-8\"\r\n"...)
	case http.StatusServiceUnavailable:
		to = append(strconv.AppendInt(append(to, "Retry-After: "...), retryAfter, 10), "\r\n"...)
	}
	if last {
		to = append(to, "Connection: close\r\n"...)
	}
	to = append(to, "Content-Type: text/plain; charset=utf-8\r\nContent-Length: "...)
	to = append(strconv.AppendInt(to, int64(len(r.why)+1), 10), "\r\n\r\n"...)
	if body {
		to = append(append(to, r.why...), '\n')
	}
	return to
}

// appendQuoted appends a string as structured fields have it: ASCII that can be seen.
func appendQuoted(to []byte, text string) []byte {
	to = append(to, '"')
	for _, c := range []byte(text) {
		switch {
		case c == '"' || c == '\\':
			to = append(to, '\\', c)
		case c < ' ' || c > '~':
			to = append(to, '?')
		default:
			to = append(to, c)
		}
	}
	return append(to, '"')
}

// badRequest is the answer to a head that was not read.
func badRequest(err error) *refusal {
	var malformed *wire.Malformed
	var wrongTarget *target.Malformed
	switch {
	case errors.Is(err, wire.ErrVersion):
		return &refusal{status: http.StatusHTTPVersionNotSupported, token: "http_request_error", why: err.Error(), close: true}
	case errors.Is(err, wire.ErrHeadTooLong):
		return &refusal{status: http.StatusRequestHeaderFieldsTooLarge, token: "http_request_error", why: err.Error(), close: true}
	case errors.As(err, &malformed), errors.As(err, &wrongTarget):
		return &refusal{status: http.StatusBadRequest, token: "http_request_error", why: err.Error(), close: true}
	case errors.Is(err, os.ErrDeadlineExceeded):
		return &refusal{status: http.StatusRequestTimeout, token: "http_request_error", why: "the request did not come to its end in time", close: true}
	}
	return &refusal{silent: true, close: true}
}

// unavailable is the answer when nothing has room.
func unavailable(why string) *refusal {
	return &refusal{status: http.StatusServiceUnavailable, token: "connection_limit_reached", why: why}
}

// noView is the answer while nothing says what is led where.
func noView() *refusal {
	r := unavailable("the gateway has no valid snapshot of what to lead where")
	r.token = "destination_unavailable"
	return r
}

// denied is the answer to a target that the policy refuses.
func denied(to target.Target, r *target.Refusal) *refusal {
	token := "http_request_denied"
	if to.Addr.IsValid() {
		token = "destination_ip_prohibited"
	}
	return &refusal{status: http.StatusForbidden, token: token, why: r.Error()}
}

// tokens are the error types of RFC 9209, by the class of an error.
var tokens = map[controlplanev1.ErrorClass]string{
	controlplanev1.ErrorClass_ERROR_CLASS_TIMEOUT:      "connection_timeout",
	controlplanev1.ErrorClass_ERROR_CLASS_REFUSED:      "connection_refused",
	controlplanev1.ErrorClass_ERROR_CLASS_RESET:        "connection_terminated",
	controlplanev1.ErrorClass_ERROR_CLASS_DNS:          "dns_error",
	controlplanev1.ErrorClass_ERROR_CLASS_TLS:          "tls_protocol_error",
	controlplanev1.ErrorClass_ERROR_CLASS_PROXY_AUTH:   "proxy_configuration_error",
	controlplanev1.ErrorClass_ERROR_CLASS_PROXY_STATUS: "destination_unavailable",
	controlplanev1.ErrorClass_ERROR_CLASS_POLICY:       "proxy_configuration_error",
}

// notConnected is the answer when no connection came about.
func notConnected(err error) *refusal {
	var e *upstream.Error
	var refused *target.Refusal
	class := fault.Class(err)
	why := "the target is not reached: " + reason(class, err)
	switch {
	case errors.As(err, &e):
		class = e.Class
		if why = "the upstream proxy is not reached: "; e.Stage == upstream.Handshake {
			why = "the upstream proxy's handshake fails: "
		}
		why += reason(class, e.Err)
	case errors.As(err, &refused):
		return &refusal{status: http.StatusForbidden, token: "destination_ip_prohibited", why: refused.Error()}
	}
	r := &refusal{status: http.StatusBadGateway, token: tokens[class], why: why}
	if r.token == "" {
		r.token = "proxy_internal_error"
	}
	switch class {
	case controlplanev1.ErrorClass_ERROR_CLASS_TIMEOUT:
		r.status = http.StatusGatewayTimeout
	case controlplanev1.ErrorClass_ERROR_CLASS_CANCELED:
		r.silent, r.close = true, true
	}
	return r
}

// reason says why a connection did not come about, without a name or an address of the
// other side, or of who looked it up.
func reason(class controlplanev1.ErrorClass, err error) string {
	switch class {
	case controlplanev1.ErrorClass_ERROR_CLASS_DNS:
		return "its name is not found"
	case controlplanev1.ErrorClass_ERROR_CLASS_TIMEOUT:
		return "no answer in time"
	case controlplanev1.ErrorClass_ERROR_CLASS_TLS:
		return "its TLS or its certificate does not hold"
	case controlplanev1.ErrorClass_ERROR_CLASS_POLICY:
		return "its address is of a class that is not allowed"
	}
	return fault.Text(err)
}

// noResponse is the answer when no response was read after the request went out.
func noResponse(err error) *refusal {
	var malformed *wire.Malformed
	r := &refusal{status: http.StatusBadGateway, token: "http_response_incomplete", why: "the upstream's answer does not come: " + fault.Text(err)}
	switch {
	case errors.As(err, &malformed):
		r.token, r.why = "http_protocol_error", "the upstream's answer is not HTTP: "+malformed.Why
	case errors.Is(err, wire.ErrHeadTooLong):
		r.token, r.why = "http_response_header_section_size", "the upstream's answer: "+err.Error()
	case errors.Is(err, os.ErrDeadlineExceeded):
		r.status, r.token, r.why = http.StatusGatewayTimeout, "http_response_timeout", "the upstream does not answer in time"
	case errors.Is(err, io.EOF):
		r.token, r.why = "connection_terminated", "the upstream closes the connection without an answer"
	}
	return r
}

// answer sends an answer of the gateway's own. It reports whether the connection can be
// used for another request.
func (c *client) answer(r *refusal) bool {
	if r.silent {
		return false
	}
	c.s.Stats.Own[r.status].Add(1)
	// What follows a body that nobody read, or a refused CONNECT, could be taken for a
	// request.
	body := c.q.Length != 0
	early := c.q.Connect && (r.status != http.StatusProxyAuthRequired || len(c.r.Buffered()) > 0)
	last := r.close || body || early || !c.q.Persistent() || c.leave.Load()
	c.w.Append(func(to []byte) []byte { return r.append(to, c.q.Method != http.MethodHead, last) })
	if c.w.Flush() != nil {
		return false
	}
	if last {
		c.linger()
	}
	return !last
}

// linger closes the writing side and reads for a while, so that the answer is not lost to
// a reset when the client still sends.
func (c *client) linger() {
	if c.conn.closeWrite() != nil {
		return
	}
	_ = c.conn.SetReadDeadline(time.Now().Add(lingerLimit))
	_, _ = io.CopyN(io.Discard, c.conn.Conn, lingerBytes)
}

// isTimeout reports a limit of time that was met, a context's too.
func isTimeout(err error) bool {
	var timeout net.Error
	return errors.Is(err, context.DeadlineExceeded) || errors.As(err, &timeout) && timeout.Timeout()
}
