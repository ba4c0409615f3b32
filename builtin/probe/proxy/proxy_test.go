package proxy_test

import (
	"context"
	"encoding/pem"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/dodona-project/dodona/builtin/probe/internal/reach"
	"github.com/dodona-project/dodona/builtin/probe/proxy"
	controlplanev1 "github.com/dodona-project/dodona/proto/controlplane/v1"
	pluginv1 "github.com/dodona-project/dodona/proto/plugin/v1"
	"github.com/dodona-project/dodona/sdk/worker/proxytest"
	"github.com/dodona-project/dodona/sdk/worker/target"
	"github.com/dodona-project/dodona/sdk/worker/upstream"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const (
	basic  = controlplanev1.CheckLevel_CHECK_LEVEL_BASIC
	egress = controlplanev1.CheckLevel_CHECK_LEVEL_EGRESS
	aim    = controlplanev1.CheckLevel_CHECK_LEVEL_TARGET

	overHTTP  = controlplanev1.Proxy_PROTOCOL_HTTP
	overHTTPS = controlplanev1.Proxy_PROTOCOL_HTTPS
	overSOCKS = controlplanev1.Proxy_PROTOCOL_SOCKS5

	long = 30 * time.Second // for what answers at once
)

var protocols = []controlplanev1.Proxy_Protocol{overHTTP, overHTTPS, overSOCKS}

// run makes one check of a proxy, and says what came of it in a line.
func run(t *testing.T, s *proxytest.Server, c proxy.Config, within time.Duration, req *pluginv1.CheckRequest) (*pluginv1.CheckReply, string) {
	t.Helper()
	if c.Allow == nil {
		c.Allow = []string{reach.Loopback}
	}
	if c.ProxyTLS == nil && s.TLS() != nil {
		c.ProxyTLS = &reach.TLS{SkipVerify: true}
	}
	if err := c.Check(); err != nil {
		t.Fatal(err)
	}
	req = proto.CloneOf(req)
	if req.Proxy == nil {
		req.Proxy = s.Proxy()
	}
	if req.Credential == nil {
		req.Credential = s.Credential()
	}
	req.Timeout = durationpb.New(within)
	ctx, cancel := context.WithTimeout(t.Context(), within)
	defer cancel()
	r := proxy.Probe{}.CheckWith(ctx, c, req)
	text := strings.TrimPrefix(r.GetResult().String(), "RESULT_")
	if r.GetErrorClass() != 0 {
		text += " " + strings.TrimPrefix(r.GetErrorClass().String(), "ERROR_CLASS_")
	}
	if r.GetStatus() != 0 {
		text += fmt.Sprintf(" %d", r.GetStatus())
	}
	if r.GetEgressIp() != "" {
		text += " " + r.GetEgressIp()
	}
	if len(r.GetDetail()) > 512 || strings.Contains(r.GetDetail(), "secret") {
		t.Errorf("detail %q", r.GetDetail())
	}
	return r, text
}

func TestBasic(t *testing.T) {
	for _, protocol := range protocols {
		for _, c := range []struct {
			name    string
			options proxytest.Options
			login   *controlplanev1.Credential
			want    string
		}{
			{"target unknown", proxytest.Options{}, nil, "SUCCESS"},
			{"with credentials", proxytest.Options{Username: "u", Password: "secret"}, nil, "SUCCESS"},
			{"wrong password", proxytest.Options{Username: "u", Password: "secret"}, &controlplanev1.Credential{Username: "u", Password: "secret-not"}, "FAILURE PROXY_AUTH"},
			{"no password", proxytest.Options{Username: "u", Password: "secret"}, &controlplanev1.Credential{}, "FAILURE PROXY_AUTH"},
		} {
			c.options.Protocol = protocol
			s := proxytest.Start(t, c.options)
			r, got := run(t, s, proxy.Config{}, long, &pluginv1.CheckRequest{Level: basic, Credential: c.login})
			if got != c.want {
				t.Errorf("%v, %s: %s, want %s (%s)", protocol, c.name, got, c.want, r.GetDetail())
			}
			s.Close()
			if r, got := run(t, s, proxy.Config{}, long, &pluginv1.CheckRequest{Level: basic}); got != "FAILURE REFUSED" {
				t.Errorf("%v, nobody listens: %s (%s)", protocol, got, r.GetDetail())
			}
		}
	}
	for _, c := range []struct {
		name    string
		options proxytest.Options
		want    string
		within  time.Duration
	}{
		{"403", proxytest.Options{Protocol: overHTTP, Status: 403}, "FAILURE PROXY_STATUS", long},
		{"503", proxytest.Options{Protocol: overHTTP, Status: 503}, "SUCCESS", long},
		{"not allowed", proxytest.Options{Protocol: overSOCKS, Status: 2}, "FAILURE PROXY_STATUS", long},
		{"unreachable", proxytest.Options{Protocol: overSOCKS, Status: 4}, "SUCCESS", long},
		{"silent", proxytest.Options{Protocol: overHTTP, Talk: func(c net.Conn) { _, _ = io.Copy(io.Discard, c) }}, "FAILURE TIMEOUT", 200 * time.Millisecond},
		{"another protocol", proxytest.Options{Protocol: overSOCKS, Talk: func(c net.Conn) { _, _ = io.WriteString(c, "220 mail\r\n"); _, _ = io.Copy(io.Discard, c) }}, "FAILURE PROTOCOL", long},
	} {
		s := proxytest.Start(t, c.options)
		if r, got := run(t, s, proxy.Config{}, c.within, &pluginv1.CheckRequest{Level: basic}); got != c.want {
			t.Errorf("%s: %s, want %s (%s)", c.name, got, c.want, r.GetDetail())
		}
	}
}

// What a gateway sends for a tunnel and what a check sends are the same bytes.
func TestSameBytesAsTheGateway(t *testing.T) {
	for _, protocol := range protocols {
		for _, login := range []string{"", "u"} {
			o := proxytest.Options{Protocol: protocol, Username: login}
			if login != "" {
				o.Password = "secret"
			}
			s := proxytest.Start(t, o)
			if _, got := run(t, s, proxy.Config{BasicTarget: "shop.example:443"}, long, &pluginv1.CheckRequest{Level: basic}); got != "SUCCESS" {
				t.Errorf("%v: %s", protocol, got)
			}
			if _, got := run(t, s, proxy.Config{}, long, &pluginv1.CheckRequest{Level: aim, Url: "https://shop.example/"}); got != "FAILURE PROXY_STATUS" {
				t.Errorf("%v: %s", protocol, got)
			}
			via, err := upstream.Of(s.Proxy(), s.Credential())
			if err != nil {
				t.Fatal(err)
			}
			d := upstream.Dialer{TLS: s.TLS(), Allow: []target.Class{target.Loopback}}
			ctx, cancel := context.WithTimeout(t.Context(), long)
			_, err = d.Tunnel(ctx, via, target.Target{Name: "shop.example", Port: 443})
			cancel()
			if err == nil {
				t.Error("shop.example is reached")
			}
			got := s.Received()
			if len(got) != 3 || len(got[0]) == 0 || !slices.Equal(got[0], got[2]) || !slices.Equal(got[1], got[2]) {
				t.Errorf("%v: they send\n%q", protocol, got)
			}
			s.Close()
		}
	}
}

// world is targets, and proxies that lead to them.
func world(t *testing.T, handler http.HandlerFunc) (hosts map[string]string, ca string) {
	t.Helper()
	plain, secure := httptest.NewServer(handler), httptest.NewTLSServer(handler)
	t.Cleanup(plain.Close)
	t.Cleanup(secure.Close)
	hosts = map[string]string{
		"example.com:80": plain.Listener.Addr().String(), "example.com:443": secure.Listener.Addr().String(), "example.com:8080": plain.Listener.Addr().String(),
		"other.example:443": secure.Listener.Addr().String(),
	}
	return hosts, string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: secure.Certificate().Raw}))
}

