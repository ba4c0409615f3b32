package demo

import (
	"fmt"
	"slices"
	"strings"

	"google.golang.org/protobuf/proto"

	"github.com/dodona-project/dodona/cmd/dona/internal/render"
	donav1 "github.com/dodona-project/dodona/proto/dona/v1"
)

// Claim is a sentence of the summary and whether it is true.
type Claim struct {
	OK   bool   `json:"ok"`
	Text string `json:"text"`
}

// claims judges what was observed. Acts that were not reached have no claim; why
// they were not is the error of the play.
func (s *stage) claims() []Claim {
	var out []Claim
	f := &s.facts
	if f.good != "" && f.killed != 0 {
		seen := s.seen.of(f.good)
		out = append(out, promoted(seen), held(seen, f))
	}
	if f.after != nil {
		out = append(out, survived(f))
	}
	if f.bad != "" {
		reply, _ := s.seen.newest()
		out = append(out, rolledBack(s.seen.of(f.bad), reply, f))
	}
	if f.attested != nil {
		out = append(out, proven(f.attested))
	}
	if s.traffic != nil {
		out = append(out, s.requests()...)
	}
	return out
}

// promoted wants v2 to have been seen at every step, then PROMOTED with all the
// traffic.
func promoted(seen []sighting) Claim {
	ok := true
	for i, percent := range steps {
		found := slices.ContainsFunc(seen, func(s sighting) bool {
			return s.step == uint32(i) && s.percent == percent && s.canary == percent && !render.Ended(s.state)
		})
		ok = ok && found
	}
	last := lastOf(seen)
	ok = ok && last.state == donav1.RolloutStatus_STATE_PROMOTED && last.canary == 100
	if !ok {
		return Claim{false, fmt.Sprintf("the good canary v2 is not PROMOTED through %s: %s", percents(), course(seen))}
	}
	return Claim{true, fmt.Sprintf("the good canary v2 was PROMOTED through %s", percents())}
}

// held wants HOLDING after the plugin was killed, with the weights as they were,
// and the same rollout to have gone on with a new process of the plugin.
func held(seen []sighting, f *facts) Claim {
	for i, s := range seen {
		if s.state != donav1.RolloutStatus_STATE_HOLDING || s.at.Before(f.killedAt) {
			continue
		}
		rest := seen[i+1:]
		next := slices.IndexFunc(rest, func(r sighting) bool { return r.state != donav1.RolloutStatus_STATE_HOLDING })
		switch {
		case next < 0:
			return Claim{false, "the rollout stayed HOLDING after the analysis plugin was killed"}
		case s.canary != s.percent || slices.ContainsFunc(rest[:next], func(r sighting) bool { return r.canary != s.canary }):
			return Claim{false, fmt.Sprintf("the weights moved while HOLDING: %s", course(seen))}
		case f.reborn == 0 || f.reborn == f.killed:
			return Claim{false, fmt.Sprintf("the analysis plugin did not come back: pid %d was killed, now it is %d", f.killed, f.reborn)}
		}
		return Claim{true, fmt.Sprintf("HOLDING at %d %% for %s while the analysis plugin was dead (kill -9 %d); went on by itself with pid %d",
			s.percent, render.Seconds(rest[next].at.Sub(s.at)), f.killed, f.reborn)}
	}
	return Claim{false, "no HOLDING was seen after the analysis plugin was killed: " + course(seen)}
}

