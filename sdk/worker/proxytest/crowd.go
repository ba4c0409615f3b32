package proxytest

import (
	"bytes"
	"fmt"
	"io"
	"net"
	"sync"
	"time"
)

// crowdPort is the port of all members of a crowd, below those that the system gives out.
const crowdPort = 13128

// Crowd is many HTTP proxies in one process, each at an address of its own in 127.0.0.0/8,
// which Linux has without being told. They lead nowhere: a CONNECT is answered with 200,
// and noted with its time, and the connection is closed. Its methods may be called
// concurrently.
type Crowd struct {
	members []*member
	work    sync.WaitGroup
}

type member struct {
	listener net.Listener
	mu       sync.Mutex
	asked    []time.Time
}

// NewCrowd runs n proxies, at most 60,000, until it is closed. second is the second byte of
// their addresses: two crowds of one machine need different ones.
func NewCrowd(second byte, n int) (*Crowd, error) {
	c := &Crowd{}
	for i := range n {
		m, err := c.listen(fmt.Sprintf("127.%d.%d.%d:%d", second, i/250, 1+i%250, crowdPort))
		if err != nil {
			c.Close()
			return nil, err
		}
		c.members = append(c.members, m)
	}
	return c, nil
}

func (c *Crowd) listen(address string) (*member, error) {
	l, err := net.Listen("tcp", address)
	if err != nil {
		return nil, err
	}
	m := &member{listener: l}
	c.work.Go(func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			c.work.Go(func() { m.serve(conn) })
		}
	})
	return m, nil
}

// Close ends all that still run.
func (c *Crowd) Close() {
	for i := range c.members {
		c.Kill(i)
	}
	c.work.Wait()
}

// Addresses are those of the members.
func (c *Crowd) Addresses() []string {
	all := make([]string, len(c.members))
	for i, m := range c.members {
		all[i] = m.listener.Addr().String()
	}
	return all
}

// Kill ends a member: who dials it is refused.
func (c *Crowd) Kill(i int) { _ = c.members[i].listener.Close() }

// Asked is when a member was asked for a tunnel, in order.
func (c *Crowd) Asked(i int) []time.Time {
	m := c.members[i]
	m.mu.Lock()
	defer m.mu.Unlock()
	return append([]time.Time(nil), m.asked...)
}

func (m *member) serve(conn net.Conn) {
	defer func() { _ = conn.Close() }()
	at := time.Now()
	_ = conn.SetDeadline(at.Add(time.Minute))
	head := make([]byte, 0, 512)
	for !bytes.Contains(head, []byte("\r\n\r\n")) {
		n, err := conn.Read(head[len(head):cap(head)])
		if err != nil || len(head)+n == cap(head) {
			return
		}
		head = head[:len(head)+n]
	}
	m.mu.Lock()
	m.asked = append(m.asked, at)
	m.mu.Unlock()
	_, _ = io.WriteString(conn, "HTTP/1.1 200 Connection established\r\n\r\n")
	_, _ = conn.Read(head[:1]) // the client closes first, and keeps the address in TIME_WAIT
}
