package delivery_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	donav1 "github.com/dodona-project/dodona/proto/dona/v1"
	pluginv1 "github.com/dodona-project/dodona/proto/plugin/v1"
	statev1 "github.com/dodona-project/dodona/proto/state/v1"
	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/goleak"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/dodona-project/dodona/host/audit"
	"github.com/dodona-project/dodona/host/delivery"
	"github.com/dodona-project/dodona/host/refusal"
	"github.com/dodona-project/dodona/host/rollout"
	"github.com/dodona-project/dodona/host/service"
	"github.com/dodona-project/dodona/host/store"
	"github.com/dodona-project/dodona/host/store/embedded"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// clock is set by hand and read by a real store.
type clock struct{ ms atomic.Int64 }

func newClock() *clock {
	c := &clock{}
	c.ms.Store(1_700_000_000_000)
	return c
}

func (c *clock) now() time.Time          { return time.UnixMilli(c.ms.Load()) }
func (c *clock) advance(d time.Duration) { c.ms.Add(d.Milliseconds()) }

// analyzer knows one provider, which can be away.
type analyzer struct{ away atomic.Bool }

func (a *analyzer) Validate(_ context.Context, provider string, _ *structpb.Struct) (bool, error) {
	switch {
	case provider != "prometheus":
		return false, rollout.ErrUnknownProvider
	case a.away.Load():
		return false, rollout.ErrProviderAway
	}
	return false, nil
}

func (*analyzer) Evaluate(context.Context, string, *pluginv1.EvaluateRequest) (rollout.Measurement, error) {
	return rollout.Measurement{}, errors.New("nothing is measured here")
}

const svc = "checkout"

// world is a store with one service, and the controllers over it.
type world struct {
	t        *testing.T
	ctx      context.Context
	clock    *clock
	store    store.Store
	plane    *service.Plane
	log      *audit.Log
	analyzer *analyzer
	rollouts *rollout.Controller
	told     *prometheus.Registry // of the metrics of rollouts
	d        *delivery.Controller
}

func newWorld(t *testing.T) *world {
	t.Helper()
	clk := newClock()
	st := embedded.OpenMemory(embedded.Options{Clock: clk.now})
	t.Cleanup(func() { _ = st.Close() })
	return worldOver(t, st, clk)
}

func worldOver(t *testing.T, st store.Store, clk *clock) *world {
	w := &world{t: t, ctx: t.Context(), clock: clk, store: st, analyzer: &analyzer{}, told: prometheus.NewRegistry()}
	w.log = audit.New("example.org")
	w.plane = service.New(st, w.log, "h1")
	w.rollouts = rollout.New(rollout.Options{
		Store: st, Service: w.plane, Audit: w.log, Analyzer: w.analyzer, HostID: "h1", WallClock: clk.now, Registerer: w.told,
		Ended: func(tx store.Tx, service string, end rollout.End) error { return w.d.RolloutEnded(tx, service, end) },
	})
	w.d = w.controller("h1")
	return w
}

func (w *world) controller(host string) *delivery.Controller {
	return delivery.New(delivery.Options{Store: w.store, Plane: w.plane, Audit: w.log, Rollouts: w.rollouts, HostID: host, WallClock: w.clock.now})
}

func (w *world) update(fn func(tx store.Tx) error) {
	w.t.Helper()
	if err := w.store.Update(w.ctx, store.Soft, fn); err != nil {
		w.t.Fatal(err)
	}
}

func (w *world) view(fn func(tx store.ReadTx) error) {
	w.t.Helper()
	if err := w.store.View(w.ctx, fn); err != nil {
		w.t.Fatal(err)
	}
}

// endpoints makes n endpoints of a variant live in a region, as their
// registration would.
func (w *world) endpoints(variant, region string, n uint32) {
	w.t.Helper()
	w.update(func(tx store.Tx) error {
		key := "svc/" + svc + "/head"
		var head statev1.ServiceHead
		if _, err := store.Load(tx, key, &head); err != nil {
			return err
		}
		head.Service = svc
		for _, c := range head.Cells {
			if c.Variant == variant && c.Region == region {
				c.Live = n
				return store.Save(tx, key, &head)
			}
		}
		head.Cells = append(head.Cells, &statev1.Cell{Variant: variant, Region: region, Live: n})
		return store.Save(tx, key, &head)
	})
}

// release makes an artifact and a release of it.
func (w *world) release(version, variant string) *donav1.Release {
	w.t.Helper()
	a, err := w.d.RegisterArtifact(w.ctx, "local:dev", &donav1.RegisterArtifactRequest{Service: svc, Version: version, Digest: digest(version)})
	if err != nil {
		w.t.Fatal(err)
	}
	r, err := w.d.CreateRelease(w.ctx, "local:dev", &donav1.CreateReleaseRequest{Service: svc, ArtifactId: a.Id, Variant: variant})
	if err != nil {
		w.t.Fatal(err)
	}
	return r
}

