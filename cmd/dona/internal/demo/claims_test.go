package demo

import (
	"errors"
	"strings"
	"testing"
	"time"

	donav1 "github.com/dodona-project/dodona/proto/dona/v1"
)

const (
	progressing = donav1.RolloutStatus_STATE_PROGRESSING
	holding     = donav1.RolloutStatus_STATE_HOLDING
	promotedSt  = donav1.RolloutStatus_STATE_PROMOTED
	rolledBckSt = donav1.RolloutStatus_STATE_ROLLED_BACK
)

var origin = time.Unix(1000, 0)

// at is a sighting s seconds after the beginning, with the weight of its percent.
func at(s int, state donav1.RolloutStatus_State, step, percent uint32) sighting {
	return sighting{at: origin.Add(time.Duration(s) * time.Second), state: state, step: step, percent: percent, canary: percent}
}

func want(t *testing.T, c Claim, ok bool, text string) {
	t.Helper()
	if c.OK != ok || !strings.Contains(c.Text, text) {
		t.Errorf("claim is %v %q, want %v with %q", c.OK, c.Text, ok, text)
	}
}

// Each claim has to be refused when any part of it was not seen.

func TestPromoted(t *testing.T) {
	all := []sighting{at(0, progressing, 0, 10), at(4, progressing, 1, 50), at(8, progressing, 2, 100), at(12, promotedSt, 2, 100)}
	want(t, promoted(all), true, "PROMOTED through 10 %, 50 %, 100 %")
	want(t, promoted(nil), false, "nothing was seen")
	want(t, promoted(all[:3]), false, "not PROMOTED")
	want(t, promoted([]sighting{all[0], all[2], all[3]}), false, "not PROMOTED")
	light := append([]sighting{}, all...)
	light[1].canary = 10
	want(t, promoted(light), false, "not PROMOTED")
	end := append([]sighting{}, all...)
	end[3].canary = 50
	want(t, promoted(end), false, "not PROMOTED")
}

func TestHeld(t *testing.T) {
	f := &facts{killed: 11, reborn: 12, killedAt: origin.Add(5 * time.Second)}
	before := at(4, progressing, 1, 50)
	hold, on := at(8, holding, 1, 50), at(13, progressing, 1, 50)
	want(t, held([]sighting{before, hold, on}, f), true, "HOLDING at 50 % for 5.0 s")
	want(t, held([]sighting{before, on}, f), false, "no HOLDING")
	want(t, held([]sighting{before, hold}, f), false, "stayed HOLDING")
	want(t, held([]sighting{before, at(3, holding, 1, 50), on}, f), false, "no HOLDING")
	moved := at(9, holding, 1, 50)
	moved.canary = 100
	want(t, held([]sighting{before, hold, moved, on}, f), false, "weights moved")
	want(t, held([]sighting{before, hold, on}, &facts{killed: 11, reborn: 11, killedAt: f.killedAt}), false, "did not come back")
}

func TestProven(t *testing.T) {
	good := func() *attested {
		return &attested{entries: 40, told: map[string]bool{"rollout.start": true, "rollout.hold": true, "rollout.promote": true, "rollout.rollback": true},
			changed: 20, found: 20, foundErr: errors.New("entry 20")}
	}
	want(t, proven(good()), true, "40 entries")
	for text, change := range map[string]func(*attested){
		"does not verify":             func(f *attested) { f.err = errors.New("no") },
		"is empty":                    func(f *attested) { f.entries = 0 },
		"not tell of a rollout.start": func(f *attested) { delete(f.told, "rollout.start") },
		"of a rollout.rollback":       func(f *attested) { delete(f.told, "rollout.rollback") },
		"still verifies":              func(f *attested) { f.foundErr = nil },
		"entry 21 is named":           func(f *attested) { f.found = 21 },
	} {
		f := good()
		change(f)
		want(t, proven(f), false, text)
	}
}

func TestSurvived(t *testing.T) {
	reply := func(version uint64, weight uint32, quarantined, rollout string) *donav1.StatusReply {
		return &donav1.StatusReply{
			Config: &donav1.ConfigSnapshot{
				Version: version, QuarantinedVariants: []string{quarantined},
				Weights: []*donav1.VariantWeight{{Variant: "v2", Weight: weight}},
			},
			Rollout: &donav1.RolloutStatus{Id: rollout, State: rolledBckSt},
		}
	}
	before := reply(7, 100, "v3", "r-1")
	good := facts{before: before, after: reply(9, 100, "v3", "r-1"), alone: 300}
	want(t, survived(&good), true, "300 requests")
	for text, change := range map[string]func(*facts){
		"no request":     func(f *facts) { f.alone = 0 },
		"weights":        func(f *facts) { f.after = reply(9, 50, "v3", "r-1") },
		"version fell":   func(f *facts) { f.after = reply(6, 100, "v3", "r-1") },
		"quarantine":     func(f *facts) { f.after = reply(9, 100, "v1", "r-1") },
		"forgot the rol": func(f *facts) { f.after = reply(9, 100, "v3", "r-2") },
	} {
		f := good
		change(&f)
		want(t, survived(&f), false, text)
	}
}

func TestRolledBack(t *testing.T) {
	end := at(3, rolledBckSt, 0, 0)
	reply := &donav1.StatusReply{Config: &donav1.ConfigSnapshot{QuarantinedVariants: []string{"v3"}}}
	good := facts{
		ended: true, rolledBack: origin.Add(4 * time.Second), sinceRollback: 100,
		end: totals{requests: 600, variants: map[string]tally{"v3": {requests: 10, errors: 3, last: origin.Add(2 * time.Second)}}},
	}
	want(t, rolledBack([]sighting{end}, reply, &good), true, "after 10 requests (3 of them answered 5xx) and quarantined; 500 requests since, none to v3")
	want(t, rolledBack([]sighting{at(3, promotedSt, 2, 100)}, reply, &good), false, "not ROLLED_BACK")
	heavy := end
	heavy.canary = 10
	want(t, rolledBack([]sighting{heavy}, reply, &good), false, "still has 10 %")
	want(t, rolledBack([]sighting{end}, &donav1.StatusReply{}, &good), false, "not quarantined")
	late := good
	late.rolledBack = origin.Add(time.Second)
	want(t, rolledBack([]sighting{end}, reply, &late), false, "after it")
	none := good
	none.sinceRollback = 600
	want(t, rolledBack([]sighting{end}, reply, &none), false, "requests since the rollback: 0")
}

func TestFailedRequestsAreCounted(t *testing.T) {
	s := &stage{traffic: &traffic{variants: map[string]*tally{}}}
	want(t, s.requests()[0], false, "failed requests: 0 of 0")
	s.traffic.count("v1", true, origin, time.Millisecond)
	s.traffic.count("v3", false, origin, time.Millisecond)
	want(t, s.requests()[0], true, "failed requests: 0 of 2 (v1 1, v2 0, v3 1; the bad variant's 1 5xx")
	s.traffic.count("v2", false, origin, time.Millisecond)
	want(t, s.requests()[1], false, "good variants answered 1")
	s.traffic.fail("v1-a: connection refused")
	want(t, s.requests()[0], false, "failed requests: 1 of 4")
}
