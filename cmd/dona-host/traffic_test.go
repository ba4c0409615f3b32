package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	donav1 "github.com/dodona-project/dodona/proto/dona/v1"
	"github.com/dodona-project/dodona/sdk/dona"
)

// traffic is everything a host has to do at once, for the service "web": it goes
// on over any number of deaths of the host, asks again for what was not
// acknowledged, and remembers what was.
type traffic struct {
	t        *testing.T
	cancel   context.CancelFunc
	wg       sync.WaitGroup
	problems problems

	flags    []*counter // of each flag: the number of its newest setting
	reports  counter    // sequence of the newest batch
	dropped  atomic.Uint64
	watchers []*watcher

	decisions, failed atomic.Int64

	mu     sync.Mutex
	canary string // what reports go for
	bad    bool   // it fails
	ended  map[string]donav1.RolloutStatus_State
}

// problems are what goroutines of a test have found wrong, the first hundred of them.
type problems chan string

func (p problems) add(format string, args ...any) {
	select {
	case p <- fmt.Sprintf(format, args...):
	default:
	}
}

// report fails the test for each, once nobody adds any more.
func (p problems) report(t *testing.T) {
	t.Helper()
	for len(p) > 0 {
		t.Error(<-p)
	}
}

// counter numbers actions: acked never passes what the host has, and that never
// passes tried.
type counter struct{ acked, tried atomic.Uint64 }

// pace keeps four writers of flags below the 100 calls a second that a host takes.
const pace = 50 * time.Millisecond

type load struct {
	endpoints int // of each of two variants
	flags     int // writers, each of its own flag
	watchers  int
}

// begin starts the traffic; end has to be called.
func begin(p *process, l load) *traffic {
	ctx, cancel := context.WithCancel(context.Background())
	tr := &traffic{t: p.t, cancel: cancel, problems: make(problems, 100), ended: map[string]donav1.RolloutStatus_State{}}
	p.t.Cleanup(tr.end)
	streams, calls := p.dial(), donav1.NewControlPlaneClient(p.dial())
	for _, variant := range []string{"v1", "v2"} {
		tr.wg.Go(fleet(ctx, donav1.NewControlPlaneClient(streams), variant, l.endpoints).Wait)
	}
	for i := range l.flags {
		c := &counter{}
		tr.flags = append(tr.flags, c)
		tr.wg.Go(func() { tr.setFlag(ctx, calls, fmt.Sprint("f", i), c) })
	}
	for i := range l.watchers {
		w := &watcher{least: 2 * l.endpoints * 9 / 10, problems: tr.problems, look: checkFrame}
		tr.watchers = append(tr.watchers, w)
		tr.wg.Go(func() { w.run(ctx, donav1.NewControlPlaneClient(streams), fmt.Sprint("c", i)) })
	}
	tr.wg.Go(func() { tr.report(ctx, calls) })
	tr.wg.Go(func() { tr.roll(ctx, calls) })
	return tr
}

// checkFrame demands what holds in every snapshot: what is quarantined has no
// weight, and weights are whole.
func checkFrame(f *donav1.ConfigSnapshot) string {
	sum := uint32(0)
	for _, w := range f.Weights {
		sum += w.Weight
		if w.Weight > 0 && slices.Contains(f.QuarantinedVariants, w.Variant) {
			return fmt.Sprintf("version %d gives %d %% to the quarantined %s", f.Version, w.Weight, w.Variant)
		}
	}
	if len(f.Weights) > 0 && sum != 100 {
		return fmt.Sprintf("version %d has weights that sum to %d", f.Version, sum)
	}
	return ""
}

// decide has an SDK client decide all the time; no decision may fail.
func (tr *traffic) decide(p *process) {
	ctx, cancel := context.WithCancel(context.Background())
	client, err := dona.Dial(ctx, p.grpc, dona.WithoutCache())
	if err != nil {
		p.t.Fatal(err)
	}
	svc := client.Service("web")
	if err := svc.Ready(ctx); err != nil {
		p.t.Fatal(err)
	}
	until(p.t, "a first decision", func() bool { _, err := svc.Pick(ctx, dona.Request{}); return err == nil })
	tr.wg.Go(func() {
		for i := 0; ctx.Err() == nil; i++ {
			pick, err := svc.Pick(ctx, dona.Request{Unit: fmt.Sprint("user-", i)})
			switch {
			case err == nil:
				pick.Done(dona.Outcome{Success: true, Latency: time.Millisecond})
			case ctx.Err() == nil:
				tr.failed.Add(1)
				tr.problems.add("decision %d: %v", i, err)
			}
			tr.decisions.Add(1)
			pause(ctx, 2*time.Millisecond)
		}
		_ = client.Close()
	})
	stop := tr.cancel
	tr.cancel = func() { cancel(); stop() }
}

