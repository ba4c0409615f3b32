package report_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	donav1 "github.com/dodona-project/dodona/proto/dona/v1"
	"github.com/dodona-project/dodona/sdk/dona/decide"
	"github.com/dodona-project/dodona/sdk/dona/internal/report"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// inbox is a host that keeps what it is sent.
type inbox struct {
	mu      sync.Mutex
	batches []*donav1.StatsBatch
	tries   []int
	answer  func(n int) error // to the n-th attempt, from 0
	dropped uint32            // of each batch
}

func (i *inbox) send(_ context.Context, try int, b *donav1.StatsBatch) (*donav1.ReportAck, error) {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.batches, i.tries = append(i.batches, b), append(i.tries, try)
	if i.answer != nil {
		if err := i.answer(len(i.batches) - 1); err != nil {
			return nil, err
		}
	}
	return &donav1.ReportAck{AcceptedSequence: b.Sequence, Dropped: i.dropped}, nil
}

func (i *inbox) all() []*donav1.StatsBatch {
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.batches
}

func start(i *inbox) *report.Reporter {
	return report.New(report.Config{Send: i.send, Caller: "shop", Interval: time.Second, Random: func() float64 { return 0.5 }, Log: slog.New(slog.DiscardHandler)})
}

func program(t testing.TB) *decide.Program {
	t.Helper()
	p, err := decide.Compile(&donav1.ConfigSnapshot{Service: "checkout", Version: 7,
		Endpoints: []*donav1.Endpoint{{Id: "a", Variant: "v1", Region: "eu", LbWeight: 100}, {Id: "b", Variant: "v2", Region: "eu", LbWeight: 100}},
		Weights:   []*donav1.VariantWeight{{Variant: "v1", Weight: 100}},
		Flags:     []*donav1.FlagRule{{Flag: "off", RolloutPercent: 0}, {Flag: "on", RolloutPercent: 100, RolloutVariant: "v2"}},
		Residency: &donav1.ResidencyPolicy{AllowedRegions: []string{"eu", "us"}, RuleId: "gdpr"}}, nil)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func TestFolding(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		box, p := &inbox{}, program(t)
		r := start(box)
		long := strings.Repeat("unit-", 30)
		for range 3 {
			r.Outcome(p, 0, report.Outcome{Success: true, Latency: 10 * time.Millisecond, Code: "OK"})
			for _, unit := range []string{"user-1", long} {
				res := p.Decide(&decide.Request{Unit: unit, Regions: []string{"eu"}})
				r.Decision(p, &res, unit, "")
			}
		}
		r.Outcome(p, 1, report.Outcome{Code: "bad\ncode" + strings.Repeat("x", 40)})
		denied := p.Decide(&decide.Request{Regions: []string{"mars"}})
		r.Decision(p, &denied, "", "request-1")
		tried := p.Decide(&decide.Request{Tried: []string{"a", "b"}, Regions: []string{"eu"}})
		r.Decision(p, &tried, "", "")
		r.Applied("checkout", 7)
		if err := r.Close(t.Context()); err != nil {
			t.Fatal(err)
		}
		batches := box.all()
		if len(batches) != 1 {
			t.Fatalf("%d batches, want 1", len(batches))
		}
		b := batches[0]
		if id, _ := r.ID(); b.Sequence != 1 || b.ReporterId != id || len(b.Applied) != 1 || b.Applied[0].Version != 7 {
			t.Errorf("batch %v", b)
		}
		calls := map[string]*donav1.CallOutcome{}
		for _, c := range b.Calls {
			calls[c.EndpointId] = c
		}
		if a := calls["a"]; len(b.Calls) != 2 || a.Count != 3 || !a.Success || a.LatencyUs < 9_700 || a.LatencyUs > 10_300 || a.Variant != "v1" ||
			a.CallerService != "shop" || a.ConfigVersion != 7 || a.UnixMs/1000 != time.Now().Unix() {
			t.Errorf("calls %v", b.Calls)
		}
		if c := calls["b"].Code; len(c) != 32 || strings.Contains(c, "\n") {
			t.Errorf("code %q", c)
		}
		seen := map[string]int{}
		for _, e := range b.Exposures {
			seen[fmt.Sprintf("%s %s %s %x", e.Flag, e.Variant, e.Reason, e.UnitDigest)]++
		}
		for _, unit := range []string{"user-1", long} {
			sum := sha256.Sum256([]byte(unit))
			for _, want := range []string{"off  REASON_DEFAULT", "on v2 REASON_SPLIT"} {
				if seen[fmt.Sprintf("%s %x", want, sum)] != 1 {
					t.Errorf("no exposure %q of %.10q in %v", want, unit, seen)
				}
			}
		}
		if len(b.Exposures) != 4 {
			t.Errorf("%d exposures, want 4", len(b.Exposures))
		}
		for _, a := range b.Audits {
			switch a.Decision {
			case donav1.AuditEvent_DECISION_ALLOW:
				if a.Count != 6 || a.EndpointRegion != "eu" || a.EndpointId != "b" || strings.Join(a.AllowedRegions, ",") != "eu" || a.RuleId != "gdpr" {
					t.Errorf("audit %v", a)
				}
			case donav1.AuditEvent_DECISION_DENY:
				if a.Count != 1 || a.EndpointId != "" || a.RequestId != "request-1" {
					t.Errorf("audit %v", a)
				}
			}
		}
		if len(b.Audits) != 2 {
			t.Errorf("audits %v", b.Audits)
		}
		if s := r.Stats(); s.Dropped != 0 || s.Reported != 8 {
			t.Errorf("stats %+v", s)
		}
	})
}

