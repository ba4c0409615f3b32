package service

import (
	"cmp"
	"context"
	"crypto/sha256"
	"errors"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	donav1 "github.com/dodona-project/dodona/proto/dona/v1"
	statev1 "github.com/dodona-project/dodona/proto/state/v1"
	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/protobuf/proto"

	"github.com/dodona-project/dodona/host/audit"
	"github.com/dodona-project/dodona/host/limits"
	"github.com/dodona-project/dodona/host/refusal"
	"github.com/dodona-project/dodona/host/session"
	"github.com/dodona-project/dodona/host/store"
)

// A CallCounter adds reported calls to the windows that rollouts are judged by.
type CallCounter interface {
	Report(tx store.Tx, service string, calls []*donav1.CallOutcome, wall time.Time) error
}

// Reports takes what clients report: each batch once, each item checked on its
// own, audits durable before the answer. Safe for concurrent use.
type Reports struct {
	plane   *Plane
	counter CallCounter
	wall    func() time.Time // judges the items' times
	dropped *prometheus.CounterVec
}

// Why an item was dropped, as the metric says it.
const (
	dropTime  = "time" // of a client whose clock is off, or that reports late
	dropOther = "other"
)

// NewReports returns the way in for reports. reg may be nil.
func NewReports(plane *Plane, counter CallCounter, wall func() time.Time, reg prometheus.Registerer) *Reports {
	dropped := prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "dona_report_items_dropped_total",
		Help: "Items of reports that were not counted: time is more than 5 s ahead of this host or 5 min behind, other is all else.",
	}, []string{"reason"})
	for _, reason := range []string{dropTime, dropOther} {
		dropped.WithLabelValues(reason)
	}
	if reg != nil {
		reg.MustRegister(dropped)
	}
	return &Reports{plane: plane, counter: counter, wall: wall, dropped: dropped}
}

// Reporter is who sends reports.
type Reporter struct {
	Actor   string // as audit entries name it
	Service string // the one it belongs to; empty = it may report of any
}

// Name tells apart what reporters of several services call by one id; an empty id has
// no name.
func (r Reporter) Name(id string) string {
	if r.Service == "" || id == "" {
		return id
	}
	return r.Service + "/" + id
}

// CheckBatch says what is wrong with a batch as a whole. What is wrong with an
// item only drops that item.
func CheckBatch(b *donav1.StatsBatch) error {
	if n := len(b.Calls) + len(b.Exposures) + len(b.Audits) + len(b.Applied); n > limits.StatsItems {
		return refusal.Field("calls", "and the other lists have %d items: allowed are at most %d a batch", n, limits.StatsItems)
	}
	if b.Sequence == 0 {
		if len(b.Exposures)+len(b.Audits)+len(b.Applied) > 0 {
			return refusal.Field("sequence", "is 0: a batch that is not fenced may hold calls only")
		}
		if b.ReporterId == "" {
			return nil
		}
	}
	return refusal.Check("reporter_id", limits.ID(b.ReporterId))
}

// Take counts a batch and returns the acknowledgement, and those of its applied
// versions that hold (none for a replay). Items about a service that is shared with
// others than the reporter's are dropped. Refusals: Invalid, AlreadyExists (same
// sequence, other content), Aborted (an older sequence).
func (r *Reports) Take(ctx context.Context, by Reporter, b *donav1.StatsBatch) (ack *donav1.ReportAck, applied []*donav1.AppliedConfig, err error) {
	if err := CheckBatch(b); err != nil {
		return nil, nil, err
	}
	digest, err := batchDigest(b)
	if err != nil {
		return nil, nil, err
	}
	wall := r.wall()
	var dropped, offTime uint32 // here, and not when a replay was acknowledged again
	durability := store.Soft
	if len(b.Audits) > 0 {
		durability = store.Hard
	}
	err = r.plane.store.Update(ctx, durability, func(tx store.Tx) error {
		ack, applied, dropped, offTime = &donav1.ReportAck{AcceptedSequence: b.Sequence}, nil, 0, 0
		fence, err := session.Fence(tx, by.Name(b.ReporterId), b.Sequence, digest)
		if err != nil {
			return err
		}
		if fence.Kind == session.Replay {
			ack.Dropped = fence.Dropped
			return nil
		}
		take := taking{plane: r.plane, tx: tx, by: by, wall: wall, known: map[string]*statev1.ServiceHead{}, broken: map[string]bool{}}
		if err := take.all(r.counter, b, fence.Gap); err != nil {
			return err
		}
		ack.Dropped, applied = take.dropped, take.applied
		dropped, offTime = take.dropped, take.offTime
		if fence.Kind == session.Accepted && take.dropped > 0 {
			return session.FenceDropped(tx, by.Name(b.ReporterId), take.dropped)
		}
		return nil
	})
	if err == nil {
		r.dropped.WithLabelValues(dropTime).Add(float64(offTime))
		r.dropped.WithLabelValues(dropOther).Add(float64(dropped - offTime))
	}
	return ack, applied, err
}

