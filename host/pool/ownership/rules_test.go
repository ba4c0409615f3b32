package ownership_test

import (
	"testing"

	controlplanev1 "github.com/dodona-project/dodona/proto/controlplane/v1"
	statev1 "github.com/dodona-project/dodona/proto/state/v1"
	"google.golang.org/protobuf/proto"

	"github.com/dodona-project/dodona/host/pool/ownership"
	"github.com/dodona-project/dodona/host/refusal"
)

// TestWhoMayHaveAProxy: a proxy is given to a worker or away for good only while it is
// available, nobody's, in nobody's use and has time left, whatever an index says of it.
func TestWhoMayHaveAProxy(t *testing.T) {
	const now = 1000
	for name, tc := range map[string]struct {
		edit            func(*statev1.ProxyState)
		assign, extract bool
	}{
		"a free one":         {func(*statev1.ProxyState) {}, true, true},
		"one that is owned":  {func(p *statev1.ProxyState) { p.Owner = "w" }, false, false},
		"one that is held":   {func(p *statev1.ProxyState) { p.Holder = "w" }, false, false},
		"a new one":          {func(p *statev1.ProxyState) { p.State = ownership.New }, false, false},
		"a suspect":          {func(p *statev1.ProxyState) { p.State = ownership.Suspect }, false, false},
		"an unhealthy one":   {func(p *statev1.ProxyState) { p.State = ownership.Unhealthy }, false, false},
		"an extracted one":   {func(p *statev1.ProxyState) { p.State, p.ExtractionId = ownership.Extracted, "x" }, false, false},
		"an expired one":     {func(p *statev1.ProxyState) { p.State = ownership.Expired }, false, false},
		"one at its end":     {func(p *statev1.ProxyState) { p.UsableMs = now }, false, false},
		"one near its end":   {func(p *statev1.ProxyState) { p.UsableMs = now + 1 }, true, false},
		"one as long as may": {func(p *statev1.ProxyState) { p.UsableMs = now + 100 }, true, true},
	} {
		fresh := func() *statev1.ProxyState {
			p := &statev1.ProxyState{Id: "p", State: ownership.Available, UsableMs: now + 1000, AssignmentEpoch: 3}
			tc.edit(p)
			return p
		}
		p, before := fresh(), fresh()
		if got := ownership.Assign(p, "w2", now); got != tc.assign || got && (p.Owner != "w2" || p.AssignmentEpoch != 4) || !got && !proto.Equal(p, before) {
			t.Errorf("%s is assigned: %v, and is %v", name, got, p)
		}
		p = fresh()
		if got := ownership.Extract(p, "mine", now+100); got != tc.extract || got && (p.State != ownership.Extracted || p.ExtractionId != "mine") || !got && !proto.Equal(p, before) {
			t.Errorf("%s is extracted: %v, and is %v", name, got, p)
		}
	}
}

// TestIssue: only the newest stream of a session issues, versions rise by one, epochs
// never go back, and what is over is not issued.
func TestIssue(t *testing.T) {
	const now = 1000
	sent := &statev1.WorkerSnapshots{}
	ownership.Begin(sent, "s1")
	sent.StreamId = "a"
	ref := func(epoch uint64, valid int64) *statev1.SnapshotReference {
		return &statev1.SnapshotReference{OwnershipEpoch: epoch, ValidMs: valid, Checksum: []byte{1}}
	}
	for i, tc := range []struct {
		name, session, stream string
		ref                   *statev1.SnapshotReference
		kind                  refusal.Kind // 0 = it is issued
	}{
		{"the first", "s1", "a", ref(5, now+60), 0},
		{"the same epoch", "s1", "a", ref(5, now+60), 0},
		{"the next epoch", "s1", "a", ref(6, now+60), 0},
		{"an older epoch", "s1", "a", ref(5, now+60), refusal.Unavailable},
		{"one that is over", "s1", "a", ref(6, now), refusal.Unavailable},
		{"another session's", "s0", "a", ref(6, now+60), refusal.Precondition},
		{"an older stream's", "s1", "b", ref(6, now+60), refusal.Aborted},
	} {
		before := proto.CloneOf(sent)
		err := ownership.Issue(sent, tc.session, tc.stream, tc.ref, now)
		switch {
		case tc.kind == 0 && (err != nil || tc.ref.Version != uint64(i+1)):
			t.Errorf("%s: %v, version %d", tc.name, err, tc.ref.Version)
		case tc.kind != 0 && (!refusal.Is(err, tc.kind) || !proto.Equal(before, sent)):
			t.Errorf("%s: %v, and there is %v, before %v", tc.name, err, sent, before)
		}
	}
	accepted := proto.CloneOf(sent.Issued[2])
	if err := ownership.Acknowledge(sent, "s1", accepted, true, now); err != nil {
		t.Fatal(err)
	}
	// Another session begins with nothing that counts; versions and epochs go on.
	ownership.Begin(sent, "s2")
	if err := ownership.Acknowledge(sent, "s2", accepted, true, now); !refusal.Is(err, refusal.Precondition) {
		t.Errorf("a reference of the session before is acknowledged: %v", err)
	}
	report := &statev1.WorkerRuntime{SessionId: "s2", Sequence: 1, SnapshotVersion: accepted.Version, OwnershipEpoch: accepted.OwnershipEpoch}
	if _, err := ownership.Report(sent, nil, report); !refusal.Is(err, refusal.Precondition) {
		t.Errorf("a report by the acknowledgement of the session before: %v", err)
	}
	if sent.Version != 3 || sent.OwnershipEpoch != 6 {
		t.Errorf("versions begin anew: %v", sent)
	}
}

