// Package talk serves the probes' tests: a server on loopback that does with each
// connection what a test says, so that a target can be as bad as it likes.
package talk

import (
	"io"
	"net"
	"testing"
	"time"
)

// Serve calls with for one connection after the other and closes each after it. The
// server ends with the test, or with stop.
func Serve(t *testing.T, with func(c net.Conn)) (address string, stop func()) {
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
			with(c)
			_ = c.Close()
		}
	}()
	stop = func() { _ = l.Close(); <-done }
	t.Cleanup(stop)
	return l.Addr().String(), stop
}

// Endless writes a text again and again until the other side has had enough, and
// returns how many bytes that were.
func Endless(c net.Conn, text string, pause time.Duration) (n int) {
	for {
		wrote, err := io.WriteString(c, text)
		n += wrote
		if err != nil {
			return n
		}
		if pause > 0 {
			time.Sleep(pause)
		}
	}
}
