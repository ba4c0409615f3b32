package rollout_test

import (
	"context"
	"encoding/json"
	"fmt"
	"sync"
	"testing"
	"time"

	donav1 "github.com/dodona-project/dodona/proto/dona/v1"
	pluginv1 "github.com/dodona-project/dodona/proto/plugin/v1"
	statev1 "github.com/dodona-project/dodona/proto/state/v1"
	"go.uber.org/goleak"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/dodona-project/dodona/host/audit"
	"github.com/dodona-project/dodona/host/rollout"
	"github.com/dodona-project/dodona/host/service"
	"github.com/dodona-project/dodona/host/store"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// fakeAnalyzer answers what a test says. Queries of a provider it does not know
// are refused.
type fakeAnalyzer struct {
	mu      sync.Mutex
	answers map[string]rollout.Measurement // by query name
	errs    map[string]error               // by query name
	check   map[string]error               // by provider: what Validate says
	own     map[string]bool
	real    map[string]func(*pluginv1.EvaluateRequest) rollout.Measurement // by provider: what answers instead
	asked   []*pluginv1.EvaluateRequest
	block   chan struct{} // when set, Evaluate waits for it or ctx
	inside  int
	most    int // at once
}

func newFakeAnalyzer() *fakeAnalyzer {
	return &fakeAnalyzer{
		answers: map[string]rollout.Measurement{}, errs: map[string]error{}, own: map[string]bool{},
		check: map[string]error{"prometheus": nil},
	}
}

func (f *fakeAnalyzer) Validate(_ context.Context, provider string, _ *structpb.Struct) (bool, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	err, known := f.check[provider]
	if !known {
		return false, rollout.ErrUnknownProvider
	}
	return f.own[provider], err
}

func (f *fakeAnalyzer) Evaluate(ctx context.Context, provider string, req *pluginv1.EvaluateRequest) (rollout.Measurement, error) {
	f.mu.Lock()
	f.asked = append(f.asked, req)
	f.inside++
	f.most = max(f.most, f.inside)
	block := f.block
	f.mu.Unlock()
	if block != nil {
		select {
		case <-block:
		case <-ctx.Done():
		}
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.inside--
	if err := ctx.Err(); err != nil {
		return rollout.Measurement{}, err
	}
	if real := f.real[provider]; real != nil {
		return real(req), nil
	}
	name := req.GetQuery().GetName()
	return f.answers[name], f.errs[name]
}

func (f *fakeAnalyzer) say(name string, m rollout.Measurement) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.answers[name] = m
}

func (f *fakeAnalyzer) questions() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(f.asked)
}

// world is a store with one service, and a controller over it.
type world struct {
	t        *testing.T
	ctx      context.Context
	store    store.Store
	plane    *service.Plane
	log      *audit.Log
	analyzer *fakeAnalyzer
	c        *rollout.Controller
	wall     func() time.Time
}

const svc = "checkout"

func newWorld(t *testing.T, st store.Store, wall func() time.Time) *world {
	t.Helper()
	w := &world{t: t, ctx: t.Context(), store: st, wall: wall}
	w.wire()
	w.endpoints("v1", 2)
	return w
}

// wire puts everything over the world's store.
func (w *world) wire() {
	w.log = audit.New("example.org")
	w.plane = service.New(w.store, w.log, "h1")
	w.analyzer = newFakeAnalyzer()
	w.c = w.controller("h1")
}