// TestRefused: after a snapshot was refused, nothing counts until one above it is accepted,
// in whatever order the acknowledgements come; a drain's barrier is not passed meanwhile.
func TestRefused(t *testing.T) {
	const now = 1000
	sent := &statev1.WorkerSnapshots{}
	ownership.Begin(sent, "s1")
	for range 6 {
		if err := ownership.Issue(sent, "s1", "", &statev1.SnapshotReference{OwnershipEpoch: 5, ValidMs: now + 60}, now); err != nil {
			t.Fatal(err)
		}
	}
	drain := &statev1.DrainState{SessionId: "s1", Barrier: &statev1.SnapshotReference{Version: 2}}
	for _, tc := range []struct {
		version         uint64
		accepted        bool
		opened, drained bool
	}{
		{1, true, true, false},
		{2, true, true, true},
		{5, false, false, false},
		{3, false, false, false}, // late
		{4, true, false, false},  // late
		{5, true, false, false},
		{6, true, true, true},
		{3, false, true, true}, // of one below that which is accepted
	} {
		if err := ownership.Acknowledge(sent, "s1", proto.CloneOf(sent.Issued[tc.version-1]), tc.accepted, now); err != nil {
			t.Fatal(err)
		}
		a := sent.GetAccepted()
		_, err := ownership.Report(sent, nil, &statev1.WorkerRuntime{SessionId: "s1", Sequence: 1, SnapshotVersion: a.GetVersion(), OwnershipEpoch: a.GetOwnershipEpoch()})
		if opened := err == nil; opened != tc.opened || opened == refusal.Is(err, refusal.Precondition) {
			t.Errorf("after %d, accepted %v: a report is answered %v", tc.version, tc.accepted, err)
		}
		if got := ownership.Passed(drain, sent); got != tc.drained {
			t.Errorf("after %d, accepted %v: the barrier of version 2 is passed: %v", tc.version, tc.accepted, got)
		}
	}
}

// TestBind: a drain waits for a snapshot that was built after it had begun and lacks its
// proxy, and is released only for the assignment that it is of.
func TestBind(t *testing.T) {
	d := &statev1.WorkerDrains{}
	p := &statev1.ProxyState{Id: "p", Owner: "w", AssignmentEpoch: 2}
	ticket := ownership.Drain(d, p, "why", 7, 1000)
	none := func(string) bool { return false }
	if ownership.Bind(d, "s", &statev1.SnapshotReference{Version: 1, OwnershipEpoch: 6}, none) {
		t.Error("it is bound to a snapshot that was built before it began")
	}
	if ownership.Bind(d, "s", &statev1.SnapshotReference{Version: 2, OwnershipEpoch: 7}, func(id string) bool { return id == "p" }) {
		t.Error("it is bound to a snapshot with its proxy")
	}
	if !ownership.Bind(d, "s", &statev1.SnapshotReference{Version: 3, OwnershipEpoch: 7}, none) || ownership.StateOf(ticket) != ownership.Bound {
		t.Error("it is not bound to a snapshot without its proxy")
	}
	for session, want := range map[string]bool{"s": true, "s2": false} {
		sent := &statev1.WorkerSnapshots{SessionId: session, Accepted: &statev1.SnapshotReference{Version: 9}}
		if ownership.Passed(ticket, sent) != want {
			t.Errorf("bound to session s, it is passed in session %s: %v", session, !want)
		}
	}
	for name, q := range map[string]*statev1.ProxyState{
		"another worker's":            {Id: "p", Owner: "v", AssignmentEpoch: 2},
		"the same worker's once more": {Id: "p", Owner: "w", AssignmentEpoch: 3},
	} {
		if before := proto.CloneOf(q); ownership.Release(q, "w", ticket, ownership.Released) || !proto.Equal(before, q) {
			t.Errorf("%s is released", name)
		}
	}
	if !ownership.Release(p, "w", ticket, ownership.Released) || p.Owner != "" {
		t.Error("it is not released")
	}
}

// TestVisible: a worker's view has what it owns, as long as that may be used and is not
// being taken from it.
func TestVisible(t *testing.T) {
	const now = 1000
	p := &statev1.ProxyState{Id: "p", State: ownership.Available, Owner: "w", UsableMs: now + 1}
	if !ownership.Visible(p, "w", false, now) {
		t.Error("what it owns is not in its view")
	}
	if ownership.Visible(p, "w", false, now+1) || ownership.Visible(p, "w", true, now) || ownership.Visible(p, "v", false, now) {
		t.Error("what is over, drained or another's is in its view")
	}
	for _, s := range []controlplanev1.ProxyStatus_State{ownership.New, ownership.Extracted, ownership.Expired} {
		if p.State = s; ownership.Visible(p, "w", false, now) {
			t.Errorf("one that is %s is in its view", s)
		}
	}
}
