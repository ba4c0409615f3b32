package check_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"
	"google.golang.org/protobuf/proto"
	"pgregory.net/rapid"

	"github.com/dodona-project/dodona/host/check"
	controlplanev1 "github.com/dodona-project/dodona/proto/controlplane/v1"
	statev1 "github.com/dodona-project/dodona/proto/state/v1"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const (
	unknown   = controlplanev1.Health_HEALTH_UNSPECIFIED
	available = controlplanev1.Health_HEALTH_AVAILABLE
	suspect   = controlplanev1.Health_HEALTH_SUSPECT
	unhealthy = controlplanev1.Health_HEALTH_UNHEALTHY

	good    = controlplanev1.HealthObservation_RESULT_SUCCESS
	bad     = controlplanev1.HealthObservation_RESULT_FAILURE
	unclear = controlplanev1.HealthObservation_RESULT_INCONCLUSIVE
)

var rules = check.DefaultRules(30*time.Second, 5*time.Second)

// TestReduce writes each history as a word: g good, b bad, u unclear, l a bad one
// that is late, B a bad one of a second checker.
func TestReduce(t *testing.T) {
	for _, tc := range []struct {
		history   string
		from      controlplanev1.Health
		want      controlplanev1.Health
		failures  uint32
		successes uint32
		by        string
	}{
		{"", unknown, unknown, 0, 0, ""},
		{"u", unknown, unknown, 0, 0, ""},
		{"g", unknown, available, 0, 1, ""},
		{"b", unknown, suspect, 1, 0, "c1"},
		{"gb", unknown, suspect, 1, 0, "c1"},
		{"gbg", unknown, suspect, 0, 1, ""},
		{"gbgg", unknown, available, 0, 2, ""},
		{"gbgb", unknown, suspect, 1, 0, "c1"},
		{"gbbbbb", unknown, suspect, 5, 0, "c1"}, // the verdict is not the reducer's
		{"gbuub", unknown, suspect, 2, 0, "c1"},
		{"gbBb", unknown, suspect, 3, 0, "c1 c2"},
		{"gbbgBB", unknown, suspect, 2, 0, "c2"},
		{"gl", unknown, available, 0, 1, ""},
		{"b", unhealthy, unhealthy, 1, 0, "c1"},
		{"g", unhealthy, unhealthy, 0, 1, ""},
		{"gg", unhealthy, available, 0, 2, ""},
		{"gug", unhealthy, available, 0, 2, ""},
		{"gbg", unhealthy, unhealthy, 0, 1, ""},
		{"uuuuu", unhealthy, unhealthy, 0, 0, ""},
	} {
		h := &statev1.CheckHealth{Health: tc.from}
		for i, c := range tc.history {
			o := check.Observation{Checker: "c1", IssuedMs: int64(1000 * (i + 1)), AtMs: int64(1000*(i+1)) + 50}
			switch c {
			case 'g':
				o.Result = good
			case 'b':
				o.Result = bad
			case 'B':
				o.Result, o.Checker = bad, "c2"
			case 'u':
				o.Result = unclear
			case 'l':
				o.Result, o.IssuedMs = bad, 999
			}
			before := proto.CloneOf(h)
			next := check.Reduce(rules, h, o)
			if !proto.Equal(h, before) {
				t.Fatalf("%s: the input was changed", tc.history)
			}
			h = next
		}
		if h.Health != tc.want || h.Failures != tc.failures || h.Successes != tc.successes || strings.Join(h.By, " ") != tc.by {
			t.Errorf("%q from %v: %v, want %v, %d, %d, %q", tc.history, tc.from, h, tc.want, tc.failures, tc.successes, tc.by)
		}
		if (h.FailingMs != 0) != (h.Failures > 0) {
			t.Errorf("%q: failing since %d with %d failures", tc.history, h.FailingMs, h.Failures)
		}
	}
	if h := check.Reduce(rules, nil, check.Observation{Result: bad, Checker: "c1", AtMs: 1}); h.Health != suspect {
		t.Errorf("the first check of a target: %v", h)
	}
}

const now = int64(1_800_000_000_000)

