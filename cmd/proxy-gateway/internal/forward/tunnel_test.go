package forward_test

import (
	"bufio"
	"bytes"
	"crypto/rand"
	"crypto/sha256"
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/dodona-project/dodona/cmd/proxy-gateway/internal/forward"
	controlplanev1 "github.com/dodona-project/dodona/proto/controlplane/v1"
	"github.com/dodona-project/dodona/sdk/worker"
	"github.com/dodona-project/dodona/sdk/worker/proxytest"
	"github.com/dodona-project/dodona/sdk/worker/target"
)

// open opens a tunnel to shop.example:443.
func (g *gateway) open() (*net.TCPConn, *bufio.Reader) {
	g.t.Helper()
	conn := g.dial()
	in := bufio.NewReader(conn)
	if got := talk(g.t, conn, in, http.MethodConnect, connectShop); got.status != 200 {
		g.t.Fatalf("CONNECT is answered %+v", got)
	}
	return conn, in
}

// tunnelTo starts a gateway whose tunnels end at an address, through a kind of proxy.
func tunnelTo(t testing.TB, at string, change func(*forward.Options)) (*gateway, *rule) {
	p := proxytest.Start(t, proxytest.Options{Protocol: socksProxy, Hosts: map[string]string{"shop.example:443": at}})
	r := through(t, p)
	return start(t, change, r), r
}

// Little at a time, of sizes around those of the buffers, through each kind of proxy:
// nothing waits for more to come.
func TestTunnelsPassOnWhatThereIs(t *testing.T) {
	for _, protocol := range protocols {
		p := proxytest.Start(t, proxytest.Options{Protocol: protocol, Hosts: map[string]string{"shop.example:443": echo(t)}})
		g := start(t, func(o *forward.Options) {
			trust(p)(o)
			o.Limits.Idle = 40 * time.Second
		}, through(t, p))
		conn, in := g.open()
		for _, size := range []int{1, 511, 512, 513, 1, 1024, 16 << 10, 16<<10 + 1, 512, 512, 1} {
			sent := make([]byte, size)
			_, _ = rand.Read(sent)
			if _, err := conn.Write(sent); err != nil {
				t.Fatal(err)
			}
			got := make([]byte, size)
			if _, err := io.ReadFull(in, got); err != nil || !bytes.Equal(got, sent) {
				t.Fatalf("%v: %d bytes do not come back as they are: %v", protocol, size, err)
			}
		}
	}
}

// Much in both directions at once, through each kind of proxy: it arrives whole, and each
// direction ends by itself.
func TestTunnelsCarryMuch(t *testing.T) {
	const size = 8 << 20
	sent := make([]byte, size)
	_, _ = rand.Read(sent)
	want := sha256.Sum256(sent)
	for _, protocol := range protocols {
		arrived := make(chan []byte, 1)
		at := listen(t, func(c net.Conn) {
			var both sync.WaitGroup
			both.Go(func() {
				_, _ = c.Write(sent)
				_ = c.(*net.TCPConn).CloseWrite()
			})
			h := sha256.New()
			_, _ = io.Copy(h, c)
			both.Wait()
			arrived <- h.Sum(nil)
		})
		p := proxytest.Start(t, proxytest.Options{Protocol: protocol, Hosts: map[string]string{"shop.example:443": at}})
		g := start(t, trust(p), through(t, p))
		conn, in := g.open()
		var both sync.WaitGroup
		both.Go(func() {
			_, _ = conn.Write(sent)
			_ = conn.CloseWrite()
		})
		h := sha256.New()
		n, err := io.Copy(h, in)
		both.Wait()
		if err != nil || !bytes.Equal(h.Sum(nil), want[:]) {
			t.Errorf("%v: %d bytes came back, %v", protocol, n, err)
		}
		if !bytes.Equal(<-arrived, want[:]) {
			t.Errorf("%v: something else arrived", protocol)
		}
		eventually(t, "the tunnel is no more", func() bool { return g.Stats.Tunnels.Load() == 0 })
		if up, down := g.Stats.Up.Load(), g.Stats.Down.Load(); up != size || down != size {
			t.Errorf("%v: counted %d up, %d down", protocol, up, down)
		}
	}
}

