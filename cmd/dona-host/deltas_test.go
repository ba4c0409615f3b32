package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"reflect"
	"slices"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	donav1 "github.com/dodona-project/dodona/proto/dona/v1"
	"github.com/dodona-project/dodona/sdk/dona"
	"github.com/dodona-project/dodona/sdk/dona/decide"
	"github.com/dodona-project/dodona/sdk/dona/mirror"
)

// middle stands between clients and a host, and may do to the deltas of a watch what
// a network never does.
type middle struct {
	donav1.UnimplementedControlPlaneServer
	host    donav1.ControlPlaneClient
	address string

	mu      sync.Mutex
	fault   string                 // for the next deltas
	held    *donav1.ConfigSnapshot // by fault, for later
	done    int                    // faults
	watches []*donav1.WatchConfigRequest
	applied []*donav1.AppliedConfig
}

// between starts one that is gone when the test ends.
func between(t *testing.T, p *process) *middle {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	m := &middle{host: donav1.NewControlPlaneClient(p.dial()), address: l.Addr().String()}
	server := grpc.NewServer()
	donav1.RegisterControlPlaneServer(server, m)
	served := make(chan struct{})
	go func() { defer close(served); _ = server.Serve(l) }()
	t.Cleanup(func() { server.Stop(); <-served })
	return m
}

func (m *middle) ReportStats(ctx context.Context, b *donav1.StatsBatch) (*donav1.ReportAck, error) {
	m.mu.Lock()
	m.applied = append(m.applied, b.Applied...)
	m.mu.Unlock()
	return m.host.ReportStats(ctx, b)
}

func (m *middle) WatchConfig(req *donav1.WatchConfigRequest, down grpc.ServerStreamingServer[donav1.ConfigSnapshot]) error {
	m.mu.Lock()
	m.watches, m.held = append(m.watches, req), nil
	m.mu.Unlock()
	up, err := m.host.WatchConfig(down.Context(), req)
	if err != nil {
		return err
	}
	for {
		f, err := up.Recv()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		for _, f := range m.pass(f) {
			if err := down.Send(f); err != nil {
				return err
			}
		}
	}
}

// pass returns what becomes of a frame.
func (m *middle) pass(f *donav1.ConfigSnapshot) []*donav1.ConfigSnapshot {
	m.mu.Lock()
	defer m.mu.Unlock()
	if f.Form != donav1.ConfigSnapshot_FORM_DELTA || m.fault == "" {
		return []*donav1.ConfigSnapshot{f}
	}
	fault := m.fault
	if fault == "swap" && m.held == nil {
		m.held = f
		return nil
	}
	m.fault = ""
	m.done++
	switch fault {
	case "drop":
		return nil
	case "repeat":
		return []*donav1.ConfigSnapshot{f, f}
	}
	return []*donav1.ConfigSnapshot{f, m.held} // swap
}

// mutator changes the service "web" at random, in every way that a snapshot shows.
type mutator struct {
	t     *testing.T
	ctx   context.Context
	r     *rand.Rand
	api   donav1.ControlPlaneClient
	own   *dona.Client
	here  map[string]*dona.Registration
	flags map[string]bool
}

func (m *mutator) must(err error) {
	m.t.Helper()
	if err != nil {
		m.t.Fatal(err)
	}
}

func (m *mutator) register(id, variant, region string) {
	r, err := m.own.Register(m.ctx, dona.OwnEndpoint{Service: "web", ID: id, Address: fmt.Sprintf("10.0.%d.1:80", len(m.here)), Variant: variant, Region: region})
	m.must(err)
	m.must(r.Wait(m.ctx))
	m.here[id] = r
}

func (m *mutator) flag(key string) {
	f := &donav1.FlagRule{Service: "web", Flag: key, RolloutPercent: m.r.Uint32N(101), RolloutVariant: []string{"v1", "v2"}[m.r.IntN(2)], Disabled: m.r.IntN(5) == 0}
	for range m.r.IntN(3) {
		f.Targeting = append(f.Targeting, &donav1.TargetingRule{Attribute: "country", Values: []string{"CH", "用户"}[:1+m.r.IntN(2)], Variant: "v2"})
	}
	_, err := m.api.SetFlag(m.ctx, &donav1.SetFlagRequest{Rule: f})
	m.must(err)
	m.flags[key] = true
}

func (m *mutator) unflag(key string) {
	_, err := m.api.SetFlag(m.ctx, &donav1.SetFlagRequest{Rule: &donav1.FlagRule{Service: "web", Flag: key}, Delete: true})
	m.must(err)
	delete(m.flags, key)
}