// Until a host answers, the same bytes go out, to one host after the other.
func TestRetryWithTheSameBytes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		box, p := &inbox{answer: func(n int) error {
			if n < 4 {
				return status.Error(codes.Unavailable, "away")
			}
			return nil
		}}, program(t)
		r := start(box)
		r.Outcome(p, 0, report.Outcome{Success: true})
		time.Sleep(1100 * time.Millisecond) // virtual: the batch is on its way
		r.Outcome(p, 1, report.Outcome{Success: true})
		time.Sleep(time.Minute)
		synctest.Wait()
		batches := box.all()
		if len(batches) != 6 {
			t.Fatalf("%d attempts, want 5 for the first batch and 1 for the second", len(batches))
		}
		for i, b := range batches[:5] {
			if !proto.Equal(b, batches[0]) || b.Sequence != 1 || box.tries[i] != i {
				t.Errorf("attempt %d: try %d, %v", i, box.tries[i], b)
			}
		}
		if batches[5].Sequence != 2 || len(batches[5].Calls) != 1 || batches[5].Calls[0].EndpointId != "b" {
			t.Errorf("the next batch is %v", batches[5])
		}
		if err := r.Close(t.Context()); err != nil {
			t.Error(err)
		}
	})
}

func TestAnswersThatNoRetryCures(t *testing.T) {
	for _, c := range []struct {
		code    codes.Code
		renamed bool
	}{{codes.InvalidArgument, false}, {codes.Aborted, true}, {codes.AlreadyExists, true}} {
		t.Run(c.code.String(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				box, p := &inbox{answer: func(n int) error {
					if n == 0 {
						return status.Error(c.code, "no")
					}
					return nil
				}}, program(t)
				r := start(box)
				for range 2 {
					r.Outcome(p, 0, report.Outcome{})
					time.Sleep(3 * time.Second)
				}
				if err := r.Close(t.Context()); err != nil {
					t.Error(err)
				}
				b := box.all()
				if len(b) != 2 || (b[1].ReporterId != b[0].ReporterId) != c.renamed || c.renamed != (b[1].Sequence == 1) {
					t.Errorf("batches %v", b)
				}
				if s := r.Stats(); s.Dropped != 1 || s.Reported != 1 {
					t.Errorf("stats %+v", s)
				}
			})
		})
	}
}

// What a host did not count is said, with what it may be, and not at every batch.
func TestSaysWhatWasNotCounted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		box, p := &inbox{dropped: 1}, program(t)
		var log bytes.Buffer
		r := report.New(report.Config{Send: box.send, Interval: time.Second, Random: func() float64 { return 0.5 }, Log: slog.New(slog.NewTextHandler(&log, nil))})
		for range 10 {
			r.Outcome(p, 0, report.Outcome{})
			time.Sleep(10 * time.Second)
		}
		if err := r.Close(t.Context()); err != nil {
			t.Error(err)
		}
		if s := r.Stats(); s.Dropped != 10 || s.Reported != 0 {
			t.Errorf("stats %+v", s)
		}
		if n := strings.Count(log.String(), "clock"); n != 2 || strings.Count(log.String(), "\n") != n {
			t.Errorf("of 100 s in which nothing was counted the log says:\n%s", log.String())
		}
	})
}

