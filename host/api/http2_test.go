package api_test

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	donav1 "github.com/dodona-project/dodona/proto/dona/v1"
	"github.com/spiffe/go-spiffe/v2/spiffeid"
	"github.com/spiffe/go-spiffe/v2/spiffetls/tlsconfig"
	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/peer"
	"google.golang.org/protobuf/proto"

	"github.com/dodona-project/dodona/host/api"
	"github.com/dodona-project/dodona/host/identity"
	"github.com/dodona-project/dodona/sdk/dona/svidtest"
)

// frames is a client that sends any frames it likes over mTLS.
type frames struct {
	t      *testing.T
	conn   net.Conn
	framer *http2.Framer
	block  bytes.Buffer
	encode *hpack.Encoder
}

func (e *edge) frames(src api.Identity) *frames {
	e.t.Helper()
	c := tlsconfig.MTLSClientConfig(src, src, tlsconfig.AuthorizeID(spiffeid.RequireFromString("spiffe://"+domain+"/host/h1")))
	c.NextProtos = []string{"h2"}
	plain, err := net.Dial("tcp", e.address)
	fatal(e.t, err)
	return framesOver(e.t, tls.Client(plain, c))
}

func framesOver(t *testing.T, conn net.Conn) *frames {
	t.Helper()
	r := &frames{t: t, conn: conn}
	t.Cleanup(func() { _ = r.conn.Close() })
	fatal(t, r.conn.SetDeadline(time.Now().Add(patience)))
	_, err := io.WriteString(r.conn, http2.ClientPreface)
	fatal(t, err)
	r.framer = http2.NewFramer(r.conn, r.conn)
	r.framer.ReadMetaHeaders = hpack.NewDecoder(4096, nil)
	r.encode = hpack.NewEncoder(&r.block)
	fatal(t, r.framer.WriteSettings())
	return r
}

// headers encodes a request's header block.
func (r *frames) headers(path string, more ...hpack.HeaderField) []byte {
	r.block.Reset()
	for _, f := range append([]hpack.HeaderField{{Name: ":method", Value: "POST"}, {Name: ":scheme", Value: "https"}, {Name: ":path", Value: path},
		{Name: ":authority", Value: "host"}, {Name: "content-type", Value: "application/grpc"}, {Name: "te", Value: "trailers"}}, more...) {
		fatal(r.t, r.encode.WriteField(f))
	}
	return bytes.Clone(r.block.Bytes())
}

// call sends a whole call with one message.
func (r *frames) call(stream uint32, path string, message proto.Message) error {
	body, err := proto.Marshal(message)
	fatal(r.t, err)
	framed := binary.BigEndian.AppendUint32([]byte{0}, uint32(len(body)))
	if err := r.framer.WriteHeaders(http2.HeadersFrameParam{StreamID: stream, BlockFragment: r.headers(path), EndHeaders: true}); err != nil {
		return err
	}
	return r.framer.WriteData(stream, true, append(framed, body...))
}

// status reads on until the call's status is there: "status <grpc-status>", or
// "closed" when the host has hung up or ended the stream.
func (r *frames) status(stream uint32) string {
	for {
		f, err := r.framer.ReadFrame()
		if err != nil {
			return "closed"
		}
		switch f := f.(type) {
		case *http2.SettingsFrame:
			if !f.IsAck() {
				_ = r.framer.WriteSettingsAck()
			}
		case *http2.GoAwayFrame:
			return "closed"
		case *http2.RSTStreamFrame:
			if f.StreamID == stream {
				return "closed"
			}
		case *http2.MetaHeadersFrame:
			if f.StreamID != stream || !f.StreamEnded() {
				continue
			}
			code := ""
			for _, h := range f.RegularFields() {
				if h.Name == "grpc-status" {
					code = h.Value
				}
			}
			return "status " + code
		}
	}
}

// drain reads and throws away until the host hangs up or the connection is closed here.
func (r *frames) drain() (over chan struct{}) {
	over = make(chan struct{})
	go func() {
		defer close(over)
		_, _ = io.Copy(io.Discard, r.conn)
	}()
	return over
}

