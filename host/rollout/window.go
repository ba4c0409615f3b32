package rollout

import (
	"cmp"
	"slices"
	"time"

	donav1 "github.com/dodona-project/dodona/proto/dona/v1"
	statev1 "github.com/dodona-project/dodona/proto/state/v1"

	"github.com/dodona-project/dodona/host/limits"
	"github.com/dodona-project/dodona/host/store"
)

const (
	// windowSeconds is how far back the rolling window looks, in buckets of 1 s.
	windowSeconds = 60
	// maxVariants is how many variants of a service have a window of their own;
	// the calls of any more are counted under otherVariant.
	maxVariants  = limits.StatsVariants
	otherVariant = "other"
)

func windowKey(service, variant string) string { return "win/" + service + "/" + variant }
func windowIndex(service string) string        { return "win/" + service }

// Report adds calls of one service to its rolling windows and, when a step of a
// rollout is running, to that step's counts. wall is the host's wall clock at
// receipt. The caller has fenced the batch, so each call comes here once; calls
// outside the limits it should have dropped are left out again.
//
// A call counts for the step when it was decided on the step's weights: its
// config version is not below the one that began the step. A call that names no
// version counts from the moment the step began.
func (c *Controller) Report(tx store.Tx, service string, calls []*donav1.CallOutcome, wall time.Time) error {
	calls = slices.DeleteFunc(slices.Clone(calls), func(call *donav1.CallOutcome) bool { return !usable(call, service, wall) })
	if len(calls) == 0 {
		return nil
	}
	if err := addToWindows(tx, service, calls, wall); err != nil {
		return err
	}
	var r statev1.Rollout
	if _, err := store.Load(tx, recordKey(service), &r); err != nil {
		return err
	}
	if !running(&r) {
		return nil
	}
	counts, err := loadCounts(tx, service, &r)
	if err != nil {
		return err
	}
	changed := false
	for _, call := range calls {
		h := counts.Canary
		switch call.GetVariant() {
		case r.GetSpec().GetCanaryVariant():
		case r.GetSpec().GetStableVariant():
			h = counts.Stable
		default:
			continue
		}
		if ofStep(call, &r) {
			record(h, call.GetLatencyUs(), countOf(call), call.GetSuccess())
			changed = true
		}
	}
	if !changed {
		return nil
	}
	return store.Save(tx, countsKey(service), counts)
}

func usable(call *donav1.CallOutcome, service string, wall time.Time) bool {
	at := call.GetUnixMs()
	return (call.GetService() == service || call.GetService() == "") &&
		limits.Name(call.GetVariant()) == nil &&
		call.GetCount() <= limits.CountPerItem &&
		at <= wall.Add(limits.ReportAhead).UnixMilli() &&
		at >= wall.Add(-limits.ReportBehind).UnixMilli()
}

func countOf(call *donav1.CallOutcome) uint64 { return uint64(max(call.GetCount(), 1)) }

// running reports whether the record's rollout has a step that is judged.
func running(r *statev1.Rollout) bool {
	s, err := stateOf(r)
	return err == nil && s.inStep()
}

func ofStep(call *donav1.CallOutcome, r *statev1.Rollout) bool {
	if call.GetConfigVersion() == 0 {
		return call.GetUnixMs() >= r.GetStepStartedUnixMs()
	}
	return call.GetConfigVersion() >= r.GetWeightsVersion()
}

// loadCounts reads what the reports of the record's step add up to. Counts of
// another rollout or step read as none.
func loadCounts(tx store.ReadTx, service string, r *statev1.Rollout) (*statev1.StepCounts, error) {
	var c statev1.StepCounts
	if _, err := store.Load(tx, countsKey(service), &c); err != nil {
		return nil, err
	}
	if c.GetRolloutId() != r.GetId() || c.GetStepIndex() != r.GetStepIndex() || c.GetWeightsVersion() != r.GetWeightsVersion() {
		c = statev1.StepCounts{RolloutId: r.GetId(), StepIndex: r.GetStepIndex(), WeightsVersion: r.GetWeightsVersion()}
	}
	if c.Canary == nil {
		c.Canary = &statev1.Histogram{}
	}
	if c.Stable == nil {
		c.Stable = &statev1.Histogram{}
	}
	return &c, nil
}

