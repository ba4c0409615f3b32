package session

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	controlplanev1 "github.com/dodona-project/dodona/proto/controlplane/v1"
	pluginv1 "github.com/dodona-project/dodona/proto/plugin/v1"
	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/structpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/dodona-project/dodona/host/loopback"
	"github.com/dodona-project/dodona/plugins/probe"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const patience = 30 * time.Second

const (
	good = controlplanev1.HealthObservation_RESULT_SUCCESS
	bad  = controlplanev1.HealthObservation_RESULT_FAILURE
	none = controlplanev1.HealthObservation_RESULT_INCONCLUSIVE
)

// plane is a control plane that gives out what a test puts in.
type plane struct {
	controlplanev1.UnimplementedCheckerControlPlaneServer

	tasks chan *controlplanev1.CheckTask
	pulse *pulseServer // nil = it has none

	mu         sync.Mutex
	registered []*controlplanev1.RegisterCheckerRequest
	streams    int
	seen       []*controlplanev1.HealthObservation
	refuse     []error // of the next registrations
	lose       int     // reports that are taken, and whose answer is lost
	cut        chan struct{}
	first      []string // addresses that the checker has before this one
}

func (p *plane) RegisterChecker(_ context.Context, r *controlplanev1.RegisterCheckerRequest) (*controlplanev1.RegisterCheckerResponse, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.registered = append(p.registered, r)
	if len(p.refuse) > 0 {
		err := p.refuse[0]
		p.refuse = p.refuse[1:]
		return nil, err
	}
	return &controlplanev1.RegisterCheckerResponse{ProtocolVersion: 1, MaxInFlight: r.MaxInFlight}, nil
}

func (p *plane) StreamCheckTasks(_ *controlplanev1.StreamCheckTasksRequest, stream grpc.ServerStreamingServer[controlplanev1.CheckTask]) error {
	p.mu.Lock()
	p.streams++
	p.mu.Unlock()
	for {
		select {
		case t := <-p.tasks:
			if err := stream.Send(t); err != nil {
				return err
			}
		case <-p.cut:
			return status.Error(codes.FailedPrecondition, "register again")
		case <-stream.Context().Done():
			return stream.Context().Err()
		}
	}
}

func (p *plane) ReportObservations(_ context.Context, r *controlplanev1.ReportObservationsRequest) (*controlplanev1.ReportObservationsResponse, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.seen = append(p.seen, r.Observations...)
	if p.lose > 0 {
		p.lose--
		return nil, status.Error(codes.Unavailable, "lost")
	}
	resp := &controlplanev1.ReportObservationsResponse{}
	for _, o := range r.Observations {
		resp.Receipts = append(resp.Receipts, &controlplanev1.ObservationReceipt{TaskId: o.TaskId, Accepted: true})
	}
	return resp, nil
}

func (p *plane) observations() []*controlplanev1.HealthObservation {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Clone(p.seen)
}

func (p *plane) registrations() []*controlplanev1.RegisterCheckerRequest {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Clone(p.registered)
}

// prober checks as a test says.
type prober struct {
	mu      sync.Mutex
	names   []string
	changed chan struct{}
	check   func(ctx context.Context, req *pluginv1.CheckRequest) (probe.Observation, error)
}

func (p *prober) Probes() (all []*controlplanev1.ProbePlugin) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, n := range p.names {
		all = append(all, &controlplanev1.ProbePlugin{Name: n})
	}
	return all
}

func (p *prober) Changed() <-chan struct{} { return p.changed }

func (p *prober) Check(ctx context.Context, _ string, _ *structpb.Struct, req *pluginv1.CheckRequest) (probe.Observation, error) {
	return p.check(ctx, req)
}

// bench is a session against a plane.
type bench struct {
	*plane
	*prober
	session *Session
	end     context.CancelFunc
	done    chan error
}

func start(t *testing.T, most int, check func(context.Context, *pluginv1.CheckRequest) (probe.Observation, error), edit ...func(*plane)) *bench {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p := &plane{tasks: make(chan *controlplanev1.CheckTask, 1000), cut: make(chan struct{})}
	for _, f := range edit {
		f(p)
	}
	server := grpc.NewServer()
	controlplanev1.RegisterCheckerControlPlaneServer(server, p)
	if p.pulse != nil {
		grpc_health_v1.RegisterHealthServer(server, p.pulse)
	}
	var serving sync.WaitGroup
	serving.Go(func() { _ = server.Serve(l) })
	b := &bench{plane: p, prober: &prober{names: []string{"proxy"}, changed: make(chan struct{}, 1), check: check}, done: make(chan error, 1)}
	b.session = New(Config{
		Addresses: append(p.first, l.Addr().String()), CheckerID: "c", InstanceID: "c-1", Levels: []controlplanev1.CheckLevel{controlplanev1.CheckLevel_CHECK_LEVEL_BASIC},
		MaxInFlight: most, Credentials: insecure.NewCredentials(), Prober: b.prober, Log: slog.New(slog.DiscardHandler),
	})
	ctx, cancel := context.WithCancel(context.Background())
	b.end = cancel
	go func() { b.done <- b.session.Run(ctx, 10*time.Second) }()
	t.Cleanup(func() {
		cancel()
		server.Stop()
		serving.Wait()
	})
	return b
}

