package http_test

import (
	"bufio"
	"context"
	"crypto/tls"
	"encoding/pem"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"
	"google.golang.org/protobuf/types/known/durationpb"

	probe "github.com/dodona-project/dodona/builtin/probe/http"
	"github.com/dodona-project/dodona/builtin/probe/internal/reach"
	"github.com/dodona-project/dodona/builtin/probe/internal/talk"
	controlplanev1 "github.com/dodona-project/dodona/proto/controlplane/v1"
	pluginv1 "github.com/dodona-project/dodona/proto/plugin/v1"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const (
	success      = controlplanev1.HealthObservation_RESULT_SUCCESS
	failure      = controlplanev1.HealthObservation_RESULT_FAILURE
	inconclusive = controlplanev1.HealthObservation_RESULT_INCONCLUSIVE

	none     = controlplanev1.ErrorClass_ERROR_CLASS_UNSPECIFIED
	timeout  = controlplanev1.ErrorClass_ERROR_CLASS_TIMEOUT
	refused  = controlplanev1.ErrorClass_ERROR_CLASS_REFUSED
	reset    = controlplanev1.ErrorClass_ERROR_CLASS_RESET
	badTLS   = controlplanev1.ErrorClass_ERROR_CLASS_TLS
	protocol = controlplanev1.ErrorClass_ERROR_CLASS_PROTOCOL
	policy   = controlplanev1.ErrorClass_ERROR_CLASS_POLICY
	badCode  = controlplanev1.ErrorClass_ERROR_CLASS_TARGET_STATUS
)

// check makes one check of an address, with loopback allowed.
func check(t *testing.T, p probe.Probe, c probe.Config, address string, within time.Duration) *pluginv1.CheckReply {
	t.Helper()
	c.Allow = append(c.Allow, reach.Loopback)
	if err := c.Check(); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), within)
	defer cancel()
	return p.CheckWith(ctx, c, &pluginv1.CheckRequest{
		EndpointAddress: address, Level: controlplanev1.CheckLevel_CHECK_LEVEL_BASIC, Timeout: durationpb.New(within),
	})
}

func serve(t *testing.T, handler http.HandlerFunc) *httptest.Server {
	t.Helper()
	s := httptest.NewServer(handler)
	t.Cleanup(s.Close)
	return s
}

const long = 20 * time.Second // for what answers at once

