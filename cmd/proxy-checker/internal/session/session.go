// Package session keeps a checker at work: it registers with a control plane, takes
// tasks from its stream, has them checked by a fixed number of workers and reports what
// they saw. It registers again when there is another probe, and with growing waits when
// the control plane is away.
//
// A task is held by its lease: what was not reported in its time is given to somebody
// else, so nothing here is kept across a restart.
package session

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	controlplanev1 "github.com/dodona-project/dodona/proto/controlplane/v1"
	pluginv1 "github.com/dodona-project/dodona/proto/plugin/v1"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/structpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/dodona-project/dodona/plugins/probe"
)

// protocol is the version of the checkers' protocol that this package speaks.
const protocol = 1

const (
	defaultProbe = "proxy" // of a task that names none
	callTimeout  = 5 * time.Second
	reportPause  = 20 * time.Millisecond // results within are one report
	reportMost   = 512                   // of one report
	leaseWay     = 5 * time.Second       // that a lease lasts beyond its task's deadline
	lastReport   = time.Second           // at the end, for what was seen up to then
	leastWait    = 100 * time.Millisecond
	mostWait     = 5 * time.Second
)

// A Prober makes checks with probe plugins.
type Prober interface {
	// Probes are those that can be used now.
	Probes() []*controlplanev1.ProbePlugin
	// Changed receives after Probes may have changed.
	Changed() <-chan struct{}
	// Check makes one check. An error comes with an observation that is inconclusive.
	Check(ctx context.Context, plugin string, config *structpb.Struct, req *pluginv1.CheckRequest) (probe.Observation, error)
}

// Config says who a checker is and whom it asks.
type Config struct {
	Addresses   []string // of the control plane's hosts
	CheckerID   string
	InstanceID  string
	Levels      []controlplanev1.CheckLevel
	MaxInFlight int
	Credentials credentials.TransportCredentials
	Prober      Prober
	Log         *slog.Logger
}

// Stats counts what a session did.
type Stats struct {
	Running, Reported, Refused, Lost, Surplus, Registrations atomic.Int64

	Results [4]atomic.Int64 // by HealthObservation_Result
}

// Session is a checker at work.
type Session struct {
	Stats

	config    Config
	tasks     chan *controlplanev1.CheckTask
	done      chan result
	connected atomic.Bool
	link      link

	hosts []*grpc.ClientConn // since Run
	at    atomic.Int64       // the one to ask
}

// result is an observation, when its check began, and when nobody wants it any more.
type result struct {
	*controlplanev1.HealthObservation
	began, until time.Time
}

// errFatal ends the session.
var errFatal = errors.New("no retry changes this")

// New returns a session, which Run starts.
func New(c Config) *Session {
	return &Session{config: c, tasks: make(chan *controlplanev1.CheckTask, c.MaxInFlight), done: make(chan result, c.MaxInFlight)}
}

// Connected reports whether the control plane has this checker on a stream.
func (s *Session) Connected() bool { return s.connected.Load() }

// Run works until ctx ends. Then no task is begun any more, those under way end within
// limit, and what they saw is reported, if the control plane takes it within a second
// more. An error is one that no retry changes.
func (s *Session) Run(ctx context.Context, limit time.Duration) error {
	var err error
	if s.hosts, err = s.dial(); err != nil {
		return err
	}
	defer func() {
		for _, h := range s.hosts {
			_ = h.Close()
		}
	}()

	checking, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	reporting, giveUp := context.WithCancel(context.WithoutCancel(ctx))
	defer giveUp()
	var workers, reporter sync.WaitGroup
	taking, end := context.WithCancel(ctx) // over when no task is begun any more
	defer end()
	for range s.config.MaxInFlight {
		workers.Go(func() { s.work(checking, taking.Done()) })
	}
	reporter.Go(func() { s.report(reporting) })
	workers.Go(func() { s.watch(taking) })
	err = s.stay(ctx)
	s.connected.Store(false)
	end()
	late := time.AfterFunc(limit, stop)
	defer late.Stop()
	last := time.AfterFunc(limit+lastReport, giveUp)
	defer last.Stop()
	workers.Wait()
	close(s.done)
	reporter.Wait()
	if ctx.Err() != nil && !errors.Is(err, errFatal) {
		return nil
	}
	return err
}

func (s *Session) dial() (hosts []*grpc.ClientConn, err error) {
	for _, address := range s.config.Addresses {
		conn, err := grpc.NewClient(address,
			grpc.WithTransportCredentials(s.config.Credentials), grpc.WithDisableServiceConfig(),
			grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: 20 * time.Second, Timeout: 5 * time.Second}))
		if err != nil {
			for _, h := range hosts {
				_ = h.Close()
			}
			return nil, fmt.Errorf("control plane %s: %w", address, err)
		}
		hosts = append(hosts, conn)
	}
	return hosts, nil
}

// host is the control plane's host to ask.
func (s *Session) host() *grpc.ClientConn { return s.hosts[int(s.at.Load())%len(s.hosts)] }

func (s *Session) api() controlplanev1.CheckerControlPlaneClient {
	return controlplanev1.NewCheckerControlPlaneClient(s.host())
}

