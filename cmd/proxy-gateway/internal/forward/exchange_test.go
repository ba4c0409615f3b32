package forward_test

import (
	"bufio"
	"bytes"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"testing/iotest"
	"time"

	"github.com/dodona-project/dodona/cmd/proxy-gateway/internal/forward"
	"github.com/dodona-project/dodona/sdk/worker/proxytest"
)

// What an HTTP upstream gets is this and nothing else.
func TestBytesToAnUpstream(t *testing.T) {
	s := scripted(t, ok, ok)
	r := through(t, s.Server)
	r.proxies[0].at.Username, r.proxies[0].at.Password = "user", "secret"
	g := start(t, nil, r)
	conn := g.dial()
	in := bufio.NewReader(conn)
	talk(t, conn, in, http.MethodGet, "GET http://me:pass@Shop.example/a HTTP/1.1\r\nHost: other.example\r\nConnection: X-Mine\r\nX-Mine: 1\r\nProxy-Connection: keep-alive\r\nProxy-Authorization: Basic bWluZQ==\r\nAccept: */*\r\n\r\n")
	talk(t, conn, in, http.MethodPost, "POST http://shop.example/b HTTP/1.1\r\nHost: shop.example\r\nContent-Length: 3\r\n\r\nabc")
	login := "Proxy-Authorization: Basic " + base64.StdEncoding.EncodeToString([]byte("user:secret")) + "\r\n\r\n"
	want := []string{
		"GET http://shop.example/a HTTP/1.1\r\nHost: shop.example\r\nAccept: */*\r\n" + login,
		"POST http://shop.example/b HTTP/1.1\r\nHost: shop.example\r\nContent-Length: 3\r\n" + login + "abc",
	}
	if got := s.received(); fmt.Sprintf("%q", got) != fmt.Sprintf("%q", want) {
		t.Errorf("it got\n%q\nwant\n%q", got, want)
	}
	if s.Accepted() != 1 {
		t.Errorf("%d connections for two requests", s.Accepted())
	}
}

// Requests that come without waiting for answers are answered in their order.
func TestPipelining(t *testing.T) {
	at := origin(t, func(w http.ResponseWriter, r *http.Request) {
		sent, _ := io.ReadAll(r.Body)
		_, _ = fmt.Fprintf(w, "%s %s;", r.URL.Path, sent)
	})
	p := proxytest.Start(t, proxytest.Options{Protocol: socksProxy, Hosts: map[string]string{"shop.example:80": at}})
	g := start(t, nil, through(t, p))
	conn := g.dial()
	text := ""
	for i := range 20 {
		text += fmt.Sprintf("POST http://shop.example/%d HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\n\r\n%d", i, i%10)
		text += fmt.Sprintf("POST http://shop.example/c%d HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n1\r\n%d\r\n0\r\n\r\n", i, i%10)
	}
	if _, err := io.WriteString(conn, text); err != nil {
		t.Fatal(err)
	}
	in := bufio.NewReader(conn)
	for i := range 20 {
		for _, c := range []string{"", "c"} {
			want := fmt.Sprintf("/%s%d %d;", c, i, i%10)
			if got := listenTo(t, in, http.MethodPost, want); got.body != want {
				t.Fatalf("got %q, want %q", got.body, want)
			}
		}
	}
}

func TestTrailersAndInformation(t *testing.T) {
	at := origin(t, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Trailer", "X-Sum")
		w.Header().Set("Link", "</style.css>")
		w.WriteHeader(http.StatusEarlyHints)
		w.Header().Del("Link")
		sent, _ := io.ReadAll(r.Body)
		_, _ = fmt.Fprintf(w, "%s %s %s", sent, r.Trailer.Get("X-Mine"), r.Header.Get("Te"))
		w.Header().Set("X-Sum", "42")
	})
	for _, protocol := range protocols {
		p := proxytest.Start(t, proxytest.Options{Protocol: protocol, Hosts: map[string]string{"shop.example:80": at}})
		g := start(t, trust(p), through(t, p))
		conn := g.dial()
		in := bufio.NewReader(conn)
		text := "POST http://shop.example/ HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\nTrailer: X-Mine\r\nTE: trailers\r\n\r\n3\r\nabc\r\n0\r\nX-Mine: yes\r\n\r\n"
		got := talk(t, conn, in, http.MethodPost, text)
		if protocol == socksProxy { // the other test proxies take 103 for themselves
			if got.status != 103 || got.header.Get("Link") == "" {
				t.Errorf("%v: first %+v", protocol, got)
			}
			got = listenTo(t, in, http.MethodPost, text)
		}
		if got.status != 200 || got.body != "abc yes trailers" && got.body != "abc yes " || got.trailer.Get("X-Sum") != "42" {
			t.Errorf("%v: %+v", protocol, got)
		}
	}
	// Nobody tells a client of HTTP/1.0 what it does not know.
	p := proxytest.Start(t, proxytest.Options{Protocol: socksProxy, Hosts: map[string]string{"shop.example:80": at}})
	g := start(t, nil, through(t, p))
	if got := g.say("GET http://shop.example/ HTTP/1.0\r\n\r\n"); !strings.HasPrefix(got, "HTTP/1.1 200 ") || !strings.HasSuffix(got, "\r\n\r\n  ") || strings.Contains(got, "chunked") {
		t.Errorf("HTTP/1.0 gets %q", got)
	}
}

