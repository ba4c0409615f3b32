package api_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
	"unicode/utf8"

	donav1 "github.com/dodona-project/dodona/proto/dona/v1"
	pluginv1 "github.com/dodona-project/dodona/proto/plugin/v1"
	"github.com/hashicorp/go-hclog"
	prom "github.com/prometheus/client_golang/prometheus"
	"go.uber.org/goleak"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/dodona-project/dodona/host/api"
	"github.com/dodona-project/dodona/host/audit"
	"github.com/dodona-project/dodona/host/check"
	"github.com/dodona-project/dodona/host/delivery"
	"github.com/dodona-project/dodona/host/fsck"
	"github.com/dodona-project/dodona/host/identity"
	"github.com/dodona-project/dodona/host/pool"
	"github.com/dodona-project/dodona/host/refusal"
	"github.com/dodona-project/dodona/host/rollout"
	"github.com/dodona-project/dodona/host/service"
	"github.com/dodona-project/dodona/host/session"
	"github.com/dodona-project/dodona/host/snapshot"
	"github.com/dodona-project/dodona/host/store"
	"github.com/dodona-project/dodona/host/store/embedded"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// edge is the whole host but for its plugins, behind a real listener.
type edge struct {
	t      *testing.T
	store  store.Store
	server *grpc.Server
	conn   *grpc.ClientConn
	client donav1.ControlPlaneClient
	admin  donav1.HostAdminClient
	alarms *[]string
	feeds  *snapshot.Feeds
	checks *check.Broker
	pool   *pool.Pool
	issuer *identity.Issuer // nil without withIssuer

	address  string
	plugins  *fakePlugins
	rollouts *rollout.Controller // ticks when a test says so
	metrics  *prom.Registry
	stop     func() // tells streams to end
	leave    func() // ends the host as SIGTERM does, but for the store
}

type option func(*setup)

type setup struct {
	heartbeat time.Duration
	wrap      func(store.Store) store.Store
	shared    store.Store
	sends     time.Duration
	issuer    *identity.Options
	edit      func(*api.Options)
	dial      []grpc.DialOption
	counters  int // proxies that a worker owns; 0 = the default
	window    int // tasks that a checker holds; the same
}

func withHeartbeat(d time.Duration) option { return func(s *setup) { s.heartbeat = d } }

// withBounds sets how many proxies a worker owns and how many tasks a checker holds.
func withBounds(counters, window int) option {
	return func(s *setup) { s.counters, s.window = counters, window }
}

// withStore puts a faulty store under what acts.
func withStore(wrap func(store.Store) store.Store) option { return func(s *setup) { s.wrap = wrap } }

// onStore has the host use a store that the caller closes.
func onStore(st store.Store) option { return func(s *setup) { s.shared = st } }

// withSends sets how long a send may be blocked.
func withSends(d time.Duration) option { return func(s *setup) { s.sends = d } }

// withIssuer has the host issue identities; the store and what goes with it are set.
func withIssuer(o identity.Options) option { return func(s *setup) { s.issuer = &o } }

// serving changes how the server is made.
func serving(edit func(*api.Options), dial ...grpc.DialOption) option {
	return func(s *setup) { s.edit, s.dial = edit, dial }
}

// analyzer knows prometheus, which measures nothing, and away, which was never
// seen.
type analyzer struct{}

func (analyzer) Validate(_ context.Context, provider string, config *structpb.Struct) (bool, error) {
	switch provider {
	case "prometheus":
	case "away":
		return false, rollout.ErrProviderAway
	default:
		return false, rollout.ErrUnknownProvider
	}
	if config.GetFields()["nope"] != nil {
		return false, &rollout.ConfigError{Violations: []rollout.Violation{{Path: "/nope", Message: "is not known"}}}
	}
	return false, nil
}

func (analyzer) Evaluate(context.Context, string, *pluginv1.EvaluateRequest) (rollout.Measurement, error) {
	return rollout.Measurement{}, errors.New("nothing is measured here")
}

// backupOfATest is more than one message carries, and no multiple of it.
var backupOfATest = bytes.Repeat([]byte("backup!"), 100_000)

func newSigner(t *testing.T) *audit.Signer {
	t.Helper()
	s, err := audit.OpenSigner(filepath.Join(t.TempDir(), "attestation.key"), true)
	fatal(t, err)
	return s
}

