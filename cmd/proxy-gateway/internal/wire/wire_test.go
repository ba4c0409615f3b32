package wire_test

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"testing/iotest"

	"go.uber.org/goleak"

	"github.com/dodona-project/dodona/cmd/proxy-gateway/internal/wire"
	"github.com/dodona-project/dodona/sdk/worker/target"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func reader(text string) *wire.Reader {
	var r wire.Reader
	r.Reset(strings.NewReader(text))
	return &r
}

const get = "GET http://shop.example/a HTTP/1.1\r\nHost: shop.example\r\n"

func TestRequestIsSentOn(t *testing.T) {
	for _, c := range []struct{ name, in, absolute, origin string }{
		{
			"plain", get + "Accept: */*\r\n\r\n",
			"GET http://shop.example/a HTTP/1.1\r\nHost: shop.example\r\nAccept: */*\r\n\r\n", "GET /a HTTP/1.1\r\nHost: shop.example\r\nAccept: */*\r\n\r\n",
		},
		{
			"userinfo, foreign Host, upper case, default port", "GET HTTP://user:secret@Shop.EXAMPLE:80/A?b=/c HTTP/1.1\r\nHost: other.example\r\n\r\n",
			"GET http://shop.example/A?b=/c HTTP/1.1\r\nHost: shop.example\r\n\r\n", "GET /A?b=/c HTTP/1.1\r\nHost: shop.example\r\n\r\n",
		},
		{
			"no path", "GET http://shop.example:8080?q HTTP/1.1\r\nHost:\r\n\r\n",
			"GET http://shop.example:8080/?q HTTP/1.1\r\nHost: shop.example:8080\r\n\r\n", "GET /?q HTTP/1.1\r\nHost: shop.example:8080\r\n\r\n",
		},
		{
			"OPTIONS of the server", "OPTIONS http://shop.example HTTP/1.1\r\nHost: x\r\n\r\n",
			"OPTIONS http://shop.example HTTP/1.1\r\nHost: shop.example\r\n\r\n", "OPTIONS * HTTP/1.1\r\nHost: shop.example\r\n\r\n",
		},
		{
			"IPv6", "GET http://[2001:DB8::1]/ HTTP/1.1\r\nHost: x\r\n\r\n",
			"GET http://[2001:db8::1]/ HTTP/1.1\r\nHost: [2001:db8::1]\r\n\r\n", "GET / HTTP/1.1\r\nHost: [2001:db8::1]\r\n\r\n",
		},
		{
			"what is for us alone", get + "Connection: X-One, close\r\nX-One: 1\r\nconnection: x-TWO\r\nX-Two: 2\r\nX-Three: 3\r\nProxy-Authorization: Basic abc\r\nProxy-Connection: keep-alive\r\nKeep-Alive: timeout=5\r\nUpgrade: h2c\r\nTE: gzip\r\n\r\n",
			"GET http://shop.example/a HTTP/1.1\r\nHost: shop.example\r\nX-Three: 3\r\n\r\n", "GET /a HTTP/1.1\r\nHost: shop.example\r\nX-Three: 3\r\n\r\n",
		},
		{
			"Connection names what frames the message", "POST http://shop.example/a HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\nConnection: content-length, host\r\n\r\nabc",
			"POST http://shop.example/a HTTP/1.1\r\nHost: shop.example\r\nContent-Length: 3\r\n\r\n", "POST /a HTTP/1.1\r\nHost: shop.example\r\nContent-Length: 3\r\n\r\n",
		},
		{
			"chunked, 100-continue, trailers", "POST http://shop.example/a HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: Chunked\r\nExpect: 100-Continue\r\nTE: trailers, deflate\r\nTrailer: X-Sum\r\n\r\n0\r\n\r\n",
			"POST http://shop.example/a HTTP/1.1\r\nHost: shop.example\r\nExpect: 100-Continue\r\nTrailer: X-Sum\r\nTransfer-Encoding: chunked\r\nTE: trailers\r\nConnection: TE\r\n\r\n", "POST /a HTTP/1.1\r\nHost: shop.example\r\nExpect: 100-Continue\r\nTrailer: X-Sum\r\nTransfer-Encoding: chunked\r\nTE: trailers\r\nConnection: TE\r\n\r\n",
		},
		{
			"HTTP/1.0 without Host, 100-continue means nothing", "POST http://shop.example/a HTTP/1.0\r\nContent-Length: 0\r\nExpect: 100-continue\r\n\r\n",
			"POST http://shop.example/a HTTP/1.1\r\nHost: shop.example\r\nContent-Length: 0\r\n\r\n", "POST /a HTTP/1.1\r\nHost: shop.example\r\nContent-Length: 0\r\n\r\n",
		},
		{
			"spaces around values, bytes beyond ASCII, an empty line before", "\r\nGET http://shop.example/\xc3\xbc HTTP/1.1\r\nHost: x\r\nA:\t \xff b \t\r\nB:\r\n\r\n",
			"GET http://shop.example/\xc3\xbc HTTP/1.1\r\nHost: shop.example\r\nA: \xff b\r\nB: \r\n\r\n", "GET /\xc3\xbc HTTP/1.1\r\nHost: shop.example\r\nA: \xff b\r\nB: \r\n\r\n",
		},
	} {
		for how, src := range map[string]io.Reader{"at once": strings.NewReader(c.in), "byte by byte": iotest.OneByteReader(strings.NewReader(c.in))} {
			var r wire.Reader
			r.Reset(src)
			var q wire.Request
			if err := r.ReadRequest(&q); err != nil {
				t.Errorf("%s, %s: %v", c.name, how, err)
				continue
			}
			if got := string(q.Append(nil, wire.Onward{Absolute: true})); got != c.absolute {
				t.Errorf("%s, %s:\n got %q\nwant %q", c.name, how, got, c.absolute)
			}
			if got := string(q.Append(nil, wire.Onward{})); got != c.origin {
				t.Errorf("%s, %s:\n got %q\nwant %q", c.name, how, got, c.origin)
			}
		}
	}
	var q wire.Request
	if err := reader(get + "\r\n").ReadRequest(&q); err != nil {
		t.Fatal(err)
	}
	if got := string(q.Append(nil, wire.Onward{Absolute: true, Login: "Basic ours"})); !strings.Contains(got, "\r\nProxy-Authorization: Basic ours\r\n") {
		t.Errorf("the upstream's login is not in %q", got)
	}
}

