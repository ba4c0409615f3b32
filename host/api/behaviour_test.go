package api_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	controlplanev1 "github.com/dodona-project/dodona/proto/controlplane/v1"
	donav1 "github.com/dodona-project/dodona/proto/dona/v1"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/encoding"
	_ "google.golang.org/grpc/encoding/gzip"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/mem"
	reflectionv1 "google.golang.org/grpc/reflection/grpc_reflection_v1"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/dodona-project/dodona/host/api"
	"github.com/dodona-project/dodona/host/store"
	"github.com/dodona-project/dodona/host/store/embedded"
	"github.com/dodona-project/dodona/sdk/dona/digest"
	"github.com/dodona-project/dodona/sdk/dona/mirror"
)

// held is an endpoint that a test holds open.
type held struct {
	stream donav1.ControlPlane_RegisterEndpointClient
	end    context.CancelFunc
}

// register opens a registration and waits until it is accepted.
func (e *edge) register(b *donav1.EndpointHeartbeat) held {
	e.t.Helper()
	c, cancel := context.WithCancel(context.Background())
	e.t.Cleanup(cancel)
	s, err := e.client.RegisterEndpoint(c)
	fatal(e.t, err)
	fatal(e.t, s.Send(b))
	header, err := s.Header()
	fatal(e.t, err)
	if len(header.Get("dona-lease-id")) != 1 || len(header.Get("dona-heartbeat-ms")) != 1 {
		e.t.Fatalf("the headers are %v", header)
	}
	return held{s, cancel}
}

func (h held) ended() error {
	var ack donav1.RegisterAck
	return h.stream.RecvMsg(&ack)
}

// watch opens a watch.
func (e *edge) watch(req *donav1.WatchConfigRequest) donav1.ControlPlane_WatchConfigClient {
	e.t.Helper()
	s, err := e.client.WatchConfig(ctx(e.t), req)
	fatal(e.t, err)
	return s
}

// next reads frames until one is as wanted, demanding that each holds.
func next(t *testing.T, s donav1.ControlPlane_WatchConfigClient, want func(*donav1.ConfigSnapshot) bool) *donav1.ConfigSnapshot {
	t.Helper()
	var last uint64
	for {
		f, err := s.Recv()
		fatal(t, err)
		if f.Version < last {
			t.Fatalf("version %d after %d", f.Version, last)
		}
		last = f.Version
		if f.Form == donav1.ConfigSnapshot_FORM_FULL {
			if sum := digest.OfSnapshot(f); !bytes.Equal(sum[:], f.Checksum) {
				t.Fatalf("version %d: the checksum is not that of the content", f.Version)
			}
		}
		if want(f) {
			return f
		}
	}
}

func endpoints(n int) func(*donav1.ConfigSnapshot) bool {
	return func(f *donav1.ConfigSnapshot) bool { return len(f.Endpoints) == n }
}

