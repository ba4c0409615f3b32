package cli_test

import (
	"context"
	"maps"
	"net"
	"slices"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	controlplanev1 "github.com/dodona-project/dodona/proto/controlplane/v1"
	donav1 "github.com/dodona-project/dodona/proto/dona/v1"
)

// fakeHost keeps services in memory and does with them what a host does, as far
// as the command line can tell. A watch plays the replies that a test gave.
type fakeHost struct {
	donav1.UnimplementedControlPlaneServer
	donav1.UnimplementedHostAdminServer
	controlplanev1.UnimplementedPoolAdminServer

	address string
	server  *grpc.Server

	mu       sync.Mutex
	services map[string]*donav1.StatusReply
	plays    map[string][]*donav1.StatusReply
	plugins  []*donav1.PluginStatus
	log      []*donav1.PluginLogLine // of every plugin

	delivered map[string]delivered
	store     fakeStore
	pool      fakePool
	refuse    error // the answer to everything
	silent    bool  // no answer to anything
	drops     int   // watches that break after their first reply
	leaves    bool  // the host goes with the next watch, after its first reply
	last      proto.Message
	version   uint64
}

func newFakeHost(t testing.TB) *fakeHost {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	f := &fakeHost{
		address: listener.Addr().String(), version: 100,
		services: map[string]*donav1.StatusReply{}, plays: map[string][]*donav1.StatusReply{},
		delivered: map[string]delivered{},
	}
	server := grpc.NewServer(grpc.UnaryInterceptor(f.unary), grpc.StreamInterceptor(f.stream))
	f.server = server
	donav1.RegisterControlPlaneServer(server, f)
	donav1.RegisterHostAdminServer(server, f)
	controlplanev1.RegisterPoolAdminServer(server, f)
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = server.Serve(listener) // ends by Stop
	}()
	t.Cleanup(func() { server.Stop(); <-done })
	return f
}

func (f *fakeHost) unary(ctx context.Context, req any, _ *grpc.UnaryServerInfo, handle grpc.UnaryHandler) (any, error) {
	if err := f.hinder(ctx, req.(proto.Message)); err != nil {
		return nil, err
	}
	return handle(ctx, req)
}

func (f *fakeHost) stream(server any, stream grpc.ServerStream, _ *grpc.StreamServerInfo, handle grpc.StreamHandler) error {
	if err := f.hinder(stream.Context(), nil); err != nil {
		return err
	}
	return handle(server, stream)
}

func (f *fakeHost) hinder(ctx context.Context, request proto.Message) error {
	f.mu.Lock()
	silent, refuse := f.silent, f.refuse
	if _, read := request.(*donav1.GetStatusRequest); request != nil && !read {
		f.last = request
	}
	f.mu.Unlock()
	if silent {
		<-ctx.Done()
		return status.FromContextError(ctx.Err()).Err()
	}
	return refuse
}

// service returns a service, made when it is new. The lock is held.
func (f *fakeHost) service(name string) *donav1.StatusReply {
	s := f.services[name]
	if s == nil {
		s = &donav1.StatusReply{Config: &donav1.ConfigSnapshot{Service: name}, Policy: &donav1.ServicePolicy{}}
		f.services[name] = s
	}
	f.version++
	s.Config.Version = f.version
	return s
}

func (f *fakeHost) known(name string) (*donav1.StatusReply, error) {
	if s := f.services[name]; s != nil {
		return s, nil
	}
	return nil, status.Errorf(codes.NotFound, "service %q is not known", name)
}

func (f *fakeHost) ListServices(context.Context, *donav1.ListServicesRequest) (*donav1.ListServicesReply, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return &donav1.ListServicesReply{Services: slices.Sorted(maps.Keys(f.services))}, nil
}

func (f *fakeHost) GetStatus(_ context.Context, r *donav1.GetStatusRequest) (*donav1.StatusReply, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	s, err := f.known(r.GetService())
	if err != nil {
		return nil, err
	}
	return proto.CloneOf(s), nil
}

func (f *fakeHost) WatchStatus(r *donav1.GetStatusRequest, stream grpc.ServerStreamingServer[donav1.StatusReply]) error {
	f.mu.Lock()
	play := f.plays[r.GetService()]
	f.mu.Unlock()
	if play == nil {
		return status.Errorf(codes.NotFound, "service %q is not known", r.GetService())
	}
	for _, reply := range play {
		if err := stream.Send(reply); err != nil {
			return err
		}
		if f.drop() {
			return status.Error(codes.Unavailable, "the host stops")
		}
		if f.leave() {
			go f.server.GracefulStop() // waits for this watch, which so arrives whole
			return status.Error(codes.Unavailable, "the host stops")
		}
	}
	<-stream.Context().Done() // a watch has no end of its own
	return nil
}

func (f *fakeHost) leave() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.leaves
}

func (f *fakeHost) drop() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.drops == 0 {
		return false
	}
	f.drops--
	return true
}

