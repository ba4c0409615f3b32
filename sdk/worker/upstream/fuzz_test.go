package upstream_test

import (
	"bytes"
	"errors"
	"io"
	"net"
	"strings"
	"testing"

	"github.com/dodona-project/dodona/sdk/worker/upstream"
)

// script is a connection to a proxy that sends what it is told to.
type script struct {
	net.Conn
	from io.Reader
}

func (s *script) Read(p []byte) (int, error)  { return s.from.Read(p) }
func (s *script) Write(p []byte) (int, error) { return len(p), nil }

// Whatever a proxy sends, a handshake ends, and when it ends well then what follows the
// answer is all there and in order.
func FuzzAnswers(f *testing.F) {
	for _, s := range []string{
		"HTTP/1.1 200 OK\r\n\r\nrest", "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.0 200\r\nContent-Length: 4\r\n\r\nrest", "HTTP/1.1 407 No\r\n\r\n",
		"HTTP/1.1 200 OK\n\nrest", "\x05\x00\x05\x00\x00\x01\x7f\x00\x00\x01\x00\x50rest", "\x05\x02\x01\x00\x05\x00\x00\x03\x01a\x00\x50rest", "\x05\x00\x05\x04\x00\x01",
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, sent []byte) {
		p := upstream.Proxy{Protocol: httpProxy, Host: "proxy.example", Port: 1, Username: "user", Password: "password"}
		for _, size := range []int{1, 7, 1 << 20} {
			left := bytes.NewReader(sent)
			conn, err := upstream.ConnectOver(&script{from: &pieces{left, size}}, p, shop)
			judge(t, sent, conn, err, func(head string) bool { return strings.HasSuffix(head, "\n") })
			p.Protocol = socksProxy
			left.Reset(sent)
			socks := &script{from: &pieces{left, size}}
			err = upstream.Socks5Over(socks, p, shop)
			judge(t, sent, socks, err, func(head string) bool { return strings.HasPrefix(head, "\x05") && len(head) >= 9 })
		}
	})
}

func judge(t *testing.T, sent []byte, conn net.Conn, err error, fits func(head string) bool) {
	var e *upstream.Error
	if err != nil {
		if errors.As(err, &e) && (e.Stage != upstream.Handshake || e.Class == 0) {
			t.Fatalf("%q gives %+v", sent, e)
		}
		return
	}
	rest, err := io.ReadAll(conn)
	if err != nil || !bytes.HasSuffix(sent, rest) || !fits(string(sent[:len(sent)-len(rest)])) {
		t.Fatalf("of %q is left %q, %v", sent, rest, err)
	}
}

// pieces gives at most so many bytes at once.
type pieces struct {
	io.Reader
	size int
}

func (r *pieces) Read(p []byte) (int, error) { return r.Reader.Read(p[:min(len(p), r.size)]) }
