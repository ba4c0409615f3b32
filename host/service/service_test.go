package service_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	donav1 "github.com/dodona-project/dodona/proto/dona/v1"
	pluginv1 "github.com/dodona-project/dodona/proto/plugin/v1"
	statev1 "github.com/dodona-project/dodona/proto/state/v1"
	"github.com/hashicorp/go-hclog"
	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/goleak"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"
	"pgregory.net/rapid"

	"github.com/dodona-project/dodona/host/audit"
	"github.com/dodona-project/dodona/host/limits"
	"github.com/dodona-project/dodona/host/refusal"
	"github.com/dodona-project/dodona/host/service"
	"github.com/dodona-project/dodona/host/session"
	"github.com/dodona-project/dodona/host/snapshot"
	"github.com/dodona-project/dodona/host/store"
	"github.com/dodona-project/dodona/host/store/embedded"
	"github.com/dodona-project/dodona/sdk/dona/digest"
	"github.com/dodona-project/dodona/sdk/dona/mirror"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// world is a plane over a store in memory.
type world struct {
	tb    testing.TB
	store *embedded.Store
	audit *audit.Log
	plane *service.Plane
	gen   uint64
	steps int // offset of what history does
}

func newWorld(tb testing.TB) *world { return newWorldOver(tb, embedded.Options{}) }

func newWorldOver(tb testing.TB, o embedded.Options) *world {
	st := embedded.OpenMemory(o)
	tb.Cleanup(func() { _ = st.Close() })
	log := audit.New("example.org")
	return &world{tb: tb, store: st, audit: log, plane: service.New(st, log, "h1")}
}

// newWorldWithClock returns a world whose store's time stands still until it is
// advanced.
func newWorldWithClock(tb testing.TB) (w *world, advance func(time.Duration)) {
	var mu sync.Mutex
	now := time.UnixMilli(1_800_000_000_000)
	w = newWorldOver(tb, embedded.Options{Clock: func() time.Time { mu.Lock(); defer mu.Unlock(); return now }})
	return w, func(d time.Duration) { mu.Lock(); defer mu.Unlock(); now = now.Add(d) }
}

func (w *world) update(fn func(tx store.Tx) error) {
	w.tb.Helper()
	if err := w.store.Update(context.Background(), store.Hard, fn); err != nil {
		w.tb.Fatal(err)
	}
}

func (w *world) view(fn func(tx store.ReadTx) error) {
	w.tb.Helper()
	if err := w.store.View(context.Background(), fn); err != nil {
		w.tb.Fatal(err)
	}
}

func (w *world) lease(id string) *statev1.Lease {
	w.gen++
	return &statev1.Lease{Plane: "service", Scope: "web", Id: id, Generation: w.gen}
}

func beat(id, variant, region string) *donav1.EndpointHeartbeat {
	return &donav1.EndpointHeartbeat{Service: "web", EndpointId: id, Address: "10.0.0.1:80", Variant: variant, Region: region}
}

func (w *world) register(b *donav1.EndpointHeartbeat) {
	w.tb.Helper()
	w.update(func(tx store.Tx) error { return w.plane.Registered(tx, w.lease(b.EndpointId), nil, b) })
}

func (w *world) end(id string) {
	w.tb.Helper()
	w.update(func(tx store.Tx) error { return w.plane.Ended(tx, w.lease(id), session.Broken) })
}

func (w *world) setFlag(rule *donav1.FlagRule) error {
	return w.plane.SetFlag(context.Background(), "local:dev", &donav1.SetFlagRequest{Rule: rule})
}

func (w *world) build(before *service.Snapshot) (s *service.Snapshot) {
	w.tb.Helper()
	w.view(func(tx store.ReadTx) (err error) { s, err = w.plane.Build(tx, "web", before); return err })
	return s
}

func (w *world) version() uint64 { w.tb.Helper(); return w.build(nil).Config.Version }

// entries counts a chain's entries, checking it whole.
func (w *world) entries(chain string) (n uint64) {
	w.tb.Helper()
	w.view(func(tx store.ReadTx) (err error) { n, err = w.audit.Check(tx, chain); return err })
	return n
}

func TestLBWeight(t *testing.T) {
	old := time.Hour
	for _, tc := range []struct {
		name string
		load service.Load
		want uint32
	}{
		{"no data", service.Load{Age: old}, 100},
		{"draining", service.Load{Age: old, Draining: true}, 0},
		{"half busy", service.Load{Age: old, Utilization: .5}, 50},
		{"over full", service.Load{Age: old, Utilization: 7}, 5},
		{"in flight of capacity", service.Load{Age: old, InFlight: 30, Capacity: 100}, 70},
		{"utilization wins over in flight", service.Load{Age: old, Utilization: .1, InFlight: 100, Capacity: 100}, 90},
		{"errors", service.Load{Age: old, Requests: 20, Errors: 10}, 50},
		{"too few calls for errors", service.Load{Age: old, Requests: 19, Errors: 19}, 100},
		{"all fail", service.Load{Age: old, Requests: 100, Errors: 100}, 5},
		{"busy and failing", service.Load{Age: old, Utilization: .5, Requests: 100, Errors: 50}, 25},
		{"just appeared", service.Load{}, 10},
		{"half of slow start", service.Load{Age: 15 * time.Second}, 50},
		{"end of slow start", service.Load{Age: 30 * time.Second}, 100},
		{"quantised", service.Load{Age: old, Utilization: .52}, 50},
		{"quantised up", service.Load{Age: old, Utilization: .47}, 55},
	} {
		if got := service.LBWeight(tc.load); got != tc.want {
			t.Errorf("%s: %d, want %d", tc.name, got, tc.want)
		}
	}
	rapid.Check(t, func(t *rapid.T) {
		l := service.Load{
			Utilization: rapid.Float64Range(0, 10).Draw(t, "u"), InFlight: rapid.Uint32().Draw(t, "f"), Capacity: rapid.Uint32().Draw(t, "c"),
			Requests: rapid.Uint64Range(0, 1e6).Draw(t, "r"), Age: time.Duration(rapid.Int64Range(-1e9, 1e12).Draw(t, "a")),
		}
		l.Errors = rapid.Uint64Range(0, l.Requests).Draw(t, "e")
		if w := service.LBWeight(l); w < 5 || w > 100 || w%5 != 0 {
			t.Fatalf("%+v weighs %d", l, w)
		}
	})
}

