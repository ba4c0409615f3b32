package session_test

import (
	"maps"
	"slices"
	"testing"
	"time"

	statev1 "github.com/dodona-project/dodona/proto/state/v1"
	"google.golang.org/protobuf/proto"
	"pgregory.net/rapid"

	"github.com/dodona-project/dodona/host/session"
)

// One beat is 1,000 ms and a lease lasts 3,000 in all of these.
var rules = session.Rules{Heartbeat: time.Second, Missed: 3, Percent: 20, Least: 5, Restart: 10 * time.Second}

func times(n int, at int64) []int64 { return slices.Repeat([]int64{at}, n) }

func TestJudge(t *testing.T) {
	const now = 100_000
	mass := func(since, until, served int64) *statev1.Freeze {
		return &statev1.Freeze{Reason: session.FreezeMass, SinceMs: since, UntilMs: until, ServedMs: served}
	}
	for _, tc := range []struct {
		name      string
		scene     session.Scene
		deadlines []int64
		end, held int
		freeze    *statev1.Freeze
		ended     []int64
	}{
		{name: "nothing is overdue", scene: session.Scene{Leases: 10}, deadlines: times(10, now+1)},
		{name: "a deadline of this very moment has passed", scene: session.Scene{Leases: 10}, deadlines: []int64{now}, end: 1, ended: times(1, now)},
		{name: "four of four go: below five there is no guard", scene: session.Scene{Leases: 4}, deadlines: times(4, now-1), end: 4, ended: times(4, now)},
		{name: "five of five are held", scene: session.Scene{Leases: 5}, deadlines: times(5, now-1), held: 5,
			freeze: &statev1.Freeze{Reason: session.FreezeMass, SinceMs: now, UntilMs: now + 3000, Held: 5}},
		{name: "a fifth goes", scene: session.Scene{Leases: 50}, deadlines: times(10, now-1), end: 10, ended: times(10, now)},
		{name: "one more than a fifth is held", scene: session.Scene{Leases: 50}, deadlines: times(11, now-1), held: 11,
			freeze: &statev1.Freeze{Reason: session.FreezeMass, SinceMs: now, UntilMs: now + 3000, Held: 11}},
		{name: "what ended within the last beat counts", scene: session.Scene{Leases: 41, Ended: times(9, now-999)}, deadlines: times(2, now), held: 2, ended: times(9, now-999),
			freeze: &statev1.Freeze{Reason: session.FreezeMass, SinceMs: now, UntilMs: now + 3000, Held: 2}},
		{name: "what ended before that does not", scene: session.Scene{Leases: 41, Ended: times(9, now-1000)}, deadlines: times(2, now), end: 2, ended: times(2, now)},
		{name: "what ended before begins no freeze when nothing is overdue, however few are left", scene: session.Scene{Leases: 15, Ended: times(10, now-500)}, deadlines: times(15, now+1), ended: times(10, now-500)},
		{name: "a freeze holds", scene: session.Scene{Leases: 50, Scope: mass(now-1, now+1, 0)}, deadlines: times(1, now), held: 1},
		{name: "a freeze of the plane holds", scene: session.Scene{Leases: 50, Plane: mass(now-1, now+1, 0)}, deadlines: times(1, now), held: 1},
		{name: "what sat out a freeze goes, however much it is, and is not counted", scene: session.Scene{Leases: 50, Scope: mass(now-3000, now, 0)}, deadlines: times(50, now), end: 50},
		{name: "what sat out a freeze of the plane goes", scene: session.Scene{Leases: 50, Plane: mass(now-3000, now, 0)}, deadlines: times(50, now), end: 50},
		{name: "what fell due after the freeze is judged anew", scene: session.Scene{Leases: 50, Scope: mass(now-4000, now-1000, 0)}, deadlines: append(times(20, now-1000), times(30, now-999)...), end: 20, held: 30,
			freeze: &statev1.Freeze{Reason: session.FreezeMass, SinceMs: now, UntilMs: now + 3000, Held: 30, ServedMs: now - 1000}},
		{name: "a second freeze does not hold what sat out the first", scene: session.Scene{Leases: 50, Scope: mass(now-1, now+2999, now-500)}, deadlines: append(times(7, now-500), now-499), end: 7, held: 1},
		{name: "a pause holds everything", scene: session.Scene{Leases: 50, Scope: mass(now-9000, now-6000, 0), Plane: &statev1.Freeze{Reason: session.FreezePaused, SinceMs: now, UntilMs: now + 3000}}, deadlines: times(50, now-7000), held: 50},
		{name: "the wait after a start does not excuse from the guard", scene: session.Scene{Leases: 50, Scope: &statev1.Freeze{Reason: session.FreezeRestart, SinceMs: now - 10000, UntilMs: now, Remembered: 50}}, deadlines: times(25, now-9000), held: 25,
			freeze: &statev1.Freeze{Reason: session.FreezeMass, SinceMs: now, UntilMs: now + 3000, Held: 25}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			tc.scene.Now = now
			j := session.Judge(rules, tc.scene, tc.deadlines)
			if len(j.End) != tc.end || j.Held != tc.held {
				t.Errorf("ended %d and held %d, want %d and %d", len(j.End), j.Held, tc.end, tc.held)
			}
			if !proto.Equal(j.Freeze, tc.freeze) && (j.Freeze != nil || tc.freeze != nil) {
				t.Errorf("freeze %v, want %v", j.Freeze, tc.freeze)
			}
			if got := j.Ended(now, len(j.End)); !slices.Equal(got, tc.ended) {
				t.Errorf("counted %v, want %v", got, tc.ended)
			}
		})
	}
}