func TestConnect(t *testing.T) {
	for in, want := range map[string]string{
		"CONNECT shop.example:443 HTTP/1.1\r\nHost: other\r\n\r\n":              "shop.example:443",
		"CONNECT [2001:db8::1]:443 HTTP/1.1\r\nHost: x\r\n\r\n":                 "[2001:db8::1]:443",
		"CONNECT Shop.Example.:8443 HTTP/1.0\r\n\r\n":                           "shop.example:8443",
		"CONNECT 192.0.2.1:443 HTTP/1.1\r\nHost: 192.0.2.1:443\r\n\r\n\x16\x03": "192.0.2.1:443",
	} {
		var q wire.Request
		r := reader(in)
		if err := r.ReadRequest(&q); err != nil || !q.Connect || q.Target.String() != want {
			t.Errorf("%q: %v, %v", in, q.Target, err)
		}
		if rest := string(r.Buffered()); rest != in[strings.Index(in, "\r\n\r\n")+4:] {
			t.Errorf("%q: left is %q", in, rest)
		}
	}
}

// Connection may name so many fields and no more: each one of a head is looked for among
// them.
func TestFieldsThatConnectionNames(t *testing.T) {
	for _, c := range []struct {
		named int
		ok    bool
	}{{64, true}, {65, false}, {20_000, false}} {
		fields := "Connection: " + strings.Repeat("a,", c.named-1) + "keep-alive\r\nConnection: close, b\r\nA: 1\r\nB: 2\r\nC: 3\r\n\r\n"
		var q wire.Request
		var p wire.Response
		asked := reader(get + fields).ReadRequest(&q)
		answered := reader("HTTP/1.1 204 No Content\r\n"+fields).ReadResponse(&p, http.MethodGet)
		for what, err := range map[string]error{"request": asked, "response": answered} {
			var malformed *wire.Malformed
			if (err == nil) != c.ok || err != nil && !errors.As(err, &malformed) {
				t.Errorf("%s that names %d fields: %v", what, c.named, err)
			}
		}
		if c.ok && (strings.Contains(string(q.Append(nil, wire.Onward{})), "A: 1") || strings.Contains(string(p.Append(nil, 1, true)), "B: 2")) {
			t.Errorf("of %d named fields one goes on", c.named)
		}
	}
}

