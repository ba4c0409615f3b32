package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"slices"
	"sync"
	"time"
)

const loadEnv = "DODONA_BENCH_LOAD"

// order is what the process of the clients is told to do, as a line of JSON; it answers
// with one, an outcome.
type order struct {
	Do    string        // get, exchange, connect: open so many clients; idle: so many tunnels; go; end
	Proxy string        // its address
	Conns int           // clients
	For   time.Duration // of go
	Rate  int           // of go: operations a second of all clients, at fixed times; 0 = as fast as they go
}

// outcome is what came of an order.
type outcome struct {
	Error    string `json:",omitempty"`
	N        int    // operations
	Took     time.Duration
	P50, P99 time.Duration // of one operation, from the time it was to begin
}

const warmOps = 20 // of each client, before anything is measured

// asLoad turns this process into the clients.
func asLoad() { asReaders(loadEnv, serveLoad) }

func serveLoad(string) error {
	var l load
	lines := bufio.NewScanner(os.Stdin)
	answers := json.NewEncoder(os.Stdout)
	for lines.Scan() {
		var o order
		if err := json.Unmarshal(lines.Bytes(), &o); err != nil {
			return err
		}
		result, err := l.follow(o)
		if err != nil {
			result.Error = err.Error()
		}
		if err := answers.Encode(result); err != nil {
			return err
		}
	}
	return lines.Err()
}

// load is the clients that are open.
type load struct {
	do      func(*loadClient) error
	clients []*loadClient
}

func (l *load) follow(o order) (outcome, error) {
	switch o.Do {
	case "end":
		for _, c := range l.clients {
			c.close()
		}
		l.clients = nil
		return outcome{}, nil
	case "go":
		return l.run(o)
	}
	return outcome{}, l.open(o)
}

// open opens the clients one by one and warms them up.
func (l *load) open(o order) error {
	ops := map[string]func(*loadClient) error{"get": (*loadClient).get, "exchange": (*loadClient).exchange, "connect": (*loadClient).connect, "idle": nil}
	do, known := ops[o.Do]
	if !known {
		return fmt.Errorf("nobody knows how to %q", o.Do)
	}
	l.do = do
	for range o.Conns {
		c := &loadClient{proxy: o.Proxy}
		l.clients = append(l.clients, c)
		var err error
		switch o.Do {
		case "get":
			err = c.dial()
		case "exchange", "idle":
			err = c.open(echoHost)
		}
		for range warmOps {
			if err == nil && do != nil {
				err = do(c)
			}
		}
		if err != nil {
			return err
		}
		if do == nil {
			c.buf = nil // there are many
		}
	}
	return nil
}

func (l *load) run(o order) (outcome, error) {
	var all sync.WaitGroup
	took := make([][]time.Duration, len(l.clients))
	errs := make([]error, len(l.clients))
	begin := time.Now()
	end := begin.Add(o.For)
	pause := time.Duration(0)
	if o.Rate > 0 {
		pause = time.Second * time.Duration(len(l.clients)) / time.Duration(o.Rate)
	}
	for i, c := range l.clients {
		all.Go(func() {
			next := begin.Add(pause * time.Duration(i) / time.Duration(len(l.clients)))
			for now := time.Now(); now.Before(end) && errs[i] == nil; now = time.Now() {
				if pause > 0 {
					time.Sleep(next.Sub(now))
					now, next = next, next.Add(pause)
				}
				errs[i] = l.do(c)
				took[i] = append(took[i], time.Since(now))
			}
		})
	}
	all.Wait()
	sum := outcome{Took: time.Since(begin)}
	times := slices.Concat(took...)
	slices.Sort(times)
	if sum.N = len(times); sum.N > 0 {
		sum.P50, sum.P99 = times[sum.N/2], times[sum.N*99/100]
	}
	return sum, errors.Join(errs...)
}

// loadClient is one client with one connection at a time.
type loadClient struct {
	proxy string
	conn  net.Conn
	buf   []byte
}

var (
	getRequest    = []byte("GET http://" + webHost + "/path/to/a/thing?with=query HTTP/1.1\r\nHost: " + webHost + "\r\nUser-Agent: bench/1.0\r\nAccept: */*\r\nAccept-Encoding: gzip\r\n\r\n")
	tunnelRequest = []byte("GET /path/to/a/thing?with=query HTTP/1.1\r\nHost: " + webHost + "\r\nUser-Agent: bench/1.0\r\nAccept: */*\r\nAccept-Encoding: gzip\r\n\r\n")
	echoed        = bytes.Repeat([]byte("e"), farBody)
)

func (c *loadClient) dial() (err error) {
	if c.buf == nil {
		c.buf = make([]byte, 4<<10)
	}
	c.conn, err = net.DialTimeout("tcp", c.proxy, 10*time.Second)
	return err
}

func (c *loadClient) close() {
	if c.conn != nil {
		_ = c.conn.Close()
	}
}

// open opens a tunnel on a new connection.
func (c *loadClient) open(host string) error {
	if err := c.dial(); err != nil {
		return err
	}
	if _, err := fmt.Fprintf(c.conn, "CONNECT %s:443 HTTP/1.1\r\nHost: %s:443\r\n\r\n", host, host); err != nil {
		return err
	}
	_, err := c.answer(0)
	return err
}

// answer reads an answer with a body of this length and returns all of it.
func (c *loadClient) answer(body int) ([]byte, error) {
	for n := 0; ; {
		if n == len(c.buf) {
			return nil, errors.New("the answer is longer than any should be")
		}
		more, err := c.conn.Read(c.buf[n:])
		if err != nil {
			return nil, fmt.Errorf("after %q: %w", c.buf[:min(n, 200)], err)
		}
		n += more
		end := bytes.Index(c.buf[:n], []byte("\r\n\r\n"))
		switch {
		case end >= 0 && !bytes.HasPrefix(c.buf, []byte("HTTP/1.1 200 ")), end >= 0 && n > end+4+body:
			return nil, fmt.Errorf("not the answer that should come: %q", c.buf[:min(n, 200)])
		case end >= 0 && n == end+4+body:
			return c.buf[:n], nil
		}
	}
}

// get is a request in absolute form on a connection that stays.
func (c *loadClient) get() error {
	if _, err := c.conn.Write(getRequest); err != nil {
		return err
	}
	_, err := c.answer(farBody)
	return err
}

// exchange is 1 KiB there and back inside a tunnel.
func (c *loadClient) exchange() error {
	if _, err := c.conn.Write(echoed); err != nil {
		return err
	}
	_, err := io.ReadFull(c.conn, c.buf[:farBody])
	return err
}

// connect is a new connection, a tunnel, a request inside, and the end of both.
func (c *loadClient) connect() error {
	c.close()
	if err := c.open(webHost); err != nil {
		return err
	}
	if _, err := c.conn.Write(tunnelRequest); err != nil {
		return err
	}
	if _, err := c.answer(farBody); err != nil {
		return err
	}
	return c.conn.Close()
}