func TestPublished(t *testing.T) {
	for _, tc := range []struct{ old, next, want uint32 }{
		{100, 95, 100}, {100, 90, 90}, {50, 55, 50}, {50, 60, 60}, {5, 0, 0}, {0, 5, 5}, {95, 100, 95}, {90, 100, 100},
	} {
		if got := service.Published(tc.old, tc.next); got != tc.want {
			t.Errorf("from %d to %d publishes %d, want %d", tc.old, tc.next, got, tc.want)
		}
	}
}

// TestNothingChanged: what changes nothing moves no version and writes no entry.
func TestNothingChanged(t *testing.T) {
	w := newWorld(t)
	rule := &donav1.FlagRule{Service: "web", Flag: "f", RolloutPercent: 10, RolloutVariant: "v2"}
	policy := &donav1.SetServicePolicyRequest{Service: "web", Residency: &donav1.ResidencyPolicy{AllowedRegions: []string{"eu"}}}
	weights := []*donav1.VariantWeight{{Variant: "v2", Weight: 5}, {Variant: "v1", Weight: 95}}
	all := map[string]func(){
		"register": func() { w.register(beat("a", "v1", "eu")) },
		"flag":     func() { must(t, w.setFlag(proto.Clone(rule).(*donav1.FlagRule))) },
		"policy":   func() { must(t, w.plane.SetPolicy(context.Background(), "local:dev", policy, nil, nil)) },
		"weights":  func() { w.update(func(tx store.Tx) error { return w.plane.PutWeights(tx, "web", weights, "r1") }) },
		"quarantine": func() {
			w.update(func(tx store.Tx) error { return w.plane.Quarantine(tx, "web", "v3", "r1", "bad") })
		},
	}
	for name, do := range all {
		before := w.version()
		do()
		version, entries := w.version(), w.entries("web")
		if version == before {
			t.Errorf("%s: the first time moved no version", name)
		}
		do()
		if w.version() != version || w.entries("web") != entries {
			t.Errorf("%s: the second time moved the version or wrote an entry", name)
		}
	}
}

func must(tb testing.TB, err error) {
	tb.Helper()
	if err != nil {
		tb.Fatal(err)
	}
}

func TestFlagVersions(t *testing.T) {
	w := newWorld(t)
	ctx := context.Background()
	rule := &donav1.FlagRule{Service: "web", Flag: "f", RolloutPercent: 10, RolloutVariant: "v2", Version: 99}
	must(t, w.setFlag(rule))
	have := w.build(nil).Config.Flags[0].Version
	if have == 0 || have == 99 {
		t.Fatalf("the published version is %d, want the host's own", have)
	}
	set := func(expected uint64, percent uint32) error {
		return w.plane.SetFlag(ctx, "local:dev", &donav1.SetFlagRequest{ExpectedVersion: expected,
			Rule: &donav1.FlagRule{Service: "web", Flag: "f", RolloutPercent: percent, RolloutVariant: "v2"}})
	}
	if err := set(have+1, 20); !refusal.Is(err, refusal.Precondition) {
		t.Errorf("a wrong expected_version: %v", err)
	}
	must(t, set(have, 20))
	if err := set(have, 30); !refusal.Is(err, refusal.Precondition) {
		t.Errorf("an old expected_version: %v", err)
	}
	must(t, set(0, 30))
	remove := &donav1.SetFlagRequest{Delete: true, Rule: &donav1.FlagRule{Service: "web", Flag: "f"}}
	must(t, w.plane.SetFlag(ctx, "local:dev", remove))
	if err := w.plane.SetFlag(ctx, "local:dev", remove); !refusal.Is(err, refusal.NotFound) {
		t.Errorf("deleting what is not there: %v", err)
	}
	// Set again, it has a version never seen before.
	must(t, set(0, 30))
	if again := w.build(nil).Config.Flags[0].Version; again <= have {
		t.Errorf("the flag set anew has version %d, not above %d", again, have)
	}
	if n := w.entries("web"); n != 5 {
		t.Errorf("the chain has %d entries, want 5", n)
	}
}

