//go:build faults

package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/dodona-project/dodona/host/spawn"
)

const (
	// goesOn is how soon after a kill a new request is to be answered, for each program and
	// each kind of upstream; on a busy machine a few times as much, and what the program
	// takes there.
	goesOn = time.Second
	busy   = 5
	// paceOf is the time between two requests of a program to an upstream.
	paceOf = 150 * time.Millisecond
)

// asked is a request of a program that was answered, or failed.
type asked struct {
	caller, upstream string
	errand           errand
	gateway          int
	began, ended     time.Time
	reply            reply
	err              error
}

// blow is a kill -9.
type blow struct {
	what     string
	at, gone time.Time // when the signal was sent, and when the process was no more
	upstream string    // of a proxy
	gateway  int       // -1 = none
	host     bool
}

// traffic is what all programs ask, all the time, and what was killed meanwhile. It is
// safe for concurrent use.
type traffic struct {
	w *world

	mu    sync.Mutex
	all   []asked
	blows []blow
}

// run sends for each program and upstream one request after the other, until ctx ends.
// Programs that do not choose for themselves prefer one gateway, half of them the other.
func (f *traffic) run(ctx context.Context, callers []caller) {
	var loops sync.WaitGroup
	defer loops.Wait()
	for i, c := range callers {
		for j, u := range upstreams {
			loops.Go(func() {
				first := (i + j) % 2
				if c.name() == "Chromium" {
					first = 0 // of its PAC file
				}
				through := []string{f.w.gateways[first].listen, f.w.gateways[1-first].listen}
				list := errands(c, u, "60ms")
				for n := 0; ctx.Err() == nil; n++ {
					a := asked{caller: c.name(), upstream: u, errand: list[n%len(list)], began: time.Now()}
					a.reply = c.send(f.w.t.Context(), through, a.errand)
					a.ended, a.gateway = time.Now(), first
					if a.reply.gateway == 1 {
						a.gateway = 1 - first
					}
					a.err = f.w.check(c, u, a.errand, a.reply)
					f.mu.Lock()
					f.all = append(f.all, a)
					f.mu.Unlock()
					_ = sleep(ctx, paceOf)
				}
			})
		}
	}
}

// strike kills c, and notes it.
func (f *traffic) strike(b blow, c *spawn.Child) {
	b.at = time.Now()
	c.Kill()
	b.gone = time.Now()
	f.mu.Lock()
	defer f.mu.Unlock()
	f.blows = append(f.blows, b)
}

func (f *traffic) seen() ([]asked, []blow) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.all), slices.Clone(f.blows)
}

// each waits until every program has had an answer from every upstream to a request that
// began after since, and that ok takes.
func (f *traffic) each(ctx context.Context, callers []caller, what string, since time.Time, ok func(asked) bool) error {
	return f.w.until(ctx, quiet, what, func(context.Context) error {
		have := map[string]bool{}
		all, _ := f.seen()
		for _, a := range all {
			if a.err == nil && a.began.After(since) && ok(a) {
				have[a.caller+" "+a.upstream] = true
			}
		}
		for _, c := range callers {
			for _, u := range upstreams {
				if !have[c.name()+" "+u] {
					return fmt.Errorf("%s was not answered through %s", c.name(), u)
				}
			}
		}
		return nil
	})
}

func whatever(asked) bool { return true }

// goOn waits until all programs go on after the last blow, and then a little more, so
// that what came next is seen, too.
func (f *traffic) goOn(ctx context.Context, callers []caller) error {
	_, blows := f.seen()
	last := blows[len(blows)-1]
	if err := f.each(ctx, callers, "all to go on after "+last.what+" was killed", last.at, whatever); err != nil {
		return err
	}
	return sleep(ctx, goesOn)
}

// Curl, git, Go's client, Node's fetch and a browser ask all the time through each kind
// of upstream proxy, while a proxy of each kind, either gateway and the host are killed
// with kill -9 and started again. What was sent may fail, with a clear status where there
// is still somebody to say it; new requests are answered within a second.
func TestClientsLiveThroughKills(t *testing.T) {
	before := sizes
	sizes = map[string]int{"http": 4, "https": 4, "socks5": 4}
	defer func() { sizes = before }()
	w := newWorld(t)
	callers := w.callers()
	f := &traffic{w: w}
	sending, stop := context.WithCancel(t.Context())
	var running sync.WaitGroup
	running.Go(func() { f.run(sending, callers) })
	defer running.Wait()
	defer stop()
	ctx, cancel := context.WithTimeout(t.Context(), 8*time.Minute)
	defer cancel()
	if err := f.each(ctx, callers, "all to be answered", w.story.began, whatever); err != nil {
		t.Fatal(err)
	}
	for _, act := range []func(context.Context, []caller) error{f.proxies, f.gateways, f.host} {
		if err := act(ctx, callers); err != nil {
			t.Fatal(err)
		}
	}
	stop()
	running.Wait()
	f.judge(callers)
}

// proxies kills one of each upstream while something is under way through it.
func (f *traffic) proxies(ctx context.Context, callers []caller) error {
	for _, u := range upstreams {
		p := f.w.of(u)[0]
		err := f.w.until(ctx, quiet, "a request through "+p.name, func(context.Context) error {
			if f.w.apps[p].underWay.Load() == 0 {
				return errors.New("none is under way")
			}
			return nil
		})
		if err != nil {
			return err
		}
		f.strike(blow{what: "an upstream proxy (" + u + ")", upstream: u, gateway: -1}, p.child)
		if err := f.goOn(ctx, callers); err != nil {
			return err
		}
		if err := f.w.startProxy(p); err != nil {
			return err
		}
		if err := f.w.proxyReady(ctx, p); err != nil {
			return err
		}
		if err := f.w.shared(ctx); err != nil {
			return err
		}
	}
	return nil
}

