package rollout_test

import (
	"path/filepath"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"
	donav1 "github.com/dodona-project/dodona/proto/dona/v1"

	"github.com/dodona-project/dodona/host/rollout"
	"github.com/dodona-project/dodona/host/store"
	"github.com/dodona-project/dodona/host/store/embedded"
)

// clock is set by hand and read by a real store.
type clock struct{ ms atomic.Int64 }

func newClock() *clock {
	c := &clock{}
	c.ms.Store(1_700_000_000_000)
	return c
}

func (c *clock) now() time.Time          { return time.UnixMilli(c.ms.Load()) }
func (c *clock) advance(d time.Duration) { c.ms.Add(d.Milliseconds()) }

func openEmbedded(t *testing.T, dir string, c *clock) store.Store {
	t.Helper()
	st, err := embedded.Open(dir, embedded.Options{Clock: c.now})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { st.Close() })
	return st
}

func (w *world) version(key string) (v uint64) {
	w.t.Helper()
	w.view(func(tx store.ReadTx) error {
		rec, err := tx.Get(key)
		v = rec.Version
		return err
	})
	return v
}

// A rollback is one revision: nobody ever sees the quarantine without the
// weights, the record without the audit entry, or the reverse.
func TestRollbackIsOneRevision(t *testing.T) {
	c := newClock()
	w := newWorld(t, openEmbedded(t, filepath.Join(t.TempDir(), "data"), c), c.now)
	w.endpoints("v2", 1)
	w.start(request())
	for _, key := range []string{"head", "weights"} {
		if got, want := w.version("svc/"+svc+"/"+key), w.version("svc/"+svc+"/rollout"); got != want {
			t.Errorf("start: %s has revision %d, the record %d", key, got, want)
		}
	}
	w.tick(w.c)
	_, version := w.weights()
	if _, err := w.control(donav1.ControlRolloutRequest_ACTION_PAUSE); err != nil {
		t.Fatal(err)
	}
	w.report("v2", 20, 2, version) // a breach while paused acts
	w.tick(w.c)
	if got := w.record().GetState(); got != donav1.RolloutStatus_STATE_ROLLED_BACK {
		t.Fatalf("paused with a breach: %s", got)
	}
	want := w.version("svc/" + svc + "/rollout")
	for _, key := range []string{"svc/" + svc + "/head", "svc/" + svc + "/weights", "svc/" + svc + "/quarantine", "audit/" + svc + "/head"} {
		if got := w.version(key); got != want {
			t.Errorf("rollback: %s has revision %d, the record %d", key, got, want)
		}
	}
	if text, _ := w.weights(); text != "v2=0 v1=100" {
		t.Errorf("weights %s", text)
	}
	entries := w.chain()
	last := entries[len(entries)-1]
	if last.Kind != "rollout.rollback" || last.Actor != "host:h1" || len(last.Evidence) == 0 {
		t.Errorf("the last entry is %+v", last)
	}
	for _, ev := range last.Evidence {
		if w.version("audit/"+svc+"/blob/"+ev.SHA256) != want {
			t.Errorf("the evidence %s is not kept", ev.Kind)
		}
	}
}

// A closed and reopened store goes on with the step, its dwell and its counts.
func TestRestartMidRollout(t *testing.T) {
	c := newClock()
	dir := filepath.Join(t.TempDir(), "data")
	st := openEmbedded(t, dir, c)
	w := newWorld(t, st, c.now)
	w.endpoints("v2", 1)
	w.start(request())
	w.tick(w.c)
	for range 4 {
		c.advance(time.Second)
		w.tick(w.c)
	}
	_, version := w.weights()
	w.report("v2", 30, 0, version)
	before := w.status()
	if before.DwellMs != 4000 || before.CanaryRequests != 30 {
		t.Fatalf("before: %v", before)
	}

	if err := st.Close(); err != nil {
		t.Fatal(err)
	}
	c.advance(time.Hour) // the host was away for long
	w.store = openEmbedded(t, dir, c)
	w.c = w.controller("h1")
	if after := w.status(); after.Id != before.Id || after.DwellMs != 4000 || after.CanaryRequests != 30 || after.State != before.State {
		t.Fatalf("after: %v", after)
	}
	if _, v := w.weights(); v != version {
		t.Fatalf("the restart wrote weights: version %d, before %d", v, version)
	}
	w.tick(w.c)
	if got := w.status().DwellMs; got > 6000 {
		t.Fatalf("an hour away served %d ms of dwell", got)
	}
	for range 10 {
		c.advance(time.Second)
		w.tick(w.c)
	}
	if st := w.status(); st.StepIndex != 1 || st.State != donav1.RolloutStatus_STATE_PROGRESSING {
		t.Fatalf("it did not go on: %v", st)
	}
	w.chain()
}