func TestPolicyMerges(t *testing.T) {
	w := newWorld(t)
	asked := ""
	check := func(_ context.Context, name string, c *structpb.Struct) error {
		asked = name
		if c.GetFields()["bad"] != nil {
			return refusal.Field("strategy_config", "is bad")
		}
		return nil
	}
	set := func(req *donav1.SetServicePolicyRequest) error {
		req.Service = "web"
		return w.plane.SetPolicy(context.Background(), "local:dev", req, check, check)
	}
	config, _ := structpb.NewStruct(map[string]any{"choices": 3})
	bad, _ := structpb.NewStruct(map[string]any{"bad": true})
	must(t, set(&donav1.SetServicePolicyRequest{Residency: &donav1.ResidencyPolicy{AllowedRegions: []string{"eu"}, RuleId: "gdpr"}}))
	must(t, set(&donav1.SetServicePolicyRequest{Strategy: "round-robin"}))
	must(t, set(&donav1.SetServicePolicyRequest{StrategyConfig: config}))
	if asked != "round-robin" {
		t.Errorf("the config was checked by %q, want the strategy in force", asked)
	}
	if err := set(&donav1.SetServicePolicyRequest{StrategyConfig: bad}); !refusal.Is(err, refusal.Invalid) {
		t.Errorf("a bad config: %v", err)
	}
	want := &donav1.ServicePolicy{Residency: &donav1.ResidencyPolicy{AllowedRegions: []string{"eu"}, RuleId: "gdpr"},
		Strategy: "round-robin", StrategyConfig: config}
	expect := func(when string) {
		t.Helper()
		w.view(func(tx store.ReadTx) error {
			have, err := w.plane.Policy(tx, "web")
			if err == nil && !proto.Equal(have, want) {
				t.Errorf("%s: the policy is %v, want %v", when, have, want)
			}
			return err
		})
	}
	expect("after four requests")
	must(t, set(&donav1.SetServicePolicyRequest{Strategy: "least-connections"}))
	want.Strategy, want.StrategyConfig = "least-connections", nil
	expect("another strategy takes no other's config")
	must(t, set(&donav1.SetServicePolicyRequest{ClearResidency: true, Strategy: "default"}))
	want = &donav1.ServicePolicy{}
	expect("cleared")
	must(t, set(&donav1.SetServicePolicyRequest{Probe: "http", ProbeConfig: config}))
	want = &donav1.ServicePolicy{Probe: "http", ProbeConfig: config}
	expect("a probe")
	probed := func(want int) {
		t.Helper()
		w.view(func(tx store.ReadTx) error {
			scopes, err := w.plane.Scopes(tx)
			if err == nil && len(scopes) != want {
				t.Errorf("probed services: %v, want %d", scopes, want)
			}
			return err
		})
	}
	probed(1)
	if err := set(&donav1.SetServicePolicyRequest{ProbeConfig: bad}); asked != "http" || !refusal.Is(err, refusal.Invalid) {
		t.Errorf("a bad config of the probe in force, checked by %q: %v", asked, err)
	}
	must(t, set(&donav1.SetServicePolicyRequest{Probe: "tcp"}))
	want = &donav1.ServicePolicy{Probe: "tcp"}
	expect("another probe takes no other's config")
	must(t, set(&donav1.SetServicePolicyRequest{ProbeConfig: config}))
	must(t, set(&donav1.SetServicePolicyRequest{Probe: "tcp"}))
	want.ProbeConfig = config
	expect("the same probe keeps its config")
	must(t, set(&donav1.SetServicePolicyRequest{Probe: "none"}))
	want = &donav1.ServicePolicy{}
	expect("no probe")
	probed(0)
	for name, req := range map[string]*donav1.SetServicePolicyRequest{
		"nothing to change": {},
		"both":              {ClearResidency: true, Residency: &donav1.ResidencyPolicy{AllowedRegions: []string{"eu"}}},
		"no regions":        {Residency: &donav1.ResidencyPolicy{}},
		"region twice":      {Residency: &donav1.ResidencyPolicy{AllowedRegions: []string{"eu", "eu"}}},
		"region name":       {Residency: &donav1.ResidencyPolicy{AllowedRegions: []string{"e u"}}},
		"a bad probe":       {Probe: "http", ProbeConfig: bad},
		"a probe's name":    {Probe: "ht tp"},
		"none and a config": {Probe: "none", ProbeConfig: config},
		"a huge config":     {Probe: "http", ProbeConfig: huge()},
		"a config of none":  {ProbeConfig: config},
		"65 regions":        {Residency: &donav1.ResidencyPolicy{AllowedRegions: many(65)}},
		"a long strategy":   {Strategy: strings.Repeat("s", 129)},
	} {
		before := w.version()
		if err := set(req); !refusal.Is(err, refusal.Invalid) {
			t.Errorf("%s: %v", name, err)
		}
		if w.version() != before {
			t.Errorf("%s: refused and moved the version", name)
		}
	}
}

func huge() *structpb.Struct {
	s, _ := structpb.NewStruct(map[string]any{"x": strings.Repeat("x", limits.PluginConfigLen)})
	return s
}

func many(n int) (all []string) {
	for i := range n {
		all = append(all, fmt.Sprintf("r%d", i))
	}
	return all
}

