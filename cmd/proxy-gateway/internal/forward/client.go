package forward

import (
	"bytes"
	"context"
	"encoding/base64"
	"errors"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/dodona-project/dodona/cmd/proxy-gateway/internal/wire"
)

// client is one connection of a client. Its goroutine owns everything but what close and
// closeIdle use.
type client struct {
	s    *Server
	conn *stream
	r    wire.Reader
	w    wire.Writer
	q    wire.Request
	p    wire.Response
	name string // of the client that sent the request; empty where nobody is asked
	ip   string // where the connection comes from

	handed atomic.Bool // the connection is a tunnel's, which ends it
	leave  atomic.Bool // no request is taken after this one

	ctx    context.Context // ends with the connection
	cancel context.CancelFunc
	state  atomic.Int32

	mu    sync.Mutex
	other net.Conn // the upstream connection in use
	gone  bool
}

// What a connection is at.
const (
	between = iota // two requests
	busy
	over
)

func newClient(s *Server, conn net.Conn) *client {
	c := &client{s: s, conn: newStream(conn, s.Limits.Idle)}
	if a, err := netip.ParseAddrPort(conn.RemoteAddr().String()); err == nil {
		c.ip = a.Addr().Unmap().String()
	}
	c.ctx, c.cancel = context.WithCancel(s.end)
	c.r.Reset(c.conn)
	c.w.Reset(c.conn)
	return c
}

// close ends the connection and whatever is done for it.
func (c *client) close() {
	c.state.Store(over)
	c.cancel()
	_ = c.conn.Close()
	c.mu.Lock()
	defer c.mu.Unlock()
	c.gone = true
	if c.other != nil {
		_ = c.other.Close()
	}
}

// sendAway ends the connection if it is between two requests, and else with its next answer.
func (c *client) sendAway() {
	c.leave.Store(true)
	if c.state.CompareAndSwap(between, over) {
		c.close()
	}
}

// closeTunnel ends the connection if it is a tunnel.
func (c *client) closeTunnel() {
	if c.handed.Load() {
		c.close()
	}
}

// use has close end an upstream connection too; nil when it is used no more.
func (c *client) use(conn net.Conn) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.other = conn; conn != nil && c.gone {
		_ = conn.Close()
	}
}

// refuseConnection answers a connection that is one too many.
func (c *client) refuseConnection() {
	r := unavailable("the gateway has as many connections as it takes")
	r.close = true
	c.answer(r)
}

// end closes the connection and has the server forget it.
func (c *client) end() {
	c.close()
	c.r.Release()
	c.w.Release()
	c.s.forget(c)
	c.s.work.Done()
}

// serve serves requests until the connection ends or is a tunnel's.
func (c *client) serve() {
	c.conn.each(c.s.Limits.Headers)
	for c.await() {
		c.conn.together(c.s.Limits.Headers)
		if err := c.r.ReadRequest(&c.q); err != nil {
			c.answer(badRequest(err))
			return
		}
		c.s.Stats.Requests.Add(1)
		if !c.request() {
			return
		}
		c.conn.each(c.s.Limits.Idle)
	}
}

// await waits for the next request.
func (c *client) await() bool {
	if len(c.r.Buffered()) > 0 {
		return c.state.Load() != over
	}
	if c.state.CompareAndSwap(busy, between) && c.leave.Load() {
		return false
	}
	return c.r.Await() == nil && c.state.CompareAndSwap(between, busy)
}

// request serves the request that was read, and reports whether another one may follow.
func (c *client) request() bool {
	if c.name = ""; c.s.Clients != nil {
		name, why := c.login()
		if why != "" {
			return c.answer(&refusal{status: http.StatusProxyAuthRequired, token: "http_request_denied", why: why})
		}
		c.name = name
	}
	if c.q.Connect {
		return c.tunnel()
	}
	return c.exchange()
}

// login says who the client is, or why it is nobody. It asks for every request.
func (c *client) login() (name, why string) {
	if c.q.Login == nil {
		return "", "the gateway wants to know who asks: send Proxy-Authorization"
	}
	scheme, value, _ := bytes.Cut(c.q.Login, []byte(" "))
	if !strings.EqualFold(string(scheme), "basic") {
		return "", "the gateway takes Basic authentication and no other"
	}
	text, err := base64.StdEncoding.DecodeString(string(bytes.Trim(value, " ")))
	if err != nil {
		return "", "the value of Proxy-Authorization is not base64"
	}
	name, password, colon := strings.Cut(string(text), ":")
	if !colon || !c.s.Clients.Check(name, password) {
		return "", "no client has this name and password"
	}
	return name, ""
}

// watch calls left once if gone is true of the client's connection, about which it is asked
// after a while and then whenever something comes, while nobody reads from it. stop ends
// that and waits for it.
func (c *client) watch(after time.Duration, gone func(fd int) bool, left func()) (stop func()) {
	if c.conn.tcp == nil {
		return func() {}
	}
	raw, err := c.conn.tcp.SyscallConn()
	if err != nil {
		return func() {}
	}
	var mu sync.Mutex
	stopped := false
	done := make(chan struct{})
	timer := time.AfterFunc(after, func() {
		defer close(done)
		mu.Lock()
		if !stopped {
			_ = c.conn.SetReadDeadline(noDeadline)
		}
		mu.Unlock()
		if err := raw.Read(func(fd uintptr) bool { return gone(int(fd)) }); err == nil || errors.Is(err, net.ErrClosed) {
			left()
		}
	})
	return func() {
		if timer.Stop() {
			return
		}
		mu.Lock()
		stopped = true
		_ = c.conn.SetReadDeadline(longAgo)
		mu.Unlock()
		<-done
		c.conn.readBy = noDeadline
		_ = c.conn.SetReadDeadline(noDeadline)
	}
}

// attend ends the client's connection if it is clear that the client has left while
// something is opened for it, which may take long. Who has sent a whole request and ended
// its sending side may still want the answer.
func (c *client) attend() (stop func()) {
	need := int64(0) // bytes that have to come
	switch have := int64(len(c.r.Buffered())); {
	case c.q.Connect:
		need = max(1-have, 0) // a tunnel into which nobody ever sends
	case c.q.Length > 0:
		need = max(c.q.Length-have, 0)
	}
	return c.watch(attendAfter, func(fd int) bool { return broken(fd) || need > 0 && hungUp(fd) && unread(fd) < need }, c.close)
}

// attendAfter is how long something is opened before its client is looked at: most is
// opened by then.
const attendAfter = 50 * time.Millisecond
