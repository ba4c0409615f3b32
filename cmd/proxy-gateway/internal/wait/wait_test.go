package wait_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/dodona-project/dodona/cmd/proxy-gateway/internal/wait"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// room is something of which so many may be held at once.
type room struct{ free atomic.Int64 }

func (r *room) take() wait.Result {
	for {
		n := r.free.Load()
		if n == 0 {
			return wait.Nothing
		}
		if r.free.CompareAndSwap(n, n-1) {
			return wait.Served
		}
	}
}

// One place, 20 requests of two clients, 19 of one and 1 of the other that comes last: the
// other is served second, everybody is served, and each client's requests in their order.
func TestFairBetweenClients(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q, r := wait.New(20), &room{}
		var order []string
		var mu sync.Mutex
		var all sync.WaitGroup
		come := func(client string, n int) {
			all.Go(func() {
				if err := q.Wait(t.Context(), client, r.take); err != nil {
					t.Errorf("%s %d: %v", client, n, err)
				}
				mu.Lock()
				order = append(order, fmt.Sprint(client, n))
				mu.Unlock()
				time.Sleep(time.Second)
				r.free.Add(1)
				q.Wake()
			})
			synctest.Wait()
		}
		for n := range 19 {
			come("many", n)
		}
		come("one", 0)
		if err := q.Wait(t.Context(), "more", r.take); !errors.Is(err, wait.ErrFull) {
			t.Errorf("the 21st: %v, want that it is full", err)
		}
		r.free.Add(1)
		q.Wake()
		all.Wait()
		want := []string{"many0", "one0"}
		for n := 1; n < 19; n++ {
			want = append(want, fmt.Sprint("many", n))
		}
		if fmt.Sprint(order) != fmt.Sprint(want) {
			t.Errorf("served %v\n  want %v", order, want)
		}
		if q.Len() != 0 || r.free.Load() != 1 {
			t.Errorf("at the end %d wait and %d places are free", q.Len(), r.free.Load())
		}
	})
}

// Who leaves frees his place in the queue, takes nothing, and the next one is served; who
// stays until his deadline gets that, not before and not after.
func TestLeaving(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q, r := wait.New(3), &room{}
		ctx, leave := context.WithCancel(t.Context())
		late, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		defer cancel()
		begin := time.Now()
		var got [3]error
		var took [3]time.Duration
		var all sync.WaitGroup
		for i, ctx := range []context.Context{ctx, late, t.Context()} {
			all.Go(func() {
				got[i] = q.Wait(ctx, "client", r.take)
				took[i] = time.Since(begin)
			})
			synctest.Wait()
		}
		leave()
		synctest.Wait()
		if q.Len() != 2 {
			t.Errorf("%d wait after one left", q.Len())
		}
		time.Sleep(6 * time.Second)
		r.free.Add(1)
		q.Wake()
		all.Wait()
		if !errors.Is(got[0], context.Canceled) || !errors.Is(got[1], context.DeadlineExceeded) || got[2] != nil {
			t.Errorf("%v", got)
		}
		if took != [3]time.Duration{0, 5 * time.Second, 6 * time.Second} {
			t.Errorf("took %v", took)
		}
		if q.Len() != 0 || r.free.Load() != 0 {
			t.Errorf("at the end %d wait and %d places are free", q.Len(), r.free.Load())
		}
	})
}

// Many requests at once, some of which leave whenever they like: everybody ends, at most so
// many hold a place, and all places are free at the end.
func TestNoWakeUpIsLost(t *testing.T) {
	const places, requests = 3, 2000
	q, r := wait.New(requests), &room{}
	r.free.Store(places)
	var held, served, left atomic.Int64
	var all sync.WaitGroup
	for n := range requests {
		all.Go(func() {
			ctx := t.Context()
			if n%4 == 0 {
				var cancel context.CancelFunc
				ctx, cancel = context.WithTimeout(ctx, time.Duration(rand.IntN(2000))*time.Microsecond)
				defer cancel()
			}
			if q.Len() > 0 || r.take() != wait.Served {
				if err := q.Wait(ctx, fmt.Sprint(n%7), r.take); err != nil {
					left.Add(1)
					return
				}
			}
			if held.Add(1) > places {
				t.Error("more hold a place than there are")
			}
			served.Add(1)
			held.Add(-1)
			r.free.Add(1)
			q.Wake()
		})
	}
	all.Wait() // the test's own limit of time ends it where one waits for ever
	if r.free.Load() != places || q.Len() != 0 || served.Load()+left.Load() != requests {
		t.Errorf("%d places free, %d wait, %d served, %d left", r.free.Load(), q.Len(), served.Load(), left.Load())
	}
	t.Logf("%d served, %d left", served.Load(), left.Load())
}

// Who can only use what is not there keeps nobody else from what is, and is served first
// when it comes.
func TestWhoIsPassed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q, own, r := wait.New(10), &room{}, &room{}
		var order []string
		var mu sync.Mutex
		var all sync.WaitGroup
		come := func(client string, try func() wait.Result) {
			all.Go(func() {
				if err := q.Wait(t.Context(), client, try); err != nil {
					t.Errorf("%s: %v", client, err)
				}
				mu.Lock()
				defer mu.Unlock()
				order = append(order, client)
			})
			synctest.Wait()
		}
		wake := func(which *room) {
			which.free.Add(1)
			q.Wake()
			synctest.Wait()
		}
		particular := func() wait.Result {
			if own.take() == wait.Served {
				return wait.Served
			}
			return wait.Passed
		}
		come("particular", particular)
		come("a", r.take)
		come("b", r.take)
		come("particular", particular)
		come("a", r.take)
		wake(r)
		wake(r)
		wake(own)
		wake(r)
		wake(own)
		all.Wait()
		if got := fmt.Sprint(order); got != "[a b particular a particular]" || q.Len() != 0 {
			t.Errorf("served %s, %d wait", got, q.Len())
		}
	})
}