// A client that sends its body only after a 100 never waits for ever, whatever the
// upstream does about it.
func TestContinue(t *testing.T) {
	head := "POST http://shop.example/ HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\nExpect: 100-continue\r\n\r\n"
	for name, c := range map[string]struct {
		talk  func(t *testing.T, conn net.Conn, r *bufio.Reader)
		first int
		then  int
	}{
		"the upstream says 100": {func(t *testing.T, conn net.Conn, r *bufio.Reader) {
			_, _ = io.WriteString(conn, "HTTP/1.1 100 Continue\r\n\r\n")
			_, _ = io.ReadFull(r, make([]byte, 3))
			_, _ = io.WriteString(conn, ok)
		}, 100, 200},
		"the upstream waits for the body": {func(t *testing.T, conn net.Conn, r *bufio.Reader) {
			_, _ = io.ReadFull(r, make([]byte, 3))
			_, _ = io.WriteString(conn, ok)
		}, 100, 200},
		"the upstream says 100 late": {func(t *testing.T, conn net.Conn, r *bufio.Reader) {
			_, _ = io.ReadFull(r, make([]byte, 3))
			_, _ = io.WriteString(conn, "HTTP/1.1 100 Continue\r\n\r\n"+ok)
		}, 100, 200},
		"the upstream does not want it": {func(t *testing.T, conn net.Conn, r *bufio.Reader) {
			_, _ = io.WriteString(conn, "HTTP/1.1 417 Expectation Failed\r\nContent-Length: 0\r\n\r\n")
			_, _ = io.Copy(io.Discard, r)
		}, 417, 0},
	} {
		t.Run(name, func(t *testing.T) {
			s := proxytest.Start(t, proxytest.Options{Protocol: httpProxy, Talk: func(conn net.Conn) {
				r := bufio.NewReader(conn)
				for {
					line, err := r.ReadString('\n')
					if err != nil {
						return
					}
					if line == "\r\n" {
						break
					}
				}
				c.talk(t, conn, r)
			}})
			g := start(t, func(o *forward.Options) { o.Limits.Continue = 200 * time.Millisecond }, through(t, s))
			conn := g.dial()
			in := bufio.NewReader(conn)
			got := talk(t, conn, in, http.MethodPost, head)
			if got.status != c.first {
				t.Fatalf("first comes %+v, want %d", got, c.first)
			}
			if c.then == 0 {
				if !got.close {
					t.Error("the connection goes on, and a body may come or not")
				}
				return
			}
			if got := talk(t, conn, in, http.MethodPost, "abc"); got.status != c.then || got.body != "ok" {
				t.Errorf("then comes %+v", got)
			}
		})
	}
}

// An upstream that answers before it has the body: the client gets the answer, and the
// connection ends because nobody knows where its next request begins.
func TestEarlyAnswer(t *testing.T) {
	s := proxytest.Start(t, proxytest.Options{Protocol: httpProxy, Talk: func(conn net.Conn) {
		_, _ = conn.Read(make([]byte, 4096))
		_, _ = io.WriteString(conn, "HTTP/1.1 413 Too Large\r\nContent-Length: 2\r\n\r\nno")
		_, _ = io.Copy(io.Discard, conn)
	}})
	g := start(t, nil, through(t, s))
	conn := g.dial()
	in := bufio.NewReader(conn)
	got := talk(t, conn, in, http.MethodPost, "POST http://shop.example/ HTTP/1.1\r\nHost: x\r\nContent-Length: 1000000\r\n\r\nabc")
	if got.status != 413 || got.body != "no" || !got.close {
		t.Errorf("got %+v", got)
	}
	if rest, err := io.ReadAll(in); err != nil || len(rest) > 0 {
		t.Errorf("then %q, %v", rest, err)
	}
}