// Every head that two programs could read in two ways, and what is no request to a proxy.
func TestRefusedRequests(t *testing.T) {
	post := "POST http://shop.example/ HTTP/1.1\r\nHost: x\r\n"
	for _, in := range []string{
		"GET http://a/ HTTP/1.1\nHost: x\n\n", get + "A: b\n\r\n", get + "A: b\r\n\n", "\n" + get + "\r\n", "\r\n\r\n" + get + "\r\n", get + "A: b\r\r\n\r\n", get + "A: b\rc: d\r\n\r\n", "GET http://a/\r HTTP/1.1\r\nHost: x\r\n\r\n",
		get + " A: b\r\n\r\n", get + "A: b\r\n folded\r\n\r\n", get + "A: b\r\n\tfolded\r\n\r\n", "GET http://a/ HTTP/1.1\r\n Host: x\r\n\r\n",
		get + "A : b\r\n\r\n", get + "A\t: b\r\n\r\n", get + ": b\r\n\r\n", get + "A\r\n\r\n", get + "A\x00: b\r\n\r\n", get + "A: b\x00\r\n\r\n", get + "A: \x01\r\n\r\n", get + "A: b\x7f\r\n\r\n", get + "A(: b\r\n\r\n", get + "\xc3\xbc: b\r\n\r\n",
		get + "Host: y\r\n\r\n", "GET http://shop.example/ HTTP/1.1\r\n\r\n", "GET http://shop.example/ HTTP/1.1\r\nHost: a b\r\n\r\n", "GET http://shop.example/ HTTP/1.1\r\nHost: a,b\r\n\r\n", "GET http://shop.example/ HTTP/1.1\r\nHost: a@b\r\n\r\n", "GET http://shop.example/ HTTP/1.1\r\nHost: a/b\r\n\r\n",
		post + "Content-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n", post + "Transfer-Encoding: chunked\r\nContent-Length: 3\r\n\r\n", post + "Content-Length: 3\r\nContent-Length: 3\r\n\r\n", post + "Content-Length: 3\r\nContent-Length: 4\r\n\r\n",
		post + "Content-Length: 3, 3\r\n\r\n", post + "Content-Length: +3\r\n\r\n", post + "Content-Length: -3\r\n\r\n", post + "Content-Length: 0x3\r\n\r\n", post + "Content-Length: 3 \x0b\r\n\r\n", post + "Content-Length: \r\n\r\n", post + "Content-Length: 9223372036854775808\r\n\r\n", post + "Content-Length: 1_000\r\n\r\n", post + "Content-Length: ３\r\n\r\n",
		post + "Transfer-Encoding: gzip\r\n\r\n", post + "Transfer-Encoding: gzip, chunked\r\n\r\n", post + "Transfer-Encoding: chunked, identity\r\n\r\n", post + "Transfer-Encoding: chunked, chunked\r\n\r\n", post + "Transfer-Encoding: identity\r\n\r\n", post + "Transfer-Encoding: xchunked\r\n\r\n", post + "Transfer-Encoding: \"chunked\"\r\n\r\n",
		post + "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n", post + "Transfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n\r\n", post + "Transfer-Encoding:\r\n\r\n", post + "Transfer-Encoding: chunked;q=1\r\n\r\n", post + "Transfer-Encoding: \x0bchunked\r\n\r\n", post + "Transfer_Encoding : chunked\r\n\r\n",
		"POST http://shop.example/ HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n",
		"CONNECT a.example:443 HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\n\r\n", "CONNECT a.example:443 HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n", "CONNECT a.example:443 HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n",
		"CONNECT a.example HTTP/1.1\r\nHost: x\r\n\r\n", "CONNECT http://a.example:443 HTTP/1.1\r\nHost: x\r\n\r\n", "CONNECT u@a.example:443 HTTP/1.1\r\nHost: x\r\n\r\n", "CONNECT 127.1:443 HTTP/1.1\r\nHost: x\r\n\r\n", "CONNECT a.example:443/ HTTP/1.1\r\nHost: x\r\n\r\n", "connect a.example:443 HTTP/1.1\r\nHost: x\r\n\r\n",
		"GET / HTTP/1.1\r\nHost: x\r\n\r\n", "GET * HTTP/1.1\r\nHost: x\r\n\r\n", "OPTIONS * HTTP/1.1\r\nHost: x\r\n\r\n", "GET https://a.example/ HTTP/1.1\r\nHost: x\r\n\r\n", "GET ftp://a.example/ HTTP/1.1\r\nHost: x\r\n\r\n", "GET http:/a HTTP/1.1\r\nHost: x\r\n\r\n", "GET http:// HTTP/1.1\r\nHost: x\r\n\r\n", "GET http:///a HTTP/1.1\r\nHost: x\r\n\r\n",
		"GET http://a@b@c.example/ HTTP/1.1\r\nHost: x\r\n\r\n", "GET http://a.example\\@b.example/ HTTP/1.1\r\nHost: x\r\n\r\n", "GET http://a.example/#f HTTP/1.1\r\nHost: x\r\n\r\n", "GET http://a.example:/x\x00 HTTP/1.1\r\nHost: x\r\n\r\n", "GET http://[::1/ HTTP/1.1\r\nHost: x\r\n\r\n", "GET http://0x7f.1/ HTTP/1.1\r\nHost: x\r\n\r\n", "GET http://a%2eexample/ HTTP/1.1\r\nHost: x\r\n\r\n",
		"GET  http://a.example/ HTTP/1.1\r\nHost: x\r\n\r\n", "GET http://a.example/  HTTP/1.1\r\nHost: x\r\n\r\n", "GET http://a.example/ HTTP/1.1 \r\nHost: x\r\n\r\n", "GET http://a.example/\r\n\r\n", "GET\thttp://a.example/ HTTP/1.1\r\nHost: x\r\n\r\n", "G@T http://a.example/ HTTP/1.1\r\nHost: x\r\n\r\n", "GET http://a b.example/ HTTP/1.1\r\nHost: x\r\n\r\n", "GET http://a.example/ http/1.1\r\nHost: x\r\n\r\n", "GET http://a.example/ HTTP/1.10\r\nHost: x\r\n\r\n",
		get + "Proxy-Authorization: Basic a\r\nProxy-Authorization: Basic b\r\n\r\n",
		"\x16\x03\x01\x02\x00\x01", "\x05\x01\x00",
	} {
		var q wire.Request
		err := reader(in).ReadRequest(&q)
		var malformed *wire.Malformed
		var wrong *target.Malformed
		if !errors.As(err, &malformed) && !errors.As(err, &wrong) {
			t.Errorf("%q: %v, want it malformed", in, err)
		}
		if err != nil && len(err.Error()) > 400 {
			t.Errorf("%q: an error of %d bytes", in, len(err.Error()))
		}
	}
	for in, want := range map[string]error{
		"": io.EOF, "GET": io.ErrUnexpectedEOF, get: io.ErrUnexpectedEOF,
		"GET http://a.example/ HTTP/2.0\r\n\r\n": wire.ErrVersion, "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n": wire.ErrVersion, "GET http://a.example/ HTTP/0.9\r\n\r\n": wire.ErrVersion,
		get + "A: " + strings.Repeat("b", wire.MaxHead) + "\r\n\r\n":              wire.ErrHeadTooLong,
		get + strings.Repeat("A: b\r\n", wire.MaxHead/6) + "\r\n":                 wire.ErrHeadTooLong,
		get + strings.Repeat("a:\r\n", 10_000) + "\r\n":                           wire.ErrHeadTooLong,
		"GET http://a.example/" + strings.Repeat("b", wire.MaxHead) + " HTTP/1.1": wire.ErrHeadTooLong,
	} {
		var q wire.Request
		if err := reader(in).ReadRequest(&q); !errors.Is(err, want) {
			t.Errorf("%.60q: %v, want %v", in, err, want)
		}
	}
}

