package plugins

import (
	"testing"
	"time"

	"pgregory.net/rapid"
)

func TestRestartDelayGrowsToItsCeiling(t *testing.T) {
	b := Backoff{Min: 250 * time.Millisecond, Max: 60 * time.Second}
	least, most := func() float64 { return 0 }, func() float64 { return 1 }
	for exits, want := range map[int]time.Duration{
		0: 250 * time.Millisecond, 1: 500 * time.Millisecond, 2: time.Second, 5: 8 * time.Second, 8: 60 * time.Second, 1000: 60 * time.Second,
	} {
		if got := restartDelay(exits, b, most); got != want {
			t.Errorf("%d exits: at most %v, want %v", exits, got, want)
		}
		if got := restartDelay(exits, b, least); got != b.Min {
			t.Errorf("%d exits: at least %v, want %v", exits, got, b.Min)
		}
	}
	if got := restartDelay(3, Backoff{Min: time.Hour, Max: time.Hour}, most); got != time.Hour {
		t.Errorf("equal bounds: %v", got)
	}
}

func TestQuarantineCountsExitsOfTheWindow(t *testing.T) {
	l := Limits{QuarantineAt: 5, QuarantineIn: 10 * time.Minute}
	at := time.Unix(1_000_000, 0)
	exits := []time.Time{at, at.Add(time.Minute), at.Add(2 * time.Minute), at.Add(3 * time.Minute)}
	if quarantined(exits, at.Add(3*time.Minute), l) {
		t.Error("four exits are one too few")
	}
	exits = append(exits, at.Add(9*time.Minute))
	if !quarantined(exits, at.Add(9*time.Minute), l) {
		t.Error("five exits within nine minutes")
	}
	if quarantined(exits, at.Add(10*time.Minute), l) {
		t.Error("the first of five is ten minutes old")
	}
}

func TestBudgetHoldsOverAnyWindow(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		b := budget{most: rapid.IntRange(1, 12).Draw(t, "most"), window: time.Minute}
		now := time.Unix(1_000_000, 0)
		var taken []time.Time
		for range rapid.IntRange(1, 100).Draw(t, "tries") {
			now = now.Add(time.Duration(rapid.IntRange(0, 20_000).Draw(t, "ms")) * time.Millisecond)
			wait := b.take(now)
			if wait < 0 || wait > b.window {
				t.Fatalf("wait %v", wait)
			}
			if wait > 0 {
				// Waiting as long as told is enough.
				now = now.Add(wait)
				if again := b.take(now); again != 0 {
					t.Fatalf("waited %v and was told to wait %v", wait, again)
				}
			}
			taken = append(taken, now)
			if n := len(recent(taken, now, b.window)); n > b.most {
				t.Fatalf("%d restarts within %v, allowed are %d", n, b.window, b.most)
			}
		}
	})
}
