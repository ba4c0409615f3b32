package main

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/balancer"
	"google.golang.org/grpc/balancer/leastrequest"
	"google.golang.org/grpc/balancer/ringhash"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/resolver"
	"google.golang.org/grpc/serviceconfig"

	donav1 "github.com/dodona-project/dodona/proto/dona/v1"
	"github.com/dodona-project/dodona/sdk/dona"
	"github.com/dodona-project/dodona/sdk/dona/digest"
)

func decisionJob() ([]row, error) {
	var rows, parallel []row
	byEndpoints := map[int]float64{}
	for _, n := range []int{100, 1000, 10_000} {
		ours, stop, err := decider(n)
		if err != nil {
			return nil, err
		}
		sides := []func() (float64, error){nsPerOp(200_000, ours())}
		if n <= 1000 {
			peer, err := leastRequest(n)
			if err != nil {
				stop()
				return nil, err
			}
			sides = append(sides, nsPerOp(200_000, peer))
		}
		m, err := turns(repeats, sides...)
		if err == nil && n == 1000 {
			parallel, err = parallelDecisions(ours)
		}
		stop()
		if err != nil {
			return nil, err
		}
		byEndpoints[n] = m[0]
		r := row{work: fmt.Sprintf("%d endpoints", n), ours: m[0], unit: "ns"}
		if len(m) > 1 {
			r.peer, r.what, r.limit = m[1], "grpc-go least_request, pick and done alone", 1.5
		}
		rows = append(rows, r)
	}
	rows = append(rows, row{"10,000 endpoints beside 1,000", byEndpoints[10_000], byEndpoints[1000], "ns", "ours at 1,000", 1.2, false, nil})
	return append(rows, parallel...), nil
}

// parallelDecisions compares two goroutines with one, in decisions a second.
func parallelDecisions(decider func() func()) ([]row, error) {
	many := func(goroutines int) func() (float64, error) {
		return func() (float64, error) {
			const each = 300_000
			var wg sync.WaitGroup
			begin := time.Now()
			for range goroutines {
				wg.Go(func() {
					op := decider()
					for range each {
						op()
					}
				})
			}
			wg.Wait()
			return float64(goroutines*each) / time.Since(begin).Seconds(), nil
		}
	}
	m, err := turns(repeats, many(2), many(1))
	if err != nil || runtime.NumCPU() < 2 {
		return nil, err
	}
	return []row{{"1,000 endpoints, 2 goroutines", m[0], m[1], "/s", "ours with 1", 1.6, true, nil}}, nil
}

// decider returns how a goroutine gets one whole decision of the SDK over a snapshot
// of n endpoints: as an application makes it, fed by a host over gRPC.
func decider(n int) (ops func() func(), stop func(), err error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, nil, err
	}
	server := grpc.NewServer()
	donav1.RegisterControlPlaneServer(server, &oneSnapshot{snapshot: snapshotOf(n)})
	go func() { _ = server.Serve(listener) }()
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	client, err := dona.Dial(ctx, listener.Addr().String(), dona.WithoutCache())
	if err != nil {
		server.Stop()
		return nil, nil, err
	}
	stop = func() { _ = client.Close(); server.Stop() }
	svc := client.Service("checkout")
	if err := svc.Ready(ctx); err != nil {
		stop()
		return nil, nil, err
	}
	units := make([]string, 1024)
	for i := range units {
		units[i] = fmt.Sprintf("user-%d", i)
	}
	attributes := []dona.Attribute{dona.String("country", "FR")}
	background := context.Background()
	return func() func() {
		next := rand.IntN(len(units))
		return func() {
			next++
			pick, err := svc.Pick(background, dona.Request{Unit: units[next%len(units)], Attributes: attributes})
			if err != nil {
				panic(err)
			}
			pick.Done(dona.Outcome{Success: true, Latency: time.Millisecond, Code: "200"})
		}
	}, stop, nil
}

// snapshotOf has n endpoints of two variants in four regions, two of them
// allowed, ten flags that mostly do not hit, a split and a plan.
func snapshotOf(n int) *donav1.ConfigSnapshot {
	s := &donav1.ConfigSnapshot{
		Service: "checkout", Version: 1,
		Weights:   []*donav1.VariantWeight{{Variant: "v2", Weight: 10}, {Variant: "v1", Weight: 90}},
		Residency: &donav1.ResidencyPolicy{AllowedRegions: []string{"eu-west", "eu-central"}},
		Plan:      &donav1.Plan{Strategy: "least-connections", Algorithm: donav1.Algorithm_ALGORITHM_LEAST_CONNECTIONS, Choices: 2},
	}
	regions := []string{"eu-west", "eu-central", "us-east", "us-west"}
	for i := range n {
		variant := "v1"
		if i%8 >= 4 {
			variant = "v2"
		}
		s.Endpoints = append(s.Endpoints, &donav1.Endpoint{
			Id: fmt.Sprintf("ep-%05d", i), Address: fmt.Sprintf("10.0.%d.%d:8080", i/250, i%250+1), Variant: variant,
			Region: regions[i%4], LbWeight: 100, Zone: regions[i%4] + "a",
		})
	}
	for i := range 10 {
		s.Flags = append(s.Flags, &donav1.FlagRule{
			Flag: fmt.Sprintf("flag-%02d", i), Service: "checkout", RolloutPercent: 1, RolloutVariant: "v2", Version: 1,
			Targeting: []*donav1.TargetingRule{{Attribute: "country", Operator: donav1.TargetingRule_OPERATOR_IN, Values: []string{"CH", "DE"}, Variant: "v2"}},
		})
	}
	sum := digest.OfSnapshot(s)
	s.Checksum = sum[:]
	return s
}

