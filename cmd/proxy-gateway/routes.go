package main

import (
	"errors"

	"github.com/dodona-project/dodona/cmd/proxy-gateway/internal/forward"
	"github.com/dodona-project/dodona/sdk/worker"
	"github.com/dodona-project/dodona/sdk/worker/upstream"
)

// routes has the data path go by a worker's view.
type routes struct{ worker *worker.Worker }

// Route implements forward.Routes. Past its validity a view leads nobody anywhere, and not
// to a target directly either.
func (r routes) Route(q *worker.Request) (*worker.Routing, bool) {
	if r.worker.State() != worker.Serving {
		return nil, false
	}
	return r.worker.View().Route(q), true
}

// Pick implements forward.Routes.
func (r routes) Pick(routing *worker.Routing, q *worker.Request, tried []string) forward.Lease {
	l, err := r.worker.Pick(routing, routing.Key(q), tried)
	if err != nil {
		return nil
	}
	return &lease{l}
}

// PickProxy implements forward.Routes.
func (r routes) PickProxy(routing *worker.Routing, id string) (forward.Lease, bool) {
	l, err := r.worker.PickProxy(routing, id)
	if err != nil {
		return nil, errors.Is(err, worker.ErrNoProxy)
	}
	return &lease{l}, false
}

// Current implements forward.Routes.
func (r routes) Current(id string, version uint32) bool {
	v := r.worker.View()
	if v == nil {
		return false
	}
	p := v.Proxy(id)
	return p != nil && p.CredentialVersion == version
}

// lease is a worker's lease as the data path knows it.
type lease struct{ worker.Lease }

func (l *lease) ProxyID() string           { return l.Proxy.ID }
func (l *lease) CredentialVersion() uint32 { return l.Proxy.CredentialVersion }
func (l *lease) Via() upstream.Proxy       { return l.Proxy.Via }
