package api_test

import (
	"context"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	donav1 "github.com/dodona-project/dodona/proto/dona/v1"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"github.com/dodona-project/dodona/host/store"
	"github.com/dodona-project/dodona/sdk/dona/digest"
)

// with adds a field that no contract has.
func with[M proto.Message](m M) M {
	unknown := protowire.AppendTag(nil, 1999, protowire.BytesType)
	m.ProtoReflect().SetUnknown(protowire.AppendString(unknown, "of a later version"))
	return m
}

// TestUnknownFields: fields of a later version are ignored, wherever they are: they
// are not stored, tell no two requests apart, and reach no client.
func TestUnknownFields(t *testing.T) {
	e := newEdge(t)
	c := ctx(t)
	e.register(with(endpoint(nil)))
	e.variant("web", "v2")
	a, err := e.client.RegisterArtifact(c, with(artifact(nil)))
	fatal(t, err)
	r, err := e.client.CreateRelease(c, with(&donav1.CreateReleaseRequest{Service: "web", ArtifactId: a.Id, Variant: "v1"}))
	fatal(t, err)
	at := time.Now().UnixMilli()
	query := func() *donav1.AnalysisQuery {
		return &donav1.AnalysisQuery{Name: "p99", PrometheusUrl: "http://127.0.0.1:9090", Query: "up", MaxValue: 1}
	}
	// Each request is sent with such fields, also within, and then without.
	for _, tc := range []struct {
		name string
		send func(later bool) error
	}{
		{"SetFlag", func(later bool) error {
			req := targeting(func(*donav1.TargetingRule) {})
			if later {
				with(with(req).Rule)
				with(req.Rule.Targeting[0])
			}
			_, err := e.client.SetFlag(c, req)
			return err
		}},
		{"SetServicePolicy", func(later bool) error {
			req := &donav1.SetServicePolicyRequest{Service: "web", Residency: &donav1.ResidencyPolicy{AllowedRegions: []string{"eu"}}, Strategy: "round-robin", StrategyConfig: config(map[string]any{"a": "b"})}
			if later {
				with(with(req).Residency)
				with(req.StrategyConfig.Fields["a"])
			}
			_, err := e.client.SetServicePolicy(c, req)
			return err
		}},
		{"SetIngress", func(later bool) error {
			req := route(nil)
			if later {
				with(req)
			}
			_, err := e.client.SetIngress(c, req)
			return err
		}},
		{"SetSharedService", func(later bool) error {
			req := share(func(r *donav1.SetSharedServiceRequest) { r.Consumers = []string{"*"} })
			if later {
				with(req)
			}
			_, err := e.client.SetSharedService(c, req)
			return err
		}},
		{"StartRollout", func(later bool) error {
			req := start(func(r *donav1.StartRolloutRequest) {
				r.StepSeconds, r.Analysis = 3600, []*donav1.AnalysisQuery{query()}
			})
			if later {
				with(with(req).Analysis[0])
			}
			return e.start(req)
		}},
		{"ReportStats", func(later bool) error {
			req := &donav1.StatsBatch{ReporterId: "r", Sequence: 1, Calls: []*donav1.CallOutcome{{Service: "web", Variant: "v1", UnixMs: at}}}
			if later {
				with(with(req).Calls[0])
			}
			ack, err := e.client.ReportStats(c, req)
			if ack.GetDropped() != 0 {
				t.Errorf("ReportStats: %v", ack)
			}
			return err
		}},
		{"StartDeployment", func(later bool) error {
			req := &donav1.StartDeploymentRequest{ReleaseId: r.Id, Strategy: donav1.StartDeploymentRequest_STRATEGY_RECREATE, Regions: []string{"mars"}}
			if later {
				with(req)
			}
			_, err := e.client.StartDeployment(c, req)
			if status.Code(err) == codes.FailedPrecondition { // a rollout is live: it began before
				return nil
			}
			return err
		}},
	} {
		fatal(t, tc.send(true))
		chain, revision := e.kinds("web"), e.written()
		fatal(t, tc.send(false))
		if e.kinds("web") != chain {
			t.Errorf("%s: without the unknown fields it is another request (chain %s)", tc.name, e.kinds("web"))
		}
		if tc.name != "StartDeployment" && tc.name != "ReportStats" && e.written() != revision { // one is ticked, the other's fence used again
			t.Errorf("%s: without the unknown fields it stored something", tc.name)
		}
	}
	frame := next(t, e.watch(with(&donav1.WatchConfigRequest{Service: "web"})), func(f *donav1.ConfigSnapshot) bool { return len(f.Flags) == 1 })
	if sum := digest.OfSnapshot(frame); string(sum[:]) != string(frame.Checksum) {
		t.Error("the checksum is not that of the content")
	}
	s, err := e.client.GetStatus(c, with(&donav1.GetStatusRequest{Service: "web"}))
	fatal(t, err)
	for what, m := range map[string]proto.Message{"the snapshot": frame, "the status": s, "the artifact": a, "the release": r} {
		if bytes, err := proto.Marshal(m); err != nil || strings.Contains(string(bytes), "of a later version") {
			t.Errorf("%s has an unknown field (%v)", what, err)
		}
	}
	fatal(t, e.store.View(c, func(tx store.ReadTx) error {
		for _, key := range []string{"svc/web/flag/f", "svc/web/policy", "svc/web/rollout", "svc/web/artifact/1", "svc/web/release/1", "shared/web", "svc/web/ep/a"} {
			rec, err := tx.Get(key)
			if err != nil || !rec.Exists() || strings.Contains(string(rec.Value), "of a later version") {
				t.Errorf("record %s: %v, %v, %q", key, rec.Exists(), err, rec.Value)
			}
		}
		return nil
	}))
}

