package dona_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	donav1 "github.com/dodona-project/dodona/proto/dona/v1"
	"github.com/dodona-project/dodona/sdk/dona"
	"github.com/dodona-project/dodona/sdk/dona/digest"
)

func TestPickAndDone(t *testing.T) {
	h := startHost(t)
	h.publish(checkout(7))
	svc := dial(t, h.address).Service("checkout")
	ready(t, svc)
	p, err := svc.Pick(t.Context(), dona.Request{Unit: "user-2"}) // bucket 2027
	if err != nil {
		t.Fatal(err)
	}
	want := dona.Decision{Kind: dona.KindFlagRollout, Variant: "v2", Flag: "use-v2", Reason: donav1.Reason_REASON_SPLIT, ConfigVersion: 7}
	if p.Decision != want || p.Endpoint.Address != "10.0.0.2:80" {
		t.Errorf("got %+v at %+v, want %+v", p.Decision, p.Endpoint, want)
	}
	p.Done(dona.Outcome{Success: true, Latency: 12 * time.Millisecond, Code: "200"})
	p.Done(dona.Outcome{Success: false})
	until(t, "the outcome is reported once", func() bool {
		return look(h, func() bool {
			var calls []*donav1.CallOutcome
			for _, b := range h.batches {
				calls = append(calls, b.Calls...)
			}
			return len(calls) == 1 && calls[0].Success && calls[0].EndpointId == "b" && calls[0].ConfigVersion == 7 && calls[0].Count == 1
		})
	})
}

