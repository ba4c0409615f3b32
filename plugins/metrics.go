package plugins

import (
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// metrics are those of all plugins of a host; README and dashboards know the
// names.
type metrics struct {
	up       *prometheus.GaugeVec
	state    *prometheus.GaugeVec
	starts   *prometheus.CounterVec
	exits    *prometheus.CounterVec
	seconds  *prometheus.HistogramVec
	inflight *prometheus.GaugeVec
	shed     *prometheus.CounterVec
	rejected *prometheus.CounterVec
	lines    *prometheus.CounterVec
}

func newMetrics(r prometheus.Registerer) (*metrics, error) {
	gauge := func(name, help string, labels ...string) *prometheus.GaugeVec {
		return prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: name, Help: help}, append([]string{"kind", "plugin"}, labels...))
	}
	counter := func(name, help string, labels ...string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, append([]string{"kind", "plugin"}, labels...))
	}
	m := &metrics{
		up:       gauge("dona_plugin_up", "1 while the plugin takes calls."),
		state:    gauge("dona_plugin_state", "1 for the state the plugin is in, 0 for the others.", "state"),
		starts:   counter("dona_plugin_starts_total", "Processes started."),
		exits:    counter("dona_plugin_exits_total", "Processes that ended without being asked to, and starts that failed."),
		inflight: gauge("dona_plugin_inflight", "Calls in flight."),
		shed:     counter("dona_plugin_shed_total", "Calls refused because too many were in flight and waiting."),
		rejected: counter("dona_plugin_rejected_answers_total", "Answers that were refused.", "reason"),
		lines:    counter("dona_plugin_log_lines_dropped_total", "Lines of plugins' output that were over the rate."),
		seconds: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "dona_plugin_call_seconds", Help: "Time of calls, waiting included.",
			Buckets: []float64{.0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10},
		}, []string{"kind", "plugin", "method", "outcome"}),
	}
	for _, c := range []prometheus.Collector{m.up, m.state, m.starts, m.exits, m.seconds, m.inflight, m.shed, m.rejected, m.lines} {
		if err := r.Register(c); err != nil {
			return nil, err
		}
	}
	return m, nil
}

func (m *metrics) setState(id ID, s State) {
	for _, one := range states {
		v := 0.0
		if one == s {
			v = 1
		}
		m.state.WithLabelValues(string(id.Kind), id.Name, string(one)).Set(v)
	}
	up := 0.0
	if s == StateReady {
		up = 1
	}
	m.up.WithLabelValues(string(id.Kind), id.Name).Set(up)
}

// forget takes the states of a plugin that is no more out of the metrics.
func (m *metrics) forget(id ID) {
	labels := prometheus.Labels{"kind": string(id.Kind), "plugin": id.Name}
	m.state.DeletePartialMatch(labels)
	m.up.DeletePartialMatch(labels)
}

func (m *metrics) observe(id ID, method, outcome string, d time.Duration) {
	m.seconds.WithLabelValues(string(id.Kind), id.Name, method, outcome).Observe(d.Seconds())
}

// A callMeter measures the calls of one process. It holds what every good call
// needs: to find a metric by its labels takes longer than to use it.
type callMeter struct {
	*metrics
	id       ID
	inflight prometheus.Gauge
	good     atomic.Pointer[goodCalls] // of the method called last: a kind has one
}

type goodCalls struct {
	method  string
	seconds prometheus.Observer
}

func (m *metrics) callMeter(id ID) *callMeter {
	return &callMeter{metrics: m, id: id, inflight: m.inflight.WithLabelValues(string(id.Kind), id.Name)}
}

// done counts a call that ended with err and took d.
func (m *callMeter) done(method string, err error, d time.Duration) {
	if err != nil {
		m.observe(m.id, method, outcome(err), d)
		return
	}
	good := m.good.Load()
	if good == nil || good.method != method {
		good = &goodCalls{method, m.metrics.seconds.WithLabelValues(string(m.id.Kind), m.id.Name, method, outcome(nil))}
		m.good.Store(good)
	}
	good.seconds.Observe(d.Seconds())
}