// running counts the handlers of each connection: now, and the most there were at once.
type running struct {
	mu        sync.Mutex
	now, most map[string]int
}

func (r *running) begin(c context.Context) (end func()) {
	p, _ := peer.FromContext(c)
	at := p.Addr.String()
	r.mu.Lock()
	defer r.mu.Unlock()
	r.now[at]++
	r.most[at] = max(r.most[at], r.now[at])
	return func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		if r.now[at]--; r.now[at] == 0 {
			delete(r.now, at)
		}
	}
}

// of is what there is of one client's connection.
func (r *running) of(c *frames) (now, most int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	at := c.conn.LocalAddr().String()
	return r.now[at], r.most[at]
}

func (r *running) all() (now, ever int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.now), len(r.most)
}

// besieged is a secured edge whose handlers are counted.
func besieged(t *testing.T, ca *svidtest.CA) (*edge, *running) {
	r := &running{now: map[string]int{}, most: map[string]int{}}
	return secured(t, ca, func(o *api.Options) {
		o.Interceptors = []grpc.ServerOption{
			grpc.ChainUnaryInterceptor(func(c context.Context, req any, _ *grpc.UnaryServerInfo, h grpc.UnaryHandler) (any, error) {
				defer r.begin(c)()
				return h(c, req)
			}),
			grpc.ChainStreamInterceptor(func(srv any, s grpc.ServerStream, _ *grpc.StreamServerInfo, h grpc.StreamHandler) error {
				defer r.begin(s.Context())()
				return h(srv, s)
			}),
		}
	}), r
}

// healthy demands that the host answers others, and that its handlers are over.
func (e *edge) healthy(src api.Identity, r *running) {
	e.t.Helper()
	conn := e.as(mtls(src))
	_, err := grpc_health_v1.NewHealthClient(conn).Check(ctx(e.t), &grpc_health_v1.HealthCheckRequest{})
	fatal(e.t, err)
	_ = conn.Close()
	eventually(e.t, "no handler is left", func() bool { now, _ := r.all(); return now == 0 })
}

// TestPaths: a path that is not exactly a method's reaches no handler, whoever asks.
func TestPaths(t *testing.T) {
	ca := svidtest.NewCA(t, domain)
	e, r := besieged(t, ca)
	admin := ca.Source("/admin/ann")
	flag := flagRule(func(*donav1.FlagRule) {})
	good := donav1.ControlPlane_SetFlag_FullMethodName
	for name, path := range map[string]string{
		"no slash":       strings.TrimPrefix(good, "/"),
		"two slashes":    "/" + good,
		"slash between":  strings.Replace(good, "/SetFlag", "//SetFlag", 1),
		"slash at end":   good + "/",
		"escaped":        strings.Replace(good, "/SetFlag", "%2fSetFlag", 1),
		"escaped letter": strings.Replace(good, "SetFlag", "%53etFlag", 1),
		"upper case":     strings.ToUpper(good),
		"lower case":     strings.ToLower(good),
		"unknown":        "/dona.v1.ControlPlane/Nope",
		"no service":     "/SetFlag",
		"a query":        good + "?a=b",
		"dots":           "/dona.v1.ControlPlane/../dona.v1.ControlPlane/SetFlag",
		"NUL":            good + "\x00",
		"nothing":        "",
		"a star":         "*",
		"a whole URL":    "https://host" + good,
	} {
		c := e.frames(admin)
		fatal(t, c.call(1, path, flag))
		if got := c.status(1); got == "status 0" {
			t.Errorf("%s: %q was served", name, path)
		} else {
			t.Logf("%s: %s", name, got)
		}
		_ = c.conn.Close()
	}
	if _, n := r.all(); n != 0 {
		t.Errorf("calls of %d connections reached a handler", n)
	}
	c := e.frames(admin)
	fatal(t, c.call(1, good, flag))
	if got := c.status(1); got != "status 0" {
		t.Errorf("the method itself: %s", got)
	}
}

