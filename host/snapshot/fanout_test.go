package snapshot_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dodona-project/dodona/host/refusal"
	"github.com/dodona-project/dodona/host/snapshot"
)

// TestFlapping has one name change 200 times a second for 10 s, by changes, by
// instances that come and go, or both, while another one changes now and then.
func TestFlapping(t *testing.T) {
	for name, flap := range map[string]func(n int) change{
		"changes":     func(int) change { return change{put: ids(1)} },
		"removals":    func(int) change { return change{put: ids(1), early: true} },
		"every other": func(n int) change { return change{put: ids(1), early: n%2 == 0} },
		"now and then": func(n int) change {
			return change{put: ids(1), early: n%173 == 0}
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				st := openStore(t)
				feeds := newFeeds(t, st, &services{}, nil)
				defer feeds.Close()
				apply(t, st, "flapping", change{put: ids(3)})
				apply(t, st, "calm", change{put: ids(3)})
				ctx, cancel := context.WithCancel(t.Context())
				watch := func(name string, got func(*snapshot.Frame)) chan struct{} {
					sub := subscribe(t, feeds, name, snapshot.Watcher{AcceptDelta: true})
					next(t, sub)
					done := make(chan struct{})
					go func() {
						defer close(done)
						defer sub.Close()
						for {
							f, err := sub.Next(ctx)
							if err != nil {
								return
							}
							got(f)
						}
					}()
					return done
				}
				frames, newest := 0, uint64(0)
				flapping := watch("flapping", func(f *snapshot.Frame) { frames++; newest = f.Version })
				arrived := make(chan uint64, 100)
				calm := watch("calm", func(f *snapshot.Frame) { arrived <- f.Version })
				time.Sleep(5 * time.Second)
				var version uint64
				for n := range 2000 {
					version = apply(t, st, "flapping", flap(n))
					if n%300 == 150 { // 1.5 s apart, so within the other's window at first
						want, since := apply(t, st, "calm", change{put: ids(1)}), time.Now()
						if got := <-arrived; got != want {
							t.Fatalf("the calm one is at %d, want %d", got, want)
						}
						if took := time.Since(since); took > 300*time.Millisecond {
							t.Errorf("its change took %v", took)
						}
					}
					time.Sleep(5 * time.Millisecond)
				}
				time.Sleep(time.Second)
				synctest.Wait()
				t.Logf("%d snapshots", frames)
				if frames > 30 {
					t.Errorf("%d snapshots of 2,000 changes in 10 s, want at most 30", frames)
				}
				if newest != version {
					t.Errorf("after quiet the watcher is at %d, want %d", newest, version)
				}
				cancel()
				<-flapping
				<-calm
			})
		})
	}
}

// Few removals skip the wait; an urgent change skips it however many they were.
func TestRemovalsSkipTheWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		st := openStore(t)
		feeds := newFeeds(t, st, &services{}, nil)
		defer feeds.Close()
		apply(t, st, "a", change{put: ids(3)})
		sub := subscribe(t, feeds, "a", snapshot.Watcher{})
		defer sub.Close()
		next(t, sub)
		took := func(c change) time.Duration {
			start := time.Now()
			want := apply(t, st, "a", c)
			if f := next(t, sub); f.Version != want {
				t.Fatalf("version %d, want %d", f.Version, want)
			}
			return time.Since(start)
		}
		time.Sleep(5 * time.Second)
		took(change{put: ids(1)}) // opens the window
		for n := range 4 {
			if d := took(change{put: ids(1), early: true}); d != 0 {
				t.Errorf("removal %d waited %v", n, d)
			}
		}
		if d := took(change{put: ids(1), early: true}); d != 320*time.Millisecond {
			t.Errorf("one removal more waited %v, want for the window", d)
		}
		if d := took(change{put: ids(1), urgent: true}); d != 0 {
			t.Errorf("an urgent change waited %v", d)
		}
		time.Sleep(2 * time.Second)
		took(change{put: ids(1)})
		if d := took(change{put: ids(1), early: true}); d != 0 {
			t.Errorf("after quiet a removal waited %v", d)
		}
	})
}

// stalled is a stream whose peer reads nothing from its n-th frame on.
type stalled struct {
	ctx  context.Context // as gRPC does, a send ends when the handler has returned
	n    int
	sent int
}

func (s *stalled) SendMsg(any) error {
	if s.sent++; s.sent < s.n {
		return nil
	}
	<-s.ctx.Done()
	return s.ctx.Err()
}

// TestStalledWatcher (N4): one that stops reading is cut after 10 s; another one
// gets every change at once meanwhile.
func TestStalledWatcher(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		st := openStore(t)
		feeds := newFeeds(t, st, &services{}, nil)
		defer feeds.Close()
		apply(t, st, "a", change{put: ids(3)})
		reader := subscribe(t, feeds, "a", snapshot.Watcher{})
		defer reader.Close()
		next(t, reader)
		ctx, cancel := context.WithCancel(t.Context())
		type end struct {
			err error
			at  time.Time
		}
		cut := make(chan end, 1)
		sub := subscribe(t, feeds, "a", snapshot.Watcher{Client: "stalled", AcceptDelta: true})
		go func() {
			err := feeds.Serve(ctx, &stalled{ctx: ctx, n: 2}, sub)
			cut <- end{err, time.Now()}
			cancel()
		}()
		time.Sleep(5 * time.Second)
		start := time.Now()
		for time.Since(start) < 12*time.Second {
			begin := time.Now()
			apply(t, st, "a", change{put: ids(1)})
			next(t, reader)
			if took := time.Since(begin); took != 0 {
				t.Fatalf("the other watcher waited %v", took)
			}
			time.Sleep(3 * time.Second)
		}
		got := <-cut
		if !refusal.Is(got.err, refusal.Exhausted) {
			t.Errorf("the stalled one ended with %v", got.err)
		}
		if after := got.at.Sub(start); after != 10*time.Second {
			t.Errorf("it was cut after %v, want 10 s", after)
		}
		if s := feeds.Summary("a"); s.Connected != 1 {
			t.Errorf("%d watchers are left, want 1", s.Connected)
		}
	})
}