// Two controllers over one store tick at the same instants: no step is taken
// twice, no second of dwell counts twice.
func TestTwoControllers(t *testing.T) {
	c := newClock()
	w := newWorld(t, openEmbedded(t, filepath.Join(t.TempDir(), "data"), c), c.now)
	w.endpoints("v2", 1)
	steps := make([]uint32, 25)
	for i := range steps {
		steps[i] = uint32(4 * (i + 1))
	}
	w.start(request(func(r *donav1.StartRolloutRequest) { r.Steps, r.StepSeconds, r.MinRequests = steps, 2, 1 }))
	controllers := []*rollout.Controller{w.c, w.controller("h2")}
	both := func() {
		var wg sync.WaitGroup
		for _, ctl := range controllers {
			wg.Go(func() { ctl.Tick(w.ctx) })
		}
		wg.Wait()
	}
	rounds := 0
	for ; w.record().GetState() != donav1.RolloutStatus_STATE_PROMOTED; rounds++ {
		if rounds > 1000 {
			t.Fatalf("no end: %v", w.status())
		}
		both()
		if _, version := w.weights(); w.status().CanaryRequests == 0 {
			w.report("v2", 1, 0, version)
		}
		c.advance(500 * time.Millisecond)
	}
	// 2 s of dwell at each of 25 steps, in ticks of 500 ms.
	if rounds < 25*4 {
		t.Errorf("%d steps of 2 s took only %d ticks of 500 ms", len(steps), rounds)
	}
	next := 0
	for _, e := range w.chain() {
		if e.Kind != "rollout.step" {
			continue
		}
		if e.Detail["step"] != strconv.Itoa(next) || e.Detail["percent"] != strconv.Itoa(int(steps[next])) {
			t.Errorf("entry %d is step %s at %s %%, want step %d", e.Seq, e.Detail["step"], e.Detail["percent"], next)
		}
		next++
	}
	if next != len(steps) {
		t.Errorf("%d steps in the chain, want %d", next, len(steps))
	}
}

// Operators on two hosts promote at once, while both tick. Each promotion moves
// exactly one step: the history is that of a counter.
func TestPromotionsAreLinearizable(t *testing.T) {
	c := newClock()
	w := newWorld(t, openEmbedded(t, filepath.Join(t.TempDir(), "data"), c), c.now)
	w.endpoints("v2", 1)
	steps := make([]uint32, 50)
	for i := range steps {
		steps[i] = uint32(2 * (i + 1))
	}
	w.start(request(func(r *donav1.StartRolloutRequest) { r.Steps = steps }))
	w.tick(w.c)
	controllers := []*rollout.Controller{w.c, w.controller("h2")}

	var mu sync.Mutex
	var history []porcupine.Operation
	began := time.Now()
	var wg sync.WaitGroup
	for client := range 4 {
		wg.Go(func() {
			ctl := controllers[client%2]
			for range 12 {
				call := time.Since(began).Nanoseconds()
				st, err := ctl.Control(w.ctx, "local:dev", &donav1.ControlRolloutRequest{Service: svc, Action: donav1.ControlRolloutRequest_ACTION_PROMOTE_STEP})
				ret := time.Since(began).Nanoseconds()
				if err != nil {
					t.Error(err)
					return
				}
				mu.Lock()
				history = append(history, porcupine.Operation{ClientId: client, Call: call, Output: int(st.StepIndex), Return: ret})
				mu.Unlock()
				ctl.Tick(w.ctx)
			}
		})
	}
	wg.Wait()
	counter := porcupine.Model{
		Init: func() any { return 0 },
		Step: func(state, _, output any) (bool, any) {
			next := state.(int) + 1
			return output.(int) == next, next
		},
	}
	if got := porcupine.CheckOperationsTimeout(counter, history, 60*time.Second); got != porcupine.Ok {
		t.Errorf("the promotions are not one after the other: %v: %+v", got, history)
	}
	if got := w.status().StepIndex; got != 48 {
		t.Errorf("48 promotions led to step %d", got)
	}
}
