package check

import (
	"context"
	"net/netip"
	"slices"
	"strings"
	"time"

	controlplanev1 "github.com/dodona-project/dodona/proto/controlplane/v1"
	statev1 "github.com/dodona-project/dodona/proto/state/v1"

	"github.com/dodona-project/dodona/host/internal/crash"
	"github.com/dodona-project/dodona/host/store"
)

// Report is what a checker saw of a task that it holds.
type Report struct {
	Plane, Scope, ID string
	Token            string
	Subject          Subject
	Result           controlplanev1.HealthObservation_Result
	ErrorClass       controlplanev1.ErrorClass
	Detail           string // one line
	Status           uint32
	Latency          time.Duration
}

// Name is the name of the task that the report speaks of; empty when that was none.
func (r Report) Name() string {
	if r.Plane == "" {
		return ""
	}
	return place{r.Plane, r.Scope, r.ID}.member()
}

// Subject is what a checker says that it checked, beside the task: of an endpoint the
// level alone, of a proxy that too, of TARGET the routing and the URL. EGRESS may have
// found an address.
type Subject struct {
	Level    controlplanev1.CheckLevel
	Proxy    string
	Routing  string
	URL      string
	EgressIP string
}

// Receipt says what became of a report.
type Receipt struct {
	Accepted bool
	Reason   string // a word why not
}

// Reasons of a report that is refused, in the order in which they are looked for.
const (
	refusedGone      = "gone"       // there is no such task (any more)
	refusedOvertaken = "overtaken"  // the lease ran out and the task was given away again, or it was reported already
	refusedForeign   = "foreign"    // another checker holds it
	refusedProxy     = "proxy"      // it speaks of a proxy that the task is not about
	refusedLevel     = "level"      // it speaks of another level
	refusedTarget    = "target"     // it carries another routing or URL than the task, or an exit address that the task does not ask for
	refusedResult    = "bad result" // the result, error class, status or exit address is none
)

// Report takes what a checker of a host saw: each observation counts once, for the
// task and the lease that it was made under. The same report again is accepted and
// changes nothing. The receipts are in the order of the reports.
func (b *Broker) Report(ctx context.Context, checker string, reports []Report) ([]Receipt, error) {
	return b.take(ctx, checker, reports, func(store.ReadTx) error { return nil })
}

// take takes the reports of a checker that may report.
func (b *Broker) take(ctx context.Context, checker string, reports []Report, may func(store.ReadTx) error) ([]Receipt, error) {
	var receipts []Receipt
	err := b.o.Store.Update(ctx, store.Soft, func(tx store.Tx) error {
		receipts = make([]Receipt, 0, len(reports))
		if err := may(tx); err != nil {
			return err
		}
		var touched []group
		if err := each(reports, func(r Report) error {
			moved, reason, err := b.report(tx, checker, r)
			receipts = append(receipts, Receipt{Accepted: reason == "", Reason: reason})
			for _, g := range moved {
				if !slices.Contains(touched, g) {
					touched = append(touched, g)
				}
			}
			return err
		}); err != nil {
			return err
		}
		if err := each(touched, func(g group) error { return settle(tx, g) }); err != nil {
			return err
		}
		crash.Point("check.inside-report") // reduced, and nobody knows
		return nil
	})
	if err != nil {
		return nil, err
	}
	crash.Point("check.after-report") // it counts, and the checker does not know
	for i, r := range receipts {
		if r.Accepted {
			b.metrics.observations.WithLabelValues(resultWord(reports[i].Result)).Inc()
		} else {
			b.metrics.refused.WithLabelValues(r.Reason).Inc()
		}
	}
	return receipts, nil
}