// failed is a target that failed n times in a row since some seconds ago.
func failed(n uint32, ago time.Duration, by ...string) *statev1.CheckHealth {
	h := &statev1.CheckHealth{Health: suspect, Failures: n, FailingMs: now - ago.Milliseconds(), By: by}
	return h
}

func sick(h *statev1.CheckHealth) *statev1.CheckHealth { h.Health = unhealthy; return h }
func out(h *statev1.CheckHealth, ago time.Duration) *statev1.CheckHealth {
	h.Out, h.OutMs = true, now-ago.Milliseconds()
	return h
}
func well() *statev1.CheckHealth { return &statev1.CheckHealth{Health: available, Successes: 9} }

// scene makes members a, b, … of these.
func scene(checkers int, all ...*statev1.CheckHealth) check.Scene {
	s := check.Scene{Now: now, Checkers: checkers}
	for i, h := range all {
		s.Members = append(s.Members, check.Member{ID: string(rune('a' + i)), Health: h})
	}
	return s
}

// verdict draws a judgement as the state of each member: ? + s u, and a dash where it
// is out.
func verdict(s check.Scene, j check.Judgement) string {
	after := map[string]*statev1.CheckHealth{}
	for _, m := range s.Members {
		after[m.ID] = m.Health
	}
	for _, m := range j.Changed {
		after[m.ID] = m.Health
	}
	var words []string
	for _, m := range s.Members {
		h := after[m.ID]
		word := map[controlplanev1.Health]string{unknown: "?", available: "+", suspect: "s", unhealthy: "u"}[h.GetHealth()]
		if h.GetOut() {
			word += "-"
		}
		words = append(words, word)
	}
	return strings.Join(words, " ")
}

