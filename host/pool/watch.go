package pool

import (
	"bytes"
	"context"
	"math/rand/v2"
	"time"

	controlplanev1 "github.com/dodona-project/dodona/proto/controlplane/v1"
	statev1 "github.com/dodona-project/dodona/proto/state/v1"
	"google.golang.org/protobuf/proto"

	"github.com/dodona-project/dodona/host/pool/ownership"
	"github.com/dodona-project/dodona/host/store"
)

// Watch sends a worker its snapshots until ctx ends, the session does, or another
// stream of the session takes this one's place: the whole one first, another when
// something of it changed, within Coalesce, and again before half of its time is over.
// Each is on record before it is sent. Refusals: Precondition, Aborted.
func (p *Pool) Watch(ctx context.Context, req *controlplanev1.WatchSnapshotsRequest, send func(*controlplanev1.SnapshotUpdate) error) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	// Before the first look, so that no change falls between.
	mine := p.o.Store.Watch(ctx, viewKey(req.WorkerId))
	config, plans, credentials := p.o.Store.Watch(ctx, configKey), p.o.Store.Watch(ctx, planPrefix), p.o.Store.Watch(ctx, credentialPrefix)
	stream, err := p.openStream(ctx, req)
	if err != nil {
		return err
	}
	var last *controlplanev1.WorkerSnapshot
	var refresh time.Time
	for {
		v, err := p.build(ctx, req.WorkerId, req.SessionId, stream)
		if err != nil {
			return err
		}
		if last == nil || v.pending || !bytes.Equal(last.Checksum, v.snapshot.Checksum) || !time.Now().Before(refresh) {
			refresh = time.Now().Add(refreshAfter(v.validity))
			if err := p.issue(ctx, req.WorkerId, req.SessionId, stream, v); err != nil {
				return err
			}
			frame := update(last, v.snapshot, req.AcceptDelta)
			if err := send(frame); err != nil {
				return err
			}
			p.metrics.sent(frame)
			last = v.snapshot
		}
		most := time.Until(refresh)
		if v.lacking { // no notice comes when this host gets them
			most = min(most, lackingAgain)
		}
		if ended, err := p.rest(ctx, most, mine, config, plans, credentials); ended {
			return err
		}
	}
}

// lackingAgain is how soon credentials are looked for again that a host lacks.
const lackingAgain = 500 * time.Millisecond

// refreshAfter is when a snapshot is sent again that has not changed: before half of
// its time, and not all at once.
func refreshAfter(validity time.Duration) time.Duration {
	return time.Duration(float64(validity) * (0.4 + 0.08*rand.Float64()))
}

// rest waits for a change, or for a time; what changes right after it is waited for,
// too. ended says that there will be none.
func (p *Pool) rest(ctx context.Context, most time.Duration, notices ...<-chan struct{}) (ended bool, err error) {
	timer := time.NewTimer(max(most, time.Millisecond))
	defer timer.Stop()
	open := true
	select {
	case <-ctx.Done():
		return true, ctx.Err()
	case <-timer.C:
		return false, nil
	case _, open = <-notices[0]:
	case _, open = <-notices[1]:
	case _, open = <-notices[2]:
	case _, open = <-notices[3]:
	}
	if !open {
		if ctx.Err() != nil {
			return true, ctx.Err()
		}
		return true, store.ErrClosed
	}
	more := time.NewTimer(p.o.Coalesce)
	defer more.Stop()
	select {
	case <-ctx.Done():
		return true, ctx.Err()
	case <-more.C:
	}
	for _, n := range notices {
		select {
		case <-n:
		default:
		}
	}
	return false, nil
}

// openStream makes a new stream the one that may issue to a worker's session. Versions
// go on from the highest that was issued, or that the worker says it has.
func (p *Pool) openStream(ctx context.Context, req *controlplanev1.WatchSnapshotsRequest) (stream string, err error) {
	stream = drawn()
	return stream, p.o.Store.Update(ctx, store.Soft, func(tx store.Tx) error {
		c, _, err := p.current(tx, req.WorkerId, req.SessionId)
		if err != nil {
			return err
		}
		if err := raiseEpoch(tx, req.LastOwnershipEpoch); err != nil {
			return err
		}
		c.sent.StreamId = stream
		c.sent.Version = max(c.sent.Version, req.LastVersion)
		if err := store.Save(tx, issuedKey(c.id), c.sent); err != nil {
			return err
		}
		return touch(tx, c.id) // an older stream learns that it is one
	})
}

// issue puts a snapshot on record, gives it its version, and binds the drains that it
// answers.
func (p *Pool) issue(ctx context.Context, worker, session, stream string, v *view) error {
	has := make(map[string]bool, len(v.snapshot.Proxies))
	for _, x := range v.snapshot.Proxies {
		has[x.ProxyId] = true
	}
	return p.o.Store.Update(ctx, store.Soft, func(tx store.Tx) error {
		c, _, err := p.current(tx, worker, session)
		if err != nil {
			return err
		}
		ref := &statev1.SnapshotReference{OwnershipEpoch: v.snapshot.OwnershipEpoch, Checksum: v.snapshot.Checksum, ValidMs: v.validMs}
		if err := ownership.Issue(c.sent, session, stream, ref, tx.Now().UnixMilli()); err != nil {
			return err
		}
		v.snapshot.Version = ref.Version
		if err := store.Save(tx, issuedKey(worker), c.sent); err != nil {
			return err
		}
		if ownership.Bind(c.drains, session, proto.CloneOf(ref), func(id string) bool { return has[id] }) {
			return c.saveDrains(tx)
		}
		return nil
	})
}

// raiseEpoch brings the ownership epoch above what a worker has seen: more than there
// is was given out before the store was restored, and no worker takes a lower one.
func raiseEpoch(tx store.Tx, seen uint64) error {
	have, err := readEpoch(tx)
	if err != nil || seen <= have {
		return err
	}
	return store.Save(tx, epochKey, &statev1.PoolEpoch{OwnershipEpoch: seen + 1})
}
