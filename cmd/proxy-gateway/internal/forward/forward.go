// Package forward is the gateway's data path: a forward proxy that takes HTTP/1.1
// requests in absolute form and CONNECT from clients, and leads each through an upstream
// proxy, or straight to its target where a routing says so.
//
// A request goes this way: its head is read (package wire); its client is asked who it
// is; [Routes] say which routing it belongs to; that routing's policy judges the target;
// a proxy is picked, or waited for (package wait); a connection is opened or taken from
// the idle ones; then an exchange or a tunnel copies bytes until its end, and the proxy is
// released. Another proxy is tried only while not a byte of the request went out.
//
// One goroutine serves a client's connection, one more a body that is sent, and two a
// tunnel. Everything that may take long has a limit of time, and nothing
// on this path asks the host or the store.
package forward

import (
	"context"
	"errors"
	"log/slog"
	"math/rand/v2"
	"net"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"

	"github.com/dodona-project/dodona/cmd/proxy-gateway/internal/wait"
	"github.com/dodona-project/dodona/sdk/worker"
	"github.com/dodona-project/dodona/sdk/worker/target"
	"github.com/dodona-project/dodona/sdk/worker/upstream"
)

// Routes is where requests are led as of now: a worker's view. Its methods are called for
// each request, by many goroutines, and do not block.
type Routes interface {
	// Route returns the first routing that matches, nil when none does. ready is false
	// while there is nothing to go by, and then nothing is led anywhere.
	Route(q *worker.Request) (r *worker.Routing, ready bool)
	// Pick reserves a place on a proxy whose id is not in tried, nil when there is none.
	Pick(r *worker.Routing, q *worker.Request, tried []string) Lease
	// PickProxy reserves a place on one proxy. gone is that it cannot be used any more,
	// rather than not now.
	PickProxy(r *worker.Routing, proxyID string) (l Lease, gone bool)
	// Current reports whether a proxy is still one to use with this version of its
	// credential.
	Current(proxyID string, credentialVersion uint32) bool
}

// Lease is a place on a proxy that is held until it is released.
type Lease interface {
	ProxyID() string
	CredentialVersion() uint32
	Via() upstream.Proxy
	Activate()                                // what was reserved is in use
	Observe(took time.Duration, success bool) // how long the proxy took to answer
	Release()                                 // once
}

// Clients knows who may use the gateway.
type Clients interface {
	// Check takes the same time for whatever is wrong.
	Check(name, password string) bool
}

// Limits are limits of time and number. A zero takes its default.
type Limits struct {
	Headers   time.Duration // for a head to be complete, from a client and from an upstream: 30 s
	Idle      time.Duration // without a byte, of a tunnel, a body or a client between requests: 5 min
	Total     time.Duration // of a tunnel; 0 = none
	HalfClose time.Duration // without a byte, of a tunnel of which one direction has ended: 1 min
	Resolve   time.Duration // for a name that the gateway resolves: 5 s
	Continue  time.Duration // that an upstream has to answer Expect: 100-continue, before the gateway does: 1 s

	Connections  int           // of clients at once: 65,536
	Waiting      int           // requests of one routing that wait for a proxy: 1,024
	IdlePerProxy int           // connections that are kept for the next request: 64
	IdleUpstream time.Duration // for which they are kept: 55 s
}

const (
	retries     = 2               // attempts after the first
	lingerLimit = 2 * time.Second // for a client to take an answer and close, after the last one
	lingerBytes = 1 << 20         // that it may send meanwhile
)

func (l *Limits) defaults() {
	set := func(d *time.Duration, or time.Duration) {
		if *d <= 0 {
			*d = or
		}
	}
	number := func(n *int, or int) {
		if *n <= 0 {
			*n = or
		}
	}
	set(&l.Headers, 30*time.Second)
	set(&l.Idle, 5*time.Minute)
	set(&l.HalfClose, time.Minute)
	set(&l.Resolve, 5*time.Second)
	set(&l.Continue, time.Second)
	set(&l.IdleUpstream, 55*time.Second)
	number(&l.Connections, 1<<16)
	number(&l.Waiting, 1024)
	number(&l.IdlePerProxy, 64)
}

// Options are what a Server works with. Routes, Dialer and Log have to be set.
type Options struct {
	Routes  Routes
	Clients Clients // nil = nobody is asked
	Dialer  *upstream.Dialer
	Direct  target.Dialer // resolves names for PINNED and DIRECT, and dials DIRECT
	Limits  Limits
	Report  func(worker.Outcome) // must not block; nil = nobody wants to know
	Log     *slog.Logger
}

// Server is the gateway's data path. Its methods are safe for concurrent use.
type Server struct {
	Options
	Stats Stats

	idle     idle
	sticky   sticky
	queuesMu sync.RWMutex
	queues   map[string]*wait.Queue // by routing

	mu      sync.Mutex
	clients map[*client]struct{}
	closed  bool
	work    sync.WaitGroup
	end     context.Context // of everything
	kill    context.CancelFunc
}

// New returns a Server.
func New(o Options) *Server {
	o.Limits.defaults()
	s := &Server{Options: o, queues: map[string]*wait.Queue{}, clients: map[*client]struct{}{}}
	s.end, s.kill = context.WithCancel(context.Background())
	s.idle.init(o.Limits.IdlePerProxy, o.Limits.IdleUpstream, o.Routes.Current)
	return s
}

