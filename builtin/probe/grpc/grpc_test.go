package grpc_test

import (
	"context"
	"crypto/tls"
	"encoding/pem"
	"io"
	"net"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/health"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	probe "github.com/dodona-project/dodona/builtin/probe/grpc"
	"github.com/dodona-project/dodona/builtin/probe/internal/reach"
	"github.com/dodona-project/dodona/builtin/probe/internal/talk"
	controlplanev1 "github.com/dodona-project/dodona/proto/controlplane/v1"
	pluginv1 "github.com/dodona-project/dodona/proto/plugin/v1"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const long, short = 20 * time.Second, 500 * time.Millisecond

func serve(t *testing.T, register func(s *grpc.Server), options ...grpc.ServerOption) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := grpc.NewServer(options...)
	register(s)
	done := make(chan struct{})
	go func() { defer close(done); _ = s.Serve(l) }()
	t.Cleanup(func() { s.Stop(); <-done })
	return l.Addr().String()
}

func check(t *testing.T, c probe.Config, address string, within time.Duration) *pluginv1.CheckReply {
	t.Helper()
	c.Allow = append(c.Allow, reach.Loopback)
	ctx, cancel := context.WithTimeout(t.Context(), within)
	defer cancel()
	return probe.Probe{}.CheckWith(ctx, c, &pluginv1.CheckRequest{EndpointAddress: address})
}

// odd answers with more than anybody asked for, or not at all.
type odd struct {
	grpc_health_v1.UnimplementedHealthServer
	silent bool
	err    error // what it answers at once
}

func (o odd) Check(ctx context.Context, _ *grpc_health_v1.HealthCheckRequest) (*grpc_health_v1.HealthCheckResponse, error) {
	if o.err != nil {
		return nil, o.err
	}
	if o.silent {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	_ = grpc.SetHeader(ctx, metadata.Pairs("x", strings.Repeat("x", 1<<20)))
	return &grpc_health_v1.HealthCheckResponse{Status: grpc_health_v1.HealthCheckResponse_SERVING}, nil
}

func TestCheck(t *testing.T) {
	states := health.NewServer()
	states.SetServingStatus("down", grpc_health_v1.HealthCheckResponse_NOT_SERVING)
	register := func(s *grpc.Server) { grpc_health_v1.RegisterHealthServer(s, states) }
	plain := serve(t, register)
	source := httptest.NewTLSServer(nil)
	defer source.Close()
	cert := source.TLS.Certificates[0]
	ca := string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: source.Certificate().Raw}))
	secure := serve(t, register, grpc.Creds(credentials.NewTLS(&tls.Config{Certificates: []tls.Certificate{cert}})))
	bare := serve(t, func(*grpc.Server) {})
	silent := serve(t, func(s *grpc.Server) { grpc_health_v1.RegisterHealthServer(s, odd{silent: true}) })
	early := serve(t, func(s *grpc.Server) {
		grpc_health_v1.RegisterHealthServer(s, odd{err: status.Error(codes.DeadlineExceeded, "late")})
	})
	denied := serve(t, func(s *grpc.Server) {
		grpc_health_v1.RegisterHealthServer(s, odd{err: status.Error(codes.PermissionDenied, "not you")})
	})
	loud := serve(t, func(s *grpc.Server) { grpc_health_v1.RegisterHealthServer(s, odd{}) })
	web, _ := talk.Serve(t, func(c net.Conn) {
		_, _ = c.Read(make([]byte, 4096))
		_, _ = io.WriteString(c, "HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n")
	})
	mute, _ := talk.Serve(t, func(c net.Conn) { _, _ = io.Copy(io.Discard, c) })
	for _, tc := range []struct {
		name    string
		config  probe.Config
		address string
		class   controlplanev1.ErrorClass // UNSPECIFIED = success
		within  time.Duration
	}{
		{"serving", probe.Config{}, plain, 0, long},
		{"not serving", probe.Config{Service: "down"}, plain, controlplanev1.ErrorClass_ERROR_CLASS_TARGET_STATUS, long},
		{"an unknown service", probe.Config{Service: "nope"}, plain, controlplanev1.ErrorClass_ERROR_CLASS_TARGET_STATUS, long},
		{"no health service", probe.Config{}, bare, controlplanev1.ErrorClass_ERROR_CLASS_PROTOCOL, long},
		{"TLS", probe.Config{TLS: &reach.TLS{CA: ca}}, secure, 0, long},
		{"TLS of another name", probe.Config{TLS: &reach.TLS{CA: ca, ServerName: "shop.test"}}, secure, controlplanev1.ErrorClass_ERROR_CLASS_TLS, long},
		{"TLS that is not trusted", probe.Config{TLS: &reach.TLS{}}, secure, controlplanev1.ErrorClass_ERROR_CLASS_TLS, long},
		{"TLS where there is none", probe.Config{TLS: &reach.TLS{SkipVerify: true}}, web, controlplanev1.ErrorClass_ERROR_CLASS_TLS, long},
		{"no gRPC", probe.Config{}, web, controlplanev1.ErrorClass_ERROR_CLASS_PROTOCOL, long},
		{"no answer", probe.Config{}, silent, controlplanev1.ErrorClass_ERROR_CLASS_TIMEOUT, short},
		{"the server gives up first", probe.Config{}, early, controlplanev1.ErrorClass_ERROR_CLASS_TIMEOUT, long},
		{"another error", probe.Config{}, denied, controlplanev1.ErrorClass_ERROR_CLASS_TARGET_STATUS, long},
		{"no settings", probe.Config{}, mute, controlplanev1.ErrorClass_ERROR_CLASS_TIMEOUT, short},
		{"huge headers", probe.Config{}, loud, controlplanev1.ErrorClass_ERROR_CLASS_PROTOCOL, long},
		{"nobody listens", probe.Config{}, "127.0.0.1:1", controlplanev1.ErrorClass_ERROR_CLASS_REFUSED, long},
	} {
		began := time.Now()
		r := check(t, tc.config, tc.address, tc.within)
		if good := r.Result == controlplanev1.HealthObservation_RESULT_SUCCESS; good != (tc.class == 0) || r.ErrorClass != tc.class ||
			!good && r.Result != controlplanev1.HealthObservation_RESULT_FAILURE || r.Detail == "" {
			t.Errorf("%s: %v, want %v", tc.name, r, tc.class)
		}
		if took := time.Since(began); took > tc.within+10*time.Second {
			t.Errorf("%s: after %v", tc.name, took)
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), long)
	defer cancel()
	for _, address := range []string{plain, "unix:/run/docker.sock", "169.254.169.254:80"} {
		r := probe.Probe{}.CheckWith(ctx, probe.Config{}, &pluginv1.CheckRequest{EndpointAddress: address})
		if r.Result != controlplanev1.HealthObservation_RESULT_INCONCLUSIVE || r.ErrorClass != controlplanev1.ErrorClass_ERROR_CLASS_POLICY {
			t.Errorf("%s: %v", address, r)
		}
	}
	if err := (probe.Probe{}).Configure(t.Context(), probe.Config{TLS: &reach.TLS{CA: "nope"}}); err == nil {
		t.Error("a CA that is none is taken")
	}
}