func (tr *traffic) setFlag(ctx context.Context, client donav1.ControlPlaneClient, name string, c *counter) {
	for n := uint64(1); ctx.Err() == nil; n++ {
		c.tried.Store(n)
		rule := &donav1.FlagRule{Service: "web", Flag: name, RolloutPercent: uint32(n % 101), RolloutVariant: fmt.Sprint("n", n)}
		if tr.insist(ctx, "SetFlag", func(ctx context.Context) error {
			_, err := client.SetFlag(ctx, &donav1.SetFlagRequest{Rule: rule}, grpc.WaitForReady(true))
			return err
		}) {
			c.acked.Store(n)
		}
		pause(ctx, pace)
	}
}

// report sends fenced batches: each holds one decision for the chain and calls of
// both variants.
func (tr *traffic) report(ctx context.Context, client donav1.ControlPlaneClient) {
	for n := uint64(1); ctx.Err() == nil; n++ {
		tr.mu.Lock()
		canary, bad := tr.canary, tr.bad
		tr.mu.Unlock()
		now := time.Now().UnixMilli()
		b := &donav1.StatsBatch{ReporterId: "reporter", Sequence: n, Audits: []*donav1.AuditEvent{{
			Service: "web", UnixMs: now, Decision: donav1.AuditEvent_DECISION_ALLOW, RuleId: fmt.Sprint("r", n)}}}
		for _, v := range []string{"v1", "v2"} {
			b.Calls = append(b.Calls, &donav1.CallOutcome{Service: "web", Variant: v, EndpointId: v + "-000",
				Success: v != canary || !bad, LatencyUs: 1000, UnixMs: now, Count: 5})
		}
		tr.reports.tried.Store(n)
		var ack *donav1.ReportAck
		if tr.insist(ctx, "ReportStats", func(ctx context.Context) error {
			var err error
			ack, err = client.ReportStats(ctx, b, grpc.WaitForReady(true))
			return err
		}) {
			if int(ack.Dropped) == len(b.Audits)+len(b.Calls) { // the service was not there yet, or not any more
				tr.dropped.Add(1)
			}
			tr.reports.acked.Store(n)
		}
		pause(ctx, 20*time.Millisecond)
	}
}

// roll starts one rollout after the other, every second one of a canary that
// fails.
func (tr *traffic) roll(ctx context.Context, client donav1.ControlPlaneClient) {
	for n := 0; ctx.Err() == nil; pause(ctx, 50*time.Millisecond) {
		s, err := client.GetStatus(ctx, &donav1.GetStatusRequest{Service: "web"}, grpc.WaitForReady(true))
		if err != nil {
			continue
		}
		canary, stable := "v2", "v1"
		if r := s.Rollout; r.GetId() != "" {
			if r.State <= donav1.RolloutStatus_STATE_PAUSED {
				continue
			}
			tr.mu.Lock()
			if _, known := tr.ended[r.Id]; !known {
				n++
			}
			tr.ended[r.Id] = r.State
			tr.mu.Unlock()
			for _, w := range s.Config.Weights {
				if w.Weight == 100 && w.Variant == "v2" {
					canary, stable = "v1", "v2"
				}
			}
		}
		tr.mu.Lock()
		tr.canary, tr.bad = canary, n%2 == 1
		tr.mu.Unlock()
		// Refused while the endpoints are on their way: then later.
		_, _ = client.StartRollout(ctx, &donav1.StartRolloutRequest{
			Service: "web", CanaryVariant: canary, StableVariant: stable, Steps: []uint32{50, 100}, StepSeconds: 1,
			MaxErrorPercent: 10, MinRequests: 1, Retry: true,
		}, grpc.WaitForReady(true))
	}
}

// insist asks until the host acknowledges, and reports whether it did before ctx
// ended. Only the host's absence is a reason to ask again.
func (tr *traffic) insist(ctx context.Context, what string, call func(ctx context.Context) error) bool {
	for ctx.Err() == nil {
		err := call(ctx)
		switch code := status.Code(err); {
		case err == nil:
			return true
		case code != codes.Unavailable && code != codes.Canceled && ctx.Err() == nil:
			tr.problems.add("%s: %v", what, err)
		}
		pause(ctx, 10*time.Millisecond)
	}
	return false
}

// rollouts is how many have ended, as far as anybody looked.
func (tr *traffic) rollouts() int {
	tr.mu.Lock()
	defer tr.mu.Unlock()
	return len(tr.ended)
}

