package forward

import (
	"errors"
	"net"
	"net/http"
	"os"
	"sync/atomic"
	"time"

	"github.com/dodona-project/dodona/cmd/proxy-gateway/internal/wire"
	controlplanev1 "github.com/dodona-project/dodona/proto/controlplane/v1"
	"github.com/dodona-project/dodona/sdk/worker/fault"
	"github.com/dodona-project/dodona/sdk/worker/upstream"
)

const (
	headers          = controlplanev1.Outcome_STAGE_RESPONSE_HEADERS
	maxInformational = 32 // 1xx answers before the one that counts
)

// errBug is the error of a body whose goroutine did not end as it should.
var errBug = errors.New("a bug ended the copy of the body")

// upload is the request's body on its way.
type upload struct {
	whole atomic.Bool   // it was read to its end
	at    atomic.Int64  // when, in nanoseconds since 1970, if there is a goroutine for it
	done  chan struct{} // nil = there is no goroutine for it
	err   error         // of the copy, once done is closed
	ours  bool          // it was given up
}

// recent reports whether the body is still on its way, or arrived so short a time ago.
func (u *upload) recent(limit time.Duration) bool {
	if u.done == nil {
		return false
	}
	if u.whole.Load() {
		return time.Since(time.Unix(0, u.at.Load())) < limit
	}
	select {
	case <-u.done:
		return false // it will not arrive
	default:
		return true
	}
}

// finish waits until the body's goroutine has ended. An upstream that answered and does not
// take the last of the body has a moment to do so.
func (u *upload) finish(conn net.Conn) {
	timer := time.AfterFunc(lingerLimit, func() { _ = conn.Close() })
	<-u.done
	timer.Stop()
}

// exchange sends the request, and the response back. It reports whether the client's
// connection can be used for another request.
func (c *client) exchange() bool {
	w, no := c.lead()
	if no != nil {
		return c.answer(no)
	}
	defer c.done(w)
	var r wire.Reader
	r.Reset(w.conn)
	defer r.Release()
	up, err := c.send(w, &r)
	if err != nil {
		_ = w.conn.Close()
		c.report(w, headers, fault.Class(err), 0)
		if e := (*upstream.Error)(nil); errors.As(err, &e) {
			return c.answer(notConnected(err))
		}
		return c.answer(noResponse(err))
	}
	no, last := c.receive(w, &r, up)
	if up.done != nil {
		if !up.whole.Load() || no != nil {
			c.conn.abort() // the client's body is of no use any more
		}
		if no != nil || !up.whole.Load() {
			_ = w.conn.Close()
		}
		up.finish(w.conn)
	}
	reusable := no == nil && !last.broken && up.whole.Load() && (up.done == nil || up.err == nil) &&
		c.p.Persistent() && len(r.Buffered()) == 0 && w.lease != nil
	if reusable {
		c.use(nil)
		c.s.idle.put(w.at, w.conn)
	} else {
		_ = w.conn.Close()
	}
	c.done(w) // what follows is between the client and us
	switch {
	case no != nil:
		if fixed := c.blame(up); fixed != nil {
			no = fixed
		}
		return c.answer(no)
	case last.broken:
		c.conn.reset()
		return false
	case last.close:
		c.linger()
		return false
	}
	return true
}

// blame is the answer when it was the client that did not send its body: nil when it did.
func (c *client) blame(up *upload) *refusal {
	var broken *wire.Broken
	if up.done == nil || up.ours || !errors.As(up.err, &broken) || broken.Writing {
		return nil
	}
	var malformed *wire.Malformed
	switch {
	case errors.As(up.err, &malformed):
		return &refusal{status: http.StatusBadRequest, token: "http_request_error", why: malformed.Why, close: true}
	case errors.Is(up.err, os.ErrDeadlineExceeded):
		return &refusal{status: http.StatusRequestTimeout, token: "http_request_error", why: "the request's body did not come to its end in time", close: true}
	}
	return &refusal{silent: true, close: true}
}

// send writes the request's head, and its body as far as that is there already; what is
// not yet there is sent by a goroutine.
func (c *client) send(w *way, r *wire.Reader) (*upload, error) {
	up := &upload{}
	var out wire.Writer
	// A client that waits for 100 gets to know first whether its body is wanted.
	there := !c.q.Continue && c.q.Length >= 0 && c.q.Length <= int64(len(c.r.Buffered()))
	err := c.sendHead(w, &out, there)
	if broken := (*wire.Broken)(nil); w.reused && errors.As(err, &broken) && broken.Untouched {
		// It was closed before anything went out: the same on a new one.
		_ = w.conn.Close()
		if err = c.open(w, w.to != c.q.Target, false); err == nil {
			r.Reset(w.conn)
			err = c.sendHead(w, &out, there)
		}
	}
	if err != nil {
		out.Release()
		return nil, err
	}
	if there {
		c.r.Discard(int(c.q.Length))
		up.whole.Store(true)
		out.Release()
		return up, nil
	}
	c.conn.each(c.s.Limits.Idle)
	up.done = make(chan struct{})
	conn := w.conn
	go func() {
		defer close(up.done)
		defer func() {
			if errors.Is(up.err, errBug) {
				_ = conn.Close()
			}
		}()
		defer c.s.survive()
		up.err = errBug // until it is known better
		up.err = wire.Copy(&out, &c.r, c.q.Length, false, func() {
			up.at.Store(time.Now().UnixNano())
			up.whole.Store(true)
		})
		up.ours = c.conn.aborted.Load()
		out.Release()
		if broken := (*wire.Broken)(nil); errors.As(up.err, &broken) && !broken.Writing {
			_ = conn.Close() // without all of the body there is no answer to wait for
		}
	}()
	return up, nil
}

