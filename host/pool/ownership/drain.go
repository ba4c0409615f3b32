package ownership

import (
	"slices"
	"strings"

	controlplanev1 "github.com/dodona-project/dodona/proto/controlplane/v1"
	statev1 "github.com/dodona-project/dodona/proto/state/v1"
)

// The states of a drain.
const (
	Pending       = controlplanev1.DrainTicket_STATE_PENDING
	Bound         = controlplanev1.DrainTicket_STATE_BOUND
	Released      = controlplanev1.DrainTicket_STATE_RELEASED
	ForceReleased = controlplanev1.DrainTicket_STATE_FORCE_RELEASED
)

// Ticket finds the drain of a proxy among its owner's.
func Ticket(d *statev1.WorkerDrains, proxy string) (*statev1.DrainState, bool) {
	i, found := place(d, proxy)
	if !found {
		return nil, false
	}
	return d.Tickets[i], true
}

func place(d *statev1.WorkerDrains, proxy string) (int, bool) {
	return slices.BinarySearchFunc(d.GetTickets(), proxy, func(t *statev1.DrainState, id string) int { return strings.Compare(t.ProxyId, id) })
}

// Drain begins to take an owned proxy from its owner: PENDING, at a new ownership
// epoch. The caller has looked that there is no ticket yet.
func Drain(d *statev1.WorkerDrains, p *statev1.ProxyState, reason string, epoch uint64, now int64) *statev1.DrainState {
	t := &statev1.DrainState{ProxyId: p.Id, AssignmentEpoch: p.AssignmentEpoch, OwnershipEpoch: epoch, BegunMs: now, Reason: reason}
	i, _ := place(d, p.Id)
	d.Tickets = slices.Insert(d.Tickets, i, t)
	return t
}

// Drop forgets the drain of a proxy.
func Drop(d *statev1.WorkerDrains, proxy string) bool {
	i, found := place(d, proxy)
	if found {
		d.Tickets = slices.Delete(d.Tickets, i, i+1)
	}
	return found
}

// StateOf is how far a drain is.
func StateOf(t *statev1.DrainState) controlplanev1.DrainTicket_State {
	if t.SessionId == "" {
		return Pending
	}
	return Bound
}

// Bind ties the pending drains to a snapshot that was issued in a session: those that
// had begun when it was built, so that it lacks their proxies. It reports whether
// there were any. has says whether the snapshot holds a proxy; it never holds one of
// these, and one that it did would not be bound.
func Bind(d *statev1.WorkerDrains, session string, ref *statev1.SnapshotReference, has func(proxy string) bool) bool {
	bound := false
	for _, t := range d.GetTickets() {
		if StateOf(t) != Pending || t.OwnershipEpoch > ref.OwnershipEpoch || has(t.ProxyId) {
			continue
		}
		t.SessionId, t.Barrier, bound = session, ref, true
	}
	return bound
}

// Unbind has every drain of a worker wait for a snapshot again: its session was
// replaced. It reports whether there were any.
func Unbind(d *statev1.WorkerDrains) bool {
	unbound := false
	for _, t := range d.GetTickets() {
		if StateOf(t) == Bound {
			t.SessionId, t.Barrier, unbound = "", nil, true
		}
	}
	return unbound
}

// Passed reports whether the worker has left a drain's proxy out of its view: the
// drain is bound to this session, and the session acknowledged its snapshot or a later
// one.
func Passed(t *statev1.DrainState, s *statev1.WorkerSnapshots) bool {
	return StateOf(t) == Bound && t.SessionId == s.GetSessionId() && s.GetAccepted().GetVersion() >= t.GetBarrier().GetVersion() && !Shut(s)
}

// Release ends the ownership of a proxy by its drain. The caller drops the ticket. A
// proxy that is another's by now, or the same worker's again, is left alone.
func Release(p *statev1.ProxyState, worker string, t *statev1.DrainState, how controlplanev1.DrainTicket_State) bool {
	if p.Owner != worker || p.AssignmentEpoch != t.AssignmentEpoch {
		return false
	}
	p.Owner = ""
	p.DrainedWorker, p.DrainedEpoch, p.Drained, p.DrainedBarrier = worker, t.AssignmentEpoch, how, t.GetBarrier().GetVersion()
	return true
}

// LetGo ends what a holder had of an expired proxy, and reports whether there was
// anything.
func LetGo(p *statev1.ProxyState, worker string) bool {
	if p.Holder == "" || p.Holder != worker {
		return false
	}
	p.Holder, p.HeldEpoch = "", 0
	return true
}

// Unused reports whether a worker's newest report shows that it uses nothing of a
// proxy, and can not begin to: the report was made under a view of epoch or later.
func Unused(s *statev1.WorkerSnapshots, r *statev1.WorkerRuntime, proxy string, epoch uint64) bool {
	if r.GetSessionId() == "" || r.SessionId != s.GetSessionId() || r.OwnershipEpoch < epoch {
		return false
	}
	return InUse(r, proxy) == 0
}