func TestEndpointLife(t *testing.T) {
	e := newEdge(t)
	w := e.watch(&donav1.WatchConfigRequest{Service: "web"})
	next(t, w, func(f *donav1.ConfigSnapshot) bool { return f.Version == 0 && len(f.Endpoints) == 0 })
	a := e.register(endpoint(nil))
	next(t, w, endpoints(1))
	fatal(t, a.stream.Send(&donav1.EndpointHeartbeat{Sequence: 1, Draining: true}))
	f := next(t, w, func(f *donav1.ConfigSnapshot) bool { return len(f.Endpoints) == 1 && f.Endpoints[0].LbWeight == 0 })
	if f.Endpoints[0].Id != "a" {
		t.Errorf("the endpoint is %v", f.Endpoints[0])
	}
	ack, err := a.stream.CloseAndRecv()
	if err != nil || ack.LeaseId == "" || ack.Heartbeats != 1 {
		t.Errorf("the goodbye is answered with %v, %v", ack, err)
	}
	next(t, w, endpoints(0))

	// The newest stream wins; the older one's end removes nothing.
	old := e.register(endpoint(nil))
	e.register(endpoint(func(b *donav1.EndpointHeartbeat) { b.Address = "127.0.0.1:81" }))
	refused(t, "the older stream", old.ended(), codes.Aborted, "")
	next(t, w, func(f *donav1.ConfigSnapshot) bool {
		return len(f.Endpoints) == 1 && f.Endpoints[0].Address == "127.0.0.1:81"
	})

	// A fixed field that changes ends the lease.
	for field, change := range map[string]func(*donav1.EndpointHeartbeat){
		"service":     func(b *donav1.EndpointHeartbeat) { b.Service = "other" },
		"endpoint_id": func(b *donav1.EndpointHeartbeat) { b.EndpointId = "other" },
		"address":     func(b *donav1.EndpointHeartbeat) { b.Address = "127.0.0.1:1" },
		"variant":     func(b *donav1.EndpointHeartbeat) { b.Variant = "other" },
		"region":      func(b *donav1.EndpointHeartbeat) { b.Region = "other" },
		"zone":        func(b *donav1.EndpointHeartbeat) { b.Zone = "other" },
	} {
		h := e.register(endpoint(func(b *donav1.EndpointHeartbeat) { b.EndpointId, b.Zone = "b", "z" }))
		next(t, w, endpoints(2))
		bad := endpoint(func(b *donav1.EndpointHeartbeat) { b.EndpointId, b.Zone = "b", "z" })
		change(bad)
		fatal(t, h.stream.Send(bad))
		refused(t, field+" changes", h.ended(), codes.InvalidArgument, field)
		next(t, w, endpoints(1))
	}
	// A heartbeat that is nonsense, too.
	h := e.register(endpoint(func(b *donav1.EndpointHeartbeat) { b.EndpointId = "b" }))
	next(t, w, endpoints(2))
	fatal(t, h.stream.Send(&donav1.EndpointHeartbeat{Utilization: 2}))
	refused(t, "a heartbeat's utilization", h.ended(), codes.InvalidArgument, "utilization")
	next(t, w, endpoints(1))
}

func TestHeartbeatFlood(t *testing.T) {
	e := newEdge(t)
	h := e.register(endpoint(nil))
	for i := range 10_000 {
		if h.stream.Send(&donav1.EndpointHeartbeat{Sequence: uint64(i + 1)}) != nil {
			break
		}
	}
	refused(t, "a flood of heartbeats", h.ended(), codes.ResourceExhausted, "")
}

func TestWatch(t *testing.T) {
	e := newEdge(t)
	e.register(endpoint(nil))
	w := e.watch(&donav1.WatchConfigRequest{Service: "web", ClientId: "c1"})
	f := next(t, w, endpoints(1))

	held := e.watch(&donav1.WatchConfigRequest{Service: "web", LastVersion: f.Version, LastChecksum: f.Checksum})
	if u, err := held.Recv(); err != nil || u.Form != donav1.ConfigSnapshot_FORM_UNCHANGED || u.Version != f.Version || len(u.Endpoints) != 0 {
		t.Errorf("who holds the current version gets %v, %v", u, err)
	}
	damaged := e.watch(&donav1.WatchConfigRequest{Service: "web", LastVersion: f.Version, LastChecksum: make([]byte, 32)})
	if u, err := damaged.Recv(); err != nil || u.Form != donav1.ConfigSnapshot_FORM_FULL {
		t.Errorf("who holds other content gets %v, %v", u, err)
	}
	future := e.watch(&donav1.WatchConfigRequest{Service: "web", ClientId: "future", LastVersion: 1 << 50, LastChecksum: f.Checksum})
	if u, err := future.Recv(); err != nil || u.Form != donav1.ConfigSnapshot_FORM_FULL || u.Version != f.Version {
		t.Errorf("who has seen the future gets %v, %v", u, err)
	}
	if len(*e.alarms) != 1 || !strings.Contains((*e.alarms)[0], "future") {
		t.Errorf("the alarms are %q", *e.alarms)
	}
	// A change reaches all of them.
	_, err := e.client.SetFlag(ctx(t), flagRule(func(*donav1.FlagRule) {}))
	fatal(t, err)
	for _, s := range []donav1.ControlPlane_WatchConfigClient{w, held, damaged, future} {
		next(t, s, func(f *donav1.ConfigSnapshot) bool { return len(f.Flags) == 1 && f.Flags[0].Version > 0 })
	}
	// What clients say of a version is in the status.
	_, err = e.client.ReportStats(ctx(t), &donav1.StatsBatch{ReporterId: "c1", Sequence: 1, Applied: []*donav1.AppliedConfig{
		{Service: "web", Version: f.Version, RejectedReason: "no such algorithm"}}})
	fatal(t, err)
	s, err := e.client.GetStatus(ctx(t), &donav1.GetStatusRequest{Service: "web"})
	if err != nil || s.Watchers.Connected != 4 || len(s.Watchers.Rejected) != 1 || s.Watchers.Rejected[0].RejectedReason != "no such algorithm" {
		t.Errorf("the watchers are %v, %v", s.GetWatchers(), err)
	}
}