// TestFloods: what a client with an identity can throw at the host costs the others
// nothing, and leaves nothing.
func TestFloods(t *testing.T) {
	ca := svidtest.NewCA(t, domain)
	e, r := besieged(t, ca)
	web := ca.Source("/svc/web")
	watch := &donav1.WatchConfigRequest{Service: "web"}
	path := donav1.ControlPlane_WatchConfig_FullMethodName
	for _, flood := range []struct {
		name string
		send func(c *frames) error
		held int // handlers that it keeps while the others are served
	}{
		{"rapid reset", func(c *frames) error {
			for i := range uint32(10_000) {
				if err := c.call(2*i+1, path, watch); err != nil {
					return err
				}
				if err := c.framer.WriteRSTStream(2*i+1, http2.ErrCodeCancel); err != nil {
					return err
				}
			}
			return nil
		}, 0},
		{"too many streams", func(c *frames) error {
			for i := range uint32(2_000) {
				if err := c.call(2*i+1, path, watch); err != nil {
					return err
				}
			}
			return nil
		}, 250},
		{"pings", func(c *frames) error {
			for range 100_000 {
				if err := c.framer.WritePing(false, [8]byte{}); err != nil {
					return err
				}
			}
			return nil
		}, 0},
		{"settings", func(c *frames) error {
			for i := range uint32(100_000) {
				if err := c.framer.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: i}); err != nil {
					return err
				}
			}
			return nil
		}, 0},
		{"continuations", func(c *frames) error {
			if err := c.framer.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: c.headers(path)}); err != nil {
				return err
			}
			for i := range 20_000 {
				c.block.Reset()
				fatal(c.t, c.encode.WriteField(hpack.HeaderField{Name: fmt.Sprint("x-", i), Value: strings.Repeat("v", 500)}))
				if err := c.framer.WriteContinuation(1, false, c.block.Bytes()); err != nil {
					return err
				}
			}
			return nil
		}, 0},
		{"a header of 1 MiB", func(c *frames) error {
			block := c.headers(path, hpack.HeaderField{Name: "x", Value: strings.Repeat("v", 1<<20)})
			first, rest := block[:1<<14], block[1<<14:]
			if err := c.framer.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: first}); err != nil {
				return err
			}
			for len(rest) > 0 {
				n := min(len(rest), 1<<14)
				if err := c.framer.WriteContinuation(1, n == len(rest), rest[:n]); err != nil {
					return err
				}
				rest = rest[n:]
			}
			return nil
		}, 0},
		{"no window for ever", func(c *frames) error {
			if err := c.framer.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 0}); err != nil {
				return err
			}
			for i := range uint32(200) {
				if err := c.call(2*i+1, path, watch); err != nil {
					return err
				}
			}
			return nil
		}, 200},
		{"nothing after the preface", func(*frames) error { return nil }, 0},
	} {
		t.Run(flood.name, func(t *testing.T) {
			before, begin := memory(), time.Now()
			c := e.frames(web)
			over := c.drain()
			err := flood.send(c)
			if flood.held > 0 {
				eventually(t, "it holds its handlers", func() bool { now, _ := r.of(c); return now == flood.held })
			}
			_, most := r.of(c)
			t.Logf("sent for %s: %v; at most %d handlers at once", time.Since(begin).Round(time.Millisecond), err, most)
			// While it holds its connection, another one is served.
			conn := e.as(mtls(ca.Source("/svc/api")))
			_, err = grpc_health_v1.NewHealthClient(conn).Check(ctx(t), &grpc_health_v1.HealthCheckRequest{})
			fatal(t, err)
			_ = conn.Close()
			_ = c.conn.Close()
			<-over
			e.healthy(ca.Source("/svc/db"), r)
			if _, most := r.of(c); most > 250 {
				t.Errorf("%d handlers ran at once, more than one connection may have", most)
			}
			calm := time.Now()
			eventually(t, "the processor is free again", func() bool { return busy(300*time.Millisecond) < 0.5 })
			t.Logf("free again after %s", time.Since(calm).Round(time.Millisecond))
			var left uint64
			for range 200 { // what was allocated goes with the next collections
				if left = memory(); left < before+32<<20 {
					break
				}
				time.Sleep(10 * time.Millisecond)
			}
			if left >= before+32<<20 {
				t.Errorf("%d MiB are left in use", (left-before)>>20)
			}
		})
	}
}