func TestAnswers(t *testing.T) {
	var elsewhere atomic.Int32
	other := serve(t, func(http.ResponseWriter, *http.Request) { elsewhere.Add(1) })
	s := serve(t, func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/healthz":
			_, _ = fmt.Fprintf(w, "%s %s%s says ready", r.Method, r.Host, r.URL.RequestURI())
		case "/down":
			w.WriteHeader(http.StatusServiceUnavailable)
		case "/moved":
			http.Redirect(w, r, "/healthz", http.StatusFound)
		case "/loop":
			http.Redirect(w, r, "/loop", http.StatusFound)
		case "/three", "/two", "/one":
			http.Redirect(w, r, map[string]string{"/three": "/two", "/two": "/one", "/one": "/healthz"}[r.URL.Path], http.StatusFound)
		case "/four":
			http.Redirect(w, r, "/three", http.StatusFound)
		case "/to":
			w.Header().Set("Location", r.URL.RawQuery)
			w.WriteHeader(http.StatusFound)
		case "/self":
			http.Redirect(w, r, "http://shop.example/healthz", http.StatusFound)
		case "/cut":
			w.Header().Set("Content-Length", "1000")
			_, _ = io.WriteString(w, "half")
			panic(http.ErrAbortHandler)
		case "/none":
			w.WriteHeader(http.StatusNotModified)
		}
	})
	address := s.Listener.Addr().String()
	for _, tc := range []struct {
		name   string
		config probe.Config
		result controlplanev1.HealthObservation_Result
		class  controlplanev1.ErrorClass
		status uint32
	}{
		{"the root", probe.Config{}, success, none, 200},
		{"a path", probe.Config{Path: "/healthz?deep=1", ExpectBody: "GET " + address + "/healthz?deep=1 says ready"}, success, none, 200},
		{"a host", probe.Config{Path: "/healthz", Host: "shop.example", ExpectBody: "shop.example/healthz"}, success, none, 200},
		{"HEAD", probe.Config{Path: "/healthz", Method: "HEAD"}, success, none, 200},
		{"another body", probe.Config{Path: "/healthz", ExpectBody: "steady"}, failure, protocol, 200},
		{"down", probe.Config{Path: "/down"}, failure, badCode, 503},
		{"not the status", probe.Config{ExpectStatus: []uint32{204, 304}}, failure, badCode, 200},
		{"the status", probe.Config{Path: "/none", ExpectStatus: []uint32{204, 304}}, success, none, 304},
		{"a redirect", probe.Config{Path: "/moved"}, success, none, 200},
		{"a redirect to its own name", probe.Config{Path: "/self", Host: "shop.example"}, success, none, 200},
		{"a redirect to a name that is not its own", probe.Config{Path: "/self"}, failure, policy, 0},
		{"three redirects", probe.Config{Path: "/three"}, success, none, 200},
		{"four redirects", probe.Config{Path: "/four"}, failure, protocol, 0},
		{"redirects without end", probe.Config{Path: "/loop"}, failure, protocol, 0},
		{"a redirect to another port", probe.Config{Path: "/to?" + other.URL}, failure, policy, 0},
		{"a redirect to metadata", probe.Config{Path: "/to?http://169.254.169.254/latest/"}, failure, policy, 0},
		{"a redirect to a file", probe.Config{Path: "/to?file:///etc/passwd"}, failure, policy, 0},
		{"a redirect to a socket", probe.Config{Path: "/to?unix:///run/docker.sock"}, failure, policy, 0},
		{"a redirect to https", probe.Config{Path: "/to?https://" + address + "/"}, failure, policy, 0},
		{"a redirect to nowhere", probe.Config{Path: "/to?http://%zz/"}, failure, protocol, 0},
		{"cut off", probe.Config{Path: "/cut", ExpectBody: "whole"}, failure, reset, 0},
		{"no TLS there", probe.Config{TLS: &reach.TLS{}}, failure, badTLS, 0},
	} {
		r := check(t, probe.Probe{}, tc.config, address, long)
		if r.Result != tc.result || r.ErrorClass != tc.class || r.Status != tc.status || r.Detail == "" || len(r.Detail) > 1024 {
			t.Errorf("%s: %v, want %v, %v, %d", tc.name, r, tc.result, tc.class, tc.status)
		}
	}
	if elsewhere.Load() != 0 {
		t.Errorf("%d requests went elsewhere", elsewhere.Load())
	}
	s.Close()
	if r := check(t, probe.Probe{}, probe.Config{}, address, long); r.Result != failure || r.ErrorClass != refused {
		t.Errorf("nobody listens: %v", r)
	}
}