// Who has ended his direction still gets the other one, for as long as something comes.
func TestHalfClose(t *testing.T) {
	at := listen(t, func(c net.Conn) {
		_, _ = io.Copy(io.Discard, c)
		for range 20 {
			_, _ = io.WriteString(c, "x")
			time.Sleep(10 * time.Millisecond)
		}
	})
	g, _ := tunnelTo(t, at, func(o *forward.Options) { o.Limits.HalfClose = 2 * time.Second })
	conn, in := g.open()
	_ = conn.CloseWrite()
	if got, err := io.ReadAll(in); err != nil || len(got) != 20 {
		t.Errorf("got %q, %v", got, err)
	}
}

// A tunnel in which nothing comes ends, and one of which one direction has ended sooner;
// one in which something comes in either direction does not.
func TestIdleTunnels(t *testing.T) {
	hold := make(chan struct{})
	at := listen(t, func(c net.Conn) {
		_, _ = io.Copy(io.Discard, c)
		<-hold
	})
	defer close(hold)
	for name, c := range map[string]struct {
		limits forward.Limits
		half   bool
	}{
		"idle":       {forward.Limits{Idle: 400 * time.Millisecond}, false},
		"half close": {forward.Limits{Idle: time.Hour, HalfClose: 400 * time.Millisecond}, true},
		"total":      {forward.Limits{Total: 400 * time.Millisecond}, false},
	} {
		t.Run(name, func(t *testing.T) {
			g, r := tunnelTo(t, at, func(o *forward.Options) { o.Limits = c.limits })
			conn, in := g.open()
			begin := time.Now()
			if c.half {
				_ = conn.CloseWrite()
			}
			_, err := in.ReadByte()
			if took := time.Since(begin); err == nil || errors.Is(err, os.ErrDeadlineExceeded) || took < 300*time.Millisecond {
				t.Errorf("it ends after %v: %v", took, err)
			}
			eventually(t, "the proxy is released", func() bool { return r.proxies[0].held.Load() == 0 })
		})
	}
	t.Run("busy", func(t *testing.T) {
		g, _ := tunnelTo(t, echo(t), func(o *forward.Options) { o.Limits.Idle = time.Second })
		conn, in := g.open()
		for begin := time.Now(); time.Since(begin) < 3*time.Second; time.Sleep(50 * time.Millisecond) {
			if _, err := io.WriteString(conn, "x"); err != nil {
				t.Fatal(err)
			}
			if _, err := in.ReadByte(); err != nil {
				t.Fatalf("after %v: %v", time.Since(begin), err)
			}
		}
	})
	t.Run("one direction only", func(t *testing.T) {
		at := listen(t, func(c net.Conn) {
			for range 60 {
				if _, err := io.WriteString(c, "x"); err != nil {
					return
				}
				time.Sleep(50 * time.Millisecond)
			}
		})
		g, _ := tunnelTo(t, at, func(o *forward.Options) { o.Limits.Idle = time.Second })
		_, in := g.open()
		if got, err := io.ReadAll(in); err != nil || len(got) != 60 {
			t.Errorf("%d bytes, %v", len(got), err)
		}
	})
}