// TestWatchDeltas: who asks for deltas gets them, others whole snapshots, and both
// come to the same.
func TestWatchDeltas(t *testing.T) {
	e := newEdge(t)
	for i := range 20 {
		e.register(endpoint(func(b *donav1.EndpointHeartbeat) { b.EndpointId = fmt.Sprint("e", i) }))
	}
	asks, old := e.watch(&donav1.WatchConfigRequest{Service: "web", AcceptDelta: true}), e.watch(&donav1.WatchConfigRequest{Service: "web"})
	full := next(t, asks, endpoints(20))
	next(t, old, endpoints(20))
	held, err := mirror.Full(full)
	fatal(t, err)
	_, err = e.client.SetFlag(ctx(t), flagRule(func(*donav1.FlagRule) {}))
	fatal(t, err)
	_, err = e.client.SetServicePolicy(ctx(t), &donav1.SetServicePolicyRequest{Service: "web", Residency: &donav1.ResidencyPolicy{AllowedRegions: []string{"eu"}}})
	fatal(t, err)
	_, err = e.client.SetServicePolicy(ctx(t), &donav1.SetServicePolicyRequest{Service: "web", ClearResidency: true})
	fatal(t, err)
	want := next(t, old, func(f *donav1.ConfigSnapshot) bool {
		if f.Form != donav1.ConfigSnapshot_FORM_FULL {
			t.Fatalf("who does not ask for deltas got %s", f.Form)
		}
		s, err := e.client.GetStatus(ctx(t), &donav1.GetStatusRequest{Service: "web"})
		fatal(t, err)
		return len(f.Flags) == 1 && f.Version == s.Config.Version
	})
	for held.Version() < want.Version {
		d, err := asks.Recv()
		fatal(t, err)
		if d.Form != donav1.ConfigSnapshot_FORM_DELTA || d.BaseVersion != held.Version() || len(d.Endpoints) != 0 {
			t.Fatalf("who asks for deltas and holds %d got %v", held.Version(), d)
		}
		held, err = held.Apply(d)
		fatal(t, err)
	}
	if !proto.Equal(held.Config(), want) {
		t.Errorf("deltas come to\n%v, the full frame is\n%v", held.Config(), want)
	}
}