// Targets that never come to an end do not keep the probe: not longer than the
// timeout, and not for more than it reads.
func TestWithoutEnd(t *testing.T) {
	const within = 500 * time.Millisecond
	chunk := strings.Repeat("x", 8<<10)
	for _, tc := range []struct {
		name   string
		with   func(c net.Conn) int
		config probe.Config
		result controlplanev1.HealthObservation_Result
		class  controlplanev1.ErrorClass
		within time.Duration
	}{
		{"headers drip", func(c net.Conn) int { return talk.Endless(c, "H", 20*time.Millisecond) }, probe.Config{}, failure, timeout, within},
		{"header lines drip", func(c net.Conn) int {
			_, _ = io.WriteString(c, "HTTP/1.1 200 OK\r\n")
			return talk.Endless(c, "A: b\r\n", 20*time.Millisecond)
		}, probe.Config{}, failure, timeout, within},
		{"a body drips", func(c net.Conn) int {
			_, _ = io.WriteString(c, "HTTP/1.1 200 OK\r\n\r\n")
			return talk.Endless(c, "b", 20*time.Millisecond)
		}, probe.Config{ExpectBody: "ready"}, failure, timeout, within},
		{"a body drips and nobody reads it", func(c net.Conn) int {
			_, _ = io.WriteString(c, "HTTP/1.1 200 OK\r\n\r\n")
			return talk.Endless(c, "b", 20*time.Millisecond)
		}, probe.Config{}, success, none, long},
		{"a body without end", func(c net.Conn) int {
			_, _ = io.WriteString(c, "HTTP/1.1 200 OK\r\n\r\n")
			return talk.Endless(c, chunk, 0)
		}, probe.Config{ExpectBody: "ready"}, failure, protocol, long},
		{"headers without end", func(c net.Conn) int {
			_, _ = io.WriteString(c, "HTTP/1.1 200 OK\r\n")
			return talk.Endless(c, "A: "+chunk+"\r\n", 0)
		}, probe.Config{}, failure, protocol, long},
		{"a status line without end", func(c net.Conn) int { return talk.Endless(c, chunk, 0) }, probe.Config{}, failure, protocol, long},
		{"interim answers without end", func(c net.Conn) int {
			return talk.Endless(c, "HTTP/1.1 103 Early Hints\r\nLink: </x>\r\n\r\n", 0)
		}, probe.Config{}, failure, protocol, long},
		{"silence", func(c net.Conn) int { _, _ = io.Copy(io.Discard, c); return 0 }, probe.Config{}, failure, timeout, within},
		{"an end", func(net.Conn) int { return 0 }, probe.Config{}, failure, reset, long},
	} {
		t.Run(tc.name, func(t *testing.T) {
			sent := make(chan int, 1)
			address, _ := talk.Serve(t, func(c net.Conn) {
				_, _ = http.ReadRequest(bufio.NewReader(c))
				select {
				case sent <- tc.with(c):
				default:
				}
			})
			began := time.Now()
			r := check(t, probe.Probe{}, tc.config, address, tc.within)
			took := time.Since(began)
			n := <-sent
			t.Logf("%v after %v; it had sent %d bytes", r, took.Round(time.Millisecond), n)
			if r.Result != tc.result || r.ErrorClass != tc.class || took > tc.within+10*time.Second {
				t.Errorf("%v after %v, want %v, %v", r, took, tc.result, tc.class)
			}
			if n > 16<<20 { // what lay in buffers is sent too
				t.Errorf("%d bytes were sent until it had enough", n)
			}
		})
	}
}

// quiet is for servers whose clients are meant to go.
var quiet = log.New(io.Discard, "", 0)

func TestTLS(t *testing.T) {
	s := httptest.NewUnstartedServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	s.Config.ErrorLog = quiet
	s.StartTLS()
	t.Cleanup(s.Close)
	address := s.Listener.Addr().String()
	ca := string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: s.Certificate().Raw}))
	for _, tc := range []struct {
		name   string
		tls    *reach.TLS
		result controlplanev1.HealthObservation_Result
		class  controlplanev1.ErrorClass
		status uint32
	}{
		{"not trusted", &reach.TLS{}, failure, badTLS, 0},
		{"trusted", &reach.TLS{CA: ca}, success, none, 200},
		{"another name", &reach.TLS{CA: ca, ServerName: "shop.test"}, failure, badTLS, 0},
		{"a name of it", &reach.TLS{CA: ca, ServerName: "example.com"}, success, none, 200},
		{"whatever", &reach.TLS{SkipVerify: true}, success, none, 200},
		{"plain text", nil, failure, badCode, 400},
	} {
		if r := check(t, probe.Probe{}, probe.Config{TLS: tc.tls}, address, long); r.Result != tc.result || r.ErrorClass != tc.class || r.Status != tc.status {
			t.Errorf("%s: %v, want %v, %v", tc.name, r, tc.result, tc.class)
		}
	}
	old := httptest.NewUnstartedServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	old.Config.ErrorLog = quiet
	old.TLS = &tls.Config{MaxVersion: tls.VersionTLS11, MinVersion: tls.VersionTLS10}
	old.StartTLS()
	t.Cleanup(old.Close)
	if r := check(t, probe.Probe{}, probe.Config{TLS: &reach.TLS{SkipVerify: true}}, old.Listener.Addr().String(), long); r.Result != failure || r.ErrorClass != badTLS {
		t.Errorf("TLS 1.1: %v", r)
	}
}

