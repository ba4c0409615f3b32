package report

import (
	"math/bits"
	"strings"
	"time"

	donav1 "github.com/dodona-project/dodona/proto/dona/v1"
	"github.com/dodona-project/dodona/sdk/dona/decide"
)

// Bounds of one batch. A host takes 4,096 items; the rest is for applied versions.
// A batch that is full of one thing still has room for the others.
const (
	maxCalls     = 2048
	maxExposures = 1024
	maxAudits    = 896
	maxCode      = 32
	maxID        = 128
)

// gather is a batch in the making: equal things are folded into one.
type gather struct {
	calls     map[callKey]*uint32
	exposures map[exposureKey]*exposed
	exposed   int // exposures: one per flag
	audits    map[auditKey]*uint32
}

type callKey struct {
	program  *decide.Program
	endpoint int32
	success  bool
	latency  uint64 // microseconds, rounded
	second   int64
	code     string
}

// exposureKey is a unit on a snapshot. Flags are told apart by bits, so that a
// decision that passed ten flags is looked up once.
type exposureKey struct {
	program *decide.Program
	unit    unit
}

// exposed is what a unit was exposed to.
type exposed struct {
	missed uint64 // flags that did not take it, noted so far
	notes  []exposure
}

// exposure is a set of flags with the same outcome, noted at the same time.
type exposure struct {
	missed  uint64 // or
	flag    int32  // the one that decided; -1 = none
	reason  uint8
	variant string
	at      int64 // Unix milliseconds
}

type auditKey struct {
	program  *decide.Program
	view     *decide.View
	endpoint int32
	denied   bool
	second   int64
	id       string
}

func newGather() *gather {
	return &gather{calls: map[callKey]*uint32{}, exposures: map[exposureKey]*exposed{}, audits: map[auditKey]*uint32{}}
}

func (g *gather) items() int { return len(g.calls) + g.exposed + len(g.audits) }

func (g *gather) half() bool {
	return len(g.calls) > maxCalls/2 || g.exposed > maxExposures/2 || len(g.audits) > maxAudits/2
}

// add takes in one event and returns how many things had no room.
func (g *gather) add(e *event, now time.Time) (lost uint64) {
	if e.view == nil {
		k := callKey{e.program, e.endpoint, e.success, round(uint64(e.latency)), now.Unix(), clean(e.text, maxCode)}
		return count(g.calls, k, maxCalls)
	}
	if e.unitLen != 0 {
		lost += g.expose(e, now)
	}
	// An audit says who served or that nobody may. When nobody could, for another
	// reason than residency, there is nothing to prove.
	if e.view.Constrained() && (e.denied || e.endpoint >= 0) {
		k := auditKey{e.program, e.view, e.endpoint, e.denied, now.Unix(), clean(e.text, maxID)}
		lost += count(g.audits, k, maxAudits)
	}
	return lost
}

// expose notes each flag that was evaluated. The same unit, flag and outcome on
// the same version is one exposure per batch.
func (g *gather) expose(e *event, now time.Time) (lost uint64) {
	if e.missed == 0 && e.flag < 0 {
		return 0
	}
	k := exposureKey{e.program, e.who()}
	x := g.exposures[k]
	if x == nil {
		if g.exposed >= maxExposures {
			lost = uint64(bits.OnesCount64(e.missed))
			if e.flag >= 0 {
				lost++
			}
			return lost
		}
		x = &exposed{}
		g.exposures[k] = x
	}
	at := now.UnixMilli()
	fresh := e.missed &^ x.missed
	for g.exposed+bits.OnesCount64(fresh) > maxExposures {
		fresh &^= 1 << (bits.Len64(fresh) - 1)
		lost++
	}
	if fresh != 0 {
		x.missed |= fresh
		x.notes = append(x.notes, exposure{missed: fresh, flag: -1, at: at})
		g.exposed += bits.OnesCount64(fresh)
	}
	if e.flag < 0 {
		return lost
	}
	hit := exposure{flag: e.flag, reason: e.reason, variant: e.program.FlagVariant(e.flag, e.endpoint), at: at}
	for i := range x.notes {
		if n := &x.notes[i]; n.flag == hit.flag && n.reason == hit.reason && n.variant == hit.variant {
			return lost
		}
	}
	if g.exposed >= maxExposures {
		return lost + 1
	}
	x.notes = append(x.notes, hit)
	g.exposed++
	return lost
}

func count[K comparable](m map[K]*uint32, k K, most int) (lost uint64) {
	n := m[k]
	switch {
	case n == nil && len(m) >= most, n != nil && *n == 1<<31:
		return 1
	case n == nil:
		n = new(uint32)
		m[k] = n
	}
	*n++
	return 0
}

// clean cuts a text to size, valid and without control characters: one bad item
// must not spoil what a host would take.
func clean(s string, most int) string {
	bad := len(s) > most
	for i := 0; i < len(s) && !bad; i++ {
		bad = s[i] < 0x20 || s[i] >= 0x7f
	}
	if !bad {
		return s
	}
	s = strings.Map(func(r rune) rune {
		if r < 0x20 || r == 0x7f {
			return -1
		}
		return r
	}, strings.ToValidUTF8(s, ""))
	if len(s) > most {
		s = strings.ToValidUTF8(s[:most], "")
	}
	return s
}

// round keeps the five highest bits of a latency, so that outcomes fold: the error
// is at most 1 in 32.
func round(us uint64) uint64 {
	if drop := bits.Len64(us) - 5; drop > 0 {
		us += 1 << (drop - 1)
		us = us >> drop << drop
	}
	return us
}

// fill turns what was gathered into the items of a batch.
func (g *gather) fill(b *donav1.StatsBatch, caller string) {
	for k, n := range g.calls {
		e := k.program.Endpoint(k.endpoint)
		b.Calls = append(b.Calls, &donav1.CallOutcome{
			Service: k.program.Service(), Variant: e.Variant, EndpointId: e.ID, Success: k.success, LatencyUs: k.latency,
			UnixMs: k.second * 1000, Code: k.code, CallerService: caller, ConfigVersion: k.program.Version(), Count: *n,
		})
	}
	for k, x := range g.exposures {
		digest := k.unit.digest()
		note := func(flag int32, n *exposure, reason donav1.Reason) {
			b.Exposures = append(b.Exposures, &donav1.Exposure{
				Flag: k.program.Flag(flag), Service: k.program.Service(), Variant: n.variant, Reason: reason,
				UnitDigest: digest[:], UnixMs: n.at, ConfigVersion: k.program.Version(),
			})
		}
		for i := range x.notes {
			n := &x.notes[i]
			for left := n.missed; left != 0; left &= left - 1 {
				note(int32(bits.TrailingZeros64(left)), n, donav1.Reason_REASON_DEFAULT)
			}
			if n.flag >= 0 {
				note(n.flag, n, donav1.Reason(n.reason))
			}
		}
	}
	for k, n := range g.audits {
		a := &donav1.AuditEvent{
			Service: k.program.Service(), UnixMs: k.second * 1000, Decision: donav1.AuditEvent_DECISION_ALLOW,
			AllowedRegions: k.view.Allowed(), RuleId: k.program.RuleID(), RequestId: k.id, ConfigVersion: k.program.Version(), Count: *n,
		}
		if k.denied {
			a.Decision = donav1.AuditEvent_DECISION_DENY
		}
		if k.endpoint >= 0 {
			e := k.program.Endpoint(k.endpoint)
			a.EndpointId, a.EndpointRegion = e.ID, e.Region
		}
		b.Audits = append(b.Audits, a)
	}
}