// TestStatusCounts: exposures and what clients say of versions show in the status.
func TestStatusCounts(t *testing.T) {
	e := newEdge(t)
	e.register(endpoint(nil))
	_, err := e.client.SetFlag(ctx(t), flagRule(func(*donav1.FlagRule) {}))
	fatal(t, err)
	w := e.watch(&donav1.WatchConfigRequest{Service: "web", ClientId: "c1"})
	f := next(t, w, func(f *donav1.ConfigSnapshot) bool { return len(f.Flags) == 1 })
	flag := f.Flags[0].Flag
	see := func(variant string, reason donav1.Reason) *donav1.Exposure {
		return &donav1.Exposure{Service: "web", Flag: flag, Variant: variant, Reason: reason, ConfigVersion: f.Version, UnixMs: time.Now().UnixMilli()}
	}
	_, err = e.client.ReportStats(ctx(t), &donav1.StatsBatch{ReporterId: "c1", Sequence: 1,
		Exposures: []*donav1.Exposure{see("v1", donav1.Reason_REASON_SPLIT), see("", donav1.Reason_REASON_DEFAULT), see("v1", donav1.Reason_REASON_SPLIT)},
		Applied:   []*donav1.AppliedConfig{{Service: "web", Version: f.Version}}})
	fatal(t, err)
	s, err := e.client.GetStatus(ctx(t), &donav1.GetStatusRequest{Service: "web"})
	fatal(t, err)
	want := []*donav1.ExposureCount{
		{Flag: flag, Reason: donav1.Reason_REASON_DEFAULT, ConfigVersion: f.Version, Count: 1},
		{Flag: flag, Variant: "v1", Reason: donav1.Reason_REASON_SPLIT, ConfigVersion: f.Version, Count: 2}}
	if !slices.EqualFunc(s.Exposures, want, func(a, b *donav1.ExposureCount) bool { return proto.Equal(a, b) }) {
		t.Errorf("the exposures are %v, want %v", s.Exposures, want)
	}
	if s.Watchers.Connected != 1 || s.Watchers.OnCurrentVersion != 1 || s.Watchers.RejectedClients != 0 {
		t.Errorf("the watchers are %v, want one on the current version", s.Watchers)
	}
	_, err = e.client.ReportStats(ctx(t), &donav1.StatsBatch{ReporterId: "c1", Sequence: 2,
		Applied: []*donav1.AppliedConfig{{Service: "web", Version: f.Version + 1, RejectedReason: "checksum"}}})
	fatal(t, err)
	s, err = e.client.GetStatus(ctx(t), &donav1.GetStatusRequest{Service: "web"})
	if err != nil || s.Watchers.OnCurrentVersion != 0 || s.Watchers.RejectedClients != 1 || len(s.Watchers.Rejected) != 1 {
		t.Errorf("the watchers are %v (%v), want one that rejected", s.GetWatchers(), err)
	}
}

func TestStatus(t *testing.T) {
	e := newEdge(t)
	e.register(endpoint(nil))
	c := ctx(t)
	stream, err := e.client.WatchStatus(c, &donav1.GetStatusRequest{Service: "web"})
	fatal(t, err)
	first, err := stream.Recv()
	fatal(t, err)
	_, err = e.client.SetServicePolicy(c, &donav1.SetServicePolicyRequest{Service: "web", Strategy: "round-robin",
		Residency: &donav1.ResidencyPolicy{AllowedRegions: []string{"eu"}, RuleId: "gdpr"}})
	fatal(t, err)
	_, err = e.client.StartRollout(c, start(nil))
	fatal(t, err)
	var s *donav1.StatusReply
	for s.GetRollout() == nil {
		s, err = stream.Recv()
		fatal(t, err)
	}
	if s.Rollout.State != donav1.RolloutStatus_STATE_PENDING || s.Policy.Strategy != "round-robin" || s.Config.Residency.RuleId != "gdpr" ||
		len(s.Config.Weights) != 2 || s.Config.Weights[0].Variant != "v2" || s.Config.Weights[0].Weight != 0 ||
		s.AuditSequence <= first.AuditSequence || len(s.AuditHead) != 64 {
		t.Errorf("the status is %v", s)
	}
	list, err := e.client.ListServices(c, &donav1.ListServicesRequest{})
	if err != nil || !slices.Equal(list.Services, []string{"web"}) {
		t.Errorf("the services are %v, %v", list, err)
	}
	host, err := e.admin.GetHost(c, &donav1.GetHostRequest{})
	if err != nil || host.HostId != "h1" || host.Store != "embedded" || host.StoreState != "ready" || !strings.HasPrefix(host.Durability, "not durable: ") {
		t.Errorf("the host is %v, %v", host, err)
	}
	if p, err := e.admin.ListPlugins(c, &donav1.ListPluginsRequest{}); err != nil || len(p.Plugins) != 3 {
		t.Errorf("the plugins are %v, %v", p, err)
	}
	_, err = e.admin.CreateToken(c, &donav1.CreateTokenRequest{})
	refused(t, "CreateToken", err, codes.FailedPrecondition, "")
}

