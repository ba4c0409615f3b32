package forward_test

import (
	"bufio"
	"net/http"
	"slices"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/dodona-project/dodona/cmd/proxy-gateway/internal/forward"
	controlplanev1 "github.com/dodona-project/dodona/proto/controlplane/v1"
)

// Clients stay with their proxies for as long as the routing says; when one is gone, the
// client gets another one or learns that it lost it.
func TestStickiness(t *testing.T) {
	answers := slices.Repeat([]string{ok}, 50)
	a, b := scripted(t, answers...), scripted(t, answers...)
	const alice, bob = "YWxpY2U6eA==", "Ym9iOng="
	for _, c := range []struct {
		mode controlplanev1.Stickiness_Mode
		gone int // what a client is answered whose proxy is gone
	}{{controlplanev1.Stickiness_MODE_FAILOVER, 200}, {controlplanev1.Stickiness_MODE_STRICT, 502}} {
		r := through(t, a.Server, b.Server)
		r.Stickiness = &controlplanev1.Stickiness{Mode: c.mode}
		first, second := r.proxies[0], r.proxies[1]
		turned := &rule{Routing: r.Routing, proxies: []*proxy{second, first}}
		g := start(t, func(o *forward.Options) { o.Clients = passwords{"alice": "x", "bob": "x"} }, r)
		get := func(login string) int {
			conn := g.dial()
			return talk(t, conn, bufio.NewReader(conn), http.MethodGet, "GET http://shop.example/ HTTP/1.1\r\nHost: x\r\nProxy-Authorization: Basic "+login+"\r\n\r\n").status
		}
		expect := func(what, login string, status int, by *proxy) {
			t.Helper()
			before := by.picked.Load()
			if got := get(login); got != status || status == 200 && by.picked.Load() != before+1 {
				t.Errorf("%v, %s: answered %d, picked %d and %d times", c.mode, what, got, first.picked.Load(), second.picked.Load())
			}
		}
		expect("alice begins", alice, 200, first)
		g.view.set(turned)
		expect("alice stays", alice, 200, first)
		expect("bob begins", bob, 200, second)
		g.view.set(r)
		expect("bob stays", bob, 200, second)
		g.view.set(&rule{Routing: r.Routing, proxies: []*proxy{first}})
		expect("bob's proxy is gone", bob, c.gone, first)
		expect("bob goes on", bob, 200, first)
		g.view.set(turned)
		expect("bob has another one", bob, 200, first)

		// A proxy that is full is not gone.
		first.capacity = 0
		if got, want := get(bob), map[int]int{200: 200, 502: 503}[c.gone]; got != want {
			t.Errorf("%v, full: answered %d, want %d", c.mode, got, want)
		}
		first.capacity = 1000
		expect("there is room again", bob, 200, first)

		short := &rule{Routing: r.Routing, proxies: []*proxy{second, first}}
		short.Stickiness = &controlplanev1.Stickiness{Mode: c.mode, Idle: durationpb.New(time.Nanosecond)}
		g.view.set(short)
		expect("too long without a use", bob, 200, second)
	}
}

// A strict client whose proxy does not answer is told so; another one is not tried.
func TestStrictDoesNotTryAnother(t *testing.T) {
	a, b := scripted(t, ok, ok), scripted(t, ok, ok)
	r := through(t, a.Server, b.Server)
	r.Stickiness = &controlplanev1.Stickiness{Mode: controlplanev1.Stickiness_MODE_STRICT}
	g := start(t, nil, r)
	get := func() int {
		conn := g.dial()
		return talk(t, conn, bufio.NewReader(conn), http.MethodGet, getShop).status
	}
	if got := get(); got != 200 {
		t.Fatalf("answered %d", got)
	}
	a.Close()
	if got := get(); got != 502 || r.proxies[1].picked.Load() != 0 {
		t.Errorf("answered %d, the other proxy was picked %d times", got, r.proxies[1].picked.Load())
	}
}