// Large bodies in both directions and in both framings, while either side is slow.
func TestBodies(t *testing.T) {
	big := make([]byte, 3<<20)
	_, _ = rand.Read(big)
	at := origin(t, func(w http.ResponseWriter, r *http.Request) {
		h := sha256.New()
		n, err := io.Copy(h, r.Body)
		w.Header().Set("X-Sum", fmt.Sprintf("%d %x %v", n, h.Sum(nil), err))
		if r.URL.Path == "/sized" {
			w.Header().Set("Content-Length", fmt.Sprint(len(big)))
		}
		_, _ = w.Write(big)
	})
	want := fmt.Sprintf("%d %x <nil>", len(big), sha256.Sum256(big))
	for _, protocol := range protocols {
		p := proxytest.Start(t, proxytest.Options{Protocol: protocol, Hosts: map[string]string{"shop.example:80": at}})
		g := start(t, trust(p), through(t, p))
		conn := g.dial()
		in := bufio.NewReader(conn)
		for _, path := range []string{"/sized", "/chunked"} {
			var sent bytes.Buffer
			_, _ = fmt.Fprintf(&sent, "POST http://shop.example%s HTTP/1.1\r\nHost: x\r\n", path)
			if path == "/sized" {
				_, _ = fmt.Fprintf(&sent, "Content-Length: %d\r\n\r\n%s", len(big), big)
			} else {
				_, _ = fmt.Fprint(&sent, "Transfer-Encoding: chunked\r\n\r\n")
				for rest := big; len(rest) > 0; {
					n := min(len(rest), 1+int(rest[0])*300)
					_, _ = fmt.Fprintf(&sent, "%x\r\n%s\r\n", n, rest[:n])
					rest = rest[n:]
				}
				_, _ = fmt.Fprint(&sent, "0\r\n\r\n")
			}
			go func() { _, _ = io.Copy(conn, &sent) }()
			got := listenTo(t, in, http.MethodPost, path)
			if got.err != nil || got.body != string(big) || got.header.Get("X-Sum") != want {
				t.Errorf("%v %s: %d bytes came back, %v; the target got %s, want %s", protocol, path, len(got.body), got.err, got.header.Get("X-Sum"), want)
			}
		}
	}
}

// A client and an upstream that send a byte at a time are served like others.
func TestSlowPeers(t *testing.T) {
	answer := "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\nX-T: 1\r\n\r\n"
	s := proxytest.Start(t, proxytest.Options{Protocol: httpProxy, Talk: func(conn net.Conn) {
		r := bufio.NewReader(conn)
		for {
			q, err := http.ReadRequest(r)
			if err != nil {
				return
			}
			if sent, err := io.ReadAll(q.Body); err != nil || string(sent) != "0123456789" {
				t.Errorf("the upstream got %q, %v", sent, err)
			}
			for i := range len(answer) {
				_, _ = io.WriteString(conn, answer[i:i+1])
			}
		}
	}})
	g := start(t, nil, through(t, s))
	conn := g.dial()
	in := bufio.NewReader(conn)
	text := "POST http://shop.example/ HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\na\r\n0123456789\r\n0\r\n\r\n"
	for range 3 {
		if _, err := io.Copy(conn, onlyReader{iotest.OneByteReader(strings.NewReader(text))}); err != nil {
			t.Fatal(err)
		}
		if got := listenTo(t, in, http.MethodPost, text); got.body != "abc" || got.trailer.Get("X-T") != "1" {
			t.Errorf("got %+v", got)
		}
	}
}

type onlyReader struct{ io.Reader }

