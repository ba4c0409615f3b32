package dona_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	donav1 "github.com/dodona-project/dodona/proto/dona/v1"
	"github.com/dodona-project/dodona/sdk/dona"
	"github.com/dodona-project/dodona/sdk/dona/digest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// fakeHost is a control plane of a few lines over real gRPC on loopback. What it
// sends is set by the test, also things that no honest host would send.
type fakeHost struct {
	donav1.UnimplementedControlPlaneServer
	address string
	server  *grpc.Server

	mu        sync.Mutex
	frame     *donav1.ConfigSnapshot   // what watchers get
	told      int                      // how often frame was published
	queue     []*donav1.ConfigSnapshot // what those get besides that watched before
	wake      chan struct{}            // closed when there is more to send
	watches   []*donav1.WatchConfigRequest
	batches   []*donav1.StatsBatch
	beats     map[string][]*donav1.EndpointHeartbeat
	reportErr []error // answers to the next reports
	refuse    error   // answer to registrations
	heartbeat time.Duration
	routes    map[string][]*donav1.Ingress // by service; what its status says
	statusErr error                        // answer to every question for one
	streams   context.Context              // ends streams
	cut       context.CancelFunc
}

func startHost(t testing.TB) *fakeHost { return startHostAt(t, "127.0.0.1:0") }

func startHostAt(t testing.TB, address string) *fakeHost {
	t.Helper()
	l, err := net.Listen("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	h := &fakeHost{address: l.Addr().String(), server: grpc.NewServer(), wake: make(chan struct{}), beats: map[string][]*donav1.EndpointHeartbeat{}, heartbeat: 20 * time.Millisecond}
	h.streams, h.cut = context.WithCancel(context.Background())
	donav1.RegisterControlPlaneServer(h.server, h)
	served := make(chan struct{})
	go func() {
		defer close(served)
		h.server.Serve(l)
	}()
	t.Cleanup(func() { h.stop(); <-served })
	return h
}

func (h *fakeHost) stop() {
	h.mu.Lock()
	h.cut()
	h.mu.Unlock()
	h.server.Stop()
}

// cutStreams ends all open streams; the host itself stays.
func (h *fakeHost) cutStreams() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.cut()
	h.streams, h.cut = context.WithCancel(context.Background())
}

// publish sends a snapshot, with the right checksum, to all watchers.
func (h *fakeHost) publish(s *donav1.ConfigSnapshot) {
	h.publishRaw(sealed(s))
}

func (h *fakeHost) publishRaw(s *donav1.ConfigSnapshot) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.frame = s
	h.told++
	close(h.wake)
	h.wake = make(chan struct{})
}

// push sends frames one after the other to those that watch now. Who comes later
// gets s, with the right checksum.
func (h *fakeHost) push(s *donav1.ConfigSnapshot, frames ...*donav1.ConfigSnapshot) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.frame = sealed(s)
	h.queue = append(h.queue, frames...)
	close(h.wake)
	h.wake = make(chan struct{})
}

// sealed returns a copy with the right checksum.
func sealed(s *donav1.ConfigSnapshot) *donav1.ConfigSnapshot {
	s = proto.CloneOf(s)
	sum := digest.OfSnapshot(s)
	s.Checksum = sum[:]
	return s
}

func (h *fakeHost) WatchConfig(req *donav1.WatchConfigRequest, stream grpc.ServerStreamingServer[donav1.ConfigSnapshot]) error {
	h.mu.Lock()
	h.watches = append(h.watches, req)
	streams, queued, told := h.streams, len(h.queue), -1
	h.mu.Unlock()
	first := true
	for {
		h.mu.Lock()
		f, wake, news, more := h.frame, h.wake, h.told > told, h.queue[queued:]
		told, queued = h.told, len(h.queue)
		h.mu.Unlock()
		if f != nil && news {
			if first && req.LastVersion == f.Version && string(req.LastChecksum) == string(f.Checksum) {
				f = &donav1.ConfigSnapshot{Service: req.Service, Version: f.Version, Form: donav1.ConfigSnapshot_FORM_UNCHANGED}
			}
			first = false
			if err := stream.Send(f); err != nil {
				return err
			}
		}
		for _, f := range more {
			if err := stream.Send(f); err != nil {
				return err
			}
		}
		select {
		case <-wake:
		case <-streams.Done():
			return status.Error(codes.Unavailable, "cut")
		case <-stream.Context().Done():
			return stream.Context().Err()
		}
	}
}