func TestLongHeadsAreRead(t *testing.T) {
	in := get + "A: " + strings.Repeat("b", wire.MaxHead-len(get)-7) + "\r\n\r\n"
	r := reader(in + in + get + "\r\n")
	for _, want := range []int{len(in), len(in), len(get) + 2} {
		var q wire.Request
		if err := r.ReadRequest(&q); err != nil {
			t.Fatal(err)
		}
		if got := len(q.Append(nil, wire.Onward{Absolute: true})); got != want {
			t.Errorf("%d bytes, want %d", got, want)
		}
	}
}

func TestResponseIsSentOn(t *testing.T) {
	for _, c := range []struct {
		in, method string
		minor      int
		last       bool
		want       string
		length     int64
		persistent bool
	}{
		{"HTTP/1.1 200 OK\r\nContent-Length: 3\r\nConnection: X-A, keep-alive\r\nX-A: 1\r\nProxy-Authenticate: x\r\nKeep-Alive: 5\r\nX-B: 2\r\n\r\n", "GET", 1, false, "HTTP/1.1 200 OK\r\nContent-Length: 3\r\nX-B: 2\r\n\r\n", 3, true},
		{"HTTP/1.1 200\r\nTransfer-Encoding: chunked\r\n\r\n", "GET", 1, false, "HTTP/1.1 200 \r\nTransfer-Encoding: chunked\r\n\r\n", wire.Chunked, true},
		{"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", "GET", 0, true, "HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n", wire.Chunked, true},
		{"HTTP/1.0 200 OK\r\n\r\n", "GET", 1, true, "HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n", wire.UntilClose, false},
		{"HTTP/1.0 200 OK\r\nContent-Length: 1\r\nConnection: keep-alive\r\n\r\n", "GET", 0, false, "HTTP/1.1 200 OK\r\nContent-Length: 1\r\nConnection: keep-alive\r\n\r\n", 1, true},
		{"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nContent-Length: 5\r\n\r\n", "HEAD", 1, false, "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n", 0, true},
		{"HTTP/1.1 304 Not Modified\r\nContent-Length: 5\r\nConnection: close\r\n\r\n", "GET", 1, false, "HTTP/1.1 304 Not Modified\r\nContent-Length: 5\r\n\r\n", 0, false},
		{"HTTP/1.1 204 No\r\nContent-Length: 0\r\n\r\n", "GET", 1, false, "HTTP/1.1 204 No\r\n\r\n", 0, true},
		{"HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n", "GET", 1, false, "HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n", 0, true},
	} {
		var p wire.Response
		if err := reader(c.in).ReadResponse(&p, c.method); err != nil {
			t.Errorf("%q: %v", c.in, err)
			continue
		}
		if got := string(p.Append(nil, c.minor, c.last)); got != c.want || p.Length != c.length || p.Persistent() != c.persistent {
			t.Errorf("%q\n got %q, %d, %v\nwant %q, %d, %v", c.in, got, p.Length, p.Persistent(), c.want, c.length, c.persistent)
		}
	}
	for _, in := range []string{
		"HTTP/1.1 200 OK\n\n", "\r\nHTTP/1.1 200 OK\r\n\r\n", "HTTP/1.1 20 OK\r\n\r\n", "HTTP/1.1 2000 OK\r\n\r\n", "HTTP/1.1  200 OK\r\n\r\n", "HTTP/1.1 099 OK\r\n\r\n", "HTTP/2.0 200 OK\r\n\r\n", "ICY 200 OK\r\n\r\n", "HTTP/1.1 200 O\x00K\r\n\r\n", "HTTP/1.1 200 O\rK\r\n\r\n", "220 mail.example ESMTP\r\n\r\n",
		"HTTP/1.1 200 OK\r\nContent-Length: 3\r\nContent-Length: 4\r\n\r\n", "HTTP/1.1 200 OK\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n", "HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip\r\n\r\n", "HTTP/1.1 200 OK\r\nA: b\r\n c\r\n\r\n", "HTTP/1.0 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n",
	} {
		var p wire.Response
		var malformed *wire.Malformed
		if err := reader(in).ReadResponse(&p, "GET"); !errors.As(err, &malformed) {
			t.Errorf("%q: %v, want it malformed", in, err)
		}
	}
}

