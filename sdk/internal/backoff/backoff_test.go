package backoff_test

import (
	"testing"
	"time"

	"github.com/dodona-project/dodona/sdk/internal/backoff"
)

// longest reads waits at their upper bound.
func longest() *backoff.Backoff { return &backoff.Backoff{Random: func() float64 { return 1 }} }

func TestFailuresDouble(t *testing.T) {
	b := longest()
	for k, want := range []time.Duration{500 * time.Millisecond, time.Second, 2 * time.Second, 4 * time.Second, 8 * time.Second,
		16 * time.Second, 30 * time.Second, 30 * time.Second} {
		if got := b.Next(k%2 == 0); got != want {
			t.Errorf("wait %d is at most %v, want %v", k, got, want)
		}
	}
}

func TestAfterAHealthyStream(t *testing.T) {
	b := longest()
	for range 4 {
		b.Next(true)
	}
	b.Applied()
	if got := b.Next(true); got != 500*time.Millisecond {
		t.Errorf("to another host: at most %v, want 500ms", got)
	}
	if got := b.Next(true); got != 500*time.Millisecond {
		t.Errorf("then: at most %v, want the series from its start", got)
	}
	b.Applied()
	if got := b.Next(false); got != 5*time.Second {
		t.Errorf("to the same host: at most %v, want 5s", got)
	}
	b.Longest()
	if got := b.Next(true); got != 30*time.Second {
		t.Errorf("longest: at most %v, want 30s", got)
	}
}

func TestJitterIsFull(t *testing.T) {
	b := &backoff.Backoff{Random: func() float64 { return 0 }}
	if got := b.Next(false); got != 0 {
		t.Errorf("the shortest wait is %v, want 0", got)
	}
}