func TestEgress(t *testing.T) {
	answers := map[string]string{
		"/text": "203.0.113.7\n", "/quoted": `"203.0.113.7"`, "/v6": "2001:db8::7", "/mapped": "::ffff:203.0.113.7", "/bom": "\ufeff203.0.113.7\r\n",
		"/ipify": `{"ip":"203.0.113.7"}`, "/httpbin": `{"origin": "198.51.100.1, 203.0.113.7"}`, "/ip-api": `{"status":"success","country":"DE","query":"203.0.113.7"}`,
		"/both": `{"address":"Main street 1","ip":"203.0.113.7"}`, "/trace": "fl=1\nh=x\nip=203.0.113.7\nts=1\n", "/nested": `{"ip": {"a": 1}, "query": "203.0.113.7"}`,
		"/nothing": `{"status":"ok"}`, "/empty": "", "/html": "<html>203.0.113.7</html>", "/zone": "fe80::1%eth0", "/any": "0.0.0.0", "/broken": `{"ip":"203.`, "/number": `{"ip": 7}`,
		"/long": strings.Repeat("x", 200_000),
	}
	hosts, ca := world(t, func(w http.ResponseWriter, r *http.Request) {
		text, ok := answers[r.URL.Path]
		if !ok {
			w.WriteHeader(http.StatusServiceUnavailable)
			return
		}
		if r.Header.Get("Proxy-Authorization") != "" {
			t.Error("the target sees the proxy's credentials")
		}
		_, _ = io.WriteString(w, text)
	})
	for _, protocol := range protocols {
		s := proxytest.Start(t, proxytest.Options{Protocol: protocol, Username: "u", Password: "secret", Hosts: hosts})
		for _, scheme := range []string{"http", "https"} {
			for path := range answers {
				want := "SUCCESS 200 203.0.113.7"
				switch path {
				case "/v6":
					want = "SUCCESS 200 2001:db8::7"
				case "/nothing", "/empty", "/html", "/zone", "/any", "/broken", "/number", "/long":
					want = "FAILURE PROTOCOL 200"
				}
				r, got := run(t, s, proxy.Config{TLS: &reach.TLS{CA: ca}}, long, &pluginv1.CheckRequest{Level: egress, Url: scheme + "://example.com" + path})
				if got != want {
					t.Errorf("%v %s %s: %s, want %s (%s)", protocol, scheme, path, got, want, r.GetDetail())
				}
			}
			if r, got := run(t, s, proxy.Config{TLS: &reach.TLS{CA: ca}}, long, &pluginv1.CheckRequest{Level: egress, Url: scheme + "://example.com/away"}); got != "FAILURE TARGET_STATUS 503" {
				t.Errorf("%v %s: %s (%s)", protocol, scheme, got, r.GetDetail())
			}
		}
	}
}