// TestBootstrapFloods: nobody needs an identity to come to the bootstrap listener, so
// what is thrown at it must not keep others from their tokens' worth, and leave nothing.
func TestBootstrapFloods(t *testing.T) {
	e := newEdge(t, withIssuer(identity.Options{TTL: time.Hour, MinTTL: time.Minute}))
	address := e.bootstrapAddress()
	guess := &donav1.IssueSvidRequest{BootstrapToken: "guess", Service: "web", CsrPem: newCSR(t)}
	path := donav1.Identity_IssueSvid_FullMethodName
	for name, send := range map[string]func(c *frames) error{
		"rapid reset": func(c *frames) error {
			for i := range uint32(10_000) {
				if err := errors.Join(c.call(2*i+1, path, guess), c.framer.WriteRSTStream(2*i+1, http2.ErrCodeCancel)); err != nil {
					return err
				}
			}
			return nil
		},
		"pings": func(c *frames) error {
			for range 100_000 {
				if err := c.framer.WritePing(false, [8]byte{}); err != nil {
					return err
				}
			}
			return nil
		},
		"continuations": func(c *frames) error {
			if err := c.framer.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: c.headers(path)}); err != nil {
				return err
			}
			block := bytes.Repeat([]byte{0x40, 1, 'x', 1, 'v'}, 3000)
			for range 10_000 {
				if err := c.framer.WriteContinuation(1, false, block); err != nil {
					return err
				}
			}
			return nil
		},
		"odd paths": func(c *frames) error {
			for i, path := range []string{"", "*", "dona.v1.Identity/IssueSvid", "//dona.v1.Identity/IssueSvid", "/dona.v1.Identity/%49ssueSvid", donav1.HostAdmin_CreateToken_FullMethodName} {
				if err := c.call(uint32(2*i+1), path, guess); err != nil {
					return err
				}
				if got := c.status(uint32(2*i + 1)); got != "status 12" && got != "closed" {
					c.t.Errorf("%q: %s", path, got)
				} else if got == "closed" {
					return nil
				}
			}
			return nil
		},
		"nothing after the preface": func(*frames) error { return nil },
	} {
		t.Run(name, func(t *testing.T) {
			before := memory()
			plain, err := (&net.Dialer{LocalAddr: &net.TCPAddr{IP: net.IPv4(127, 0, 0, 2)}}).Dial("tcp", address)
			fatal(t, err)
			c := framesOver(t, plain)
			over := make(chan struct{})
			if name == "odd paths" {
				close(over) // it reads the answers itself
			} else {
				over = c.drain()
			}
			t.Logf("sent: %v", send(c))
			token, err := e.admin.CreateToken(ctx(t), &donav1.CreateTokenRequest{Service: "checkout"})
			fatal(t, err)
			conn, err := grpc.NewClient(address, grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithUnaryInterceptor(patient))
			fatal(t, err)
			_, err = donav1.NewIdentityClient(conn).IssueSvid(ctx(t), &donav1.IssueSvidRequest{BootstrapToken: token.Token, CsrPem: newCSR(t)})
			fatal(t, err)
			_ = conn.Close()
			_ = c.conn.Close()
			<-over
			eventually(t, "memory is given back", func() bool { return memory() < before+32<<20 })
		})
	}
}

// memory is what is in use after a collection.
func memory() uint64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapInuse + m.StackInuse
}

// busy is how much of a processor this process uses.
func busy(during time.Duration) float64 {
	used := func() time.Duration {
		var u syscall.Rusage
		_ = syscall.Getrusage(syscall.RUSAGE_SELF, &u)
		return time.Duration(u.Utime.Nano() + u.Stime.Nano())
	}
	before, begin := used(), time.Now()
	time.Sleep(during)
	return float64(used()-before) / float64(time.Since(begin))
}
