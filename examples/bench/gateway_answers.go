package main

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"time"
)

// answerLimit is how long an answer may take; a proxy that waits for more has none.
const answerLimit = 2 * time.Second

// A behaviour is something that a client does, and how to say what came of it.
type behaviour struct {
	what string
	send string
	more string                     // is sent once the head of an answer is there
	end  bool                       // the client ends its side then
	tell func(got *reaction) string // nil = the status
}

// reaction is what a client was sent.
type reaction struct {
	text   string
	closed bool // by the proxy, within the limit
	reset  bool
}

const (
	webHead  = "GET http://" + webHost + "/ HTTP/1.1\r\nHost: " + webHost + "\r\n"
	echoOpen = "CONNECT " + echoHost + ":443 HTTP/1.1\r\nHost: " + echoHost + ":443\r\n\r\n"
	showHead = "GET http://user:secret@" + showHost + "/ HTTP/1.1\r\nHost: " + showHost + "\r\n"
)

var behaviours = []behaviour{
	{what: "Content-Length and Transfer-Encoding", send: "POST http://" + webHost + "/ HTTP/1.1\r\nHost: " + webHost + "\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"},
	{what: "two Content-Lengths that differ", send: "POST http://" + webHost + "/ HTTP/1.1\r\nHost: " + webHost + "\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nab"},
	{what: "lines that end in LF alone", send: "GET http://" + webHost + "/ HTTP/1.1\nHost: " + webHost + "\n\n"},
	{what: "a folded field", send: webHead + "X-Fold: a\r\n b\r\n\r\n"},
	{what: "a space before a colon", send: webHead + "X-Space : a\r\n\r\n"},
	{what: "a field of 100 KiB", send: webHead + "X-Long: " + strings.Repeat("a", 100<<10) + "\r\n\r\n"},
	{what: "a target of this machine: http://127.0.0.1/", send: "GET http://127.0.0.1/ HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"},
	{what: "the upstream proxy answers 407", send: "GET http://" + authHost + "/ HTTP/1.1\r\nHost: " + authHost + "\r\n\r\n"},
	{what: "the upstream proxy answers CONNECT with 403", send: "CONNECT " + refuseHost + ":443 HTTP/1.1\r\nHost: " + refuseHost + ":443\r\n\r\n"},
	{what: "the answer breaks off", send: "GET http://" + shortHost + "/ HTTP/1.1\r\nHost: " + shortHost + "\r\n\r\n", tell: func(a *reaction) string {
		switch {
		case a.reset:
			return a.status() + ", then a reset"
		case a.closed:
			return a.status() + ", then an end"
		}
		return a.status() + ", stays open"
	}},
	{what: "Proxy-Authorization of the client goes on", send: showHead + "Proxy-Authorization: Basic eA==\r\n\r\n", tell: goesOn("proxy-authorization")},
	{what: "a field that Connection names goes on", send: showHead + "X-Hop: 1\r\nConnection: x-hop\r\n\r\n", tell: goesOn("x-hop")},
	{what: "the user of the target's URI goes on", send: showHead + "\r\n", tell: goesOn("secret")},
	{what: "Expect: 100-continue", send: "POST http://" + lateHost + "/ HTTP/1.1\r\nHost: " + lateHost + "\r\nContent-Length: 1\r\nExpect: 100-continue\r\n\r\n", more: "x", tell: func(a *reaction) string {
		var all []string
		for _, line := range strings.Split(a.text, "\r\n") {
			if code, ok := strings.CutPrefix(line, "HTTP/1.1 "); ok {
				all = append(all, code[:3])
			}
		}
		return strings.Join(all, ", then ")
	}},
	{what: "bytes that come with CONNECT", send: echoOpen + "early", tell: echoes("early")},
	{what: "a client that ends its side of a tunnel", send: echoOpen, more: "late", end: true, tell: echoes("late")},
}

func (a *reaction) status() string {
	_, rest, ok := strings.Cut(a.text, " ")
	switch {
	case ok && len(rest) >= 3:
		return rest[:3]
	case a.closed:
		return "closes"
	}
	return "no answer"
}

func goesOn(word string) func(a *reaction) string {
	return func(a *reaction) string {
		_, body, _ := strings.Cut(a.text, "\r\n\r\n")
		switch {
		case a.status() != "200":
			return a.status()
		case strings.Contains(strings.ToLower(body), word):
			return "yes"
		}
		return "no"
	}
}

func echoes(word string) func(a *reaction) string {
	return func(a *reaction) string {
		_, body, _ := strings.Cut(a.text, "\r\n\r\n")
		switch {
		case body == word && a.closed:
			return "come back, then the end"
		case body == word:
			return "come back"
		case body == "":
			return a.status() + ", nothing comes back"
		}
		return fmt.Sprintf("%.40q comes back", body)
	}
}

// answers says what each proxy does in cases where proxies differ.
func (s *stage) answers() ([]row, string, error) {
	var b strings.Builder
	b.WriteString("What clients are answered:\n\n| |")
	for _, p := range s.proxies {
		b.WriteString(" " + p.name + " |")
	}
	b.WriteString("\n|---|" + strings.Repeat("---|", len(s.proxies)) + "\n")
	for _, c := range behaviours {
		b.WriteString("| " + c.what + " |")
		for _, p := range s.proxies {
			got, err := c.try(p.address)
			if err != nil {
				return nil, "", fmt.Errorf("%s, %s: %w", c.what, p.name, err)
			}
			tell := c.tell
			if tell == nil {
				tell = (*reaction).status
			}
			b.WriteString(" " + tell(got) + " |")
		}
		b.WriteString("\n")
	}
	return nil, b.String(), nil
}

// try does it on a connection of its own, and reads until the proxy closes or says nothing
// for a while.
func (c *behaviour) try(address string) (*reaction, error) {
	conn, err := net.Dial("tcp", address)
	if err != nil {
		return nil, err
	}
	defer func() { _ = conn.Close() }()
	// A proxy may answer and close before it has everything; then this fails.
	_, _ = io.WriteString(conn, c.send)
	var got reaction
	var all []byte
	more := c.more
	for buf := make([]byte, 4<<10); ; {
		_ = conn.SetReadDeadline(time.Now().Add(answerLimit))
		n, err := conn.Read(buf)
		all = append(all, buf[:n]...)
		got.text = string(all)
		switch {
		case errors.Is(err, os.ErrDeadlineExceeded):
			return &got, nil
		case err != nil:
			got.closed, got.reset = true, !errors.Is(err, io.EOF)
			return &got, nil
		}
		if more != "" && bytes.Contains(all, []byte("\r\n\r\n")) {
			_, _ = io.WriteString(conn, more)
			if more = ""; c.end {
				_ = conn.(*net.TCPConn).CloseWrite()
			}
		}
	}
}