// A flood is bounded, never blocks, and what is lost is counted.
func TestFloodIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		box, p := &inbox{answer: func(int) error { return status.Error(codes.Unavailable, "away") }}, program(t)
		r := start(box)
		const events = 100_000
		for i := range events {
			r.Outcome(p, 0, report.Outcome{Code: fmt.Sprint(i)})
			if i%1000 == 0 {
				time.Sleep(20 * time.Millisecond)
			}
		}
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		defer cancel()
		if err := r.Close(ctx); err == nil {
			t.Error("Close says all was delivered")
		}
		if s := r.Stats(); s.Dropped < events-3*2048 || s.Dropped > events || s.Reported != 0 {
			t.Errorf("stats %+v", s)
		}
		for _, b := range box.all() {
			if n := len(b.Calls); n > 2048 {
				t.Fatalf("a batch of %d calls", n)
			}
		}
	})
}

// A snapshot that was refused is told of also when the next one is in use before the
// report goes; what is told last is what holds.
func TestRejectionsAreTold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, tc := range []struct {
			note func(r *report.Reporter)
			want string
		}{
			{func(r *report.Reporter) { r.Applied("a", 7); r.Applied("a", 8) }, "8"},
			{func(r *report.Reporter) { r.Rejected("a", 9, "torn"); r.Applied("a", 9); r.Applied("a", 10) }, "9torn 10"},
			{func(r *report.Reporter) { r.Applied("a", 8); r.Rejected("a", 9, "torn") }, "9torn"},
			{func(r *report.Reporter) {
				r.Rejected("a", 9, "torn")
				r.Applied("a", 9)
				r.Rejected("a", 10, "worn")
			}, "10worn"},
		} {
			box := &inbox{}
			r := start(box)
			tc.note(r)
			if err := r.Close(t.Context()); err != nil {
				t.Fatal(err)
			}
			var told []string
			for _, b := range box.all() {
				for _, a := range b.Applied {
					told = append(told, fmt.Sprint(a.Version)+a.RejectedReason)
				}
			}
			if got := strings.Join(told, " "); got != tc.want {
				t.Errorf("told %q, want %q", got, tc.want)
			}
		}
	})
}

// More than one batch holds is told all the same, in order.
func TestMuchIsToldInOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		box := &inbox{}
		r := start(box)
		for n := range 200 {
			name := fmt.Sprint("s", n)
			r.Rejected(name, 9, "torn")
			r.Applied(name, 9)
		}
		time.Sleep(time.Minute)
		if err := r.Close(t.Context()); err != nil {
			t.Fatal(err)
		}
		told := map[string]string{}
		for _, b := range box.all() {
			if len(b.Applied) > 128 {
				t.Errorf("a batch tells of %d", len(b.Applied))
			}
			for _, a := range b.Applied {
				told[a.Service] += fmt.Sprintf("%d%s ", a.Version, a.RejectedReason)
			}
		}
		for n := range 200 {
			if got := told[fmt.Sprint("s", n)]; got != "9torn 9 " {
				t.Fatalf("service %d was told of as %q", n, got)
			}
		}
	})
}

func TestCloseGivesUpInTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := report.New(report.Config{Interval: time.Second, Random: func() float64 { return 0.5 }, Log: slog.New(slog.DiscardHandler),
			Send: func(ctx context.Context, _ int, _ *donav1.StatsBatch) (*donav1.ReportAck, error) {
				<-ctx.Done()
				return nil, errors.New("hung")
			}})
		r.Applied("checkout", 1)
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
		defer cancel()
		began := time.Now()
		if err := r.Close(ctx); err == nil {
			t.Error("Close says all was delivered")
		}
		if took := time.Since(began); took != 2*time.Second {
			t.Errorf("took %v", took)
		}
	})
}

func TestNotingAllocatesNothing(t *testing.T) {
	p := program(t)
	r := start(&inbox{})
	defer r.Close(t.Context())
	res := p.Decide(&decide.Request{Unit: "user-1"})
	least := 1e9
	for range 20 {
		least = min(least, testing.AllocsPerRun(50, func() {
			r.Decision(p, &res, "user-1", "")
			r.Outcome(p, 0, report.Outcome{Success: true, Code: "OK"})
		}))
	}
	if least != 0 {
		t.Errorf("%v allocations", least)
	}
}
