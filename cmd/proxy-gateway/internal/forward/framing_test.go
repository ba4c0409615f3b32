package forward_test

import (
	"bufio"
	"io"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/dodona-project/dodona/sdk/worker/proxytest"
)

// Whatever two programs could read in two ways is answered 400 over the wire, and the
// connection ends: what is behind it, which may be a request or a body, is led nowhere.
func TestAmbiguousFraming(t *testing.T) {
	var led atomic.Int32
	s := proxytest.Start(t, proxytest.Options{Protocol: httpProxy, Talk: func(c net.Conn) {
		r := bufio.NewReader(c)
		for {
			line, err := r.ReadString('\n')
			if err != nil {
				return
			}
			if strings.Contains(line, "smuggled") {
				led.Add(1)
			}
		}
	}})
	g := start(t, nil, through(t, s))
	const post = "POST http://shop.example/ HTTP/1.1\r\nHost: shop.example\r\n"
	const chunked = post + "Transfer-Encoding: chunked\r\n\r\n"
	const smuggled = "GET http://shop.example/smuggled HTTP/1.1\r\nHost: shop.example\r\n\r\n"
	for _, text := range []string{
		post + "Content-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
		post + "Transfer-Encoding: chunked\r\nContent-Length: 4\r\n\r\n0\r\n\r\n",
		post + "transfer-encoding: CHUNKED\r\ncontent-length: 0\r\n\r\n0\r\n\r\n",
		post + "Content-Length: 4\r\nTransfer-Encoding : chunked\r\n\r\n0\r\n\r\n",
		post + "Content-Length: 4\r\nTransfer-Encoding\t: chunked\r\n\r\n0\r\n\r\n",
		post + "Content-Length: 4\r\n Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
		post + "Content-Length: 4\r\nX: y\n Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
		post + "Content-Length: 4\r\nTransfer-Encoding: identity\r\n\r\nabcd",
		post + "Content-Length: 4\r\nTransfer-Encoding:\r\n\r\nabcd",
		post + "Content-Length: 4\r\nTransfer-Encoding: xchunked\r\n\r\n0\r\n\r\n",
		post + "Transfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n\r\n0\r\n\r\n",
		post + "Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
		post + "Transfer-Encoding: \x0bchunked\r\n\r\n0\r\n\r\n",
		post + "Transfer-Encoding:\r\n chunked\r\n\r\n0\r\n\r\n",
		post + "Content-Length: 4\r\nContent-Length: 5\r\n\r\nabcde",
		post + "Content-Length: 4\r\nContent-Length: 4\r\n\r\nabcd",
		post + "Content-Length: 4, 4\r\n\r\nabcd",
		post + "Content-Length: +4\r\n\r\nabcd",
		post + "Content-Length: 0x4\r\n\r\nabcd",
		post + "Content-Length: 4\r\n folded\r\n\r\nabcd",
		post + "Content-Length: 18446744073709551620\r\n\r\nabcd",
		post + "Content-Length: 4\n\r\nabcd",
		post + "Content-Length: 4\r\n\nabcd",
		post + "Content-Length: 4\r\r\n\r\nabcd",
		"POST http://shop.example/ HTTP/1.1\nHost: shop.example\nContent-Length: 4\n\nabcd",
		"POST http://shop.example/ HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
		"CONNECT shop.example:443 HTTP/1.1\r\nHost: shop.example\r\nContent-Length: 4\r\n\r\nabcd",
		"GET http://shop.example/ HTTP/1.1\r\nHost: shop.example\r\nHost: other.example\r\n\r\n",
		chunked + "fffffffffffffffff\r\n",
		chunked + "10000000000000000\r\n",
		chunked + "-1\r\n",
		chunked + "0x3\r\nabc\r\n0\r\n\r\n",
		chunked + "3 \r\nabc\r\n0\r\n\r\n",
		chunked + "3\nabc\n0\n\n",
		chunked + "3\r\nabc\n0\r\n\r\n",
		chunked + "3\r\nabcd\r\n0\r\n\r\n",
		chunked + "3;a=\"\nb\"\r\nabc\r\n0\r\n\r\n",
		chunked + "\r\n0\r\n\r\n",
		chunked + "0\r\nX : y\r\n\r\n",
		chunked + "0\r\n X: y\r\n\r\n",
		chunked + "0\r\nX: y\n\r\n",
	} {
		conn := g.dial()
		if _, err := io.WriteString(conn, text+smuggled); err != nil {
			t.Fatal(err)
		}
		_ = conn.CloseWrite()
		in := bufio.NewReader(conn)
		got := listenTo(t, in, http.MethodPost, text)
		if got.status != 400 || !got.close || !strings.Contains(got.proxyStatus, "error=http_request_error") {
			t.Errorf("%q is answered %+v", text, got)
		}
		if rest, err := io.ReadAll(in); err != nil || len(rest) > 0 {
			t.Errorf("%q: then %q, %v", text, rest, err)
		}
		_ = conn.Close()
	}
	eventually(t, "nothing is under way", func() bool { return g.Stats.Connections.Load() == 0 })
	if led.Load() != 0 {
		t.Errorf("%d requests came through that were none", led.Load())
	}
}
