package worker_test

import (
	"context"
	"errors"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	controlplanev1 "github.com/dodona-project/dodona/proto/controlplane/v1"
	"github.com/dodona-project/dodona/sdk/worker"
)

// A worker that nobody talks to any more, whose host's clock is an hour off: to the last
// moment of a proxy, and of the snapshot, everything is picked; from then on nothing is, of
// 100,000 tries; and what runs is counted on.
func TestTheLastMoment(t *testing.T) {
	for _, skew := range []time.Duration{-time.Hour, 0, time.Hour} {
		synctest.Test(t, func(t *testing.T) {
			const usable = 20 * time.Second
			d := deploy(t, hostA, hostB)
			list := proxies("eu", 2)
			list[0].UsableUntil = timestamppb.New(time.Now().Add(skew + usable))
			d.with(func() { d.stamp = func() time.Time { return time.Now().Add(skew) } })
			d.give([]*controlplanev1.Routing{routing("all", "eu")}, list)
			var received time.Time
			w := d.start(t, func(c *worker.Config) { c.OnView = func(_, _ *worker.View) { received = time.Now() } })
			after(t, time.Second, "it serves", func() bool { return w.State() == worker.Serving })
			d.down(hostA)
			d.down(hostB)
			r := w.View().Route(&worker.Request{})
			runs, err := w.PickProxy(r, "eu-000")
			if err != nil {
				t.Fatal(err)
			}
			runs.Activate()
			defer runs.Release()
			tried := func(n int, ids ...string) (got int) {
				for range n {
					for _, id := range ids {
						if l, err := w.PickProxy(r, id); err == nil {
							got++
							l.Release()
						}
					}
					if l, err := w.Pick(r, 0, nil); err == nil {
						if l.Proxy.ID == ids[0] {
							got++
						}
						l.Release()
					}
				}
				return got
			}
			time.Sleep(time.Until(received.Add(usable - time.Millisecond)))
			if got := tried(1000, "eu-000"); got < 1001 {
				t.Errorf("skew %v: in its last moment the proxy is picked %d times", skew, got)
			}
			time.Sleep(time.Millisecond)
			if got := tried(50_000, "eu-000"); got != 0 {
				t.Errorf("skew %v: past its end the proxy is picked %d times", skew, got)
			}
			time.Sleep(time.Until(received.Add(validity - time.Millisecond)))
			if got := tried(1000, "eu-001"); got != 2000 {
				t.Errorf("skew %v: in the snapshot's last moment the other one is picked %d times", skew, got)
			}
			time.Sleep(time.Millisecond)
			for range 100_000 {
				if _, err := w.Pick(r, 0, nil); !errors.Is(err, worker.ErrNoView) {
					t.Fatalf("skew %v: past the snapshot's end: %v", skew, err)
				}
			}
			if w.State() != worker.Expired || w.InUse() != 1 {
				t.Errorf("skew %v: it is %v, %d in use", skew, w.State(), w.InUse())
			}
		})
	}
}

// The same in real time, with several who pick without a pause: of what began after a proxy's
// end nothing got it.
func TestTheLastMomentInRealTime(t *testing.T) {
	const usable = 300 * time.Millisecond
	d := deploy(t, hostA)
	d.with(func() { d.stamp = func() time.Time { return time.Now().Add(-time.Hour) } })
	list := proxies("eu", 2)
	list[0].Capacity, list[1].Capacity = 1000, 1000
	list[0].UsableUntil = timestamppb.New(time.Now().Add(-time.Hour + time.Minute))
	d.give([]*controlplanev1.Routing{routing("all", "eu")}, list)
	var sent, swapped atomic.Int64 // nanoseconds since began
	began := time.Now()
	served := make(chan struct{})
	w := d.start(t, func(c *worker.Config) {
		c.Target = hostA
		c.OnView = func(old, _ *worker.View) {
			swapped.Store(int64(time.Since(began)))
			if old == nil {
				close(served)
			}
		}
	})
	<-served
	d.with(func() {
		d.spoil = nil
		sent.Store(int64(time.Since(began)))
		d.proxies[0].UsableUntil = timestamppb.New(time.Now().Add(-time.Hour + usable))
	})
	before := w.View().Version()
	d.push()
	for w.View().Version() == before {
		time.Sleep(time.Millisecond)
	}
	r := w.View().Route(&worker.Request{})
	var work sync.WaitGroup
	var last, picks, late, missed atomic.Int64
	// It is made between sent and swapped, so that its end is between these two.
	from, to := time.Duration(sent.Load())+usable, time.Duration(swapped.Load())+usable
	for range 4 {
		work.Go(func() {
			for n := 0; n < 25_000; {
				start := time.Since(began)
				l, err := w.PickProxy(r, "eu-000")
				end := time.Since(began)
				if err == nil {
					l.Release()
					last.Store(max(last.Load(), int64(start)))
				}
				switch {
				case start > to:
					n++
					picks.Add(1)
					if err == nil {
						late.Add(1)
					}
				case end < from && err != nil:
					missed.Add(1)
				}
			}
		})
	}
	work.Wait()
	if late.Load() > 0 || missed.Load() > 0 {
		t.Errorf("of %d picks after its end %d got the proxy, and %d before its end did not", picks.Load(), late.Load(), missed.Load())
	}
	t.Logf("its end is between %v and %v; the last pick that got it began at %v", from, to, time.Duration(last.Load()))
}

