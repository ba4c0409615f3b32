package rollout

import "github.com/prometheus/client_golang/prometheus"

type metrics struct {
	live        prometheus.Gauge
	failures    prometheus.Counter
	transitions *prometheus.CounterVec
	evaluations *prometheus.CounterVec
}

func newMetrics(reg prometheus.Registerer) *metrics {
	m := &metrics{
		live: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "dona_rollouts_live", Help: "Rollouts that are not over, in the whole store.",
		}),
		failures: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "dona_rollout_tick_failures_total", Help: "Looks at a rollout that the store made fail; the next tick tries again.",
		}),
		transitions: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "dona_rollout_transitions_total", Help: "Transitions that this host wrote, by event.",
		}, []string{"event"}),
		evaluations: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "dona_rollout_evaluations_total", Help: "Queries that this host had evaluated, by what came of it.",
		}, []string{"verdict"}),
	}
	for _, e := range []Event{Started, Stepped, Held, Resumed, WasPaused, Promote, Rollback, WasAborted, Replaced} {
		m.transitions.WithLabelValues(string(e))
	}
	for _, verdict := range []string{"pass", "breach", "missing", "error"} {
		m.evaluations.WithLabelValues(verdict)
	}
	if reg != nil {
		reg.MustRegister(m.live, m.failures, m.transitions, m.evaluations)
	}
	return m
}
