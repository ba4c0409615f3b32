package redistest

import (
	"bytes"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// Cut is what a Proxy does with a request.
type Cut int

const (
	Pass    Cut = iota // hand it on
	Before             // reset the connection instead
	After              // hand it on, and reset the connection when the answer comes
	Swallow            // hand it on, and never hand an answer on again
)

// Proxy stands between a store and its server and makes the faults of a network.
type Proxy struct {
	Addr     string
	Requests atomic.Int64 // read from clients, as far as they came in pieces

	server string
	decide atomic.Pointer[func(request []byte) Cut]

	mu      sync.Mutex
	conns   map[net.Conn]struct{}
	latency time.Duration
	rate    int           // bytes a second; 0 = as fast as they come
	free    time.Time     // when the line has sent what it was given
	changed chan struct{} // closed and made anew when latency or rate changes
	wg      sync.WaitGroup
}

// StartProxy starts one in front of a server. It ends with the test.
func StartProxy(t testing.TB, server string) *Proxy {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p := &Proxy{Addr: l.Addr().String(), server: server, conns: make(map[net.Conn]struct{}), changed: make(chan struct{})}
	p.Decide(nil)
	p.wg.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			p.wg.Go(func() { p.serve(c) })
		}
	})
	t.Cleanup(func() {
		_ = l.Close()
		p.Slow(0, 0)
		p.Reset()
		p.wg.Wait()
	})
	return p
}

// Decide sets what is asked for each request; nil: all pass. It is called
// concurrently.
func (p *Proxy) Decide(decide func(request []byte) Cut) {
	if decide == nil {
		decide = func([]byte) Cut { return Pass }
	}
	p.decide.Store(&decide)
}

// IsScript reports whether a request runs a script.
func IsScript(request []byte) bool {
	return bytes.Contains(bytes.ToUpper(request[:min(len(request), 64)]), []byte("EVAL"))
}

// Reset resets all connections.
func (p *Proxy) Reset() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for c := range p.conns {
		reset(c)
	}
}

// Slow delays all answers by latency, and all connections together to so many bytes a
// second, in both directions. Zeros: as fast as they come, at once.
func (p *Proxy) Slow(latency time.Duration, rate int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.latency, p.rate, p.free = latency, rate, time.Time{}
	close(p.changed)
	p.changed = make(chan struct{})
}

// delay waits until n bytes have come through the line.
func (p *Proxy) delay(n int, answer bool) {
	p.mu.Lock()
	now, wait, changed := time.Now(), time.Duration(0), p.changed
	if p.rate > 0 {
		if p.free.Before(now) {
			p.free = now
		}
		p.free = p.free.Add(time.Duration(n) * time.Second / time.Duration(p.rate))
		wait = p.free.Sub(now)
	}
	if answer {
		wait += p.latency
	}
	p.mu.Unlock()
	if wait <= 0 {
		return
	}
	timer := time.NewTimer(wait)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-changed:
	}
}

func reset(c net.Conn) {
	if tcp, ok := c.(*net.TCPConn); ok {
		_ = tcp.SetLinger(0)
	}
	_ = c.Close()
}

func (p *Proxy) serve(client net.Conn) {
	server, err := net.Dial("tcp", p.server)
	if err != nil {
		reset(client)
		return
	}
	p.mu.Lock()
	p.conns[client], p.conns[server] = struct{}{}, struct{}{}
	p.mu.Unlock()
	var cut atomic.Bool     // the next answer resets
	var swallow atomic.Bool // no answer is handed on
	var wg sync.WaitGroup
	wg.Go(func() {
		defer reset(client)
		buf := make([]byte, 64<<10)
		for {
			n, err := server.Read(buf)
			if n > 0 && cut.Load() {
				return
			}
			if n > 0 && !swallow.Load() {
				p.delay(n, true)
				if _, err := client.Write(buf[:n]); err != nil {
					return
				}
			}
			if err != nil {
				return
			}
		}
	})
	buf := make([]byte, 64<<10)
	for {
		n, err := client.Read(buf)
		if n > 0 {
			p.Requests.Add(1)
			switch (*p.decide.Load())(buf[:n]) {
			case Before:
				reset(client)
				reset(server)
			case After:
				cut.Store(true)
			case Swallow:
				swallow.Store(true)
			}
			p.delay(n, false)
			if _, werr := server.Write(buf[:n]); werr != nil {
				break
			}
		}
		if err != nil {
			break
		}
	}
	_ = server.Close()
	wg.Wait()
	reset(client)
	p.mu.Lock()
	delete(p.conns, client)
	delete(p.conns, server)
	p.mu.Unlock()
}