// digest is some digest, another for each text.
func digest(text string) string {
	return "sha256:" + fmt.Sprintf("%064x", []byte(text))[:64]
}

func deployment(r *donav1.Release, strategy donav1.StartDeploymentRequest_Strategy, change ...func(*donav1.StartDeploymentRequest)) *donav1.StartDeploymentRequest {
	req := &donav1.StartDeploymentRequest{ReleaseId: r.Id, Environment: "prod", Strategy: strategy, ReadyTimeoutSeconds: 10}
	if strategy == canary {
		req.Canary = &donav1.StartRolloutRequest{StableVariant: "v1", Steps: []uint32{25, 100}, StepSeconds: 10, MaxErrorPercent: 5, MinRequests: 20}
	}
	for _, f := range change {
		f(req)
	}
	return req
}

func regions(names ...string) func(*donav1.StartDeploymentRequest) {
	return func(r *donav1.StartDeploymentRequest) { r.Regions = names }
}

func (w *world) start(req *donav1.StartDeploymentRequest) *donav1.Deployment {
	w.t.Helper()
	d, err := w.d.Start(w.ctx, "local:dev", req)
	if err != nil {
		w.t.Fatal(err)
	}
	return d
}

// tick passes a second and looks at everything.
func (w *world) tick() {
	w.t.Helper()
	w.clock.advance(time.Second)
	w.rollouts.Tick(w.ctx)
	w.d.Tick(w.ctx)
}

func (w *world) deployments() (list []*donav1.Deployment) {
	w.t.Helper()
	w.view(func(tx store.ReadTx) (err error) { list, err = w.d.Deployments(tx, svc); return err })
	return list
}

func (w *world) is(state donav1.Deployment_State, reason string) {
	w.t.Helper()
	list := w.deployments()
	if len(list) == 0 || list[0].State != state || !strings.Contains(list[0].Reason, reason) {
		w.t.Fatalf("the deployments are %v; want %s, %s", list, state, reason)
	}
}

// weights is the split as text, such as "v2=25 v1=75".
func (w *world) weights() (text string) {
	w.t.Helper()
	w.view(func(tx store.ReadTx) error {
		weights, _, err := w.plane.Weights(tx, svc)
		for _, x := range weights.GetWeights() {
			text += fmt.Sprintf(" %s=%d", x.Variant, x.Weight)
		}
		return err
	})
	return strings.TrimSpace(text)
}

func (w *world) rollout() (st *donav1.RolloutStatus) {
	w.t.Helper()
	w.view(func(tx store.ReadTx) (err error) { st, err = w.rollouts.Status(tx, svc); return err })
	return st
}

func (w *world) control(action donav1.ControlRolloutRequest_Action) {
	w.t.Helper()
	if _, err := w.rollouts.Control(w.ctx, "local:dev", &donav1.ControlRolloutRequest{Service: svc, Action: action, Reason: "because"}); err != nil {
		w.t.Fatal(err)
	}
}

// report has n calls of a variant, errors of them failed.
func (w *world) report(variant string, n, errors uint32) {
	w.t.Helper()
	now := w.clock.now()
	calls := []*donav1.CallOutcome{
		{Service: svc, Variant: variant, Success: true, Count: n - errors, UnixMs: now.UnixMilli(), ConfigVersion: 1 << 40},
		{Service: svc, Variant: variant, Count: errors, UnixMs: now.UnixMilli(), ConfigVersion: 1 << 40},
	}
	if errors == 0 {
		calls = calls[:1]
	}
	w.update(func(tx store.Tx) error { return w.rollouts.Report(tx, svc, calls, now) })
}

type entry struct {
	Kind, Actor string
	Detail      map[string]string
}

// chain reads the service's audit chain and checks every hash in it.
func (w *world) chain() (entries []entry) {
	w.t.Helper()
	w.view(func(tx store.ReadTx) error {
		if _, err := w.log.Check(tx, svc); err != nil {
			return err
		}
		lines, err := tx.ReadLog("audit/"+svc, 1, 0)
		for _, line := range lines {
			var e entry
			if err := json.Unmarshal(line.Payload, &e); err != nil {
				return err
			}
			entries = append(entries, e)
		}
		return err
	})
	return entries
}

// kinds is the chain in short.
func (w *world) kinds() string {
	w.t.Helper()
	var kinds []string
	for _, e := range w.chain() {
		kinds = append(kinds, e.Kind)
	}
	return strings.Join(kinds, " ")
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

// written is the revision of the newest write.
func (w *world) written() (v uint64) {
	w.t.Helper()
	w.view(func(tx store.ReadTx) error { v = tx.Revision(); return nil })
	return v
}

// refused demands a refusal of a kind and a field.
func refused(t *testing.T, name string, err error, kind refusal.Kind, field string) {
	t.Helper()
	var r *refusal.Error
	if !errors.As(err, &r) || r.Kind != kind || r.Field != field || r.Text == "" || len(r.Error()) > 1024 {
		t.Errorf("%s: %v (%+v), want kind %d of %q", name, err, r, kind, field)
	}
}
