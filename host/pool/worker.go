package pool

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"strings"

	controlplanev1 "github.com/dodona-project/dodona/proto/controlplane/v1"
	statev1 "github.com/dodona-project/dodona/proto/state/v1"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/dodona-project/dodona/host/audit"
	"github.com/dodona-project/dodona/host/limits"
	"github.com/dodona-project/dodona/host/pool/ownership"
	"github.com/dodona-project/dodona/host/refusal"
	"github.com/dodona-project/dodona/host/store"
)

// Protocol is the one version of the workers' protocol.
const Protocol = 1

// drawn is 128 random bits in hex: a session, a stream, an extraction.
func drawn() string {
	var raw [16]byte
	_, _ = rand.Read(raw[:]) // never fails
	return hex.EncodeToString(raw[:])
}

// Register begins a session of a worker and ends the one that it had: its report and
// what it was sent count no more, and its drains wait for a snapshot again. What it
// owns it goes on owning. Refusals: Precondition when the worker is of another cluster
// or protocol, Unavailable before anything is published, Exhausted.
func (p *Pool) Register(ctx context.Context, req *controlplanev1.RegisterWorkerRequest) (*controlplanev1.RegisterWorkerResponse, error) {
	if req.SupportedProtocolVersion != Protocol {
		return nil, refusal.New(refusal.Precondition, "supported_protocol_version is %d, this host speaks %d", req.SupportedProtocolVersion, Protocol)
	}
	session := drawn()
	resp := &controlplanev1.RegisterWorkerResponse{
		SessionId: session, RuntimeInterval: durationpb.New(p.o.RuntimeInterval), ProtocolVersion: Protocol,
		MaxRuntimeCounters: uint32(p.o.MaxCounters), MaxOutcomeBatch: uint32(p.MaxOutcomes()),
	}
	return resp, p.o.Store.Update(ctx, store.Soft, func(tx store.Tx) error {
		c, err := loadCrew(tx, req.WorkerId)
		if err != nil {
			return err
		}
		have, err := p.inForce(tx)
		if err != nil {
			return err
		}
		if id := have.config.Cluster.ID; req.ClusterId != id {
			return refusal.New(refusal.Precondition, "cluster_id is %s, this host serves %s", limits.Brief(req.ClusterId), limits.Brief(id))
		}
		if !c.known {
			all, err := tx.Scan(workersIndex, 0, 0, limits.Workers)
			if err != nil {
				return err
			}
			if len(all) >= limits.Workers {
				return refusal.New(refusal.Exhausted, "there are %d workers: allowed are at most %d; those that are gone are forgotten after a while", len(all), limits.Workers)
			}
			if err := tx.IndexPut(workersIndex, req.WorkerId, 0); err != nil {
				return err
			}
		}
		resp.SafetyMargin = durationpb.New(have.times.SafetyMargin)
		if resp.OwnershipEpoch, err = readEpoch(tx); err != nil {
			return err
		}
		resp.MaxStaleAge, resp.SessionTtl = durationpb.New(have.times.MaxStaleAge), durationpb.New(have.times.SessionTTL)
		if ownership.Unbind(c.drains) {
			if err := c.saveDrains(tx); err != nil {
				return err
			}
		}
		ownership.Begin(c.sent, session)
		if err := store.Save(tx, issuedKey(c.id), c.sent); err != nil {
			return err
		}
		if err := store.Save(tx, workerKey(c.id), &statev1.WorkerState{
			WorkerId: c.id, InstanceId: req.InstanceId, Zone: req.Zone, Build: req.Build, MaxConnections: req.MaxConnections,
			SessionId: session, RegisteredMs: tx.Now().UnixMilli(), ProtocolVersion: req.SupportedProtocolVersion,
			DeadMs: ownership.DeadFor(have.times).Milliseconds(),
		}); err != nil {
			return err
		}
		// Its streams, wherever they are, learn that they are over.
		if err := touch(tx, c.id); err != nil {
			return err
		}
		if err := tx.Delete(runtimeKey(c.id)); err != nil {
			return err
		}
		return tx.Delete(outcomesKey(c.id))
	})
}

// MaxOutcomes is how many outcomes a batch has at most.
func (p *Pool) MaxOutcomes() int { return min(limits.OutcomesPerBatch, p.o.MaxCounters) }

// MaxCounters is how many proxies a worker owns at most, and counters a report has.
func (p *Pool) MaxCounters() int { return p.o.MaxCounters }

