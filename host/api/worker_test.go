package api_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"

	controlplanev1 "github.com/dodona-project/dodona/proto/controlplane/v1"
	"google.golang.org/grpc/codes"

	"github.com/dodona-project/dodona/host/pool/ownership"
	"github.com/dodona-project/dodona/host/store"
)

// poolDocument is a configuration of the egress plane with one upstream.
const poolDocument = `
cluster: {id: c1}
upstreams:
  - name: dc
    protocol: http
    source: {type: static, proxies: [192.0.2.250:3128]}
    ttl: 1h
routings:
  - {name: all, upstreams: [{name: dc}]}
`

func workerNamed(id string) *controlplanev1.RegisterWorkerRequest {
	return &controlplanev1.RegisterWorkerRequest{ClusterId: "c1", WorkerId: id, InstanceId: "i1", Zone: "z1", SupportedProtocolVersion: 1, MaxConnections: 100}
}

// fleet is an edge with a published configuration and a worker that registered.
type fleet struct {
	*edge
	workers controlplanev1.WorkerControlPlaneClient
	pools   controlplanev1.PoolAdminClient
	session string
}

func newFleet(t *testing.T, options ...option) *fleet {
	t.Helper()
	e := newEdge(t, options...)
	f := &fleet{edge: e, workers: controlplanev1.NewWorkerControlPlaneClient(e.conn), pools: controlplanev1.NewPoolAdminClient(e.conn)}
	_, err := f.pools.PublishConfig(ctx(t), &controlplanev1.PublishConfigRequest{Yaml: poolDocument})
	fatal(t, err)
	resp, err := f.workers.RegisterWorker(ctx(t), workerNamed("w1"))
	fatal(t, err)
	f.session = resp.SessionId
	return f
}

// available imports proxies and makes them available, as checks would.
func (f *fleet) available(n int) (ids []string) {
	f.t.Helper()
	var list strings.Builder
	for i := range n {
		fmt.Fprintf(&list, "192.0.2.%d:%d\n", 1+i%200, 1000+i/200)
	}
	_, err := f.pools.ImportProxies(ctx(f.t), &controlplanev1.ImportProxiesRequest{Upstream: "dc", List: list.String()})
	fatal(f.t, err)
	resp, err := f.pools.ListProxies(ctx(f.t), &controlplanev1.ListProxiesRequest{State: "new", PageSize: 1000})
	fatal(f.t, err)
	fatal(f.t, f.store.Update(context.Background(), store.Soft, func(tx store.Tx) error {
		for _, s := range resp.Proxies {
			if err := f.pool.Find(tx, s.Proxy.ProxyId, ownership.Finding{State: ownership.Available, AtMs: tx.Now().UnixMilli()}); err != nil {
				return err
			}
		}
		return nil
	}))
	for _, s := range resp.Proxies {
		ids = append(ids, s.Proxy.ProxyId)
	}
	return ids
}