// TestLimits fills the counters that the limits are judged by, and goes one on.
// TestLimits fills services up to each limit, item by item: the last one fits, and
// one more is refused.
func TestLimits(t *testing.T) {
	exhausted := func(what string, err error, names ...string) {
		t.Helper()
		if !refusal.Is(err, refusal.Exhausted) {
			t.Errorf("%s: %v, want Exhausted", what, err)
			return
		}
		for _, name := range append(names, "web") {
			if !strings.Contains(err.Error(), name) {
				t.Errorf("%s: %q does not say %s", what, err, name)
			}
		}
	}
	register := func(w *world, ids ...string) error {
		return w.store.Update(context.Background(), store.Soft, func(tx store.Tx) error {
			for _, id := range ids {
				if err := w.plane.Registered(tx, w.lease(id), nil, beat(id, "v1", "eu")); err != nil {
					return err
				}
			}
			return nil
		})
	}
	t.Run("endpoints", func(t *testing.T) {
		w := newWorld(t)
		ids := make([]string, limits.EndpointsPerService)
		for i := range ids {
			ids[i] = fmt.Sprintf("e%05d", i)
		}
		for part := range slices.Chunk(ids, 500) {
			must(t, register(w, part...))
		}
		before := w.build(nil)
		if n := len(before.Config.Endpoints); n != limits.EndpointsPerService {
			t.Fatalf("%d endpoints are in the snapshot, want %d", n, limits.EndpointsPerService)
		}
		exhausted("one endpoint more", register(w, "one-more"), fmt.Sprint(limits.EndpointsPerService))
		if after := w.build(nil); !proto.Equal(after.Config, before.Config) {
			t.Error("the refused one changed something")
		}
		must(t, register(w, ids[7])) // that is there already
		w.end(ids[0])
		must(t, register(w, "one-more"))
	})
	t.Run("flags", func(t *testing.T) {
		w := newWorld(t)
		for i := range limits.FlagsPerService {
			must(t, w.setFlag(&donav1.FlagRule{Service: "web", Flag: fmt.Sprint("f", i)}))
		}
		if n := len(w.build(nil).Config.Flags); n != limits.FlagsPerService {
			t.Fatalf("%d flags are in the snapshot, want %d", n, limits.FlagsPerService)
		}
		exhausted("one flag more", w.setFlag(&donav1.FlagRule{Service: "web", Flag: "one-more"}), fmt.Sprint(limits.FlagsPerService))
		must(t, w.setFlag(&donav1.FlagRule{Service: "web", Flag: "f7", Disabled: true}))
	})
	t.Run("bytes", func(t *testing.T) {
		w := newWorld(t)
		must(t, register(w, "a", "b"))
		flag := func(i, bytes int) *donav1.FlagRule {
			rule := &donav1.FlagRule{Service: "web", Flag: fmt.Sprintf("f%03d", i)}
			for ; bytes > 0; bytes -= limits.ValueLen {
				if len(rule.Targeting) == 0 || len(rule.Targeting[len(rule.Targeting)-1].Values) == limits.TargetingValues {
					rule.Targeting = append(rule.Targeting, &donav1.TargetingRule{Attribute: "a", Variant: "v1"})
				}
				last := rule.Targeting[len(rule.Targeting)-1]
				last.Values = append(last.Values, strings.Repeat("x", min(bytes, limits.ValueLen)))
			}
			return rule
		}
		flags := 0
		var err error
		for ; err == nil; flags++ {
			err = w.setFlag(flag(flags, 100<<10))
		}
		exhausted("one large flag more", err, fmt.Sprint(limits.SnapshotBytes))
		flags--
		// The largest flag that still fits, to the byte: the next larger one does not.
		low, high := 0, 100<<10
		for high-low > 1 {
			middle := (low + high) / 2
			if err := w.setFlag(flag(flags, middle)); err == nil {
				low = middle
			} else {
				exhausted("a flag", err, fmt.Sprint(limits.SnapshotBytes))
				high = middle
			}
		}
		must(t, w.setFlag(flag(flags, low)))
		exhausted("a flag one byte larger", w.setFlag(flag(flags, low+1)), fmt.Sprint(limits.SnapshotBytes+1))
		s := w.build(nil)
		encoded := proto.Size(s.Config)
		t.Logf("%d flags and %d endpoints have %d bytes", len(s.Config.Flags), len(s.Config.Endpoints), encoded)
		if slack := 20 * (flags + 2); encoded > limits.SnapshotBytes || encoded < limits.SnapshotBytes-slack {
			t.Errorf("the fullest snapshot has %d bytes, want at most %d and not %d less", encoded, limits.SnapshotBytes, slack)
		}
		exhausted("one endpoint more", register(w, strings.Repeat("x", limits.NameLen)), "web")
		// A heartbeat is never refused, whatever becomes of the weight.
		for _, drains := range []bool{true, false, true, false} {
			b := beat("a", "v1", "eu")
			b.Draining = drains
			w.update(func(tx store.Tx) error { return w.plane.Beat(tx, w.lease("a"), b) })
		}
		w.end("b")
		if after := proto.Size(w.build(nil).Config); after >= encoded {
			t.Errorf("without an endpoint the snapshot has %d bytes, before %d", after, encoded)
		}
	})
	w := newWorld(t)
	w.update(func(tx store.Tx) error {
		return store.Save(tx, "services", &statev1.ServiceList{Count: limits.Services})
	})
	if err := w.setFlag(&donav1.FlagRule{Service: "web2", Flag: "f"}); !refusal.Is(err, refusal.Exhausted) {
		t.Errorf("5,001 services: %v", err)
	}
}

// TestFullServiceIsRolledBack: the size of a snapshot may keep a rollout from
// beginning, and never one that runs from going on or back.
func TestFullServiceIsRolledBack(t *testing.T) {
	w := newWorld(t)
	w.register(beat("a", "v1", "eu"))
	move := func(rollout string, percent uint32) error {
		return w.store.Update(context.Background(), store.Hard, func(tx store.Tx) error {
			return w.plane.PutWeights(tx, "web", []*donav1.VariantWeight{{Variant: "v2", Weight: percent}, {Variant: "v1", Weight: 100 - percent}}, rollout)
		})
	}
	fill := func(bytes uint64) {
		w.update(func(tx store.Tx) error {
			var head statev1.ServiceHead
			if _, err := store.Load(tx, "svc/web/head", &head); err != nil {
				return err
			}
			head.EncodedBytes = bytes
			return store.Save(tx, "svc/web/head", &head)
		})
	}
	fill(limits.SnapshotBytes)
	if err := move("r1", 0); !refusal.Is(err, refusal.Exhausted) {
		t.Errorf("a rollout begins in a full service: %v", err)
	}
	fill(1000)
	must(t, move("r1", 0))
	fill(limits.SnapshotBytes)
	must(t, move("r1", 10)) // longer: 0 takes no bytes
	must(t, move("r1", 0))
	w.update(func(tx store.Tx) error {
		return w.plane.Quarantine(tx, "web", strings.Repeat("v", limits.NameLen), "r1", "worse")
	})
	if q := w.build(nil).Config.QuarantinedVariants; len(q) != 1 {
		t.Errorf("%v are quarantined", q)
	}
	if err := w.setFlag(&donav1.FlagRule{Service: "web", Flag: "f"}); !refusal.Is(err, refusal.Exhausted) {
		t.Errorf("a flag in a full service: %v", err)
	}
}