// sendHead writes the head, in one write with the body if that is there.
func (c *client) sendHead(w *way, out *wire.Writer, there bool) error {
	onward := wire.Onward{Absolute: w.absolute}
	if w.absolute {
		onward.Login = w.lease.Via().Authorization()
	}
	out.Reset(w.conn)
	out.Append(func(to []byte) []byte {
		if to = c.q.Append(to, onward); there {
			to = append(to, c.r.Buffered()[:c.q.Length]...)
		}
		return to
	})
	return out.Flush()
}

// ending is how a response ended.
type ending struct {
	close  bool // the client's connection is not used again
	broken bool // the response is not whole
}

// receive reads the response and sends it to the client. A refusal is that nothing of
// it was sent.
func (c *client) receive(w *way, r *wire.Reader, up *upload) (*refusal, ending) {
	method := c.q.Method
	minor := c.q.Minor
	if no := c.informed(w, r, up, method); no != nil {
		return no, ending{}
	}
	p := &c.p
	if p.Status == http.StatusProxyAuthRequired || p.Status == http.StatusSwitchingProtocols {
		no := &refusal{status: http.StatusBadGateway, token: "proxy_configuration_error", why: "the upstream proxy does not take the gateway's credentials"}
		class := controlplanev1.ErrorClass_ERROR_CLASS_PROXY_AUTH
		if p.Status == http.StatusSwitchingProtocols {
			no.token, no.why, class = "http_protocol_error", "the upstream changes the protocol, which nobody asked for", controlplanev1.ErrorClass_ERROR_CLASS_PROTOCOL
		}
		c.report(w, headers, class, p.Status)
		return no, ending{}
	}
	c.report(w, headers, 0, p.Status)
	c.s.Stats.Led[min(p.Status, 599)].Add(1)
	var end ending
	plain := p.Length == wire.Chunked && minor == 0
	end.close = !c.q.Persistent() || c.leave.Load() || p.Length == wire.UntilClose || plain || !up.whole.Load()
	c.w.Append(func(to []byte) []byte { return p.Append(to, minor, end.close) })
	w.conn.each(c.s.Limits.Idle)
	if err := wire.Copy(&c.w, r, p.Length, plain, nil); err != nil {
		end.broken, end.close = true, true
	}
	return nil, end
}

// informed reads responses up to the one that counts, and sends what comes before it on.
func (c *client) informed(w *way, r *wire.Reader, up *upload, method string) *refusal {
	invited := !c.q.Continue
	w.conn.together(c.s.Limits.Headers)
	if !invited && c.s.Limits.Continue < c.s.Limits.Headers {
		w.conn.together(c.s.Limits.Continue)
	}
	for answers := 0; answers < maxInformational; {
		err := r.ReadResponse(&c.p, method)
		switch {
		case err == nil && (!c.p.Informational() || c.p.Status == http.StatusSwitchingProtocols):
			return nil
		case err == nil:
			answers++
			skip := c.p.Status == http.StatusContinue && invited // who has been told, or does not wait
			invited = invited || c.p.Status == http.StatusContinue
			if skip || c.q.Minor == 0 {
				continue
			}
			if !c.tell(func(to []byte) []byte { return c.p.Append(to, 1, false) }) {
				return &refusal{silent: true, close: true}
			}
		case errors.Is(err, os.ErrDeadlineExceeded) && !invited:
			// An upstream that knows nothing of 100 waits for the body, and the client for it.
			invited = true
			if !c.tell(func(to []byte) []byte { return append(to, "HTTP/1.1 100 Continue\r\n\r\n"...) }) {
				return &refusal{silent: true, close: true}
			}
			w.conn.together(c.s.Limits.Headers)
		case errors.Is(err, os.ErrDeadlineExceeded) && up.recent(c.s.Limits.Headers):
			// Its time begins when it has the whole request.
			w.conn.together(c.s.Limits.Headers)
		default:
			c.report(w, headers, fault.Class(err), 0)
			return noResponse(err)
		}
	}
	return noResponse(&wire.Malformed{Why: "more informational answers than any server sends"})
}

// tell sends something to the client at once.
func (c *client) tell(what func(to []byte) []byte) bool {
	c.w.Append(what)
	return c.w.Flush() == nil
}
