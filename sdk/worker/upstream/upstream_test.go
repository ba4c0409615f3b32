package upstream_test

import (
	"bytes"
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	controlplanev1 "github.com/dodona-project/dodona/proto/controlplane/v1"
	"github.com/dodona-project/dodona/sdk/worker/proxytest"
	"github.com/dodona-project/dodona/sdk/worker/target"
	"github.com/dodona-project/dodona/sdk/worker/upstream"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const (
	httpProxy  = controlplanev1.Proxy_PROTOCOL_HTTP
	httpsProxy = controlplanev1.Proxy_PROTOCOL_HTTPS
	socksProxy = controlplanev1.Proxy_PROTOCOL_SOCKS5

	class = "ERROR_CLASS_"
)

var protocols = []controlplanev1.Proxy_Protocol{httpProxy, httpsProxy, socksProxy}

// echo is a target that sends back what it gets, and then "bye" once it got all.
func echo(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			_, _ = io.Copy(c, c)
			_, _ = io.WriteString(c, "bye")
			_ = c.Close()
		}
	}()
	t.Cleanup(func() {
		_ = l.Close()
		<-done
	})
	return l.Addr().String()
}

func dialer(s *proxytest.Server) *upstream.Dialer {
	return &upstream.Dialer{TLS: s.TLS(), Allow: []target.Class{target.Loopback}}
}

