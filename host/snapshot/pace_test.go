package snapshot_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dodona-project/dodona/host/snapshot"
)

// published runs changes at the given times (from 10 s on, so that the first
// publication is long over) and returns when which were published, in ms.
func published(t *testing.T, run func(change func(urgent bool))) string {
	var out []string
	synctest.Test(t, func(t *testing.T) {
		st := openStore(t)
		feeds := newFeeds(t, st, &services{}, nil)
		defer feeds.Close()
		apply(t, st, "a", change{put: ids(3)})
		sub := subscribe(t, feeds, "a", snapshot.Watcher{})
		defer sub.Close()
		seen := next(t, sub).Version
		time.Sleep(10 * time.Second)
		start := time.Now()
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() {
			defer close(done)
			for {
				f, err := sub.Next(ctx)
				if err != nil {
					return
				}
				out = append(out, fmt.Sprintf("%d:+%d", time.Since(start).Milliseconds(), f.Version-seen))
				seen = f.Version
			}
		}()
		run(func(urgent bool) {
			apply(t, st, "a", change{put: ids(1), urgent: urgent})
			synctest.Wait()
		})
		time.Sleep(10 * time.Second)
		cancel()
		<-done
	})
	return strings.Join(out, " ")
}

// every makes n changes, one each d after the first. The second comes half a
// millisecond early, so that no change falls on the very end of a window.
func every(d time.Duration, n int, change func(urgent bool)) {
	change(false)
	time.Sleep(d - time.Millisecond/2)
	for range n - 1 {
		change(false)
		time.Sleep(d)
	}
}

func TestCoalescing(t *testing.T) {
	for _, tc := range []struct {
		name string
		run  func(change func(bool))
		want string
	}{
		{"one change goes out at once", func(change func(bool)) { change(false) }, "0:+1"},
		{"windows double up to 450 ms", func(change func(bool)) { every(time.Millisecond, 2000, change) },
			"0:+1 20:+20 60:+40 140:+80 300:+160 620:+320 1070:+450 1520:+450 1970:+450 2420:+29"},
		{"a change after its window goes out at once", func(change func(bool)) { every(700*time.Millisecond, 4, change) }, "0:+1 699:+1 1399:+1 2099:+1"},
		{"changes that come by themselves open no long windows", func(change func(bool)) {
			every(time.Millisecond, 1000, change) // to the longest window
			time.Sleep(600 * time.Millisecond)
			change(false) // by itself
			time.Sleep(30 * time.Millisecond)
			change(false)
			time.Sleep(600 * time.Millisecond)
			change(false)
			time.Sleep(10 * time.Millisecond)
			change(false)
		}, "0:+1 20:+20 60:+40 140:+80 300:+160 620:+320 1070:+379 1599:+1 1629:+1 2229:+1 2249:+1"},
		{"changes twice as fast as the longest window are held", func(change func(bool)) { every(225*time.Millisecond, 12, change) },
			"0:+1 224:+1 449:+1 674:+1 899:+1 1219:+1 1669:+2 2119:+2 2569:+2"},
		{"windows go back after 2 s of quiet", func(change func(bool)) {
			every(time.Millisecond, 100, change)
			time.Sleep(2050 * time.Millisecond)
			every(time.Millisecond, 30, change)
		}, "0:+1 20:+20 60:+40 140:+39 2149:+1 2169:+20 2209:+9"},
		{"urgent changes skip the wait", func(change func(bool)) {
			every(time.Millisecond, 200, change)
			change(true)
			change(false)
			time.Sleep(10 * time.Millisecond)
			change(true)
		}, "0:+1 20:+20 60:+40 140:+80 199:+60 209:+2"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if got := published(t, tc.run); got != tc.want {
				t.Errorf("published\n%s, want\n%s", got, tc.want)
			}
		})
	}
}
