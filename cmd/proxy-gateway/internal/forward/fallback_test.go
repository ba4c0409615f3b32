package forward_test

import (
	"bufio"
	"fmt"
	"io"
	"net/http"
	"net/netip"
	"strings"
	"testing"

	"github.com/dodona-project/dodona/cmd/proxy-gateway/internal/forward"
	controlplanev1 "github.com/dodona-project/dodona/proto/controlplane/v1"
	"github.com/dodona-project/dodona/sdk/worker"
	"github.com/dodona-project/dodona/sdk/worker/target"
)

// TestDirectByWhatHolds: a request that found its routing, and then no proxy because the
// snapshot has ended or another one says otherwise, does not go without one.
func TestDirectByWhatHolds(t *testing.T) {
	at := origin(t, func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "direct") })
	port := addrPort(t, at).Port()
	policy, err := target.Compile(&controlplanev1.TargetPolicy{AllowPrivate: true, AllowPorts: []uint32{uint32(port)}}, target.Own{})
	if err != nil {
		t.Fatal(err)
	}
	names := &resolver{answer: func(int, string) []netip.Addr { return addresses("127.0.0.1") }}
	routing := func(name string, on controlplanev1.OnUnavailable) *rule {
		return &rule{Routing: worker.Routing{Name: name, OnUnavailable: on, Policy: policy}}
	}
	for _, c := range []struct {
		name, token string
		next        func(*routes) // while the request looks for a proxy; nil = nothing
		want        int
	}{
		{"as it was", "", nil, 200},
		{"the same again", "", func(v *routes) { v.set(routing("r", direct)) }, 200},
		{"it has ended", "destination_unavailable", func(v *routes) { v.rules.Store(nil) }, 503},
		{"not directly any more", "connection_limit_reached", func(v *routes) { v.set(routing("r", fail)) }, 503},
		{"another routing", "connection_limit_reached", func(v *routes) { v.set(routing("s", direct)) }, 503},
		{"no routing", "connection_limit_reached", func(v *routes) { v.set() }, 503},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := routing("r", direct)
			g := start(t, func(o *forward.Options) { o.Direct.Resolver = names }, r)
			asked := 0
			r.match = func(*worker.Request) bool {
				if asked++; asked == 1 && c.next != nil {
					c.next(g.view)
				}
				return true
			}
			conn := g.dial()
			got := talk(t, conn, bufio.NewReader(conn), http.MethodGet, fmt.Sprintf("GET http://shop.example:%d/ HTTP/1.1\r\nHost: x\r\n\r\n", port))
			if got.status != c.want {
				t.Errorf("answered %+v, want %d", got, c.want)
			}
			if went := g.Stats.Direct.Load() == 1; went != (c.want == 200) {
				t.Errorf("it went without a proxy: %v", went)
			}
			if token := got.header.Get("Proxy-Status"); c.token != "" && !strings.HasPrefix(token, "proxy-gateway; error="+c.token) {
				t.Errorf("its status is %q, want %s", token, c.token)
			}
		})
	}
}