func of(t *testing.T, s *proxytest.Server) upstream.Proxy {
	t.Helper()
	p, err := upstream.Of(s.Proxy(), s.Credential())
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func patient(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	t.Cleanup(cancel)
	return ctx
}

var shop = target.Target{Name: "shop.example", Port: 443}

func TestTunnel(t *testing.T) {
	at := echo(t)
	long := strings.Repeat("x", 255)
	for _, protocol := range protocols {
		for _, login := range [][2]string{{"", ""}, {"user", "pässword"}, {long, long}} {
			for _, early := range []string{"", "hello before anything was asked"} {
				name := fmt.Sprintf("%v, %d bytes of user name, %d early bytes", protocol, len(login[0]), len(early))
				v6 := target.Target{Addr: netip.MustParseAddr("2001:db8::1"), Port: 8443}
				v4 := target.Target{Addr: netip.MustParseAddr("192.0.2.1"), Port: 80}
				s := proxytest.Start(t, proxytest.Options{Protocol: protocol, Username: login[0], Password: login[1], Early: early,
					Hosts: map[string]string{shop.String(): at, v6.String(): at, v4.String(): at}})
				for _, to := range []target.Target{shop, v6, v4} {
					conn, err := dialer(s).Tunnel(patient(t), of(t, s), to)
					if err != nil {
						t.Fatalf("%s: %s: %v", name, to, err)
					}
					if _, err := io.WriteString(conn, "ping"); err != nil {
						t.Fatal(err)
					}
					if half, ok := conn.(interface{ CloseWrite() error }); !ok || half.CloseWrite() != nil {
						t.Errorf("%s: its writing side cannot be closed", name)
					}
					got, err := io.ReadAll(conn)
					if want := early + "pingbye"; err != nil || string(got) != want {
						t.Errorf("%s: %s: %q, %v, want %q", name, to, got, err, want)
					}
					_ = conn.Close()
				}
				s.Close()
			}
		}
	}
}

// Early bytes are also there for who copies, and the connection is bare without them.
func TestEarlyBytes(t *testing.T) {
	at := echo(t)
	for _, protocol := range protocols {
		for _, early := range []string{"", strings.Repeat("early ", 2000)} {
			s := proxytest.Start(t, proxytest.Options{Protocol: protocol, Early: early, Hosts: map[string]string{shop.String(): at}})
			conn, err := dialer(s).Tunnel(patient(t), of(t, s), shop)
			if err != nil {
				t.Fatal(err)
			}
			if _, wrapped := conn.(*upstream.Early); wrapped && early == "" {
				t.Errorf("%v: a connection of %T, and nothing came early", protocol, conn)
			}
			if err := conn.(interface{ CloseWrite() error }).CloseWrite(); err != nil {
				t.Error(err)
			}
			var got bytes.Buffer
			if _, err := io.Copy(&got, conn); err != nil || got.String() != early+"bye" {
				t.Errorf("%v: %d bytes, %v, want %d", protocol, got.Len(), err, len(early)+3)
			}
			_ = conn.Close()
			s.Close()
		}
	}
}

// What goes over the wire is this and nothing else, whoever sends it.
func TestBytes(t *testing.T) {
	at := echo(t)
	for _, c := range []struct {
		protocol controlplanev1.Proxy_Protocol
		user     string
		to       target.Target
		want     string
	}{
		{httpProxy, "", shop, "CONNECT shop.example:443 HTTP/1.1\r\nHost: shop.example:443\r\n\r\n"},
		{httpProxy, "u", shop, "CONNECT shop.example:443 HTTP/1.1\r\nHost: shop.example:443\r\nProxy-Authorization: Basic " + base64.StdEncoding.EncodeToString([]byte("u:secret")) + "\r\n\r\n"},
		{httpsProxy, "u", target.Target{Addr: netip.MustParseAddr("2001:db8::1"), Port: 80}, "CONNECT [2001:db8::1]:80 HTTP/1.1\r\nHost: [2001:db8::1]:80\r\nProxy-Authorization: Basic " + base64.StdEncoding.EncodeToString([]byte("u:secret")) + "\r\n\r\n"},
		{socksProxy, "", shop, "\x05\x01\x00" + "\x05\x01\x00\x03\x0cshop.example\x01\xbb"},
		{socksProxy, "u", shop, "\x05\x02\x00\x02" + "\x01\x01u\x06secret" + "\x05\x01\x00\x03\x0cshop.example\x01\xbb"},
		{socksProxy, "", target.Target{Addr: netip.MustParseAddr("192.0.2.1"), Port: 80}, "\x05\x01\x00" + "\x05\x01\x00\x01\xc0\x00\x02\x01\x00\x50"},
	} {
		o := proxytest.Options{Protocol: c.protocol, Username: c.user, Hosts: map[string]string{c.to.String(): at}}
		if c.user != "" {
			o.Password = "secret"
		}
		s := proxytest.Start(t, o)
		conn, err := dialer(s).Tunnel(patient(t), of(t, s), c.to)
		if err != nil {
			t.Fatal(err)
		}
		_ = conn.Close()
		if got := s.Received(); len(got) != 1 || string(got[0]) != c.want {
			t.Errorf("%v to %v\n got %q\nwant %q", c.protocol, c.to, got, c.want)
		}
	}
}

func TestConnectIsTheProxyItself(t *testing.T) {
	for _, protocol := range []controlplanev1.Proxy_Protocol{httpProxy, httpsProxy} {
		s := proxytest.Start(t, proxytest.Options{Protocol: protocol, Talk: func(c net.Conn) { _, _ = io.WriteString(c, "here") }})
		conn, err := dialer(s).Connect(patient(t), of(t, s))
		if err != nil {
			t.Fatal(err)
		}
		if got, err := io.ReadAll(conn); string(got) != "here" {
			t.Errorf("%v: %q, %v", protocol, got, err)
		}
		_ = conn.Close()
	}
}

// says answers with a text once something came, and waits for the client to go.
func says(text string) func(net.Conn) {
	return func(c net.Conn) {
		_, _ = c.Read(make([]byte, 4096))
		_, _ = io.WriteString(c, text)
		_, _ = io.Copy(io.Discard, c)
	}
}

// converse answers each thing that comes with the next text.
func converse(texts ...string) func(net.Conn) {
	return func(c net.Conn) {
		for _, text := range texts {
			if _, err := c.Read(make([]byte, 4096)); err != nil {
				return
			}
			_, _ = io.WriteString(c, text)
		}
		_, _ = io.Copy(io.Discard, c)
	}
}

func TestErrors(t *testing.T) {
	hangUp := func(c net.Conn) { _, _ = c.Read(make([]byte, 4096)) }
	silent := func(c net.Conn) { _, _ = io.Copy(io.Discard, c) }
	endless := func(c net.Conn) {
		_, _ = io.WriteString(c, "HTTP/1.1 200 OK\r\n")
		for {
			if _, err := io.WriteString(c, "X-More: "+strings.Repeat("x", 1000)+"\r\n"); err != nil {
				return
			}
		}
	}
	for _, c := range []struct {
		name    string
		options proxytest.Options
		want    string
		short   bool // the handshake has little time
	}{
		{"HTTP 407", proxytest.Options{Protocol: httpProxy, Status: 407}, "PROXY_HANDSHAKE PROXY_AUTH 407", false},
		{"HTTPS 407", proxytest.Options{Protocol: httpsProxy, Status: 407}, "PROXY_HANDSHAKE PROXY_AUTH 407", false},
		{"HTTP 403", proxytest.Options{Protocol: httpProxy, Status: 403}, "PROXY_HANDSHAKE PROXY_STATUS 403", false},
		{"HTTP 302", proxytest.Options{Protocol: httpProxy, Status: 302}, "PROXY_HANDSHAKE PROXY_STATUS 302", false},
		{"HTTP 101", proxytest.Options{Protocol: httpProxy, Status: 101}, "PROXY_HANDSHAKE PROXY_STATUS 101", false},
		{"HTTP 502", proxytest.Options{Protocol: httpProxy, Status: 502}, "PROXY_HANDSHAKE PROXY_STATUS 502 target", false},
		{"HTTP 503", proxytest.Options{Protocol: httpProxy, Status: 503}, "PROXY_HANDSHAKE PROXY_STATUS 503 target", false},
		{"not HTTP", proxytest.Options{Protocol: httpProxy, Talk: says("220 mail.example ESMTP\r\n")}, "PROXY_HANDSHAKE PROTOCOL 0", false},
		{"SOCKS asked in HTTP", proxytest.Options{Protocol: httpProxy, Talk: says("\x05\xff")}, "PROXY_HANDSHAKE TIMEOUT 0", true},
		{"headers without end", proxytest.Options{Protocol: httpProxy, Talk: endless}, "PROXY_HANDSHAKE PROTOCOL 0", false},
		{"one long line", proxytest.Options{Protocol: httpProxy, Talk: says("HTTP/1.1 200 " + strings.Repeat("x", upstream.MaxHeader))}, "PROXY_HANDSHAKE PROTOCOL 0", false},
		{"informational without end", proxytest.Options{Protocol: httpProxy, Talk: says(strings.Repeat("HTTP/1.1 103 Early Hints\r\n\r\n", 6))}, "PROXY_HANDSHAKE PROTOCOL 0", false},
		{"HTTP hangs up", proxytest.Options{Protocol: httpProxy, Talk: hangUp}, "PROXY_HANDSHAKE RESET 0", false},
		{"HTTP hangs up in its headers", proxytest.Options{Protocol: httpProxy, Talk: func(c net.Conn) { hangUp(c); _, _ = io.WriteString(c, "HTTP/1.1 200 OK\r\nX: ") }}, "PROXY_HANDSHAKE RESET 0", false},
		{"HTTP says nothing", proxytest.Options{Protocol: httpProxy, Talk: silent}, "PROXY_HANDSHAKE TIMEOUT 0", true},
		{"HTTPS says nothing", proxytest.Options{Protocol: httpsProxy, Talk: silent}, "PROXY_HANDSHAKE TIMEOUT 0", true},
		{"SOCKS says nothing", proxytest.Options{Protocol: socksProxy, Talk: silent}, "PROXY_HANDSHAKE TIMEOUT 0", true},
		{"SOCKS wrong password", proxytest.Options{Protocol: socksProxy, Talk: converse("\x05\x02", "\x01\x01")}, "PROXY_HANDSHAKE PROXY_AUTH 0", false},
		{"SOCKS none acceptable", proxytest.Options{Protocol: socksProxy, Talk: converse("\x05\xff")}, "PROXY_HANDSHAKE PROXY_AUTH 0", false},
		{"SOCKS method not offered", proxytest.Options{Protocol: socksProxy, Talk: converse("\x05\x01")}, "PROXY_HANDSHAKE PROTOCOL 0", false},
		{"SOCKS 4", proxytest.Options{Protocol: socksProxy, Talk: converse("\x00\x5b")}, "PROXY_HANDSHAKE PROTOCOL 0", false},
		{"SOCKS in HTTP", proxytest.Options{Protocol: socksProxy, Talk: converse("HTTP/1.1 400 Bad Request\r\n\r\n")}, "PROXY_HANDSHAKE PROTOCOL 0", false},
		{"SOCKS bad subnegotiation", proxytest.Options{Protocol: socksProxy, Talk: converse("\x05\x02", "\x07\x00")}, "PROXY_HANDSHAKE PROTOCOL 0", false},
		{"SOCKS not allowed", proxytest.Options{Protocol: socksProxy, Status: 2}, "PROXY_HANDSHAKE PROXY_STATUS 2", false},
		{"SOCKS host unreachable", proxytest.Options{Protocol: socksProxy, Status: 4}, "PROXY_HANDSHAKE PROXY_STATUS 4 target", false},
		{"SOCKS unknown reply", proxytest.Options{Protocol: socksProxy, Status: 200}, "PROXY_HANDSHAKE PROXY_STATUS 200", false},
		{"SOCKS odd address", proxytest.Options{Protocol: socksProxy, Talk: converse("\x05\x00", "\x05\x00\x00\x09")}, "PROXY_HANDSHAKE PROTOCOL 0", false},
		{"SOCKS cut short", proxytest.Options{Protocol: socksProxy, Talk: func(c net.Conn) {
			hangUp(c)
			_, _ = io.WriteString(c, "\x05\x00")
			hangUp(c)
			_, _ = io.WriteString(c, "\x05\x00\x00\x01\x7f")
		}}, "PROXY_HANDSHAKE RESET 0", false},
	} {
		s := proxytest.Start(t, c.options)
		p := of(t, s)
		p.Username, p.Password = "user-name", "pass-word"
		d := dialer(s)
		if c.short {
			d.HandshakeTimeout = 150 * time.Millisecond
		}
		conn, err := d.Tunnel(patient(t), p, shop)
		var e *upstream.Error
		if !errors.As(err, &e) {
			t.Errorf("%s: %v, %v", c.name, conn, err)
			continue
		}
		got := fmt.Sprintf("%s %s %d", strings.TrimPrefix(e.Stage.String(), "STAGE_"), strings.TrimPrefix(e.Class.String(), class), e.Status)
		if e.Target {
			got += " target"
		}
		if e.Local {
			got += " local"
		}
		if got != c.want {
			t.Errorf("%s: %s, want %s (%v)", c.name, got, c.want, err)
		}
		for _, secret := range []string{"user-name", "pass-word", p.Authorization()} {
			if strings.Contains(err.Error(), secret) {
				t.Errorf("%s: the error has %q: %v", c.name, secret, err)
			}
		}
		if len(err.Error()) > 512 {
			t.Errorf("%s: an error of %d bytes", c.name, len(err.Error()))
		}
		s.Close()
	}
}

func TestInformationalAnswersAreSkipped(t *testing.T) {
	s := proxytest.Start(t, proxytest.Options{Protocol: httpProxy, Talk: says("HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\nHTTP/1.1 204 Tunnel\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\nfirst")})
	conn, err := dialer(s).Tunnel(patient(t), of(t, s), shop)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	got := make([]byte, 5)
	if _, err := io.ReadFull(conn, got); err != nil || string(got) != "first" {
		t.Errorf("%q, %v", got, err)
	}
}

func TestDialErrors(t *testing.T) {
	s := proxytest.Start(t, proxytest.Options{Protocol: httpProxy, Status: 200})
	p := of(t, s)
	check := func(name string, d *upstream.Dialer, ctx context.Context, p upstream.Proxy, class controlplanev1.ErrorClass, local bool) {
		t.Helper()
		conn, err := d.Tunnel(ctx, p, shop)
		var e *upstream.Error
		if !errors.As(err, &e) || e.Stage != upstream.Dial || e.Class != class || e.Local != local {
			t.Errorf("%s: %v, %v (%+v), want %v in the dial", name, conn, err, e, class)
		}
	}
	before := s.Accepted()
	check("loopback", &upstream.Dialer{}, patient(t), p, controlplanev1.ErrorClass_ERROR_CLASS_POLICY, true)
	named := p
	named.Host = "localhost"
	check("a name for loopback", &upstream.Dialer{}, patient(t), named, controlplanev1.ErrorClass_ERROR_CLASS_POLICY, true)
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	check("given up", dialer(s), gone, p, controlplanev1.ErrorClass_ERROR_CLASS_CANCELED, true)
	late, cancel := context.WithDeadline(t.Context(), time.Now().Add(-time.Second))
	defer cancel()
	check("too late", dialer(s), late, p, controlplanev1.ErrorClass_ERROR_CLASS_TIMEOUT, false)
	s.Close()
	if s.Accepted() != before {
		t.Error("a connection was made")
	}
	check("nobody listens", dialer(s), patient(t), p, controlplanev1.ErrorClass_ERROR_CLASS_REFUSED, false)
}

func TestTLSToTheProxy(t *testing.T) {
	s := proxytest.Start(t, proxytest.Options{Protocol: httpsProxy})
	plain := proxytest.Start(t, proxytest.Options{Protocol: httpProxy, Talk: says("HTTP/1.1 400 Bad Request\r\n\r\n")})
	wrongName := s.TLS()
	wrongName.ServerName = "other.example"
	for name, c := range map[string]struct {
		d *upstream.Dialer
		p upstream.Proxy
	}{
		"unknown authority": {&upstream.Dialer{Allow: []target.Class{target.Loopback}}, of(t, s)},
		"another name":      {&upstream.Dialer{Allow: []target.Class{target.Loopback}, TLS: wrongName}, of(t, s)},
		"no TLS":            {dialer(s), upstream.Proxy{Protocol: httpsProxy, Host: "127.0.0.1", Port: uint16(plain.Proxy().Port)}},
	} {
		_, err := c.d.Tunnel(patient(t), c.p, shop)
		var e *upstream.Error
		if !errors.As(err, &e) || e.Stage != upstream.Handshake || e.Class != controlplanev1.ErrorClass_ERROR_CLASS_TLS {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestGivingUpEndsTheHandshake(t *testing.T) {
	for _, protocol := range protocols {
		asked := make(chan struct{})
		s := proxytest.Start(t, proxytest.Options{Protocol: protocol, Talk: func(c net.Conn) {
			_, _ = c.Read(make([]byte, 1))
			close(asked)
			_, _ = io.Copy(io.Discard, c)
		}})
		ctx, cancel := context.WithCancel(t.Context())
		go func() {
			<-asked
			cancel()
		}()
		d := dialer(s)
		d.HandshakeTimeout = time.Minute
		began := time.Now()
		_, err := d.Tunnel(ctx, of(t, s), shop)
		var e *upstream.Error
		if !errors.As(err, &e) || e.Class != controlplanev1.ErrorClass_ERROR_CLASS_CANCELED || !e.Local || !errors.Is(err, context.Canceled) {
			t.Errorf("%v: %v", protocol, err)
		}
		if took := time.Since(began); took > 30*time.Second {
			t.Errorf("%v: it took %v", protocol, took)
		}
	}
}

func TestOf(t *testing.T) {
	good := func() *controlplanev1.Proxy {
		return &controlplanev1.Proxy{Protocol: socksProxy, Host: "proxy.example", Port: 1080}
	}
	for name, c := range map[string]struct {
		change func(*controlplanev1.Proxy)
		login  *controlplanev1.Credential
		want   string
	}{
		"no protocol":      {func(p *controlplanev1.Proxy) { p.Protocol = 0 }, nil, "protocol"},
		"unknown protocol": {func(p *controlplanev1.Proxy) { p.Protocol = 99 }, nil, "protocol"},
		"no host":          {func(p *controlplanev1.Proxy) { p.Host = "" }, nil, "host"},
		"odd host":         {func(p *controlplanev1.Proxy) { p.Host = "a\r\nb" }, nil, "host"},
		"no port":          {func(p *controlplanev1.Proxy) { p.Port = 0 }, nil, "port"},
		"port too high":    {func(p *controlplanev1.Proxy) { p.Port = 65536 }, nil, "port"},
		"long user":        {nil, &controlplanev1.Credential{Username: strings.Repeat("u", 256), Password: "p"}, "credential"},
		"long password":    {nil, &controlplanev1.Credential{Username: "u", Password: strings.Repeat("p", 256)}, "credential"},
		"no user":          {nil, &controlplanev1.Credential{Password: "p"}, "credential"},
		"colon":            {func(p *controlplanev1.Proxy) { p.Protocol = httpProxy }, &controlplanev1.Credential{Username: "a:b", Password: "p"}, "credential"},
	} {
		p := good()
		if c.change != nil {
			c.change(p)
		}
		if got, err := upstream.Of(p, c.login); err == nil || !strings.HasPrefix(err.Error(), c.want) {
			t.Errorf("%s: %v, %v, want an error of %s", name, got, err, c.want)
		}
	}
	p, err := upstream.Of(good(), &controlplanev1.Credential{Username: "user-name", Password: "pass-word"})
	if err != nil {
		t.Fatal(err)
	}
	for _, text := range []string{fmt.Sprint(p), fmt.Sprintf("%+v %#v %s", p, p, p), fmt.Sprintf("%v", &p), fmt.Sprintf("%+v", []upstream.Proxy{p})} {
		if strings.Contains(text, "pass-word") || strings.Contains(text, "user-name") || !strings.Contains(text, "socks5://proxy.example:1080") {
			t.Errorf("it prints as %s", text)
		}
	}
}