func TestCopy(t *testing.T) {
	long := strings.Repeat("0123456789", 20_000)
	for _, c := range []struct {
		name, in, want, left string
		length               int64
		plain                bool
	}{
		{"sized", "abcdef", "abc", "def", 3, false},
		{"nothing", "abc", "", "abc", 0, false},
		{"long", long + "x", long, "x", int64(len(long)), false},
		{"to the end", long, long, "", wire.UntilClose, false},
		{"chunks", "3;ext=\"1\"\r\nabc\r\n0A ;x\r\n0123456789\r\n000\r\n\r\nrest", "3\r\nabc\r\na\r\n0123456789\r\n0\r\n\r\n", "rest", wire.Chunked, false},
		{"chunks made plain", "3\r\nabc\r\n2\r\nde\r\n0\r\nX-T: 1\r\n\r\nrest", "abcde", "rest", wire.Chunked, true},
		{"trailers", "0\r\nX-Sum: 1 \r\nContent-Length: 5\r\nTransfer-Encoding: x\r\nHost: y\r\nAuthorization: z\r\nX-B:\r\n\r\n", "0\r\nX-Sum: 1\r\nX-B: \r\n\r\n", "", wire.Chunked, false},
		{"long chunk", fmt.Sprintf("%X\r\n%s\r\n0\r\n\r\n", len(long), long), fmt.Sprintf("%x\r\n%s\r\n0\r\n\r\n", len(long), long), "", wire.Chunked, false},
	} {
		for how, src := range map[string]io.Reader{"at once": strings.NewReader(c.in), "byte by byte": iotest.OneByteReader(strings.NewReader(c.in)), "halves": iotest.HalfReader(strings.NewReader(c.in))} {
			var r wire.Reader
			var w wire.Writer
			var out bytes.Buffer
			r.Reset(src)
			w.Reset(&out)
			whole := 0
			if err := wire.Copy(&w, &r, c.length, c.plain, func() { whole++ }); err != nil || whole != 1 {
				t.Errorf("%s, %s: %v, whole %d times", c.name, how, err, whole)
				continue
			}
			left, _ := io.ReadAll(src)
			if rest := string(r.Buffered()) + string(left); out.String() != c.want || rest != c.left {
				t.Errorf("%s, %s: %.80q and %.80q, want %.80q and %.80q", c.name, how, out.String(), rest, c.want, c.left)
			}
		}
	}
}