func (m *mutator) regions(all ...string) {
	req := &donav1.SetServicePolicyRequest{Service: "web", ClearResidency: len(all) == 0}
	if len(all) > 0 {
		req.Residency = &donav1.ResidencyPolicy{AllowedRegions: all, RuleId: fmt.Sprint("r", m.r.IntN(9))}
	}
	_, err := m.api.SetServicePolicy(m.ctx, req)
	m.must(err)
}

// step makes one change.
func (m *mutator) step() {
	key := fmt.Sprint("f", m.r.IntN(4))
	switch m.r.IntN(9) {
	case 0, 1, 2:
		m.flag(key)
	case 3:
		if m.flags[key] {
			m.unflag(key)
		}
	case 4:
		m.regions([][]string{nil, {"eu"}, {"eu", "us"}}[m.r.IntN(3)]...)
	case 5:
		_, err := m.api.SetServicePolicy(m.ctx, &donav1.SetServicePolicyRequest{Service: "web", Strategy: []string{"round-robin", "random", "consistent-hash", "priority"}[m.r.IntN(4)]})
		m.must(err)
	case 6, 7:
		id := fmt.Sprint("more-", m.r.IntN(4))
		if r := m.here[id]; r != nil {
			m.must(r.Close(m.ctx))
			delete(m.here, id)
			return
		}
		m.register(id, []string{"v1", "v2"}[m.r.IntN(2)], []string{"eu", "us"}[m.r.IntN(2)])
	case 8: // weights, by a rollout that begins or is given up: refused when there is nothing to do
		if _, err := m.api.StartRollout(m.ctx, &donav1.StartRolloutRequest{Service: "web", CanaryVariant: "v2", StableVariant: "v1", Steps: []uint32{10, 100}, StepSeconds: 60, MaxErrorPercent: 50, MinRequests: 1, Retry: true}); err != nil {
			_, _ = m.api.ControlRollout(m.ctx, &donav1.ControlRolloutRequest{Service: "web", Action: donav1.ControlRolloutRequest_ACTION_ABORT, Reason: "no"})
		}
	}
}

// versions follows a watch, whole frames or deltas, until ctx ends, and keeps each
// version as it came out. Now and then it goes and comes back with what it has.
func versions(ctx context.Context, t *testing.T, api donav1.ControlPlaneClient, deltas bool, seed uint64) (seen func() map[uint64]*donav1.ConfigSnapshot, count func() int) {
	var mu sync.Mutex
	all, n := map[uint64]*donav1.ConfigSnapshot{}, 0
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		r := rand.New(rand.NewPCG(seed, 3))
		var held *mirror.Snapshot
		for ctx.Err() == nil {
			req := &donav1.WatchConfigRequest{Service: "web", ClientId: fmt.Sprint("v", seed), AcceptDelta: deltas}
			if held != nil && deltas {
				sum := held.Checksum()
				req.LastVersion, req.LastChecksum = held.Version(), sum[:]
			}
			watch, leave := context.WithCancel(ctx)
			stream, err := api.WatchConfig(watch, req)
			for frames := 0; err == nil && frames < 10+r.IntN(20); frames++ {
				var f *donav1.ConfigSnapshot
				if f, err = stream.Recv(); err != nil {
					break
				}
				var next *mirror.Snapshot
				switch f.Form {
				case donav1.ConfigSnapshot_FORM_UNCHANGED:
					continue
				case donav1.ConfigSnapshot_FORM_DELTA:
					next, err = held.Apply(f)
				default:
					next, err = mirror.Full(f)
				}
				if err != nil {
					t.Errorf("version %d: %v", f.Version, err)
					break
				}
				held = next
				mu.Lock()
				all[held.Version()] = held.Config()
				if f.Form == donav1.ConfigSnapshot_FORM_DELTA {
					n++
				}
				mu.Unlock()
			}
			leave()
		}
	}()
	return func() map[uint64]*donav1.ConfigSnapshot { <-ended; return all }, func() int { mu.Lock(); defer mu.Unlock(); return n }
}