func newEdge(t *testing.T, options ...option) *edge {
	t.Helper()
	o := setup{heartbeat: 5 * time.Second}
	for _, set := range options {
		set(&o)
	}
	st := o.shared
	if st == nil {
		st = embedded.OpenMemory(embedded.Options{})
		t.Cleanup(func() { _ = st.Close() })
	}
	ledger := audit.New("example.org")
	dial := append([]grpc.DialOption{grpc.WithTransportCredentials(insecure.NewCredentials())}, o.dial...)
	actions := audit.Guard(st)
	if o.wrap != nil {
		actions = audit.Guard(o.wrap(st))
	} else {
		dial = append(dial, grpc.WithUnaryInterceptor(patient))
	}
	plane := service.New(actions, ledger, "h1")
	sessions, err := session.New(session.Options{Store: st, Plane: plane, PlaneName: "service", Heartbeat: o.heartbeat})
	fatal(t, err)
	fatal(t, sessions.Start(context.Background()))
	var alarms []string
	feeds, err := snapshot.New(snapshot.Options{Store: st, Source: plane.Source(), OnRewind: func(r snapshot.Rewind) {
		alarms = append(alarms, fmt.Sprintf("%s has seen %d", r.Client, r.Seen))
	}})
	fatal(t, err)
	var deliveries *delivery.Controller
	rollouts := rollout.New(rollout.Options{Store: actions, Service: plane, Audit: ledger, Analyzer: analyzer{}, HostID: "h1",
		Ended: func(tx store.Tx, service string, end rollout.End) error {
			return deliveries.RolloutEnded(tx, service, end)
		}})
	deliveries = delivery.New(delivery.Options{Store: actions, Plane: plane, Audit: ledger, Rollouts: rollouts, HostID: "h1", Tick: 10 * time.Millisecond})
	stopping := make(chan struct{})
	stop := sync.OnceFunc(func() { close(stopping) })
	fake := newFakePlugins()
	metrics := prom.NewRegistry()
	checks := check.New(check.Options{Store: st, Planes: map[string]check.Plane{service.CheckPlane: plane}, Rules: check.DefaultRules(30*time.Second, 5*time.Second), Window: o.window})
	control := &api.ControlPlane{
		Store: st, Audit: ledger, Plane: plane, Sessions: sessions, Feeds: feeds, Rollouts: rollouts, Delivery: deliveries,
		Attester: &audit.Attester{Store: actions, Log: ledger, Signer: newSigner(t)},
		Reports:  service.NewReports(plane, rollouts, time.Now, metrics), Wall: time.Now, Stopping: stopping,
		Checks:   checks,
		Probe:    judge("probe", "http"),
		Strategy: judge("strategy", "round-robin", "least-connections", "priority"),
	}
	proxies := pool.New(pool.Options{Store: actions, Audit: ledger, HostID: "h1", MaxCounters: o.counters, Strategy: pool.PluginCheck(judge("strategy", "round-robin", "priority"))})
	var issuer *identity.Issuer
	if o.issuer != nil {
		o.issuer.Store, o.issuer.Audit, o.issuer.TrustDomain, o.issuer.HostID = actions, ledger, "example.org", "h1"
		o.issuer.DataDir, o.issuer.Logger = t.TempDir(), hclog.NewNullLogger()
		issuer, err = identity.Open(t.Context(), *o.issuer)
		fatal(t, err)
	}
	serve := api.Options{
		Dev: true, Health: health.NewServer(), Logger: hclog.NewNullLogger(), SendTimeout: o.sends, Registerer: metrics,
		ControlPlane: control, Checkers: &api.CheckerControlPlane{Tasks: checks, Stopping: stopping},
		Workers: &api.WorkerControlPlane{Fleet: proxies, Stopping: stopping}, PoolAdmin: &api.PoolAdmin{Pool: proxies}, Published: proxies.Environment,
		HostAdmin: &api.HostAdmin{HostID: "h1", Version: "test", Store: st, Actions: actions, Audit: ledger, Sessions: sessions,
			Plugins: fake, Alarms: func() []string { return nil }, Stopping: stopping, Identities: issuer,
			Operate: api.StoreOperations{
				Check:  func(ctx context.Context) (fsck.Report, error) { return fsck.Run(ctx, st, "example.org") },
				Backup: func(w io.Writer) error { _, err := w.Write(backupOfATest); return err },
			}},
	}
	if o.edit != nil {
		o.edit(&serve)
	}
	server, err := api.New(serve)
	fatal(t, err)
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	fatal(t, err)
	served := make(chan struct{})
	go func() { defer close(served); _ = server.Serve(listener) }()
	ctx, cancel := context.WithCancel(context.Background())
	var loops sync.WaitGroup
	for _, run := range []func(context.Context) error{sessions.Run, control.EndShutOut, deliveries.Run, proxies.Run} {
		loops.Go(func() { _ = run(ctx) })
	}
	conn, err := grpc.NewClient(listener.Addr().String(), dial...)
	fatal(t, err)
	leave := sync.OnceFunc(func() {
		stop()
		sessions.Drain()
		_ = conn.Close()
		feeds.Close()
		server.Stop()
		<-served
		cancel()
		loops.Wait()
	})
	t.Cleanup(leave)
	return &edge{t, st, server, conn, donav1.NewControlPlaneClient(conn), donav1.NewHostAdminClient(conn), &alarms, feeds, checks, proxies, issuer, listener.Addr().String(), fake, rollouts, metrics, stop, leave}
}