func TestTarget(t *testing.T) {
	hosts, ca := world(t, func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/moved":
			http.Redirect(w, r, "http://127.0.0.1/elsewhere", http.StatusFound)
		case "/hints":
			w.WriteHeader(http.StatusEarlyHints)
		case "/gone":
			w.WriteHeader(http.StatusGone)
		case "/teapot":
			w.WriteHeader(http.StatusTeapot)
		case "/headers":
			for i := range 2000 {
				w.Header().Set(fmt.Sprintf("X-%d", i), strings.Repeat("x", 50))
			}
		case "/auth":
			w.WriteHeader(http.StatusProxyAuthRequired)
		}
	})
	for _, protocol := range protocols {
		s := proxytest.Start(t, proxytest.Options{Protocol: protocol, Hosts: hosts})
		for _, c := range []struct {
			url    string
			expect []uint32
			want   string
		}{
			{"http://example.com/", nil, "SUCCESS 200"},
			{"https://example.com/", nil, "SUCCESS 200"},
			{"http://example.com:8080/x?y=z", nil, "SUCCESS 200"},
			{"http://example.com/moved", nil, "SUCCESS 302"},
			{"http://example.com/hints", nil, "SUCCESS 200"},
			{"https://example.com/gone", nil, "FAILURE TARGET_STATUS 410"},
			{"https://example.com/gone", []uint32{404, 410}, "SUCCESS 410"},
			{"https://example.com/", []uint32{204}, "FAILURE TARGET_STATUS 200"},
			{"https://example.com/headers", nil, "FAILURE PROTOCOL"},
			{"https://example.com/auth", nil, "FAILURE TARGET_STATUS 407"},
			{"https://other.example/", nil, "FAILURE TLS"},
			{"https://nowhere.example/", nil, "FAILURE PROXY_STATUS"},
			{"ftp://example.com/", nil, "INCONCLUSIVE"},
			{"http://u:p@example.com/", nil, "INCONCLUSIVE"},
			{"http://127.1/", nil, "INCONCLUSIVE"},
			{"", nil, "INCONCLUSIVE"},
			{"http://[::1]:80%zz/", nil, "INCONCLUSIVE"},
			{"http://169.254.169.254/latest/meta-data/", nil, "INCONCLUSIVE POLICY"},
			{"http://metadata.google.internal/", nil, "INCONCLUSIVE POLICY"},
			{"http://[::ffff:169.254.169.254]/", nil, "INCONCLUSIVE POLICY"},
			{"http://224.0.0.1/", nil, "INCONCLUSIVE POLICY"},
		} {
			r, got := run(t, s, proxy.Config{TLS: &reach.TLS{CA: ca}}, long, &pluginv1.CheckRequest{Level: aim, Url: c.url, ExpectStatus: c.expect})
			if got != c.want {
				t.Errorf("%v %s %v: %s, want %s (%s)", protocol, c.url, c.expect, got, c.want, r.GetDetail())
			}
		}
	}
}

