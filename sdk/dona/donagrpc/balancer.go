package donagrpc

import (
	"errors"
	"fmt"

	"google.golang.org/grpc/balancer"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/resolver"
)

type balancerBuilder struct{}

func (balancerBuilder) Name() string { return Scheme }

func (balancerBuilder) Build(cc balancer.ClientConn, _ balancer.BuildOptions) balancer.Balancer {
	return &connections{cc: cc, byAddress: map[string]*connection{}}
}

// connections is the balancer: a connection to each address of the newest
// snapshot. gRPC calls its methods and listeners one after the other.
type connections struct {
	cc        balancer.ClientConn
	found     *found // nil before the first
	byAddress map[string]*connection
	problem   error // why there are no endpoints, or why the last connection failed
}

// connection is one to an address, shared by the endpoints that have it.
type connection struct {
	sub    balancer.SubConn
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
	keep := make(map[string]bool, len(found.endpoints))
	for _, e := range s.ResolverState.Endpoints {
		for _, a := range e.Addresses {
			keep[a.Addr] = true
			if b.byAddress[a.Addr] == nil {
				b.connect(a)
			}
		}
	}
	for address, c := range b.byAddress {
		if !keep[address] {
			delete(b.byAddress, address)
			c.sub.Shutdown() // calls that run on it go on
		}
	}
	b.publish()
	return nil
}

func (b *connections) connect(a resolver.Address) {
	c := &connection{state: connectivity.Idle}
	//nolint:staticcheck // there is no other way; one address is what it will take
	sub, err := b.cc.NewSubConn([]resolver.Address{a}, balancer.NewSubConnOptions{
		StateListener: func(s balancer.SubConnState) { b.moved(a.Addr, c, s) },
	})
	if err != nil {
		b.problem = err
		return
	}
	c.sub = sub
	b.byAddress[a.Addr] = c
	sub.Connect()
}

func (b *connections) moved(address string, c *connection, s balancer.SubConnState) {
	was := c.state
	c.state = s.ConnectivityState
	if b.byAddress[address] != c {
		return // it was given up
	}
	switch c.state {
	case connectivity.Idle:
		c.sub.Connect()
	case connectivity.Ready:
		c.failed = false
	case connectivity.TransientFailure:
		c.failed = true
		b.problem = s.ConnectionError
	}
	if was != connectivity.Ready && (c.state == connectivity.Idle || c.state == connectivity.Connecting) {
		return // no call is decided differently, and a picker costs a look at all endpoints
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
	p := &picker{found: b.found, subs: make(map[string]balancer.SubConn, len(b.byAddress)), problem: b.problem}
	for address, c := range b.byAddress {
		p.subs[address] = nil
		switch {
		case c.state == connectivity.Ready:
			p.subs[address] = c.sub
			p.ready++
		case !c.failed:
			p.waiting = true
		}
	}
	p.leaveOut()
	state := connectivity.TransientFailure
	switch {
	case p.ready > 0:
		state = connectivity.Ready
	case p.waiting:
		state = connectivity.Connecting
	}
	b.cc.UpdateState(balancer.State{ConnectivityState: state, Picker: p})
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
