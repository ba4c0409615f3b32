package api_test

import (
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	donav1 "github.com/dodona-project/dodona/proto/dona/v1"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"

	"github.com/dodona-project/dodona/host/limits"
)

// TestStatusStream: a status comes at once, then whenever it changed and only then;
// a service that is gone, and a host that stops, end it with a reason.
func TestStatusStream(t *testing.T) {
	e := newEdge(t)
	h := e.register(endpoint(nil))
	s, err := e.client.WatchStatus(ctx(t), &donav1.GetStatusRequest{Service: "web"})
	fatal(t, err)
	last, err := s.Recv()
	fatal(t, err)
	if !proto.Equal(last.Config, e.status("web").Config) {
		t.Errorf("the first status is %v", last)
	}
	const changes = 20
	for i := range changes {
		_, err := e.client.SetFlag(ctx(t), flagRule(func(r *donav1.FlagRule) { r.RolloutPercent = uint32(i) }))
		fatal(t, err)
	}
	frames := 0
	for last.Config.Version < e.status("web").Config.Version {
		now, err := s.Recv()
		fatal(t, err)
		if proto.Equal(now, last) || now.Config.Version < last.Config.Version || now.AuditSequence < last.AuditSequence {
			t.Errorf("after\n%v\ncomes\n%v", last, now)
		}
		last, frames = now, frames+1
	}
	if frames > changes {
		t.Errorf("%d frames for %d changes", frames, changes)
	}
	// What is not below svc/ shows, too.
	_, err = e.client.SetSharedService(ctx(t), share(nil))
	fatal(t, err)
	for last.Shared == nil {
		last, err = s.Recv()
		fatal(t, err)
	}
	_, err = h.stream.CloseAndRecv()
	fatal(t, err)
	e.stop()
	for err == nil {
		_, err = s.Recv()
	}
	refused(t, "the host stops", err, codes.Unavailable, "")
}

// TestStatusReaderIsCut: a client that stops reading its statuses is cut off, and
// keeps nobody else.
func TestStatusReaderIsCut(t *testing.T) {
	e := newEdge(t, withSends(3*time.Second))
	e.register(endpoint(nil))
	big := targeting(func(r *donav1.TargetingRule) {
		r.Values = nil
		for i := range 200 {
			r.Values = append(r.Values, strings.Repeat("v", limits.ValueLen-4)+fmt.Sprint(i))
		}
	})
	_, err := e.client.SetFlag(ctx(t), big)
	fatal(t, err)
	small := e.another(grpc.WithStaticStreamWindowSize(64 << 10)) // and so it stays
	stopped, err := small.client.WatchStatus(ctx(t), &donav1.GetStatusRequest{Service: "web"})
	fatal(t, err)
	reads, err := e.client.WatchStatus(ctx(t), &donav1.GetStatusRequest{Service: "web"})
	fatal(t, err)
	var seen atomic.Uint64
	ended := make(chan error, 1)
	go func() {
		for {
			s, err := reads.Recv()
			if err != nil {
				ended <- err
				return
			}
			seen.Store(s.Config.Version)
		}
	}()
	for i := range 3 { // each is more than the window of one that does not read
		_, err := e.client.SetFlag(ctx(t), flagRule(func(r *donav1.FlagRule) { r.Flag, r.RolloutPercent = "g", uint32(i) }))
		fatal(t, err)
		version := e.status("web").Config.Version
		for begin := time.Now(); seen.Load() < version; time.Sleep(10 * time.Millisecond) {
			if time.Since(begin) > patience {
				t.Fatalf("who reads has seen version %d, want %d", seen.Load(), version)
			}
		}
	}
	for begin := time.Now(); e.ended(donav1.ControlPlane_WatchStatus_FullMethodName) == 0; time.Sleep(20 * time.Millisecond) {
		if time.Since(begin) > patience {
			t.Fatal("who does not read is not cut off")
		}
	}
	for err == nil {
		_, err = stopped.Recv()
	}
	refused(t, "who does not read", err, codes.ResourceExhausted, "")
	select {
	case err := <-ended:
		t.Errorf("who reads was ended, too: %v", err)
	default:
	}
}
