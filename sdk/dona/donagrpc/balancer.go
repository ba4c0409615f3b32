package donagrpc

import (
	"errors"
	"fmt"
	"sync/atomic"

	"google.golang.org/grpc/balancer"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/resolver"
)

type balancerBuilder struct{}

func (balancerBuilder) Name() string { return Scheme }

func (balancerBuilder) Build(cc balancer.ClientConn, _ balancer.BuildOptions) balancer.Balancer {
	return &connections{cc: cc}
}

// connections is the balancer: a connection to each address of the newest
// snapshot. gRPC calls its methods and listeners one after the other. What a
// connection that becomes ready costs does not depend on how many there are.
type connections struct {
	cc        balancer.ClientConn
	found     *found                   // nil before the first
	byAddress map[string]*connection   // shared with pickers: replaced, never changed
	unready   map[*connection]struct{} // of them
	waiting   int                      // of those that are unready: they have not failed
	problem   error                    // why there are no endpoints, or why the last connection failed
}

// connection is one to an address, shared by the endpoints that have it.
type connection struct {
	sub   balancer.SubConn
	ready atomic.Bool // state is Ready, for pickers

	// Owned by the balancer.
	ids    []string // of the endpoints at the address
	state  connectivity.State
	failed bool // since it was made or was ready: what it does now is no reason to wait
}

func (b *connections) UpdateClientConnState(s balancer.ClientConnState) error {
	found, ok := s.ResolverState.Attributes.Value(foundKey{}).(*found)
	if !ok {
		err := fmt.Errorf("the balancer %s needs its own resolver: give grpc.NewClient a target %s:///<service>", Scheme, Scheme)
		b.ResolverError(err)
		return err
	}
	b.found = found
	was := b.byAddress
	b.byAddress = make(map[string]*connection, len(s.ResolverState.Endpoints))
	var made []*connection
	for _, e := range s.ResolverState.Endpoints {
		for _, a := range e.Addresses {
			c := was[a.Addr]
			if c == nil {
				if c = b.connection(a); c == nil {
					continue
				}
				made = append(made, c)
			}
			c.ids = nil
			b.byAddress[a.Addr] = c
		}
	}
	for i := range found.endpoints {
		if c := b.byAddress[found.endpoints[i].Address]; c != nil {
			c.ids = append(c.ids, found.endpoints[i].ID)
		}
	}
	b.unready, b.waiting = map[*connection]struct{}{}, 0
	for _, c := range b.byAddress {
		b.count(c)
	}
	for address, c := range was {
		if b.byAddress[address] != c {
			c.sub.Shutdown() // calls that run on it go on
		}
	}
	b.publish()
	for _, c := range made {
		c.sub.Connect()
	}
	return nil
}

// connection makes one, which is not opened yet. Without one the reason is kept.
func (b *connections) connection(a resolver.Address) *connection {
	c := &connection{state: connectivity.Idle}
	//nolint:staticcheck // there is no other way; one address is what it will take
	sub, err := b.cc.NewSubConn([]resolver.Address{a}, balancer.NewSubConnOptions{
		StateListener: func(s balancer.SubConnState) { b.moved(a.Addr, c, s) },
	})
	if err != nil {
		b.problem = err
		return nil
	}
	c.sub = sub
	return c
}

// count and uncount keep unready and waiting by what a connection is.
func (b *connections) count(c *connection) {
	if c.state == connectivity.Ready {
		return
	}
	b.unready[c] = struct{}{}
	if !c.failed {
		b.waiting++
	}
}

func (b *connections) uncount(c *connection) {
	if _, there := b.unready[c]; there {
		delete(b.unready, c)
		if !c.failed {
			b.waiting--
		}
	}
}

func (b *connections) moved(address string, c *connection, s balancer.SubConnState) {
	if b.byAddress[address] != c {
		c.ready.Store(false)
		return // it was given up
	}
	b.uncount(c)
	was := c.state
	c.state = s.ConnectivityState
	c.ready.Store(c.state == connectivity.Ready)
	switch c.state {
	case connectivity.Ready:
		c.failed = false
	case connectivity.TransientFailure:
		c.failed = true
		b.problem = s.ConnectionError
	}
	b.count(c)
	if c.state == connectivity.Idle {
		c.sub.Connect()
	}
	if was != connectivity.Ready && (c.state == connectivity.Idle || c.state == connectivity.Connecting) {
		return // no call is decided differently
	}
	b.publish()
}

func (b *connections) ResolverError(err error) {
	if b.found != nil {
		return // go on by what is known
	}
	b.problem = err
	b.cc.UpdateState(balancer.State{ConnectivityState: connectivity.TransientFailure, Picker: broken{errors.New(err.Error())}})
}

// publish gives gRPC a picker for the connections as they are.
func (b *connections) publish() {
	if b.found == nil {
		return
	}
	p := &picker{found: b.found, byAddress: b.byAddress, ready: len(b.byAddress) - len(b.unready), waiting: b.waiting > 0,
		away: b.away(), problem: b.problem}
	state := connectivity.TransientFailure
	switch {
	case p.ready > 0:
		state = connectivity.Ready
	case p.waiting:
		state = connectivity.Connecting
	}
	b.cc.UpdateState(balancer.State{ConnectivityState: state, Picker: p})
}

// away returns the ids of endpoints that are not connected, none when they are many.
func (b *connections) away() []string {
	if len(b.unready) > maxAway {
		return nil
	}
	var ids []string
	for c := range b.unready {
		if ids = append(ids, c.ids...); len(ids) > maxAway {
			return nil
		}
	}
	return ids
}

func (b *connections) UpdateSubConnState(balancer.SubConn, balancer.SubConnState) {}

// ExitIdle does nothing: connections are opened without being asked for.
func (b *connections) ExitIdle() {}

func (b *connections) Close() {}

// broken is the picker while there is nothing to pick from. Its error has no status
// inside, which would end calls that wait for readiness.
type broken struct{ err error }

func (p broken) Pick(balancer.PickInfo) (balancer.PickResult, error) {
	return balancer.PickResult{}, p.err
}
