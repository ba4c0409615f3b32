package check

import "github.com/prometheus/client_golang/prometheus"

type metrics struct {
	observations *prometheus.CounterVec
	refused      *prometheus.CounterVec
	moves        *prometheus.CounterVec
	expired      prometheus.Counter
	failures     prometheus.Counter
	scopes       prometheus.Gauge
	alarms       prometheus.Gauge
	inFlight     prometheus.Gauge
	overdue      prometheus.Histogram
}

func newMetrics(reg prometheus.Registerer) *metrics {
	counter := func(name, help string) prometheus.Counter {
		return prometheus.NewCounter(prometheus.CounterOpts{Name: name, Help: help})
	}
	vec := func(name, label, help string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, []string{label})
	}
	gauge := func(name, help string) prometheus.Gauge {
		return prometheus.NewGauge(prometheus.GaugeOpts{Name: name, Help: help})
	}
	m := &metrics{
		observations: vec("dona_check_observations_total", "result", "Observations that this host took, by result."),
		refused:      vec("dona_check_refused_total", "reason", "Observations that were refused, by reason."),
		moves:        vec("dona_check_moves_total", "to", "Targets that this host's looks took out or brought back."),
		expired:      counter("dona_check_leases_expired_total", "Tasks given away again because their lease ran out."),
		failures:     counter("dona_check_failures_total", "Looks, claims and reports that the store made fail; they are tried again."),
		scopes:       gauge("dona_check_scopes", "Services whose endpoints are checked, and levels of upstreams."),
		alarms:       gauge("dona_check_alarms", "Services, and levels of upstreams, where who fails is kept, or whose probe nobody has."),
		inFlight:     gauge("dona_check_inflight", "Checks that this host's checker is making."),
		overdue: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "dona_check_overdue_seconds", Help: "How long after it was due a task was claimed.",
			Buckets: []float64{0.01, 0.1, 0.5, 1, 5, 10, 30, 60, 300},
		}),
	}
	// Both directions exist before the first target moves, and so do the results.
	for _, to := range []string{"out", "back"} {
		m.moves.WithLabelValues(to)
	}
	for _, word := range results {
		m.observations.WithLabelValues(word)
	}
	for _, reason := range []string{refusedGone, refusedOvertaken, refusedForeign, refusedProxy, refusedLevel, refusedTarget, refusedResult} {
		m.refused.WithLabelValues(reason)
	}
	if reg != nil {
		reg.MustRegister(m.observations, m.refused, m.moves, m.expired, m.failures, m.scopes, m.alarms, m.inFlight, m.overdue)
	}
	return m
}