// current reads a worker and refuses what does not come from its live session.
func (p *Pool) current(tx store.ReadTx, worker, session string) (*crew, *published, error) {
	c, err := loadCrew(tx, worker)
	if err != nil {
		return nil, nil, err
	}
	have, err := p.inForce(tx)
	if err != nil {
		return nil, nil, err
	}
	return c, have, ownership.Current(have.times, c.worker, c.runtime, session, tx.Now().UnixMilli())
}

// Acknowledge takes a worker's word on a snapshot. Refusals: Precondition.
func (p *Pool) Acknowledge(ctx context.Context, req *controlplanev1.AcknowledgeSnapshotRequest) error {
	first := false
	err := p.o.Store.Update(ctx, store.Soft, func(tx store.Tx) error {
		c, _, err := p.current(tx, req.WorkerId, req.SessionId)
		if err != nil {
			return err
		}
		before := proto.CloneOf(c.sent)
		ref := &statev1.SnapshotReference{Version: req.Version, OwnershipEpoch: req.OwnershipEpoch, Checksum: req.Checksum}
		if err := ownership.Acknowledge(c.sent, req.SessionId, ref, req.Accepted, tx.Now().UnixMilli()); err != nil {
			return err
		}
		first = before.Accepted == nil && c.sent.Accepted != nil
		if proto.Equal(before, c.sent) {
			return nil
		}
		return store.Save(tx, issuedKey(c.id), c.sent)
	})
	if err == nil && !req.Accepted {
		p.log.Warn("a worker refused its snapshot", "worker", req.WorkerId, "version", req.Version, "reason", req.Reason)
	}
	if err == nil && first {
		p.wake()
	}
	return err
}

// errHard ends a soft transaction that finds that it has to be a hard one.
var errHard = errors.New("pool: this has to be durable")

// ReportRuntime takes the place of what a worker reported before, and renews its
// session. Drained proxies that the report shows to be unused are released in the same
// transaction; where they are many, the others in transactions that follow while the
// report is the newest. What fails of those is done at the next report. Refusals: Invalid; Precondition, Aborted, AlreadyExists by the fences.
func (p *Pool) ReportRuntime(ctx context.Context, actor string, req *controlplanev1.ReportRuntimeRequest) (*controlplanev1.ReportRuntimeResponse, error) {
	next := runtimeOf(req)
	resp := &controlplanev1.ReportRuntimeResponse{}
	news := false
	report := func(d store.Durability) error {
		return p.o.Store.Update(ctx, d, func(tx store.Tx) (err error) {
			news, err = p.takeReport(tx, d, actor, req.WorkerId, next, resp)
			return err
		})
	}
	err := report(store.Soft)
	if errors.Is(err, errHard) {
		err = report(store.Hard)
	}
	p.metrics.reported(err)
	if err != nil {
		return resp, err
	}
	for len(resp.ReleasedProxyIds) >= batch {
		more, err := p.releaseMore(ctx, actor, req, resp)
		if err != nil || !more {
			p.report("release more of what a worker does not use", err)
			break
		}
	}
	if news {
		p.wake()
	}
	return resp, nil
}

// releaseMore releases the next of the drained proxies that a report which was taken
// shows to be unused; false when there are none, or a newer report is there.
func (p *Pool) releaseMore(ctx context.Context, actor string, req *controlplanev1.ReportRuntimeRequest, resp *controlplanev1.ReportRuntimeResponse) (more bool, err error) {
	var all, revoke []string
	err = p.o.Store.Update(ctx, store.Hard, func(tx store.Tx) error {
		more = false
		c, _, err := p.current(tx, req.WorkerId, req.SessionId)
		if err != nil || c.runtime.SessionId != req.SessionId || c.runtime.Sequence != req.ReportSequence || ownership.Shut(c.sent) {
			return err
		}
		released, err := p.releaseUnused(tx, store.Hard, actor, c)
		if err != nil || len(released) == 0 {
			return err
		}
		more = true
		c.runtime.ReleasedProxyIds = append(c.runtime.ReleasedProxyIds, released...)
		all, revoke = c.runtime.ReleasedProxyIds, revoked(c)
		return store.Save(tx, runtimeKey(c.id), c.runtime)
	})
	if err == nil && more {
		resp.ReleasedProxyIds, resp.RevokeProxyIds = all, revoke
	}
	return more, err
}

