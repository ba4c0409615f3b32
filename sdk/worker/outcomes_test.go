package worker_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	controlplanev1 "github.com/dodona-project/dodona/proto/controlplane/v1"
	"github.com/dodona-project/dodona/sdk/worker"
)

func outcome(i int) worker.Outcome {
	return worker.Outcome{
		ProxyID: fmt.Sprintf("proxy-%d", i), Routing: "all", Stage: controlplanev1.Outcome_STAGE_RESPONSE_HEADERS, Class: controlplanev1.ErrorClass_ERROR_CLASS_RESET,
		Latency: 1500 * time.Microsecond, Status: 502, TargetHost: "shop.example", At: time.UnixMilli(12345),
	}
}

// delivered is the ids that the host has, in order.
func (d *deployment) delivered() (ids []string) {
	d.with(func() {
		for _, b := range d.batches {
			for _, o := range b.GetOutcomes() {
				ids = append(ids, o.GetProxyId())
			}
		}
	})
	return ids
}

func TestOutcomes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d, w := serving(t, nil, nil)
		const n = 20_000
		for i := range n {
			w.Report(outcome(i))
		}
		w.Report(worker.Outcome{ProxyID: "no stage"})
		after(t, 5*time.Second, "all are there", func() bool { return w.Stats().Reported == n })
		for i, id := range d.delivered() {
			if id != fmt.Sprintf("proxy-%d", i) {
				t.Fatalf("place %d has %s", i, id)
			}
		}
		d.with(func() {
			o := d.batches[0].GetOutcomes()[0]
			if o.GetRouting() != "all" || o.GetStage() != controlplanev1.Outcome_STAGE_RESPONSE_HEADERS || o.GetErrorClass() != controlplanev1.ErrorClass_ERROR_CLASS_RESET ||
				o.GetLatencyMs() != 1 || o.GetStatus() != 502 || o.GetUnixMs() != 12345 || o.GetTargetHost() != "shop.example" || o.GetSuccess() {
				t.Errorf("it arrives as %v", o)
			}
			for i, b := range d.batches {
				if b.GetSequence() != uint64(i+1) || b.GetWorkerId() != "worker-1" || b.GetSessionId() != "session-1" {
					t.Fatalf("batch %d is of %s %s, number %d", i, b.GetWorkerId(), b.GetSessionId(), b.GetSequence())
				}
			}
		})
		if s := w.Stats(); s.Dropped != 1 {
			t.Errorf("%d dropped", s.Dropped)
		}
		// A host refuses a batch for a status that is none, and a worker whose batch is
		// refused so ends: the replies of SOCKS5 are 1 to 8, and proxies may answer with 999.
		odd := []int{-5, 4, 99, 100, 599, 600, 999}
		for _, status := range odd {
			w.Report(worker.Outcome{ProxyID: "odd", Stage: controlplanev1.Outcome_STAGE_DIAL, Latency: -time.Second, Status: status, TargetHost: "\xff" + strings.Repeat("x", 300)})
		}
		after(t, 3*time.Second, "odd values arrive", func() bool { return w.Stats().Reported == n+uint64(len(odd)) })
		var statuses []uint32
		d.with(func() {
			for _, o := range d.batches[len(d.batches)-1].GetOutcomes() {
				statuses = append(statuses, o.GetStatus())
			}
		})
		if want := []uint32{0, 0, 0, 100, 599, 0, 0}; !slices.Equal(statuses, want) {
			t.Errorf("the statuses %v arrive as %v, want %v", odd, statuses, want)
		}
	})
}

// With the hosts away the queue is full at its bound, no call waits, and what was queued
// arrives when they are back, in order.
func TestTheQueueIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d, w := serving(t, nil, nil)
		d.with(func() {
			d.fail = func(method string) error {
				if method == "ReportOutcomes" {
					return status.Error(codes.Unavailable, "away")
				}
				return nil
			}
		})
		began := time.Now()
		for i := range worker.MaxOutcomes + 1000 {
			w.Report(outcome(i))
			if i == 1000 {
				time.Sleep(30 * time.Second) // some are in flight
				began = time.Now()
			}
		}
		if took := time.Since(began); took > 0 {
			t.Errorf("it waited for %v", took)
		}
		if s := w.Stats(); s.Dropped != 1000 || s.Reported != 0 {
			t.Errorf("%d dropped, %d reported", s.Dropped, s.Reported)
		}
		d.with(func() { d.fail = nil })
		after(t, 2*time.Minute, "all are there", func() bool { return w.Stats().Reported == worker.MaxOutcomes })
		ids := d.delivered()
		if len(ids) != worker.MaxOutcomes || ids[0] != "proxy-0" || ids[len(ids)-1] != fmt.Sprintf("proxy-%d", worker.MaxOutcomes-1) {
			t.Errorf("%d have arrived, from %s to %s", len(ids), ids[0], ids[len(ids)-1])
		}
	})
}

// A batch whose answer is lost is sent again, the same, and counts once.
func TestTheSameBatchIsSentAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d, w := serving(t, nil, nil)
		lost := 3
		d.with(func() {
			d.fail = func(method string) error {
				if method == "outcomes answered" && lost > 0 {
					lost--
					return status.Error(codes.Unavailable, "the answer is lost")
				}
				return nil
			}
		})
		for i := range 100 {
			w.Report(outcome(i))
		}
		time.Sleep(1100 * time.Millisecond)
		for i := range 100 { // it must not grow into what was sent before
			w.Report(outcome(100 + i))
		}
		after(t, time.Minute, "all are there", func() bool { return w.Stats().Reported == 200 })
		if ids := d.delivered(); len(ids) != 200 {
			t.Errorf("%d have arrived", len(ids))
		}
		if n := d.count(func() int { return len(d.registers) }); n != 1 {
			t.Errorf("%d registrations", n)
		}
	})
}

// A new session counts from 1 again and has all that the old one did not get rid of.
func TestOutcomesOfANewSession(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d, w := serving(t, nil, nil)
		for i := range 600 {
			w.Report(outcome(i))
		}
		after(t, 5*time.Second, "they are there", func() bool { return w.Stats().Reported == 600 })
		time.Sleep(time.Minute)
		d.with(func() { d.session, d.batches = "another process", nil })
		for i := range 600 {
			w.Report(outcome(600 + i))
		}
		after(t, time.Minute, "they are there", func() bool { return w.Stats().Reported == 1200 })
		d.with(func() {
			if first := d.batches[0]; first.GetSequence() != 1 || first.GetSessionId() != "session-2" || first.GetOutcomes()[0].GetProxyId() != "proxy-600" {
				t.Errorf("the first batch is %d of %s", first.GetSequence(), first.GetSessionId())
			}
		})
	})
}

// What is queued when the worker ends is sent once more.
func TestOutcomesAtTheEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, w := serving(t, nil, nil)
		for i := range 700 {
			w.Report(outcome(i))
		}
		if err := w.stop(); err != nil {
			t.Error(err)
		}
		if s := w.Stats(); s.Reported != 700 {
			t.Errorf("%d have arrived", s.Reported)
		}
	})
}