// settled waits until every watcher sees so many endpoints.
func (tr *traffic) settled(what string, endpoints int) {
	tr.t.Helper()
	until(tr.t, what, func() bool {
		for _, w := range tr.watchers {
			if w.seen.Load() != int64(endpoints) {
				return false
			}
		}
		return true
	})
}

// end stops it all and reports what went wrong.
func (tr *traffic) end() {
	if tr.cancel == nil {
		return
	}
	tr.cancel()
	tr.wg.Wait()
	tr.cancel = nil
	tr.problems.report(tr.t)
}

// holds looks into a dead host's store: nothing acknowledged is lost, nothing is
// there twice, nobody invented anything, and records and chain agree.
func (tr *traffic) holds(p *process) {
	p.t.Helper()
	acked := make([]uint64, len(tr.flags))
	for i, c := range tr.flags {
		acked[i] = c.acked.Load()
	}
	reports, dropped := tr.reports.acked.Load(), tr.dropped.Load()
	l := p.ledger()
	for i, c := range tr.flags {
		var want []string
		got := l.settings[fmt.Sprint("f", i)]
		for n := range got {
			want = append(want, fmt.Sprint("n", n+1))
		}
		if !slices.Equal(got, want) {
			p.t.Errorf("flag %d was set to %v", i, got)
		}
		if n := uint64(len(got)); n < acked[i] || n > c.tried.Load() {
			p.t.Errorf("flag %d has %d settings, %d were acknowledged and %d tried", i, n, acked[i], c.tried.Load())
		}
	}
	for rule, n := range l.decisions {
		if n != 1 {
			p.t.Errorf("report %s was taken %d times", rule, n)
		}
	}
	if n := uint64(len(l.decisions)) + dropped; n < reports || n > tr.reports.tried.Load() {
		p.t.Errorf("%d reports were taken or dropped, %d were acknowledged and %d tried", n, reports, tr.reports.tried.Load())
	}
	tr.mu.Lock()
	defer tr.mu.Unlock()
	for id, state := range tr.ended {
		if r := l.rollouts[id]; r == nil || r.state != state || r.ends != 1 {
			p.t.Errorf("rollout %s was seen to end as %s, the audit chain says %+v", id, state, r)
		}
	}
}

// reportCalls reports a call of each variant 20 times a second until ctx ends; those
// of v2 fail while bad is set.
func reportCalls(ctx context.Context, client donav1.ControlPlaneClient, bad *atomic.Bool) {
	for ; ctx.Err() == nil; pause(ctx, 50*time.Millisecond) {
		b := &donav1.StatsBatch{}
		for _, v := range []string{"v1", "v2"} {
			b.Calls = append(b.Calls, &donav1.CallOutcome{Service: "web", Variant: v, Success: v == "v1" || !bad.Load(), LatencyUs: 900, UnixMs: time.Now().UnixMilli()})
		}
		_, _ = client.ReportStats(ctx, b) // soft: what is lost is lost
	}
}

// statusOf is nil while the host is away. One who asks more often than the host
// allows waits: what it would take for no status may be what it looks for.
func statusOf(ctx context.Context, client donav1.ControlPlaneClient, service string) *donav1.StatusReply {
	for {
		s, err := client.GetStatus(ctx, &donav1.GetStatusRequest{Service: service})
		switch {
		case err == nil:
			return s
		case status.Code(err) != codes.ResourceExhausted || ctx.Err() != nil:
			return nil
		}
		pause(ctx, 20*time.Millisecond)
	}
}

// pluginOf is nil when the host knows no such plugin.
func pluginOf(ctx context.Context, t *testing.T, conn *grpc.ClientConn, kind, name string) *donav1.PluginStatus {
	t.Helper()
	list, err := donav1.NewHostAdminClient(conn).ListPlugins(ctx, &donav1.ListPluginsRequest{})
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range list.Plugins {
		if s.Kind == kind && s.Name == name {
			return s
		}
	}
	return nil
}

func pause(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-timer.C:
	}
}

// firstFrame is how long a client that knows nothing waits for a whole snapshot.
func firstFrame(p *process) time.Duration {
	p.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 60*time.Second)
	defer cancel()
	began := time.Now()
	s, err := donav1.NewControlPlaneClient(p.dial()).WatchConfig(ctx, &donav1.WatchConfigRequest{Service: "web", ClientId: "new"}, grpc.WaitForReady(true))
	var f *donav1.ConfigSnapshot
	if err == nil {
		f, err = s.Recv()
	}
	if err == nil && f.Form != donav1.ConfigSnapshot_FORM_FULL {
		err = errors.New("it is not whole")
	}
	if err != nil {
		p.t.Fatalf("first frame: %v", err)
	}
	return time.Since(began)
}
