package api_test

import (
	"context"
	"errors"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/structpb"

	"github.com/dodona-project/dodona/host/store"
	"github.com/dodona-project/dodona/host/store/embedded"
	donav1 "github.com/dodona-project/dodona/proto/dona/v1"
)

// noting is a store that notes the keys of what is written.
type noting struct {
	store.Store
	mu   sync.Mutex
	keys map[string]bool
}

type notingTx struct {
	store.Tx
	to *noting
}

func (n *noting) Update(ctx context.Context, d store.Durability, fn func(store.Tx) error) error {
	return n.Store.Update(ctx, d, func(tx store.Tx) error { return fn(notingTx{tx, n}) })
}

func (t notingTx) Put(key string, value []byte) error {
	t.to.mu.Lock()
	t.to.keys[key] = true
	t.to.mu.Unlock()
	return t.Tx.Put(key, value)
}

// TestAnyRecordDamaged damages each record of a service in turn. No call panics,
// nobody may watch or serve who might not before, and the service beside it goes on.
func TestAnyRecordDamaged(t *testing.T) {
	memory := embedded.OpenMemory(embedded.Options{})
	t.Cleanup(func() { _ = memory.Close() })
	st := &noting{Store: memory, keys: map[string]bool{}}
	e := newEdge(t, onStore(st))
	c := ctx(t)
	for _, s := range []string{"bad", "web"} {
		for _, v := range []string{"v1", "v2"} {
			e.register(endpoint(func(b *donav1.EndpointHeartbeat) { b.Service, b.EndpointId, b.Variant = s, v, v }))
		}
		for _, f := range []string{"f", "g"} {
			_, err := e.client.SetFlag(c, &donav1.SetFlagRequest{Rule: &donav1.FlagRule{Service: s, Flag: f, RolloutPercent: 10, RolloutVariant: "v1"}})
			fatal(t, err)
		}
		_, err := e.client.SetServicePolicy(c, &donav1.SetServicePolicyRequest{Service: s, Residency: &donav1.ResidencyPolicy{AllowedRegions: []string{"eu"}}, Probe: "http", ProbeConfig: &structpb.Struct{}})
		fatal(t, err)
		_, err = e.client.RegisterArtifact(c, artifact(func(r *donav1.RegisterArtifactRequest) { r.Service = s }))
		fatal(t, err)
		_, err = e.client.SetIngress(c, route(func(r *donav1.SetIngressRequest) { r.Service, r.PathPrefix = s, "/"+s }))
		fatal(t, err)
		_, err = e.client.StartRollout(c, start(func(r *donav1.StartRolloutRequest) { r.Service = s }))
		fatal(t, err)
		_, err = e.client.ReportStats(c, &donav1.StatsBatch{ReporterId: "r" + s, Sequence: 1,
			Calls:     []*donav1.CallOutcome{{Service: s, Variant: "v2", EndpointId: "v2", Success: true, UnixMs: time.Now().UnixMilli()}},
			Exposures: []*donav1.Exposure{{Service: s, Flag: "f", Variant: "v1", Reason: donav1.Reason_REASON_SPLIT, UnitDigest: make([]byte, 32), UnixMs: time.Now().UnixMilli()}}})
		fatal(t, err)
	}
	_, err := e.client.SetSharedService(c, &donav1.SetSharedServiceRequest{Service: "bad", Consumers: []string{"shop"}})
	fatal(t, err)
	fatal(t, e.checks.Look(c, true))
	st.mu.Lock()
	keys := slices.Sorted(maps.Keys(st.keys))
	st.mu.Unlock()
	watch := func(service string) error {
		c, cancel := context.WithTimeout(c, 10*time.Second)
		defer cancel()
		w, err := e.client.WatchConfig(c, &donav1.WatchConfigRequest{Service: service})
		fatal(t, err)
		_, err = w.Recv()
		return err
	}
	n := 0
	for _, key := range keys {
		if !strings.Contains(key, "bad") {
			continue
		}
		for _, value := range [][]byte{{0xff}, {}} {
			var old store.Record
			set := func(value []byte) {
				fatal(t, memory.Update(c, store.Soft, func(tx store.Tx) (err error) {
					if old.Version == 0 {
						if old, err = tx.Get(key); err != nil || !old.Exists() {
							return err
						}
					}
					return tx.Put(key, value)
				}))
			}
			set(value)
			if !old.Exists() {
				continue
			}
			n++
			if err := watch("bad"); err == nil {
				t.Errorf("%s as %x: who is not named may watch", key, value)
			}
			if s, err := e.client.GetStatus(c, &donav1.GetStatusRequest{Service: "bad"}); err == nil && !slices.Equal(s.Policy.GetResidency().GetAllowedRegions(), []string{"eu"}) {
				t.Errorf("%s as %x: the policy is %v", key, value, s.Policy)
			}
			_, _ = e.client.SetFlag(c, &donav1.SetFlagRequest{Rule: &donav1.FlagRule{Service: "bad", Flag: "f", RolloutPercent: 10, RolloutVariant: "v1"}})
			e.rollouts.Tick(c)
			if err := e.checks.Look(c, true); err != nil && !errors.Is(err, store.ErrDamaged) {
				t.Errorf("%s as %x: a look at what to check: %v", key, value, err)
			}
			// The service beside it.
			fatal(t, watch("web"))
			_, err := e.client.GetStatus(c, &donav1.GetStatusRequest{Service: "web"})
			fatal(t, err)
			if list, err := e.client.ListServices(c, &donav1.ListServicesRequest{}); err != nil || !slices.Equal(list.Services, []string{"bad", "web"}) {
				t.Errorf("%s as %x: the services are %v, %v", key, value, list.GetServices(), err)
			}
			if ack, err := e.client.ReportStats(c, &donav1.StatsBatch{ReporterId: "loop", Sequence: uint64(n), Calls: []*donav1.CallOutcome{
				{Service: "bad", Variant: "v2", EndpointId: "v2", UnixMs: time.Now().UnixMilli()}, {Service: "web", Variant: "v2", EndpointId: "v2", UnixMs: time.Now().UnixMilli()}},
				Exposures: []*donav1.Exposure{
					{Service: "bad", Flag: "f", Variant: "v1", Reason: donav1.Reason_REASON_SPLIT, UnitDigest: make([]byte, 32), UnixMs: time.Now().UnixMilli()},
					{Service: "web", Flag: "f", Variant: "v1", Reason: donav1.Reason_REASON_SPLIT, UnitDigest: make([]byte, 32), UnixMs: time.Now().UnixMilli()}}}); err != nil {
				t.Errorf("%s as %x: a report about both: %v, %v", key, value, ack, err)
			}
			set(old.Value)
		}
	}
	if n < 30 {
		t.Errorf("%d records were damaged, of %q", n, keys)
	}
	families, err := e.metrics.Gather()
	fatal(t, err)
	for _, f := range families {
		if f.GetName() == "dona_rpc_panics_total" && f.GetMetric()[0].GetCounter().GetValue() != 0 {
			t.Errorf("%v calls panicked", f.GetMetric()[0].GetCounter().GetValue())
		}
	}
}
