//go:build faults

package pool_test

import (
	"testing"
	"time"

	"github.com/dodona-project/dodona/host/pool"
	"github.com/dodona-project/dodona/host/store/redis/redistest"
)

// The whole of both model tests; one seed is named with -seed and -seeds 1.
func init() { *modelSeeds, *redisSeeds = 1000, 200 }

// TestExtractorsFailOver is TestExtractorsOverRedis while the master of a group is killed
// and Sentinels make a replica the master: nothing is given twice, and whoever asks again
// with the same key has the same answer.
func TestExtractorsFailOver(t *testing.T) {
	g := redistest.StartGroup(t, 2, time.Second, redistest.Safe...)
	one, two := openAt(t, g.URL(), "pool", "one"), openAt(t, g.URL(), "pool", "two")
	w := worldOver(t, one, newClock())
	w.add("dc", 50)
	other := pool.New(pool.Options{Store: two, Audit: w.log, HostID: "h2"})
	began := time.Now()
	won := extractAll(t, []*pool.Pool{w.p, other}, 100, func(won int) {
		if won == 10 {
			g.Servers[0].Kill()
		}
	})
	t.Logf("all had their answers after %s", time.Since(began))
	if len(won) != 50 {
		t.Errorf("%d have won 50 proxies", len(won))
	}
	if g.Master(t) == g.Servers[0] {
		t.Error("there was no fail-over")
	}
}
