package api

import (
	"context"
	"errors"
	"fmt"
	"io"

	controlplanev1 "github.com/dodona-project/dodona/proto/controlplane/v1"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/dodona-project/dodona/host/identity"
	"github.com/dodona-project/dodona/host/limits"
	"github.com/dodona-project/dodona/host/refusal"
)

// Fleet is what workers of the egress plane talk to; a *pool.Pool is one.
type Fleet interface {
	Register(ctx context.Context, req *controlplanev1.RegisterWorkerRequest) (*controlplanev1.RegisterWorkerResponse, error)
	Watch(ctx context.Context, req *controlplanev1.WatchSnapshotsRequest, send func(*controlplanev1.SnapshotUpdate) error) error
	Acknowledge(ctx context.Context, req *controlplanev1.AcknowledgeSnapshotRequest) error
	ReportRuntime(ctx context.Context, actor string, req *controlplanev1.ReportRuntimeRequest) (*controlplanev1.ReportRuntimeResponse, error)
	TakeOutcomes(ctx context.Context, batch *controlplanev1.OutcomeBatch) (accepted uint64, err error)
	AcknowledgeDrain(ctx context.Context, actor string, req *controlplanev1.AcknowledgeDrainRequest) error
	// MaxCounters and MaxOutcomes bound a report and a batch.
	MaxCounters() int
	MaxOutcomes() int
}

// WorkerControlPlane serves controlplane.v1.WorkerControlPlane. Its fields are set
// once, before the server starts.
type WorkerControlPlane struct {
	controlplanev1.UnimplementedWorkerControlPlaneServer

	Fleet    Fleet
	Stopping <-chan struct{} // closed when streams have to move to another host
}

// RegisterWorker begins a session.
func (s *WorkerControlPlane) RegisterWorker(ctx context.Context, req *controlplanev1.RegisterWorkerRequest) (*controlplanev1.RegisterWorkerResponse, error) {
	if err := refusal.Check("cluster_id", limits.Name(req.ClusterId)); err != nil {
		return nil, err
	}
	if err := refusal.Check("worker_id", limits.Name(req.WorkerId)); err != nil {
		return nil, err
	}
	if err := refusal.Check("instance_id", limits.ID(req.InstanceId)); err != nil {
		return nil, err
	}
	if err := refusal.Check("zone", limits.OptionalName(req.Zone)); err != nil {
		return nil, err
	}
	if err := refusal.Check("build", limits.Text(req.Build, limits.NameLen)); err != nil {
		return nil, err
	}
	if err := ownWorker(ctx, req.WorkerId); err != nil {
		return nil, err
	}
	return s.Fleet.Register(ctx, req)
}

// WatchSnapshots streams a worker's snapshots.
func (s *WorkerControlPlane) WatchSnapshots(req *controlplanev1.WatchSnapshotsRequest, stream controlplanev1.WorkerControlPlane_WatchSnapshotsServer) error {
	if err := checkSession(req.WorkerId, req.SessionId); err != nil {
		return err
	}
	if err := checkChecksum("last_checksum", req.LastChecksum, true); err != nil {
		return err
	}
	if err := checkCount("last_version", req.LastVersion); err != nil {
		return err
	}
	if err := checkCount("last_ownership_epoch", req.LastOwnershipEpoch); err != nil {
		return err
	}
	if err := ownWorker(stream.Context(), req.WorkerId); err != nil {
		return err
	}
	ctx, end := context.WithCancelCause(stream.Context())
	defer end(nil)
	go func() {
		select {
		case <-s.Stopping:
			end(errStopping)
		case <-ctx.Done():
		}
	}()
	err := s.Fleet.Watch(ctx, req, stream.Send)
	if cause := context.Cause(ctx); errors.Is(cause, errStopping) {
		return cause
	}
	return err
}