// TestDeltasComeToTheWhole: what a host's deltas come to is what it sends whole, for
// each version of a random history, lists that become empty included; and a client
// that is sent a delta too few, twice or out of turn notices, and has the whole soon.
func TestDeltasComeToTheWhole(t *testing.T) {
	t.Parallel()
	const steps = 150
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	p := newProcess(t)
	p.start()
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	own, err := dona.Dial(ctx, p.grpc, dona.WithoutCache())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = own.Close() }()
	m := &mutator{t: t, ctx: ctx, r: rand.New(rand.NewPCG(seed, 1)), api: donav1.NewControlPlaneClient(p.dial()), own: own,
		here: map[string]*dona.Registration{}, flags: map[string]bool{}}
	m.register("a", "v1", "eu")
	m.register("b", "v2", "us")

	link := between(t, p)
	client, err := dona.Dial(ctx, link.address, dona.WithoutCache(), dona.WithReportInterval(20*time.Millisecond))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = client.Close() }()
	svc := client.Service("web")
	if err := svc.Ready(ctx); err != nil {
		t.Fatal(err)
	}
	whole, _ := versions(ctx, t, donav1.NewControlPlaneClient(p.dial()), false, seed)
	built, deltas := versions(ctx, t, donav1.NewControlPlaneClient(p.dial()), true, seed)

	// agree waits until the client has what the host has.
	agree := func(what string) *donav1.ConfigSnapshot {
		t.Helper()
		var now *donav1.ConfigSnapshot
		until(t, what, func() bool {
			s, err := m.api.GetStatus(ctx, &donav1.GetStatusRequest{Service: "web"})
			if err != nil {
				return false
			}
			now = s.Config
			st := svc.Status()
			return st.Version == now.Version && !st.Stale
		})
		return now
	}
	sound := func() {
		t.Helper()
		// Changes of the host's own may come in between: then look again.
		until(t, "the client decides as by the whole snapshot", func() bool {
			now := agree("the client to be up to date")
			for range 20 {
				req := dona.Request{Unit: fmt.Sprint("user-", m.r.IntN(1000)), Attributes: []dona.Attribute{dona.String("country", []string{"CH", "SE"}[m.r.IntN(2)])}}
				got, err := svc.Explain(req)
				if err != nil {
					t.Fatal(err)
				}
				want, err := dona.Explain(now, req)
				if err != nil {
					t.Fatal(err)
				}
				for _, trace := range []*decide.Trace{got, want} { // which of several endpoints is chance
					trace.Result.Endpoint = dona.Endpoint{}
					trace.Stages = slices.DeleteFunc(trace.Stages, func(s decide.Stage) bool { return s.Name == "pick" })
				}
				if !reflect.DeepEqual(got, want) {
					return false
				}
			}
			return true
		})
	}
	for n := range steps {
		m.step()
		pause(ctx, time.Duration(m.r.IntN(60))*time.Millisecond) // so that not all become one version
		if n%25 == 24 {
			sound()
		}
	}
	// Every list that can become empty does.
	for key := range m.flags {
		m.unflag(key)
	}
	m.regions()
	ids := []string{}
	for id := range m.here {
		ids = append(ids, id)
	}
	slices.Sort(ids)
	for _, id := range ids {
		m.must(m.here[id].Close(ctx))
		delete(m.here, id)
	}
	until(t, "nothing is left", func() bool {
		now := agree("the client to be up to date")
		return len(now.Flags) == 0 && now.Residency == nil && len(now.Endpoints) == 0 && svc.Status().Endpoints == 0
	})
	m.register("a", "v1", "eu")
	m.register("b", "v2", "us")
	m.flag("f0")
	sound()

	// What no network does.
	for _, fault := range []string{"drop", "repeat", "swap"} {
		agree("the client to be up to date")
		link.mu.Lock()
		watches, rejections, done := len(link.watches), len(link.applied), link.done
		link.fault = fault
		link.mu.Unlock()
		began := time.Now()
		until(t, "the client asks for the whole after "+fault, func() bool {
			m.flag("f1")
			pause(ctx, 50*time.Millisecond)
			link.mu.Lock()
			defer link.mu.Unlock()
			said := slices.ContainsFunc(link.applied[rejections:], func(a *donav1.AppliedConfig) bool { return a.RejectedReason != "" })
			asked := slices.ContainsFunc(link.watches[watches:], func(w *donav1.WatchConfigRequest) bool { return w.LastVersion == 0 })
			return said && asked && link.done > done
		})
		sound()
		t.Logf("%s: noticed and mended after %v", fault, time.Since(began).Round(time.Millisecond))
	}

	cancel()
	sent, made := whole(), built()
	both := 0
	for version, want := range sent {
		got := made[version]
		if got == nil {
			continue
		}
		both++
		want, got := proto.CloneOf(want), proto.CloneOf(got)
		want.Form, got.Form = 0, 0
		if !proto.Equal(got, want) {
			t.Errorf("version %d by deltas is %v\nand whole %v", version, got, want)
		}
	}
	t.Logf("%d versions by deltas, %d whole, %d both ways; %d deltas", len(made), len(sent), both, deltas())
	if both < 10 || deltas() < 10 {
		t.Error("too little was compared")
	}
}
