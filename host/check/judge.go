package check

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	statev1 "github.com/dodona-project/dodona/proto/state/v1"
	"google.golang.org/protobuf/proto"
)

const (
	agreed    = 2 // checkers whose word is believed at any time
	patience  = 3 // intervals in a row for which a single one has to say so, under the brake
	doubtful  = 80
	manyScope = 3 // scopes of which a checker fails so much that its word is doubted
)

// Member is a target of a scope with what is known of it.
type Member struct {
	ID     string
	Health *statev1.CheckHealth // nil = never checked
}

// Scene is what a judgement about one scope rests on. Times are the store's, in
// milliseconds.
type Scene struct {
	Now      int64
	Checkers int              // that are there and can run the scope's probe
	Doubted  map[string]int64 // checkers that fail nearly everything, since when
	Group    *statev1.CheckGroup
	Members  []Member
}

// Judgement says what becomes of a scope.
type Judgement struct {
	Group   *statev1.CheckGroup
	Changed []Member // those whose health is another one now, sorted by id
	Trouble bool     // the scope has to be looked at again although nobody reports
}

// Judge decides who of a scope is unhealthy, who leaves and who comes back.
//
// A target that failed often enough is unhealthy when two checkers saw it fail, or
// when the one that there is did and is not braked. The brake is on while more
// than half of the scope fails after having begun within one round, and for a
// checker that is doubted; it lets go of a target when a second checker agrees, or
// after three intervals in a row with one live checker.
//
// Who is unhealthy leaves, unless more than half of the scope is unhealthy or the
// brake is on: then all stay where they are, and those that left in the round that
// tripped the brake come back. Never is more than half of the scope out.
func Judge(r Rules, s Scene) Judgement {
	j := judging{rules: r, scene: s, group: proto.CloneOf(s.Group), health: map[string]*statev1.CheckHealth{}}
	if j.group == nil {
		j.group = &statev1.CheckGroup{}
	}
	j.members = slices.SortedFunc(slices.Values(s.Members), func(a, b Member) int { return cmp.Compare(a.ID, b.ID) })
	j.brake()
	for _, m := range j.members {
		if j.condemned(m.Health) {
			j.change(m).Health = unhealthy
		}
	}
	j.move()
	j.group.Alarm = j.alarm()
	return j.judgement()
}

type judging struct {
	rules   Rules
	scene   Scene
	members []Member
	group   *statev1.CheckGroup
	health  map[string]*statev1.CheckHealth // as it becomes, of those that change
}

// of is a member's health as it becomes; it may be nil.
func (j *judging) of(m Member) *statev1.CheckHealth {
	if h := j.health[m.ID]; h != nil {
		return h
	}
	return m.Health
}

func (j *judging) change(m Member) *statev1.CheckHealth {
	if j.health[m.ID] == nil {
		j.health[m.ID] = proto.CloneOf(m.Health)
	}
	return j.health[m.ID]
}

func (j *judging) count(is func(*statev1.CheckHealth) bool) (n int) {
	for _, m := range j.members {
		if h := j.of(m); h != nil && is(h) {
			n++
		}
	}
	return n
}

// half reports whether n is more than half of the scope.
func (j *judging) half(n int) bool { return 2*n > len(j.members) }

func failing(h *statev1.CheckHealth) bool { return h.Failures > 0 || h.Health == unhealthy }
func isOut(h *statev1.CheckHealth) bool   { return h.Out }
func isUnhealthy(h *statev1.CheckHealth) bool {
	return h.Health == unhealthy
}

// within reports whether a time lies in the last round.
func (j *judging) within(ms int64) bool {
	return ms > j.scene.Now-j.rules.round().Milliseconds()
}

// brake goes on when more than half began to fail within one round, and off when no
// more than half fails.
func (j *judging) brake() {
	switch {
	case !j.half(j.count(failing)):
		j.group.BrakedMs = 0
	case j.group.BrakedMs == 0 && j.half(j.count(func(h *statev1.CheckHealth) bool { return h.Failures > 0 && j.within(h.FailingMs) })):
		j.group.BrakedMs = j.scene.Now
		for _, m := range j.members {
			if m.Health.GetOut() && j.within(m.Health.OutMs) {
				j.put(m, false)
			}
		}
	}
}

