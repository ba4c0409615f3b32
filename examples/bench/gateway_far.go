package main

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"runtime"
	"strings"
	"time"
)

const farEnv = "DODONA_BENCH_FAR"

// farProxies is how many upstream proxies there are, all in one process.
const farProxies = 4

// farOthers is how many more there are for snapshots that change.
const farOthers = 60

// What the far process does is by the host that it is asked for.
const (
	webHost    = "web.example"    // answers each request with 1 KiB
	echoHost   = "echo.example"   // in a tunnel: gives back what comes, until its end
	showHost   = "show.example"   // answers with the request's head as it came here
	authHost   = "auth.example"   // the upstream proxy asks for credentials
	refuseHost = "refuse.example" // the upstream proxy does not lead there
	shortHost  = "short.example"  // the answer breaks off
	lateHost   = "late.example"   // 100, and the answer once the body is there
)

const farBody = 1 << 10

var farAnswer = []byte("HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: 1024\r\n\r\n" + strings.Repeat("x", farBody))

// asFar turns this process into the upstream proxies, which are what they lead to as well:
// they answer by themselves. So nothing but the proxy that is measured costs much.
func asFar() { asReaders(farEnv, serveFar) }

func serveFar(string) error {
	runtime.GOMAXPROCS(1)
	var addresses []string
	for range farProxies + farOthers {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return err
		}
		addresses = append(addresses, l.Addr().String())
		go func() {
			for {
				c, err := l.Accept()
				if err != nil {
					return
				}
				go farConn(c)
			}
		}()
	}
	fmt.Println(strings.Join(addresses, " "))
	_, err := io.Copy(io.Discard, os.Stdin)
	return err
}

// farConn serves one connection, of small requests that come one after the other.
func farConn(c net.Conn) {
	defer func() { _ = c.Close() }()
	buf, n := make([]byte, 4<<10), 0
	for {
		end := bytes.Index(buf[:n], []byte("\r\n\r\n"))
		if end < 0 {
			if n == len(buf) {
				return
			}
			more, err := c.Read(buf[n:])
			if n += more; err != nil {
				return
			}
			continue
		}
		head := buf[:end+4]
		connect := bytes.HasPrefix(head, []byte("CONNECT "))
		host := hostOf(head)
		var err error
		switch {
		case host == authHost:
			_, err = io.WriteString(c, "HTTP/1.1 407 Proxy Authentication Required\r\nProxy-Authenticate: Basic realm=\"up\"\r\nContent-Length: 0\r\n\r\n")
		case host == refuseHost:
			_, err = io.WriteString(c, "HTTP/1.1 403 Forbidden\r\nContent-Length: 0\r\n\r\n")
		case connect:
			_, err = io.WriteString(c, "HTTP/1.1 200 OK\r\n\r\n")
		case host == showHost:
			_, err = fmt.Fprintf(c, "HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s", len(head), head)
		case host == shortHost:
			_, _ = io.WriteString(c, "HTTP/1.1 200 OK\r\nContent-Length: 1024\r\n\r\nx")
			return
		case host == lateHost:
			_, err = io.WriteString(c, "HTTP/1.1 100 Continue\r\n\r\n")
			if err == nil && n == len(head) {
				_, err = c.Read(buf[n:])
			}
			if err == nil {
				_, err = io.WriteString(c, "HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
			}
			n = len(head)
		default:
			_, err = c.Write(farAnswer)
		}
		if err != nil {
			return
		}
		n = copy(buf, buf[len(head):n])
		if connect && host == echoHost {
			farEcho(c, buf, n)
			return
		}
	}
}

// farEcho gives back what comes, and ends when it has.
func farEcho(c net.Conn, buf []byte, n int) {
	for {
		if _, err := c.Write(buf[:n]); err != nil {
			return
		}
		var err error
		if n, err = c.Read(buf); errors.Is(err, io.EOF) {
			_ = c.(*net.TCPConn).CloseWrite()
			// What waits for the other side to close as well does not wait for ever.
			_ = c.SetReadDeadline(time.Now().Add(10 * time.Second))
			_, _ = c.Read(buf)
			return
		} else if err != nil {
			return
		}
	}
}

// hostOf is the host that a request's first line asks for.
func hostOf(head []byte) string {
	_, at, _ := bytes.Cut(head, []byte(" "))
	at = bytes.TrimPrefix(at, []byte("http://"))
	if len(at) == 0 || at[0] == '/' { // no request, or one inside a tunnel
		return ""
	}
	if end := bytes.IndexAny(at, ":/ "); end >= 0 {
		at = at[:end]
	}
	return string(at)
}
