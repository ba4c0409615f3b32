package talk_test

import (
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

	grpcprobe "github.com/dodona-project/dodona/builtin/probe/grpc"
	httpprobe "github.com/dodona-project/dodona/builtin/probe/http"
	"github.com/dodona-project/dodona/builtin/probe/internal/reach"
	"github.com/dodona-project/dodona/builtin/probe/internal/talk"
	proxyprobe "github.com/dodona-project/dodona/builtin/probe/proxy"
	tcpprobe "github.com/dodona-project/dodona/builtin/probe/tcp"
	tlsprobe "github.com/dodona-project/dodona/builtin/probe/tls"
	controlplanev1 "github.com/dodona-project/dodona/proto/controlplane/v1"
	pluginv1 "github.com/dodona-project/dodona/proto/plugin/v1"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const (
	atOnce    = 20 * time.Second       // for what answers at once, on a busy machine
	inTime    = 300 * time.Millisecond // for what never answers
	late      = 10 * time.Second       // that a check may be over its time
	inBuffers = 16 << 20               // bytes that lie in buffers when a probe has read enough
)

// A way is how a built-in probe meets a target.
type way struct {
	name string
	// check makes one check of what is at an address, with its name looked up by names and
	// with these classes of addresses allowed.
	check func(ctx context.Context, address string, names reach.Resolver, allow ...string) *pluginv1.CheckReply
}

func endpoint(address string) *pluginv1.CheckRequest {
	return &pluginv1.CheckRequest{EndpointAddress: address, Level: controlplanev1.CheckLevel_CHECK_LEVEL_BASIC}
}

// through is a request of a check whose proxy is at an address.
func through(address string, protocol controlplanev1.Proxy_Protocol, level controlplanev1.CheckLevel, url string) *pluginv1.CheckRequest {
	host, port, err := net.SplitHostPort(address)
	if err != nil {
		host, port = address, "80"
	}
	var n uint32
	_, _ = fmt.Sscan(port, &n)
	return &pluginv1.CheckRequest{Proxy: &controlplanev1.Proxy{ProxyId: "p", Protocol: protocol, Host: host, Port: n}, Level: level, Url: url}
}

// ways are the five built-in probes, with TLS and without, and the levels of proxies.
var ways = func() (all []way) {
	all = append(all,
		way{"http", func(ctx context.Context, address string, names reach.Resolver, allow ...string) *pluginv1.CheckReply {
			return httpprobe.Probe{Resolver: names}.CheckWith(ctx, httpprobe.Config{ExpectBody: "ready", Allow: allow}, endpoint(address))
		}},
		way{"https", func(ctx context.Context, address string, names reach.Resolver, allow ...string) *pluginv1.CheckReply {
			return httpprobe.Probe{Resolver: names}.CheckWith(ctx, httpprobe.Config{TLS: &reach.TLS{}, Allow: allow}, endpoint(address))
		}},
		way{"tcp", func(ctx context.Context, address string, names reach.Resolver, allow ...string) *pluginv1.CheckReply {
			return tcpprobe.Probe{Resolver: names}.CheckWith(ctx, tcpprobe.Config{Send: "PING\r\n\r\n", Expect: "PONG", Allow: allow}, endpoint(address))
		}},
		way{"grpc", func(ctx context.Context, address string, names reach.Resolver, allow ...string) *pluginv1.CheckReply {
			return grpcprobe.Probe{Resolver: names}.CheckWith(ctx, grpcprobe.Config{Allow: allow}, endpoint(address))
		}},
		way{"grpc, TLS", func(ctx context.Context, address string, names reach.Resolver, allow ...string) *pluginv1.CheckReply {
			return grpcprobe.Probe{Resolver: names}.CheckWith(ctx, grpcprobe.Config{TLS: &reach.TLS{}, Allow: allow}, endpoint(address))
		}},
		way{"tls", func(ctx context.Context, address string, names reach.Resolver, allow ...string) *pluginv1.CheckReply {
			return tlsprobe.Probe{Resolver: names}.CheckWith(ctx, tlsprobe.Config{Allow: allow}, endpoint(address))
		}},
	)
	const basic, egress, target = controlplanev1.CheckLevel_CHECK_LEVEL_BASIC, controlplanev1.CheckLevel_CHECK_LEVEL_EGRESS, controlplanev1.CheckLevel_CHECK_LEVEL_TARGET
	for _, p := range []struct {
		name     string
		protocol controlplanev1.Proxy_Protocol
		level    controlplanev1.CheckLevel
		url      string
	}{
		{"proxy, BASIC", controlplanev1.Proxy_PROTOCOL_HTTP, basic, ""},
		{"proxy, BASIC, HTTPS", controlplanev1.Proxy_PROTOCOL_HTTPS, basic, ""},
		{"proxy, BASIC, SOCKS5", controlplanev1.Proxy_PROTOCOL_SOCKS5, basic, ""},
		{"proxy, EGRESS", controlplanev1.Proxy_PROTOCOL_HTTP, egress, "http://ip.example/"},
		{"proxy, TARGET", controlplanev1.Proxy_PROTOCOL_HTTP, target, "http://site.example/"},
		{"proxy, TARGET, https", controlplanev1.Proxy_PROTOCOL_HTTP, target, "https://site.example/"},
	} {
		all = append(all, way{p.name, func(ctx context.Context, address string, names reach.Resolver, allow ...string) *pluginv1.CheckReply {
			return proxyprobe.Probe{Resolver: names}.CheckWith(ctx, proxyprobe.Config{Allow: allow}, through(address, p.protocol, p.level, p.url))
		}})
	}
	return all
}()

// says is an observation in a word or two.
func says(r *pluginv1.CheckReply) string {
	text := strings.TrimPrefix(r.GetResult().String(), "RESULT_")
	if r.GetErrorClass() != 0 {
		text += " " + strings.TrimPrefix(r.GetErrorClass().String(), "ERROR_CLASS_")
	}
	return text
}

// opening waits for the first bytes of a client.
func opening(c net.Conn) { _, _ = c.Read(make([]byte, 4096)) }

// A hostile target does with a connection what it likes, and returns how much it sent.
type hostile struct {
	name string
	talk func(c net.Conn) int
	// want is what each way says of it, and other what all others do; a want that ends with
	// TIMEOUT has little time.
	want  map[string]string
	other string
}

var (
	chunk  = strings.Repeat("x", 8<<10)
	answer = "HTTP/1.1 200 OK\r\n\r\n"
)

// selfSigned is a TLS server that nobody trusts, with one connection.
func selfSigned(t *testing.T) func(c net.Conn) int {
	source := httptest.NewTLSServer(nil)
	t.Cleanup(source.Close)
	config := &tls.Config{Certificates: source.TLS.Certificates, NextProtos: []string{"h2", "http/1.1"}}
	return func(c net.Conn) int {
		_ = c.SetDeadline(time.Now().Add(atOnce))
		_ = tls.Server(c, config).HandshakeContext(context.Background())
		return 0
	}
}

// tunnelled answers a CONNECT, and goes on as if it were the target.
func tunnelled(talk func(net.Conn) int) func(net.Conn) int {
	return func(c net.Conn) int {
		first := make([]byte, 8)
		if n, err := c.Read(first); err != nil || string(first[:n]) != "CONNECT " {
			return talk(&again{c, first[:n]})
		}
		opening(c)
		_, _ = io.WriteString(c, answer)
		return talk(c)
	}
}

// again is a connection with what was read of it in front.
type again struct {
	net.Conn
	first []byte
}

func (a *again) Read(p []byte) (int, error) {
	if len(a.first) > 0 {
		n := copy(p, a.first)
		a.first = a.first[n:]
		return n, nil
	}
	return a.Conn.Read(p)
}

// TestHostile: whatever a target sends or does not, each built-in probe comes to a verdict
// about it within the check's time, from no more than it reads of any target.
func TestHostile(t *testing.T) {
	for _, h := range []hostile{
		{"drips", func(c net.Conn) int { opening(c); return talk.Endless(c, "H", 20*time.Millisecond) }, map[string]string{
			"https": "FAILURE TLS", "grpc, TLS": "FAILURE TLS", "tls": "FAILURE TLS", "proxy, BASIC, HTTPS": "FAILURE TLS",
			"grpc": "FAILURE PROTOCOL", "proxy, BASIC, SOCKS5": "FAILURE PROTOCOL",
		}, "FAILURE TIMEOUT"},
		{"drips a body", func(c net.Conn) int {
			opening(c)
			_, _ = io.WriteString(c, answer)
			return talk.Endless(c, "b", 20*time.Millisecond)
		}, map[string]string{
			"https": "FAILURE TLS", "grpc, TLS": "FAILURE TLS", "tls": "FAILURE TLS", "proxy, BASIC, HTTPS": "FAILURE TLS", "proxy, TARGET, https": "FAILURE TLS",
			"grpc": "FAILURE PROTOCOL", "proxy, BASIC, SOCKS5": "FAILURE PROTOCOL", "proxy, BASIC": "SUCCESS", "proxy, TARGET": "SUCCESS",
		}, "FAILURE TIMEOUT"},
		{"a body without end", func(c net.Conn) int {
			opening(c)
			_, _ = io.WriteString(c, answer)
			return talk.Endless(c, chunk, 0)
		}, map[string]string{
			"https": "FAILURE TLS", "grpc, TLS": "FAILURE TLS", "tls": "FAILURE TLS", "proxy, BASIC, HTTPS": "FAILURE TLS", "proxy, TARGET, https": "FAILURE TLS",
			"proxy, BASIC": "SUCCESS", "proxy, TARGET": "SUCCESS",
		}, "FAILURE PROTOCOL"},
		{"huge headers", func(c net.Conn) int {
			opening(c)
			_, _ = io.WriteString(c, "HTTP/1.1 200 OK\r\n")
			return talk.Endless(c, "A: "+chunk+"\r\n", 0)
		}, map[string]string{
			"https": "FAILURE TLS", "grpc, TLS": "FAILURE TLS", "tls": "FAILURE TLS", "proxy, BASIC, HTTPS": "FAILURE TLS",
		}, "FAILURE PROTOCOL"},
		{"informational answers without end", func(c net.Conn) int {
			opening(c)
			return talk.Endless(c, "HTTP/1.1 103 Early Hints\r\nLink: </x>\r\n\r\n", 0)
		}, map[string]string{
			"https": "FAILURE TLS", "grpc, TLS": "FAILURE TLS", "tls": "FAILURE TLS", "proxy, BASIC, HTTPS": "FAILURE TLS",
		}, "FAILURE PROTOCOL"},
		{"redirects to itself", func(c net.Conn) int {
			opening(c)
			_, _ = io.WriteString(c, "HTTP/1.1 302 Found\r\nLocation: /\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
			return 0
		}, map[string]string{
			"https": "FAILURE TLS", "grpc, TLS": "FAILURE TLS", "tls": "FAILURE TLS", "proxy, BASIC, HTTPS": "FAILURE TLS",
			"proxy, BASIC": "FAILURE PROXY_STATUS", "proxy, TARGET, https": "FAILURE PROXY_STATUS",
			"proxy, EGRESS": "FAILURE TARGET_STATUS", "proxy, TARGET": "SUCCESS", // it is the answer
		}, "FAILURE PROTOCOL"},
		{"a certificate that nobody trusts", tunnelled(selfSigned(t)), map[string]string{
			"https": "FAILURE TLS", "grpc, TLS": "FAILURE TLS", "tls": "FAILURE TLS", "proxy, BASIC, HTTPS": "FAILURE TLS", "proxy, TARGET, https": "FAILURE TLS",
			"proxy, BASIC": "SUCCESS", "proxy, BASIC, SOCKS5": "FAILURE TIMEOUT", // each waits for the other
		}, "FAILURE"},
		{"TLS records that are none", func(c net.Conn) int {
			opening(c)
			return talk.Endless(c, "\x16\x03\x03\x00\x04\x02\x00\x00\x00", 0)
		}, map[string]string{
			"https": "FAILURE TLS", "grpc, TLS": "FAILURE TLS", "tls": "FAILURE TLS", "proxy, BASIC, HTTPS": "FAILURE TLS",
		}, "FAILURE PROTOCOL"},
		{"silence", func(c net.Conn) int { _, _ = io.Copy(io.Discard, c); return 0 }, nil, "FAILURE TIMEOUT"},
		{"hangs up", func(c net.Conn) int { opening(c); return 0 }, map[string]string{"tcp": "FAILURE PROTOCOL", "grpc": "FAILURE PROTOCOL"}, "FAILURE RESET"},
	} {
		for _, w := range ways {
			t.Run(h.name+"/"+w.name, func(t *testing.T) {
				t.Parallel() // they mostly wait
				most, connections := &atomic.Int64{}, &atomic.Int64{}
				address, stop := talk.Serve(t, func(c net.Conn) { connections.Add(1); most.Add(int64(h.talk(c))) })
				want, ok := h.want[w.name]
				if !ok {
					want = h.other
				}
				within := atOnce
				if strings.HasSuffix(want, "TIMEOUT") {
					within = inTime
				}
				ctx, cancel := context.WithTimeout(t.Context(), within)
				defer cancel()
				began := time.Now()
				r := w.check(ctx, address, nil, reach.Loopback)
				took := time.Since(began)
				stop()
				if got := says(r); got != want && !(want == "FAILURE" && strings.HasPrefix(got, want)) || took > within+late || len(r.GetDetail()) > 512 {
					t.Errorf("%s after %v, want %s: %s", got, took, want, r.GetDetail())
				}
				if n := most.Load(); n > inBuffers {
					t.Errorf("%d bytes were sent until it had enough", n)
				}
				if n := connections.Load(); n > 4 {
					t.Errorf("%d connections: more than three redirects were followed", n)
				}
			})
		}
	}
}

// names is a resolver that gives the same answer to everybody but the first so many calls.
type names struct {
	mu    sync.Mutex
	first []string // at the first calls, an address each
	then  []string
	asked int
}

func (n *names) LookupNetIP(context.Context, string, string) (all []netip.Addr, _ error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.asked++
	answer := n.then
	if len(n.first) > 0 {
		answer, n.first = n.first[:1], n.first[1:]
	}
	for _, a := range answer {
		all = append(all, netip.MustParseAddr(a))
	}
	return all, nil
}

// TestThousandAddresses: of a name with so many each probe tries ten, within its time.
func TestThousandAddresses(t *testing.T) {
	address, _ := talk.Serve(t, func(c net.Conn) { t.Error("somebody is reached") })
	_, port, _ := net.SplitHostPort(address)
	thousand := make([]string, 0, 1000)
	for i := range 1000 {
		thousand = append(thousand, fmt.Sprintf("127.1.%d.%d", i/250, 1+i%250))
	}
	listen := func(i int) *atomic.Int64 {
		n := &atomic.Int64{}
		l, err := net.Listen("tcp", thousand[i]+":"+port)
		if err != nil {
			t.Skipf("no other loopback addresses here: %v", err)
		}
		var accepting sync.WaitGroup
		accepting.Go(func() {
			for {
				c, err := l.Accept()
				if err != nil {
					return
				}
				n.Add(1)
				_ = c.Close()
			}
		})
		t.Cleanup(func() { _ = l.Close(); accepting.Wait() })
		return n
	}
	tenth, eleventh := listen(9), listen(10)
	for _, w := range ways {
		ctx, cancel := context.WithTimeout(t.Context(), atOnce)
		before := tenth.Load()
		began := time.Now()
		r := w.check(ctx, "shop.example:"+port, &names{then: thousand}, reach.Loopback)
		if took := time.Since(began); took > atOnce+late || r.GetResult() != controlplanev1.HealthObservation_RESULT_FAILURE {
			t.Errorf("%s: %s after %v", w.name, says(r), took)
		}
		cancel()
		if tenth.Load() == before {
			t.Errorf("%s does not try the tenth address", w.name)
		}
		// Where nobody answers at all.
		ctx, cancel = context.WithTimeout(t.Context(), inTime)
		began = time.Now()
		r = w.check(ctx, "shop.example:"+port, &names{then: thousand[20:]}, reach.Loopback)
		if took := time.Since(began); took > inTime+late || r.GetResult() != controlplanev1.HealthObservation_RESULT_FAILURE {
			t.Errorf("%s: nobody is there: %s after %v", w.name, says(r), took)
		}
		cancel()
	}
	if n := eleventh.Load(); n != 0 {
		t.Errorf("the eleventh address was tried %d times", n)
	}
}

// TestForbidden: what nobody may check is not dialled, however it is written and whatever
// name leads there; and what is allowed in words is.
func TestForbidden(t *testing.T) {
	t.Setenv(reach.Variable, "")
	reached := &atomic.Int64{}
	address, _ := talk.Serve(t, func(c net.Conn) { reached.Add(1) })
	_, port, _ := net.SplitHostPort(address)
	everything := []string{reach.Loopback, reach.LinkLocal, reach.Metadata}
	for _, w := range ways {
		check := func(address string, resolver reach.Resolver, allow ...string) *pluginv1.CheckReply {
			ctx, cancel := context.WithTimeout(t.Context(), atOnce)
			defer cancel()
			return w.check(ctx, address, resolver, allow...)
		}
		for _, tc := range []struct {
			what, address string
			names         []string
			allow         []string
		}{
			{"loopback", address, nil, nil},
			{"loopback, others are allowed", address, nil, everything[1:]},
			{"loopback in IPv6", "[::1]:" + port, nil, nil},
			{"loopback mapped", "[::ffff:127.0.0.1]:" + port, nil, nil},
			{"no address", "0.0.0.0:" + port, nil, nil},
			{"link-local", "169.254.1.1:" + port, nil, everything[:1]},
			{"link-local in IPv6", "[fe80::1]:" + port, nil, everything[:1]},
			{"metadata", "169.254.169.254:80", nil, everything[:2]},
			{"metadata in IPv6", "[fd00:ec2::254]:80", nil, everything[:2]},
			{"metadata by NAT64", "[64:ff9b::a9fe:a9fe]:80", nil, everything[:2]},
			{"multicast, everything is allowed", "224.0.0.1:80", nil, everything},
			{"a name of loopback", "shop.example:" + port, []string{"127.0.0.1"}, nil},
			{"a name of metadata", "shop.example:80", []string{"169.254.169.254"}, everything[:2]},
			{"a name of somebody and loopback", "shop.example:" + port, []string{"192.0.2.1", "127.0.0.1"}, nil},
			{"a name of eleven and loopback", "shop.example:" + port, append(strings.Fields(strings.Repeat("192.0.2.1 ", 11)), "127.0.0.1"), nil},
		} {
			r := check(tc.address, &names{then: tc.names}, tc.allow...)
			if got := says(r); got != "INCONCLUSIVE POLICY" {
				t.Errorf("%s: %s: %s (%s)", w.name, tc.what, got, r.GetDetail())
			}
		}
		for _, path := range []string{"unix:/run/docker.sock", "unix:///run/docker.sock", "/run/docker.sock", "@docker", "user@127.0.0.1:80", "file:///etc/passwd"} {
			if r := check(path, &names{}, everything...); r.GetResult() != controlplanev1.HealthObservation_RESULT_INCONCLUSIVE && r.GetErrorClass() != controlplanev1.ErrorClass_ERROR_CLASS_DNS {
				t.Errorf("%s: %s: %s (%s)", w.name, path, says(r), r.GetDetail())
			}
		}
		if n := reached.Load(); n != 0 {
			t.Fatalf("%s: %d connections were made to what nobody may check", w.name, n)
		}
		for _, a := range []string{address, "shop.example:" + port} {
			if r := check(a, &names{then: []string{"127.0.0.1"}}, reach.Loopback); r.GetErrorClass() == controlplanev1.ErrorClass_ERROR_CLASS_POLICY {
				t.Errorf("%s: %s, which is allowed: %s (%s)", w.name, a, says(r), r.GetDetail())
			}
		}
		if reached.Load() == 0 {
			t.Errorf("%s: what is allowed was not reached", w.name)
		}
		reached.Store(0)
	}
}

// TestForbiddenTargets: what a proxy is asked for is looked at before the proxy is asked.
func TestForbiddenTargets(t *testing.T) {
	t.Setenv(reach.Variable, "")
	reached := &atomic.Int64{}
	address, _ := talk.Serve(t, func(c net.Conn) { reached.Add(1) })
	for _, level := range []controlplanev1.CheckLevel{controlplanev1.CheckLevel_CHECK_LEVEL_EGRESS, controlplanev1.CheckLevel_CHECK_LEVEL_TARGET} {
		for _, protocol := range []controlplanev1.Proxy_Protocol{controlplanev1.Proxy_PROTOCOL_HTTP, controlplanev1.Proxy_PROTOCOL_HTTPS, controlplanev1.Proxy_PROTOCOL_SOCKS5} {
			for _, url := range []string{
				"http://169.254.169.254/latest/meta-data/", "http://[::ffff:169.254.169.254]/", "http://169.254.1.1/", "https://[fe80::1]/",
				"http://2852039166/", "http://metadata.google.internal/", "unix:///run/docker.sock", "file:///etc/passwd", "http://user@site.example/",
			} {
				r := proxyprobe.Probe{}.CheckWith(t.Context(), proxyprobe.Config{Allow: []string{reach.Loopback}}, through(address, protocol, level, url))
				if r.GetResult() != controlplanev1.HealthObservation_RESULT_INCONCLUSIVE {
					t.Errorf("%s over %s for %s: %s (%s)", level, protocol, url, says(r), r.GetDetail())
				}
			}
		}
	}
	if n := reached.Load(); n != 0 {
		t.Errorf("the proxy was asked %d times", n)
	}
}

// TestNameMovesWhileRedirected: each connection of a check looks its name up again, and
// what it then leads to is looked at again.
func TestNameMovesWhileRedirected(t *testing.T) {
	t.Setenv(reach.Variable, "")
	s := httptest.NewUnstartedServer(http.RedirectHandler("/again", http.StatusFound))
	s.Config.ErrorLog = log.New(io.Discard, "", 0)
	s.Start()
	defer s.Close()
	_, port, _ := net.SplitHostPort(s.Listener.Addr().String())
	for moved, want := range map[string]string{"169.254.169.254": "INCONCLUSIVE POLICY", "169.254.1.1": "INCONCLUSIVE POLICY", "127.0.0.1": "FAILURE PROTOCOL"} {
		n := &names{first: []string{"127.0.0.1", "127.0.0.1"}, then: []string{moved}}
		ctx, cancel := context.WithTimeout(t.Context(), atOnce)
		r := httpprobe.Probe{Resolver: n}.CheckWith(ctx, httpprobe.Config{Allow: []string{reach.Loopback}}, endpoint("shop.example:"+port))
		cancel()
		if got := says(r); got != want || n.asked < 3 || n.asked > 4 {
			t.Errorf("moved to %s: %s after %d looks (%s)", moved, got, n.asked, r.GetDetail())
		}
	}
}
