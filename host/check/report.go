package check

import (
	"context"
	"slices"
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

// Subject is what a checker says that it checked, beside the task: an endpoint's is
// the level alone.
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
	refusedTarget    = "target"     // it carries a routing, URL or exit address that the task does not ask for
	refusedResult    = "bad result" // the result, error class or status is none
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
			reason, err := b.report(tx, checker, r)
			receipts = append(receipts, Receipt{Accepted: reason == "", Reason: reason})
			if g := (group{r.Plane, r.Scope}); reason == "" && !slices.Contains(touched, g) {
				touched = append(touched, g)
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

func (b *Broker) report(tx store.Tx, checker string, r Report) (refused string, err error) {
	p := place{r.Plane, r.Scope, r.ID}
	if b.o.Planes[p.plane] == nil {
		return refusedGone, nil
	}
	t, err := loadCheck(tx, p)
	switch {
	case err != nil:
		return "", err
	case t == nil:
		return refusedGone, nil
	case r.Token != "" && t.ReportedToken == r.Token && t.ReportedBy == checker && misfit(r) == "" && sameFact(t.Seen, r):
		return "", nil // again
	case t.Token == "" || t.Token != r.Token:
		return refusedOvertaken, nil
	case t.Holder != checker:
		return refusedForeign, nil
	}
	if reason := misfit(r); reason != "" {
		return reason, nil
	}
	now := tx.Now().UnixMilli()
	t.Health = Reduce(b.o.Rules, t.Health, Observation{Checker: checker, Result: r.Result, IssuedMs: t.IssuedMs, AtMs: now})
	t.Seen = &statev1.CheckSeen{
		Result: r.Result, ErrorClass: r.ErrorClass, Detail: r.Detail, Status: r.Status,
		LatencyMs: uint32(r.Latency.Milliseconds()), AtMs: now, Checker: checker,
	}
	t.ReportedToken, t.ReportedBy = t.Token, checker
	if err := letGo(tx, p, t); err != nil {
		return "", err
	}
	t.Token, t.Holder, t.LeaseMs, t.Windowed = "", "", 0, false
	t.DueMs = now + milliseconds(b.drawn(wait(b.o.Rules, t.Health)))
	if err := saveCheck(tx, p, t); err != nil {
		return "", err
	}
	if failing(t.Health) || t.Health.Out {
		return "", tx.IndexPut(troubleIndex, group{p.plane, p.scope}.member(), 0)
	}
	return "", nil
}

// sameFact reports whether a report says what was taken from the one before.
func sameFact(seen *statev1.CheckSeen, r Report) bool {
	return seen.GetResult() == r.Result && seen.GetErrorClass() == r.ErrorClass && seen.GetStatus() == r.Status
}

// misfit is why a report does not fit its task, which is an endpoint's; empty when it
// does.
func misfit(r Report) string {
	_, result := results[r.Result]
	_, class := controlplanev1.ErrorClass_name[int32(r.ErrorClass)]
	switch s := r.Subject; {
	case s.Proxy != "":
		return refusedProxy
	case s.Level != basic:
		return refusedLevel
	case s.Routing != "" || s.URL != "" || s.EgressIP != "":
		return refusedTarget
	case !result, !class, r.Status != 0 && (r.Status < 100 || r.Status > 599):
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
