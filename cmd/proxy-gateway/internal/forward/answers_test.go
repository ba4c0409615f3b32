package forward_test

import (
	"bufio"
	"encoding/base64"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/dodona-project/dodona/cmd/proxy-gateway/internal/forward"
	controlplanev1 "github.com/dodona-project/dodona/proto/controlplane/v1"
	"github.com/dodona-project/dodona/sdk/worker"
	"github.com/dodona-project/dodona/sdk/worker/proxytest"
	"github.com/dodona-project/dodona/sdk/worker/target"
)

const (
	getShop     = "GET http://shop.example/ HTTP/1.1\r\nHost: shop.example\r\n\r\n"
	connectShop = "CONNECT shop.example:443 HTTP/1.1\r\nHost: shop.example:443\r\n\r\n"
	ok          = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
)

// closedPort is an address where nobody listens.
func closedPort(t testing.TB) *proxytest.Server {
	s := proxytest.Start(t, proxytest.Options{Protocol: httpProxy})
	s.Close()
	return s
}

// silent takes everything and says nothing.
func silent(t testing.TB) *proxytest.Server {
	return proxytest.Start(t, proxytest.Options{Protocol: httpProxy, Talk: func(c net.Conn) { _, _ = io.Copy(io.Discard, c) }})
}

type passwords map[string]string

func (p passwords) Check(name, password string) bool { return p[name] != "" && p[name] == password }