// A proxy or a target that is as bad as it likes holds a check no longer than its time.
func TestHostileAnswers(t *testing.T) {
	established := "HTTP/1.1 200 OK\r\n\r\n"
	for name, c := range map[string]struct {
		talk func(net.Conn)
		want string
	}{
		"headers without end": {func(c net.Conn) { forever(c, "HTTP/1.1 200 OK\r\n", "X: y\r\n", 0) }, "FAILURE PROTOCOL"},
		"headers that drip":   {func(c net.Conn) { forever(c, "HTTP/1.1 200 OK\r\n", "X", 20*time.Millisecond) }, "FAILURE TIMEOUT"},
		"a body without end":  {func(c net.Conn) { forever(c, established, strings.Repeat("x", 1000), 0) }, "FAILURE PROTOCOL 200"},
		"a body that drips":   {func(c net.Conn) { forever(c, established, "x", 20*time.Millisecond) }, "FAILURE TIMEOUT"},
		"1xx without end":     {func(c net.Conn) { forever(c, "", "HTTP/1.1 103 Early Hints\r\n\r\n", 0) }, "FAILURE PROTOCOL"},
		"hangs up":            {func(c net.Conn) { _, _ = c.Read(make([]byte, 100)) }, "FAILURE RESET"},
	} {
		s := proxytest.Start(t, proxytest.Options{Protocol: overHTTP, Talk: c.talk})
		within := long
		if strings.HasSuffix(c.want, "TIMEOUT") {
			within = 300 * time.Millisecond
		}
		began := time.Now()
		r, got := run(t, s, proxy.Config{}, within, &pluginv1.CheckRequest{Level: egress, Url: "http://example.com/"})
		if took := time.Since(began); got != c.want || took > within+10*time.Second {
			t.Errorf("%s: %s after %v, want %s (%s)", name, got, took, c.want, r.GetDetail())
		}
		s.Close()
	}
}

// forever writes a text, and then another one until the other side has had enough.
func forever(c net.Conn, first, again string, pause time.Duration) {
	_, _ = c.Read(make([]byte, 4096))
	_, err := io.WriteString(c, first)
	for err == nil {
		time.Sleep(pause)
		_, err = io.WriteString(c, again)
	}
}

func TestWhatCannotBeChecked(t *testing.T) {
	s := proxytest.Start(t, proxytest.Options{Protocol: overHTTP})
	none := []string{}
	broken := s.Proxy()
	broken.Protocol = 0
	for name, c := range map[string]struct {
		config proxy.Config
		req    *pluginv1.CheckRequest
		want   string
	}{
		"loopback":      {proxy.Config{Allow: none}, &pluginv1.CheckRequest{Level: basic}, "INCONCLUSIVE POLICY"},
		"no protocol":   {proxy.Config{}, &pluginv1.CheckRequest{Level: basic, Proxy: broken}, "INCONCLUSIVE"},
		"no level":      {proxy.Config{}, &pluginv1.CheckRequest{}, "INCONCLUSIVE"},
		"unknown level": {proxy.Config{}, &pluginv1.CheckRequest{Level: 99}, "INCONCLUSIVE"},
	} {
		if r, got := run(t, s, c.config, long, c.req); got != c.want {
			t.Errorf("%s: %s, want %s (%s)", name, got, c.want, r.GetDetail())
		}
	}
	if s.Accepted() != 0 {
		t.Errorf("%d connections were made", s.Accepted())
	}
	r := proxy.Probe{}.CheckWith(t.Context(), proxy.Config{}, &pluginv1.CheckRequest{EndpointAddress: "192.0.2.1:80", Level: basic})
	if r.GetResult() != controlplanev1.HealthObservation_RESULT_INCONCLUSIVE {
		t.Errorf("an endpoint: %v", r)
	}
	for _, bad := range []proxy.Config{{BasicTarget: "x"}, {BasicTarget: "127.1:80"}, {Allow: []string{"x"}}, {ProxyTLS: &reach.TLS{CA: "x"}}, {TLS: &reach.TLS{CA: "x"}}} {
		if err := (proxy.Probe{}).Configure(t.Context(), bad); err == nil {
			t.Errorf("%+v is taken", bad)
		}
	}
}