// patient sends a request again whose entry was not durable in time, as the answer
// says to: so much may pass on a busy machine.
func patient(c context.Context, method string, req, reply any, conn *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
	for {
		err := invoke(c, method, req, reply, conn, opts...)
		if status.Code(err) != codes.Unavailable || !strings.Contains(err.Error(), "was not durable within") {
			return err
		}
	}
}

// judge knows some plugins of a kind, of which priority demands a config with
// order, and away, which was never seen.
func judge(kind string, known ...string) service.PluginCheck {
	return func(_ context.Context, name string, config *structpb.Struct) error {
		switch {
		case name == "away":
			return &refusal.Error{Kind: refusal.Unavailable, Reason: "plugin", Text: "away was never seen"}
		case !slices.Contains(known, name):
			return refusal.Field(kind, "is unknown")
		case name == "priority" && config.GetFields()["order"] == nil:
			return refusal.Field(kind+"_config/order", "is missing")
		}
		return nil
	}
}

func fatal(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// patience is how long a test waits on a busy machine for what should come at once.
const patience = 2 * time.Minute

func ctx(t *testing.T) context.Context {
	c, cancel := context.WithTimeout(context.Background(), patience)
	t.Cleanup(cancel)
	return c
}

// written is the revision of the newest write: equal before and after means that
// nothing was stored.
func (e *edge) written() (revision uint64) {
	e.t.Helper()
	fatal(e.t, e.store.View(context.Background(), func(tx store.ReadTx) error { revision = tx.Revision(); return nil }))
	return revision
}

// ended counts the calls of a method that are over.
func (e *edge) ended(method string) (n float64) {
	e.t.Helper()
	families, err := e.metrics.Gather()
	fatal(e.t, err)
	for _, f := range families {
		for _, m := range f.GetMetric() {
			for _, l := range m.GetLabel() {
				if f.GetName() == "dona_rpc_total" && l.GetName() == "method" && l.GetValue() == method {
					n += m.GetCounter().GetValue()
				}
			}
		}
	}
	return n
}

// refused demands an answer as every refusal has to be.
func refused(t *testing.T, name string, err error, code codes.Code, field string) {
	t.Helper()
	s := status.Convert(err)
	if s.Code() != code {
		t.Errorf("%s: %v, want %v", name, err, code)
		return
	}
	if len(s.Message()) > 1024 || !utf8.ValidString(s.Message()) || strings.ContainsAny(s.Message(), "\n\x00") {
		t.Errorf("%s: the answer is too long or not clean: %q", name, s.Message())
	}
	if echo := longestRun(s.Message()); echo > 64 {
		t.Errorf("%s: the answer echoes %d bytes of the request: %q", name, echo, s.Message())
	}
	if field == "" {
		return
	}
	named := strings.Contains(s.Message(), field)
	for _, d := range s.Details() {
		if b, ok := d.(*errdetails.BadRequest); ok && len(b.FieldViolations) == 1 {
			named = named && b.FieldViolations[0].Field == field
		}
	}
	if !named {
		t.Errorf("%s: %q does not name %s", name, s.Message(), field)
	}
}

// longestRun is how often the most frequent of the letters is repeated in a row:
// long inputs of these tests are of one letter.
func longestRun(s string) (longest int) {
	run := 0
	for i := range len(s) {
		if i > 0 && s[i] == s[i-1] {
			run++
		} else {
			run = 1
		}
		longest = max(longest, run)
	}
	return longest
}

var (
	long  = strings.Repeat("x", 129)
	names = []struct{ what, value string }{ // names that no grammar takes
		{"too long", long}, {"a space", "a b"}, {"NUL", "a\x00b"}, {"a path", "../x"}, {"a right-to-left mark", "a\u202eb"}, {"a line break", "a\nb"},
	}
)

// row is one bad request and the answer it has to get.
type row struct {
	name  string
	call  func(context.Context, *edge) error
	code  codes.Code
	field string
}

// unary makes a row of a unary call.
func unary[Q, R any](name string, call func(donav1.ControlPlaneClient, context.Context, Q, ...grpc.CallOption) (R, error), req Q, code codes.Code, field string) row {
	return row{name, func(c context.Context, e *edge) error { _, err := call(e.client, c, req); return err }, code, field}
}

// stream makes a row of a call that answers with a stream.
func stream[Q, R any](name string, call func(donav1.ControlPlaneClient, context.Context, Q, ...grpc.CallOption) (grpc.ServerStreamingClient[R], error), req Q, code codes.Code, field string) row {
	return row{name, func(c context.Context, e *edge) error {
		s, err := call(e.client, c, req)
		if err != nil {
			return err
		}
		_, err = s.Recv()
		return err
	}, code, field}
}

func register(name string, beat *donav1.EndpointHeartbeat, code codes.Code, field string) row {
	return row{"RegisterEndpoint: " + name, func(c context.Context, e *edge) error {
		s, err := e.client.RegisterEndpoint(c)
		if err != nil {
			return err
		}
		if beat != nil {
			if err := s.Send(beat); err != nil {
				return err
			}
		}
		_, err = s.CloseAndRecv()
		return err
	}, code, field}
}

func endpoint(change func(*donav1.EndpointHeartbeat)) *donav1.EndpointHeartbeat {
	b := &donav1.EndpointHeartbeat{Service: "web", EndpointId: "a", Address: "127.0.0.1:80", Variant: "v1", Region: "eu"}
	if change != nil {
		change(b)
	}
	return b
}

func start(change func(*donav1.StartRolloutRequest)) *donav1.StartRolloutRequest {
	r := &donav1.StartRolloutRequest{Service: "web", CanaryVariant: "v2", StableVariant: "v1", Steps: []uint32{10, 100}, StepSeconds: 10, MaxErrorPercent: 5, MinRequests: 10}
	if change != nil {
		change(r)
	}
	return r
}

func query(change func(*donav1.AnalysisQuery)) *donav1.StartRolloutRequest {
	q := &donav1.AnalysisQuery{Name: "p99", PrometheusUrl: "http://127.0.0.1:9090", Query: "up", MaxValue: 1}
	change(q)
	return start(func(r *donav1.StartRolloutRequest) { r.Analysis = []*donav1.AnalysisQuery{q} })
}

func flagRule(change func(*donav1.FlagRule)) *donav1.SetFlagRequest {
	r := &donav1.FlagRule{Service: "web", Flag: "f", RolloutPercent: 10, RolloutVariant: "v1"}
	change(r)
	return &donav1.SetFlagRequest{Rule: r}
}

func targeting(change func(*donav1.TargetingRule)) *donav1.SetFlagRequest {
	rule := &donav1.TargetingRule{Attribute: "country", Operator: donav1.TargetingRule_OPERATOR_IN, Values: []string{"CH"}, Variant: "v1"}
	change(rule)
	return flagRule(func(r *donav1.FlagRule) { r.Targeting = []*donav1.TargetingRule{rule} })
}

// badRows is every RPC with every kind of bad input it can get.
func badRows() (rows []row) {
	const invalid = codes.InvalidArgument
	type client = donav1.ControlPlaneClient
	rows = append(rows,
		register("nothing", nil, invalid, "service"),
		register("empty", &donav1.EndpointHeartbeat{}, invalid, "service"),
		register("no id", endpoint(func(b *donav1.EndpointHeartbeat) { b.EndpointId = "" }), invalid, "endpoint_id"),
		register("no variant", endpoint(func(b *donav1.EndpointHeartbeat) { b.Variant = "" }), invalid, "variant"),
		register("no address", endpoint(func(b *donav1.EndpointHeartbeat) { b.Address = "" }), invalid, "address"),
		register("port 0", endpoint(func(b *donav1.EndpointHeartbeat) { b.Address = "a:0" }), invalid, "address"),
		register("port 65536", endpoint(func(b *donav1.EndpointHeartbeat) { b.Address = "a:65536" }), invalid, "address"),
		register("a scheme", endpoint(func(b *donav1.EndpointHeartbeat) { b.Address = "http://a:80" }), invalid, "address"),
		register("upper case", endpoint(func(b *donav1.EndpointHeartbeat) { b.Service = "Web" }), invalid, "service"),
		register("64 bytes", endpoint(func(b *donav1.EndpointHeartbeat) { b.Service = long[:64] }), invalid, "service"),
		register("NaN", endpoint(func(b *donav1.EndpointHeartbeat) { b.Utilization = math.NaN() }), invalid, "utilization"),
		register("+Inf", endpoint(func(b *donav1.EndpointHeartbeat) { b.Utilization = math.Inf(1) }), invalid, "utilization"),
		register("negative", endpoint(func(b *donav1.EndpointHeartbeat) { b.Utilization = -0.1 }), invalid, "utilization"),
		register("33 labels", endpoint(func(b *donav1.EndpointHeartbeat) { b.Labels = labels(33) }), invalid, "labels"),
		register("a long label", endpoint(func(b *donav1.EndpointHeartbeat) { b.Labels = map[string]string{"k": strings.Repeat("v", 257)} }), invalid, `labels["k"]`),
		register("an empty label key", endpoint(func(b *donav1.EndpointHeartbeat) { b.Labels = map[string]string{"": "v"} }), invalid, `labels[""]`),
	)
	for _, n := range names {
		rows = append(rows,
			register("service "+n.what, endpoint(func(b *donav1.EndpointHeartbeat) { b.Service = n.value }), invalid, "service"),
			register("variant "+n.what, endpoint(func(b *donav1.EndpointHeartbeat) { b.Variant = n.value }), invalid, "variant"),
			register("region "+n.what, endpoint(func(b *donav1.EndpointHeartbeat) { b.Region = n.value }), invalid, "region"),
			register("zone "+n.what, endpoint(func(b *donav1.EndpointHeartbeat) { b.Zone = n.value }), invalid, "zone"),
			stream("WatchConfig: service "+n.what, client.WatchConfig, &donav1.WatchConfigRequest{Service: n.value}, invalid, "service"),
			stream("WatchConfig: client "+n.what, client.WatchConfig, &donav1.WatchConfigRequest{Service: "web", ClientId: n.value}, invalid, "client_id"),
			stream("WatchConfig: caller "+n.what, client.WatchConfig, &donav1.WatchConfigRequest{Service: "web", CallerService: n.value}, invalid, "caller_service"),
			stream("WatchConfig: region "+n.what, client.WatchConfig, &donav1.WatchConfigRequest{Service: "web", CallerRegion: n.value}, invalid, "caller_region"),
			unary("ReportStats: reporter "+n.what, client.ReportStats, &donav1.StatsBatch{ReporterId: n.value, Sequence: 1}, invalid, "reporter_id"),
			unary("SetFlag: service "+n.what, client.SetFlag, flagRule(func(r *donav1.FlagRule) { r.Service = n.value }), invalid, "rule.service"),
			unary("SetFlag: flag "+n.what, client.SetFlag, flagRule(func(r *donav1.FlagRule) { r.Flag = n.value }), invalid, "rule.flag"),
			unary("SetFlag: variant "+n.what, client.SetFlag, flagRule(func(r *donav1.FlagRule) { r.RolloutVariant = n.value }), invalid, "rule.rollout_variant"),
			unary("SetServicePolicy: service "+n.what, client.SetServicePolicy, &donav1.SetServicePolicyRequest{Service: n.value, ClearResidency: true}, invalid, "service"),
			unary("SetServicePolicy: strategy "+n.what, client.SetServicePolicy, &donav1.SetServicePolicyRequest{Service: "web", Strategy: n.value}, invalid, "strategy"),
			unary("StartRollout: service "+n.what, client.StartRollout, start(func(r *donav1.StartRolloutRequest) { r.Service = n.value }), invalid, "service"),
			unary("StartRollout: canary "+n.what, client.StartRollout, start(func(r *donav1.StartRolloutRequest) { r.CanaryVariant = n.value }), invalid, "canary_variant"),
			unary("StartRollout: stable "+n.what, client.StartRollout, start(func(r *donav1.StartRolloutRequest) { r.StableVariant = n.value }), invalid, "stable_variant"),
			unary("ControlRollout: service "+n.what, client.ControlRollout, &donav1.ControlRolloutRequest{Service: n.value, Action: donav1.ControlRolloutRequest_ACTION_PAUSE}, invalid, "service"),
			unary("GetStatus: service "+n.what, client.GetStatus, &donav1.GetStatusRequest{Service: n.value}, invalid, "service"),
			stream("WatchStatus: service "+n.what, client.WatchStatus, &donav1.GetStatusRequest{Service: n.value}, invalid, "service"),
		)
	}
	rows = append(rows,
		stream("WatchConfig: empty", client.WatchConfig, &donav1.WatchConfigRequest{}, invalid, "service"),
		stream("WatchConfig: a short checksum", client.WatchConfig, &donav1.WatchConfigRequest{Service: "web", LastChecksum: make([]byte, 31)}, invalid, "last_checksum"),
		unary("ReportStats: no reporter", client.ReportStats, &donav1.StatsBatch{Sequence: 1}, invalid, "reporter_id"),
		unary("ReportStats: 4,097 items", client.ReportStats, &donav1.StatsBatch{ReporterId: "r", Sequence: 1, Calls: make4097()}, invalid, "calls"),
		unary("ReportStats: unfenced audits", client.ReportStats, &donav1.StatsBatch{Audits: []*donav1.AuditEvent{{Service: "web"}}}, invalid, "sequence"),
		unary("SetFlag: empty", client.SetFlag, &donav1.SetFlagRequest{}, invalid, "rule"),
		unary("SetFlag: no flag", client.SetFlag, flagRule(func(r *donav1.FlagRule) { r.Flag = "" }), invalid, "rule.flag"),
		unary("SetFlag: 101 %", client.SetFlag, flagRule(func(r *donav1.FlagRule) { r.RolloutPercent = 101 }), invalid, "rule.rollout_percent"),
		unary("SetFlag: % of no variant", client.SetFlag, flagRule(func(r *donav1.FlagRule) { r.RolloutVariant = "" }), invalid, "rule.rollout_variant"),
		unary("SetFlag: hash version", client.SetFlag, flagRule(func(r *donav1.FlagRule) { r.HashVersion = 2 }), invalid, "rule.hash_version"),
		unary("SetFlag: 101 rules", client.SetFlag, flagRule(func(r *donav1.FlagRule) { r.Targeting = make([]*donav1.TargetingRule, 101); fill(r.Targeting) }), invalid, "rule.targeting"),
		unary("SetFlag: no attribute", client.SetFlag, targeting(func(r *donav1.TargetingRule) { r.Attribute = "" }), invalid, "rule.targeting[0].attribute"),
		unary("SetFlag: operator 99", client.SetFlag, targeting(func(r *donav1.TargetingRule) { r.Operator = 99 }), invalid, "rule.targeting[0].operator"),
		unary("SetFlag: operator -1", client.SetFlag, targeting(func(r *donav1.TargetingRule) { r.Operator = -1 }), invalid, "rule.targeting[0].operator"),
		unary("SetFlag: no values", client.SetFlag, targeting(func(r *donav1.TargetingRule) { r.Values = nil }), invalid, "rule.targeting[0].values"),
		unary("SetFlag: a long value", client.SetFlag, targeting(func(r *donav1.TargetingRule) { r.Values = []string{strings.Repeat("v", 1025)} }), invalid, "rule.targeting[0].values[0]"),
		unary("SetFlag: EXISTS with values", client.SetFlag, targeting(func(r *donav1.TargetingRule) { r.Operator = donav1.TargetingRule_OPERATOR_EXISTS }), invalid, "rule.targeting[0].values"),
		unary("SetFlag: no variant", client.SetFlag, targeting(func(r *donav1.TargetingRule) { r.Variant = "" }), invalid, "rule.targeting[0].variant"),
		unary("SetFlag: delete what is not there", client.SetFlag, &donav1.SetFlagRequest{Delete: true, Rule: &donav1.FlagRule{Service: "web", Flag: "nope"}}, codes.NotFound, "nope"),
		unary("SetFlag: expected_version", client.SetFlag, &donav1.SetFlagRequest{ExpectedVersion: 1, Rule: &donav1.FlagRule{Service: "web", Flag: "f"}}, codes.FailedPrecondition, "expected_version"),
		unary("SetServicePolicy: empty", client.SetServicePolicy, &donav1.SetServicePolicyRequest{}, invalid, "service"),
		unary("SetServicePolicy: nothing", client.SetServicePolicy, &donav1.SetServicePolicyRequest{Service: "web"}, invalid, "residency"),
		unary("SetServicePolicy: unknown strategy", client.SetServicePolicy, &donav1.SetServicePolicyRequest{Service: "web", Strategy: "nope"}, invalid, "strategy"),
		unary("SetServicePolicy: unknown probe", client.SetServicePolicy, &donav1.SetServicePolicyRequest{Service: "web", Probe: "nope"}, invalid, "probe"),
		unary("GetStatus: empty", client.GetStatus, &donav1.GetStatusRequest{}, invalid, "service"),
		unary("GetStatus: unknown", client.GetStatus, &donav1.GetStatusRequest{Service: "nope"}, codes.NotFound, "nope"),
		stream("WatchStatus: unknown", client.WatchStatus, &donav1.GetStatusRequest{Service: "nope"}, codes.NotFound, "nope"),
		unary("ControlRollout: empty", client.ControlRollout, &donav1.ControlRolloutRequest{}, invalid, "service"),
		unary("ControlRollout: action 99", client.ControlRollout, &donav1.ControlRolloutRequest{Service: "web", Action: 99}, invalid, "action"),
		unary("ControlRollout: action -1", client.ControlRollout, &donav1.ControlRolloutRequest{Service: "web", Action: -1}, invalid, "action"),
		unary("ControlRollout: no action", client.ControlRollout, &donav1.ControlRolloutRequest{Service: "web"}, invalid, "action"),
		unary("ControlRollout: a long reason", client.ControlRollout, &donav1.ControlRolloutRequest{Service: "web", Action: donav1.ControlRolloutRequest_ACTION_PAUSE, Reason: strings.Repeat("r", 4097)}, invalid, "reason"),
		unary("ControlRollout: unknown service", client.ControlRollout, &donav1.ControlRolloutRequest{Service: "nope", Action: donav1.ControlRolloutRequest_ACTION_PAUSE}, codes.NotFound, "nope"),
		unary("StartRollout: empty", client.StartRollout, &donav1.StartRolloutRequest{}, invalid, "service"),
		unary("StartRollout: no steps", client.StartRollout, start(func(r *donav1.StartRolloutRequest) { r.Steps = nil }), invalid, "steps"),
		unary("StartRollout: steps fall", client.StartRollout, start(func(r *donav1.StartRolloutRequest) { r.Steps = []uint32{50, 10, 100} }), invalid, "steps[1]"),
		unary("StartRollout: a 0", client.StartRollout, start(func(r *donav1.StartRolloutRequest) { r.Steps = []uint32{0, 100} }), invalid, "steps[0]"),
		unary("StartRollout: 101", client.StartRollout, start(func(r *donav1.StartRolloutRequest) { r.Steps = []uint32{10, 101} }), invalid, "steps[1]"),
		unary("StartRollout: last not 100", client.StartRollout, start(func(r *donav1.StartRolloutRequest) { r.Steps = []uint32{10, 99} }), invalid, "steps[1]"),
		unary("StartRollout: no time", client.StartRollout, start(func(r *donav1.StartRolloutRequest) { r.StepSeconds = 0 }), invalid, "step_seconds"),
		unary("StartRollout: over a day", client.StartRollout, start(func(r *donav1.StartRolloutRequest) { r.StepSeconds = 86_401 }), invalid, "step_seconds"),
		unary("StartRollout: 101 % errors", client.StartRollout, start(func(r *donav1.StartRolloutRequest) { r.MaxErrorPercent = 101 }), invalid, "max_error_percent"),
		unary("StartRollout: one variant", client.StartRollout, start(func(r *donav1.StartRolloutRequest) { r.CanaryVariant = "v1" }), invalid, "canary_variant"),
		unary("StartRollout: unknown service", client.StartRollout, start(func(r *donav1.StartRolloutRequest) { r.Service = "nope" }), codes.FailedPrecondition, "stable_variant"),
		unary("StartRollout: no stable endpoint", client.StartRollout, start(func(r *donav1.StartRolloutRequest) { r.StableVariant = "v9" }), codes.FailedPrecondition, "stable_variant"),
		unary("query: NaN", client.StartRollout, query(func(q *donav1.AnalysisQuery) { q.MaxValue = math.NaN() }), invalid, "analysis[0].max_value"),
		unary("query: Inf", client.StartRollout, query(func(q *donav1.AnalysisQuery) { q.MinValue, q.HasMinValue = math.Inf(-1), true }), invalid, "analysis[0].min_value"),
		unary("query: no bound", client.StartRollout, query(func(q *donav1.AnalysisQuery) { q.NoMaxValue = true }), invalid, "analysis[0].no_max_value"),
		unary("query: no name", client.StartRollout, query(func(q *donav1.AnalysisQuery) { q.Name = "" }), invalid, "analysis[0].name"),
		unary("query: no query", client.StartRollout, query(func(q *donav1.AnalysisQuery) { q.Query = "" }), invalid, "analysis[0].query"),
		unary("query: scheme", client.StartRollout, query(func(q *donav1.AnalysisQuery) { q.PrometheusUrl = "ftp://a" }), invalid, "analysis[0].prometheus_url"),
		unary("query: timeout", client.StartRollout, query(func(q *donav1.AnalysisQuery) { q.TimeoutMs = 5001 }), invalid, "analysis[0].timeout_ms"),
		unary("query: provider", client.StartRollout, query(func(q *donav1.AnalysisQuery) { q.Provider = "nope" }), invalid, "analysis[0].provider"),
		unary("query: config", client.StartRollout, query(func(q *donav1.AnalysisQuery) {
			q.Config = &structpb.Struct{Fields: map[string]*structpb.Value{"nope": structpb.NewBoolValue(true)}}
		}), invalid, "analysis[0].config"),
		unary("GetAttestation: empty", client.GetAttestation, &donav1.AttestationRequest{}, invalid, "service"),
		unary("GetAttestation: another chain", client.GetAttestation, &donav1.AttestationRequest{Service: "@other"}, invalid, "service"),
		unary("GetAttestation: unknown", client.GetAttestation, &donav1.AttestationRequest{Service: "nope"}, codes.NotFound, "nope"),
		unary("GetAttestation: from after to", client.GetAttestation, &donav1.AttestationRequest{Service: "web", FromUnix: 2, ToUnix: 1}, invalid, "from_unix"),
		unary("GetAttestation: negative", client.GetAttestation, &donav1.AttestationRequest{Service: "web", FromUnix: -1}, invalid, "from_unix"),
		unary("GetAttestation: a time that overflows", client.GetAttestation, &donav1.AttestationRequest{Service: "web", ToUnix: math.MaxInt64}, invalid, "to_unix"),
		unary("GetAttestation: two beginnings", client.GetAttestation, &donav1.AttestationRequest{Service: "web", FromUnix: 1, FromSeq: 1}, invalid, "from_seq"),
		unary("GetAttestation: too many", client.GetAttestation, &donav1.AttestationRequest{Service: "web", MaxEntries: audit.ReportEntries + 1}, invalid, "max_entries"),
		unary("GetAttestation: a long nonce", client.GetAttestation, &donav1.AttestationRequest{Service: "web", Nonce: strings.Repeat("n", 129)}, invalid, "nonce"),
		unary("GetAttestation: a nonce of two lines", client.GetAttestation, &donav1.AttestationRequest{Service: "web", Nonce: "a\nb"}, invalid, "nonce"),
		unary("GetAttestation: after the end", client.GetAttestation, &donav1.AttestationRequest{Service: "web", FromSeq: 1 << 40}, codes.FailedPrecondition, "from_seq"),
	)
	rows = append(rows, deliveryRows()...)
	rows = append(rows, checkerRows()...)
	// A value that its operator does not take, after one that it takes.
	for op, values := range map[donav1.TargetingRule_Operator][]string{
		donav1.TargetingRule_OPERATOR_STARTS_WITH: {"x", ""}, donav1.TargetingRule_OPERATOR_ENDS_WITH: {"x", ""}, donav1.TargetingRule_OPERATOR_CONTAINS: {"x", ""},
		donav1.TargetingRule_OPERATOR_NUM_LT: {"1", "NaN"}, donav1.TargetingRule_OPERATOR_NUM_LE: {"1", "0x1"}, donav1.TargetingRule_OPERATOR_NUM_GT: {"1", "1_0"}, donav1.TargetingRule_OPERATOR_NUM_GE: {"1", ""},
		donav1.TargetingRule_OPERATOR_SEMVER_LT: {"1.2.3", "1.2"}, donav1.TargetingRule_OPERATOR_SEMVER_GE: {"v1.2.3", "01.2.3"},
		donav1.TargetingRule_OPERATOR_CIDR: {"10.0.0.0/8", "10.0.0.0/33"}, donav1.TargetingRule_OPERATOR_MATCHES: {"^a", "(?=a)"},
	} {
		rows = append(rows, unary("SetFlag: "+op.String(), client.SetFlag, targeting(func(r *donav1.TargetingRule) { r.Operator, r.Values = op, values }), invalid, "rule.targeting[0].values[1]"))
	}
	return rows
}

func labels(n int) map[string]string {
	m := map[string]string{}
	for i := range n {
		m[fmt.Sprint("k", i)] = "v"
	}
	return m
}

func make4097() []*donav1.CallOutcome {
	all := make([]*donav1.CallOutcome, 4097)
	for i := range all {
		all[i] = &donav1.CallOutcome{}
	}
	return all
}

func fill(rules []*donav1.TargetingRule) {
	for i := range rules {
		rules[i] = &donav1.TargetingRule{Attribute: "a", Values: []string{"b"}, Variant: "v1"}
	}
}

// TestBadInput: each bad request gets its code, the field by name, and changes
// nothing.
func TestBadInput(t *testing.T) {
	e := newEdge(t)
	e.register(endpoint(nil))
	before := e.written()
	for _, r := range badRows() {
		c, cancel := context.WithTimeout(context.Background(), patience)
		err := r.call(c, e)
		cancel()
		refused(t, r.name, err, r.code, r.field)
		if now := e.written(); now != before {
			t.Errorf("%s: refused, and something was stored", r.name)
			before = now
		}
	}
}
