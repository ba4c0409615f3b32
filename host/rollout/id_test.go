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

// An id carries its time, so that hosts and restarts do not mix the order up, and
// what no other host or restart draws.
func TestIDsAreOfTheirTime(t *testing.T) {
	at := time.UnixMilli(1_796_050_989_123)
	first, later, again := rollout.NewID("d", at), rollout.NewID("d", at.Add(time.Hour)), rollout.NewID("d", at)
	const letterAndTime = 1 + 9 // 45 of the 48 bits of the time
	if first[:letterAndTime] != again[:letterAndTime] || first[:letterAndTime] >= later[:letterAndTime] {
		t.Errorf("ids of one time, of an hour later, and of the first time: %s, %s, %s", first, later, again)
	}
	if drawn := letterAndTime + 1; first[drawn:] == later[drawn:] || first[drawn:] == again[drawn:] {
		t.Errorf("nothing is drawn of %s, %s, %s", first, later, again)
	}
}