// runtimeOf is a report as it is kept. Its counters, which are nearly all of it, are
// encoded once, for the record and for the digest.
func runtimeOf(req *controlplanev1.ReportRuntimeRequest) *statev1.WorkerRuntime {
	counters := ownership.PackCounters(req.Counters)
	rest, _ := proto.MarshalOptions{Deterministic: true}.Marshal(&controlplanev1.ReportRuntimeRequest{
		SessionId: req.SessionId, ReportSequence: req.ReportSequence, SnapshotVersion: req.SnapshotVersion, OwnershipEpoch: req.OwnershipEpoch,
		ObservedAt: req.ObservedAt, Draining: req.Draining,
	})
	h := sha256.New()
	h.Write(binary.BigEndian.AppendUint32(nil, uint32(len(rest))))
	h.Write(rest)
	h.Write(counters)
	return &statev1.WorkerRuntime{
		SessionId: req.SessionId, Sequence: req.ReportSequence, Digest: h.Sum(nil), SnapshotVersion: req.SnapshotVersion, OwnershipEpoch: req.OwnershipEpoch,
		Counters: counters, Draining: req.Draining,
	}
}

// takeReport is one run of ReportRuntime's transaction; another one may follow with the
// same next. news says that proxies are to
// be shared out again.
func (p *Pool) takeReport(tx store.Tx, d store.Durability, actor, worker string, next *statev1.WorkerRuntime, resp *controlplanev1.ReportRuntimeResponse) (news bool, err error) {
	c, _, err := p.current(tx, worker, next.SessionId)
	if err != nil {
		return false, err
	}
	replay, err := ownership.Report(c.sent, c.runtime, next)
	if err != nil {
		return false, err
	}
	if replay {
		resp.AcceptedSequence, resp.ReleasedProxyIds = next.Sequence, c.runtime.ReleasedProxyIds
		resp.RevokeProxyIds = revoked(c)
		return false, nil
	}
	news = c.runtime.SessionId != next.SessionId || c.runtime.Draining != next.Draining
	next.AcceptedMs, next.ReleasedProxyIds = tx.Now().UnixMilli(), nil
	c.runtime = next
	if next.ReleasedProxyIds, err = p.releaseUnused(tx, d, actor, c); err != nil {
		return false, err
	}
	if err := store.Save(tx, runtimeKey(worker), next); err != nil {
		return false, err
	}
	resp.AcceptedSequence, resp.ReleasedProxyIds, resp.RevokeProxyIds = next.Sequence, next.ReleasedProxyIds, revoked(c)
	return news || len(next.ReleasedProxyIds) > 0, nil
}

// revoked are the proxies that a worker should not pick any more, although the view
// that it acknowledged may have them.
func revoked(c *crew) (ids []string) {
	for _, t := range c.drains.Tickets {
		if !ownership.Passed(t, c.sent) {
			ids = append(ids, t.ProxyId)
		}
	}
	return ids
}

// releaseUnused releases the drained proxies that the worker's view lacks and its
// report shows to be unused.
func (p *Pool) releaseUnused(tx store.Tx, d store.Durability, actor string, c *crew) (released []string, err error) {
	var ready []*statev1.DrainState
	for _, t := range c.drains.Tickets {
		if ownership.Passed(t, c.sent) {
			ready = append(ready, t)
		}
	}
	if len(ready) > 0 {
		ready = slices.DeleteFunc(ready, func(t *statev1.DrainState) bool { return c.counter(t.ProxyId).Uses() > 0 })
		ready = ready[:min(len(ready), batch)]
	}
	if len(ready) == 0 {
		return nil, nil
	}
	if d != store.Hard {
		return nil, errHard
	}
	return p.release(tx, c, ready, ownership.Released, actor)
}

// release ends the ownership of these proxies of a worker and their drains, with an
// audit entry by actor.
func (p *Pool) release(tx store.Tx, c *crew, tickets []*statev1.DrainState, how controlplanev1.DrainTicket_State, actor string) (released []string, err error) {
	keys := make([]string, len(tickets))
	for i, t := range tickets {
		keys[i] = proxyKey(t.ProxyId)
	}
	if _, err := tx.GetMany(keys...); err != nil {
		return nil, err
	}
	var gone []*statev1.DrainState
	for _, t := range slices.Clone(tickets) {
		proxy, err := loadProxy(tx, t.ProxyId)
		if err != nil {
			return nil, err
		}
		ownership.Drop(c.drains, t.ProxyId)
		if proxy == nil {
			continue
		}
		old := proto.CloneOf(proxy)
		if !ownership.Release(proxy, c.id, t, how) {
			continue
		}
		if err := saveProxy(tx, old, proxy); err != nil {
			return nil, err
		}
		gone = append(gone, t)
		released = append(released, t.ProxyId)
	}
	if err := c.saveDrains(tx); err != nil || len(gone) == 0 {
		return released, err
	}
	return released, p.auditDrains(tx, actor, c.id, gone, how)
}