// TestEncodedBytes compares the count that the limit is judged by with the truth.
func TestEncodedBytes(t *testing.T) {
	w := newWorld(t)
	w.history(t, 60, func(step int) int { return (step*7 + step/3) % 9 })
	var head statev1.ServiceHead
	w.view(func(tx store.ReadTx) error { _, err := store.Load(tx, "svc/web/head", &head); return err })
	config := proto.Clone(w.build(nil).Config).(*donav1.ConfigSnapshot)
	config.Service, config.Version, config.Checksum, config.Form = "", 0, nil, 0
	if real := proto.Size(config); head.EncodedBytes < uint64(real) || head.EncodedBytes > uint64(real)+20*uint64(len(config.Flags)+1) {
		t.Errorf("the head counts %d bytes, the snapshot has %d", head.EncodedBytes, real)
	}
}

// history does n things to the service web; choose draws what.
func (w *world) history(tb testing.TB, n int, choose func(step int) int) {
	ctx := context.Background()
	for step := range n {
		step += w.steps
		id := fmt.Sprintf("e%d", step%5)
		variant, region := fmt.Sprintf("v%d", step%3+1), []string{"eu", "us"}[step%2]
		switch choose(step) % 10 {
		case 0, 1:
			w.register(beat(id, variant, region))
		case 2:
			b := beat(id, variant, region)
			b.Draining = step%4 == 0
			l := w.lease(id)
			l.Utilization = float64(step%10) / 10
			w.update(func(tx store.Tx) error { return w.plane.Beat(tx, l, b) })
		case 3:
			w.end(id)
		case 4:
			must(tb, w.setFlag(&donav1.FlagRule{Service: "web", Flag: "f" + id, RolloutPercent: uint32(step % 100), RolloutVariant: variant}))
		case 5:
			err := w.plane.SetFlag(ctx, "local:dev", &donav1.SetFlagRequest{Delete: true, Rule: &donav1.FlagRule{Service: "web", Flag: "f" + id}})
			if err != nil && !refusal.Is(err, refusal.NotFound) {
				tb.Fatal(err)
			}
		case 6:
			percent := uint32(step % 101)
			w.update(func(tx store.Tx) error {
				return w.plane.PutWeights(tx, "web", []*donav1.VariantWeight{{Variant: "v2", Weight: percent}, {Variant: "v1", Weight: 100 - percent}}, "r")
			})
		case 7:
			w.update(func(tx store.Tx) error {
				if step%2 == 0 {
					return w.plane.Quarantine(tx, "web", variant, "r", "bad")
				}
				_, err := w.plane.LiftQuarantine(tx, "web", variant)
				return err
			})
		case 8:
			req := &donav1.SetServicePolicyRequest{Service: "web", Residency: &donav1.ResidencyPolicy{AllowedRegions: []string{region}}}
			if step%3 == 0 {
				req = &donav1.SetServicePolicyRequest{Service: "web", ClearResidency: true}
			}
			must(tb, w.plane.SetPolicy(ctx, "local:dev", req, nil, nil))
		case 9:
			// As the planner does, though not in one transaction: for services that are there.
			if w.version() == 0 {
				continue
			}
			w.update(func(tx store.Tx) error {
				plan := &donav1.Plan{Strategy: "s", Generation: uint64(step), Weights: map[string]uint32{id: uint32(step % 3)}}
				if step%4 == 0 {
					plan = nil
				}
				return store.Save(tx, "svc/web/plan", &statev1.PlanState{Plan: plan})
			})
			must(tb, w.plane.Renew(ctx, "web"))
		}
	}
}

// TestBuild: whatever happened, a build on top of the last one is a build from
// nothing; the version moves with the content and with nothing else; the counts
// in the head are a recount; the chain holds. And a client that follows by deltas,
// each from where it was to where it looked next, holds what the full frame holds.
func TestBuild(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		w := newWorld(t)
		var last *service.Snapshot
		clients := make([]follower, 3)
		n := rapid.IntRange(1, 30).Draw(rt, "steps")
		for step := range n {
			what := rapid.IntRange(0, 9).Draw(rt, "what")
			w.steps = rapid.IntRange(0, 40).Draw(rt, "offset")
			w.history(t, 1, func(int) int { return what })
			full, next := w.build(nil), w.build(last)
			for i := range clients {
				if rapid.IntRange(0, i).Draw(rt, "looks") == 0 {
					clients[i].follow(rt, next, full)
				}
			}
			if !proto.Equal(full.Config, next.Config) {
				rt.Fatalf("step %d: on top of the last build:\n%v\nfrom nothing:\n%v", step, next.Config, full.Config)
			}
			if sum := digest.OfSnapshot(full.Config); string(sum[:]) != string(full.Config.Checksum) {
				rt.Fatalf("step %d: the checksum is not that of the content", step)
			}
			if last != nil {
				same := string(last.Config.Checksum) == string(next.Config.Checksum)
				switch moved := next.Config.Version - last.Config.Version; {
				case next.Config.Version < last.Config.Version:
					rt.Fatalf("step %d: the version fell", step)
				case moved == 0 && !same:
					rt.Fatalf("step %d: the content changed under version %d", step, next.Config.Version)
				}
			}
			last = next
		}
		w.recount(t, last.Config)
		w.entries("web")
	})
}

// follower is a client that holds a snapshot and takes deltas.
type follower struct {
	at   *service.Snapshot // what it was sent last
	held *mirror.Snapshot
}