// moving is a name that has another address at each look.
type moving struct{ answers []string }

func (m *moving) LookupNetIP(context.Context, string, string) ([]netip.Addr, error) {
	a := m.answers[0]
	if len(m.answers) > 1 {
		m.answers = m.answers[1:]
	}
	return []netip.Addr{netip.MustParseAddr(a)}, nil
}

// A name is looked at again for a redirect: one that moved to where nobody may be
// checked is refused.
func TestNameMovesAtARedirect(t *testing.T) {
	s := serve(t, func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, "/again", http.StatusFound) })
	_, port, _ := net.SplitHostPort(s.Listener.Addr().String())
	r := check(t, probe.Probe{Resolver: &moving{answers: []string{"127.0.0.1", "169.254.169.254"}}}, probe.Config{}, "shop.example:"+port, long)
	if r.Result != inconclusive || r.ErrorClass != policy || !strings.Contains(r.Detail, "169.254.169.254") {
		t.Errorf("%v", r)
	}
}

func TestLoopbackIsRefused(t *testing.T) {
	var asked atomic.Int32
	s := serve(t, func(http.ResponseWriter, *http.Request) { asked.Add(1) })
	ctx, cancel := context.WithTimeout(t.Context(), long)
	defer cancel()
	for _, address := range []string{s.Listener.Addr().String(), "unix:/run/docker.sock", "169.254.169.254:80", "user@127.0.0.1:80"} {
		r := probe.Probe{}.CheckWith(ctx, probe.Config{}, &pluginv1.CheckRequest{EndpointAddress: address})
		if r.Result != inconclusive && r.ErrorClass != controlplanev1.ErrorClass_ERROR_CLASS_DNS {
			t.Errorf("%s: %v", address, r)
		}
	}
	if asked.Load() != 0 {
		t.Errorf("%d requests were sent", asked.Load())
	}
}

func TestConfig(t *testing.T) {
	for name, tc := range map[string]struct {
		config probe.Config
		want   string
	}{
		"empty":           {probe.Config{}, ""},
		"no slash":        {probe.Config{Path: "healthz"}, "path"},
		"two slashes":     {probe.Config{Path: "//evil.example/"}, "path"},
		"a URL":           {probe.Config{Path: "http://evil.example/"}, "path"},
		"a line break":    {probe.Config{Path: "/a\r\nHost: b"}, "path"},
		"status":          {probe.Config{ExpectStatus: []uint32{200, 404}}, "expect_status[1]"},
		"many statuses":   {probe.Config{ExpectStatus: make([]uint32, 65)}, "at most 64"},
		"host":            {probe.Config{Host: "a/b"}, "host"},
		"host line break": {probe.Config{Host: "a\nb"}, "host"},
		"head":            {probe.Config{Method: "HEAD", ExpectBody: "x"}, "expect_body"},
		"ca":              {probe.Config{TLS: &reach.TLS{CA: "nope"}}, "ca holds no"},
		"ca and skip":     {probe.Config{TLS: &reach.TLS{CA: testCA, SkipVerify: true}}, "contradict"},
		"allow":           {probe.Config{Allow: []string{"all"}}, "allow[0]"},
	} {
		err := tc.config.Check()
		if tc.want == "" && err != nil || tc.want != "" && (err == nil || !strings.Contains(err.Error(), tc.want)) {
			t.Errorf("%s: %v, want %q", name, err, tc.want)
		}
	}
}

var testCA = func() string {
	s := httptest.NewTLSServer(nil)
	defer s.Close()
	return string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: s.Certificate().Raw}))
}()
