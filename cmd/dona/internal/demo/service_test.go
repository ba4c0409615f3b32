package demo

import (
	"errors"
	"io"
	"net"
	"regexp"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	donav1 "github.com/dodona-project/dodona/proto/dona/v1"
)

// desk is a host that only registers endpoints, or does not.
type desk struct {
	donav1.UnimplementedControlPlaneServer
	refuse error
}

func (d desk) RegisterEndpoint(s donav1.ControlPlane_RegisterEndpointServer) error {
	if d.refuse != nil {
		return d.refuse
	}
	if err := s.SendHeader(metadata.Pairs("dona-lease-id", "l", "dona-heartbeat-ms", "5000")); err != nil {
		return err
	}
	for {
		if _, err := s.Recv(); errors.Is(err, io.EOF) {
			return s.SendAndClose(&donav1.RegisterAck{LeaseId: "l"})
		} else if err != nil {
			return err
		}
	}
}

// TestServeSaysHowItStands: whoever starts a variant is told that it is served, or
// why it is not; a refusal that no retry cures ends it.
func TestServeSaysHowItStands(t *testing.T) {
	for _, c := range []struct {
		name   string
		refuse error
		says   string // a pattern
		fails  string // a part of the error; empty = it serves until its input ends
	}{
		{"accepted", nil, `^serves v1 of checkout until its input ends \(Ctrl-D\): v1-a at 127\.0\.0\.1:\d+, v1-b at 127\.0\.0\.1:\d+$`, ""},
		{"not allowed", status.Error(codes.PermissionDenied, "checkout is not yours"), `^v1 of checkout is not registered yet, and tries again: .*checkout is not yours`, ""},
		{"wrong in itself", status.Error(codes.InvalidArgument, "region: is too far away"), "", "region: is too far away"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			listener, err := net.Listen("tcp", "127.0.0.1:0")
			if err != nil {
				t.Fatal(err)
			}
			host := grpc.NewServer()
			donav1.RegisterControlPlaneServer(host, desk{refuse: c.refuse})
			go func() { _ = host.Serve(listener) }()
			defer host.Stop()
			stdin, hold := io.Pipe()
			said := make(chan string, 10)
			served := make(chan error, 1)
			go func() {
				served <- Serve(t.Context(), Variant{Target: listener.Addr().String(), Service: "checkout", Name: "v1", Endpoints: 2,
					Say: func(line string) { said <- line }}, stdin)
			}()
			patience := time.After(time.Minute)
			if c.fails == "" {
				select {
				case line := <-said:
					if !regexp.MustCompile(c.says).MatchString(line) {
						t.Errorf("it says %q", line)
					}
				case err := <-served:
					t.Fatalf("it ended: %v", err)
				case <-patience:
					t.Fatal("it says nothing")
				}
				if err := hold.Close(); err != nil {
					t.Error(err)
				}
			}
			select {
			case err := <-served:
				if c.fails == "" && err != nil || c.fails != "" && (err == nil || !strings.Contains(err.Error(), c.fails)) {
					t.Errorf("it ended with %v", err)
				}
			case <-patience:
				t.Fatal("it does not end")
			}
			_ = hold.Close()
		})
	}
}