func addToWindows(tx store.Tx, service string, calls []*donav1.CallOutcome, wall time.Time) error {
	oldest := wall.Unix() - windowSeconds
	byVariant := map[string][]*donav1.CallOutcome{}
	for _, call := range calls {
		if call.GetUnixMs()/1000 > oldest {
			byVariant[call.GetVariant()] = append(byVariant[call.GetVariant()], call)
		}
	}
	variants := make([]string, 0, len(byVariant))
	for variant := range byVariant {
		variants = append(variants, variant)
	}
	slices.Sort(variants)
	var admit *admission
	var rest []*donav1.CallOutcome // of variants without a window of their own
	for _, variant := range variants {
		var w statev1.Window
		version, err := store.Load(tx, windowKey(service, variant), &w)
		if err != nil {
			return err
		}
		if version == 0 {
			if admit == nil {
				if admit, err = admissions(tx, service, oldest); err != nil {
					return err
				}
			}
			if !admit.take() {
				rest = append(rest, byVariant[variant]...)
				continue
			}
		}
		if err := addToWindow(tx, service, variant, &w, byVariant[variant], oldest); err != nil {
			return err
		}
	}
	if len(rest) == 0 {
		return nil
	}
	var w statev1.Window
	if _, err := store.Load(tx, windowKey(service, otherVariant), &w); err != nil {
		return err
	}
	return addToWindow(tx, service, otherVariant, &w, rest, oldest)
}

// addToWindow adds calls, of which there is one at least, to a variant's window w
// and saves it.
func addToWindow(tx store.Tx, service, variant string, w *statev1.Window, calls []*donav1.CallOutcome, oldest int64) error {
	dropBefore(w, oldest)
	for _, call := range calls {
		record(bucketAt(w, call.GetUnixMs()/1000), call.GetLatencyUs(), countOf(call), call.GetSuccess())
	}
	newest := w.Buckets[len(w.Buckets)-1].GetSecond()
	if err := tx.IndexPut(windowIndex(service), variant, uint64(newest)); err != nil {
		return err
	}
	return store.Save(tx, windowKey(service, variant), w)
}

// admission says whether one more variant may have a window of its own.
type admission struct{ held int }

// admissions counts the windows in use, after dropping those that hold nothing
// any more.
func admissions(tx store.Tx, service string, oldest int64) (*admission, error) {
	index := windowIndex(service)
	past, err := tx.Scan(index, 0, uint64(max(oldest, 0)), 0)
	if err != nil {
		return nil, err
	}
	for _, e := range past {
		if err := tx.IndexDelete(index, e.Member); err != nil {
			return nil, err
		}
		if err := tx.Delete(windowKey(service, e.Member)); err != nil {
			return nil, err
		}
	}
	held, err := tx.Scan(index, 0, store.MaxScore, 0)
	if err != nil {
		return nil, err
	}
	return &admission{held: len(held)}, nil
}

func (a *admission) take() bool {
	if a.held >= maxVariants {
		return false
	}
	a.held++
	return true
}

func bucketAt(w *statev1.Window, second int64) *statev1.Histogram {
	at, found := slices.BinarySearchFunc(w.Buckets, second, func(b *statev1.Bucket, s int64) int { return cmp.Compare(b.GetSecond(), s) })
	if !found {
		w.Buckets = slices.Insert(w.Buckets, at, &statev1.Bucket{Second: second})
	}
	if w.Buckets[at].Calls == nil {
		w.Buckets[at].Calls = &statev1.Histogram{}
	}
	return w.Buckets[at].Calls
}

// Stats sums up the last minute of each variant of a service, sorted by
// variant. Latencies are in microseconds and exact to 1/8. A variant that had no
// call in the window is left out.
func (c *Controller) Stats(tx store.ReadTx, service string, wall time.Time) ([]*donav1.VariantStats, error) {
	oldest := wall.Unix() - windowSeconds
	members, err := tx.Scan(windowIndex(service), uint64(max(oldest, 0))+1, store.MaxScore, 0)
	if err != nil || len(members) == 0 {
		return nil, err
	}
	slices.SortFunc(members, func(a, b store.Entry) int { return cmp.Compare(a.Member, b.Member) })
	if err := store.Fetch(tx, members, func(variant string) string { return windowKey(service, variant) }); err != nil {
		return nil, err
	}
	var stats []*donav1.VariantStats
	for _, m := range members {
		var w statev1.Window
		if _, err := store.Load(tx, windowKey(service, m.Member), &w); err != nil {
			return nil, err
		}
		dropBefore(&w, oldest)
		var sum statev1.Histogram
		for _, b := range w.Buckets {
			addTo(&sum, b.GetCalls())
		}
		if sum.Requests == 0 {
			continue
		}
		stats = append(stats, &donav1.VariantStats{
			Variant: m.Member, Requests: sum.Requests, Errors: sum.Errors, WindowSeconds: windowSeconds,
			P50Us: quantile(&sum, 0.50), P95Us: quantile(&sum, 0.95), P99Us: quantile(&sum, 0.99),
		})
	}
	return stats, nil
}
