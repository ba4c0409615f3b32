package donagrpc

import (
	"context"

	"google.golang.org/grpc/attributes"
	"google.golang.org/grpc/resolver"
	"google.golang.org/grpc/serviceconfig"

	"github.com/dodona-project/dodona/sdk/dona"
)

// route is what the calls of one connection are decided by.
type route struct {
	service *dona.Service
	config  Config
	failed  *failed
}

// found is what the resolver tells the balancer, as an attribute of its state.
type found struct {
	*route
	endpoints []dona.Endpoint
}

type foundKey struct{}

// watcher is the resolver: it tells gRPC the endpoints after each change of the
// service. A change of weights or flags is told too, as calls may wait for one.
type watcher struct {
	cc     resolver.ClientConn
	route  *route
	config *serviceconfig.ParseResult
	cancel context.CancelFunc
	ended  chan struct{}
}

func (w *watcher) run(ctx context.Context) {
	defer close(w.ended)
	for {
		changed := w.route.service.Changed()
		w.tell()
		select {
		case <-changed:
		case <-ctx.Done():
			return
		}
	}
}

func (w *watcher) tell() {
	endpoints, err := w.route.service.Endpoints()
	if err != nil {
		// Before the first snapshot calls wait, until an attempt to get it failed.
		if w.route.service.Status().Problem != nil {
			w.cc.ReportError(err)
		}
		return
	}
	state := resolver.State{
		Endpoints:     make([]resolver.Endpoint, 0, len(endpoints)),
		ServiceConfig: w.config,
		Attributes:    attributes.New(foundKey{}, &found{w.route, endpoints}),
	}
	seen := make(map[string]bool, len(endpoints))
	for i := range endpoints {
		if a := endpoints[i].Address; !seen[a] {
			seen[a] = true
			state.Endpoints = append(state.Endpoints, resolver.Endpoint{Addresses: []resolver.Address{{Addr: a}}})
		}
	}
	// What the balancer makes of it is asked again at the next change: there is
	// nothing to resolve anew.
	_ = w.cc.UpdateState(state)
}

// ResolveNow does nothing: the host pushes what changes.
func (w *watcher) ResolveNow(resolver.ResolveNowOptions) {}

func (w *watcher) Close() {
	w.cancel()
	<-w.ended
}
