package snapshot_test

import (
	"context"
	"math/rand/v2"
	"testing"
	"testing/synctest"
	"time"

	donav1 "github.com/dodona-project/dodona/proto/dona/v1"
	"pgregory.net/rapid"

	"github.com/dodona-project/dodona/host/snapshot"
)

// TestHistories plays random changes against watchers that come, go and dawdle,
// and judges each frame by what was committed.
func TestHistories(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		seed := rapid.Uint64().Draw(rt, "seed")
		synctest.Test(t, func(t *testing.T) { history(t, rand.New(rand.NewPCG(seed, 1))) })
	})
}

func history(t *testing.T, rnd *rand.Rand) {
	st := openStore(t)
	feeds := newFeeds(t, st, &services{}, nil)
	defer feeds.Close()
	// committed[version] is the set that version stands for.
	committed := map[uint64]map[string]bool{0: {}}
	current, newest := map[string]bool{}, uint64(0)
	ctx, cancel := context.WithCancel(t.Context())
	type watcher struct {
		done chan struct{}
		last uint64
	}
	type got struct {
		who      *watcher
		snapshot *donav1.ConfigSnapshot
	}
	var watchers []*watcher
	frames := make(chan got, 100_000)
	join := func(seed uint64) {
		w := &watcher{done: make(chan struct{})}
		watchers = append(watchers, w)
		go func() {
			defer close(w.done)
			rnd := rand.New(rand.NewPCG(seed, 2))
			var last uint64
			var checksum []byte
			var held holder
			for ctx.Err() == nil {
				sub, err := feeds.Subscribe("a", snapshot.Watcher{LastVersion: last, LastChecksum: checksum, AcceptDelta: rnd.IntN(3) > 0})
				if err != nil {
					t.Error(err)
					return
				}
				for frame := 0; rnd.IntN(10) > 0 || ctx.Err() != nil; frame++ {
					f, err := sub.Next(ctx)
					if err != nil {
						break
					}
					c := held.take(t, f)
					if f.Unchanged && (frame > 0 || f.Version != last) {
						t.Errorf("unchanged at %d for one that holds %d", f.Version, last)
					}
					if f.Base != 0 && (frame == 0 || f.Base != last) {
						t.Errorf("a delta against %d as frame %d for one that holds %d", f.Base, frame, last)
					}
					if !f.Unchanged {
						frames <- got{w, c}
					}
					if f.Version < last || frame > 0 && f.Version == last {
						t.Errorf("version %d after %d", f.Version, last) // NoRegress, Ordered
					}
					last, checksum = f.Version, c.Checksum
					time.Sleep(time.Duration(rnd.IntN(300)) * time.Millisecond)
				}
				sub.Close()
			}
			w.last = last
		}()
	}
	for range 4 {
		join(rnd.Uint64())
	}
	for range 60 {
		c := change{urgent: rnd.IntN(5) == 0}
		for _, id := range ids(6) {
			switch rnd.IntN(3) {
			case 0:
				c.put, current[id] = append(c.put, id), true
			case 1:
				c.del = append(c.del, id)
				delete(current, id)
			}
		}
		newest = apply(t, st, "a", c)
		committed[newest] = map[string]bool{}
		for id := range current {
			committed[newest][id] = true
		}
		time.Sleep(time.Duration(rnd.IntN(1+rnd.IntN(600))) * time.Millisecond)
	}
	time.Sleep(2 * time.Second) // NewestEventually: within 2 s of quiet
	synctest.Wait()
	cancel()
	for _, w := range watchers {
		<-w.done
		if w.last != newest {
			t.Errorf("a watcher ended on version %d, want %d", w.last, newest)
		}
	}
	close(frames)
	for f := range frames {
		want, ok := committed[f.snapshot.Version]
		if !ok {
			t.Fatalf("version %d was never committed", f.snapshot.Version) // NoInvention
		}
		if len(want) != len(f.snapshot.Endpoints) { // Atomic
			t.Fatalf("version %d has %d endpoints, want %d", f.snapshot.Version, len(f.snapshot.Endpoints), len(want))
		}
		for _, e := range f.snapshot.Endpoints {
			if !want[e.Id] {
				t.Fatalf("version %d has %s", f.snapshot.Version, e.Id)
			}
		}
	}
}
