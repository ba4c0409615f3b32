package session

import (
	"github.com/prometheus/client_golang/prometheus"
)

type metrics struct {
	registrations *prometheus.CounterVec // by kind
	beats         *prometheus.CounterVec // by result
	ended         *prometheus.CounterVec // by reason
	freezes       *prometheus.CounterVec // by reason
	held          prometheus.Gauge
	streams       prometheus.Gauge
}

func newMetrics(reg prometheus.Registerer, plane string) (*metrics, error) {
	labels := prometheus.Labels{"plane": plane}
	counter := func(name, help, label string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{
			Namespace: "dona", Subsystem: "session", Name: name, Help: help, ConstLabels: labels,
		}, []string{label})
	}
	gauge := func(name, help string) prometheus.Gauge {
		return prometheus.NewGauge(prometheus.GaugeOpts{
			Namespace: "dona", Subsystem: "session", Name: name, Help: help, ConstLabels: labels,
		})
	}
	m := &metrics{
		registrations: counter("registrations_total", "Registrations accepted: new, back (its lease was still there), or takeover (of a stream that was live).", "kind"),
		beats:         counter("heartbeats_total", "Heartbeats: renewed, replayed (ignored), late (the lease was gone), or flood (over the rate).", "result"),
		ended:         counter("leases_ended_total", "Leases that ended, by reason.", "reason"),
		freezes:       counter("freezes_total", "Times that removals were frozen, by reason.", "reason"),
		held:          gauge("leases_held", "Overdue leases that a freeze keeps, as of the last sweep."),
		streams:       gauge("streams", "Registration streams that this host serves."),
	}
	// Every value is there before the first of its kind happens: what has not happened
	// is 0, not absent.
	for vec, values := range map[*prometheus.CounterVec][]string{
		m.registrations: {"new", "back", "takeover"},
		m.beats:         {"renewed", "replayed", "late", "flood"},
		m.ended:         {string(Goodbye), string(Broken), string(Refused), string(Expired)},
		m.freezes:       {FreezeRestart, FreezeMass, FreezePaused},
	} {
		for _, value := range values {
			vec.WithLabelValues(value)
		}
	}
	if reg == nil {
		return m, nil
	}
	for _, c := range []prometheus.Collector{m.registrations, m.beats, m.ended, m.freezes, m.held, m.streams} {
		if err := reg.Register(c); err != nil {
			return nil, err
		}
	}
	return m, nil
}
