package donagrpc_test

import (
	"fmt"
	"net"
	"net/url"
	"sync/atomic"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/balancer"
	_ "google.golang.org/grpc/balancer/roundrobin"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/resolver"
	"google.golang.org/grpc/resolver/manual"
	"google.golang.org/grpc/serviceconfig"

	"github.com/dodona-project/dodona/sdk/dona"
	"github.com/dodona-project/dodona/sdk/dona/donagrpc"
	"github.com/dodona-project/dodona/sdk/dona/internal/donatest"
)

// BenchmarkPick is what gRPC pays for choosing an endpoint for one call and for
// noting its end: by a decision for a unit, and in turn.
func BenchmarkPick(b *testing.B) {
	h := donatest.Start(b)
	client := h.Dial(b)
	const endpoints = 50
	for i := range endpoints {
		donatest.Register(b, client, dona.OwnEndpoint{Service: "checkout", ID: fmt.Sprint("e", i), Address: fmt.Sprint("127.0.0.1:", 10_000+i), Variant: "v1"})
	}
	donatest.Until(b, "the client knows all endpoints", func() bool {
		all, err := client.Service("checkout").Endpoints()
		return err == nil && len(all) == endpoints
	})
	resolved := &channel{states: make(chan resolver.State, 1)}
	target, _ := url.Parse("dona:///checkout")
	r, err := donagrpc.Resolver(client, donagrpc.Config{}).Build(resolver.Target{URL: *target}, resolved, resolver.BuildOptions{})
	if err != nil {
		b.Fatal(err)
	}
	defer r.Close()
	state := <-resolved.states
	cc := &subchannels{}
	lb := balancer.Get("dona").Build(cc, balancer.BuildOptions{})
	defer lb.Close()
	if err := lb.UpdateClientConnState(balancer.ClientConnState{ResolverState: state}); err != nil {
		b.Fatal(err)
	}
	for _, moved := range cc.listeners {
		moved(balancer.SubConnState{ConnectivityState: connectivity.Ready})
	}
	for _, peer := range []struct {
		name   string
		picker balancer.Picker
	}{{"dona", cc.picker}, {"round_robin", roundRobin(b, endpoints)}} {
		b.Run(peer.name, func(b *testing.B) {
			info := balancer.PickInfo{Ctx: dona.NewContext(b.Context(), dona.Request{Unit: "user-1"}), FullMethodName: "/shop.Checkout/Pay"}
			end := balancer.DoneInfo{BytesSent: true, BytesReceived: true}
			b.ReportAllocs()
			for b.Loop() {
				result, err := peer.picker.Pick(info)
				if err != nil {
					b.Fatal(err)
				}
				if result.Done != nil {
					result.Done(end)
				}
			}
		})
	}
}

// roundRobin returns gRPC's own picker over so many connected endpoints.
func roundRobin(b *testing.B, endpoints int) balancer.Picker {
	server := grpc.NewServer()
	b.Cleanup(server.Stop)
	state := resolver.State{}
	for range endpoints {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			b.Fatal(err)
		}
		go func() { _ = server.Serve(l) }()
		state.Endpoints = append(state.Endpoints, resolver.Endpoint{Addresses: []resolver.Address{{Addr: l.Addr().String()}}})
	}
	found := manual.NewBuilderWithScheme("peers")
	found.InitialState(state)
	w := &wrapped{pickers: make(chan balancer.State, 1000)}
	balancer.Register(w)
	conn, err := grpc.NewClient("peers:///", grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithResolvers(found),
		grpc.WithDefaultServiceConfig(`{"loadBalancingConfig":[{"wrapped_round_robin":{}}]}`))
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = conn.Close() })
	conn.Connect()
	var last balancer.State
	donatest.Until(b, "all endpoints are connected", func() bool {
		for {
			select {
			case last = <-w.pickers:
			default:
				return w.ready.Load() >= int64(endpoints) && last.ConnectivityState == connectivity.Ready
			}
		}
	})
	return last.Picker
}

// wrapped is round_robin with its pickers shown.
type wrapped struct {
	balancer.ClientConn
	pickers chan balancer.State
	ready   atomic.Int64
}

func (w *wrapped) Name() string { return "wrapped_round_robin" }

func (w *wrapped) Build(cc balancer.ClientConn, o balancer.BuildOptions) balancer.Balancer {
	w.ClientConn = cc
	return balancer.Get("round_robin").Build(w, o)
}

func (w *wrapped) NewSubConn(a []resolver.Address, o balancer.NewSubConnOptions) (balancer.SubConn, error) {
	moved := o.StateListener
	o.StateListener = func(s balancer.SubConnState) {
		moved(s)
		if s.ConnectivityState == connectivity.Ready {
			w.ready.Add(1)
		}
	}
	//nolint:staticcheck // there is no other way
	return w.ClientConn.NewSubConn(a, o)
}

func (w *wrapped) UpdateState(s balancer.State) {
	w.pickers <- s
	w.ClientConn.UpdateState(s)
}

// channel is a gRPC channel that keeps what its resolver found.
type channel struct {
	resolver.ClientConn
	states chan resolver.State
}

func (c *channel) UpdateState(s resolver.State) error {
	select {
	case c.states <- s:
	default:
	}
	return nil
}
func (c *channel) ReportError(error) {}
func (c *channel) ParseServiceConfig(string) *serviceconfig.ParseResult {
	return &serviceconfig.ParseResult{}
}

// subchannels are connections that are ready when they are told so.
type subchannels struct {
	balancer.ClientConn
	all       []balancer.SubConn
	listeners []func(balancer.SubConnState) // of all
	picker    balancer.Picker
}

type subchannel struct {
	balancer.SubConn
	id int // so that no two are the same
}

func (subchannel) Connect()  {}
func (subchannel) Shutdown() {}

func (c *subchannels) NewSubConn(_ []resolver.Address, o balancer.NewSubConnOptions) (balancer.SubConn, error) {
	sub := &subchannel{id: len(c.all)}
	c.all, c.listeners = append(c.all, sub), append(c.listeners, o.StateListener)
	return sub, nil
}
func (c *subchannels) UpdateState(s balancer.State) { c.picker = s.Picker }