func (f *fakeHost) SetFlag(_ context.Context, r *donav1.SetFlagRequest) (*donav1.Empty, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	s := f.service(r.GetRule().GetService())
	i := slices.IndexFunc(s.Config.Flags, func(x *donav1.FlagRule) bool { return x.GetFlag() == r.GetRule().GetFlag() })
	var held uint64
	if i >= 0 {
		held = s.Config.Flags[i].GetVersion()
	}
	if e := r.GetExpectedVersion(); e != 0 && e != held {
		return nil, status.Errorf(codes.FailedPrecondition, "expected_version is %d: the flag has version %d", e, held)
	}
	if i >= 0 {
		s.Config.Flags = slices.Delete(s.Config.Flags, i, i+1)
	}
	if !r.GetDelete() {
		rule := proto.CloneOf(r.GetRule())
		rule.Version = f.version
		s.Config.Flags = append(s.Config.Flags, rule)
	}
	return &donav1.Empty{}, nil
}

func (f *fakeHost) SetServicePolicy(_ context.Context, r *donav1.SetServicePolicyRequest) (*donav1.Empty, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	p := f.service(r.GetService()).Policy
	if r.GetResidency() != nil || r.GetClearResidency() {
		p.Residency = r.GetResidency()
	}
	if r.GetStrategy() != "" {
		p.Strategy, p.StrategyConfig = r.GetStrategy(), r.GetStrategyConfig()
	}
	if r.GetProbe() != "" {
		p.Probe, p.ProbeConfig = r.GetProbe(), r.GetProbeConfig()
	}
	return &donav1.Empty{}, nil
}

func (f *fakeHost) StartRollout(_ context.Context, r *donav1.StartRolloutRequest) (*donav1.Empty, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	s := f.service(r.GetService())
	s.Rollout = &donav1.RolloutStatus{
		Id: "r-1", Service: r.GetService(), CanaryVariant: r.GetCanaryVariant(), StableVariant: r.GetStableVariant(),
		State: donav1.RolloutStatus_STATE_PENDING, Steps: r.GetSteps(), Reason: "waits for an endpoint of " + r.GetCanaryVariant(),
	}
	return &donav1.Empty{}, nil
}

func (f *fakeHost) ControlRollout(_ context.Context, r *donav1.ControlRolloutRequest) (*donav1.RolloutStatus, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	s, err := f.known(r.GetService())
	if err != nil {
		return nil, err
	}
	if s.Rollout == nil {
		return nil, status.Errorf(codes.FailedPrecondition, "%s has no rollout", r.GetService())
	}
	to := map[donav1.ControlRolloutRequest_Action]donav1.RolloutStatus_State{
		donav1.ControlRolloutRequest_ACTION_PAUSE:       donav1.RolloutStatus_STATE_PAUSED,
		donav1.ControlRolloutRequest_ACTION_RESUME:      donav1.RolloutStatus_STATE_PENDING,
		donav1.ControlRolloutRequest_ACTION_PROMOTE_ALL: donav1.RolloutStatus_STATE_PROMOTED,
		donav1.ControlRolloutRequest_ACTION_ABORT:       donav1.RolloutStatus_STATE_ABORTED,
	}
	if state, ok := to[r.GetAction()]; ok {
		s.Rollout.State, s.Rollout.Reason = state, r.GetReason()
	}
	return proto.CloneOf(s.Rollout), nil
}

func (f *fakeHost) ListPlugins(context.Context, *donav1.ListPluginsRequest) (*donav1.ListPluginsReply, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return &donav1.ListPluginsReply{Plugins: f.plugins}, nil
}

// plugin is the one that a request names. The lock is held.
func (f *fakeHost) plugin(kind, name string) (*donav1.PluginStatus, error) {
	for _, p := range f.plugins {
		if p.GetKind() == kind && p.GetName() == name {
			return p, nil
		}
	}
	return nil, status.Errorf(codes.NotFound, "there is no %s plugin %q", kind, name)
}

func (f *fakeHost) ReloadPlugin(_ context.Context, r *donav1.PluginRequest) (*donav1.PluginStatus, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	p, err := f.plugin(r.GetKind(), r.GetName())
	if err != nil {
		return nil, err
	}
	if p.GetState() != "ready" {
		return nil, status.Errorf(codes.FailedPrecondition, "plugin %s/%s is %s (%s)", p.GetKind(), p.GetName(), p.GetState(), p.GetReason())
	}
	p.Generation, p.Pid, p.Starts = p.Generation+1, p.Pid+1, p.Starts+1
	return proto.CloneOf(p), nil
}

func (f *fakeHost) ResetPlugin(_ context.Context, r *donav1.PluginRequest) (*donav1.PluginStatus, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	p, err := f.plugin(r.GetKind(), r.GetName())
	if err != nil {
		return nil, err
	}
	p.State, p.Reason = "starting", ""
	return proto.CloneOf(p), nil
}

func (f *fakeHost) TailPluginLogs(r *donav1.TailPluginLogsRequest, stream grpc.ServerStreamingServer[donav1.PluginLogLine]) error {
	f.mu.Lock()
	f.last = r
	_, err := f.plugin(r.GetKind(), r.GetName())
	log := f.log
	f.mu.Unlock()
	if err != nil {
		return err
	}
	if err := stream.SendHeader(nil); err != nil {
		return err
	}
	for _, l := range log[max(0, len(log)-int(r.GetLast())):] {
		if err := stream.Send(l); err != nil {
			return err
		}
	}
	if r.GetFollow() && !f.drop() {
		<-stream.Context().Done()
	}
	return nil
}

// scriptTime is the longest a script may take; one that waits for what does not
// come fails with its log instead of hanging.
const scriptTime = 5 * time.Minute