// TestWrongState: each verb where it has no place.
func TestWrongState(t *testing.T) {
	e := newEdge(t)
	e.register(endpoint(nil))
	c := ctx(t)
	verb := func(a donav1.ControlRolloutRequest_Action) error {
		_, err := e.client.ControlRollout(c, &donav1.ControlRolloutRequest{Service: "web", Action: a})
		return err
	}
	live := []donav1.ControlRolloutRequest_Action{
		donav1.ControlRolloutRequest_ACTION_PAUSE, donav1.ControlRolloutRequest_ACTION_RESUME,
		donav1.ControlRolloutRequest_ACTION_PROMOTE_STEP, donav1.ControlRolloutRequest_ACTION_PROMOTE_ALL, donav1.ControlRolloutRequest_ACTION_ABORT,
	}
	for _, a := range live {
		if code := status.Code(verb(a)); code != codes.NotFound && code != codes.FailedPrecondition {
			t.Errorf("%v without a rollout: %v", a, code)
		}
	}
	_, err := e.client.StartRollout(c, start(nil))
	fatal(t, err)
	_, err = e.client.StartRollout(c, start(nil)) // identical
	fatal(t, err)
	_, err = e.client.StartRollout(c, start(func(r *donav1.StartRolloutRequest) { r.StepSeconds = 99 }))
	refused(t, "another rollout while one is live", err, codes.FailedPrecondition, "")
	before := e.written()
	for _, a := range []donav1.ControlRolloutRequest_Action{donav1.ControlRolloutRequest_ACTION_RESUME, donav1.ControlRolloutRequest_ACTION_PROMOTE_STEP, donav1.ControlRolloutRequest_ACTION_PROMOTE_ALL} {
		refused(t, a.String()+" in PENDING", verb(a), codes.FailedPrecondition, "")
	}
	if e.written() != before {
		t.Error("a refused verb stored something")
	}
	fatal(t, verb(donav1.ControlRolloutRequest_ACTION_ABORT))
	for _, a := range live {
		refused(t, a.String()+" after the end", verb(a), codes.FailedPrecondition, "")
	}
	_, err = e.client.ControlRollout(c, &donav1.ControlRolloutRequest{Service: "web", Action: donav1.ControlRolloutRequest_ACTION_LIFT_QUARANTINE, Variant: "v1"})
	refused(t, "lifting what is not quarantined", err, codes.FailedPrecondition, "")
}

func TestReportFence(t *testing.T) {
	e := newEdge(t)
	e.register(endpoint(nil))
	c := ctx(t)
	batch := func(sequence uint64, calls int) *donav1.StatsBatch {
		b := &donav1.StatsBatch{ReporterId: "r", Sequence: sequence}
		for range calls {
			b.Calls = append(b.Calls, &donav1.CallOutcome{Service: "web", Variant: "v1", EndpointId: "a", Success: true, UnixMs: time.Now().UnixMilli() / 1000 * 1000})
		}
		return b
	}
	requests := func() (n uint64) {
		s, err := e.client.GetStatus(c, &donav1.GetStatusRequest{Service: "web"})
		fatal(t, err)
		for _, v := range s.Stats {
			n += v.Requests
		}
		return n
	}
	first := batch(5, 3)
	for range 3 {
		ack, err := e.client.ReportStats(c, first)
		if err != nil || ack.AcceptedSequence != 5 || ack.Dropped != 0 {
			t.Fatalf("%v, %v", ack, err)
		}
	}
	if n := requests(); n != 3 {
		t.Errorf("a batch sent three times counts %d calls, want 3", n)
	}
	_, err := e.client.ReportStats(c, batch(5, 4))
	refused(t, "same sequence, other content", err, codes.AlreadyExists, "")
	_, err = e.client.ReportStats(c, batch(4, 1))
	refused(t, "a lower sequence", err, codes.Aborted, "")
	_, err = e.client.ReportStats(c, batch(9, 1))
	fatal(t, err)
	ack, err := e.client.ReportStats(c, &donav1.StatsBatch{ReporterId: "r", Sequence: 10, Calls: []*donav1.CallOutcome{{Service: "nope"}, {}}})
	if err != nil || ack.Dropped != 2 {
		t.Errorf("two bad items: %v, %v", ack, err)
	}
	if n := requests(); n != 4 {
		t.Errorf("%d calls are counted, want 4", n)
	}
}

// raw sends bytes as they are.
type raw struct{}

func (raw) Name() string { return "proto" }
func (raw) Marshal(v any) (mem.BufferSlice, error) {
	if b, ok := v.([]byte); ok {
		return mem.BufferSlice{mem.SliceBuffer(b)}, nil
	}
	return encoding.GetCodecV2("proto").Marshal(v)
}
func (raw) Unmarshal(data mem.BufferSlice, v any) error {
	return encoding.GetCodecV2("proto").Unmarshal(data, v)
}