// stay registers and takes tasks, again and again, and asks another host after each
// error.
func (s *Session) stay(ctx context.Context) error {
	for wait := leastWait; ; {
		began := time.Now()
		err := s.once(ctx, s.api())
		s.connected.Store(false)
		if ctx.Err() != nil || errors.Is(err, errFatal) {
			return err
		}
		if time.Since(began) > mostWait {
			wait = leastWait // it worked for a while
		}
		s.config.Log.Info("the control plane gives no tasks; it is asked again", "error", err, "in_about", wait)
		s.at.Add(1)
		select {
		case <-time.After(wait/2 + rand.N(wait/2)):
		case <-ctx.Done():
			return nil
		}
		wait = min(2*wait, mostWait)
	}
}

// once is one registration with its stream.
func (s *Session) once(ctx context.Context, api controlplanev1.CheckerControlPlaneClient) error {
	window, err := s.register(ctx, api)
	if err != nil {
		return err
	}
	life, end := context.WithCancelCause(ctx)
	defer end(nil)
	stream, err := api.StreamCheckTasks(life, &controlplanev1.StreamCheckTasksRequest{
		CheckerId: s.config.CheckerID, InstanceId: s.config.InstanceID, Levels: s.config.Levels, MaxInFlight: window,
	})
	if err != nil {
		return verdict(err, false)
	}
	var again sync.WaitGroup
	defer again.Wait()
	defer end(nil)
	again.Go(func() {
		for {
			select {
			case <-life.Done():
				return
			case <-s.config.Prober.Changed():
			}
			// The stream goes on: its next claim is by what is registered now.
			if _, err := s.register(life, api); err != nil && life.Err() == nil {
				end(err)
			}
		}
	})
	s.connected.Store(true)
	for {
		task, err := stream.Recv()
		if err != nil {
			if cause := context.Cause(life); cause != nil && ctx.Err() == nil {
				return cause
			}
			return verdict(err, false)
		}
		select {
		case s.tasks <- task:
		default:
			s.Surplus.Add(1) // more than was asked for: its lease runs out
		}
	}
}

// register tells what this checker can do, and returns how many tasks it is granted.
func (s *Session) register(ctx context.Context, api controlplanev1.CheckerControlPlaneClient) (uint32, error) {
	limited, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	probes := s.config.Prober.Probes()
	resp, err := api.RegisterChecker(limited, &controlplanev1.RegisterCheckerRequest{
		CheckerId: s.config.CheckerID, InstanceId: s.config.InstanceID, Levels: s.config.Levels, MaxInFlight: uint32(s.config.MaxInFlight),
		SupportedProtocolVersion: protocol, Probes: probes,
	})
	if ctx.Err() == nil {
		s.link.heard(err)
	}
	if err != nil {
		return 0, verdict(err, true)
	}
	if resp.ProtocolVersion != protocol {
		return 0, fmt.Errorf("%w: the control plane speaks protocol version %d, this checker %d", errFatal, resp.ProtocolVersion, protocol)
	}
	s.Registrations.Add(1)
	names := make([]string, len(probes))
	for i, p := range probes {
		names[i] = p.Name
	}
	s.config.Log.Info("registered", "checker", s.config.CheckerID, "probes", names, "max_in_flight", resp.MaxInFlight)
	return min(resp.MaxInFlight, uint32(s.config.MaxInFlight)), nil
}

// verdict says what an error of a call means, beside that it did not work.
func verdict(err error, registering bool) error {
	switch status.Code(err) {
	case codes.InvalidArgument, codes.Unauthenticated, codes.PermissionDenied, codes.Unimplemented:
		return fmt.Errorf("%w: %w", errFatal, err)
	case codes.FailedPrecondition:
		if registering {
			return fmt.Errorf("%w: %w", errFatal, err)
		}
	}
	return err
}

// work checks tasks, one after the other.
func (s *Session) work(ctx context.Context, taking <-chan struct{}) {
	for {
		select {
		case <-taking:
			return
		default:
		}
		select {
		case <-taking:
			return
		case task := <-s.tasks:
			s.Running.Add(1)
			began := time.Now()
			s.done <- result{s.check(ctx, task), began, task.GetDeadline().AsTime().Add(leaseWay)}
			s.Running.Add(-1)
		}
	}
}