// report takes one report. moved are the scopes whose schedule changed.
func (b *Broker) report(tx store.Tx, checker string, r Report) (moved []group, refused string, err error) {
	p := place{r.Plane, r.Scope, r.ID}
	plane := b.o.Planes[p.plane]
	if plane == nil {
		return nil, refusedGone, nil
	}
	t, err := loadCheck(tx, p)
	switch {
	case err != nil:
		return nil, "", err
	case t == nil:
		return nil, refusedGone, nil
	case r.Token != "" && t.ReportedToken == r.Token && t.ReportedBy == checker && misfit(t, r) == "" && sameFact(t.Seen, r):
		return nil, "", nil // again
	case t.Token == "" || t.Token != r.Token:
		return nil, refusedOvertaken, nil
	case t.Holder != checker:
		return nil, refusedForeign, nil
	}
	if reason := misfit(t, r); reason != "" {
		return nil, reason, nil
	}
	g, now := group{p.plane, p.scope}, tx.Now().UnixMilli()
	o := Observation{Checker: checker, Result: r.Result, IssuedMs: t.IssuedMs, AtMs: now}
	moved = []group{g}
	var next time.Duration
	bad := false
	if reducer, ok := plane.(Reducer); ok {
		effect, err := b.observe(tx, reducer, p, t, o, r)
		if err != nil {
			return nil, "", err
		}
		if effect.Gone {
			return moved, refusedGone, deleteCheck(tx, p, t)
		}
		next, bad = effect.Wait, effect.Bad
		for _, member := range effect.Sooner {
			if scope, id, ok := strings.Cut(member, "/"); ok {
				earlier, err := b.sooner(tx, place{p.plane, scope, id}, now+milliseconds(b.drawn(b.o.Rules.Suspect)))
				if err != nil {
					return nil, "", err
				}
				if earlier {
					moved = append(moved, group{p.plane, scope})
				}
			}
		}
	} else {
		t.Health = Reduce(b.o.Rules, t.Health, o)
		next = wait(b.o.Rules, t.Health)
	}
	t.Seen = &statev1.CheckSeen{
		Result: r.Result, ErrorClass: r.ErrorClass, Detail: r.Detail, Status: r.Status,
		LatencyMs: uint32(r.Latency.Milliseconds()), AtMs: now, Checker: checker, EgressIp: r.Subject.EgressIP,
	}
	t.ReportedToken, t.ReportedBy = t.Token, checker
	if err := letGo(tx, p, t); err != nil {
		return nil, "", err
	}
	t.Token, t.Holder, t.LeaseMs, t.Windowed, t.Capped, t.Cap = "", "", 0, false, false, ""
	t.DueMs = now + milliseconds(b.drawn(next))
	if err := saveCheck(tx, p, t); err != nil {
		return nil, "", err
	}
	if failing(t.Health) || t.Health.Out || bad {
		return moved, "", tx.IndexPut(troubleIndex, g.member(), 0)
	}
	return moved, "", nil
}

// sameFact reports whether a report says what was taken from the one before.
func sameFact(seen *statev1.CheckSeen, r Report) bool {
	return seen.GetResult() == r.Result && seen.GetErrorClass() == r.ErrorClass && seen.GetStatus() == r.Status && seen.GetEgressIp() == r.Subject.EgressIP
}

// misfit is why a report does not fit its task; empty when it does.
func misfit(t *statev1.Check, r Report) string {
	_, result := results[r.Result]
	_, class := controlplanev1.ErrorClass_name[int32(r.ErrorClass)]
	level := t.Level
	if level == controlplanev1.CheckLevel_CHECK_LEVEL_UNSPECIFIED {
		level = basic
	}
	routing, url := "", ""
	if level == target {
		routing, url = t.Routing, t.Url
	}
	s := r.Subject
	_, bad := netip.ParseAddr(s.EgressIP)
	switch {
	case s.Proxy != t.ProxyId:
		return refusedProxy
	case s.Level != level:
		return refusedLevel
	case s.Routing != routing, s.URL != url, s.EgressIP != "" && level != egress:
		return refusedTarget
	case !result, !class, r.Status != 0 && (r.Status < 100 || r.Status > 599), s.EgressIP != "" && bad != nil:
		return refusedResult
	}
	return ""
}

// drawn is a wait with jitter, so that checks spread by themselves.
func (b *Broker) drawn(d time.Duration) time.Duration {
	return time.Duration(float64(d) * (1 - jitter + 2*jitter*b.o.Random()))
}

var results = map[controlplanev1.HealthObservation_Result]string{
	success: "success", failure: "failure", controlplanev1.HealthObservation_RESULT_INCONCLUSIVE: "inconclusive",
}

func resultWord(r controlplanev1.HealthObservation_Result) string { return results[r] }
