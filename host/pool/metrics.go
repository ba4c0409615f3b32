package pool

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/protobuf/proto"

	controlplanev1 "github.com/dodona-project/dodona/proto/controlplane/v1"

	"github.com/dodona-project/dodona/host/pool/ownership"
	"github.com/dodona-project/dodona/host/refusal"
	"github.com/dodona-project/dodona/host/store"
)

// countEvery is how often what the store holds is counted for the gauges: each host reads
// every proxy for it.
const countEvery = 15 * time.Second

// Words for what becomes of an extraction.
const (
	extractedAll     = "given"
	extractedSome    = "short"
	extractedAgain   = "replayed"
	extractedNone    = "none"
	extractedRefused = "refused"
	extractedFailed  = "failed"
)

// refusals are the kinds of no that a worker's report is refused with.
var refusals = map[refusal.Kind]string{
	refusal.Invalid: "invalid", refusal.Precondition: "session", refusal.Aborted: "overtaken", refusal.AlreadyExists: "conflict", refusal.Unavailable: "unavailable",
}

// metrics of one host. What the store holds is as of the last count.
type metrics struct {
	extractions *prometheus.CounterVec
	refused     *prometheus.CounterVec
	bytes       *prometheus.HistogramVec
	counted     atomic.Pointer[counts]

	workers, proxies, drains, age *prometheus.Desc
}

// counts are what the store held at one moment.
type counts struct {
	workers map[string]int
	drains  map[controlplanev1.DrainTicket_State]int
	proxies []*controlplanev1.UpstreamAvailability // of what is configured
	oldest  time.Duration                          // since the snapshot was made that a live worker goes by; the longest
}

func newMetrics(reg prometheus.Registerer) *metrics {
	vec := func(name, label, help string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, []string{label})
	}
	m := &metrics{
		extractions: vec("dona_pool_extractions_total", "result", "Extractions that this host answered, by result."),
		refused:     vec("dona_pool_reports_refused_total", "reason", "Runtime reports and batches of outcomes that were refused, by reason."),
		bytes: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "dona_pool_snapshot_bytes", Help: "Sizes of what workers were sent, by form.", Buckets: prometheus.ExponentialBuckets(1<<10, 4, 8),
		}, []string{"form"}),
		workers: prometheus.NewDesc("dona_pool_workers", "Workers in the whole store, by state.", []string{"state"}, nil),
		proxies: prometheus.NewDesc("dona_pool_proxies", "Proxies of the configured upstreams, by state.", []string{"upstream", "state"}, nil),
		drains:  prometheus.NewDesc("dona_pool_drains", "Drains under way, by stage.", []string{"stage"}, nil),
		age:     prometheus.NewDesc("dona_pool_snapshot_age_seconds", "Age of the oldest snapshot that a live worker has acknowledged last.", nil, nil),
	}
	for _, result := range []string{extractedAll, extractedSome, extractedAgain, extractedNone, extractedRefused, extractedFailed} {
		m.extractions.WithLabelValues(result)
	}
	for _, reason := range refusals {
		m.refused.WithLabelValues(reason)
	}
	m.bytes.WithLabelValues("full")
	m.bytes.WithLabelValues("delta")
	if reg != nil {
		reg.MustRegister(m.extractions, m.refused, m.bytes, m)
	}
	return m
}

// extracted counts an answer to an extraction.
func (m *metrics) extracted(resp *controlplanev1.ExtractResponse, err error) {
	var no *refusal.Error
	result := extractedAll
	switch {
	case refusal.Is(err, refusal.Exhausted):
		result = extractedNone
	case errors.As(err, &no) && no.Kind != refusal.Unavailable:
		result = extractedRefused
	case err != nil:
		result = extractedFailed
	case resp.Replayed:
		result = extractedAgain
	case resp.Shortfall > 0:
		result = extractedSome
	}
	m.extractions.WithLabelValues(result).Inc()
}

// reported counts a report that was refused.
func (m *metrics) reported(err error) {
	var no *refusal.Error
	if errors.As(err, &no) && refusals[no.Kind] != "" {
		m.refused.WithLabelValues(refusals[no.Kind]).Inc()
	}
}

// sent counts a frame that a worker was sent.
func (m *metrics) sent(u *controlplanev1.SnapshotUpdate) {
	form := "full"
	if u.GetDelta() != nil {
		form = "delta"
	}
	m.bytes.WithLabelValues(form).Observe(float64(proto.Size(u)))
}

// Describe implements prometheus.Collector.
func (m *metrics) Describe(to chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{m.workers, m.proxies, m.drains, m.age} {
		to <- d
	}
}

// Collect implements prometheus.Collector.
func (m *metrics) Collect(to chan<- prometheus.Metric) {
	c := m.counted.Load()
	if c == nil {
		c = &counts{} // nothing was counted yet
	}
	gauge := func(d *prometheus.Desc, n float64, labels ...string) {
		to <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, n, labels...)
	}
	for _, state := range []string{"live", "refusing", "leaving", "silent"} {
		gauge(m.workers, float64(c.workers[state]), state)
	}
	for _, stage := range []controlplanev1.DrainTicket_State{ownership.Pending, ownership.Bound} {
		gauge(m.drains, float64(c.drains[stage]), strings.ToLower(strings.TrimPrefix(stage.String(), "STATE_")))
	}
	for _, u := range c.proxies {
		for n := range controlplanev1.ProxyStatus_State_name {
			if state := controlplanev1.ProxyStatus_State(n); state != controlplanev1.ProxyStatus_STATE_UNSPECIFIED {
				name := strings.TrimPrefix(state.String(), "STATE_")
				gauge(m.proxies, float64(u.ByState[name]), u.Upstream, strings.ToLower(name))
			}
		}
	}
	gauge(m.age, c.oldest.Seconds())
}

// count reads what the gauges show.
func (p *Pool) count(ctx context.Context) error {
	c := &counts{}
	available, err := p.Availability(ctx)
	if err != nil {
		return err
	}
	if err := p.o.Store.View(ctx, func(tx store.ReadTx) error {
		*c = counts{workers: map[string]int{}, drains: map[controlplanev1.DrainTicket_State]int{}}
		have, err := p.lookUp(tx)
		if err != nil || have == nil {
			return err
		}
		for _, u := range available.Upstreams {
			if _, ok := have.config.Upstream(u.Upstream); ok {
				c.proxies = append(c.proxies, u)
			}
		}
		crews, err := loadCrews(tx)
		if err != nil {
			return err
		}
		now := tx.Now()
		for _, w := range crews {
			for _, t := range w.drains.Tickets {
				c.drains[ownership.StateOf(t)]++
			}
			if !ownership.Live(have.times, w.worker, w.runtime, now.UnixMilli()) {
				c.workers["silent"]++
				continue
			}
			switch {
			case ownership.Shut(w.sent):
				c.workers["refusing"]++
			case w.runtime.Draining && w.runtime.SessionId == w.worker.SessionId:
				c.workers["leaving"]++
			default:
				c.workers["live"]++
			}
			if a := w.sent.GetAccepted(); a != nil {
				made := time.UnixMilli(a.ValidMs).Add(-have.times.Validity)
				c.oldest = max(c.oldest, now.Sub(made))
			}
		}
		return nil
	}); err != nil {
		return err
	}
	p.metrics.counted.Store(c)
	return nil
}

// counting counts again and again until ctx ends.
func (p *Pool) counting(ctx context.Context) {
	tick := time.NewTicker(countEvery)
	defer tick.Stop()
	for {
		p.report("count for the metrics", p.count(ctx))
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}
