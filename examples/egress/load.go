package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"sync"
	"time"
)

// load is requests of all clients, all the time. A request goes to the gateway that its
// loop prefers, or to the other one while that is not ready: what a balancer does, and no
// second try of a request that failed. It is safe for concurrent use.
type load struct {
	gateways [2]*gateway
	admin    *http.Client

	mu   sync.Mutex
	sent []sent
}

// sent is a request that was answered, or failed.
type sent struct {
	client, upstream string
	gateway          int
	secure           bool // https, through CONNECT
	began, ended     time.Time
	exit             string // who the target took for its client
	err              error
}

// pace is how often a client begins a request in one of its loops, beside the time that
// they take.
var pace = map[string]time.Duration{"Go": 100 * time.Millisecond, "curl": 200 * time.Millisecond, "git": 500 * time.Millisecond, "node": 700 * time.Millisecond}

// run sends until ctx ends; it returns when none is under way. What runs is ended by
// life.
func (l *load) run(ctx, life context.Context, clients []client) {
	var loops sync.WaitGroup
	for _, c := range clients {
		for gateway := range l.gateways {
			if c.name != "Go" {
				loops.Go(func() { l.loop(ctx, life, c, gateway, upstreams) })
				continue
			}
			for _, u := range upstreams {
				loops.Go(func() { l.loop(ctx, life, c, gateway, []string{u}) })
			}
		}
	}
	loops.Wait()
}

func (l *load) loop(ctx, life context.Context, c client, prefer int, names []string) {
	tick := time.NewTicker(pace[c.name])
	defer tick.Stop()
	for n := prefer; ; n++ {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		l.one(life, c, prefer, names[n%len(names)], c.secureOnly || n/len(names)%2 == 1)
	}
}

// one sends one request.
func (l *load) one(ctx context.Context, c client, prefer int, upstream string, secure bool) {
	r := sent{client: c.name, upstream: upstream, gateway: prefer, began: time.Now()}
	if !l.ready(ctx, prefer) {
		r.gateway = 1 - prefer
	}
	scheme := "http"
	if secure {
		scheme = "https"
	}
	path := "/"
	if c.name == "Go" { // so that some are always under way
		path = "/slow"
	}
	r.secure = secure
	r.exit, r.err = c.send(ctx, l.gateways[r.gateway].listen, scheme+"://"+upstream+hostSuffix+path)
	r.ended = time.Now()
	if ctx.Err() != nil {
		return // it was ended
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.sent = append(l.sent, r)
}

// ready reports whether a gateway answers that it is.
func (l *load) ready(ctx context.Context, gateway int) bool {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	return l.gateways[gateway].ready(ctx, l.admin) == nil
}

// all is what was sent so far.
func (l *load) all() []sent {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Clone(l.sent)
}

// between is what began in a span of time, and how many of those failed.
func (l *load) between(from, to time.Time) (some []sent, failed int) {
	for _, r := range l.all() {
		if !r.began.Before(from) && r.began.Before(to) {
			some = append(some, r)
			if r.err != nil {
				failed++
			}
		}
	}
	return some, failed
}

// kill is a kill -9 that requests had to live with.
type kill struct {
	what    string
	at      time.Time
	gateway bool
}

// excused reports whether a request that failed had been sent when something was killed,
// or was so within a second after.
func (r *sent) excused(kills []kill) bool {
	return slices.ContainsFunc(kills, func(k kill) bool {
		return r.ended.After(k.at) && r.began.Before(k.at.Add(time.Second))
	})
}

// unclear reports whether a request that failed should have had an answer from its
// gateway, and had none: its gateway lived, and no tunnel was cut, whose client speaks with
// the target.
func (r *sent) unclear(kills []kill) bool {
	lived := !slices.ContainsFunc(kills, func(k kill) bool { return k.gateway && r.excused([]kill{k}) })
	var status statusError
	return lived && r.client == "Go" && !r.secure && !errors.As(r.err, &status)
}

func (r *sent) String() string {
	scheme := "http"
	if r.secure {
		scheme = "https"
	}
	return fmt.Sprintf("%s, %s through gateway %d and upstream %s: %v", r.client, scheme, r.gateway+1, r.upstream, r.err)
}

// goesOn is how long after a kill it took until, in each upstream, a request that began
// after it was answered; false when in one none was.
func (l *load) goesOn(k kill) (worst time.Duration, ok bool) {
	first := map[string]time.Duration{}
	for _, r := range l.all() {
		took := r.ended.Sub(k.at)
		if before, found := first[r.upstream]; r.err == nil && r.began.After(k.at) && (!found || took < before) {
			first[r.upstream] = took
		}
	}
	for _, took := range first {
		worst = max(worst, took)
	}
	return worst, len(first) == len(upstreams)
}