// Every answer of the gateway's own: its status, its error in Proxy-Status, and whether the
// connection goes on.
func TestOwnAnswers(t *testing.T) {
	soon := func(o *forward.Options) {
		o.Limits.Headers = 300 * time.Millisecond
		o.Dialer.HandshakeTimeout = 300 * time.Millisecond
	}
	closed, mute := closedPort(t), silent(t)
	refusing := func(protocol controlplanev1.Proxy_Protocol, status int) *proxytest.Server {
		return proxytest.Start(t, proxytest.Options{Protocol: protocol, Status: status})
	}
	good := scripted(t, ok, ok, ok, ok, ok, ok)
	full := through(t, good.Server)
	full.proxies[0].capacity = 0
	hidden := through(t, good.Server)
	hidden.proxies[0].at.Host = "hidden.invalid"
	for _, c := range []struct {
		name   string
		change func(*forward.Options)
		rule   *rule
		text   string
		status int
		token  string
		closes bool
	}{
		{"no routing", nil, &rule{match: func(*worker.Request) bool { return false }}, getShop, 421, "destination_not_found", false},
		{"no routing for a CONNECT", nil, &rule{match: func(*worker.Request) bool { return false }}, connectShop, 421, "destination_not_found", true},
		{"policy by port", nil, through(t, good.Server), "GET http://shop.example:8080/ HTTP/1.1\r\nHost: x\r\n\r\n", 403, "http_request_denied", false},
		{"policy by address", nil, through(t, good.Server), "GET http://127.0.0.1/ HTTP/1.1\r\nHost: x\r\n\r\n", 403, "destination_ip_prohibited", false},
		{"policy by mapped address", nil, through(t, good.Server), "CONNECT [::ffff:10.0.0.1]:443 HTTP/1.1\r\nHost: x\r\n\r\n", 403, "destination_ip_prohibited", true},
		{"policy by name", nil, through(t, good.Server), "CONNECT localhost:443 HTTP/1.1\r\nHost: x\r\n\r\n", 403, "http_request_denied", true},
		{"nothing has room", nil, full, getShop, 503, "connection_limit_reached", false},
		{"nobody listens", nil, through(t, closed), getShop, 502, "connection_refused", false},
		{"nobody listens for a tunnel", nil, through(t, closed), connectShop, 502, "connection_refused", true},
		{"a proxy without an address", func(o *forward.Options) { o.Dialer.DialTimeout = patience }, hidden, getShop, 502, "dns_error", false},
		{"upstream 407 to CONNECT", nil, through(t, refusing(httpProxy, 407)), connectShop, 502, "proxy_configuration_error", true},
		{"upstream 403 to CONNECT", nil, through(t, refusing(httpProxy, 403)), connectShop, 502, "destination_unavailable", true},
		{"upstream SOCKS refusal", nil, through(t, refusing(socksProxy, 5)), getShop, 502, "destination_unavailable", false},
		{"upstream 407 to GET", nil, through(t, scripted(t, "HTTP/1.1 407 No\r\nProxy-Authenticate: Basic realm=x\r\nContent-Length: 6\r\n\r\nsecret").Server), getShop, 502, "proxy_configuration_error", false},
		{"upstream 101 to GET", nil, through(t, scripted(t, "HTTP/1.1 101 Switch\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\n").Server), getShop, 502, "http_protocol_error", false},
		{"upstream no HTTP", nil, through(t, scripted(t, "220 mail.example ESMTP close-after\r\n\r\n").Server), getShop, 502, "http_protocol_error", false},
		{"upstream ambiguous", nil, through(t, scripted(t, "HTTP/1.1 200 OK\r\nContent-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n").Server), getShop, 502, "http_protocol_error", false},
		{"upstream long head", nil, through(t, scripted(t, "HTTP/1.1 200 OK\r\nA: "+strings.Repeat("b", 70_000)+"\r\n\r\n").Server), getShop, 502, "http_response_header_section_size", false},
		{"upstream 1xx without end", nil, through(t, scripted(t, strings.Repeat("HTTP/1.1 102 Processing\r\n\r\n", 40)).Server), "GET http://shop.example/ HTTP/1.0\r\n\r\n", 502, "http_protocol_error", true},
		{"upstream hangs up", nil, through(t, scripted(t).Server), getShop, 502, "connection_terminated", false},
		{"upstream says nothing to a GET", soon, through(t, mute), getShop, 504, "http_response_timeout", false},
		{"upstream says nothing to a CONNECT", soon, through(t, mute), connectShop, 504, "connection_timeout", true},
		{"the request does not end", soon, through(t, good.Server), "GET http://shop.example/ HTTP/1.1\r\nHost:", 408, "http_request_error", true},
		{"the body does not end", func(o *forward.Options) { o.Limits.Idle = 300 * time.Millisecond }, through(t, mute), "POST http://shop.example/ HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\n\r\nab", 408, "http_request_error", true},
		{"the body is malformed", nil, through(t, mute), "POST http://shop.example/ HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\nx\r\n", 400, "http_request_error", true},
		{"a long head", nil, through(t, good.Server), "GET http://shop.example/ HTTP/1.1\r\nHost: x\r\nA: " + strings.Repeat("b", 70_000) + "\r\n\r\n", 431, "http_request_error", true},
		{"many fields", nil, through(t, good.Server), "GET http://shop.example/ HTTP/1.1\r\nHost: x\r\n" + strings.Repeat("a:\r\n", 10_000) + "\r\n", 431, "http_request_error", true},
		{"another version", nil, through(t, good.Server), "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 505, "http_request_error", true},
		{"TLS", nil, through(t, good.Server), "\x16\x03\x01\x02\x00\x01\x00", 400, "http_request_error", true},
		{"bare LF", nil, through(t, good.Server), "GET http://shop.example/ HTTP/1.1\nHost: x\n\n", 400, "http_request_error", true},
		{"two lengths", nil, through(t, good.Server), "POST http://shop.example/ HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\nContent-Length: 4\r\n\r\nabcd", 400, "http_request_error", true},
		{"length and chunks", nil, through(t, good.Server), "POST http://shop.example/ HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400, "http_request_error", true},
		{"no proxy request", nil, through(t, good.Server), "GET / HTTP/1.1\r\nHost: shop.example\r\n\r\n", 400, "http_request_error", true},
		{"an odd address", nil, through(t, good.Server), "GET http://0x7f000001/ HTTP/1.1\r\nHost: x\r\n\r\n", 400, "http_request_error", true},
		{"who asks", func(o *forward.Options) { o.Clients = passwords{"a": "b"} }, through(t, good.Server), getShop, 407, "http_request_denied", false},
		{"a body that nobody reads", nil, full, "POST http://shop.example/ HTTP/1.1\r\nHost: x\r\nContent-Length: 100000\r\n\r\n", 503, "connection_limit_reached", true},
	} {
		t.Run(c.name, func(t *testing.T) {
			g := start(t, c.change, c.rule)
			conn := g.dial()
			r := bufio.NewReader(conn)
			method := http.MethodGet
			if strings.HasPrefix(c.text, "CONNECT") {
				method = http.MethodConnect
			}
			got := talk(t, conn, r, method, c.text)
			if got.status != c.status || !strings.HasPrefix(got.proxyStatus, "proxy-gateway; error="+c.token+"; details=\"") || got.close != c.closes || got.body == "" {
				t.Errorf("got %d, %q, close %v, %q, want %d, %s, close %v", got.status, got.proxyStatus, got.close, got.body, c.status, c.token, c.closes)
			}
			if (got.header.Get("Retry-After") != "") != (c.status == 503) || (got.header.Get("Proxy-Authenticate") != "") != (c.status == 407) {
				t.Errorf("the fields are %v", got.header)
			}
			if strings.Contains(got.body+got.proxyStatus, "hidden.invalid") || strings.Contains(got.body+got.proxyStatus, closed.Proxy().GetHost()+":") || strings.Contains(got.body, "secret") {
				t.Errorf("it tells %q, %q", got.body, got.proxyStatus)
			}
			if c.closes {
				_ = conn.CloseWrite()
				if rest, err := io.ReadAll(r); err != nil || len(rest) > 0 {
					t.Errorf("then %q, %v, want the end", rest, err)
				}
				return
			}
			// The connection goes on: this one is refused by its target.
			if again := talk(t, conn, r, http.MethodGet, "GET http://[fe80::1]:1/ HTTP/1.1\r\nHost: x\r\nProxy-Authorization: Basic "+base64.StdEncoding.EncodeToString([]byte("a:b"))+"\r\n\r\n"); again.status != 403 && again.status != 421 {
				t.Errorf("the next request is answered %d: %s", again.status, again.body)
			}
		})
	}
}

// What cannot be read as a request has a whole answer, also after a HEAD, whose answer has
// no body.
func TestAnswerAfterHEAD(t *testing.T) {
	for _, next := range []string{"GET http://shop.example/ HTTP/1.1\n", "GET http://shop.example/ HTTP/1.1\r\nA: " + strings.Repeat("b", 70_000) + "\r\n\r\n", "\x16\x03\x01"} {
		g := start(t, nil, &rule{match: func(*worker.Request) bool { return false }})
		conn := g.dial()
		r := bufio.NewReader(conn)
		if got := talk(t, conn, r, http.MethodHead, "HEAD http://shop.example/ HTTP/1.1\r\nHost: x\r\n\r\n"); got.status != 421 || got.close {
			t.Fatalf("HEAD is answered %+v", got)
		}
		if got := talk(t, conn, r, http.MethodGet, next); got.status != 400 && got.status != 431 || got.err != nil || got.body == "" {
			t.Errorf("after %.40q: %+v", next, got)
		}
	}
}

// An answer that ends the connection is followed by its end, and not by a reset that some
// clients take for the loss of it, although the client has sent what nobody reads.
func TestAnswerToOneThatStillSends(t *testing.T) {
	full := through(t, silent(t))
	full.proxies[0].capacity = 0
	g := start(t, nil, full)
	conn := g.dial()
	r := bufio.NewReader(conn)
	text := "POST http://shop.example/ HTTP/1.1\r\nHost: x\r\nContent-Length: 1000000\r\n\r\n" + strings.Repeat("a", 200_000)
	if got := talk(t, conn, r, http.MethodPost, text); got.status != 503 || got.body == "" || got.err != nil {
		t.Errorf("answered %+v", got)
	}
	if rest, err := io.ReadAll(r); err != nil || len(rest) > 0 {
		t.Errorf("then %q, %v, want the end", rest, err)
	}
}

// Clients are asked for every request, and told no more than that.
func TestClients(t *testing.T) {
	s := scripted(t, ok, ok, ok)
	var seen []string
	r := through(t, s.Server)
	r.match = func(a *worker.Request) bool { seen = append(seen, a.Client); return true }
	g := start(t, func(o *forward.Options) { o.Clients = passwords{"alice": "s3cret:x", "bob": "b"} }, r)
	conn := g.dial()
	in := bufio.NewReader(conn)
	basic := func(text string) string { return base64.StdEncoding.EncodeToString([]byte(text)) }
	for _, c := range []struct {
		login string
		want  int
	}{
		{"", 407}, {"Basic " + basic("alice:s3cret:x"), 200}, {"", 407}, {"Basic " + basic("alice:wrong"), 407}, {"Basic " + basic("nobody:b"), 407}, {"basic  " + basic("bob:b"), 200},
		{"Basic " + basic("bob"), 407}, {"Basic !!", 407}, {"Bearer " + basic("bob:b"), 407}, {"Basic", 407}, {"Basic " + basic(":"), 407},
	} {
		field := ""
		if c.login != "" {
			field = "Proxy-Authorization: " + c.login + "\r\n"
		}
		got := talk(t, conn, in, http.MethodGet, "GET http://shop.example/ HTTP/1.1\r\nHost: x\r\n"+field+"\r\n")
		if got.status != c.want {
			t.Errorf("%q is answered %d %s, want %d", c.login, got.status, got.body, c.want)
		}
	}
	if fmt.Sprint(seen) != "[alice bob]" {
		t.Errorf("requests came from %v", seen)
	}
	for _, text := range s.received() {
		if strings.Contains(text, "Authorization") {
			t.Errorf("the upstream got %q", text)
		}
	}
	// After a 407 to CONNECT the connection goes on, unless what follows was sent already.
	if got := talk(t, conn, in, http.MethodConnect, connectShop); got.status != 407 || got.close {
		t.Errorf("CONNECT is answered %+v", got)
	}
	if got := talk(t, conn, in, http.MethodConnect, connectShop+getShop); got.status != 407 || !got.close {
		t.Errorf("CONNECT with something behind it is answered %+v", got)
	}
}

// Nothing at all is led anywhere before there is something to go by.
func TestNoView(t *testing.T) {
	g := start(t, nil)
	g.view.rules.Store(nil)
	if got := g.say(strings.Replace(getShop, "\r\n\r\n", "\r\nConnection: close\r\n\r\n", 1)); !strings.HasPrefix(got, "HTTP/1.1 503 ") || !strings.Contains(got, "\r\nRetry-After: ") || !strings.Contains(got, "error=destination_unavailable") {
		t.Errorf("answered %q", got)
	}
}

// A gateway's own listener is never a target, though everything else on this machine is.
func TestOwnListener(t *testing.T) {
	g := start(t, nil)
	at := addrPort(t, g.address)
	private := &controlplanev1.TargetPolicy{AllowPrivate: true, AllowPorts: []uint32{uint32(at.Port())}}
	for _, own := range []target.Own{{}, {Listeners: []netip.AddrPort{at}}} {
		p, err := target.Compile(private, own)
		if err != nil {
			t.Fatal(err)
		}
		g.view.set(&rule{Routing: worker.Routing{Name: "direct", OnUnavailable: direct, Policy: p}})
		want := 200
		if own.Listeners != nil {
			want = 403
		}
		conn := g.dial()
		if got := talk(t, conn, bufio.NewReader(conn), http.MethodConnect, "CONNECT "+g.address+" HTTP/1.1\r\nHost: x\r\n\r\n"); got.status != want {
			t.Errorf("with own %v: %+v, want %d", own, got, want)
		}
	}
}

// No spelling of this machine, of a private network or of a cloud's metadata is led
// anywhere, through a proxy or directly, in either kind of request.
func TestOddSpellings(t *testing.T) {
	good := scripted(t)
	rules := []*rule{through(t, good.Server), {Routing: worker.Routing{Name: "direct", OnUnavailable: direct}}}
	pinned := through(t, good.Server)
	pinned.Resolve = controlplanev1.Resolve_RESOLVE_PINNED
	names := &resolver{answer: func(int, string) []netip.Addr { return addresses("127.0.0.1") }}
	g := start(t, func(o *forward.Options) { o.Direct.Resolver = names })
	for _, r := range append(rules, pinned) {
		g.view.set(r)
		for _, host := range []string{
			"127.0.0.1", "127.0.0.1.", "127.1", "127.0.1", "2130706433", "0x7f000001", "0x7f.0.0.1", "0177.0.0.1", "017700000001", "127.0.0.01", "0", "0.0.0.0", "127.255.255.254",
			"localhost", "LOCALHOST", "localhost.", "a.localhost", "ip6-localhost", "[::1]", "[::]", "[0:0:0:0:0:0:0:1]", "[::ffff:127.0.0.1]", "[::ffff:7f00:1]", "[::127.0.0.1]", "[::ffff:0:127.0.0.1]",
			"[64:ff9b::7f00:1]", "[64:ff9b:1::7f00:1]", "[2002:7f00:1::]", "[2001:0:1:2:3:4:80ff:fffe]", "[2001:db8::5efe:7f00:1]", "[fe80::1]", "[fe80::1%25lo]", "[fe80::1%lo]", "[::1%25lo]",
			"10.0.0.1", "10.1", "172.16.0.1", "192.168.0.1", "[fc00::1]", "[fd00::1]", "[::ffff:10.0.0.1]", "[2002:a00:1::]", "100.64.0.1", "169.254.0.1", "224.0.0.1", "[ff02::1]", "255.255.255.255", "240.0.0.1",
			"169.254.169.254", "2852039166", "0xa9fea9fe", "[::ffff:169.254.169.254]", "[fd00:ec2::254]", "metadata.google.internal", "Metadata.Google.Internal.", "100.100.100.200",
			"127.0.0.1@shop.example@127.0.0.1", "127。0。0。1", "①②⑦.0.0.1", "%31%32%37.0.0.1", "127.0.0.1%00.shop.example", "shop.example\\.127.0.0.1",
		} {
			for _, text := range []string{
				"GET http://" + host + "/ HTTP/1.1\r\nHost: shop.example\r\nConnection: close\r\n\r\n",
				"GET http://shop.example@" + host + ":80/ HTTP/1.1\r\nHost: shop.example\r\nConnection: close\r\n\r\n",
				"CONNECT " + host + ":443 HTTP/1.1\r\nHost: shop.example:443\r\n\r\n",
			} {
				conn := g.dial()
				method, _, _ := strings.Cut(text, " ")
				if got := talk(t, conn, bufio.NewReader(conn), method, text); got.status != 400 && got.status != 403 {
					t.Errorf("%s: %q is answered %d %s", r.Name, text, got.status, got.body)
				}
			}
		}
	}
	if n := good.Accepted() + int(g.Stats.Direct.Load()); n != 0 {
		t.Errorf("%d requests were led somewhere", n)
	}
}

// A client may end its sending side after its request, and one that is too many is told.
func TestConnections(t *testing.T) {
	g := start(t, func(o *forward.Options) { o.Limits.Connections = 2 }, through(t, scripted(t, ok, ok).Server))
	first := g.dial()
	if _, err := io.WriteString(first, getShop); err != nil {
		t.Fatal(err)
	}
	_ = first.CloseWrite()
	if got, err := io.ReadAll(first); err != nil || !strings.HasSuffix(string(got), "\r\n\r\nok") {
		t.Errorf("after a half-close: %q, %v", got, err)
	}
	eventually(t, "it is forgotten", func() bool { return g.Stats.Connections.Load() == 0 })
	g.dial()
	g.dial()
	eventually(t, "two are open", func() bool { return g.Stats.Connections.Load() == 2 })
	if got := g.say(""); !strings.HasPrefix(got, "HTTP/1.1 503 ") || !strings.Contains(got, "Connection: close\r\n") {
		t.Errorf("the third gets %q", got)
	}
}

// A bug that one request meets ends its connection, and nothing else.
func TestABugEndsOneConnection(t *testing.T) {
	r := through(t, scripted(t, ok).Server)
	r.match = func(q *worker.Request) bool {
		if q.Target.Name == "bug.example" {
			panic("a bug")
		}
		return true
	}
	g := start(t, nil, r)
	other := g.dial()
	if got := g.say("GET http://bug.example/ HTTP/1.1\r\nHost: x\r\n\r\n"); got != "" {
		t.Errorf("it gets %q", got)
	}
	if got := talk(t, other, bufio.NewReader(other), http.MethodGet, getShop); got.status != 200 {
		t.Errorf("another one is answered %+v", got)
	}
	if n := g.Stats.Panics.Load(); n != 1 {
		t.Errorf("%d are counted", n)
	}
}
