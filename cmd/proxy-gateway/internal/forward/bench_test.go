package forward_test

import (
	"bufio"
	"io"
	"net"
	"net/http"
	"os"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/dodona-project/dodona/sdk/worker/proxytest"
)

// cpu is the processor's time that this process has used.
func cpu(b *testing.B) time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// perRequest reports the time of all sides together: client, gateway and upstream are one
// process here. What the gateway alone takes is measured beside its peers, in processes.
func perRequest(b *testing.B, before time.Duration) {
	b.ReportMetric(float64(cpu(b)-before)/float64(b.N), "cpu-ns/op")
}

// parrot is an upstream that answers each head with the same 1 KiB, at the least cost.
func parrot(b *testing.B) *proxytest.Server {
	answer := []byte("HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: 1024\r\n\r\n" + strings.Repeat("x", 1024))
	return proxytest.Start(b, proxytest.Options{Protocol: httpProxy, Talk: func(c net.Conn) {
		buf := make([]byte, 4096)
		for {
			if _, err := c.Read(buf); err != nil {
				return
			}
			if _, err := c.Write(answer); err != nil {
				return
			}
		}
	}})
}

// BenchmarkRequest is a keep-alive request in absolute form for 1 KiB.
func BenchmarkRequest(b *testing.B) {
	p := parrot(b)
	r := through(b, p)
	g := start(b, nil, r)
	conn := g.dial()
	_ = conn.SetDeadline(time.Time{})
	request := []byte("GET http://shop.example/path/to/a/thing?with=query HTTP/1.1\r\nHost: shop.example\r\nUser-Agent: bench/1.0\r\nAccept: */*\r\nAccept-Encoding: gzip\r\nConnection: keep-alive\r\n\r\n")
	buf := make([]byte, 4096)
	b.ReportAllocs()
	before := cpu(b)
	for b.Loop() {
		if _, err := conn.Write(request); err != nil {
			b.Fatal(err)
		}
		for got := 0; got < 1024; {
			n, err := conn.Read(buf)
			if err != nil {
				b.Fatal(err)
			}
			got += n
		}
	}
	perRequest(b, before)
}

// BenchmarkTunnelExchange is 1 KiB there and back inside a tunnel.
func BenchmarkTunnelExchange(b *testing.B) {
	g, _ := tunnelTo(b, echo(b), nil)
	conn, _ := g.open()
	_ = conn.SetDeadline(time.Time{})
	buf := make([]byte, 1024)
	b.ReportAllocs()
	before := cpu(b)
	for b.Loop() {
		if _, err := conn.Write(buf); err != nil {
			b.Fatal(err)
		}
		if _, err := io.ReadFull(conn, buf); err != nil {
			b.Fatal(err)
		}
	}
	perRequest(b, before)
}

// BenchmarkConnect is a new connection, a CONNECT and a request inside.
func BenchmarkConnect(b *testing.B) {
	p := proxytest.Start(b, proxytest.Options{Protocol: httpProxy, Talk: func(c net.Conn) {
		buf := make([]byte, 4096)
		for _, answer := range []string{"HTTP/1.1 200 OK\r\n\r\n", "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"} {
			if _, err := c.Read(buf); err != nil {
				return
			}
			_, _ = io.WriteString(c, answer)
		}
		_, _ = c.Read(buf)
	}})
	g := start(b, nil, through(b, p))
	b.ReportAllocs()
	before := cpu(b)
	buf := make([]byte, 4096)
	for b.Loop() {
		conn, err := net.Dial("tcp", g.address)
		if err != nil {
			b.Fatal(err)
		}
		for _, text := range []string{connectShop, "GET / HTTP/1.1\r\nHost: shop.example\r\n\r\n"} {
			if _, err := io.WriteString(conn, text); err != nil {
				b.Fatal(err)
			}
			if _, err := conn.Read(buf); err != nil {
				b.Fatal(err)
			}
		}
		_ = conn.Close()
	}
	perRequest(b, before)
}

// idleTunnels is how many tunnels the memory of one is measured by. Each has six
// descriptors in this process, of which two are the gateway's.
const idleTunnels = 2000

// TestMemoryOfIdleTunnels opens tunnels, leaves them alone, and holds what one takes in heap
// and stacks against a limit. The client's and the upstream's sides are ready beforehand
// and of system calls only, so that the gateway's is nearly all that grows.
func TestMemoryOfIdleTunnels(t *testing.T) {
	if raceEnabled {
		t.Skip("the race detector's memory is not ours")
	}
	var limit syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit); err != nil || limit.Cur < 5*idleTunnels {
		t.Skipf("only %d files may be open", limit.Cur)
	}
	// The upstream answers CONNECT and then keeps the connection without a goroutine.
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	far := make([]*os.File, 0, idleTunnels)
	near := make([]*os.File, 0, idleTunnels)
	defer func() {
		for _, f := range append(far, near...) {
			_ = f.Close()
		}
	}()
	s := closedPort(t)
	r := through(t, s)
	at := addrPort(t, l.Addr().String())
	r.proxies[0].at.Port, r.proxies[0].capacity = at.Port(), idleTunnels
	g := start(t, nil, r)
	open := func() {
		t.Helper()
		conn := g.dialRaw()
		_, _ = io.WriteString(conn, connectShop)
		c, err := l.Accept()
		if err != nil {
			t.Fatal(err)
		}
		q, err := http.ReadRequest(bufio.NewReaderSize(c, 256))
		if err != nil || q.Method != http.MethodConnect {
			t.Fatal(err)
		}
		_, _ = io.WriteString(c, "HTTP/1.1 200 OK\r\n\r\n")
		buf := make([]byte, 100)
		if n, err := conn.Read(buf); err != nil || !strings.HasPrefix(string(buf[:n]), "HTTP/1.1 200") {
			t.Fatalf("%q, %v", buf[:n], err)
		}
		for _, one := range []struct {
			c  net.Conn
			to *[]*os.File
		}{{conn, &near}, {c, &far}} {
			f, err := one.c.(*net.TCPConn).File()
			if err != nil {
				t.Fatal(err)
			}
			_ = one.c.Close()
			*one.to = append(*one.to, f)
		}
	}
	for range 100 {
		open()
	}
	heap, stacks := inUse()
	for range idleTunnels - 100 {
		open()
	}
	moreHeap, moreStacks := inUse()
	heap, stacks = (moreHeap-heap)/(idleTunnels-100), (moreStacks-stacks)/(idleTunnels-100)
	each := heap + stacks
	t.Logf("%d bytes for an idle tunnel: %d heap, with the files of its test's sides, and %d stacks", each, heap, stacks)
	if each > 12<<10 {
		t.Errorf("an idle tunnel takes %d bytes: at most 12 KiB are right", each)
	}
}

// inUse is the memory that lives.
func inUse() (heap, stacks uint64) {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc, m.StackInuse
}