func (h *fakeHost) ReportStats(_ context.Context, b *donav1.StatsBatch) (*donav1.ReportAck, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.batches = append(h.batches, b)
	if len(h.reportErr) > 0 {
		err := h.reportErr[0]
		h.reportErr = h.reportErr[1:]
		if err != nil {
			return nil, err
		}
	}
	return &donav1.ReportAck{AcceptedSequence: b.Sequence}, nil
}

func (h *fakeHost) RegisterEndpoint(stream grpc.ClientStreamingServer[donav1.EndpointHeartbeat, donav1.RegisterAck]) error {
	m, err := stream.Recv()
	if err != nil {
		return err
	}
	h.mu.Lock()
	refuse, streams := h.refuse, h.streams
	lease := fmt.Sprint("lease-", len(h.beats[m.EndpointId])+1)
	h.mu.Unlock()
	if refuse != nil {
		return refuse
	}
	if err := stream.SendHeader(metadata.Pairs("dona-lease-id", lease, "dona-heartbeat-ms", strconv.FormatInt(h.heartbeat.Milliseconds(), 10))); err != nil {
		return err
	}
	got := make(chan error, 1)
	var n uint64
	go func() {
		for {
			n++
			h.mu.Lock()
			h.beats[m.EndpointId] = append(h.beats[m.EndpointId], m)
			h.mu.Unlock()
			var err error
			if m, err = stream.Recv(); err != nil {
				got <- err
				return
			}
		}
	}()
	select {
	case err := <-got:
		if errors.Is(err, io.EOF) {
			return stream.SendAndClose(&donav1.RegisterAck{LeaseId: lease, Heartbeats: n})
		}
		return err
	case <-streams.Done():
		return status.Error(codes.Unavailable, "cut")
	}
}

// look runs f under the host's lock.
func look[T any](h *fakeHost, f func() T) T {
	h.mu.Lock()
	defer h.mu.Unlock()
	return f()
}

// until waits for a condition, with a deadline that only a hang reaches.
func until(t testing.TB, what string, ok func() bool) {
	t.Helper()
	deadline := time.NewTimer(30 * time.Second)
	defer deadline.Stop()
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for !ok() {
		select {
		case <-tick.C:
		case <-deadline.C:
			t.Fatalf("waited in vain until %s", what)
		}
	}
}

func dial(t testing.TB, target string, opts ...dona.Option) *dona.Client {
	t.Helper()
	opts = append([]dona.Option{dona.WithReportInterval(10 * time.Millisecond), dona.WithRandom(func() float64 { return 0.02 })}, opts...)
	c, err := dona.Dial(t.Context(), target, opts...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

func ready(t testing.TB, s *dona.Service) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	if err := s.Ready(ctx); err != nil {
		t.Fatal(err)
	}
}

func checkout(version uint64) *donav1.ConfigSnapshot {
	return &donav1.ConfigSnapshot{Service: "checkout", Version: version,
		Endpoints: []*donav1.Endpoint{
			{Id: "a", Address: "10.0.0.1:80", Variant: "v1", Region: "eu", LbWeight: 100},
			{Id: "b", Address: "10.0.0.2:80", Variant: "v2", Region: "eu", LbWeight: 100}},
		Weights: []*donav1.VariantWeight{{Variant: "v2", Weight: 0}, {Variant: "v1", Weight: 100}},
		Flags:   []*donav1.FlagRule{{Flag: "use-v2", Service: "checkout", RolloutPercent: 21, RolloutVariant: "v2"}},
	}
}
