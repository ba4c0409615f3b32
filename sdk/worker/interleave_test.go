package worker

import (
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	controlplanev1 "github.com/dodona-project/dodona/proto/controlplane/v1"
	"github.com/dodona-project/dodona/sdk/worker/digest"
)

// Steps of several goroutines, in the one order that matters and seldom happens.

func idle(t *testing.T) *Worker {
	t.Helper()
	w, err := New(Config{Target: "a:1", ClusterID: "prod", WorkerID: "w", InstanceID: "i"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = w.disconnect() })
	return w
}

// next is the View of a snapshot with these proxies, not in use yet.
func next(t *testing.T, w *Worker, version uint64, ids ...string) *View {
	t.Helper()
	s := &controlplanev1.WorkerSnapshot{
		Version: version, ClusterId: "prod", GeneratedAt: timestamppb.Now(), ValidUntil: timestamppb.New(time.Now().Add(time.Hour)),
		Routings: []*controlplanev1.Routing{{Name: "all", OnUnavailable: controlplanev1.OnUnavailable_ON_UNAVAILABLE_FAIL, Upstreams: []*controlplanev1.UpstreamRef{{Name: "eu"}}}},
	}
	for _, id := range ids {
		s.Proxies = append(s.Proxies, &controlplanev1.Proxy{ProxyId: id, Upstream: "eu", Protocol: controlplanev1.Proxy_PROTOCOL_HTTP, Host: "192.0.2.1", Port: 1, Capacity: 2,
			Health: controlplanev1.Health_HEALTH_AVAILABLE, AssignmentEpoch: 1})
	}
	sum := digest.OfSnapshot(s)
	s.Checksum = sum[:]
	c, err := fullContent(s, "prod")
	if err != nil {
		t.Fatal(err)
	}
	v, err := w.compile(c, w.now())
	if err != nil {
		t.Fatal(err)
	}
	return v
}

// A swap comes between a pick's choice and its look at the View: the place is given back.
func TestSwapWithinAPick(t *testing.T) {
	w := idle(t)
	w.swap(next(t, w, 1, "a"))
	v, r, now, err := w.current(w.View().Route(&Request{}))
	if err != nil {
		t.Fatal(err)
	}
	p, got := r.healthy.choose(now, 0, nil)
	w.swap(next(t, w, 2, "b"))
	if l, sure, err := w.take(v, r, p, got); sure || err != nil || l.state != released {
		t.Errorf("a place under the old View is kept: %v, %v", sure, err)
	}
	if n := w.InUse(); n != 0 {
		t.Errorf("%d places are taken", n)
	}
	// The same with a revocation.
	v, r, now, err = w.current(r)
	if err != nil {
		t.Fatal(err)
	}
	p, got = r.healthy.choose(now, 0, nil)
	w.revoke([]string{"b"})
	if _, sure, _ := w.take(v, r, p, got); sure || w.InUse() != 0 {
		t.Error("a place on a revoked proxy is kept")
	}
}

// A proxy comes back in the moment in which a report forgets it: its uses are reported.
func TestReportWhileAProxyComesBack(t *testing.T) {
	w := idle(t)
	w.swap(next(t, w, 1, "a"))
	l, err := w.Pick(w.View().Route(&Request{}), 0, nil)
	if err != nil {
		t.Fatal(err)
	}
	w.swap(next(t, w, 2))
	v := next(t, w, 3, "a") // it has the slot
	l.Release()
	if got := w.counters(0); len(got) != 0 { // and this forgets it
		t.Errorf("reported %v", got)
	}
	w.swap(v)
	l, err = w.Pick(w.View().Route(&Request{}), 0, nil)
	if err != nil {
		t.Fatal(err)
	}
	l.Activate()
	if got := w.counters(0); len(got) != 1 || got[0].GetActive() != 1 || got[0].GetDraining() || w.InUse() != 1 {
		t.Errorf("reported %v", got)
	}
}

// More proxies are used than a report may have: those that drain come first.
func TestCountersAreBounded(t *testing.T) {
	w := idle(t)
	w.swap(next(t, w, 1, "a", "b", "z"))
	r := w.View().Route(&Request{})
	for range 6 {
		if _, err := w.Pick(r, 0, nil); err != nil {
			t.Fatal(err)
		}
	}
	w.swap(next(t, w, 2, "a", "b"))
	got := w.counters(2)
	if len(got) != 2 || got[0].GetProxyId() != "z" || !got[0].GetDraining() || got[1].GetProxyId() != "a" || got[1].GetReserved() != 2 {
		t.Errorf("reported %v", got)
	}
}