// TestWireSizes: a message is as long as it is on the wire, whatever of it is
// known, compressed or not.
func TestWireSizes(t *testing.T) {
	e := newEdge(t)
	// padded is a message of exactly so many bytes, most of them in an unknown field.
	padded := func(m proto.Message, bytes int) []byte {
		b, err := proto.Marshal(m)
		fatal(t, err)
		b = protowire.AppendTag(b, 1999, protowire.BytesType)
		rest := bytes - len(b)
		for n := rest; ; n-- {
			if p := protowire.AppendBytes(b, make([]byte, n)); len(p) <= bytes {
				if len(p) != bytes {
					t.Fatalf("cannot pad to %d bytes", bytes)
				}
				return p
			}
		}
	}
	for _, tc := range []struct {
		method string
		m      proto.Message
		most   int
	}{
		{donav1.ControlPlane_SetFlag_FullMethodName, flagRule(func(*donav1.FlagRule) {}), 256 << 10},
		{donav1.ControlPlane_GetStatus_FullMethodName, &donav1.GetStatusRequest{Service: "web"}, 256 << 10},
		{donav1.ControlPlane_ReportStats_FullMethodName, &donav1.StatsBatch{}, 4 << 20},
	} {
		for _, opts := range [][]grpc.CallOption{nil, {grpc.UseCompressor("gzip")}} {
			call := func(bytes int) error {
				return e.conn.Invoke(ctx(t), tc.method, padded(tc.m, bytes), &donav1.Empty{}, append(opts, grpc.ForceCodecV2(raw{}))...)
			}
			if err := call(tc.most); err != nil {
				t.Errorf("%s of %d bytes (%d options): %v", tc.method, tc.most, len(opts), err)
			}
			refused(t, fmt.Sprintf("%s of a byte more (%d options)", tc.method, len(opts)), call(tc.most+1), codes.ResourceExhausted, "")
		}
	}
	for _, tc := range []struct {
		method string
		m      proto.Message
	}{
		{donav1.ControlPlane_RegisterEndpoint_FullMethodName, endpoint(nil)},
		{donav1.ControlPlane_WatchConfig_FullMethodName, &donav1.WatchConfigRequest{Service: "web"}},
		{donav1.ControlPlane_WatchStatus_FullMethodName, &donav1.GetStatusRequest{Service: "web"}},
	} {
		s, err := e.conn.NewStream(ctx(t), &grpc.StreamDesc{ClientStreams: true, ServerStreams: true}, tc.method, grpc.ForceCodecV2(raw{}))
		fatal(t, err)
		fatal(t, s.SendMsg(padded(tc.m, 256<<10+1)))
		_ = s.CloseSend()
		refused(t, tc.method+" of a byte more", s.RecvMsg(&donav1.Empty{}), codes.ResourceExhausted, "")
	}
}

// stuck is a store whose hard updates wait for their caller's end while it is told
// to, and say that they do.
type stuck struct {
	store.Store
	on      *atomic.Bool
	entered chan struct{}
}

func (s stuck) Update(c context.Context, d store.Durability, fn func(store.Tx) error) error {
	if d != store.Hard || !s.on.Load() {
		return s.Store.Update(c, d, fn)
	}
	s.entered <- struct{}{}
	<-c.Done()
	return c.Err()
}

// TestDeadlines: a call that is out of time, or whose client goes half-way, does
// nothing, and says so when there is anybody to say it to.
func TestDeadlines(t *testing.T) {
	var on atomic.Bool
	entered := make(chan struct{}, 100)
	e := newEdge(t, withStore(func(s store.Store) store.Store { return stuck{s, &on, entered} }))
	e.register(endpoint(nil))
	past, cancel := context.WithDeadline(context.Background(), time.Now().Add(-time.Second))
	defer cancel()
	calls := map[string]func(context.Context) error{
		"SetFlag": func(c context.Context) error {
			_, err := e.client.SetFlag(c, flagRule(func(*donav1.FlagRule) {}))
			return err
		},
		"SetServicePolicy": func(c context.Context) error {
			_, err := e.client.SetServicePolicy(c, &donav1.SetServicePolicyRequest{Service: "web", Strategy: "round-robin"})
			return err
		},
		"SetIngress":       func(c context.Context) error { _, err := e.client.SetIngress(c, route(nil)); return err },
		"SetSharedService": func(c context.Context) error { _, err := e.client.SetSharedService(c, share(nil)); return err },
		"RegisterArtifact": func(c context.Context) error { _, err := e.client.RegisterArtifact(c, artifact(nil)); return err },
		"StartRollout":     func(c context.Context) error { _, err := e.client.StartRollout(c, start(nil)); return err },
	}
	before := e.written()
	for name, call := range calls {
		refused(t, name+" after its deadline", call(past), codes.DeadlineExceeded, "")
	}
	on.Store(true)
	for name, call := range calls {
		c, cancel := context.WithCancel(context.Background())
		answer := make(chan error, 1)
		go func() { answer <- call(c) }()
		<-entered
		cancel()
		refused(t, name+" cancelled half-way", <-answer, codes.Canceled, "")
		short, cancel := context.WithTimeout(context.Background(), 50*time.Millisecond)
		refused(t, name+" out of time half-way", call(short), codes.DeadlineExceeded, "")
		cancel()
	}
	on.Store(false)
	if e.written() != before {
		t.Error("something was stored")
	}
	for name, call := range calls {
		if err := call(ctx(t)); err != nil {
			t.Errorf("%s afterwards: %v", name, err)
		}
	}
}