// TestJudgeProperties plays random losses of heartbeats against the judgement, a
// tick at a time, as the sweep does.
func TestJudgeProperties(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		const start = 1_000_000
		leases := map[int]int64{} // id -> deadline
		for id := range rapid.IntRange(0, 80).Draw(t, "leases") {
			leases[id] = start + int64(rapid.IntRange(1, 3000).Draw(t, "deadline"))
		}
		var freeze *statev1.Freeze
		var ended []int64
		type end struct{ at, deadline int64 }
		var unserved []end
		base := len(leases)
		now := int64(start)
		tick := int64(rapid.IntRange(100, 250).Draw(t, "tick"))
		for quiet := int64(0); quiet < 10_000; {
			now += tick
			var ids []int
			var deadlines []int64
			for _, id := range slices.Sorted(maps.Keys(leases)) {
				ids, deadlines = append(ids, id), append(deadlines, leases[id])
			}
			sc := session.Scene{Now: now, Scope: freeze, Leases: len(leases), Ended: ended}
			frozen := freeze != nil && freeze.UntilMs > now
			j := session.Judge(rules, sc, deadlines)
			for n, i := range j.End {
				if deadlines[i] > now {
					t.Fatalf("a lease ended %d ms before its deadline", deadlines[i]-now)
				}
				if n >= j.Served {
					if frozen {
						t.Fatalf("a lease ended in a freeze")
					}
					unserved = append(unserved, end{now, deadlines[i]})
				}
				delete(leases, ids[i])
			}
			ended = j.Ended(now, len(j.End))
			if j.Freeze != nil {
				if len(j.End) > j.Served {
					t.Fatalf("a freeze began and %d counted leases ended at once", len(j.End)-j.Served)
				}
				freeze = j.Freeze
			}
			// Within any beat, no more than a fifth (or four) went uncounted for.
			inBeat := 0
			for _, e := range unserved {
				if e.at > now-1000 {
					inBeat++
				}
			}
			if inBeat > 4 && inBeat*5 > base {
				t.Fatalf("%d of %d leases ended within one beat", inBeat, base)
			}
			// Clients that go on, some of them, for a while.
			quiet += tick
			if now < start+10_000 && rapid.Bool().Draw(t, "beats") {
				quiet = 0
				every := rapid.IntRange(1, 4).Draw(t, "every")
				for id := range leases {
					if id%every == 0 {
						leases[id] = now + 3000
					}
				}
			}
		}
		for id, d := range leases {
			t.Fatalf("lease %d, due at %d, has not ended at %d", id, d-start, now-start)
		}
	})
}