func TestJudge(t *testing.T) {
	braked := func(s check.Scene, ago time.Duration) check.Scene {
		s.Group = &statev1.CheckGroup{BrakedMs: now - ago.Milliseconds()}
		return s
	}
	doubted := func(s check.Scene, ago time.Duration) check.Scene {
		s.Doubted = map[string]int64{"c1": now - ago.Milliseconds()}
		return s
	}
	old := 10 * time.Minute
	for _, tc := range []struct {
		name  string
		scene check.Scene
		want  string
		brake bool
		alarm string
	}{
		{"nobody", scene(1), "", false, ""},
		{"never checked", scene(1, nil, nil), "? ?", false, ""},
		{"well", scene(1, well(), well()), "+ +", false, ""},
		{"twice is not enough", scene(1, failed(2, old, "c1"), well(), well()), "s + +", false, ""},
		{"three times of the one checker there is", scene(1, failed(3, old, "c1"), well(), well()), "u- + +", false, ""},
		{"no checker is there any more", scene(0, failed(3, old, "c1"), well(), well()), "u- + +", false, ""},
		{"one's word while another can be asked", scene(2, failed(9, old, "c1"), well(), well()), "s + +", false, ""},
		{"a second one agrees", scene(2, failed(3, old, "c1", "c2"), well(), well()), "u- + +", false, ""},
		{"a second one agrees early", scene(2, failed(2, old, "c1", "c2"), well(), well()), "s + +", false, ""},
		{"half may leave", scene(1, failed(3, old, "c1"), well()), "u- +", false, ""},
		{"more than half is kept", scene(1, failed(3, old, "c1"), failed(3, old, "c1"), well()), "u u +", false, "2 of 3 are unhealthy: 2 of them stay"},
		{"the third of four, later", scene(1, out(sick(failed(9, old, "c1")), old), out(sick(failed(9, old, "c1")), old), failed(3, old, "c1"), well()), "u- u- u +", false, "1 of them stay"},
		{"the only one", scene(1, failed(3, old, "c1")), "u", false, "1 of 1"},
		{"it comes back", scene(1, out(&statev1.CheckHealth{Health: available, Successes: 2}, old), well()), "+ +", false, ""},
		{"it is not well yet", scene(1, out(sick(&statev1.CheckHealth{Successes: 1}), old), well()), "u- +", false, ""},
		{"it is unhealthy and was kept", scene(1, sick(failed(9, old, "c1")), well(), well()), "u- + +", false, ""},
		{"the others left", scene(1, out(sick(failed(9, old, "c1")), old)), "u", false, "1 of 1"},
		{"the others left, and the later one comes back", scene(1, out(sick(failed(9, old, "c1")), old), out(sick(failed(9, old-time.Second, "c1")), old), well()), "u- u +", false, "2 of 3 are unhealthy"},

		{"all at once", scene(1, failed(3, 20*time.Second, "c1"), failed(3, 20*time.Second, "c1"), failed(1, time.Second, "c1")), "s s s", true, "3 of 3 fail"},
		{"all but one at once", scene(1, failed(3, 20*time.Second, "c1"), failed(1, time.Second, "c1"), well()), "s s +", true, "2 of 3 fail"},
		{"exactly half at once", scene(1, failed(3, 20*time.Second, "c1"), well()), "u- +", false, ""},
		{"who left in the same round comes back", scene(1, out(sick(failed(4, 30*time.Second, "c1")), 10*time.Second), failed(1, time.Second, "c1")), "u s", true, "2 of 2"},
		{"who left before stays out", scene(1, out(sick(failed(99, old, "c1")), old), failed(1, time.Second, "c1"), failed(1, time.Second, "c1"), failed(1, time.Second, "c1"), well()), "u- s s s +", true, "4 of 5"},
		{"not at once", scene(1, failed(1, old, "c1"), failed(1, time.Second, "c1"), well()), "s s +", false, ""},
		{"the brake holds for three intervals", braked(scene(1, failed(9, old, "c1"), failed(9, old, "c1")), 89*time.Second), "s s", true, "2 of 2"},
		{"and lets go of the verdict, not of the snapshot", braked(scene(1, failed(9, old, "c1"), failed(9, old, "c1")), 90*time.Second), "u u", true, "2 of 2"},
		{"three intervals of its own failures", braked(scene(1, failed(9, old, "c1"), failed(3, 40*time.Second, "c1")), old), "u s", true, "2 of 2"},
		{"two checkers agree under the brake", braked(scene(2, failed(3, old, "c1", "c2"), failed(3, old, "c1")), time.Second), "u s", true, "2 of 2"},
		{"the brake goes off", braked(scene(1, failed(9, old, "c1"), well(), well()), time.Second), "u- + +", false, ""},

		{"a doubted checker", doubted(scene(1, failed(9, old, "c1"), well(), well()), 89*time.Second), "s + +", false, ""},
		{"a doubted checker for long", doubted(scene(1, failed(9, old, "c1"), well(), well()), 90*time.Second), "u- + +", false, ""},
		{"a second checker agrees with a doubted one", doubted(scene(2, failed(9, old, "c1", "c2"), well(), well()), time.Second), "u- + +", false, ""},
	} {
		j := check.Judge(rules, tc.scene)
		if got := verdict(tc.scene, j); got != tc.want || (j.Group.BrakedMs != 0) != tc.brake {
			t.Errorf("%s: %q, brake %v, want %q, %v", tc.name, got, j.Group.BrakedMs != 0, tc.want, tc.brake)
		}
		if !strings.Contains(j.Group.Alarm, tc.alarm) || (tc.alarm == "") != (j.Group.Alarm == "") {
			t.Errorf("%s: alarm %q, want %q", tc.name, j.Group.Alarm, tc.alarm)
		}
		if trouble := strings.ContainsAny(tc.want, "su-"); j.Trouble != trouble {
			t.Errorf("%s: trouble %v, want %v", tc.name, j.Trouble, trouble)
		}
	}
}

func TestDoubtful(t *testing.T) {
	for _, tc := range []struct {
		name   string
		scopes []check.Tally
		want   bool
	}{
		{"nothing", nil, false},
		{"two scopes", []check.Tally{{5, 5}, {5, 5}}, false},
		{"three scopes", []check.Tally{{5, 4}, {5, 5}, {1, 1}}, true},
		{"three scopes, one less", []check.Tally{{5, 3}, {5, 5}, {1, 1}}, false},
		{"three of four scopes", []check.Tally{{5, 0}, {5, 5}, {1, 1}, {10, 8}}, true},
		{"unseen", []check.Tally{{}, {5, 5}, {1, 1}}, false},
	} {
		if got := check.Doubtful(tc.scopes); got != tc.want {
			t.Errorf("%s: %v", tc.name, got)
		}
	}
}