// unaryMethods and their request types, as they are registered.
func unaryMethods() (methods []string) {
	for _, d := range []grpc.ServiceDesc{donav1.ControlPlane_ServiceDesc, donav1.HostAdmin_ServiceDesc, controlplanev1.CheckerControlPlane_ServiceDesc,
		controlplanev1.WorkerControlPlane_ServiceDesc, controlplanev1.PoolAdmin_ServiceDesc} {
		for _, m := range d.Methods {
			methods = append(methods, "/"+d.ServiceName+"/"+m.MethodName)
		}
	}
	return methods
}

func TestBytesThatDoNotParse(t *testing.T) {
	e := newEdge(t)
	before := e.written()
	for name, bytes := range map[string][]byte{
		"not protobuf":  {0xff, 0xff, 0xff},
		"cut short":     {0x0a, 0x7f, 'a'},
		"invalid UTF-8": {0x0a, 0x02, 0xff, 0xfe}, // field 1: in most requests a string
	} {
		for _, method := range unaryMethods() {
			err := e.conn.Invoke(ctx(t), method, bytes, &donav1.Empty{}, grpc.ForceCodecV2(raw{}))
			if code := status.Code(err); code == codes.Internal || code == codes.Unknown {
				t.Errorf("%s of %s: %v", name, method, err)
			}
		}
		for _, method := range []string{donav1.ControlPlane_RegisterEndpoint_FullMethodName, donav1.ControlPlane_WatchConfig_FullMethodName, donav1.ControlPlane_WatchStatus_FullMethodName, donav1.HostAdmin_TailPluginLogs_FullMethodName, controlplanev1.CheckerControlPlane_StreamCheckTasks_FullMethodName,
			controlplanev1.WorkerControlPlane_WatchSnapshots_FullMethodName, controlplanev1.WorkerControlPlane_ReportOutcomes_FullMethodName} {
			s, err := e.conn.NewStream(ctx(t), &grpc.StreamDesc{ClientStreams: true, ServerStreams: true}, method, grpc.ForceCodecV2(raw{}))
			fatal(t, err)
			_ = s.SendMsg(bytes)
			_ = s.CloseSend()
			refused(t, name+" of "+method, s.RecvMsg(&donav1.Empty{}), codes.InvalidArgument, "")
		}
	}
	if e.written() != before {
		t.Error("something was stored")
	}
}

func TestSizes(t *testing.T) {
	e := newEdge(t)
	big := strings.Repeat("x", 300<<10)
	_, err := e.client.SetFlag(ctx(t), flagRule(func(r *donav1.FlagRule) { r.Flag = big }))
	refused(t, "over the method's size", err, codes.ResourceExhausted, "")
	_, err = e.client.SetFlag(ctx(t), flagRule(func(r *donav1.FlagRule) { r.Flag = big }), grpc.UseCompressor("gzip"))
	refused(t, "over the method's size, compressed", err, codes.ResourceExhausted, "")
	_, err = e.client.ReportStats(ctx(t), &donav1.StatsBatch{ReporterId: strings.Repeat("x", 5<<20)})
	refused(t, "over every size", err, codes.ResourceExhausted, "")
	_, err = e.client.SetFlag(ctx(t), flagRule(func(r *donav1.FlagRule) { r.Flag = strings.Repeat("x", 5<<20) }), grpc.UseCompressor("gzip"))
	refused(t, "a bomb", err, codes.ResourceExhausted, "")
	s, err := e.client.RegisterEndpoint(ctx(t))
	fatal(t, err)
	_ = s.Send(endpoint(func(b *donav1.EndpointHeartbeat) { b.Region = big }))
	_, err = s.CloseAndRecv()
	refused(t, "a stream's message over its size", err, codes.ResourceExhausted, "")
	done, cancel := context.WithCancel(context.Background())
	cancel()
	_, err = e.client.SetFlag(done, flagRule(func(*donav1.FlagRule) {}))
	refused(t, "cancelled before", err, codes.Canceled, "")
}