// survived wants requests to have been answered without a host, and what the
// host keeps to be the same after it came back.
func survived(f *facts) Claim {
	before, after := f.before.GetConfig(), f.after.GetConfig()
	quarantine := slices.Equal(before.GetQuarantinedVariants(), after.GetQuarantinedVariants())
	weights := slices.EqualFunc(before.GetWeights(), after.GetWeights(), func(a, b *donav1.VariantWeight) bool { return proto.Equal(a, b) })
	switch {
	case f.alone == 0:
		return Claim{false, "no request was answered while the host was dead"}
	case !weights:
		return Claim{false, fmt.Sprintf("the weights changed over the host's restart: %v, then %v", before.GetWeights(), after.GetWeights())}
	case !quarantine:
		return Claim{false, fmt.Sprintf("the quarantine changed over the host's restart: %v, then %v", before.GetQuarantinedVariants(), after.GetQuarantinedVariants())}
	case after.GetVersion() < before.GetVersion():
		return Claim{false, fmt.Sprintf("the version fell over the host's restart: %d, then %d", before.GetVersion(), after.GetVersion())}
	case f.after.GetRollout().GetId() != f.before.GetRollout().GetId() || f.after.GetRollout().GetState() != f.before.GetRollout().GetState():
		return Claim{false, "the host forgot the rollout when it was killed"}
	}
	return Claim{true, fmt.Sprintf("the host was dead (kill -9) for %s, and %d requests were answered in the first %s of that; it came back with the same weights, quarantine and rollout",
		render.Seconds(f.backAfter), f.alone, render.Seconds(f.aloneFor))}
}

// rolledBack wants ROLLED_BACK, the quarantine, no weight, and no request to v3
// since the client applied it.
func rolledBack(seen []sighting, reply *donav1.StatusReply, f *facts) Claim {
	last := lastOf(seen)
	v3, since := f.end.variants["v3"], f.end.requests-f.sinceRollback
	switch {
	case last.state != donav1.RolloutStatus_STATE_ROLLED_BACK:
		return Claim{false, "the bad canary v3 is not ROLLED_BACK: " + course(seen)}
	case last.canary != 0:
		return Claim{false, fmt.Sprintf("the bad canary v3 still has %d %% after it was ROLLED_BACK", last.canary)}
	case !slices.Contains(reply.GetConfig().GetQuarantinedVariants(), "v3"):
		return Claim{false, "the bad canary v3 is ROLLED_BACK and not quarantined"}
	case f.ended && (since <= 0 || v3.last.After(f.rolledBack)):
		return Claim{false, fmt.Sprintf("requests since the rollback: %d, and the last to v3 %s after it", since, v3.last.Sub(f.rolledBack))}
	}
	return Claim{true, fmt.Sprintf("the bad canary v3 was ROLLED_BACK at %d %% after %d requests (%d of them answered 5xx) and quarantined; %d requests since, none to v3",
		steps[last.step], v3.requests, v3.errors, since)}
}

// requests counts what the client saw.
func (s *stage) requests() []Claim {
	t := s.traffic.totals()
	bad := 0
	for name, v := range t.variants {
		if name != "v3" {
			bad += v.errors
		}
	}
	var served []string
	for _, name := range []string{"v1", "v2", "v3"} {
		served = append(served, fmt.Sprintf("%s %d", name, t.variants[name].requests))
	}
	text := fmt.Sprintf("failed requests: %d of %d (%s; the bad variant's %d 5xx answers are not among them)",
		t.failed, t.requests, strings.Join(served, ", "), t.variants["v3"].errors)
	if t.failed > 0 {
		text += ": " + strings.Join(t.failures, "; ")
	}
	out := []Claim{{t.failed == 0 && t.requests > 0, text}}
	if bad > 0 {
		out = append(out, Claim{false, fmt.Sprintf("the good variants answered %d requests with 5xx", bad)})
	}
	return out
}

func lastOf(seen []sighting) sighting {
	if len(seen) == 0 {
		return sighting{}
	}
	return seen[len(seen)-1]
}

// course is what was seen of a rollout, for a reason.
func course(seen []sighting) string {
	var parts []string
	for _, s := range seen {
		parts = append(parts, fmt.Sprintf("%s at %d %%", render.State(s.state), s.percent))
	}
	if len(parts) == 0 {
		return "nothing was seen of it"
	}
	return "seen were " + strings.Join(slices.Compact(parts), ", ")
}