// TestNobodyLeavesInHaste plays random histories: endpoints fail and recover,
// checkers come, go and lie, endpoints come and go. After each judgement: never is
// more than half out, only the unhealthy are, one checker's word does nothing while
// another can be asked, and the same judgement again changes nothing.
func TestNobodyLeavesInHaste(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		at := now
		group := &statev1.CheckGroup{}
		members := map[string]*statev1.CheckHealth{}
		next := 0
		join := func() { next++; members[fmt.Sprintf("e%03d", next)] = nil }
		for range rapid.IntRange(0, 12).Draw(t, "endpoints") {
			join()
		}
		for range rapid.IntRange(1, 120).Draw(t, "steps") {
			at += rapid.Int64Range(0, 40_000).Draw(t, "ms")
			ids := make([]string, 0, len(members))
			for id := range members {
				ids = append(ids, id)
			}
			slices.Sort(ids)
			checkers := rapid.IntRange(1, 3).Draw(t, "checkers")
			switch action := rapid.IntRange(0, 9).Draw(t, "action"); {
			case action == 0:
				join()
			case action == 1 && len(ids) > 0:
				delete(members, rapid.SampledFrom(ids).Draw(t, "leaves"))
			case action == 2: // a checker loses its network
				for _, id := range ids {
					members[id] = check.Reduce(rules, members[id], check.Observation{Checker: "c1", Result: bad, IssuedMs: at, AtMs: at})
				}
			case len(ids) > 0:
				id := rapid.SampledFrom(ids).Draw(t, "target")
				o := check.Observation{
					Checker: fmt.Sprintf("c%d", rapid.IntRange(1, checkers).Draw(t, "checker")),
					Result:  rapid.SampledFrom([]controlplanev1.HealthObservation_Result{good, bad, bad, unclear, 0, 9}).Draw(t, "result"), IssuedMs: at, AtMs: at,
				}
				before := members[id]
				members[id] = check.Reduce(rules, before, o)
				if o.Result != good && o.Result != bad && before != nil && !proto.Equal(before, members[id]) {
					t.Fatalf("%v changed %v to %v", o.Result, before, members[id])
				}
			}
			s := check.Scene{Now: at, Checkers: checkers, Group: group}
			for id, h := range members {
				s.Members = append(s.Members, check.Member{ID: id, Health: h})
			}
			wasOut, wasUnhealthy := 0, map[string]bool{}
			for id, h := range members {
				if h.GetOut() {
					wasOut++
				}
				wasUnhealthy[id] = h.GetHealth() == unhealthy
			}
			j := check.Judge(rules, s)
			group = j.Group
			for _, m := range j.Changed {
				if m.Health.Out && !members[m.ID].GetOut() && group.BrakedMs != 0 {
					t.Fatalf("%s left under the brake", m.ID)
				}
				members[m.ID] = m.Health
			}
			gone, ill := 0, 0
			for id, h := range members {
				if h.GetOut() {
					gone++
					if h.Health != unhealthy {
						t.Fatalf("%s is out and %v", id, h.Health)
					}
				}
				if h.GetHealth() == unhealthy {
					ill++
					if !wasUnhealthy[id] && (h.Failures < rules.Fall || checkers > 1 && len(h.By) < 2) {
						t.Fatalf("%s is unhealthy by %v after %d failures, with %d checkers", id, h.By, h.Failures, checkers)
					}
				}
			}
			if 2*gone > len(members) {
				t.Fatalf("%d of %d are out", gone, len(members))
			}
			if gone < ill && 2*ill <= len(members) && group.BrakedMs == 0 {
				t.Fatalf("%d of %d are unhealthy and only %d are out", ill, len(members), gone)
			}
			if gone < ill && group.Alarm == "" {
				t.Fatalf("%d of %d are unhealthy, %d are out, and nobody is told", ill, len(members), gone)
			}
			s.Group, s.Members = group, nil
			for id, h := range members {
				s.Members = append(s.Members, check.Member{ID: id, Health: h})
			}
			if again := check.Judge(rules, s); len(again.Changed) > 0 || !proto.Equal(again.Group, group) {
				t.Fatalf("judged again: %v, %v", again.Changed, again.Group)
			}
		}
	})
}