func (b *bench) stop(t *testing.T) {
	t.Helper()
	b.end()
	if err := <-b.done; err != nil {
		t.Errorf("it ended with %v", err)
	}
}

func eventually(t *testing.T, what string, is func() bool) {
	t.Helper()
	for end := time.Now().Add(patience); !is(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("not in %v: %s", patience, what)
		}
	}
}

func task(id string, deadline, timeout time.Duration, attempts uint32) *controlplanev1.CheckTask {
	return &controlplanev1.CheckTask{
		TaskId: id, LeaseToken: "t-" + id, ProxyId: "p", Proxy: &controlplanev1.Proxy{ProxyId: "p"}, Level: controlplanev1.CheckLevel_CHECK_LEVEL_BASIC,
		Deadline: timestamppb.New(time.Now().Add(deadline)), Timeout: durationpb.New(timeout), MaxAttempts: attempts,
	}
}

func says(r controlplanev1.HealthObservation_Result) func(context.Context, *pluginv1.CheckRequest) (probe.Observation, error) {
	return func(context.Context, *pluginv1.CheckRequest) (probe.Observation, error) {
		return probe.Observation{Result: r}, nil
	}
}

// TestFixedWorkers: however many tasks are sent, no more than were asked for are made at
// once, and what is beyond is left to run out.
func TestFixedWorkers(t *testing.T) {
	var running, most atomic.Int64
	release := make(chan struct{})
	b := start(t, 3, func(context.Context, *pluginv1.CheckRequest) (probe.Observation, error) {
		n := running.Add(1)
		defer running.Add(-1)
		for m := most.Load(); n > m && !most.CompareAndSwap(m, n); m = most.Load() {
		}
		<-release
		return probe.Observation{Result: good}, nil
	})
	for i := range 50 {
		b.tasks <- task(fmt.Sprint(i), time.Minute, time.Second, 1)
	}
	eventually(t, "three are made and the rest is surplus", func() bool { return running.Load() == 3 && b.session.Surplus.Load() >= 50-3-3 })
	close(release)
	eventually(t, "what was taken is reported", func() bool { return len(b.observations()) >= 3 && running.Load() == 0 })
	if n := most.Load(); n != 3 {
		t.Errorf("%d were made at once, allowed are 3", n)
	}
	b.stop(t)
}

// TestAttempts: each within the timeout and all within the deadline, no more than
// max_attempts, and none after a success.
func TestAttempts(t *testing.T) {
	for _, tc := range []struct {
		name     string
		task     *controlplanev1.CheckTask
		results  []controlplanev1.HealthObservation_Result
		attempts uint32
		want     controlplanev1.HealthObservation_Result
	}{
		{"a success ends it", task("a", time.Minute, time.Second, 3), []controlplanev1.HealthObservation_Result{bad, good}, 2, good},
		{"as many as allowed", task("b", time.Minute, time.Second, 3), []controlplanev1.HealthObservation_Result{bad, bad, bad, good}, 3, bad},
		{"none is one", task("c", time.Minute, time.Second, 0), []controlplanev1.HealthObservation_Result{bad, good}, 1, bad},
		{"its deadline is over", task("d", -time.Second, time.Second, 3), nil, 0, none},
	} {
		made := 0
		s := New(Config{MaxInFlight: 1, Prober: &prober{check: func(_ context.Context, req *pluginv1.CheckRequest) (probe.Observation, error) {
			if d := req.Timeout.AsDuration(); d > time.Second || d <= 0 {
				t.Errorf("%s: an attempt has %s", tc.name, d)
			}
			made++
			return probe.Observation{Result: tc.results[made-1]}, nil
		}}})
		o := s.check(context.Background(), tc.task)
		if o.Result != tc.want || o.Attempts != tc.attempts || made != int(tc.attempts) || o.LeaseToken != tc.task.LeaseToken {
			t.Errorf("%s: %s after %d attempts, %d made; want %s after %d", tc.name, o.Result, o.Attempts, made, tc.want, tc.attempts)
		}
	}
	// What is left of the deadline bounds an attempt too.
	s := New(Config{MaxInFlight: 1, Prober: &prober{check: func(_ context.Context, req *pluginv1.CheckRequest) (probe.Observation, error) {
		if d := req.Timeout.AsDuration(); d > 5*time.Second {
			t.Errorf("an attempt has %s, and the deadline is five seconds away", d)
		}
		return probe.Observation{Result: none}, errors.New("away")
	}}})
	if o := s.check(context.Background(), task("e", 5*time.Second, time.Minute, 1)); o.Result != none {
		t.Errorf("an error is %s", o.Result)
	}
}