// TestWorkerOverTheWire goes through what a worker calls, from its registration to its
// leaving, with the loops of a host running.
func TestWorkerOverTheWire(t *testing.T) {
	f := newFleet(t)
	ids := f.available(3)
	watch, err := f.workers.WatchSnapshots(ctx(t), &controlplanev1.WatchSnapshotsRequest{WorkerId: "w1", SessionId: f.session})
	fatal(t, err)
	var held *controlplanev1.WorkerSnapshot
	next := func() {
		t.Helper()
		u, err := watch.Recv()
		fatal(t, err)
		held = u.GetFull()
		_, err = f.workers.AcknowledgeSnapshot(ctx(t), &controlplanev1.AcknowledgeSnapshotRequest{
			WorkerId: "w1", SessionId: f.session, Version: held.Version, OwnershipEpoch: held.OwnershipEpoch, Checksum: held.Checksum, Accepted: true})
		fatal(t, err)
	}
	sequence := uint64(0)
	report := func(leaving bool) *controlplanev1.ReportRuntimeResponse {
		t.Helper()
		sequence++
		resp, err := f.workers.ReportRuntime(ctx(t), &controlplanev1.ReportRuntimeRequest{WorkerId: "w1", SessionId: f.session, ReportSequence: sequence,
			SnapshotVersion: held.Version, OwnershipEpoch: held.OwnershipEpoch, Draining: leaving})
		fatal(t, err)
		return resp
	}
	next()
	report(false)
	for len(held.Proxies) < 3 {
		next()
	}
	out, err := f.workers.ReportOutcomes(ctx(t))
	fatal(t, err)
	for i := range uint64(3) {
		fatal(t, out.Send(&controlplanev1.OutcomeBatch{WorkerId: "w1", SessionId: f.session, Sequence: i + 1, Outcomes: []*controlplanev1.Outcome{
			{ProxyId: ids[0], Routing: "all", Stage: controlplanev1.Outcome_STAGE_TUNNEL, Success: true}}}))
	}
	if got, err := out.CloseAndRecv(); err != nil || got.AcceptedSequence != 3 {
		t.Fatalf("outcomes: %v, %v", got, err)
	}
	workers, err := f.pools.ListWorkers(ctx(t), &controlplanev1.ListWorkersRequest{})
	fatal(t, err)
	if len(workers.Workers) != 1 || workers.Workers[0].OwnedProxies != 3 || !workers.Workers[0].Connected || workers.Workers[0].AcknowledgedVersion != held.Version {
		t.Fatalf("the workers are %v", workers)
	}
	// It leaves: everything is taken from it, and nothing given back.
	report(true)
	for len(held.Proxies) > 0 {
		next()
	}
	released := report(true).ReleasedProxyIds
	slices.Sort(released)
	slices.Sort(ids)
	if !slices.Equal(released, ids) {
		t.Fatalf("released are %v, want %v", released, ids)
	}
	got, err := f.pools.Extract(ctx(t), &controlplanev1.ExtractRequest{IdempotencyKey: "k", Routing: "all", Count: 3})
	fatal(t, err)
	if len(got.Proxies) != 3 {
		t.Fatalf("extracted are %v", got)
	}
	available, err := f.pools.GetAvailability(ctx(t), &controlplanev1.GetAvailabilityRequest{})
	fatal(t, err)
	if u := available.Upstreams[0]; u.ByState["EXTRACTED"] != 3 || u.UnownedAvailable != 0 || !u.Enabled {
		t.Errorf("available is %v", available)
	}
}

// TestSeventeenBatches: a call carries sixteen, of one worker and one session.
func TestSeventeenBatches(t *testing.T) {
	f := newFleet(t)
	send := func(n int, edit func(i int, b *controlplanev1.OutcomeBatch)) (*controlplanev1.ReportOutcomesResponse, error) {
		s, err := f.workers.ReportOutcomes(ctx(t))
		fatal(t, err)
		for i := range n {
			b := &controlplanev1.OutcomeBatch{WorkerId: "w1", SessionId: f.session, Sequence: uint64(i + 1), Outcomes: []*controlplanev1.Outcome{{Routing: "all", Stage: controlplanev1.Outcome_STAGE_DIAL}}}
			edit(i, b)
			if err := s.Send(b); err != nil {
				break
			}
		}
		return s.CloseAndRecv()
	}
	if got, err := send(16, func(int, *controlplanev1.OutcomeBatch) {}); err != nil || got.AcceptedSequence != 16 {
		t.Errorf("16 batches: %v, %v", got, err)
	}
	_, err := send(17, func(_ int, b *controlplanev1.OutcomeBatch) { b.Sequence += 16 })
	refused(t, "17 batches", err, codes.ResourceExhausted, "")
	_, err = send(2, func(i int, b *controlplanev1.OutcomeBatch) { b.Sequence += 100; b.WorkerId = fmt.Sprint("w", i+1) })
	refused(t, "another worker", err, codes.InvalidArgument, "worker_id")
	_, err = send(2, func(i int, b *controlplanev1.OutcomeBatch) {
		b.Sequence += 200
		if i == 1 {
			b.SessionId = "other"
		}
	})
	refused(t, "another session", err, codes.InvalidArgument, "session_id")
}