// A side that breaks off takes the other one along, and the proxy is released.
func TestBrokenTunnels(t *testing.T) {
	for _, who := range []string{"client", "target"} {
		ended := make(chan error, 1)
		at := listen(t, func(c net.Conn) {
			if who == "target" {
				_, _ = c.Read(make([]byte, 1))
				_ = c.(*net.TCPConn).SetLinger(0)
				ended <- nil
				return
			}
			_, err := io.Copy(io.Discard, c)
			ended <- err
		})
		// Without a proxy between, which would make an end of it.
		allow, err := target.Compile(&controlplanev1.TargetPolicy{AllowPrivate: true, AllowPorts: []uint32{uint32(addrPort(t, at).Port())}}, target.Own{})
		if err != nil {
			t.Fatal(err)
		}
		g := start(t, nil, &rule{Routing: worker.Routing{Name: "direct", OnUnavailable: direct, Policy: allow}})
		conn := g.dial()
		in := bufio.NewReader(conn)
		if got := talk(t, conn, in, http.MethodConnect, "CONNECT "+at+" HTTP/1.1\r\nHost: x\r\n\r\n"); got.status != 200 {
			t.Fatalf("CONNECT is answered %+v", got)
		}
		_, _ = io.WriteString(conn, "x")
		if who == "client" {
			_ = conn.SetLinger(0)
			_ = conn.Close()
		} else if _, err := in.ReadByte(); err == nil {
			t.Error("a byte comes from nowhere")
		}
		select {
		case <-ended:
		case <-time.After(patience):
			t.Errorf("the %s breaks off, and the target does not learn it", who)
		}
		eventually(t, "the tunnel is no more", func() bool { return g.Stats.Tunnels.Load() == 0 })
	}
}

// A drain: connections without a request end first, a request that runs is answered and its
// connection closed, a tunnel goes on until the limit and is then cut.
func TestDrain(t *testing.T) {
	gate := make(chan struct{})
	slow := proxytest.Start(t, proxytest.Options{Protocol: httpProxy, Talk: func(c net.Conn) {
		r := bufio.NewReader(c)
		q, err := http.ReadRequest(r)
		if err != nil {
			return
		}
		if q.Method == http.MethodConnect {
			_, _ = io.WriteString(c, "HTTP/1.1 200 OK\r\n\r\n")
			_, _ = io.Copy(c, r)
			return
		}
		<-gate
		_, _ = io.WriteString(c, ok)
	}})
	r := through(t, slow)
	g := start(t, nil, r)
	idle := g.dial()
	running := g.dial()
	if _, err := io.WriteString(running, getShop); err != nil {
		t.Fatal(err)
	}
	tunnel, through := g.open()
	eventually(t, "a request and a tunnel run", func() bool { return r.proxies[0].begun.Load() == 2 && g.Stats.Connections.Load() == 3 })
	const limit = 2 * time.Second
	done := make(chan time.Duration)
	begin := time.Now()
	_ = g.listener.Close()
	go func() {
		g.Drain(limit)
		done <- time.Since(begin)
	}()
	if got, err := io.ReadAll(idle); err != nil || len(got) > 0 {
		t.Errorf("an idle connection gets %q, %v", got, err)
	}
	if _, err := io.WriteString(tunnel, "x"); err != nil {
		t.Error(err)
	}
	if b, err := through.ReadByte(); err != nil || b != 'x' {
		t.Errorf("the tunnel gives %q, %v", b, err)
	}
	// Who has a request under way is told with its answer, once its moment has come: in the
	// first quarter, which nothing shows from outside.
	time.Sleep(time.Until(begin.Add(limit * 3 / 8)))
	close(gate)
	after := bufio.NewReader(running)
	if got := listenTo(t, after, http.MethodGet, getShop); got.status != 200 || !got.close {
		t.Errorf("the request that ran is answered %+v, want 200 and that the connection closes", got)
	}
	if rest, err := io.ReadAll(after); err != nil || len(rest) > 0 {
		t.Errorf("then comes %q, %v", rest, err)
	}
	_, err := through.ReadByte()
	if err == nil || !errors.Is(err, io.EOF) && !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("the tunnel ends with %v", err)
	}
	if took := <-done; took < limit/2 || took > patience {
		t.Errorf("it took %v, of which %v were allowed", took, limit)
	}
}