func (f *follower) follow(t *rapid.T, next, full *service.Snapshot) {
	var err error
	if f.at == nil || f.at.Config.Version == next.Config.Version {
		f.held, err = mirror.Full(proto.CloneOf(next.Config))
	} else {
		// Over the wire, so that nothing is shared.
		var d donav1.ConfigSnapshot
		b, _ := proto.Marshal(service.Delta(f.at, next))
		if err := proto.Unmarshal(b, &d); err != nil {
			t.Fatal(err)
		}
		f.held, err = f.held.Apply(&d)
	}
	if err != nil {
		t.Fatal(err)
	}
	if got := f.held.Config(); !proto.Equal(got, full.Config) {
		t.Fatalf("the deltas came to\n%v, the full frame is\n%v", got, full.Config)
	}
	f.at = next
}

func (w *world) recount(tb testing.TB, config *donav1.ConfigSnapshot) {
	tb.Helper()
	w.view(func(tx store.ReadTx) error {
		for _, variant := range []string{"v1", "v2", "v3"} {
			all, legal := 0, 0
			for _, e := range config.Endpoints {
				if e.Variant != variant || e.LbWeight == 0 {
					continue
				}
				all++
				if regions := config.GetResidency().GetAllowedRegions(); len(regions) == 0 || slices.Contains(regions, e.Region) {
					legal++
				}
			}
			haveAll, err := w.plane.Endpoints(tx, "web", variant)
			if err != nil {
				return err
			}
			haveLegal, err := w.plane.LegalEndpoints(tx, "web", variant)
			if err != nil {
				return err
			}
			if haveAll != all || haveLegal != legal {
				tb.Errorf("%s: the head counts %d endpoints, %d legal; there are %d, %d", variant, haveAll, haveLegal, all, legal)
			}
		}
		return nil
	})
}

func TestUrgent(t *testing.T) {
	w := newWorld(t)
	kind := func(do func()) string {
		t.Helper()
		var before, after snapshot.Head
		w.view(func(tx store.ReadTx) (err error) { before, err = w.plane.Head(tx, "web"); return err })
		do()
		w.view(func(tx store.ReadTx) (err error) { after, err = w.plane.Head(tx, "web"); return err })
		switch {
		case after.Urgent > before.Urgent:
			return "urgent"
		case after.Removed > before.Removed:
			return "removal"
		case after.Version > before.Version:
			return "change"
		}
		return "none"
	}
	for _, tc := range []struct {
		name string
		do   func()
		want string
	}{
		{"a new endpoint", func() { w.register(beat("a", "v1", "eu")) }, "change"},
		{"the same endpoint again", func() { w.register(beat("a", "v1", "eu")) }, "none"},
		{"a flag", func() { must(t, w.setFlag(&donav1.FlagRule{Service: "web", Flag: "f"})) }, "change"},
		{"residency", func() {
			must(t, w.plane.SetPolicy(context.Background(), "local:dev", &donav1.SetServicePolicyRequest{Service: "web",
				Residency: &donav1.ResidencyPolicy{AllowedRegions: []string{"eu"}}}, nil, nil))
		}, "urgent"},
		{"quarantine", func() { w.update(func(tx store.Tx) error { return w.plane.Quarantine(tx, "web", "v2", "r", "bad") }) }, "urgent"},
		{"draining", func() {
			b := beat("a", "v1", "eu")
			b.Draining = true
			w.update(func(tx store.Tx) error { return w.plane.Beat(tx, w.lease("a"), b) })
		}, "removal"},
		{"the end of one that drained", func() { w.end("a") }, "change"},
	} {
		if got := kind(tc.do); got != tc.want {
			t.Errorf("%s: %s, want %s", tc.name, got, tc.want)
		}
	}
	w.register(beat("b", "v1", "eu"))
	if got := kind(func() { w.end("b") }); got != "removal" {
		t.Errorf("the end of an endpoint: %s, want removal", got)
	}
}

// compiler is a strategy that the test steers.
type compiler struct {
	changed chan struct{}

	mu      sync.Mutex
	calls   []*pluginv1.CompileRequest
	fail    error
	refresh time.Duration
}

func (c *compiler) Changed() <-chan struct{} { return c.changed }

func (c *compiler) Compile(_ context.Context, _ string, _ *structpb.Struct, req *pluginv1.CompileRequest) (*donav1.Plan, time.Duration, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.calls = append(c.calls, req)
	if c.fail != nil {
		return nil, 0, c.fail
	}
	return &donav1.Plan{Algorithm: donav1.Algorithm_ALGORITHM_LEAST_CONNECTIONS, Choices: 2}, c.refresh, nil
}

func (c *compiler) set(err error) { c.mu.Lock(); defer c.mu.Unlock(); c.fail = err }
func (c *compiler) count() int    { c.mu.Lock(); defer c.mu.Unlock(); return len(c.calls) }

