package pool_test

import (
	"testing"
	"time"

	controlplanev1 "github.com/dodona-project/dodona/proto/controlplane/v1"
)

// TestSetRoutingKeepsWhatIsLeftOut: a routing gets another strategy without being switched.
func TestSetRoutingKeepsWhatIsLeftOut(t *testing.T) {
	w := newWorld(t)
	set := func(r *controlplanev1.SetRoutingRequest) {
		t.Helper()
		r.Routing = "all"
		_, err := w.p.SetRouting(w.ctx, operator, r)
		w.must(err)
	}
	want := func(what string, enabled bool, strategy string) {
		t.Helper()
		c, err := w.p.InForce(w.ctx)
		w.must(err)
		if r, _ := c.Routing("all"); r.Enabled != enabled || r.Strategy != strategy {
			t.Errorf("%s: enabled %v with %s, want %v with %s", what, r.Enabled, r.Strategy, enabled, strategy)
		}
	}
	set(&controlplanev1.SetRoutingRequest{Strategy: "random", KeepEnabled: true})
	want("as it was published", true, "random")
	set(&controlplanev1.SetRoutingRequest{})
	want("switched off", false, "random")
	set(&controlplanev1.SetRoutingRequest{Strategy: "priority", KeepEnabled: true})
	want("another strategy", false, "priority")
	set(&controlplanev1.SetRoutingRequest{Enabled: true})
	want("switched on", true, "priority")
}

// TestWorkersAreToldTheMargin: a worker ends what runs within the published margin.
func TestWorkersAreToldTheMargin(t *testing.T) {
	w := newWorld(t)
	w.publish(document + "allocation: {safetyMargin: 17s}\n")
	resp, err := w.p.Register(w.ctx, &controlplanev1.RegisterWorkerRequest{ClusterId: "c1", WorkerId: "w1", InstanceId: "i", SupportedProtocolVersion: 1})
	w.must(err)
	if resp.SafetyMargin == nil || resp.SafetyMargin.AsDuration() != 17*time.Second {
		t.Errorf("it is told %v", resp.SafetyMargin)
	}
}
