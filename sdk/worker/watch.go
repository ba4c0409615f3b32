package worker

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	controlplanev1 "github.com/dodona-project/dodona/proto/controlplane/v1"
	"github.com/dodona-project/dodona/sdk/internal/backoff"
	"github.com/dodona-project/dodona/sdk/internal/hosts"
	"github.com/dodona-project/dodona/sdk/internal/link"
	"github.com/dodona-project/dodona/sdk/worker/digest"
)

// firstFrame bounds how long a host may take to send the first snapshot of a stream.
const firstFrame = 10 * time.Second

const maxReason = 256 // bytes of why a snapshot is refused

// errFull asks for the whole snapshot again, whatever is held.
var errFull = errors.New("a full snapshot is asked for")

// watch has the snapshots sent until the session is over.
func (s *session) watch(ctx context.Context) error {
	w := s.w
	retry := backoff.Backoff{Random: w.config.random}
	full := false
	for avoid := hosts.None; ; {
		h := w.next(avoid)
		err := link.Ready(ctx, h.conn, w.another(h))
		if err == nil {
			err = s.open(ctx, h, full, func() {
				retry.Applied()
				w.note(h, nil)
				full = false
			})
		}
		switch {
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case ending(err):
			return fmt.Errorf("watch on host %s: %w", h.address, err)
		}
		w.note(h, err)
		avoid, full = h.place, full || errors.Is(err, errFull)
		w.config.Log.Info("watch ended", "session", s.id, "host", h.address, "error", err)
		if !sleep(ctx, retry.Next(errors.Is(err, errFull) || w.another(h))) {
			return context.Cause(ctx)
		}
	}
}

// held is the snapshot in use, nil when there is none.
func (w *Worker) held() *content {
	if v := w.view.Load(); v != nil {
		return v.content
	}
	return nil
}

// open runs one stream until it ends, and calls applied for each snapshot that is used.
func (s *session) open(ctx context.Context, h *host, full bool, applied func()) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	s.setStream(h, func(why error) { cancel(why) })
	defer s.setStream(nil, nil)
	late := time.AfterFunc(firstFrame, func() { cancel(errSilent) })
	defer late.Stop()

	request := &controlplanev1.WatchSnapshotsRequest{WorkerId: s.w.config.WorkerID, SessionId: s.id, AcceptDelta: true}
	if c := s.w.held(); c != nil {
		request.LastOwnershipEpoch = c.epoch
		if !full {
			request.LastVersion, request.LastChecksum = c.version, c.checksum[:]
		}
	}
	opened := s.w.now()
	stream, err := s.w.hosts[h.place].api.WatchSnapshots(ctx, request)
	var transit transit
	for first := true; err == nil; first = false {
		var update *controlplanev1.SnapshotUpdate
		if update, err = stream.Recv(); err != nil {
			break
		}
		received := s.w.now()
		if first && received-opened > int64(firstFrame) {
			return errSilent // this process stood still: the timer has not come to it yet
		}
		v, err := s.take(update, received, first, &transit)
		if err != nil {
			return s.refuse(ctx, update, err)
		}
		late.Reset(time.Duration(v.until - s.w.now())) // a host refreshes long before that
		s.w.swap(v)
		applied()
		s.acknowledge(&controlplanev1.AcknowledgeSnapshotRequest{
			Version: v.content.version, OwnershipEpoch: v.content.epoch, Checksum: v.content.checksum[:], Accepted: true,
		})
	}
	if errors.Is(err, io.EOF) {
		return errors.New("the host ended the stream")
	}
	if cause := context.Cause(ctx); cause != nil && !errors.Is(cause, context.Canceled) {
		return cause
	}
	return verdict(err, false)
}

func (s *session) setStream(h *host, end func(error)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.on, s.stream = h, end
}

// doubt ends the stream on a host that lets calls wait, when there is another one: it may
// stand still and keep its streams.
func (s *session) doubt(h *host) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.on == h && s.stream != nil && s.w.another(h) {
		s.stream(errSilent)
	}
}