// TestRegistersAgain: after a new probe on the same stream, and after the stream ended
// because the control plane does not know it any more.
func TestRegistersAgain(t *testing.T) {
	b := start(t, 2, says(good))
	eventually(t, "it is on a stream", b.session.Connected)
	b.prober.mu.Lock()
	b.names = append(b.names, "mine")
	b.prober.mu.Unlock()
	b.changed <- struct{}{}
	eventually(t, "it announces the new probe", func() bool {
		all := b.registrations()
		return len(all[len(all)-1].Probes) == 2
	})
	b.plane.mu.Lock()
	streams := b.streams
	b.plane.mu.Unlock()
	if streams != 1 {
		t.Errorf("%d streams, want the first one only", streams)
	}
	before := len(b.registrations())
	b.cut <- struct{}{}
	eventually(t, "it registers again", func() bool { return len(b.registrations()) > before && b.session.Connected() })
	b.tasks <- task("x", time.Minute, time.Second, 1)
	eventually(t, "it checks", func() bool { return len(b.observations()) == 1 })
	b.stop(t)
}

// Of several hosts another one is asked when one is away.
func TestTheOtherHost(t *testing.T) {
	nobody, err := loopback.Free()
	if err != nil {
		t.Fatal(err)
	}
	b := start(t, 1, says(controlplanev1.HealthObservation_RESULT_SUCCESS), func(p *plane) { p.first = []string{nobody} })
	b.plane.tasks <- task("a", time.Minute, time.Second, 1)
	eventually(t, "the other host has the observation", func() bool { return len(b.plane.observations()) == 1 })
	b.stop(t)
}

// TestFatalCodes: what no retry changes ends it, and everything else is tried again.
func TestFatalCodes(t *testing.T) {
	for code := codes.Canceled; code <= codes.Unauthenticated; code++ {
		fatal := slices.Contains([]codes.Code{codes.InvalidArgument, codes.FailedPrecondition, codes.Unauthenticated, codes.PermissionDenied, codes.Unimplemented}, code)
		b := start(t, 1, says(good), func(p *plane) { p.refuse = []error{status.Error(code, "no")} })
		if !fatal {
			eventually(t, "it is on a stream after "+code.String(), b.session.Connected)
			b.stop(t)
			continue
		}
		select {
		case err := <-b.done:
			if status.Code(errors.Unwrap(err)) != code && !errors.Is(err, errFatal) {
				t.Errorf("%s: it ended with %v", code, err)
			}
		case <-time.After(patience):
			t.Errorf("%s does not end it", code)
		}
	}
}

// TestLostReply: an observation whose answer was lost is told again, the same one.
func TestLostReply(t *testing.T) {
	b := start(t, 1, says(good), func(p *plane) { p.lose = 2 })
	b.tasks <- task("x", time.Minute, time.Second, 1)
	eventually(t, "it is told three times", func() bool { return len(b.observations()) == 3 })
	for _, o := range b.observations() {
		if o.TaskId != "x" || o.LeaseToken != "t-x" || o.Result != good {
			t.Errorf("it said %v", o)
		}
	}
	eventually(t, "it counts once", func() bool { return b.session.Reported.Load() == 1 })
	b.stop(t)
}

// TestOffline: what failed while the control plane could not be reached either says
// nothing of the proxy; what succeeded does.
func TestOffline(t *testing.T) {
	for _, result := range []controlplanev1.HealthObservation_Result{good, bad} {
		b := start(t, 1, says(result), func(p *plane) { p.lose = 1 })
		b.tasks <- task("x", time.Minute, time.Second, 1)
		eventually(t, "it is told twice", func() bool { return len(b.observations()) == 2 })
		want := result
		if result == bad {
			want = none
		}
		if o := b.observations()[1]; o.Result != want {
			t.Errorf("%s is told as %s", result, o.Result)
		}
		b.stop(t)
	}
}

// TestDrain: what runs ends and is reported, and nothing is begun any more.
func TestDrain(t *testing.T) {
	begun, release := make(chan struct{}, 10), make(chan struct{})
	b := start(t, 1, func(context.Context, *pluginv1.CheckRequest) (probe.Observation, error) {
		begun <- struct{}{}
		<-release
		return probe.Observation{Result: good}, nil
	})
	b.tasks <- task("runs", time.Minute, time.Second, 1)
	<-begun
	b.tasks <- task("waits", time.Minute, time.Second, 1)
	eventually(t, "the second one waits", func() bool { return len(b.session.tasks) == 1 })
	b.end()
	eventually(t, "it takes no more", func() bool { return !b.session.Connected() })
	close(release)
	if err := <-b.done; err != nil {
		t.Errorf("it ended with %v", err)
	}
	if seen := b.observations(); len(seen) != 1 || seen[0].TaskId != "runs" {
		t.Errorf("reported are %v", seen)
	}
}