// TestPolicyTable compares the table with the services that are registered.
func TestPolicyTable(t *testing.T) {
	e := newEdge(t)
	have := map[string]bool{}
	for service, info := range e.server.GetServiceInfo() {
		for _, m := range info.Methods {
			method := "/" + service + "/" + m.Name
			have[method] = true
			rule, ok := api.Policy[method]
			if !ok {
				t.Errorf("%s has no row: it is denied to everyone", method)
			}
			if ok && (len(rule.Roles) == 0 || rule.MaxBytes == 0 || rule.Rate == 0 || rule.Burst == 0) {
				t.Errorf("%s: the row says too little: %+v", method, rule)
			}
		}
	}
	for method := range api.Policy {
		if !have[method] {
			t.Errorf("%s has a row and is not registered", method)
		}
	}
	if err := e.conn.Invoke(ctx(t), "/dona.v1.ControlPlane/Nope", &donav1.Empty{}, &donav1.Empty{}); status.Code(err) != codes.Unimplemented {
		t.Errorf("an unknown method: %v", err)
	}
	h, err := grpc_health_v1.NewHealthClient(e.conn).Check(ctx(t), &grpc_health_v1.HealthCheckRequest{})
	if err != nil || h.Status != grpc_health_v1.HealthCheckResponse_SERVING {
		t.Errorf("health: %v, %v", h, err)
	}
	r, err := reflectionv1.NewServerReflectionClient(e.conn).ServerReflectionInfo(ctx(t))
	fatal(t, err)
	fatal(t, r.Send(&reflectionv1.ServerReflectionRequest{MessageRequest: &reflectionv1.ServerReflectionRequest_ListServices{}}))
	if list, err := r.Recv(); err != nil || len(list.GetListServicesResponse().GetService()) < 3 {
		t.Errorf("reflection: %v, %v", list, err)
	}
}

func TestRateLimit(t *testing.T) {
	e := newEdge(t)
	var limited error
	for range 2000 {
		if _, err := e.client.ListServices(ctx(t), &donav1.ListServicesRequest{}); err != nil {
			limited = err
			break
		}
	}
	refused(t, "called without end", limited, codes.ResourceExhausted, "")
	retry := false
	for _, d := range status.Convert(limited).Details() {
		_, is := d.(*errdetails.RetryInfo)
		retry = retry || is
	}
	if !retry {
		t.Error("the answer does not say when to try again")
	}
}

// faulty is a store whose hard updates fail, or wait for ever, while it is told
// to.
type faulty struct {
	store.Store
	fault *atomic.Pointer[error]
}

func (f faulty) Update(c context.Context, d store.Durability, fn func(store.Tx) error) error {
	if p := f.fault.Load(); p != nil && d == store.Hard {
		if *p == nil {
			<-c.Done()
			return c.Err()
		}
		return *p
	}
	return f.Store.Update(c, d, fn)
}

// TestStoreAway: control actions are refused in time and say why, while streams
// and heartbeats go on; when the store is back, so are they.
func TestStoreAway(t *testing.T) {
	var fault atomic.Pointer[error]
	e := newEdge(t, withStore(func(s store.Store) store.Store { return faulty{s, &fault} }))
	a := e.register(endpoint(nil))
	w := e.watch(&donav1.WatchConfigRequest{Service: "web"})
	next(t, w, endpoints(1))
	blocked := error(nil)
	for name, f := range map[string]*error{"full": &store.ErrFull, "read-only": &store.ErrReadOnly, "blocked": &blocked} {
		fault.Store(f)
		for verb, do := range map[string]func() error{
			"SetFlag": func() error { _, err := e.client.SetFlag(ctx(t), flagRule(func(*donav1.FlagRule) {})); return err },
			"SetServicePolicy": func() error {
				_, err := e.client.SetServicePolicy(ctx(t), &donav1.SetServicePolicyRequest{Service: "web", Strategy: "round-robin"})
				return err
			},
			"StartRollout": func() error { _, err := e.client.StartRollout(ctx(t), start(nil)); return err },
		} {
			err := do()
			refused(t, verb+" with the store "+name, err, codes.Unavailable, "")
			reason := ""
			for _, d := range status.Convert(err).Details() {
				if i, ok := d.(*errdetails.ErrorInfo); ok {
					reason = i.Reason
				}
			}
			if reason != "audit" {
				t.Errorf("%s with the store %s: the reason is %q, want audit", verb, name, reason)
			}
		}
		fatal(t, a.stream.Send(&donav1.EndpointHeartbeat{}))
		b := e.register(endpoint(func(b *donav1.EndpointHeartbeat) { b.EndpointId = "b" }))
		next(t, w, endpoints(2))
		if _, err := b.stream.CloseAndRecv(); err != nil {
			t.Errorf("a goodbye with the store %s: %v", name, err)
		}
		next(t, w, endpoints(1))
	}
	fault.Store(nil)
	_, err := e.client.SetFlag(ctx(t), flagRule(func(*donav1.FlagRule) {}))
	fatal(t, err)
	next(t, w, func(f *donav1.ConfigSnapshot) bool { return len(f.Flags) == 1 })
}