// A response that breaks off is not taken for a whole one, in any framing.
func TestBrokenResponse(t *testing.T) {
	for _, c := range []struct{ version, answer string }{
		{"1.1", "HTTP/1.1 200 OK\r\nContent-Length: 10\r\nX: close-after\r\n\r\nabc"},
		{"1.1", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nX: close-after\r\n\r\n3\r\nabc\r\n"},
		{"1.0", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nX: close-after\r\n\r\n3\r\nabc\r\n"},
		{"1.1", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nX: close-after\r\n\r\n3\r\nabc\r\nzz\r\n"},
	} {
		s := scripted(t, c.answer)
		g := start(t, nil, through(t, s.Server))
		conn := g.dial()
		if _, err := io.WriteString(conn, "GET http://shop.example/ HTTP/"+c.version+"\r\nHost: x\r\n\r\n"); err != nil {
			t.Fatal(err)
		}
		got, err := io.ReadAll(conn)
		if err == nil {
			t.Errorf("HTTP/%s: of %q comes %q, as if it were all", c.version, c.answer, got)
		}
	}
}

// A client that leaves while its body is sent takes the upstream connection with it.
func TestClientLeaves(t *testing.T) {
	var ended atomic.Int32
	s := proxytest.Start(t, proxytest.Options{Protocol: httpProxy, Talk: func(conn net.Conn) {
		_, _ = io.Copy(io.Discard, conn)
		ended.Add(1)
	}})
	r := through(t, s)
	g := start(t, nil, r)
	conn := g.dial()
	if _, err := io.WriteString(conn, "POST http://shop.example/ HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\n\r\nabc"); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the request is on its way", func() bool { return r.proxies[0].begun.Load() == 1 })
	_ = conn.Close()
	eventually(t, "the upstream connection ends", func() bool { return ended.Load() == 1 })
	eventually(t, "the proxy is released", func() bool { return r.proxies[0].held.Load() == 0 })
}

// Go's own client, with connections that are kept and many requests at once.
func TestManyAtOnce(t *testing.T) {
	at := origin(t, func(w http.ResponseWriter, r *http.Request) {
		sent, _ := io.ReadAll(r.Body)
		_, _ = w.Write(append([]byte(r.URL.Path+" "), sent...))
	})
	for _, protocol := range protocols {
		p := proxytest.Start(t, proxytest.Options{Protocol: protocol, Hosts: map[string]string{"shop.example:80": at}})
		g := start(t, trust(p), through(t, p))
		tr := &http.Transport{Proxy: proxyOf(g), MaxIdleConnsPerHost: 8}
		client := &http.Client{Transport: tr, Timeout: patience}
		errs := make(chan error)
		for n := range 8 {
			go func() {
				for i := range 50 {
					sent := strings.Repeat("x", i*n*20)
					answer, err := client.Post(fmt.Sprintf("http://shop.example/%d/%d", n, i), "text/plain", strings.NewReader(sent))
					if err != nil {
						errs <- err
						return
					}
					got, err := io.ReadAll(answer.Body)
					_ = answer.Body.Close()
					if want := fmt.Sprintf("/%d/%d %s", n, i, sent); err != nil || string(got) != want {
						errs <- fmt.Errorf("got %.60q, %w, want %.60q", got, err, want)
						return
					}
				}
				errs <- nil
			}()
		}
		for range 8 {
			if err := <-errs; err != nil {
				t.Errorf("%v: %v", protocol, err)
			}
		}
		tr.CloseIdleConnections()
		if n := p.Accepted(); protocol == socksProxy && n > 8 { // the others close after each answer
			t.Errorf("%v: %d connections to the upstream for 8 clients", protocol, n)
		}
	}
}

// An upstream's time to answer begins when it has the whole request, however long that took
// to come.
func TestLongUpload(t *testing.T) {
	const headers = 400 * time.Millisecond
	s := proxytest.Start(t, proxytest.Options{Protocol: httpProxy, Talk: func(conn net.Conn) {
		q, err := http.ReadRequest(bufio.NewReader(conn))
		if err != nil {
			return
		}
		_, _ = io.Copy(io.Discard, q.Body)
		time.Sleep(headers / 2)
		_, _ = io.WriteString(conn, ok)
	}})
	g := start(t, func(o *forward.Options) { o.Limits.Headers = headers }, through(t, s))
	conn := g.dial()
	if _, err := io.WriteString(conn, "POST http://shop.example/ HTTP/1.1\r\nHost: x\r\nContent-Length: 15\r\n\r\n"); err != nil {
		t.Fatal(err)
	}
	for range 15 {
		time.Sleep(headers / 4)
		if _, err := io.WriteString(conn, "x"); err != nil {
			t.Fatal(err)
		}
	}
	if got := listenTo(t, bufio.NewReader(conn), http.MethodPost, "upload"); got.status != 200 {
		t.Errorf("answered %+v", got)
	}
}

// An upstream that neither takes the body nor answers is given up.
func TestDeafUpstream(t *testing.T) {
	s := proxytest.Start(t, proxytest.Options{Protocol: httpProxy, Talk: func(conn net.Conn) {
		_, _ = conn.Read(make([]byte, 1))
		<-t.Context().Done()
	}})
	r := through(t, s)
	g := start(t, func(o *forward.Options) {
		o.Limits.Headers, o.Limits.Idle = 300*time.Millisecond, 300*time.Millisecond
	}, r)
	conn := g.dial()
	const size = 64 << 20
	go func() {
		_, _ = fmt.Fprintf(conn, "POST http://shop.example/ HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n", size)
		_, _ = io.CopyN(conn, zeros{}, size)
	}()
	if got := listenTo(t, bufio.NewReader(conn), http.MethodPost, "upload"); got.status != 504 && got.status != 502 || !got.close {
		t.Errorf("answered %+v", got)
	}
	eventually(t, "the proxy is released", func() bool { return r.proxies[0].held.Load() == 0 })
}

type zeros struct{}

func (zeros) Read(p []byte) (int, error) {
	clear(p)
	return len(p), nil
}
