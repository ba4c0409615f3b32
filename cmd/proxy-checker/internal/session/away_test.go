package session

import (
	"context"
	"log/slog"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	controlplanev1 "github.com/dodona-project/dodona/proto/controlplane/v1"
	pluginv1 "github.com/dodona-project/dodona/proto/plugin/v1"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/structpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/dodona-project/dodona/plugins/probe"
)

// awayPlane gives tasks and takes no reports.
type awayPlane struct {
	controlplanev1.UnimplementedCheckerControlPlaneServer
	tries atomic.Int64
}

func (*awayPlane) RegisterChecker(context.Context, *controlplanev1.RegisterCheckerRequest) (*controlplanev1.RegisterCheckerResponse, error) {
	return &controlplanev1.RegisterCheckerResponse{ProtocolVersion: protocol, MaxInFlight: 8}, nil
}

func (*awayPlane) StreamCheckTasks(_ *controlplanev1.StreamCheckTasksRequest, stream grpc.ServerStreamingServer[controlplanev1.CheckTask]) error {
	for _, id := range []string{"1", "2", "3"} {
		if err := stream.Send(&controlplanev1.CheckTask{TaskId: id, Deadline: timestamppb.New(time.Now().Add(time.Hour)), Timeout: durationpb.New(time.Minute)}); err != nil {
			return err
		}
	}
	<-stream.Context().Done()
	return stream.Context().Err()
}

func (p *awayPlane) ReportObservations(context.Context, *controlplanev1.ReportObservationsRequest) (*controlplanev1.ReportObservationsResponse, error) {
	p.tries.Add(1)
	return nil, status.Error(codes.Unavailable, "the store is away")
}

// quick is a probe that finds everything well.
type quick struct{}

func (quick) Probes() []*controlplanev1.ProbePlugin {
	return []*controlplanev1.ProbePlugin{{Name: defaultProbe}}
}
func (quick) Changed() <-chan struct{} { return nil }
func (quick) Check(context.Context, string, *structpb.Struct, *pluginv1.CheckRequest) (probe.Observation, error) {
	return probe.Observation{Result: controlplanev1.HealthObservation_RESULT_SUCCESS}, nil
}

// A session that is told to end does so in its time, also when nobody takes what it has
// to report and the leases of that last for an hour.
func TestEndsWithoutControlPlane(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	plane, server := &awayPlane{}, grpc.NewServer()
	controlplanev1.RegisterCheckerControlPlaneServer(server, plane)
	var serving sync.WaitGroup
	serving.Go(func() { _ = server.Serve(l) })
	defer serving.Wait()
	defer server.Stop()

	s := New(Config{
		Addresses: []string{l.Addr().String()}, CheckerID: "c", InstanceID: "c1", Levels: []controlplanev1.CheckLevel{controlplanev1.CheckLevel_CHECK_LEVEL_BASIC},
		MaxInFlight: 4, Credentials: insecure.NewCredentials(), Prober: quick{}, Log: slog.New(slog.DiscardHandler),
	})
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	ended := make(chan error, 1)
	go func() { ended <- s.Run(ctx, 100*time.Millisecond) }()
	for limit := time.Now().Add(30 * time.Second); plane.tries.Load() < 2; {
		if time.Now().After(limit) {
			t.Fatal("nothing is reported")
		}
		<-time.After(5 * time.Millisecond)
	}
	told := time.Now()
	cancel()
	select {
	case err := <-ended:
		t.Logf("it ended after %v", time.Since(told))
		if err != nil || s.Lost.Load() == 0 || s.Reported.Load() != 0 {
			t.Errorf("it ended with %v, %d reported, %d lost", err, s.Reported.Load(), s.Lost.Load())
		}
	case <-time.After(30 * time.Second):
		t.Error("it does not end")
		server.Stop()
	}
}

// pulseServer is the control plane's health service, as far as it is reached.
type pulseServer struct {
	grpc_health_v1.UnimplementedHealthServer
	away  atomic.Bool
	taken atomic.Int64
}

func (p *pulseServer) Check(context.Context, *grpc_health_v1.HealthCheckRequest) (*grpc_health_v1.HealthCheckResponse, error) {
	defer p.taken.Add(1)
	if p.away.Load() {
		return nil, status.Error(codes.Unavailable, "cut off")
	}
	return &grpc_health_v1.HealthCheckResponse{}, nil
}

// TestGapDuringACheck: what fails says nothing of a proxy when the control plane could not
// be reached at some time since the check began, although it can when that is reported;
// and what fails after that does.
func TestGapDuringACheck(t *testing.T) {
	release := make(chan controlplanev1.HealthObservation_Result)
	pulse := &pulseServer{}
	b := start(t, 1, func(context.Context, *pluginv1.CheckRequest) (probe.Observation, error) {
		return probe.Observation{Result: <-release}, nil
	}, func(p *plane) { p.pulse = pulse })
	next := func(id string, gap bool, result, want controlplanev1.HealthObservation_Result) {
		t.Helper()
		told := len(b.observations())
		b.tasks <- task(id, time.Minute, 30*time.Second, 1)
		eventually(t, "it checks "+id, func() bool { return b.session.Running.Load() == 1 })
		if gap {
			pulse.away.Store(true)
			eventually(t, "the gap is seen", func() bool { return !b.session.link.whole(time.Now()) })
			pulse.away.Store(false)
			eventually(t, "it is over", func() bool { return b.session.link.whole(time.Now()) })
		}
		release <- result
		eventually(t, id+" is told", func() bool { return len(b.observations()) > told })
		if o := b.observations()[told]; o.TaskId != id || o.Result != want {
			t.Errorf("%s: %s of %s is told as %s, want %s", id, result, o.TaskId, o.Result, want)
		}
	}
	next("whole", false, bad, bad)
	next("with a gap", true, bad, none)
	next("good all the same", true, good, good)
	next("whole again", false, bad, bad)
	// What is reported into a gap says nothing either.
	b.tasks <- task("then cut off", time.Minute, 30*time.Second, 1)
	eventually(t, "it checks", func() bool { return b.session.Running.Load() == 1 })
	told := len(b.observations())
	pulse.away.Store(true)
	release <- bad
	eventually(t, "it is told", func() bool { return len(b.observations()) > told })
	if o := b.observations()[told]; o.Result != none {
		t.Errorf("a failure while nothing goes out is told as %s", o.Result)
	}
	b.stop(t)
}
