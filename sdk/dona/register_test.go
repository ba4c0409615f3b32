package dona_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	donav1 "github.com/dodona-project/dodona/proto/dona/v1"
	"github.com/dodona-project/dodona/sdk/dona"
)

var own = dona.OwnEndpoint{Service: "checkout", ID: "a", Address: "10.0.0.1:80", Variant: "v1", Region: "eu", Zone: "eu-1",
	Labels: map[string]string{"commit": "abc"}, Capacity: 50}

func register(t *testing.T, c *dona.Client, e dona.OwnEndpoint) *dona.Registration {
	t.Helper()
	r, err := c.Register(t.Context(), e)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func accepted(t *testing.T, r *dona.Registration) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	if err := r.Wait(ctx); err != nil {
		t.Fatal(err)
	}
}

func (h *fakeHost) last(id string) *donav1.EndpointHeartbeat {
	return look(h, func() *donav1.EndpointHeartbeat {
		if b := h.beats[id]; len(b) > 0 {
			return b[len(b)-1]
		}
		return &donav1.EndpointHeartbeat{}
	})
}

func TestRegistration(t *testing.T) {
	h := startHost(t)
	r := register(t, dial(t, h.address), own)
	accepted(t, r)
	if r.LeaseID() != "lease-1" || r.Problem() != nil {
		t.Errorf("lease %q, problem %v", r.LeaseID(), r.Problem())
	}
	// Acceptance goes out before the beat is noted.
	until(t, "the registration is noted", func() bool { return look(h, func() bool { return len(h.beats["a"]) > 0 }) })
	first := look(h, func() *donav1.EndpointHeartbeat { return h.beats["a"][0] })
	if first.Service != "checkout" || first.Address != own.Address || first.Variant != "v1" || first.Region != "eu" || first.Zone != "eu-1" ||
		first.Capacity != 50 || first.Labels["commit"] != "abc" || first.Sequence != 1 {
		t.Errorf("registered %v", first)
	}
	r.SetLoad(0.75, 12)
	until(t, "a beat carries the load", func() bool { b := h.last("a"); return b.Utilization == 0.75 && b.InFlight == 12 })
	r.Drain()
	until(t, "a beat says draining", func() bool { return h.last("a").Draining })
	until(t, "beats go on and count up", func() bool {
		return look(h, func() bool {
			for i, b := range h.beats["a"] {
				if b.Sequence != uint64(i+1) {
					t.Fatalf("beat %d has sequence %d", i, b.Sequence)
				}
			}
			return len(h.beats["a"]) > 6
		})
	})
	if err := r.Close(t.Context()); err != nil {
		t.Errorf("Close: %v", err)
	}
	if err := r.Close(t.Context()); err != nil {
		t.Errorf("second Close: %v", err)
	}
}

func TestRegistrationComesBack(t *testing.T) {
	h := startHost(t)
	c := dial(t, h.address)
	r := register(t, c, own)
	accepted(t, r)
	r.Drain()
	until(t, "it drains", func() bool { return h.last("a").Draining })
	n := look(h, func() int { return len(h.beats["a"]) })
	h.cutStreams()
	until(t, "it registers again, draining still", func() bool {
		return look(h, func() bool {
			for _, b := range h.beats["a"][n:] {
				if b.Sequence == 1 {
					return b.Draining
				}
			}
			return false
		})
	})
	until(t, "the problem is over", func() bool { return r.Problem() == nil })
	if err := c.Close(); err != nil {
		t.Errorf("Close of the client: %v", err)
	}
	if _, err := c.Register(t.Context(), own); err == nil {
		t.Error("a closed client registers")
	}
}

func TestRegistrationThatIsRefused(t *testing.T) {
	h := startHost(t)
	h.refuse = status.Error(codes.InvalidArgument, "labels: too many")
	r := register(t, dial(t, h.address), own)
	if err := r.Wait(t.Context()); err == nil || !strings.Contains(err.Error(), "labels: too many") {
		t.Errorf("got %v", err)
	}
}

func TestRegistrationWaitsForAHost(t *testing.T) {
	h := startHost(t)
	h.stop()
	r := register(t, dial(t, h.address), own)
	until(t, "the reason is known", func() bool { return r.Problem() != nil })
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := r.Wait(ctx); err == nil || !strings.Contains(err.Error(), h.address) {
		t.Errorf("got %v, want the host named", err)
	}
	startHostAt(t, h.address)
	accepted(t, r)
}

func TestRegistrationOnTheOtherHost(t *testing.T) {
	one, two := startHost(t), startHost(t)
	r := register(t, dial(t, one.address+","+two.address), own)
	accepted(t, r)
	one.stop()
	until(t, "the other host has it", func() bool { return two.last("a").EndpointId == "a" })
}

func TestEndpointsThatAreDescribedWrongly(t *testing.T) {
	c := dial(t, "127.0.0.1:1")
	for want, change := range map[string]func(*dona.OwnEndpoint){
		"service":     func(e *dona.OwnEndpoint) { e.Service = "Check Out" },
		"endpoint id": func(e *dona.OwnEndpoint) { e.ID = "" },
		"variant":     func(e *dona.OwnEndpoint) { e.Variant = "v 1" },
		"region":      func(e *dona.OwnEndpoint) { e.Region = "-eu" },
		"zone":        func(e *dona.OwnEndpoint) { e.Zone = "a:b" },
		"address":     func(e *dona.OwnEndpoint) { e.Address = "10.0.0.1" },
	} {
		e := own
		change(&e)
		if _, err := c.Register(t.Context(), e); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got %v", want, err)
		}
	}
}