// oneSnapshot is a host that knows one snapshot and takes every report.
type oneSnapshot struct {
	donav1.UnimplementedControlPlaneServer
	snapshot *donav1.ConfigSnapshot
}

func (o *oneSnapshot) WatchConfig(_ *donav1.WatchConfigRequest, stream donav1.ControlPlane_WatchConfigServer) error {
	if err := stream.Send(o.snapshot); err != nil {
		return err
	}
	<-stream.Context().Done()
	return nil
}

func (o *oneSnapshot) ReportStats(_ context.Context, b *donav1.StatsBatch) (*donav1.ReportAck, error) {
	return &donav1.ReportAck{AcceptedSequence: b.Sequence}, nil
}

// leastRequest returns one pick and done of gRPC's own least_request balancer
// over n ready endpoints.
func leastRequest(n int) (op func(), err error) {
	pick, err := grpcBalancer(leastrequest.Name, `{"choiceCount": 2}`, n)
	if err != nil {
		return nil, err
	}
	ctx := context.Background()
	return func() { pick(ctx) }, nil
}

// grpcBalancer returns one pick and done of a balancer of gRPC's own over n ready
// endpoints.
func grpcBalancer(name, config string, n int) (pick func(context.Context), err error) {
	builder := balancer.Get(name)
	var parsed serviceconfig.LoadBalancingConfig
	if p, ok := builder.(balancer.ConfigParser); ok {
		if parsed, err = p.ParseConfig(json.RawMessage(config)); err != nil {
			return nil, err
		}
	}
	cc := &fakeConn{}
	b := builder.Build(cc, balancer.BuildOptions{})
	endpoints := make([]resolver.Endpoint, n)
	for i := range endpoints {
		endpoints[i].Addresses = []resolver.Address{{Addr: fmt.Sprintf("10.0.%d.%d:8080", i/250, i%250+1)}}
	}
	if err := b.UpdateClientConnState(balancer.ClientConnState{
		ResolverState: resolver.State{Endpoints: endpoints}, BalancerConfig: parsed,
	}); err != nil {
		return nil, err
	}
	b.ExitIdle()
	for tries := 0; cc.ready.Load() < int64(n); tries++ {
		if tries > 1000 {
			return nil, fmt.Errorf("of the %s balancer's %d connections %d became ready", name, n, cc.ready.Load())
		}
		// A ring connects an endpoint only when a call belongs to it.
		if state := cc.picker.Load(); name == ringhash.Name && state != nil {
			for i := range n {
				_, _ = state.Picker.Pick(balancer.PickInfo{Ctx: withKey(fmt.Sprintf("warm-%d-%d", tries, i))})
			}
		}
		time.Sleep(10 * time.Millisecond)
	}
	picker := cc.picker.Load().Picker
	return func(ctx context.Context) {
		result, err := picker.Pick(balancer.PickInfo{FullMethodName: "/a/b", Ctx: ctx})
		if err != nil {
			panic(err)
		}
		if result.Done != nil {
			result.Done(balancer.DoneInfo{})
		}
	}, nil
}

// withKey returns what a call that is hashed by a header carries.
func withKey(key string) context.Context {
	return metadata.AppendToOutgoingContext(context.Background(), hashHeader, key)
}

const hashHeader = "x-unit"

// fakeConn is a gRPC channel whose connections are ready as soon as they are
// asked to connect.
type fakeConn struct {
	balancer.ClientConn
	ready  atomic.Int64
	picker atomic.Pointer[balancer.State]
}

func (c *fakeConn) NewSubConn(_ []resolver.Address, o balancer.NewSubConnOptions) (balancer.SubConn, error) {
	return &fakeSubConn{conn: c, listen: o.StateListener}, nil
}
func (c *fakeConn) RemoveSubConn(balancer.SubConn)                       {}
func (c *fakeConn) UpdateAddresses(balancer.SubConn, []resolver.Address) {}
func (c *fakeConn) ResolveNow(resolver.ResolveNowOptions)                {}
func (c *fakeConn) Target() string                                       { return "bench" }
func (c *fakeConn) UpdateState(s balancer.State)                         { c.picker.Store(&s) }

type fakeSubConn struct {
	balancer.SubConn
	conn   *fakeConn
	listen func(balancer.SubConnState)
}

func (s *fakeSubConn) Connect() {
	go func() {
		s.listen(balancer.SubConnState{ConnectivityState: connectivity.Connecting})
		s.listen(balancer.SubConnState{ConnectivityState: connectivity.Ready})
	}()
}
func (s *fakeSubConn) Shutdown() {}
func (s *fakeSubConn) RegisterHealthListener(listen func(balancer.SubConnState)) {
	// Beside: the balancer holds a lock that its listener takes.
	go func() {
		listen(balancer.SubConnState{ConnectivityState: connectivity.Ready})
		s.conn.ready.Add(1)
	}()
}
