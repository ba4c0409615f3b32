package dona_test

import (
	"context"
	"net"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"

	donav1 "github.com/dodona-project/dodona/proto/dona/v1"
	"github.com/dodona-project/dodona/sdk/dona"
)

// muteHost takes reports and the end of registrations, and never answers.
type muteHost struct{ *fakeHost }

func (m muteHost) ReportStats(ctx context.Context, _ *donav1.StatsBatch) (*donav1.ReportAck, error) {
	<-ctx.Done()
	return nil, ctx.Err()
}

func (m muteHost) RegisterEndpoint(stream grpc.ClientStreamingServer[donav1.EndpointHeartbeat, donav1.RegisterAck]) error {
	<-stream.Context().Done()
	return stream.Context().Err()
}

// Close ends in two seconds with a host that takes everything and answers nothing,
// with one that is gone, and with one that never speaks. The bubble ends only when
// all goroutines and connections of the client have.
func TestCloseIsBounded(t *testing.T) {
	for name, prepare := range map[string]func(n *network) (stop func()){
		"mute": func(n *network) func() {
			return n.serveAs(7, func(h *fakeHost) donav1.ControlPlaneServer { return muteHost{h} })
		},
		"stopped": func(n *network) func() { n.serve(7)(); return func() {} },
		"silent": func(n *network) func() {
			var open []net.Conn
			n.silent = func() net.Conn {
				near, far := net.Pipe()
				open = append(open, far)
				return near
			}
			return func() {
				for _, c := range open {
					c.Close()
				}
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				n := &network{}
				stop := prepare(n)
				defer stop()
				c, err := dona.Dial(t.Context(), "host:7600", dona.WithDialer(n.dial))
				if err != nil {
					t.Fatal(err)
				}
				svc := c.Service("checkout")
				if _, err := c.Register(t.Context(), dona.OwnEndpoint{Service: "checkout", ID: "own", Address: "10.0.0.9:80", Variant: "v1"}); err != nil {
					t.Fatal(err)
				}
				time.Sleep(time.Second)
				if p, err := svc.Pick(t.Context(), dona.Request{Unit: "user-1"}); err == nil {
					p.Done(dona.Outcome{Success: true})
				} else if name == "mute" {
					t.Error(err)
				}
				began := time.Now()
				err = c.Close()
				if took := time.Since(began); took > 2*time.Second {
					t.Errorf("Close took %v", took)
				}
				if name == "mute" && err == nil {
					t.Error("Close says all was delivered")
				}
			})
		})
	}
}

// A stock gRPC server calls our keepalive pings too many and drops the connection.
// The client then pings less often and stays in sync.
func TestStockServerDislikesPings(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := &network{}
		stop := n.serve(7)
		defer stop()
		c, err := dona.Dial(t.Context(), "host:7600", dona.WithDialer(n.dial))
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		svc := c.Service("checkout")
		if err := svc.Ready(t.Context()); err != nil {
			t.Fatal(err)
		}
		time.Sleep(2 * time.Hour)
		n.mu.Lock()
		settled := n.dialed
		n.mu.Unlock()
		stale := 0
		for range 3600 {
			time.Sleep(time.Second)
			if _, err := svc.Pick(t.Context(), dona.Request{}); err != nil {
				t.Fatal(err)
			}
			if svc.Status().Stale {
				stale++
			}
		}
		n.mu.Lock()
		defer n.mu.Unlock()
		if settled < 2 || settled > 10 || n.dialed != settled || stale > 0 {
			t.Errorf("%d connections in two hours, %d in the third, of which %d s stale", settled, n.dialed-settled, stale)
		}
	})
}

// A host that is restarted, away for three seconds, is back in sync soon after.
func TestRestartIsShort(t *testing.T) {
	for _, luck := range []float64{0.1, 0.5, 0.9} {
		synctest.Test(t, func(t *testing.T) {
			n := &network{}
			stop := n.serve(7)
			c, err := dona.Dial(t.Context(), "host:7600", dona.WithDialer(n.dial), dona.WithRandom(func() float64 { return luck }))
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close()
			svc := c.Service("checkout")
			if err := svc.Ready(t.Context()); err != nil {
				t.Fatal(err)
			}
			time.Sleep(time.Minute)
			gone := time.Now()
			stop()
			time.Sleep(3 * time.Second)
			stop = n.serve(8)
			defer func() { stop() }()
			for svc.Status().Version != 8 {
				if time.Since(gone) > 30*time.Second {
					break
				}
				time.Sleep(10 * time.Millisecond)
			}
			if took := time.Since(gone); took > 6*time.Second {
				t.Errorf("with luck %v: back after %v", luck, took)
			}
		})
	}
}