func (w *world) controller(host string) *rollout.Controller {
	return rollout.New(rollout.Options{
		Store: w.store, Service: w.plane, Audit: w.log, Analyzer: w.analyzer, HostID: host, WallClock: w.wall,
	})
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

// endpoints makes n endpoints of a variant live, as their registration would.
func (w *world) endpoints(variant string, n uint32) {
	w.t.Helper()
	w.update(func(tx store.Tx) error {
		key := "svc/" + svc + "/head"
		var head statev1.ServiceHead
		if _, err := store.Load(tx, key, &head); err != nil {
			return err
		}
		head.Service = svc
		for _, c := range head.Cells {
			if c.Variant == variant {
				c.Live = n
				return store.Save(tx, key, &head)
			}
		}
		head.Cells = append(head.Cells, &statev1.Cell{Variant: variant, Region: "eu", Live: n})
		return store.Save(tx, key, &head)
	})
}

func (w *world) record() *statev1.Rollout {
	w.t.Helper()
	var r statev1.Rollout
	w.view(func(tx store.ReadTx) error {
		_, err := store.Load(tx, "svc/"+svc+"/rollout", &r)
		return err
	})
	return &r
}

func (w *world) status() *donav1.RolloutStatus {
	w.t.Helper()
	var st *donav1.RolloutStatus
	w.view(func(tx store.ReadTx) (err error) {
		st, err = w.c.Status(tx, svc)
		return err
	})
	return st
}

// weights is the split as text, such as "v2=25 v1=75", and its version.
func (w *world) weights() (text string, version uint64) {
	w.t.Helper()
	w.view(func(tx store.ReadTx) error {
		weights, v, err := w.plane.Weights(tx, svc)
		version = v
		sum := uint32(0)
		for _, x := range weights.GetWeights() {
			text += fmt.Sprintf(" %s=%d", x.Variant, x.Weight)
			sum += x.Weight
		}
		if sum != 100 && len(weights.GetWeights()) > 0 {
			w.t.Errorf("weights%s sum to %d", text, sum)
		}
		return err
	})
	if text == "" {
		return "none", version
	}
	return text[1:], version
}

func (w *world) quarantined() (variants []string) {
	w.t.Helper()
	w.view(func(tx store.ReadTx) error {
		q, err := w.plane.Quarantined(tx, svc)
		for _, v := range q.GetVariants() {
			variants = append(variants, v.Variant)
		}
		return err
	})
	return variants
}

type entry struct {
	Seq      uint64            `json:"seq"`
	Kind     string            `json:"kind"`
	Actor    string            `json:"actor"`
	Detail   map[string]string `json:"detail"`
	Evidence []struct {
		Kind   string `json:"kind"`
		SHA256 string `json:"sha256"`
	} `json:"evidence"`
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

func (w *world) start(req *donav1.StartRolloutRequest) {
	w.t.Helper()
	if err := w.c.Start(w.ctx, "local:dev", req); err != nil {
		w.t.Fatal(err)
	}
}

func (w *world) control(action donav1.ControlRolloutRequest_Action) (*donav1.RolloutStatus, error) {
	return w.c.Control(w.ctx, "local:dev", &donav1.ControlRolloutRequest{Service: svc, Action: action, Reason: "because"})
}

func (w *world) report(variant string, requests, errors uint32, version uint64) {
	w.t.Helper()
	var calls []*donav1.CallOutcome
	now := w.wall()
	if requests > errors {
		calls = append(calls, &donav1.CallOutcome{Service: svc, Variant: variant, Success: true, LatencyUs: 1000, Count: requests - errors, ConfigVersion: version, UnixMs: now.UnixMilli()})
	}
	if errors > 0 {
		calls = append(calls, &donav1.CallOutcome{Service: svc, Variant: variant, LatencyUs: 2000, Count: errors, ConfigVersion: version, UnixMs: now.UnixMilli()})
	}
	w.update(func(tx store.Tx) error { return w.c.Report(tx, svc, calls, now) })
}

// request is a rollout of two steps with the gate only.
func request(change ...func(*donav1.StartRolloutRequest)) *donav1.StartRolloutRequest {
	req := &donav1.StartRolloutRequest{
		Service: svc, CanaryVariant: "v2", StableVariant: "v1", Steps: []uint32{25, 100},
		StepSeconds: 10, MaxErrorPercent: 5, MinRequests: 20,
	}
	for _, f := range change {
		f(req)
	}
	return req
}

func withQuery(q *donav1.AnalysisQuery) func(*donav1.StartRolloutRequest) {
	return func(req *donav1.StartRolloutRequest) { req.Analysis = append(req.Analysis, proto.CloneOf(q)) }
}

func latency() *donav1.AnalysisQuery {
	return &donav1.AnalysisQuery{Name: "latency", PrometheusUrl: "http://127.0.0.1:9090", Query: "p99", MaxValue: 0.5}
}