// check makes a task's check: attempts until one succeeds, each within the task's
// timeout and all of them before its deadline.
func (s *Session) check(ctx context.Context, t *controlplanev1.CheckTask) *controlplanev1.HealthObservation {
	o := &controlplanev1.HealthObservation{
		TaskId: t.TaskId, LeaseToken: t.LeaseToken, ProxyId: t.ProxyId, Level: t.Level,
		Result: controlplanev1.HealthObservation_RESULT_INCONCLUSIVE,
		Detail: "the task's deadline was over when it arrived; do the clocks of this machine and of the control plane agree?",
	}
	if t.Level == controlplanev1.CheckLevel_CHECK_LEVEL_TARGET {
		o.RoutingName, o.TargetUrl = t.RoutingName, t.Url
	}
	if why := unknown(t); why != "" {
		o.Detail, o.ObservedAt = why, timestamppb.Now()
		s.Results[o.Result].Add(1)
		return o
	}
	name := t.Probe
	if name == "" {
		name = defaultProbe
	}
	deadline := t.GetDeadline().AsTime()
	for range max(t.MaxAttempts, 1) {
		timeout := min(t.GetTimeout().AsDuration(), time.Until(deadline))
		if timeout < probe.MinTimeout || ctx.Err() != nil {
			break
		}
		o.Attempts++
		seen, err := s.config.Prober.Check(ctx, name, t.ProbeConfig, &pluginv1.CheckRequest{
			Proxy: t.Proxy, EndpointAddress: t.EndpointAddress, Credential: t.Credential, Level: t.Level, Url: t.Url,
			Timeout: durationpb.New(timeout), ExpectStatus: t.ExpectStatus,
		})
		o.Result, o.ErrorClass, o.Detail, o.Status = seen.Result, seen.ErrorClass, seen.Detail, seen.Status
		o.LatencyMs, o.EgressIp = uint32(seen.Latency.Milliseconds()), ""
		if seen.EgressIP.IsValid() {
			o.EgressIp = seen.EgressIP.String()
		}
		if err != nil {
			o.Result = controlplanev1.HealthObservation_RESULT_INCONCLUSIVE
		}
		if o.Result == controlplanev1.HealthObservation_RESULT_SUCCESS {
			break
		}
	}
	o.ObservedAt = timestamppb.Now()
	if i := int(o.Result); i < len(s.Results) {
		s.Results[i].Add(1)
	}
	return o
}

// unknown says what a task asks for that this checker does not know; empty when it knows
// all of it. Such a task is not begun.
func unknown(t *controlplanev1.CheckTask) string {
	for _, f := range []struct {
		name  string
		value int32
		names map[int32]string
	}{
		{"level", int32(t.GetLevel()), controlplanev1.CheckLevel_name},
		{"proxy.protocol", int32(t.GetProxy().GetProtocol()), controlplanev1.Proxy_Protocol_name},
		{"proxy.health", int32(t.GetProxy().GetHealth()), controlplanev1.Health_name},
	} {
		if _, known := f.names[f.value]; !known {
			return fmt.Sprintf("the task's %s is %d, which this checker does not know: it is older than the control plane, update it", f.name, f.value)
		}
	}
	return ""
}

// report sends what was seen, gathered over a moment, until done is closed.
func (s *Session) report(ctx context.Context) {
	for r := range s.done {
		batch := []result{r}
		for late := time.After(reportPause); len(batch) < reportMost; {
			select {
			case r, open := <-s.done:
				if open {
					batch = append(batch, r)
					continue
				}
			case <-late:
			}
			break
		}
		s.confirm(ctx, batch)
		s.send(ctx, batch)
	}
}

// send reports a batch until the control plane has it, nobody wants it any more, or ctx
// ends. The same report again counts once; one that says less than the first, which was
// taken although nobody heard so, is refused and changes nothing.
func (s *Session) send(ctx context.Context, batch []result) {
	req := &controlplanev1.ReportObservationsRequest{CheckerId: s.config.CheckerID}
	until := batch[0].until
	for _, r := range batch {
		req.Observations = append(req.Observations, r.HealthObservation)
		if r.until.After(until) {
			until = r.until
		}
	}
	for wait := leastWait; ; wait = min(2*wait, mostWait) {
		limited, cancel := context.WithTimeout(ctx, callTimeout)
		resp, err := s.api().ReportObservations(limited, req)
		cancel()
		if ctx.Err() == nil {
			s.link.heard(err)
		}
		if err == nil {
			for _, r := range resp.Receipts {
				if r.Accepted {
					s.Reported.Add(1)
				} else {
					s.Refused.Add(1)
					s.config.Log.Debug("an observation was refused", "task", r.TaskId, "reason", r.Reason)
				}
			}
			return
		}
		if code := status.Code(err); code == codes.Unavailable || code == codes.DeadlineExceeded {
			for _, o := range req.Observations {
				doubt(o)
			}
		}
		gone := errors.Is(verdict(err, true), errFatal) && status.Code(err) != codes.FailedPrecondition
		if gone || ctx.Err() != nil || time.Now().Add(wait).After(until) {
			s.Lost.Add(int64(len(batch)))
			s.config.Log.Warn("observations are lost: their tasks are checked again", "observations", len(batch), "error", err)
			return
		}
		select {
		case <-time.After(wait/2 + rand.N(wait/2)):
		case <-ctx.Done(): // the next try fails at once
		}
	}
}

// doubt makes a failure inconclusive: who cannot reach the control plane may have no
// network at all, and then it says nothing of a proxy that it could not reach either.
func doubt(o *controlplanev1.HealthObservation) {
	if o.Result != controlplanev1.HealthObservation_RESULT_FAILURE {
		return
	}
	o.Result, o.ErrorClass, o.Status = controlplanev1.HealthObservation_RESULT_INCONCLUSIVE, 0, 0
	o.Detail = "the checker could not reach the control plane either: " + o.Detail
}
