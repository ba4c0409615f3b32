package ownership

import (
	"bytes"
	"slices"
	"time"

	statev1 "github.com/dodona-project/dodona/proto/state/v1"

	"github.com/dodona-project/dodona/host/refusal"
)

// Times are the figures that ownership and sessions go by. They are the same on every
// host of a store.
type Times struct {
	SessionTTL   time.Duration
	Validity     time.Duration // of a snapshot
	MaxStaleAge  time.Duration // that a worker serves beyond its last valid snapshot
	SafetyMargin time.Duration // before a proxy's end, and after MaxStaleAge
	ReportTTL    time.Duration // a runtime report says nothing of now when it is older
}

// closingMargin is how long beyond MaxStaleAge workers of the SDK have things running,
// whatever is configured.
const closingMargin = 10 * time.Second

// deadSlack is what a dead worker is given beyond the time by which it has closed
// everything.
const deadSlack = 10 * time.Second

// maxIssued bounds the references that a session may still acknowledge. Snapshots are
// at least 50 ms apart and hold for a minute, but a worker that is that far behind
// wants a newer one.
const maxIssued = 256

// ErrSession refuses what comes with a session that is not the worker's any more.
func errSession() error {
	return refusal.New(refusal.Precondition, "session_id is not this worker's current session, or has expired: register again")
}

// Renewed is when a session was renewed last: at its registration or by its newest
// accepted report.
func Renewed(w *statev1.WorkerState, r *statev1.WorkerRuntime) int64 {
	if r.GetSessionId() == w.GetSessionId() {
		return max(w.GetRegisteredMs(), r.GetAcceptedMs())
	}
	return w.GetRegisteredMs()
}

// Live reports whether a worker's session is current.
func Live(t Times, w *statev1.WorkerState, r *statev1.WorkerRuntime, now int64) bool {
	return w.GetSessionId() != "" && now < Renewed(w, r)+t.SessionTTL.Milliseconds()
}

// Current refuses what comes from another session than the worker's current one.
func Current(t Times, w *statev1.WorkerState, r *statev1.WorkerRuntime, session string, now int64) error {
	if session == "" || w.GetSessionId() != session || !Live(t, w, r, now) {
		return errSession()
	}
	return nil
}

// Heard is the last moment at which a worker can have been given or have confirmed a
// valid view: its registration, its newest accepted report, the newest snapshot that
// it was sent.
func Heard(w *statev1.WorkerState, r *statev1.WorkerRuntime, s *statev1.WorkerSnapshots) int64 {
	return max(w.GetRegisteredMs(), r.GetAcceptedMs(), s.GetIssuedMs())
}

// DeadFor is how long after [Heard] a worker that registers under these times has closed
// all it had.
func DeadFor(t Times) time.Duration {
	return t.MaxStaleAge + max(t.SafetyMargin, closingMargin) + deadSlack
}

// DeadAfter is DeadFor for a worker: what it was told at its registration may be longer.
func DeadAfter(t Times, w *statev1.WorkerState) time.Duration {
	return max(DeadFor(t), time.Duration(w.GetDeadMs())*time.Millisecond)
}

// Shut reports whether the session refused a snapshot and has accepted none above it
// since: its reports count for nothing.
func Shut(s *statev1.WorkerSnapshots) bool {
	return s.GetRefusedVersion() != 0 && s.GetAccepted().GetVersion() <= s.GetRefusedVersion()
}

// Begin readies what a worker was sent for a new session: nothing of the old one
// counts, and versions and epochs go on.
func Begin(s *statev1.WorkerSnapshots, session string) {
	s.SessionId, s.StreamId = session, ""
	s.Issued, s.Accepted, s.RefusedVersion = nil, nil, 0
}

// Streams refuses a stream that is not the newest of its worker.
func Streams(s *statev1.WorkerSnapshots, stream string) error {
	if s.StreamId != stream {
		return refusal.New(refusal.Aborted, "another WatchSnapshots of this worker took this one's place")
	}
	return nil
}