func TestBrokenBodies(t *testing.T) {
	for in, length := range map[string]int64{
		"ab": 3, "": 1, "3\r\nab": wire.Chunked, "3\r\nabc\r\n": wire.Chunked, "3\r\nabc": wire.Chunked, "0\r\n": wire.Chunked, "0\r\nA: b\r\n": wire.Chunked,
	} {
		var w wire.Writer
		w.Reset(io.Discard)
		err := wire.Copy(&w, reader(in), length, false, func() { t.Errorf("%q is whole", in) })
		if broken := (*wire.Broken)(nil); !errors.As(err, &broken) || broken.Writing || !errors.Is(err, io.ErrUnexpectedEOF) {
			t.Errorf("%q: %v, want that it ends too early", in, err)
		}
	}
	for _, in := range []string{
		"\r\n", "x\r\n", "-1\r\n", "+1\r\na\r\n0\r\n\r\n", "0x1\r\na\r\n0\r\n\r\n", " 1\r\na\r\n0\r\n\r\n", "1 \r\na\r\n0\r\n\r\n", "1\na\r\n0\r\n\r\n", "1\r\na\n0\r\n\r\n", "1\r\nab\r\n0\r\n\r\n", "1\r\na0\r\n\r\n", "2\r\na\r\n0\r\n\r\n",
		"8000000000000000\r\n", "ffffffffffffffff\r\n", "10000000000000001\r\n", "00000000000000001\r\na\r\n0\r\n\r\n", ";a\r\n", "1;\x00\r\na\r\n0\r\n\r\n", "1;a\rb\r\na\r\n0\r\n\r\n", "1;" + strings.Repeat("x", 2000) + "\r\na\r\n0\r\n\r\n",
		"0\r\nA b\r\n\r\n", "0\r\n A: b\r\n\r\n", "0\r\nA: b\n\r\n", "0\r\nA: b\r\n\n", "0\r\n\n", "0\n\r\n", "0\r\n" + strings.Repeat("A: bcdefgh\r\n", 2000) + "\r\n", "0\r\nA: " + strings.Repeat("b", 20_000) + "\r\n\r\n",
	} {
		var w wire.Writer
		w.Reset(io.Discard)
		err := wire.Copy(&w, reader(in), wire.Chunked, false, nil)
		var malformed *wire.Malformed
		if !errors.As(err, &malformed) {
			t.Errorf("%.60q: %v, want it malformed", in, err)
		}
	}
	var w wire.Writer
	w.Reset(refusing{})
	for _, length := range []int64{3, wire.Chunked, wire.UntilClose, 100_000} {
		err := wire.Copy(&w, reader("3\r\nabc\r\n0\r\n\r\n"+strings.Repeat("x", 100_000)), length, false, nil)
		if broken := (*wire.Broken)(nil); !errors.As(err, &broken) || !broken.Writing {
			t.Errorf("%d: %v, want that writing fails", length, err)
		}
	}
}