// AcknowledgeSnapshot takes a worker's word on a snapshot.
func (s *WorkerControlPlane) AcknowledgeSnapshot(ctx context.Context, req *controlplanev1.AcknowledgeSnapshotRequest) (*controlplanev1.AcknowledgeSnapshotResponse, error) {
	if err := checkSession(req.WorkerId, req.SessionId); err != nil {
		return nil, err
	}
	if req.Version == 0 {
		return nil, refusal.Field("version", "is 0: allowed are those of snapshots, from 1")
	}
	if err := checkChecksum("checksum", req.Checksum, false); err != nil {
		return nil, err
	}
	if err := refusal.Check("reason", limits.Text(req.Reason, limits.ReasonLen)); err != nil {
		return nil, err
	}
	if err := ownWorker(ctx, req.WorkerId); err != nil {
		return nil, err
	}
	return &controlplanev1.AcknowledgeSnapshotResponse{}, s.Fleet.Acknowledge(ctx, req)
}

// ReportRuntime takes what a worker is doing.
func (s *WorkerControlPlane) ReportRuntime(ctx context.Context, req *controlplanev1.ReportRuntimeRequest) (*controlplanev1.ReportRuntimeResponse, error) {
	if err := checkSession(req.WorkerId, req.SessionId); err != nil {
		return nil, err
	}
	if req.ReportSequence == 0 {
		return nil, refusal.Field("report_sequence", "is 0: the first of a session is 1")
	}
	if err := checkMost("counters", len(req.Counters), s.Fleet.MaxCounters(), limits.RuntimeCounters); err != nil {
		return nil, err
	}
	for i, c := range req.Counters {
		if err := limits.ID(c.GetProxyId()); err != nil {
			return nil, refusal.Check(fmt.Sprintf("counters[%d].proxy_id", i), err)
		}
	}
	if i, twice := repeated(req.Counters); twice {
		return nil, refusal.Field(fmt.Sprintf("counters[%d].proxy_id", i), "is %s a second time", limits.Quote(req.Counters[i].ProxyId))
	}
	if err := checkTime("observed_at", req.ObservedAt); err != nil {
		return nil, err
	}
	if err := ownWorker(ctx, req.WorkerId); err != nil {
		return nil, err
	}
	return s.Fleet.ReportRuntime(ctx, actor(ctx), req)
}

// repeated finds the first counter of a proxy that has one before it. Those of most
// workers are sorted, and need nothing to compare them by.
func repeated(counters []*controlplanev1.RuntimeCounter) (i int, twice bool) {
	var seen map[string]struct{}
	for i, c := range counters {
		if seen == nil {
			if i == 0 || counters[i-1].ProxyId < c.ProxyId {
				continue
			}
			seen = make(map[string]struct{}, len(counters))
			for _, before := range counters[:i] {
				seen[before.ProxyId] = struct{}{}
			}
		}
		if _, twice := seen[c.ProxyId]; twice {
			return i, true
		}
		seen[c.ProxyId] = struct{}{}
	}
	return 0, false
}

// ReportOutcomes takes a few batches of outcomes of one worker's session.
func (s *WorkerControlPlane) ReportOutcomes(stream controlplanev1.WorkerControlPlane_ReportOutcomesServer) error {
	resp := &controlplanev1.ReportOutcomesResponse{}
	var first *controlplanev1.OutcomeBatch
	for n := 0; ; n++ {
		b, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return stream.SendAndClose(resp)
		}
		if err != nil {
			return err
		}
		if n == limits.OutcomeBatches {
			return refusal.New(refusal.Exhausted, "the call has more than %d batches: send the others in another one; accepted is %d", limits.OutcomeBatches, resp.AcceptedSequence)
		}
		if first == nil {
			first = b
		}
		if err := s.checkBatch(first, b); err != nil {
			return err
		}
		if err := ownWorker(stream.Context(), b.WorkerId); err != nil {
			return err
		}
		accepted, err := s.Fleet.TakeOutcomes(stream.Context(), b)
		if err != nil {
			return err
		}
		resp.AcceptedSequence = accepted
	}
}

