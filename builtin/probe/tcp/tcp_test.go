package tcp_test

import (
	"context"
	"io"
	"net"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/dodona-project/dodona/builtin/probe/internal/reach"
	"github.com/dodona-project/dodona/builtin/probe/internal/talk"
	"github.com/dodona-project/dodona/builtin/probe/tcp"
	controlplanev1 "github.com/dodona-project/dodona/proto/controlplane/v1"
	pluginv1 "github.com/dodona-project/dodona/proto/plugin/v1"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func check(t *testing.T, c tcp.Config, address string, within time.Duration) *pluginv1.CheckReply {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), within)
	defer cancel()
	return tcp.Probe{}.CheckWith(ctx, c, &pluginv1.CheckRequest{EndpointAddress: address})
}

func TestCheck(t *testing.T) {
	const long, short = 20 * time.Second, 500 * time.Millisecond
	echo := func(c net.Conn) {
		buf := make([]byte, 16)
		n, _ := c.Read(buf)
		for i := range n { // a byte at a time
			_, _ = c.Write(buf[i : i+1])
			time.Sleep(time.Millisecond)
		}
	}
	endless := func(c net.Conn) { talk.Endless(c, strings.Repeat("x", 4096), 0) }
	drip := func(c net.Conn) { talk.Endless(c, "x", 20*time.Millisecond) }
	late := func(c net.Conn) {
		_, _ = io.WriteString(c, strings.Repeat("x", reach.MaxBytes-2)+"+PONG")
		_, _ = io.Copy(io.Discard, c)
	}
	last := func(c net.Conn) {
		_, _ = io.WriteString(c, strings.Repeat("x", reach.MaxBytes-5)+"+PONG")
		_, _ = io.Copy(io.Discard, c)
	}
	hangUp := func(net.Conn) {}
	allow := []string{reach.Loopback}
	for _, tc := range []struct {
		name   string
		talk   func(net.Conn)
		config tcp.Config
		class  controlplanev1.ErrorClass // UNSPECIFIED = success
		within time.Duration
	}{
		{"connected", hangUp, tcp.Config{Allow: allow}, 0, long},
		{"an answer", echo, tcp.Config{Send: "+PONG", Expect: "+PONG", Allow: allow}, 0, long},
		{"another answer", echo, tcp.Config{Send: "+PING", Expect: "+PONG", Allow: allow}, controlplanev1.ErrorClass_ERROR_CLASS_PROTOCOL, long},
		{"without end", endless, tcp.Config{Expect: "+PONG", Allow: allow}, controlplanev1.ErrorClass_ERROR_CLASS_PROTOCOL, long},
		{"drips", drip, tcp.Config{Expect: "+PONG", Allow: allow}, controlplanev1.ErrorClass_ERROR_CLASS_TIMEOUT, short},
		{"in the last bytes", last, tcp.Config{Expect: "+PONG", Allow: allow}, 0, long},
		{"one byte too late", late, tcp.Config{Expect: "+PONG", Allow: allow}, controlplanev1.ErrorClass_ERROR_CLASS_PROTOCOL, long},
		{"hangs up", hangUp, tcp.Config{Expect: "+PONG", Allow: allow}, controlplanev1.ErrorClass_ERROR_CLASS_PROTOCOL, long},
	} {
		address, _ := talk.Serve(t, tc.talk)
		r := check(t, tc.config, address, tc.within)
		if good := r.Result == controlplanev1.HealthObservation_RESULT_SUCCESS; good != (tc.class == 0) || r.ErrorClass != tc.class {
			t.Errorf("%s: %v, want %v", tc.name, r, tc.class)
		}
	}
	address, stop := talk.Serve(t, hangUp)
	if r := check(t, tcp.Config{}, address, long); r.Result != controlplanev1.HealthObservation_RESULT_INCONCLUSIVE || r.ErrorClass != controlplanev1.ErrorClass_ERROR_CLASS_POLICY {
		t.Errorf("loopback: %v", r)
	}
	stop()
	if r := check(t, tcp.Config{Allow: allow}, address, long); r.ErrorClass != controlplanev1.ErrorClass_ERROR_CLASS_REFUSED {
		t.Errorf("nobody listens: %v", r)
	}
	if err := (tcp.Probe{}).Configure(t.Context(), tcp.Config{Allow: []string{"x"}}); err == nil {
		t.Error("a class that does not exist is taken")
	}
}
