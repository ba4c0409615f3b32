package worker_test

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/protobuf/proto"

	controlplanev1 "github.com/dodona-project/dodona/proto/controlplane/v1"
	donav1 "github.com/dodona-project/dodona/proto/dona/v1"
	"github.com/dodona-project/dodona/proto/prototest"
	"github.com/dodona-project/dodona/sdk/worker"
	"github.com/dodona-project/dodona/sdk/worker/digest"
)

// TestUnknownEnums: a snapshot or delta with a number in it that this worker does not
// know is refused, whatever enum it is of: with a negative acknowledgement that names the
// number, and what was there before stays. Every answer of the service is looked through,
// so one that gets another enum needs a case here.
func TestUnknownEnums(t *testing.T) {
	methods := controlplanev1.File_controlplane_v1_controlplane_proto.Services().ByName("WorkerControlPlane").Methods()
	tried := 0
	for i := range methods.Len() {
		answer := methods.Get(i).Output()
		for _, path := range prototest.Enums(answer) {
			if answer.Name() != "SnapshotUpdate" {
				t.Errorf("%s.%s: no case shows what becomes of a number in it that is not known", answer.Name(), path)
				continue
			}
			tried++
			t.Run(path.String(), func(t *testing.T) { synctest.Test(t, func(t *testing.T) { unknownEnum(t, path) }) })
		}
	}
	if tried < 14 {
		t.Errorf("only %d were tried", tried)
	}
}

func unknownEnum(t *testing.T, path prototest.Path) {
	d := deploy(t, hostA)
	r := routing("all", "eu")
	r.Plan = &donav1.Plan{Algorithm: donav1.Algorithm_ALGORITHM_ROUND_ROBIN}
	d.give([]*controlplanev1.Routing{r}, proxies("eu", 2))
	d.with(func() { d.deltas = path[0].Name() == "delta" })
	w := d.start(t, func(c *worker.Config) { c.Target = hostA })
	after(t, time.Second, "it serves", func() bool { return d.ackedVersion() == 1 })
	held := w.View()
	d.with(func() {
		// Both change, so that both are in a delta.
		changed := proto.CloneOf(r)
		changed.Match = &controlplanev1.RoutingMatch{Methods: []string{"GET"}}
		d.routings = []*controlplanev1.Routing{changed}
		d.proxies = proxies("eu", 2)
		d.proxies[0].Capacity++
		whole := &controlplanev1.WorkerSnapshot{Routings: d.routings, Proxies: d.proxies}
		d.spoil = func(u *controlplanev1.SnapshotUpdate) {
			d.spoil = nil
			path.Set(u, 77)
			// As a host that knows the number makes it: its checksum is right.
			whole := proto.CloneOf(whole)
			if delta := u.GetDelta(); delta != nil {
				whole.Routings, whole.Proxies = delta.Routings, append(delta.UpsertProxies, whole.Proxies[1])
				sum := digest.OfSnapshot(whole)
				delta.Checksum = sum[:]
				d.issued[reference(delta.Version, delta.OwnershipEpoch, delta.Checksum)] = true
				return
			}
			sum := digest.OfSnapshot(u.GetFull())
			u.GetFull().Checksum = sum[:]
		}
	})
	d.push()
	after(t, time.Second, "it is refused", func() bool { return d.count(func() int { return len(d.acks) }) > 1 })
	d.with(func() {
		if bad := d.acks[1]; bad.GetAccepted() || bad.GetVersion() != 2 || !strings.Contains(bad.GetReason(), "77") {
			t.Errorf("acknowledged with %v, want a refusal of 77", bad)
		}
	})
	if w.View() != held || w.State() != worker.Serving {
		t.Errorf("in use is version %d, %v", w.View().Version(), w.State())
	}
	after(t, time.Minute, "the next good one is used", func() bool { return d.ackedVersion() > 2 })
	d.with(func() {
		if n := len(d.watches); n != 2 || d.watches[1].GetLastVersion() != 0 {
			t.Errorf("%d watches, the last with version %d", n, d.watches[n-1].GetLastVersion())
		}
	})
}
