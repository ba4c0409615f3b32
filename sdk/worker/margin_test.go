package worker_test

import (
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	controlplanev1 "github.com/dodona-project/dodona/proto/controlplane/v1"
	"github.com/dodona-project/dodona/sdk/worker"
)

// TestSafetyMargin: how long a stale worker has to end what runs is what the host says,
// or less where the program says so, and ten seconds where nobody does.
func TestSafetyMargin(t *testing.T) {
	for name, c := range map[string]struct {
		said      *durationpb.Duration
		own, want time.Duration
	}{
		"the host's":         {durationpb.New(25 * time.Second), 0, 25 * time.Second},
		"none, by the host":  {durationpb.New(0), 0, 0},
		"the program's":      {durationpb.New(25 * time.Second), 4 * time.Second, 4 * time.Second},
		"not longer":         {durationpb.New(3 * time.Second), 20 * time.Second, 3 * time.Second},
		"an older host":      {nil, 0, worker.DefaultSafetyMargin},
		"no time":            {durationpb.New(-time.Second), 0, worker.DefaultSafetyMargin},
		"older, and its own": {nil, 7 * time.Second, 7 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				d := deploy(t, hostA)
				d.give([]*controlplanev1.Routing{routing("all", "eu")}, proxies("eu", 1))
				d.with(func() { d.safety = c.said })
				w := d.start(t, func(config *worker.Config) { config.Target, config.SafetyMargin = hostA, c.own })
				after(t, time.Second, "it serves", func() bool { return w.State() == worker.Serving })
				d.down(hostA)
				after(t, 2*maxStale, "it is stale", func() bool { return w.State() >= worker.Stale })
				took := after(t, time.Minute, "it has ended", func() bool { return w.State() == worker.Ended })
				if took > c.want || took < c.want-20*time.Millisecond {
					t.Errorf("it ended %v after it was stale, want %v", took, c.want)
				}
			})
		})
	}
}