// auditDrains writes one entry for drains of one worker that are in one state.
func (p *Pool) auditDrains(tx store.Tx, actor, worker string, tickets []*statev1.DrainState, state controlplanev1.DrainTicket_State) error {
	var ids, epochs []string
	for _, t := range tickets {
		ids, epochs = append(ids, t.ProxyId), append(epochs, fmt.Sprint(t.AssignmentEpoch))
	}
	return p.o.Audit.Append(tx, audit.PoolChain, audit.Entry{Kind: "pool.drain", Actor: actor, Detail: map[string]string{
		"proxy_id": audit.Value(ids), "worker_id": worker, "assignment_epoch": audit.Value(epochs), "state": strings.TrimPrefix(state.String(), "STATE_"),
	}})
}

// TakeOutcomes admits one batch of outcomes and returns the sequence that is accepted.
// Outcomes are at least once: a new session may bring them again. Refusals:
// Precondition, Aborted, AlreadyExists.
func (p *Pool) TakeOutcomes(ctx context.Context, b *controlplanev1.OutcomeBatch) (accepted uint64, err error) {
	bytes, err := proto.MarshalOptions{Deterministic: true}.Marshal(b)
	if err != nil {
		return 0, err
	}
	digest := sha256.Sum256(bytes)
	err = p.o.Store.Update(ctx, store.Soft, func(tx store.Tx) error {
		if _, err := tx.GetMany(append(crewKeys(b.WorkerId), outcomesKey(b.WorkerId))...); err != nil {
			return err
		}
		if _, _, err := p.current(tx, b.WorkerId, b.SessionId); err != nil {
			return err
		}
		have := new(statev1.WorkerOutcomes)
		if err := loadSoft(tx, outcomesKey(b.WorkerId), have); err != nil {
			return err
		}
		replay, err := ownership.Outcomes(have, b.SessionId, b.Sequence, digest[:])
		if err != nil || replay {
			return err
		}
		if err := store.Save(tx, outcomesKey(b.WorkerId), have); err != nil {
			return err
		}
		return p.hear(tx, b.WorkerId, b.Outcomes)
	})
	p.metrics.reported(err)
	return b.Sequence, err
}

// AcknowledgeDrain completes a drain by the worker's explicit word. The same again is
// answered alike. Refusals: NotFound, Precondition.
func (p *Pool) AcknowledgeDrain(ctx context.Context, actor string, req *controlplanev1.AcknowledgeDrainRequest) error {
	err := p.o.Store.Update(ctx, store.Hard, func(tx store.Tx) error {
		if _, err := tx.GetMany(append(crewKeys(req.WorkerId), proxyKey(req.ProxyId))...); err != nil {
			return err
		}
		c, have, err := p.current(tx, req.WorkerId, req.SessionId)
		if err != nil {
			return err
		}
		t, found := ownership.Ticket(c.drains, req.ProxyId)
		if !found || t.AssignmentEpoch != req.AssignmentEpoch {
			proxy, err := loadProxy(tx, req.ProxyId)
			if err != nil {
				return err
			}
			if proxy != nil && proxy.DrainedWorker == req.WorkerId && proxy.DrainedEpoch == req.AssignmentEpoch {
				return nil // done before
			}
			return refusal.New(refusal.NotFound, "this worker has no drain of that proxy and assignment_epoch")
		}
		switch {
		case ownership.StateOf(t) != ownership.Bound || t.SessionId != req.SessionId:
			return refusal.New(refusal.Precondition, "the drain is bound to no snapshot of this session yet: acknowledge the next one first")
		case !ownership.Passed(t, c.sent):
			return refusal.New(refusal.Precondition, "this session has not acknowledged snapshot %d, which lacks the proxy, or a later one", t.Barrier.Version)
		case req.SnapshotVersion < t.Barrier.Version || req.SnapshotVersion > c.sent.GetAccepted().GetVersion():
			return refusal.New(refusal.Precondition, "snapshot_version is %d: allowed are %d, which lacks the proxy, to %d, acknowledged last", req.SnapshotVersion, t.Barrier.Version, c.sent.Accepted.Version)
		}
		fresh := tx.Now().UnixMilli() < c.runtime.AcceptedMs+have.times.ReportTTL.Milliseconds()
		if n := ownership.InUse(c.runtime, req.ProxyId); fresh && n > 0 {
			return refusal.New(refusal.Precondition, "the newest runtime report counts %d uses of the proxy: report again when they are over", n)
		}
		_, err = p.release(tx, c, []*statev1.DrainState{t}, ownership.Released, actor)
		return err
	})
	if err == nil {
		p.wake()
	}
	return err
}