// gateways kills one, and once it leads requests again the other one.
func (f *traffic) gateways(ctx context.Context, callers []caller) error {
	for i, g := range f.w.gateways {
		f.strike(blow{what: g.name, gateway: i}, g.child)
		if err := f.goOn(ctx, callers); err != nil {
			return err
		}
		if err := f.w.startGateway(g); err != nil {
			return err
		}
		if err := f.w.gatewayReady(ctx, g); err != nil {
			return err
		}
		back := time.Now()
		err := f.w.until(ctx, quiet, g.name+" to lead requests again", func(context.Context) error {
			all, _ := f.seen()
			if !slices.ContainsFunc(all, func(a asked) bool {
				return a.err == nil && a.caller != "Chromium" && a.gateway == i && a.began.After(back)
			}) {
				return errors.New("it leads none")
			}
			return nil
		})
		if err != nil {
			return err
		}
	}
	return f.w.shared(ctx)
}

// host kills the host, and has the programs go on without one.
func (f *traffic) host(ctx context.Context, callers []caller) error {
	f.strike(blow{what: "the host", gateway: -1, host: true}, f.w.stage.host)
	if err := f.goOn(ctx, callers); err != nil {
		return err
	}
	if err := f.w.startHost(ctx); err != nil {
		return err
	}
	f.w.facts.hostBack = time.Now()
	if err := f.w.reconnected(ctx); err != nil {
		return err
	}
	return f.each(ctx, callers, "all to be answered with the host back", time.Now(), whatever)
}

// judge looks at each request that failed, and at when each program went on.
func (f *traffic) judge(callers []caller) {
	t := f.w.t
	t.Helper()
	all, blows := f.seen()
	count, failed := map[string]int{}, map[string][]string{}
	for _, a := range all {
		count[a.caller]++
		if a.err == nil {
			continue
		}
		how, why := a.excuse(blows)
		failed[a.caller] = append(failed[a.caller], how)
		if why != "" {
			t.Errorf("%s, %s %.40s through gateway %d: %s: %v, Proxy-Status %q", a.caller, a.errand.method, a.errand.url, a.gateway+1, why, a.err, a.reply.own)
		}
	}
	for _, c := range callers {
		t.Logf("%-8s %4d requests, %2d failed: %s", c.name(), count[c.name()], len(failed[c.name()]), strings.Join(failed[c.name()], "; "))
	}
	// What a program takes on this machine when nothing is dead: some start processes.
	slowest := map[string]time.Duration{}
	for _, a := range all {
		if hit, _ := a.near(blows); !hit {
			slowest[a.caller] = max(slowest[a.caller], a.ended.Sub(a.began))
		}
	}
	for _, b := range blows {
		var figures []string
		for _, c := range callers {
			worst, limit := time.Duration(0), busy*goesOn+slowest[c.name()]
			for _, u := range upstreams {
				took := time.Duration(-1)
				for _, a := range all {
					if a.err == nil && a.caller == c.name() && a.upstream == u && a.began.After(b.at) && (took < 0 || a.ended.Sub(b.at) < took) {
						took = a.ended.Sub(b.at)
					}
				}
				if took < 0 || took > limit {
					t.Errorf("after %s was killed, the first new request of %s through %s was answered after %v, at most %v is allowed", b.what, c.name(), u, took, limit)
				}
				worst = max(worst, took)
			}
			figures = append(figures, c.name()+" "+seconds(worst))
		}
		t.Logf("after %s was killed, each upstream answered again within: %s", b.what, strings.Join(figures, ", "))
	}
}

// near reports whether a kill could hit the request, and whether one of a gateway could.
func (a *asked) near(blows []blow) (hit, gateway bool) {
	for _, b := range blows {
		if a.ended.After(b.at) && a.began.Before(b.gone.Add(goesOn)) {
			hit = hit || b.upstream == a.upstream || b.gateway >= 0
			gateway = gateway || b.gateway >= 0
		}
	}
	return hit, gateway
}

// excuse says how a request failed, and why it should not have: it may when it was under
// way at a kill that could hit it, or began within a second after, and when what it was
// told is a status, unless there was nobody left to tell it.
func (a *asked) excuse(blows []blow) (how, why string) {
	secure := strings.HasPrefix(a.errand.url, "https:")
	hit, gateway := a.near(blows)
	status := a.reply.status
	switch {
	case status != 0:
		how = fmt.Sprintf("%d %s", status, a.reply.own)
	case a.caller == "Chromium" && strings.Contains(a.err.Error(), "ERR_TUNNEL_CONNECTION_FAILED"):
		how = "a status to CONNECT" // all that the browser says of it
	default:
		how = "cut: " + a.err.Error()
	}
	shows := a.caller == "Go" || a.caller == "curl" || !secure // Proxy-Status, also of CONNECT
	switch cut := strings.HasPrefix(how, "cut: "); {
	case !hit:
		why = "nothing was killed that it went through"
	case cut && !gateway && !secure:
		why = "there was a gateway to say why"
	case status != 0 && status != http.StatusBadGateway && status != http.StatusServiceUnavailable && status != http.StatusGatewayTimeout:
		why = "it is another status than 502, 503 and 504"
	case status != 0 && shows && a.reply.own == "":
		why = "there is no Proxy-Status"
	}
	return how, why
}
