package report

import (
	"crypto/sha256"
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
	calls     map[callKey]uint32
	exposures map[exposureKey]int64
	audits    map[auditKey]uint32
}

type callKey struct {
	program  *decide.Program
	endpoint int32
	success  bool
	latency  uint64 // microseconds, rounded
	second   int64
	code     string
}

type exposureKey struct {
	service string
	flag    string
	variant string
	reason  donav1.Reason
	version uint64
	unit    [sha256.Size]byte
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
	return &gather{calls: map[callKey]uint32{}, exposures: map[exposureKey]int64{}, audits: map[auditKey]uint32{}}
}

func (g *gather) items() int { return len(g.calls) + len(g.exposures) + len(g.audits) }

func (g *gather) half() bool {
	return len(g.calls) > maxCalls/2 || len(g.exposures) > maxExposures/2 || len(g.audits) > maxAudits/2
}

// add takes in one event and returns how many things had no room.
func (g *gather) add(e *event, now time.Time) (lost uint64) {
	if e.view == nil {
		k := callKey{e.program, e.endpoint, e.success, round(uint64(max(0, e.latency.Microseconds()))), now.Unix(), clean(e.text, maxCode)}
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
	k := exposureKey{service: e.program.Service(), version: e.program.Version(), unit: e.digest()}
	note := func() {
		if _, there := g.exposures[k]; there {
			return
		}
		if len(g.exposures) >= maxExposures {
			lost++
			return
		}
		g.exposures[k] = now.UnixMilli()
	}
	k.reason = donav1.Reason_REASON_DEFAULT
	for left := e.missed; left != 0; left &= left - 1 {
		k.flag = e.program.Flag(int32(bits.TrailingZeros64(left)))
		note()
	}
	if e.flag >= 0 {
		k.flag, k.reason, k.variant = e.program.Flag(e.flag), e.reason, e.program.FlagVariant(e.flag, e.endpoint)
		note()
	}
	return lost
}

func count[K comparable](m map[K]uint32, k K, most int) (lost uint64) {
	n, there := m[k]
	if !there && len(m) >= most || n == 1<<31 {
		return 1
	}
	m[k] = n + 1
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
			UnixMs: k.second * 1000, Code: k.code, CallerService: caller, ConfigVersion: k.program.Version(), Count: n,
		})
	}
	for k, at := range g.exposures {
		b.Exposures = append(b.Exposures, &donav1.Exposure{
			Flag: k.flag, Service: k.service, Variant: k.variant, Reason: k.reason, UnitDigest: k.unit[:], UnixMs: at, ConfigVersion: k.version,
		})
	}
	for k, n := range g.audits {
		a := &donav1.AuditEvent{
			Service: k.program.Service(), UnixMs: k.second * 1000, Decision: donav1.AuditEvent_DECISION_ALLOW,
			AllowedRegions: k.view.Allowed(), RuleId: k.program.RuleID(), RequestId: k.id, ConfigVersion: k.program.Version(), Count: n,
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
