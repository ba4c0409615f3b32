package rollout_test

import (
	"testing"
	"time"

	"github.com/dodona-project/dodona/host/rollout"
)

// TestIDsSort: ids sort by time, and those of one millisecond in the order in which
// they were made, for lists show the newest first.
func TestIDsSort(t *testing.T) {
	now := time.Now()
	last := ""
	for n := range 10_000 {
		id := rollout.NewID("r", now.Add(time.Duration(n/1000)*time.Millisecond))
		if len(id) != 25 || id <= last {
			t.Fatalf("id %d is %s, the one before %s", n, id, last)
		}
		last = id
	}
}