func TestPlanner(t *testing.T) {
	w := newWorld(t)
	long := errors.New("plugin is away:" + strings.Repeat("ä", 200)) // where it is cut is amid a letter
	c := &compiler{changed: make(chan struct{}, 1), fail: long}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { defer close(done); _ = service.NewPlanner(w.plane, c, hclog.NewNullLogger()).Run(ctx) }()
	defer func() { cancel(); <-done }()

	plan := func(want string) *statev1.PlanState {
		t.Helper()
		var p *statev1.PlanState
		eventually(t, func() bool {
			w.view(func(tx store.ReadTx) (err error) { p, err = w.plane.Plan(tx, "web"); return err })
			return strings.HasPrefix(p.Note, want)
		}, func() string { return fmt.Sprintf("the plan is %v, want a note that begins with %q", p, want) })
		return p
	}
	for i := range 20 { // a burst is few compiles
		w.register(beat(fmt.Sprintf("e%d", i), "v1", "eu"))
	}
	p := plan("fallback to round robin")
	if p.Plan.Algorithm != donav1.Algorithm_ALGORITHM_ROUND_ROBIN || p.Plan.Strategy != "" {
		t.Errorf("the fallback is %v", p.Plan)
	}
	c.set(nil)
	c.changed <- struct{}{} // the plugin is back
	p = plan("accepted from least-connections")
	first := p.Plan.Generation
	if p.Plan.Strategy != "least-connections" || first == 0 {
		t.Errorf("the plan is %v", p.Plan)
	}
	// Its own publication, and a flag, call for no other compile.
	must(t, w.setFlag(&donav1.FlagRule{Service: "web", Flag: "f"}))
	before := c.count()
	w.register(beat("new", "v1", "eu"))
	eventually(t, func() bool { return c.count() > before }, func() string { return "a new endpoint was not planned" })
	if last := c.calls[c.count()-1]; len(last.Candidates) != 21 || last.Previous.GetGeneration() != first {
		t.Errorf("the compile was asked with %d candidates and generation %d", len(last.Candidates), last.Previous.GetGeneration())
	}
	c.set(errors.New("plugin is away"))
	w.end("new")
	p = plan("last good plan of least-connections")
	if p.Plan.Generation != first {
		t.Errorf("an equal plan has generation %d, want %d as before", p.Plan.Generation, first)
	}
	if c.count() > 20 {
		t.Errorf("%d compiles for a burst and three changes", c.count())
	}
	// Draining endpoints are no candidates.
	c.set(nil)
	b := beat("e0", "v1", "eu")
	b.Draining = true
	w.update(func(tx store.Tx) error { return w.plane.Beat(tx, w.lease("e0"), b) })
	eventually(t, func() bool {
		c.mu.Lock()
		defer c.mu.Unlock()
		return len(c.calls[len(c.calls)-1].Candidates) == 19
	}, func() string { return "a draining endpoint is still a candidate" })
}

func eventually(t testing.TB, ok func() bool, why func() string) {
	t.Helper()
	deadline := time.NewTimer(20 * time.Second)
	defer deadline.Stop()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for !ok() {
		select {
		case <-tick.C:
		case <-deadline.C:
			t.Fatal(why())
		}
	}
}

// counted takes calls as rollouts would.
type counted struct{ calls []*donav1.CallOutcome }

func (c *counted) Report(_ store.Tx, _ string, calls []*donav1.CallOutcome, _ time.Time) error {
	c.calls = append(c.calls, calls...)
	return nil
}

