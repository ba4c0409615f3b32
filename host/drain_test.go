package host

import (
	"context"
	"net"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"
)

// slowHealth answers a check once it is let go, and a watch never.
type slowHealth struct {
	grpc_health_v1.UnimplementedHealthServer
	called chan string
	letGo  chan struct{}
}

func (s *slowHealth) Check(context.Context, *grpc_health_v1.HealthCheckRequest) (*grpc_health_v1.HealthCheckResponse, error) {
	s.called <- "check"
	<-s.letGo
	return &grpc_health_v1.HealthCheckResponse{}, nil
}

func (s *slowHealth) Watch(_ *grpc_health_v1.HealthCheckRequest, stream grpc.ServerStreamingServer[grpc_health_v1.HealthCheckResponse]) error {
	s.called <- "watch"
	<-stream.Context().Done()
	return stream.Context().Err()
}

// TestDrain: a call that is under way has its answer, and one that does not end is cut.
func TestDrain(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server, slow := grpc.NewServer(), &slowHealth{called: make(chan string, 2), letGo: make(chan struct{})}
	grpc_health_v1.RegisterHealthServer(server, slow)
	served := make(chan error, 1)
	go func() { served <- server.Serve(l) }()
	conn, err := grpc.NewClient(l.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	client := grpc_health_v1.NewHealthClient(conn)
	answered := make(chan error, 1)
	go func() {
		_, err := client.Check(t.Context(), &grpc_health_v1.HealthCheckRequest{})
		answered <- err
	}()
	watch, err := client.Watch(t.Context(), &grpc_health_v1.HealthCheckRequest{})
	if err != nil {
		t.Fatal(err)
	}
	<-slow.called
	<-slow.called
	time.AfterFunc(200*time.Millisecond, func() { close(slow.letGo) })
	began := time.Now()
	drain(server, 2*time.Second)
	if took := time.Since(began); took < 2*time.Second {
		t.Errorf("it ended after %v with a call under way", took)
	}
	if err := <-answered; err != nil {
		t.Errorf("the call that was under way: %v", err)
	}
	if _, err := watch.Recv(); status.Code(err) != codes.Unavailable {
		t.Errorf("the one that does not end: %v", err)
	}
	if err := <-served; err != nil {
		t.Error(err)
	}
}