type refusing struct{}

func (refusing) Write([]byte) (int, error) { return 0, errors.New("closed") }

// Whatever is read is sent on in a way that net/http reads as the same request, and
// where it reads the original too it reads that the same. What it does not read may only be
// stricter than we are in what does not frame a message.
func FuzzRequest(f *testing.F) {
	for _, s := range []string{
		get + "\r\n", get + "Connection: a\r\nA: b\r\n\r\n", "POST http://u:p@a.example:8080/x?y HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\n\r\nabcGET",
		"POST http://[::1]/ HTTP/1.0\r\nContent-Length: 3\r\n\r\nabc", "POST http://a/ HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\nTrailer: b\r\n\r\n3;x\r\nabc\r\n0\r\nB: c\r\n\r\n",
		"CONNECT a.example:443 HTTP/1.1\r\nHost: x\r\n\r\nrest", "OPTIONS http://a HTTP/1.1\r\nHost:\r\nExpect: 100-continue\r\nTE: trailers\r\n\r\n", "\r\nGET http://a/\xff HTTP/1.1\r\nhost: a\r\n\r\n",
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, in []byte) {
		var r wire.Reader
		r.Reset(bytes.NewReader(in))
		var q wire.Request
		if r.ReadRequest(&q) != nil {
			return
		}
		length, method := q.Length, q.Method
		ours := q.Append(nil, wire.Onward{Absolute: true})
		if q.Connect {
			ours = []byte("CONNECT " + q.Target.String() + " HTTP/1.1\r\nHost: " + q.Target.String() + "\r\n\r\n")
		}
		var w wire.Writer
		var sent bytes.Buffer
		w.Reset(&sent)
		failed := wire.Copy(&w, &r, length, false, nil)
		theirs, err := http.ReadRequest(bufio.NewReader(io.MultiReader(bytes.NewReader(ours), &sent)))
		if err != nil {
			// It parses the target as a URL of its own rules; these frame nothing.
			for _, known := range []string{"invalid URL escape", "invalid method", "net/url: "} {
				if strings.Contains(err.Error(), known) {
					return
				}
			}
			t.Fatalf("%q is sent on as %q, which is read as %v", in, ours, err)
		}
		if theirs.Method != method || theirs.Host != "" && !same(theirs.Host, q.Target) {
			t.Fatalf("%q is sent on as %s to %s, want %s to %s", in, theirs.Method, theirs.Host, method, q.Target)
		}
		if want := max(length, -1); theirs.ContentLength != want {
			t.Fatalf("%q is sent on with length %d, want %d", in, theirs.ContentLength, want)
		}
		for _, name := range []string{"Proxy-Authorization", "Proxy-Connection", "Keep-Alive", "Upgrade"} {
			if _, there := theirs.Header[name]; there {
				t.Fatalf("%q is sent on with %s", in, name)
			}
		}
		got, bad := io.ReadAll(theirs.Body)
		if failed == nil && bad != nil {
			t.Fatalf("%q: the body is sent on as %q, which is read as %v", in, sent.Bytes(), bad)
		}
		original, err := http.ReadRequest(bufio.NewReader(bytes.NewReader(bytes.TrimPrefix(in, []byte("\r\n")))))
		if err != nil {
			return
		}
		if original.Method != method || original.ContentLength != max(length, -1) {
			t.Fatalf("%q is read as %s with %d bytes, by net/http as %s with %d", in, method, length, original.Method, original.ContentLength)
		}
		if at, err := target.Parse(original.URL.Host, 80); err != nil || !q.Connect && at != q.Target {
			t.Fatalf("%q is for %s, by net/http for %s", in, q.Target, original.URL.Host)
		}
		want, bad := io.ReadAll(original.Body)
		if failed == nil && (bad != nil || !bytes.Equal(got, want)) {
			t.Fatalf("%q has the body %q, by net/http %q, %v", in, got, want, bad)
		}
	})
}