// line is a connection on which what the host sends can be kept back.
type line struct {
	net.Conn
	held *held
}

type held struct {
	mu   sync.Mutex
	gate chan struct{} // nil = nothing is kept back
}

func (h *held) keep() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.gate = make(chan struct{})
}

func (h *held) let() {
	h.mu.Lock()
	defer h.mu.Unlock()
	close(h.gate)
	h.gate = nil
}

func (l line) Read(p []byte) (int, error) {
	n, err := l.Conn.Read(p)
	l.held.mu.Lock()
	gate := l.held.gate
	l.held.mu.Unlock()
	if gate != nil {
		<-gate
	}
	return n, err
}

// A snapshot that waits on its way, or in a process that stands still, is not valid for longer
// for that: its times are counted from when the quickest of its stream would have come, and
// one that is very late is not used at all.
func TestLateSnapshots(t *testing.T) {
	for _, c := range []struct {
		waits   time.Duration // the snapshot that the host makes when the line is kept back
		expires time.Duration // the worker, after the line was kept back
	}{
		{time.Millisecond, validity},
		{10 * time.Second, validity},
		{validity/4 + time.Second, validity - 10*time.Second}, // the one before counts
		{38 * time.Second, validity - 10*time.Second},         // before pings find out
	} {
		synctest.Test(t, func(t *testing.T) {
			d := deploy(t, hostA)
			d.with(func() { d.stamp = func() time.Time { return time.Now().Add(time.Hour) } })
			d.give([]*controlplanev1.Routing{routing("all", "eu")}, proxies("eu", 1))
			h := &held{}
			w := d.start(t, func(c *worker.Config) {
				c.Target = hostA
				c.Dialer = func(ctx context.Context, address string) (net.Conn, error) {
					conn, err := d.dial(ctx, address)
					if err != nil {
						return nil, err
					}
					return line{conn, h}, nil
				}
			})
			after(t, time.Second, "it serves", func() bool { return d.ackedVersion() == 1 })
			time.Sleep(10 * time.Second)
			began := time.Now()
			h.keep()
			d.push()
			time.Sleep(c.waits)
			d.down(hostA) // what it sent is on its way, and nothing follows
			h.let()
			after(t, 2*validity, "it is expired", func() bool { return w.State() == worker.Expired })
			if took := time.Since(began); took < c.expires-50*time.Millisecond || took > c.expires+50*time.Millisecond {
				t.Errorf("a snapshot that waits %v: the worker expires %v after it was made, want %v", c.waits, took, c.expires)
			}
			if w.Stats().Refused != 0 {
				t.Error("it is told to be wrong")
			}
		})
	}
}

// A host whose clock is set, back or ahead, by little or much, in the middle of a stream: its
// snapshots are used on, and the worker serves all the time.
func TestHostsClockIsSet(t *testing.T) {
	for _, step := range []time.Duration{-time.Hour, -validity / 4, -5 * time.Second, 5 * time.Second, time.Hour} {
		synctest.Test(t, func(t *testing.T) {
			d := deploy(t, hostA)
			var skew time.Duration
			d.with(func() { d.stamp = func() time.Time { return time.Now().Add(skew) } })
			d.give([]*controlplanev1.Routing{routing("all", "eu")}, proxies("eu", 1))
			w := d.start(t, func(c *worker.Config) { c.Target = hostA })
			after(t, time.Second, "it serves", func() bool { return d.ackedVersion() == 1 })
			time.Sleep(5 * time.Minute)
			d.with(func() { skew = step })
			time.Sleep(5 * time.Minute)
			synctest.Wait()
			if acked, made := d.ackedVersion(), uint64(d.count(func() int { return int(d.version) })); w.seen() != "serving" || acked != made || w.Stats().Refused != 0 {
				t.Errorf("set by %v: states %q, %d acknowledged of %d, %d refused", step, w.seen(), acked, made, w.Stats().Refused)
			}
			if n := d.count(func() int { return len(d.watches) }); n > 2 {
				t.Errorf("set by %v: the stream was opened %d times", step, n)
			}
		})
	}
}