// Issue notes a snapshot before it is sent on a stream, and gives it the next version.
// Only the newest stream of a session issues, epochs never go back, and what is over by
// now is not sent.
func Issue(s *statev1.WorkerSnapshots, session, stream string, ref *statev1.SnapshotReference, now int64) error {
	if s.SessionId != session {
		return errSession()
	}
	if err := Streams(s, stream); err != nil {
		return err
	}
	if ref.OwnershipEpoch < s.OwnershipEpoch {
		return refusal.New(refusal.Unavailable, "the store was read at an older ownership epoch than this worker has seen: watch again")
	}
	if ref.ValidMs <= now {
		return refusal.New(refusal.Unavailable, "the snapshot was over before it was on record: watch again")
	}
	s.Version++
	ref.Version = s.Version
	s.OwnershipEpoch, s.IssuedMs = ref.OwnershipEpoch, now
	s.Issued = slices.DeleteFunc(s.Issued, func(r *statev1.SnapshotReference) bool { return r.ValidMs <= now })
	s.Issued = append(s.Issued, ref)
	if n := len(s.Issued) - maxIssued; n > 0 {
		s.Issued = slices.Delete(s.Issued, 0, n)
	}
	return nil
}

// Acknowledge takes a worker's word on a snapshot that it was sent. Only one that was
// issued in this session, and has not run out, counts; the highest accepted one is
// kept.
func Acknowledge(s *statev1.WorkerSnapshots, session string, ref *statev1.SnapshotReference, accepted bool, now int64) error {
	if s.SessionId != session {
		return errSession()
	}
	i := slices.IndexFunc(s.Issued, func(r *statev1.SnapshotReference) bool { return r.Version == ref.Version })
	if i < 0 || s.Issued[i].OwnershipEpoch != ref.OwnershipEpoch || !bytes.Equal(s.Issued[i].Checksum, ref.Checksum) || s.Issued[i].ValidMs <= now {
		return refusal.New(refusal.Precondition, "version, ownership_epoch and checksum are not those of a snapshot that this session was sent and that still holds: watch again with last_version 0")
	}
	switch {
	case !accepted:
		s.RefusedVersion = max(s.RefusedVersion, ref.Version)
	case ref.Version > s.GetAccepted().GetVersion():
		s.Accepted = s.Issued[i]
	}
	return nil
}

// Report admits a runtime report and reports whether it is a replay, which is answered
// again and changes nothing. next is the record that it would become.
func Report(s *statev1.WorkerSnapshots, have, next *statev1.WorkerRuntime) (replay bool, err error) {
	if s.SessionId != next.SessionId {
		return false, errSession()
	}
	if Shut(s) {
		return false, refusal.New(refusal.Precondition, "this session refused snapshot %d: nothing is reported until it accepts a later one", s.RefusedVersion)
	}
	if have.GetSessionId() == next.SessionId {
		if replay, err := fence("report_sequence", have.Sequence, have.Digest, next.Sequence, next.Digest); replay || err != nil {
			return replay, err
		}
	}
	a := s.GetAccepted()
	if a == nil {
		return false, refusal.New(refusal.Precondition, "this session has acknowledged no snapshot yet: acknowledge one, and report under it")
	}
	if next.SnapshotVersion != a.Version || next.OwnershipEpoch != a.OwnershipEpoch {
		return false, refusal.New(refusal.Precondition, "snapshot_version %d and ownership_epoch %d are not those of the snapshot acknowledged last, %d and %d",
			next.SnapshotVersion, next.OwnershipEpoch, a.Version, a.OwnershipEpoch)
	}
	return false, nil
}

// Outcomes admits a batch of outcomes into the record of its session, and reports
// whether it is a replay.
func Outcomes(have *statev1.WorkerOutcomes, session string, sequence uint64, digest []byte) (replay bool, err error) {
	if have.SessionId == session {
		if replay, err := fence("sequence", have.Sequence, have.Digest, sequence, digest); replay || err != nil {
			return replay, err
		}
	}
	have.SessionId, have.Sequence, have.Digest = session, sequence, digest
	return false, nil
}

// fence compares a sequence with the last accepted one of a session: it rises, gaps
// allowed; the same with the same content is a replay.
func fence(field string, have uint64, digest []byte, sequence uint64, content []byte) (replay bool, err error) {
	switch {
	case sequence < have:
		return false, refusal.New(refusal.Aborted, "%s is %d: this session has already sent %d", field, sequence, have)
	case sequence > have:
		return false, nil
	case bytes.Equal(digest, content):
		return true, nil
	}
	return false, refusal.New(refusal.AlreadyExists, "%s is %d: it was sent before with other content; a retry must repeat it exactly", field, sequence)
}
