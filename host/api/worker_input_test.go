package api_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"

	controlplanev1 "github.com/dodona-project/dodona/proto/controlplane/v1"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/structpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/dodona-project/dodona/host/limits"
)

// fleetRow is a request of a worker or an operator of the egress plane that is refused.
type fleetRow struct {
	name  string // begins with the call's
	call  func(*fleet) error
	code  codes.Code
	field string
}

// rowsOf makes rows of one call: a good request, and what each row changes of it.
func rowsOf[Q, R any](rows *[]fleetRow, name string, good func(*fleet) *Q, call func(*fleet, context.Context, *Q, ...grpc.CallOption) (R, error)) func(string, func(*Q), codes.Code, string) {
	return func(what string, change func(*Q), code codes.Code, field string) {
		*rows = append(*rows, fleetRow{name + ": " + what, func(f *fleet) error {
			req := good(f)
			change(req)
			_, err := call(f, ctx(f.t), req)
			return err
		}, code, field})
	}
}

// fleetRows is each bad request of workers and of operators.
func fleetRows() []fleetRow { return append(workerRows(), poolRows()...) }

func workerRows() (rows []fleetRow) {
	const invalid, state = codes.InvalidArgument, codes.FailedPrecondition
	type (
		registration   = controlplanev1.RegisterWorkerRequest
		watch          = controlplanev1.WatchSnapshotsRequest
		acknowledgment = controlplanev1.AcknowledgeSnapshotRequest
		runtimeReport  = controlplanev1.ReportRuntimeRequest
		batch          = controlplanev1.OutcomeBatch
		drained        = controlplanev1.AcknowledgeDrainRequest
	)
	long := strings.Repeat("x", 129)
	register := rowsOf(&rows, "RegisterWorker", func(*fleet) *registration { return workerNamed("w9") },
		func(f *fleet, c context.Context, q *registration, _ ...grpc.CallOption) (*controlplanev1.RegisterWorkerResponse, error) {
			return f.workers.RegisterWorker(c, q)
		})
	snapshots := rowsOf(&rows, "WatchSnapshots", func(f *fleet) *watch { return &watch{WorkerId: "w1", SessionId: f.session} },
		func(f *fleet, c context.Context, q *watch, _ ...grpc.CallOption) (*controlplanev1.SnapshotUpdate, error) {
			s, err := f.workers.WatchSnapshots(c, q)
			if err != nil {
				return nil, err
			}
			return s.Recv()
		})
	acknowledge := rowsOf(&rows, "AcknowledgeSnapshot", func(f *fleet) *acknowledgment {
		return &acknowledgment{WorkerId: "w1", SessionId: f.session, Version: 1, Checksum: make([]byte, 32), Accepted: true}
	}, func(f *fleet, c context.Context, q *acknowledgment, _ ...grpc.CallOption) (*controlplanev1.AcknowledgeSnapshotResponse, error) {
		return f.workers.AcknowledgeSnapshot(c, q)
	})
	report := rowsOf(&rows, "ReportRuntime", func(f *fleet) *runtimeReport {
		return &runtimeReport{WorkerId: "w1", SessionId: f.session, ReportSequence: 1}
	},
		func(f *fleet, c context.Context, q *runtimeReport, _ ...grpc.CallOption) (*controlplanev1.ReportRuntimeResponse, error) {
			return f.workers.ReportRuntime(c, q)
		})
	outcomes := rowsOf(&rows, "ReportOutcomes", func(f *fleet) *batch {
		return &batch{WorkerId: "w1", SessionId: f.session, Sequence: 1, Outcomes: []*controlplanev1.Outcome{{Routing: "all", Stage: controlplanev1.Outcome_STAGE_DIAL}}}
	}, func(f *fleet, c context.Context, q *batch, _ ...grpc.CallOption) (*controlplanev1.ReportOutcomesResponse, error) {
		s, err := f.workers.ReportOutcomes(c)
		if err != nil {
			return nil, err
		}
		_ = s.Send(q) // what it was refused for, CloseAndRecv says
		return s.CloseAndRecv()
	})
	drain := rowsOf(&rows, "AcknowledgeDrain", func(f *fleet) *drained {
		return &drained{WorkerId: "w1", SessionId: f.session, ProxyId: "p", AssignmentEpoch: 1, SnapshotVersion: 1}
	}, func(f *fleet, c context.Context, q *drained, _ ...grpc.CallOption) (*controlplanev1.AcknowledgeDrainResponse, error) {
		return f.workers.AcknowledgeDrain(c, q)
	})

	register("no worker", func(r *registration) { r.WorkerId = "" }, invalid, "worker_id")
	register("a long worker", func(r *registration) { r.WorkerId = long }, invalid, "worker_id")
	register("a worker with a colon", func(r *registration) { r.WorkerId = "a:b" }, invalid, "worker_id")
	register("no instance", func(r *registration) { r.InstanceId = "" }, invalid, "instance_id")
	register("a bad zone", func(r *registration) { r.Zone = "a b" }, invalid, "zone")
	register("a long build", func(r *registration) { r.Build = long }, invalid, "build")
	register("no cluster", func(r *registration) { r.ClusterId = "" }, invalid, "cluster_id")
	register("another cluster", func(r *registration) { r.ClusterId = "c2" }, state, "cluster_id")
	register("another protocol", func(r *registration) { r.SupportedProtocolVersion = 2 }, state, "supported_protocol_version")
	report("without a sequence", func(r *runtimeReport) { r.ReportSequence = 0 }, invalid, "report_sequence")
	report("of no session", func(r *runtimeReport) { r.SessionId = "" }, invalid, "session_id")
	report("of another session", func(r *runtimeReport) { r.SessionId = "0" }, state, "session_id")
	report("before an acknowledgement", func(*runtimeReport) {}, state, "")
	report("a counter twice", func(r *runtimeReport) {
		r.Counters = []*controlplanev1.RuntimeCounter{{ProxyId: "a"}, {ProxyId: "a"}}
	}, invalid, "counters[1].proxy_id")
	report("a counter twice, and not in order", func(r *runtimeReport) {
		r.Counters = []*controlplanev1.RuntimeCounter{{ProxyId: "b"}, {ProxyId: "c"}, {ProxyId: "a"}, {ProxyId: "b"}}
	}, invalid, "counters[3].proxy_id")
	report("too many counters", func(r *runtimeReport) {
		r.Counters = make([]*controlplanev1.RuntimeCounter, limits.RuntimeCounters+1)
		for i := range r.Counters {
			r.Counters[i] = &controlplanev1.RuntimeCounter{ProxyId: fmt.Sprint(i)}
		}
	}, invalid, "counters")
	outcomes("no stage", func(b *batch) { b.Outcomes[0].Stage = 0 }, invalid, "outcomes[0].stage")
	outcomes("an unknown stage", func(b *batch) { b.Outcomes[0].Stage = 99 }, invalid, "outcomes[0].stage")
	outcomes("an unknown error class", func(b *batch) { b.Outcomes[0].ErrorClass = -1 }, invalid, "outcomes[0].error_class")
	outcomes("an unknown status", func(b *batch) { b.Outcomes[0].Status = 600 }, invalid, "outcomes[0].status")
	outcomes("no outcomes", func(b *batch) { b.Outcomes = nil }, invalid, "outcomes")
	outcomes("batch 0", func(b *batch) { b.Sequence = 0 }, invalid, "sequence")
	outcomes("of another session", func(b *batch) { b.SessionId = "0" }, state, "session_id")
	outcomes("513 outcomes", func(b *batch) { b.Outcomes = slices.Repeat(b.Outcomes, limits.OutcomesPerBatch+1) }, invalid, "outcomes")
	outcomes("a bad routing", func(b *batch) { b.Outcomes[0].Routing = "" }, invalid, "outcomes[0].routing")
	outcomes("a bad proxy", func(b *batch) { b.Outcomes[0].ProxyId = long }, invalid, "outcomes[0].proxy_id")
	outcomes("a long target", func(b *batch) { b.Outcomes[0].TargetHost = strings.Repeat("h", limits.HostLen+1) }, invalid, "outcomes[0].target_host")
	report("no time", func(r *runtimeReport) { r.ObservedAt = &timestamppb.Timestamp{Nanos: -1} }, invalid, "observed_at")
	report("a counter of nothing", func(r *runtimeReport) { r.Counters = []*controlplanev1.RuntimeCounter{{}} }, invalid, "counters[0].proxy_id")
	snapshots("a bad worker", func(r *watch) { r.WorkerId = "a b" }, invalid, "worker_id")
	snapshots("no session", func(r *watch) { r.SessionId = "" }, invalid, "session_id")
	snapshots("another session", func(r *watch) { r.SessionId = "0" }, state, "session_id")
	snapshots("half a checksum", func(r *watch) { r.LastChecksum = make([]byte, 16) }, invalid, "last_checksum")
	snapshots("a version over all", func(r *watch) { r.LastVersion = 1<<53 + 1 }, invalid, "last_version")
	snapshots("an epoch over all", func(r *watch) { r.LastOwnershipEpoch = 1<<53 + 1 }, invalid, "last_ownership_epoch")
	acknowledge("no session", func(r *acknowledgment) { r.SessionId = "" }, invalid, "session_id")
	acknowledge("another session", func(r *acknowledgment) { r.SessionId = "0" }, state, "session_id")
	acknowledge("version 0", func(r *acknowledgment) { r.Version = 0 }, invalid, "version")
	acknowledge("no checksum", func(r *acknowledgment) { r.Checksum = nil }, invalid, "checksum")
	acknowledge("a long reason", func(r *acknowledgment) { r.Reason = strings.Repeat("x", limits.ReasonLen+1) }, invalid, "reason")
	acknowledge("what it was not sent", func(*acknowledgment) {}, state, "")
	drain("no session", func(r *drained) { r.SessionId = "" }, invalid, "session_id")
	drain("another session", func(r *drained) { r.SessionId = "0" }, state, "session_id")
	drain("no proxy", func(r *drained) { r.ProxyId = "" }, invalid, "proxy_id")
	drain("no such drain", func(*drained) {}, codes.NotFound, "")
	return rows
}