// take makes the View of what was received at an instant. Nothing has changed when it
// fails.
func (s *session) take(u *controlplanev1.SnapshotUpdate, received int64, first bool, t *transit) (*View, error) {
	w := s.w
	held := w.held()
	var next *content
	var err error
	switch u := u.GetUpdate().(type) {
	case *controlplanev1.SnapshotUpdate_Full:
		next, err = fullContent(u.Full, w.config.ClusterID)
	case *controlplanev1.SnapshotUpdate_Delta:
		next, err = held.apply(u.Delta, w.config.ClusterID)
	default:
		err = errors.New("the frame is neither a full snapshot nor a delta")
	}
	if err != nil {
		return nil, err
	}
	// A snapshot that ended binds nobody: a worker whose hosts lost their data begins anew
	// once nothing of the old one runs any more.
	if held != nil && w.State() != Ended {
		switch {
		case next.epoch < held.epoch:
			return nil, fmt.Errorf("ownership_epoch is %d, lower than %d, which is held", next.epoch, held.epoch)
		case first && next.version <= held.version:
			return nil, fmt.Errorf("version is %d, not above %d, which is held", next.version, held.version)
		case !first && next.version != held.version+1:
			return nil, fmt.Errorf("version is %d: after %d in one stream comes %d", next.version, held.version, held.version+1)
		}
	}
	late := t.late(next, received)
	if late > next.validity/maxLate {
		return nil, fmt.Errorf("%w: by %v", errLate, late)
	}
	return w.compile(next, received-int64(late))
}

// maxLate is the part of its validity by which a snapshot may be late: the one over it.
const maxLate = 4

// errLate drops a snapshot that is too old to go by, and asks for a new one.
var errLate = errors.New("the snapshot was long on its way")

// transit finds out how old a stream's snapshots are when they come. One may have waited on
// a broken line, or in this process while that stood still, and its times do not begin
// anew for that.
//
// The clocks need not agree: what the two say of the first snapshot, or of a quicker one
// after it, is the measure for the others. A host whose clock is set back seems late by as
// much until the stream is opened anew.
type transit struct {
	least time.Duration // between the two clocks, for the quickest
	known bool
}

// late is how much longer a snapshot was on its way than the quickest.
func (t *transit) late(c *content, received int64) time.Duration {
	took := time.Duration(received) - time.Duration(c.generated.UnixNano())
	if !t.known || took < t.least {
		t.least, t.known = took, true
	}
	return took - t.least
}

// refuse tells the host that a snapshot is not used. A delta that does not fit and a snapshot
// that is late are nobody's wrong content, and are only dropped; so is a frame that names
// no snapshot.
func (s *session) refuse(ctx context.Context, u *controlplanev1.SnapshotUpdate, why error) error {
	var f frame = u.GetFull()
	if d := u.GetDelta(); d != nil {
		f = d
	}
	dropped := errors.Is(why, errDelta) || errors.Is(why, errLate)
	if !dropped {
		s.w.refused.Add(1)
		s.w.config.Log.Error("snapshot refused", "session", s.id, "version", f.GetVersion(), "error", why)
	}
	if !dropped && f.GetVersion() > 0 && len(f.GetChecksum()) == digest.Size {
		reason := why.Error()
		if len(reason) > maxReason {
			reason = reason[:maxReason]
		}
		sent := s.acknowledge(&controlplanev1.AcknowledgeSnapshotRequest{
			Version: f.GetVersion(), OwnershipEpoch: f.GetOwnershipEpoch(), Checksum: f.GetChecksum(), Reason: strings.ToValidUTF8(reason, ""),
		})
		select {
		case <-sent:
		case <-ctx.Done():
		}
	}
	return fmt.Errorf("%w: %w", errFull, why)
}

// acknowledge has an acknowledgement sent instead of one that still waits.
func (s *session) acknowledge(r *controlplanev1.AcknowledgeSnapshotRequest) (sent <-chan struct{}) {
	r.WorkerId, r.SessionId = s.w.config.WorkerID, s.id
	a := &acknowledgement{request: r, sent: make(chan struct{})}
	s.mu.Lock()
	if s.pending != nil {
		close(s.pending.sent)
	}
	s.pending = a
	s.mu.Unlock()
	signal(s.ack)
	return a.sent
}