// Serve takes connections until the listener is closed.
func (s *Server) Serve(l net.Listener) error {
	var pause time.Duration
	for {
		conn, err := l.Accept()
		switch {
		case errors.Is(err, net.ErrClosed):
			return nil
		case err != nil: // of this process or machine: it may pass
			pause = min(max(2*pause, 5*time.Millisecond), time.Second)
			s.Log.Warn("cannot take a connection", "error", err, "again_in", pause)
			select {
			case <-time.After(pause):
			case <-s.end.Done():
				return nil
			}
			continue
		}
		pause = 0
		c := newClient(s, conn)
		s.mu.Lock()
		full := len(s.clients) >= s.Limits.Connections
		if s.closed {
			s.mu.Unlock()
			_ = conn.Close()
			return nil
		}
		s.clients[c] = struct{}{}
		s.work.Add(1)
		s.mu.Unlock()
		s.Stats.Connections.Add(1)
		go func() {
			defer func() {
				if !c.handed.Load() {
					c.end()
				}
			}()
			defer s.survive()
			if full {
				c.refuseConnection()
			} else {
				c.serve()
			}
		}()
	}
}

// survive has a bug that one connection meets end that connection and no other one.
// Deferred by the goroutines that parse what others send.
func (s *Server) survive() {
	if p := recover(); p != nil {
		s.Stats.Panics.Add(1)
		s.Log.Error("a bug ended a connection", "panic", p, "stack", string(debug.Stack()))
	}
}

func (s *Server) forget(c *client) {
	s.Stats.Connections.Add(-1)
	s.mu.Lock()
	delete(s.clients, c)
	s.mu.Unlock()
}

// Changed is called after the routes have changed: who waits is tried again, and idle
// connections to proxies or with credentials of the past are closed.
func (s *Server) Changed() {
	s.idle.retain()
	s.queuesMu.RLock()
	defer s.queuesMu.RUnlock()
	for _, q := range s.queues {
		q.Wake()
	}
}

// wake has requests of a routing tried that wait.
func (s *Server) wake() {
	if s.Stats.Waiting.Load() == 0 {
		return
	}
	// A proxy may serve several routings.
	s.queuesMu.RLock()
	defer s.queuesMu.RUnlock()
	for _, q := range s.queues {
		q.Wake()
	}
}

func (s *Server) queue(routing string) *wait.Queue {
	s.queuesMu.RLock()
	q := s.queues[routing]
	s.queuesMu.RUnlock()
	if q != nil {
		return q
	}
	s.queuesMu.Lock()
	defer s.queuesMu.Unlock()
	if q = s.queues[routing]; q == nil {
		q = wait.New(s.Limits.Waiting)
		s.queues[routing] = q
	}
	return q
}

// Drain ends the server within a limit, after its listeners were closed: clients are sent
// away over its first quarter, between two requests or with their next answer, and
// tunnels that are there after half of it are cut off over the second half, so that not
// all clients come back at the same moment elsewhere. Requests have all of it.
func (s *Server) Drain(limit time.Duration) {
	s.mu.Lock()
	s.closed = true
	all := make([]*client, 0, len(s.clients))
	for c := range s.clients {
		all = append(all, c)
	}
	s.mu.Unlock()
	var timers []*time.Timer
	at := func(from, to time.Duration, do func()) {
		timers = append(timers, time.AfterFunc(from+rand.N(max(to-from, 1)), do))
	}
	for _, c := range all {
		at(0, limit/4, c.sendAway)
		at(limit/2, limit, c.closeTunnel)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		s.work.Wait()
	}()
	select {
	case <-done:
	case <-time.After(limit):
	}
	for _, t := range timers {
		t.Stop()
	}
	s.Close()
}

// Close ends everything at once and waits for it. Listeners are their owner's to
// close.
func (s *Server) Close() {
	s.kill()
	s.mu.Lock()
	s.closed = true
	for c := range s.clients {
		c.close()
	}
	s.mu.Unlock()
	s.work.Wait()
	s.idle.close()
}

// Cut ends all that runs, and the connections to proxies that are kept, and goes on serving:
// what uses routes that nobody vouches for any more has to end.
func (s *Server) Cut() {
	s.mu.Lock()
	for c := range s.clients {
		c.close()
	}
	s.mu.Unlock()
	s.idle.remove(func(place, resting) bool { return true })
}

// Stats count what the server does. Fields are read at any time.
type Stats struct {
	Connections atomic.Int64      // of clients, now
	Tunnels     atomic.Int64      // now
	Waiting     atomic.Int64      // requests that wait for a proxy, now
	Requests    atomic.Int64      // heads that were read
	Retried     atomic.Int64      // attempts after a first one
	Direct      atomic.Int64      // requests that went to their target without a proxy
	Reused      atomic.Int64      // requests on an idle connection
	Panics      atomic.Int64      // bugs that ended a connection
	Led         [600]atomic.Int64 // by status: answers that came from elsewhere, tunnels as 200
	Own         [600]atomic.Int64 // by status: answers that are the gateway's own
	Up, Down    atomic.Int64      // bytes of tunnels, from clients and to them
}