func (s *WorkerControlPlane) checkBatch(first, b *controlplanev1.OutcomeBatch) error {
	if err := checkSession(b.WorkerId, b.SessionId); err != nil {
		return err
	}
	switch {
	case b.WorkerId != first.WorkerId:
		return refusal.Field("worker_id", "is another than in the first batch of this call")
	case b.SessionId != first.SessionId:
		return refusal.Field("session_id", "is another than in the first batch of this call")
	case b.Sequence == 0:
		return refusal.Field("sequence", "is 0: the first of a session is 1")
	case len(b.Outcomes) == 0:
		return refusal.Field("outcomes", "is empty: allowed are 1 to %d items", s.Fleet.MaxOutcomes())
	}
	if err := checkMost("outcomes", len(b.Outcomes), s.Fleet.MaxOutcomes(), limits.OutcomesPerBatch); err != nil {
		return err
	}
	for i, o := range b.Outcomes {
		at := func(field string) string { return fmt.Sprintf("outcomes[%d].%s", i, field) }
		if err := limits.ID(o.GetProxyId()); err != nil && o.GetProxyId() != "" { // none: sent directly
			return refusal.Check(at("proxy_id"), err)
		}
		if err := limits.Name(o.GetRouting()); err != nil {
			return refusal.Check(at("routing"), err)
		}
		if _, known := controlplanev1.Outcome_Stage_name[int32(o.Stage)]; !known || o.Stage == controlplanev1.Outcome_STAGE_UNSPECIFIED {
			return refusal.Field(at("stage"), "is %d: allowed are DIAL, PROXY_HANDSHAKE, RESPONSE_HEADERS and TUNNEL", o.Stage)
		}
		if _, known := controlplanev1.ErrorClass_name[int32(o.ErrorClass)]; !known {
			return refusal.Field(at("error_class"), "is %d: it is not known to this host", o.ErrorClass)
		}
		if o.Status != 0 && (o.Status < 100 || o.Status > 599) {
			return refusal.Field(at("status"), "is %d: allowed are 100 to 599, and 0 for none", o.Status)
		}
		if err := limits.Text(o.TargetHost, limits.HostLen); err != nil {
			return refusal.Check(at("target_host"), err)
		}
	}
	return nil
}

// AcknowledgeDrain completes a drain by the worker's explicit word.
func (s *WorkerControlPlane) AcknowledgeDrain(ctx context.Context, req *controlplanev1.AcknowledgeDrainRequest) (*controlplanev1.AcknowledgeDrainResponse, error) {
	if err := checkSession(req.WorkerId, req.SessionId); err != nil {
		return nil, err
	}
	if err := refusal.Check("proxy_id", limits.ID(req.ProxyId)); err != nil {
		return nil, err
	}
	if err := ownWorker(ctx, req.WorkerId); err != nil {
		return nil, err
	}
	return &controlplanev1.AcknowledgeDrainResponse{}, s.Fleet.AcknowledgeDrain(ctx, actor(ctx), req)
}

func ownWorker(ctx context.Context, id string) error {
	return who(ctx).is(identity.Worker, "worker_id", id)
}

func checkSession(worker, session string) error {
	if err := refusal.Check("worker_id", limits.Name(worker)); err != nil {
		return err
	}
	return refusal.Check("session_id", limits.ID(session))
}

// checkMost refuses too many items. What a host with a higher bound allowed when the
// session began is no wrong request: the worker has to register again, and then knows
// this host's.
func checkMost(field string, n, most, ever int) error {
	switch {
	case n <= most:
		return nil
	case n <= ever:
		return &refusal.Error{Kind: refusal.Precondition, Field: field, Text: fmt.Sprintf("has %d items: this host takes at most %d; register again", n, most)}
	}
	return refusal.Field(field, "has %d items: allowed are at most %d", n, most)
}

func checkChecksum(field string, sum []byte, optional bool) error {
	switch n := len(sum); {
	case n == 32 || n == 0 && optional:
		return nil
	case optional:
		return refusal.Field(field, "has %d bytes: allowed are 32, or none", n)
	default:
		return refusal.Field(field, "has %d bytes: allowed are 32", n)
	}
}

// mostCounted is more than any version or epoch comes to.
const mostCounted = 1 << 53

func checkCount(field string, n uint64) error {
	if n > mostCounted {
		return refusal.Field(field, "is %d: allowed are 0 to %d", n, uint64(mostCounted))
	}
	return nil
}

func checkTime(field string, t *timestamppb.Timestamp) error {
	if t == nil {
		return nil
	}
	return refusal.Check(field, t.CheckValid())
}