// condemned reports whether a target's failures make it unhealthy.
func (j *judging) condemned(h *statev1.CheckHealth) bool {
	if h == nil || h.Health == unhealthy || h.Failures < j.rules.Fall {
		return false
	}
	if len(h.By) >= agreed {
		return true
	}
	w := Word{Now: j.scene.Now, BrakedMs: j.group.BrakedMs, Checkers: j.scene.Checkers, Doubted: j.scene.Doubted}
	return w.Checkers < agreed && w.patient(j.rules, h)
}

// Word is what decides whether a single checker's word is enough. Times are the
// store's, ms.
type Word struct {
	Now      int64
	BrakedMs int64            // since when the brake is on; 0 = it is off
	Checkers int              // that are there and can make this check
	Doubted  map[string]int64 // checkers that fail nearly everything, since when
}

// Believed reports whether a run of failures counts: it does, unless the brake is on
// or its checker is doubted. Then it does once a second checker agrees, or after three
// intervals in a row where there is one checker only.
func (w Word) Believed(r Rules, h *statev1.CheckHealth) bool {
	return w.since(h) == 0 || len(h.By) >= agreed || w.Checkers < agreed && w.patient(r, h)
}

// since is from when on a run has to be patient; 0 = it has not to be.
func (w Word) since(h *statev1.CheckHealth) (ms int64) {
	if w.BrakedMs != 0 {
		ms = max(h.FailingMs, w.BrakedMs)
	}
	for _, by := range h.By {
		if doubted := w.Doubted[by]; doubted != 0 {
			ms = max(ms, h.FailingMs, doubted)
		}
	}
	return ms
}

func (w Word) patient(r Rules, h *statev1.CheckHealth) bool {
	since := w.since(h)
	return since == 0 || w.Now-since >= patience*r.Interval.Milliseconds()
}

func (j *judging) put(m Member, out bool) {
	h := j.change(m)
	h.Out, h.OutMs = out, 0
	if out {
		h.OutMs = j.scene.Now
	}
}

// held reports whether nobody may leave.
func (j *judging) held() bool { return j.group.BrakedMs != 0 || j.half(j.count(isUnhealthy)) }

// move has the unhealthy leave and the others come back.
func (j *judging) move() {
	held := j.held()
	for _, m := range j.members {
		switch h := j.of(m); {
		case h == nil:
		case h.Out && h.Health != unhealthy:
			j.put(m, false)
		case !h.Out && h.Health == unhealthy && !held:
			j.put(m, true)
		}
	}
	// The scope may have shrunk around those that are out.
	var out []Member
	for _, m := range j.members {
		if h := j.of(m); h.GetOut() {
			out = append(out, m)
		}
	}
	slices.SortStableFunc(out, func(a, b Member) int { return cmp.Compare(j.of(b).FailingMs, j.of(a).FailingMs) })
	for ; j.half(len(out)); out = out[1:] {
		j.put(out[0], false)
	}
}

func (j *judging) alarm() string {
	bad, all := j.count(failing), len(j.members)
	switch {
	case j.group.BrakedMs != 0:
		return fmt.Sprintf("%d of %d fail, and began to within one round of checks: nobody leaves the snapshot while more than half fails", bad, all)
	case j.held():
		n := j.count(isUnhealthy)
		return fmt.Sprintf("%d of %d are unhealthy: %d of them stay in the snapshot while more than half is", n, all, n-j.count(isOut))
	}
	return ""
}

func (j *judging) judgement() Judgement {
	out := Judgement{Group: j.group, Trouble: j.group.BrakedMs != 0 || j.count(failing)+j.count(isOut) > 0}
	for _, m := range j.members {
		if h := j.health[m.ID]; h != nil && !proto.Equal(h, m.Health) {
			out.Changed = append(out.Changed, Member{ID: m.ID, Health: h})
		}
	}
	return out
}

// Tally is how many of a scope's targets a checker saw last, and how many of those
// fail.
type Tally struct{ Seen, Failing int }

// Doubtful reports whether a checker's word alone counts for less: it fails four of
// five targets in each of three scopes or more.
func Doubtful(scopes []Tally) bool {
	n := 0
	for _, t := range scopes {
		if t.Seen > 0 && t.Failing*100 >= doubtful*t.Seen {
			n++
		}
	}
	return n >= manyScope
}

// milliseconds is how records keep a duration after a time.
func milliseconds(d time.Duration) int64 { return max(d.Milliseconds(), 1) }
