package delivery

import "github.com/prometheus/client_golang/prometheus"

type metrics struct {
	live        prometheus.Gauge
	failures    prometheus.Counter
	transitions *prometheus.CounterVec
}

func newMetrics(reg prometheus.Registerer) *metrics {
	m := &metrics{
		live: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "dona_deployments_live", Help: "Deployments that are not over, in the whole store.",
		}),
		failures: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "dona_deployment_tick_failures_total", Help: "Looks at a deployment that the store made fail; the next tick tries again.",
		}),
		transitions: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "dona_deployment_transitions_total", Help: "Transitions that this host's ticks wrote, by the state they led to. The end of a canary is counted as its rollout's.",
		}, []string{"state"}),
	}
	for p := Running; p <= Failed; p++ {
		m.transitions.WithLabelValues(p.String())
	}
	if reg != nil {
		reg.MustRegister(m.live, m.failures, m.transitions)
	}
	return m
}