func TestReports(t *testing.T) {
	w := newWorld(t)
	w.register(beat("a", "v1", "eu"))
	now := time.Now()
	counter := &counted{}
	metrics := prometheus.NewRegistry()
	reports := service.NewReports(w.plane, counter, func() time.Time { return now }, metrics)
	call := func(change func(*donav1.CallOutcome)) *donav1.CallOutcome {
		c := &donav1.CallOutcome{Service: "web", Variant: "v1", EndpointId: "a", Success: true, UnixMs: now.UnixMilli(), Code: "200"}
		if change != nil {
			change(c)
		}
		return c
	}
	bad := map[string]*donav1.CallOutcome{
		"unknown service": call(func(c *donav1.CallOutcome) { c.Service = "nope" }),
		"a bad name":      call(func(c *donav1.CallOutcome) { c.Service = "../x" }),
		"unknown variant": call(func(c *donav1.CallOutcome) { c.Variant = "v9" }),
		"the future":      call(func(c *donav1.CallOutcome) { c.UnixMs = now.Add(limits.ReportAhead + time.Second).UnixMilli() }),
		"too old":         call(func(c *donav1.CallOutcome) { c.UnixMs = now.Add(-limits.ReportBehind - time.Second).UnixMilli() }),
		"no time":         call(func(c *donav1.CallOutcome) { c.UnixMs = 0 }),
		"negative time":   call(func(c *donav1.CallOutcome) { c.UnixMs = math.MinInt64 }),
		"a long code":     call(func(c *donav1.CallOutcome) { c.Code = strings.Repeat("x", limits.CodeLen+1) }),
		"a huge latency":  call(func(c *donav1.CallOutcome) { c.LatencyUs = 1<<53 + 1 }),
		"a huge count":    call(func(c *donav1.CallOutcome) { c.Count = math.MaxUint32 }),
	}
	for name, c := range bad {
		ack, _, err := reports.Take(context.Background(), service.Reporter{Actor: "local:dev"}, &donav1.StatsBatch{Calls: []*donav1.CallOutcome{c, call(nil)}})
		if err != nil || ack.Dropped != 1 {
			t.Errorf("%s: %v, %v, want one dropped", name, ack, err)
		}
	}
	if n, err := metrics.Gather(); err != nil || len(n) != 1 || len(n[0].Metric) != 2 || n[0].Metric[0].Counter.GetValue() != 6 || n[0].Metric[1].Counter.GetValue() != 4 {
		t.Errorf("of %d that were dropped, 4 for their time, the metric has %v, %v", len(bad), n, err)
	}
	if len(counter.calls) != len(bad) {
		t.Errorf("%d calls were counted, want %d", len(counter.calls), len(bad))
	}
	batch := &donav1.StatsBatch{ReporterId: "r1", Sequence: 1, Calls: []*donav1.CallOutcome{call(nil)},
		Audits: []*donav1.AuditEvent{
			{Service: "web", UnixMs: now.UnixMilli(), Decision: donav1.AuditEvent_DECISION_ALLOW, AllowedRegions: []string{"eu"}, EndpointId: "a", EndpointRegion: "eu"},
			{Service: "web", UnixMs: now.UnixMilli(), Decision: donav1.AuditEvent_DECISION_ALLOW, AllowedRegions: []string{"eu"}, EndpointId: "a", EndpointRegion: "eu", Count: 2},
			{Service: "web", UnixMs: now.UnixMilli()}, // decides nothing
		},
		Exposures: []*donav1.Exposure{
			{Service: "web", Flag: "f", Variant: "v1", Reason: donav1.Reason_REASON_SPLIT, UnixMs: now.UnixMilli(), UnitDigest: make([]byte, 32)},
			{Service: "web", Flag: "f", Variant: "v1", Reason: donav1.Reason_REASON_SPLIT, UnixMs: now.UnixMilli()},
			{Service: "web", Flag: "f", Reason: 99, UnixMs: now.UnixMilli()},
		},
	}
	entries := w.entries("web")
	before := len(counter.calls)
	for range 2 { // the second is a replay
		ack, _, err := reports.Take(context.Background(), service.Reporter{Actor: "local:dev"}, batch)
		if err != nil || ack.AcceptedSequence != 1 || ack.Dropped != 2 {
			t.Fatalf("the batch: %v, %v", ack, err)
		}
	}
	if got := w.entries("web") - entries; got != 2 {
		t.Errorf("the batch made %d entries, want one for the decisions and one for the exposures", got)
	}
	if got := len(counter.calls) - before; got != 1 {
		t.Errorf("the call of the batch was counted %d times", got)
	}
	other := proto.Clone(batch).(*donav1.StatsBatch)
	other.Calls = nil
	if _, _, err := reports.Take(context.Background(), service.Reporter{Actor: "local:dev"}, other); !refusal.Is(err, refusal.AlreadyExists) {
		t.Errorf("the same sequence with other content: %v", err)
	}
	other.Sequence, other.Calls = 4, []*donav1.CallOutcome{call(nil)}
	other.Audits, other.Exposures = nil, nil
	entries = w.entries("web")
	must1(t)(reports.Take(context.Background(), service.Reporter{Actor: "local:dev"}, other))
	if got := w.entries("web") - entries; got != 1 {
		t.Errorf("a gap made %d entries, want one stats.gap", got)
	}
	// A gap is told whatever the batch holds.
	for i, next := range []*donav1.StatsBatch{{Audits: batch.Audits[:1]}, {Exposures: batch.Exposures[:1]}} {
		next.ReporterId, next.Sequence = "r1", 10*uint64(i+1)
		entries = w.entries("web")
		must1(t)(reports.Take(context.Background(), service.Reporter{Actor: "local:dev"}, next))
		if got := w.entries("web") - entries; got != 2 {
			t.Errorf("%v after a gap made %d entries, want a stats.gap and what it holds", next, got)
		}
	}
	other.Sequence = 3
	if _, _, err := reports.Take(context.Background(), service.Reporter{Actor: "local:dev"}, other); !refusal.Is(err, refusal.Aborted) {
		t.Errorf("a lower sequence: %v", err)
	}
	for name, b := range map[string]*donav1.StatsBatch{
		"no reporter":        {Sequence: 1},
		"a bad reporter":     {Sequence: 1, ReporterId: "a b"},
		"unfenced exposures": {Exposures: batch.Exposures},
		"4,097 items":        {ReporterId: "r", Sequence: 1, Calls: slices.Repeat([]*donav1.CallOutcome{call(nil)}, limits.StatsItems+1)},
	} {
		if _, _, err := reports.Take(context.Background(), service.Reporter{Actor: "local:dev"}, b); !refusal.Is(err, refusal.Invalid) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func must1(t *testing.T) func(*donav1.ReportAck, []*donav1.AppliedConfig, error) {
	return func(_ *donav1.ReportAck, _ []*donav1.AppliedConfig, err error) { t.Helper(); must(t, err) }
}

// TestPastServices: a service with nothing but past endpoints leaves the list
// after a day, its records go, and a new one of its name starts above it.
func TestPastServices(t *testing.T) {
	w, advance := newWorldWithClock(t)
	w.register(beat("a", "v1", "eu"))
	w.end("a")
	must(t, w.setFlag(&donav1.FlagRule{Service: "kept", Flag: "f"}))
	seen := w.version()
	list := func() (names []string) {
		w.view(func(tx store.ReadTx) (err error) { names, err = w.plane.Services(tx); return err })
		return names
	}
	if got := list(); !slices.Equal(got, []string{"kept", "web"}) {
		t.Errorf("the services are %v", got)
	}
	advance(25 * time.Hour)
	if got := list(); !slices.Equal(got, []string{"kept"}) {
		t.Errorf("a day later the services are %v", got)
	}
	// A head that does not parse, or says nothing, is listed, and keeps no other.
	w.update(func(tx store.Tx) error {
		for name, value := range map[string][]byte{"damaged": {0xff}, "emptied": {}} {
			if err := tx.IndexPut("services", name, 0); err != nil {
				return err
			}
			if err := tx.Put("svc/"+name+"/head", value); err != nil {
				return err
			}
		}
		return nil
	})
	if got := list(); !slices.Equal(got, []string{"damaged", "emptied", "kept"}) {
		t.Errorf("with a damaged head the services are %v", got)
	}
	if n, err := w.plane.Collect(context.Background()); err != nil || n != 1 {
		t.Errorf("collected %d, %v", n, err)
	}
	if n, err := w.plane.Collect(context.Background()); err != nil || n != 0 {
		t.Errorf("collected again %d, %v", n, err)
	}
	w.view(func(tx store.ReadTx) error {
		for _, key := range []string{"svc/web/head", "svc/web/urgent", "svc/web/plan"} {
			if rec, err := tx.Get(key); err != nil || rec.Exists() {
				t.Errorf("%s is still there (%v)", key, err)
			}
		}
		return nil
	})
	w.register(beat("a", "v1", "eu"))
	if got := w.version(); got <= seen {
		t.Errorf("the new service starts at version %d, the old one ended at %d", got, seen)
	}
}
