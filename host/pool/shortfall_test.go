package pool_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	controlplanev1 "github.com/dodona-project/dodona/proto/controlplane/v1"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/dodona-project/dodona/host/pool"
	"github.com/dodona-project/dodona/host/pool/ownership"
	"github.com/dodona-project/dodona/host/pool/secret"
	"github.com/dodona-project/dodona/host/refusal"
)

// TestShortfallOfAKind: what is taken from workers for an extraction is what it asked
// for: of its protocol, of any of its upstreams, and lasting for as long as it wants.
func TestShortfallOfAKind(t *testing.T) {
	const others = 4
	for name, tc := range map[string]struct {
		list string // of the one proxy that will do
		into string
		ttl  time.Duration
		req  *controlplanev1.ExtractRequest
	}{
		"a protocol":                  {"socks5://192.0.2.99:1080", "dc", 30 * time.Minute, &controlplanev1.ExtractRequest{Upstream: "dc", Protocol: controlplanev1.Proxy_PROTOCOL_SOCKS5}},
		"a protocol of any upstream":  {"192.0.2.99:1080", "spare", 6 * time.Hour, &controlplanev1.ExtractRequest{Routing: "all", Protocol: controlplanev1.Proxy_PROTOCOL_SOCKS5}},
		"one that lasts long enough":  {"192.0.2.99:1080", "dc", 6 * time.Hour, &controlplanev1.ExtractRequest{Upstream: "dc", MinRemaining: durationpb.New(3 * time.Hour)}},
		"one of any of the upstreams": {"192.0.2.99:1080", "spare", 6 * time.Hour, &controlplanev1.ExtractRequest{Routing: "all", MinRemaining: durationpb.New(3 * time.Hour)}},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			w.add("dc", others) // HTTP, for an hour
			_, err := w.p.Import(w.ctx, operator, &controlplanev1.ImportProxiesRequest{Upstream: tc.into, List: tc.list, Ttl: durationpb.New(tc.ttl)})
			w.must(err)
			wanted := ""
			for id, s := range w.proxies() {
				if s.Proxy.Host == "192.0.2.99" {
					wanted = id
				}
			}
			w.find(ownership.Available, wanted)
			x := w.join("w1")
			w.allocate()
			x.accept(x.until("with all proxies", func(s *controlplanev1.WorkerSnapshot) bool { return len(s.Proxies) == others+1 }))
			x.report()
			tc.req.IdempotencyKey, tc.req.Count = fmt.Sprint("key of ", name), 1
			_, err = w.p.Extract(w.ctx, operator, tc.req)
			refusedAs(t, "all are owned", err, refusal.Exhausted)
			w.allocate()
			x.accept(x.until("with one proxy fewer", func(s *controlplanev1.WorkerSnapshot) bool { return len(s.Proxies) == others }))
			x.report()
			w.allocate() // it is not given out again
			got, err := w.p.Extract(w.ctx, operator, tc.req)
			w.must(err)
			if len(got.Proxies) != 1 || got.Proxies[0].Proxy.ProxyId != wanted {
				t.Errorf("extracted are %v", got)
			}
			if n := len(w.owned("w1")); n != others {
				t.Errorf("the worker has %d proxies left, want %d", n, others)
			}
		})
	}
}

// TestExtractWithoutCredentials: a host that does not have the credentials of what is
// free says so, and takes nothing from workers for it.
func TestExtractWithoutCredentials(t *testing.T) {
	w := newWorld(t)
	v := &vault{held: map[string]secret.Credential{}}
	v.put(t, "file:dc", 0, "first")
	has := w.host("h2", func(o *pool.Options) { o.Secrets = v })
	w.p = w.host("h1", func(o *pool.Options) { o.Secrets = &vault{held: map[string]secret.Credential{}} })
	w.publish(strings.Replace(document, "ttl: 1h", "ttl: 1h\n    secretRef: file:dc\n    extractReserve: 2", 1))
	w.add("dc", 6)
	x := w.join("w1")
	w.allocate()
	if n := len(w.owned("w1")); n != 4 {
		t.Fatalf("the worker has %d proxies", n)
	}
	x.accept(x.next())
	x.report()
	req := &controlplanev1.ExtractRequest{IdempotencyKey: "k", Upstream: "dc", Count: 2}
	_, err := w.p.Extract(w.ctx, operator, req)
	refusedAs(t, "of a host without the credentials", err, refusal.Unavailable)
	w.allocate()
	drains := 0
	for _, e := range w.chain() {
		if e.Kind == "pool.drain" {
			drains++
		}
	}
	if drains > 0 || len(w.owned("w1")) != 4 {
		t.Errorf("%d drains were begun, and the worker has %d proxies", drains, len(w.owned("w1")))
	}
	got, err := has.Extract(w.ctx, operator, req)
	w.must(err)
	if len(got.Proxies) != 2 || got.Shortfall != 0 {
		t.Errorf("of the host that has them: %v", got)
	}
}
