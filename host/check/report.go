package check

import (
	"context"
	"slices"
	"time"

	controlplanev1 "github.com/dodona-project/dodona/proto/controlplane/v1"
	statev1 "github.com/dodona-project/dodona/proto/state/v1"

	"github.com/dodona-project/dodona/host/store"
)

// Report is what a checker saw of a task that it holds.
type Report struct {
	Plane, Scope, ID string
	Token            string
	Result           controlplanev1.HealthObservation_Result
	ErrorClass       controlplanev1.ErrorClass
	Detail           string // one line
	Status           uint32
	Latency          time.Duration
}

// Receipt says what became of a report.
type Receipt struct {
	Accepted bool
	Reason   string // a word why not
}

// Reasons of a report that is refused.
const (
	refusedGone      = "gone"       // there is no such task (any more)
	refusedOvertaken = "overtaken"  // the lease ran out and the task was given away again
	refusedForeign   = "foreign"    // another checker holds it
	refusedResult    = "bad result" // none of the three
)

// Report takes what a checker saw: each observation counts once, for the task and
// the lease that it was made under. The same report again is accepted and changes
// nothing. The receipts are in the order of the reports.
func (b *Broker) Report(ctx context.Context, checker string, reports []Report) ([]Receipt, error) {
	var receipts []Receipt
	err := b.o.Store.Update(ctx, store.Soft, func(tx store.Tx) error {
		receipts = make([]Receipt, 0, len(reports))
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
		return each(touched, func(g group) error { return settle(tx, g) })
	})
	if err != nil {
		return nil, err
	}
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
	if _, known := results[r.Result]; !known {
		return refusedResult, nil
	}
	p := place{r.Plane, r.Scope, r.ID}
	t, err := loadCheck(tx, p)
	switch {
	case err != nil:
		return "", err
	case t == nil:
		return refusedGone, nil
	case r.Token != "" && t.ReportedToken == r.Token && t.ReportedBy == checker:
		return "", nil // again
	case t.Token == "" || t.Token != r.Token:
		return refusedOvertaken, nil
	case t.Holder != checker:
		return refusedForeign, nil
	}
	now := tx.Now().UnixMilli()
	t.Health = Reduce(b.o.Rules, t.Health, Observation{Checker: checker, Result: r.Result, IssuedMs: t.IssuedMs, AtMs: now})
	t.Seen = &statev1.CheckSeen{
		Result: r.Result, ErrorClass: r.ErrorClass, Detail: r.Detail, Status: r.Status,
		LatencyMs: uint32(r.Latency.Milliseconds()), AtMs: now, Checker: checker,
	}
	t.ReportedToken, t.ReportedBy = t.Token, checker
	t.Token, t.Holder, t.LeaseMs = "", "", 0
	t.DueMs = now + milliseconds(b.drawn(wait(b.o.Rules, t.Health)))
	if err := saveCheck(tx, p, t); err != nil {
		return "", err
	}
	if failing(t.Health) || t.Health.Out {
		return "", tx.IndexPut(troubleIndex, group{p.plane, p.scope}.member(), 0)
	}
	return "", nil
}

// drawn is a wait with jitter, so that checks spread by themselves.
func (b *Broker) drawn(d time.Duration) time.Duration {
	return time.Duration(float64(d) * (1 - jitter + 2*jitter*b.o.Random()))
}

var results = map[controlplanev1.HealthObservation_Result]string{
	success: "success", failure: "failure", controlplanev1.HealthObservation_RESULT_INCONCLUSIVE: "inconclusive",
}

func resultWord(r controlplanev1.HealthObservation_Result) string { return results[r] }