func poolRows() (rows []fleetRow) {
	const invalid = codes.InvalidArgument
	type (
		publication = controlplanev1.PublishConfigRequest
		upstream    = controlplanev1.SetUpstreamEnabledRequest
		routing     = controlplanev1.SetRoutingRequest
		list        = controlplanev1.ImportProxiesRequest
		page        = controlplanev1.ListProxiesRequest
		drain       = controlplanev1.BeginDrainRequest
		extraction  = controlplanev1.ExtractRequest
	)
	long := strings.Repeat("x", 129)
	publish := rowsOf(&rows, "PublishConfig", func(*fleet) *publication { return &publication{Yaml: poolDocument} },
		func(f *fleet, c context.Context, q *publication, _ ...grpc.CallOption) (*controlplanev1.PublishConfigResponse, error) {
			return f.pools.PublishConfig(c, q)
		})
	enable := rowsOf(&rows, "SetUpstreamEnabled", func(*fleet) *upstream { return &upstream{Upstream: "dc"} },
		func(f *fleet, c context.Context, q *upstream, _ ...grpc.CallOption) (*controlplanev1.PoolRevision, error) {
			return f.pools.SetUpstreamEnabled(c, q)
		})
	route := rowsOf(&rows, "SetRouting", func(*fleet) *routing { return &routing{Routing: "all", Enabled: true} },
		func(f *fleet, c context.Context, q *routing, _ ...grpc.CallOption) (*controlplanev1.PoolRevision, error) {
			return f.pools.SetRouting(c, q)
		})
	imported := rowsOf(&rows, "ImportProxies", func(*fleet) *list { return &list{Upstream: "dc", List: "192.0.2.1:80"} },
		func(f *fleet, c context.Context, q *list, _ ...grpc.CallOption) (*controlplanev1.ImportProxiesResponse, error) {
			return f.pools.ImportProxies(c, q)
		})
	listed := rowsOf(&rows, "ListProxies", func(*fleet) *page { return &page{} },
		func(f *fleet, c context.Context, q *page, _ ...grpc.CallOption) (*controlplanev1.ListProxiesResponse, error) {
			return f.pools.ListProxies(c, q)
		})
	begin := rowsOf(&rows, "BeginDrain", func(*fleet) *drain { return &drain{ProxyId: "p"} },
		func(f *fleet, c context.Context, q *drain, _ ...grpc.CallOption) (*controlplanev1.DrainTicket, error) {
			return f.pools.BeginDrain(c, q)
		})
	extract := rowsOf(&rows, "Extract", func(*fleet) *extraction { return &extraction{IdempotencyKey: "k", Upstream: "dc", Count: 1} },
		func(f *fleet, c context.Context, q *extraction, _ ...grpc.CallOption) (*controlplanev1.ExtractResponse, error) {
			return f.pools.Extract(c, q)
		})

	extract("no key", func(r *extraction) { r.IdempotencyKey = "" }, invalid, "idempotency_key")
	extract("a long key", func(r *extraction) { r.IdempotencyKey = long }, invalid, "idempotency_key")
	extract("a key that is not ASCII", func(r *extraction) { r.IdempotencyKey = "ü" }, invalid, "idempotency_key")
	extract("upstream and routing", func(r *extraction) { r.Routing = "all" }, invalid, "upstream")
	extract("neither", func(r *extraction) { r.Upstream = "" }, invalid, "upstream")
	extract("none", func(r *extraction) { r.Count = 0 }, invalid, "count")
	extract("101", func(r *extraction) { r.Count = 101 }, invalid, "count")
	extract("an unknown protocol", func(r *extraction) { r.Protocol = 9 }, invalid, "protocol")
	extract("a negative rest", func(r *extraction) { r.MinRemaining = durationpb.New(-1) }, invalid, "min_remaining")
	extract("no such upstream", func(r *extraction) { r.Upstream = "nope" }, codes.NotFound, "")
	extract("33 labels", func(r *extraction) { r.Labels = labels(33) }, invalid, "labels")
	extract("no such routing", func(r *extraction) { r.Upstream, r.Routing = "", "nope" }, codes.NotFound, "")
	publish("nothing", func(r *publication) { r.Yaml = "" }, invalid, "yaml")
	publish("too long", func(r *publication) { r.Yaml += strings.Repeat("#", limits.PoolConfigLen) }, invalid, "yaml")
	publish("what does not hold", func(r *publication) { r.Yaml += "nope: 1\n" }, invalid, "yaml")
	publish("another cluster", func(r *publication) { r.Yaml = strings.Replace(r.Yaml, "c1", "c2", 1) }, codes.FailedPrecondition, "yaml")
	publish("overtaken", func(r *publication) { r.ExpectedRevision = 99 }, codes.FailedPrecondition, "expected_revision")
	publish("overtaken, and dry", func(r *publication) { r.ExpectedRevision, r.DryRun = 99, true }, codes.FailedPrecondition, "expected_revision")
	enable("a bad name", func(r *upstream) { r.Upstream = long }, invalid, "upstream")
	enable("no such upstream", func(r *upstream) { r.Upstream = "nope" }, codes.NotFound, "")
	route("a bad name", func(r *routing) { r.Routing = "" }, invalid, "routing")
	route("no such routing", func(r *routing) { r.Routing = "nope" }, codes.NotFound, "")
	route("no such upstream", func(r *routing) { r.Upstreams = []*controlplanev1.UpstreamRef{{Name: "nope", Weight: 1}} }, invalid, "upstreams[0].name")
	route("no weight", func(r *routing) { r.Upstreams = []*controlplanev1.UpstreamRef{{Name: "dc"}} }, invalid, "upstreams[0].weight")
	route("a priority", func(r *routing) { r.Upstreams = []*controlplanev1.UpstreamRef{{Name: "dc", Weight: 1, Priority: 1001}} }, invalid, "upstreams[0].priority")
	route("an upstream twice", func(r *routing) {
		r.Upstreams = []*controlplanev1.UpstreamRef{{Name: "dc", Weight: 1}, {Name: "dc", Weight: 1}}
	}, invalid, "upstreams[1].name")
	route("101 upstreams", func(r *routing) { r.Upstreams = make([]*controlplanev1.UpstreamRef, 101) }, invalid, "upstreams")
	route("a config of no strategy", func(r *routing) { r.StrategyConfig = &structpb.Struct{} }, invalid, "strategy_config")
	imported("a bad name", func(r *list) { r.Upstream = "" }, invalid, "upstream")
	imported("nothing", func(r *list) { r.List = "" }, invalid, "list")
	imported("too long", func(r *list) { r.List = strings.Repeat("#", limits.ProxyListLen+1) }, invalid, "list")
	imported("a short time", func(r *list) { r.Ttl = durationpb.New(1) }, invalid, "ttl")
	imported("no such upstream", func(r *list) { r.Upstream = "nope" }, codes.NotFound, "")
	imported("10,001 proxies", func(r *list) {
		var all strings.Builder
		for i := range limits.ProxiesPerUpstream + 1 {
			fmt.Fprintf(&all, "192.0.2.1:%d\n", 1+i)
		}
		r.List = all.String()
	}, codes.ResourceExhausted, "")
	listed("a bad name", func(r *page) { r.Upstream = "a b" }, invalid, "upstream")
	listed("a bad state", func(r *page) { r.State = "fine" }, invalid, "state")
	listed("a large page", func(r *page) { r.PageSize = limits.ProxyPage + 1 }, invalid, "page_size")
	listed("a token", func(r *page) { r.PageToken = "x" }, invalid, "page_token")
	begin("a bad id", func(r *drain) { r.ProxyId = "" }, invalid, "proxy_id")
	begin("a long reason", func(r *drain) { r.Reason = strings.Repeat("x", limits.ReasonLen+1) }, invalid, "reason")
	begin("no such proxy", func(*drain) {}, codes.NotFound, "")
	return rows
}

// TestWorkersBadInput: each request of a worker or operator that does not hold has its
// code and its field by name, and nothing is stored.
func TestWorkersBadInput(t *testing.T) {
	f := newFleet(t)
	before := f.written()
	for _, r := range fleetRows() {
		refused(t, r.name, r.call(f), r.code, r.field)
		if now := f.written(); now != before {
			t.Errorf("%s: refused, and something was stored", r.name)
			before = now
		}
	}
}