func TestNoDataBeforeAHostAnswers(t *testing.T) {
	h := startHost(t)
	h.stop()
	svc := dial(t, h.address).Service("checkout")
	until(t, "the reason is known", func() bool { return svc.Status().Problem != nil })
	if _, err := svc.Pick(t.Context(), dona.Request{}); !errors.Is(err, dona.ErrNoData) || !strings.Contains(err.Error(), h.address) {
		t.Errorf("got %v, want no data and the host named", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := svc.Ready(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("Ready: %v", err)
	}
	if _, err := svc.Pick(ctx, dona.Request{}); !errors.Is(err, context.Canceled) {
		t.Errorf("Pick with an ended context: %v", err)
	}
}

func TestDecisionsGoOnStaleAndRecover(t *testing.T) {
	h := startHost(t)
	h.publish(checkout(7))
	c := dial(t, h.address)
	svc := c.Service("checkout")
	ready(t, svc)
	h.stop()
	until(t, "the snapshot is stale", func() bool { return svc.Status().Stale })
	before, err := svc.Pick(t.Context(), dona.Request{Unit: "user-2"})
	if err != nil || !before.Decision.Stale || before.Decision.Variant != "v2" {
		t.Fatalf("stale pick: %+v, %v", before.Decision, err)
	}
	before.Cancel()

	again := startHostAt(t, h.address)
	again.publish(checkout(7))
	until(t, "a host confirms it", func() bool { return !svc.Status().Stale })
	if w := look(again, func() *donav1.WatchConfigRequest { return again.watches[0] }); w.LastVersion != 7 || len(w.LastChecksum) != 32 {
		t.Errorf("the watch came back with version %d, checksum %x", w.LastVersion, w.LastChecksum)
	}
	// Units that no change covers stay where they were.
	next := checkout(9)
	next.Flags[0].RolloutPercent = 50
	again.publish(next)
	until(t, "the change is applied", func() bool { return svc.Status().Version == 9 })
	after, err := svc.Pick(t.Context(), dona.Request{Unit: "user-2"})
	if err != nil || after.Decision.Variant != "v2" || after.Decision.Stale {
		t.Errorf("after: %+v, %v", after.Decision, err)
	}
	after.Cancel()
	if err := c.Close(); err != nil {
		t.Errorf("Close: %v", err)
	}
}

func TestLowerVersionIsRefused(t *testing.T) {
	h := startHost(t)
	h.publish(checkout(7))
	svc := dial(t, h.address).Service("checkout")
	ready(t, svc)
	behind := checkout(5)
	behind.Endpoints = nil
	h.publish(behind)
	until(t, "the rejection is reported", func() bool { return rejected(h, 5, "lower than 7") })
	if st := svc.Status(); st.Version != 7 || st.Endpoints != 2 {
		t.Errorf("went back to %+v", st)
	}
	if _, err := svc.Pick(t.Context(), dona.Request{}); err != nil {
		t.Errorf("Pick: %v", err)
	}
	h.publish(checkout(8))
	until(t, "it goes on with a higher one", func() bool { st := svc.Status(); return st.Version == 8 && !st.Stale })
}

func rejected(h *fakeHost, version uint64, reason string) bool {
	return look(h, func() bool {
		for _, b := range h.batches {
			for _, a := range b.Applied {
				if a.Version == version && a.RejectedReason != "" && strings.Contains(a.RejectedReason, reason) {
					return true
				}
			}
		}
		return false
	})
}

func TestDamagedSnapshotIsRefusedAndAskedForAgain(t *testing.T) {
	h := startHost(t)
	h.publish(checkout(7))
	svc := dial(t, h.address).Service("checkout")
	ready(t, svc)
	bad := checkout(8)
	sum := digest.OfSnapshot(bad)
	bad.Checksum = sum[:]
	bad.Endpoints[0].Address = "10.6.6.6:80"
	h.publishRaw(bad)
	until(t, "the rejection is reported", func() bool { return rejected(h, 8, "checksum") })
	if st := svc.Status(); st.Version != 7 {
		t.Errorf("applied %+v", st)
	}
	until(t, "a full snapshot is asked for", func() bool {
		return look(h, func() bool { w := h.watches[len(h.watches)-1]; return len(h.watches) > 1 && w.LastVersion == 0 })
	})
	h.publish(checkout(8))
	until(t, "the good one is applied", func() bool { return svc.Status().Version == 8 })
}

func TestUnusablePlanKeepsTheLastGoodOne(t *testing.T) {
	h := startHost(t)
	h.publish(checkout(7))
	svc := dial(t, h.address).Service("checkout")
	ready(t, svc)
	next := checkout(8)
	next.Plan = &donav1.Plan{Strategy: "novel", Algorithm: 42}
	h.publish(next)
	until(t, "the rejection is reported", func() bool { return rejected(h, 8, `strategy "novel" has algorithm 42`) })
	if st := svc.Status(); st.Version != 7 || st.Problem == nil || st.Stale {
		t.Errorf("got %+v", st)
	}
	h.publish(checkout(9))
	until(t, "the next version is applied on the same stream", func() bool { st := svc.Status(); return st.Version == 9 && st.Problem == nil })
	if n := look(h, func() int { return len(h.watches) }); n != 1 {
		t.Errorf("%d watches, want 1", n)
	}
}

func TestFramesThatAreRefused(t *testing.T) {
	for name, change := range map[string]func(*donav1.ConfigSnapshot){
		"is of service": func(s *donav1.ConfigSnapshot) { s.Service = "billing" },
		// Refused again as the first frame of the watch that follows: of two
		// rejections at once only the newer one is reported.
		"delta to version 8":   func(s *donav1.ConfigSnapshot) { s.Form, s.BaseVersion = donav1.ConfigSnapshot_FORM_DELTA, 5 },
		"form 17":              func(s *donav1.ConfigSnapshot) { s.Form = 17 },
		"called unchanged":     func(s *donav1.ConfigSnapshot) { s.Form = donav1.ConfigSnapshot_FORM_UNCHANGED },
		"two hosts disagree":   func(s *donav1.ConfigSnapshot) { s.Version = 7; s.Endpoints = s.Endpoints[:1] },
		`endpoint id "a" is e`: func(s *donav1.ConfigSnapshot) { s.Endpoints = append(s.Endpoints, s.Endpoints[0]) },
	} {
		t.Run(name, func(t *testing.T) {
			h := startHost(t)
			h.publish(checkout(7))
			svc := dial(t, h.address).Service("checkout")
			ready(t, svc)
			bad := checkout(8)
			change(bad)
			h.publish(bad)
			until(t, "the rejection is reported", func() bool { return rejected(h, bad.Version, name) })
			if st := svc.Status(); st.Version != 7 || st.Endpoints != 2 {
				t.Errorf("applied %+v", st)
			}
		})
	}
}

func TestFailOver(t *testing.T) {
	one, two := startHost(t), startHost(t)
	one.publish(checkout(7))
	two.publish(checkout(7))
	svc := dial(t, one.address+","+two.address).Service("checkout")
	ready(t, svc)
	if st := svc.Status(); st.Host != one.address {
		t.Fatalf("began with %s", st.Host)
	}
	one.stop()
	until(t, "the other host serves", func() bool { st := svc.Status(); return st.Host == two.address && !st.Stale })
	// A host that is behind does not take the client back.
	behind := checkout(3)
	two.publish(behind)
	until(t, "the older one is refused", func() bool { return rejected(two, 3, "lower than 7") })
	if v := svc.Status().Version; v != 7 {
		t.Errorf("version %d", v)
	}
}

func TestStartFromDisk(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "cache")
	h := startHost(t)
	h.publish(checkout(7))
	c := dial(t, h.address, dona.WithCacheDir(dir))
	ready(t, c.Service("checkout"))
	file := filepath.Join(dir, "checkout")
	until(t, "it is kept", func() bool { _, err := os.Stat(file); return err == nil })
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
	h.stop()

	c = dial(t, h.address, dona.WithCacheDir(dir))
	svc := c.Service("checkout")
	ready(t, svc)
	p, err := svc.Pick(t.Context(), dona.Request{})
	if err != nil || !p.Decision.Stale || p.Decision.ConfigVersion != 7 {
		t.Fatalf("from disk: %+v, %v", p.Decision, err)
	}
	p.Cancel()
	if st := svc.Status(); !st.FromDisk || st.StaleSince.IsZero() {
		t.Errorf("status %+v", st)
	}
	c.Close()

	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	b[len(b)-1] ^= 1
	if err := os.WriteFile(file, b, 0o600); err != nil {
		t.Fatal(err)
	}
	svc = dial(t, h.address, dona.WithCacheDir(dir)).Service("checkout")
	until(t, "the reason is known", func() bool { return svc.Status().Problem != nil })
	if _, err := svc.Pick(t.Context(), dona.Request{}); !errors.Is(err, dona.ErrNoData) {
		t.Errorf("from a damaged file: %v", err)
	}
}

func TestSharedConnection(t *testing.T) {
	h := startHost(t)
	h.publish(checkout(7))
	a, b := dial(t, h.address), dial(t, h.address)
	ready(t, a.Service("checkout"))
	ready(t, b.Service("checkout"))
	if first := a.Service("checkout"); first != a.Service("checkout") {
		t.Error("the same name gives two services")
	}
	if !dona.SameConnection(a, b) {
		t.Error("two clients of one process have two connections to one host")
	}
	if err := a.Close(); err != nil {
		t.Error(err)
	}
	h.publish(checkout(8))
	until(t, "the other client goes on", func() bool { return b.Service("checkout").Status().Version == 8 })
	if err := a.Service("new").Ready(t.Context()); !errors.Is(err, dona.ErrClosed) {
		t.Errorf("a closed client: %v", err)
	}
}

func TestBadArguments(t *testing.T) {
	for _, target := range []string{"", "host", ":7600", "host:0", "host:65536", "a:1,,b:2", "http://host:1"} {
		if c, err := dona.Dial(t.Context(), target); err == nil {
			c.Close()
			t.Errorf("target %q is accepted", target)
		}
	}
	if _, err := dona.Dial(t.Context(), "h:1", dona.WithTrustDomain("../x")); err == nil {
		t.Error("a trust domain with a slash is accepted")
	}
	c := dial(t, "127.0.0.1:1")
	svc := c.Service("Check/../out")
	if _, err := svc.Pick(t.Context(), dona.Request{}); err == nil || !strings.Contains(err.Error(), "not a service name") {
		t.Errorf("got %v", err)
	}
	if err := svc.Ready(t.Context()); err == nil {
		t.Error("a bad name becomes ready")
	}
}

func TestPickAllocatesNothing(t *testing.T) {
	h := startHost(t)
	s := checkout(7)
	s.Residency = &donav1.ResidencyPolicy{AllowedRegions: []string{"eu"}, RuleId: "gdpr"}
	h.publish(proto.CloneOf(s))
	svc := dial(t, h.address).Service("checkout")
	ready(t, svc)
	ctx := t.Context()
	unit := strings.Repeat("u", 20)
	// Reports are folded on another goroutine, which allocates now and then: the
	// least of several runs is what the decision itself does.
	least := 1e9
	for range 20 {
		least = min(least, testing.AllocsPerRun(50, func() {
			p, err := svc.Pick(ctx, dona.Request{Unit: unit, Attributes: []dona.Attribute{dona.String("country", "CH")}, Regions: []string{"eu"}})
			if err != nil {
				t.Fatal(err)
			}
			p.Done(dona.Outcome{Success: true, Latency: time.Millisecond, Code: "200"})
		}))
	}
	if least != 0 {
		t.Errorf("Pick and Done allocate %v times", least)
	}
}

// Under peak EWMA, what Done is told decides further picks.
func TestLatenciesDecideFurtherPicks(t *testing.T) {
	h := startHost(t)
	s := &donav1.ConfigSnapshot{Service: "checkout", Version: 7, Plan: &donav1.Plan{Algorithm: donav1.Algorithm_ALGORITHM_PEAK_EWMA, Choices: 32},
		Endpoints: []*donav1.Endpoint{{Id: "a", Variant: "v1", LbWeight: 100}, {Id: "b", Variant: "v1", LbWeight: 100}, {Id: "c", Variant: "v1", LbWeight: 100}}}
	h.publish(s)
	svc := dial(t, h.address).Service("checkout")
	ready(t, svc)
	got := map[string]int{}
	for range 300 {
		p, err := svc.Pick(t.Context(), dona.Request{})
		if err != nil {
			t.Fatal(err)
		}
		got[p.Endpoint.ID]++
		took := time.Minute
		if p.Endpoint.ID == "b" {
			took = time.Millisecond
		}
		p.Done(dona.Outcome{Success: true, Latency: took})
	}
	if got["b"] < 290 {
		t.Errorf("b is the fastest by far: %v", got)
	}
}
