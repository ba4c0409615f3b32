package api

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	controlplanev1 "github.com/dodona-project/dodona/proto/controlplane/v1"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/dodona-project/dodona/host/check"
	"github.com/dodona-project/dodona/host/identity"
	"github.com/dodona-project/dodona/host/limits"
	"github.com/dodona-project/dodona/host/refusal"
	"github.com/dodona-project/dodona/plugins/probe"
	"github.com/dodona-project/dodona/sdk/plugin/line"
)

// checkerProtocol is the one version of the checkers' protocol.
const checkerProtocol = 1

// Tasks are what checkers outside the hosts are given; a *check.Broker has them.
type Tasks interface {
	Register(ctx context.Context, r check.Registration) (window uint32, err error)
	Claim(ctx context.Context, c check.Claim) (tasks []check.Task, next time.Duration, err error)
	ReportOutside(ctx context.Context, checker string, reports []check.Report) ([]check.Receipt, error)
}

// CheckerControlPlane serves controlplane.v1.CheckerControlPlane: checkers outside the
// hosts. Its fields are set once, before the server starts.
type CheckerControlPlane struct {
	controlplanev1.UnimplementedCheckerControlPlaneServer

	Tasks    Tasks
	Stopping <-chan struct{} // closed when streams have to move to another host

	mu    sync.Mutex
	doors map[string][]chan struct{} // one slot each: open streams by checker, woken by its reports
}

// RegisterChecker notes what a checker can do.
func (s *CheckerControlPlane) RegisterChecker(ctx context.Context, req *controlplanev1.RegisterCheckerRequest) (*controlplanev1.RegisterCheckerResponse, error) {
	r := check.Registration{Checker: req.CheckerId, Instance: req.InstanceId, Levels: req.Levels, Window: req.MaxInFlight}
	if err := checkChecker(req.CheckerId, req.InstanceId); err != nil {
		return nil, err
	}
	if len(req.Levels) == 0 {
		return nil, refusal.Field("levels", "is empty: say which of BASIC, EGRESS and TARGET this checker makes")
	}
	if err := checkLevels(req.Levels); err != nil {
		return nil, err
	}
	if req.MaxInFlight == 0 {
		return nil, refusal.Field("max_in_flight", "is 0: allowed are 1 and more; more than %d reads as %d", limits.CheckWindow, limits.CheckWindow)
	}
	if len(req.Probes) > limits.Probes {
		return nil, refusal.Field("probes", "has %d plugins: allowed are at most %d", len(req.Probes), limits.Probes)
	}
	for i, p := range req.Probes {
		field := fmt.Sprintf("probes[%d]", i)
		if err := refusal.Check(field+".name", limits.Name(p.GetName())); err != nil {
			return nil, err
		}
		if slices.Contains(r.Probes, p.Name) {
			return nil, refusal.Field(field+".name", "is %s a second time", limits.Quote(p.Name))
		}
		if p.Version != "" {
			if err := refusal.Check(field+".version", limits.Version(p.Version)); err != nil {
				return nil, err
			}
		}
		r.Probes = append(r.Probes, p.Name)
	}
	if err := who(ctx).is(identity.Checker, "checker_id", req.CheckerId); err != nil {
		return nil, err
	}
	if req.SupportedProtocolVersion != checkerProtocol {
		return nil, refusal.New(refusal.Precondition, "the checker speaks protocol version %d, this host speaks %d", req.SupportedProtocolVersion, checkerProtocol)
	}
	window, err := s.Tasks.Register(ctx, r)
	if err != nil {
		return nil, err
	}
	return &controlplanev1.RegisterCheckerResponse{ProtocolVersion: checkerProtocol, MaxInFlight: window}, nil
}

// StreamCheckTasks leases due tasks to a checker, as many as its window has room for,
// and more as it reports.
func (s *CheckerControlPlane) StreamCheckTasks(req *controlplanev1.StreamCheckTasksRequest, stream controlplanev1.CheckerControlPlane_StreamCheckTasksServer) error {
	if err := checkChecker(req.CheckerId, req.InstanceId); err != nil {
		return err
	}
	if err := checkLevels(req.Levels); err != nil {
		return err
	}
	if err := who(stream.Context()).is(identity.Checker, "checker_id", req.CheckerId); err != nil {
		return err
	}
	claim := check.Claim{Checker: req.CheckerId, Instance: req.InstanceId, Levels: req.Levels, Most: int(min(req.MaxInFlight, limits.CheckWindow))}
	reported, leave := s.enter(req.CheckerId)
	defer leave()
	for {
		tasks, next, err := s.Tasks.Claim(stream.Context(), claim)
		if err != nil {
			return err
		}
		for _, t := range tasks {
			if err := stream.Send(task(t)); err != nil {
				return err
			}
		}
		timer := time.NewTimer(next)
		select {
		case <-timer.C:
		case <-reported:
			timer.Stop()
		case <-s.Stopping:
			timer.Stop()
			return errStopping
		case <-stream.Context().Done():
			timer.Stop()
			return stream.Context().Err()
		}
	}
}