// batchDigest is the SHA-256 of the batch without its sequence.
func batchDigest(b *donav1.StatsBatch) (digest [sha256.Size]byte, err error) {
	bare := &donav1.StatsBatch{Calls: b.Calls, Exposures: b.Exposures, Audits: b.Audits, ReporterId: b.ReporterId, Applied: b.Applied}
	bytes, err := proto.MarshalOptions{Deterministic: true}.Marshal(bare)
	return sha256.Sum256(bytes), err
}

// taking is one batch in one run of its transaction.
type taking struct {
	plane   *Plane
	tx      store.Tx
	by      Reporter
	wall    time.Time
	known   map[string]*statev1.ServiceHead // nil value = no such service
	broken  map[string]bool                 // whether its chain takes no entry
	dropped uint32
	offTime uint32 // of them, those of a time that may not be
	applied []*donav1.AppliedConfig
}

func (t *taking) all(counter CallCounter, b *donav1.StatsBatch, gap uint64) error {
	services := map[string]bool{}
	if err := t.calls(counter, b.Calls, services); err != nil {
		return err
	}
	if err := t.exposures(b.Exposures, services); err != nil {
		return err
	}
	if err := t.audits(b.Audits, services); err != nil {
		return err
	}
	for _, a := range b.Applied {
		head, err := t.head(a.GetService())
		if err != nil {
			return err
		}
		if head == nil || limits.Text(a.RejectedReason, limits.RejectedLen) != nil {
			t.dropped++
			continue
		}
		t.applied = append(t.applied, a)
	}
	if gap == 0 {
		return nil
	}
	for _, service := range slices.Sorted(maps.Keys(services)) {
		if broken, err := t.chainBroken(service); err != nil {
			return err
		} else if broken {
			continue // a batch is of others, too
		}
		if err := t.plane.audit.Append(t.tx, service, audit.Entry{Kind: "stats.gap", Actor: t.by.Actor, Detail: map[string]string{
			"reporter_id": b.ReporterId, "missing": strconv.FormatUint(gap, 10),
		}}); err != nil {
			return err
		}
	}
	return nil
}

// head reads a service's head once a batch; nil when there is no such service, its
// head is damaged, or the reporter may not call it, and its items are dropped.
func (t *taking) head(service string) (*statev1.ServiceHead, error) {
	if head, seen := t.known[service]; seen {
		return head, nil
	}
	var head *statev1.ServiceHead
	if limits.Service(service) == nil {
		var read statev1.ServiceHead
		version, err := load(t.tx, headKey(service), &read)
		if err != nil && !errors.Is(err, store.ErrDamaged) {
			return nil, err
		}
		if version != 0 {
			may, err := t.mayReport(service)
			if err != nil {
				return nil, err
			}
			if may {
				head = &read
			}
		}
		t.known[service] = head
	}
	return head, nil
}

// mayReport reports whether the reporter's service is one of those that may call
// another. Regions are not asked for: a report comes from wherever its client is now.
func (t *taking) mayReport(service string) (bool, error) {
	if t.by.Service == "" || t.by.Service == service {
		return true, nil
	}
	shared, err := t.plane.Shared(t.tx, service)
	if errors.Is(err, store.ErrDamaged) {
		return false, nil
	}
	return consumes(shared, t.by.Service), err
}

// chainBroken reports whether a service's chain is damaged and takes no entry. What
// would have to be chained is dropped then, since the batch is of others, too.
func (t *taking) chainBroken(service string) (bool, error) {
	if broken, seen := t.broken[service]; seen {
		return broken, nil
	}
	_, _, err := t.plane.audit.Head(t.tx, service)
	broken := errors.Is(err, store.ErrDamaged)
	if err != nil && !broken {
		return false, err
	}
	t.broken[service] = broken
	return broken, nil
}

// current reports, once for each item, whether its time is within what a report may name.
func (t *taking) current(unixMS int64) bool {
	at := time.UnixMilli(unixMS)
	if at.After(t.wall.Add(limits.ReportAhead)) || at.Before(t.wall.Add(-limits.ReportBehind)) {
		t.offTime++
		return false
	}
	return true
}

