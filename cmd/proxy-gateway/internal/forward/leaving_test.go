package forward_test

import (
	"bufio"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/dodona-project/dodona/cmd/proxy-gateway/internal/forward"
	"github.com/dodona-project/dodona/sdk/worker/proxytest"
)

// A client that leaves while its upstream is being connected to: what is opened for it is
// given up and its proxy released at once, not when the upstream has answered, and no other
// proxy is tried. One that has said all and only listens is still answered.
func TestClientLeavesWhileItsUpstreamIsOpened(t *testing.T) {
	const size = 40_000 // more than the gateway reads with the head, and the system takes it at once
	for _, c := range []struct {
		name, text string
		end        func(*net.TCPConn)
		want       int // 0 = it has left
	}{
		{"closes after a CONNECT", connectShop, closing, 0},
		{"half-closes after a CONNECT", connectShop, halfClosing, 0},
		{"resets after a CONNECT", connectShop, resetting, 0},
		{"resets after a CONNECT and more", connectShop + "hello", resetting, 0},
		{"half-closes after a CONNECT and what it has to say", connectShop + "hello", halfClosing, 200},
		{"resets after a GET", getShop, resetting, 0},
		{"half-closes after a GET", getShop, halfClosing, 200},
		{"closes in the middle of a body", postShop[:len(postShop)-1], closing, 0},
		{"half-closes after a body", "POST http://shop.example/ HTTP/1.1\r\nHost: x\r\nContent-Length: 40000\r\n\r\n" + strings.Repeat("x", size), halfClosing, 200},
		{"resets in the middle of chunks", "POST http://shop.example/ HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n", resetting, 0},
		{"half-closes after chunks", "POST http://shop.example/ HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n", halfClosing, 200},
	} {
		t.Run(c.name, func(t *testing.T) {
			gate := make(chan struct{})
			given := make(chan struct{}, 10)
			// Its handshake takes until the gate opens: each request has a tunnel of its own.
			slow := proxytest.Start(t, proxytest.Options{Protocol: socksProxy, Talk: func(conn net.Conn) {
				gone := make(chan struct{})
				go func() {
					defer close(gone)
					_, _ = io.Copy(io.Discard, conn) // until whoever connects gives up
				}()
				select {
				case <-gone:
					given <- struct{}{}
					return
				case <-gate:
				}
				_ = conn.Close()
				<-gone
			}})
			well := scripted(t, ok)
			if strings.HasPrefix(c.text, "CONNECT") {
				well.Server = proxytest.Start(t, proxytest.Options{Protocol: httpProxy, Talk: func(conn net.Conn) {
					r := bufio.NewReader(conn)
					if _, err := http.ReadRequest(r); err == nil {
						_, _ = io.WriteString(conn, "HTTP/1.1 200 OK\r\n\r\n")
						_, _ = io.Copy(conn, r)
					}
				}})
			}
			r := through(t, slow, well.Server)
			g := start(t, func(o *forward.Options) { o.Dialer.HandshakeTimeout = time.Hour }, r)
			conn := g.dial()
			if _, err := io.WriteString(conn, c.text); err != nil {
				t.Fatal(err)
			}
			eventually(t, "its upstream is being connected to", func() bool { return slow.Accepted() == 1 })
			began := time.Now()
			c.end(conn)
			if c.want == 0 {
				select {
				case <-given:
				case <-time.After(patience):
					t.Fatal("nobody gives up")
				}
				eventually(t, "its place is free", func() bool { return r.proxies[0].held.Load() == 0 })
				t.Logf("noticed after %v", time.Since(began).Round(time.Millisecond))
				eventually(t, "the connection is forgotten", func() bool { return g.Stats.Connections.Load() == 0 })
				if n := r.proxies[1].picked.Load(); n != 0 || len(g.seen()) != 0 {
					t.Errorf("another proxy was picked %d times; reported %v", n, g.seen())
				}
				return
			}
			time.Sleep(200 * time.Millisecond) // long enough to be looked at
			if n := r.proxies[0].held.Load(); n != 1 {
				t.Fatalf("it has left, as the gateway sees it: its place is held %d times", n)
			}
			close(gate) // this proxy refuses it, and the next one leads it
			method, _, _ := strings.Cut(c.text, " ")
			in := bufio.NewReader(conn)
			got := listenTo(t, in, method, c.name)
			if got.status != c.want {
				t.Errorf("answered %+v", got)
			}
			if rest, err := io.ReadAll(in); method == http.MethodConnect && (err != nil || string(rest) != "hello") {
				t.Errorf("the tunnel gives %q, %v", rest, err)
			}
		})
	}
}

func closing(c *net.TCPConn)     { _ = c.Close() }
func halfClosing(c *net.TCPConn) { _ = c.CloseWrite() }
func resetting(c *net.TCPConn) {
	_ = c.SetLinger(0)
	_ = c.Close()
}