func task(t check.Task) *controlplanev1.CheckTask {
	m := &controlplanev1.CheckTask{
		TaskId: t.Name(), LeaseToken: t.Token, Level: t.Subject().Level,
		Deadline: timestamppb.New(t.Deadline), Timeout: durationpb.New(t.Timeout), MaxAttempts: uint32(max(t.Attempts, 1)),
		Probe: t.Probe, ProbeConfig: t.Config,
	}
	if t.Proxy == nil {
		m.Service, m.EndpointId, m.EndpointAddress = t.Scope, t.ID, t.Address
		return m
	}
	m.ProxyId, m.Proxy, m.Credential = t.Proxy.ProxyId, t.Proxy, t.Credential
	m.RoutingName, m.Url, m.ExpectStatus = t.Subject().Routing, t.URL, t.ExpectStatus
	return m
}

// enter has a stream hear of its checker's reports, until it leaves.
func (s *CheckerControlPlane) enter(checker string) (reported <-chan struct{}, leave func()) {
	door := make(chan struct{}, 1)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.doors == nil {
		s.doors = map[string][]chan struct{}{}
	}
	s.doors[checker] = append(s.doors[checker], door)
	return door, func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.doors[checker] = slices.DeleteFunc(s.doors[checker], func(d chan struct{}) bool { return d == door })
		if len(s.doors[checker]) == 0 {
			delete(s.doors, checker)
		}
	}
}

func (s *CheckerControlPlane) wake(checker string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, door := range s.doors[checker] {
		select {
		case door <- struct{}{}:
		default:
		}
	}
}

// ReportObservations takes what a checker saw. Each observation has its receipt; one
// that is refused leaves the others as they are.
func (s *CheckerControlPlane) ReportObservations(ctx context.Context, req *controlplanev1.ReportObservationsRequest) (*controlplanev1.ReportObservationsResponse, error) {
	if err := refusal.Check("checker_id", limits.Name(req.CheckerId)); err != nil {
		return nil, err
	}
	if n := len(req.Observations); n == 0 || n > limits.Observations {
		return nil, refusal.Field("observations", "has %d items: allowed are 1 to %d", n, limits.Observations)
	}
	for i, o := range req.Observations {
		if err := checkNumbers(fmt.Sprintf("observations[%d].", i), o); err != nil {
			return nil, err
		}
	}
	if err := who(ctx).is(identity.Checker, "checker_id", req.CheckerId); err != nil {
		return nil, err
	}
	reports := make([]check.Report, len(req.Observations))
	for i, o := range req.Observations {
		reports[i] = report(o)
	}
	receipts, err := s.Tasks.ReportOutside(ctx, req.CheckerId, reports)
	if err != nil {
		return nil, err
	}
	s.wake(req.CheckerId)
	reply := &controlplanev1.ReportObservationsResponse{Receipts: make([]*controlplanev1.ObservationReceipt, len(receipts))}
	for i, r := range receipts {
		reply.Receipts[i] = &controlplanev1.ObservationReceipt{TaskId: reports[i].Name(), Accepted: r.Accepted, Reason: r.Reason}
	}
	return reply, nil
}

// report is an observation as the broker takes it; one of a task whose name is none
// speaks of no task.
func report(o *controlplanev1.HealthObservation) check.Report {
	r := check.Report{
		Token: o.GetLeaseToken(), Result: o.GetResult(), ErrorClass: o.GetErrorClass(), Status: o.GetStatus(),
		Detail: line.Of(o.GetDetail(), probe.MaxDetail), Latency: time.Duration(o.GetLatencyMs()) * time.Millisecond,
		Subject: check.Subject{Level: o.GetLevel(), Proxy: o.GetProxyId(), Routing: o.GetRoutingName(), URL: o.GetTargetUrl(), EgressIP: o.GetEgressIp()},
	}
	r.Plane, r.Scope, r.ID, _ = check.ParseName(o.GetTaskId())
	return r
}

// checkNumbers refuses what no host of this version knows. What is left out is the
// broker's to refuse, with a receipt.
func checkNumbers(at string, o *controlplanev1.HealthObservation) error {
	if _, known := controlplanev1.CheckLevel_name[int32(o.GetLevel())]; !known {
		return refusal.Field(at+"level", "is %d: allowed are BASIC, EGRESS and TARGET", o.GetLevel())
	}
	if _, known := controlplanev1.HealthObservation_Result_name[int32(o.GetResult())]; !known {
		return refusal.Field(at+"result", "is %d: allowed are SUCCESS, FAILURE and INCONCLUSIVE", o.GetResult())
	}
	if _, known := controlplanev1.ErrorClass_name[int32(o.GetErrorClass())]; !known {
		return refusal.Field(at+"error_class", "is %d: it is not known to this host", o.GetErrorClass())
	}
	return nil
}

func checkChecker(id, instance string) error {
	if err := refusal.Check("checker_id", limits.Name(id)); err != nil {
		return err
	}
	return refusal.Check("instance_id", limits.ID(instance))
}

func checkLevels(levels []controlplanev1.CheckLevel) error {
	for i, level := range levels {
		field := fmt.Sprintf("levels[%d]", i)
		if _, known := controlplanev1.CheckLevel_name[int32(level)]; !known || level == controlplanev1.CheckLevel_CHECK_LEVEL_UNSPECIFIED {
			return refusal.Field(field, "is %d: allowed are BASIC, EGRESS and TARGET", level)
		}
		if slices.Contains(levels[:i], level) {
			return refusal.Field(field, "is %s a second time", level)
		}
	}
	return nil
}