func same(host string, to target.Target) bool {
	at, err := target.Parse(host, 80)
	return err == nil && at == to
}

// Whatever a server sends, what goes on to the client is read by net/http as the same.
func FuzzResponse(f *testing.F) {
	for _, s := range []string{
		"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nabc", "HTTP/1.0 200\r\n\r\nabc", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\nA: b\r\n\r\n", "HTTP/1.1 304 N\r\nContent-Length: 5\r\nConnection: a\r\nA: b\r\n\r\n",
		"HTTP/1.1 200 \r\nTrAnsfer-EnCoding:Chunked\r\n\r\n0\n",
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, in []byte) {
		for _, method := range []string{"GET", "HEAD"} {
			var r wire.Reader
			r.Reset(bytes.NewReader(in))
			var p wire.Response
			if r.ReadResponse(&p, method) != nil || p.Informational() {
				continue
			}
			var sent bytes.Buffer
			var w wire.Writer
			w.Reset(&sent)
			status, length := p.Status, p.Length
			w.Append(func(to []byte) []byte { return p.Append(to, 1, length == wire.UntilClose) })
			failed := wire.Copy(&w, &r, length, false, nil)
			if failed != nil && sent.Len() == 0 {
				continue // not even the head was sent
			}
			theirs, err := http.ReadResponse(bufio.NewReader(&sent), &http.Request{Method: method})
			if err != nil {
				t.Fatalf("%q is sent on so that it reads %v", in, err)
			}
			if theirs.StatusCode != status {
				t.Fatalf("%q has status %d, sent on as %d", in, status, theirs.StatusCode)
			}
			if _, bad := io.ReadAll(theirs.Body); failed == nil && bad != nil {
				t.Fatalf("%q: the body is sent on so that it reads %v", in, bad)
			}
			_ = theirs.Body.Close()
		}
	})
}