// blind is a store that cannot be read while it is told so.
type blind struct {
	store.Store
	away *atomic.Bool
}

func (b blind) View(c context.Context, fn func(store.ReadTx) error) error {
	if b.away.Load() {
		return fmt.Errorf("%w: a test", store.ErrUnavailable)
	}
	return b.Store.View(c, fn)
}

// TestWatchWhileTheStoreIsAway: who comes while the store cannot be read is given the
// last snapshot, if it was to be given it when the store was read last.
func TestWatchWhileTheStoreIsAway(t *testing.T) {
	var away atomic.Bool
	st := embedded.OpenMemory(embedded.Options{})
	t.Cleanup(func() { _ = st.Close() })
	e := newEdge(t, onStore(blind{st, &away}))
	e.register(endpoint(nil))
	as := func(caller string) donav1.ControlPlane_WatchConfigClient {
		return e.watch(&donav1.WatchConfigRequest{Service: "web", CallerService: caller, CallerRegion: "eu"})
	}
	_, err := e.client.SetSharedService(ctx(t), share(nil)) // shop alone
	fatal(t, err)
	next(t, as("shop"), endpoints(1))
	away.Store(true)
	next(t, as("shop"), endpoints(1))
	_, err = as("pay").Recv()
	refused(t, "a caller that is not named", err, codes.PermissionDenied, "")
	_, err = e.watch(&donav1.WatchConfigRequest{Service: "unseen"}).Recv()
	refused(t, "a service that nobody has watched", err, codes.Unavailable, "")

	// What has changed since is known before what was is used again.
	away.Store(false)
	_, err = e.client.SetSharedService(ctx(t), share(func(r *donav1.SetSharedServiceRequest) { r.Consumers = []string{"pay"} }))
	fatal(t, err)
	next(t, as("pay"), endpoints(1))
	away.Store(true)
	_, err = as("shop").Recv()
	refused(t, "a caller that is not named any more", err, codes.PermissionDenied, "")
	next(t, as("pay"), endpoints(1))
}

// TestMissedHeartbeats: the stream lives, the heartbeats stop, the endpoint goes.
func TestMissedHeartbeats(t *testing.T) {
	e := newEdge(t, withHeartbeat(100*time.Millisecond))
	w := e.watch(&donav1.WatchConfigRequest{Service: "web"})
	a := e.register(endpoint(nil))
	next(t, w, endpoints(1))
	next(t, w, endpoints(0))
	if err := a.ended(); err == nil || errors.Is(err, io.EOF) {
		t.Errorf("the stream of a lease that expired ends with %v", err)
	}
}

func FuzzRequests(f *testing.F) {
	for _, m := range []proto.Message{endpoint(nil), start(nil), flagRule(func(*donav1.FlagRule) {}), &donav1.GetStatusRequest{Service: "web"}} {
		b, _ := proto.Marshal(m)
		f.Add(uint8(0), b)
	}
	f.Fuzz(func(t *testing.T, which uint8, data []byte) {
		e := fuzzEdge(t)
		methods := unaryMethods()
		err := e.conn.Invoke(ctx(t), methods[int(which)%len(methods)], data, &donav1.Empty{}, grpc.ForceCodecV2(raw{}))
		if code := status.Code(err); code == codes.Unknown || code == codes.Internal && !strings.Contains(err.Error(), "unmarshal") {
			t.Errorf("%s: %v", methods[int(which)%len(methods)], err)
		}
	})
}

// fuzzEdge is a server of its own for each input: what one stores is no other's.
func fuzzEdge(t *testing.T) *edge { return newEdge(t) }
