package rollout_test

import (
	"testing"
	"time"

	"github.com/dodona-project/dodona/host/rollout"
)

// What is started later sorts later, also within a millisecond: lists of what was
// started are in that order, and the oldest is what makes room.
func TestIDsSortByTheirOrder(t *testing.T) {
	at := time.UnixMilli(1_796_050_989_123)
	last := rollout.NewID("d", at.Add(-time.Millisecond))
	for n := range 10_000 {
		id := rollout.NewID("d", at)
		if id <= last || len(id) != len(last) {
			t.Fatalf("id %d is %s after %s", n, id, last)
		}
		last = id
	}
	if id := rollout.NewID("d", at.Add(time.Millisecond)); id <= last {
		t.Errorf("a millisecond later it is %s after %s", id, last)
	}
}