func (t *taking) calls(counter CallCounter, calls []*donav1.CallOutcome, services map[string]bool) error {
	byService := map[string][]*donav1.CallOutcome{}
	for _, c := range calls {
		head, err := t.head(c.GetService())
		if err != nil {
			return err
		}
		if head == nil || !t.callHolds(head, c) {
			t.dropped++
			continue
		}
		byService[c.Service] = append(byService[c.Service], c)
		services[c.Service] = true
	}
	for _, service := range slices.Sorted(maps.Keys(byService)) {
		err := counter.Report(t.tx, service, byService[service], t.wall)
		if err == nil {
			err = t.endpointCalls(service, byService[service])
		}
		switch {
		case errors.Is(err, store.ErrDamaged): // of this service, and the batch is of others, too
			t.dropped += uint32(len(byService[service]))
		case err != nil:
			return err
		}
	}
	return nil
}

func (t *taking) callHolds(head *statev1.ServiceHead, c *donav1.CallOutcome) bool {
	return t.current(c.UnixMs) &&
		slices.ContainsFunc(head.Cells, func(cell *statev1.Cell) bool { return cell.Variant == c.Variant }) &&
		(c.EndpointId == "" || limits.ID(c.EndpointId) == nil) &&
		(c.CallerService == "" || limits.Service(c.CallerService) == nil) &&
		limits.Text(c.Code, limits.CodeLen) == nil &&
		c.LatencyUs <= limits.LatencyUs && uint64(c.Count) <= limits.CountPerItem
}

func (t *taking) endpointCalls(service string, calls []*donav1.CallOutcome) error {
	sums := map[string]*Calls{}
	for _, c := range calls {
		if c.EndpointId == "" {
			continue
		}
		sum := sums[c.EndpointId]
		if sum == nil {
			sum = &Calls{}
			sums[c.EndpointId] = sum
		}
		sum.Add(c)
	}
	for _, id := range slices.Sorted(maps.Keys(sums)) {
		if err := t.plane.CountCalls(t.tx, service, id, *sums[id]); err != nil {
			return err
		}
	}
	return nil
}

// audits chains the decisions that residency rules took part in: one line per
// (decision, regions, endpoint, rule, config version) of the batch.
func (t *taking) audits(events []*donav1.AuditEvent, services map[string]bool) error {
	type key struct {
		service  string
		decision donav1.AuditEvent_Decision
		regions  string
		endpoint string
		region   string
		rule     string
		version  uint64
	}
	counts := map[key]uint64{}
	for _, e := range events {
		head, err := t.head(e.GetService())
		if err != nil {
			return err
		}
		if head == nil || !t.decisionHolds(e) {
			t.dropped++
			continue
		}
		if broken, err := t.chainBroken(e.Service); err != nil {
			return err
		} else if broken {
			t.dropped++
			continue
		}
		regions := slices.Clone(e.AllowedRegions)
		slices.Sort(regions)
		counts[key{e.Service, e.Decision, audit.Value(regions), e.EndpointId, e.EndpointRegion, e.RuleId, e.ConfigVersion}] += uint64(max(e.Count, 1))
		services[e.Service] = true
	}
	keys := slices.SortedFunc(maps.Keys(counts), func(a, b key) int {
		return cmp.Or(cmp.Compare(a.service, b.service), cmp.Compare(a.decision, b.decision), cmp.Compare(a.regions, b.regions),
			cmp.Compare(a.endpoint, b.endpoint), cmp.Compare(a.region, b.region), cmp.Compare(a.rule, b.rule), cmp.Compare(a.version, b.version))
	})
	for _, k := range keys {
		if err := t.plane.audit.Append(t.tx, k.service, audit.Entry{Kind: "call.decision", Actor: t.by.Actor, Detail: map[string]string{
			"decision": word(k.decision.String(), "DECISION_"), "allowed_regions": k.regions,
			"endpoint_id": k.endpoint, "endpoint_region": k.region, "rule_id": k.rule,
			"config_version": strconv.FormatUint(k.version, 10), "count": strconv.FormatUint(counts[k], 10),
		}}); err != nil {
			return err
		}
	}
	return nil
}

func (t *taking) decisionHolds(e *donav1.AuditEvent) bool {
	return t.current(e.UnixMs) &&
		(e.Decision == donav1.AuditEvent_DECISION_ALLOW || e.Decision == donav1.AuditEvent_DECISION_DENY) &&
		CheckRegions("", e.AllowedRegions) == nil &&
		(e.EndpointId == "" || limits.ID(e.EndpointId) == nil) &&
		limits.OptionalName(e.EndpointRegion) == nil &&
		(e.RuleId == "" || limits.ID(e.RuleId) == nil) &&
		limits.Text(e.RequestId, limits.RequestIDLen) == nil && uint64(e.Count) <= limits.CountPerItem
}

// word is an enum value as people and logs write it: allow for DECISION_ALLOW.
func word(name, prefix string) string {
	return strings.ToLower(strings.TrimPrefix(name, prefix))
}
