package api

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc/status"
)

type metrics struct {
	calls   *prometheus.CounterVec
	seconds *prometheus.HistogramVec
	panics  prometheus.Counter

	connections prometheus.Gauge
	refused     *prometheus.CounterVec
	shed        prometheus.Counter
}

func newMetrics(reg prometheus.Registerer) (*metrics, error) {
	m := &metrics{
		calls: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "dona_rpc_total", Help: "Calls that ended, by method and gRPC code. A stream counts when it ends.",
		}, []string{"method", "code"}),
		seconds: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "dona_rpc_seconds", Help: "How long calls took, by method. A stream's is its life.",
			Buckets: []float64{.0005, .001, .0025, .005, .01, .025, .05, .1, .25, 1, 10, 60, 600},
		}, []string{"method"}),
		panics: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "dona_rpc_panics_total", Help: "Calls that panicked and were contained.",
		}),
		connections: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "dona_grpc_connections", Help: "Connections to the gRPC services, those in their handshake included; 0 with dev, where nobody counts.",
		}),
		refused: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "dona_grpc_connections_refused_total", Help: "Connections that were not let in: handshake (no identity that holds), full, peer_full.",
		}, []string{"reason"}),
		shed: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "dona_rpc_shed_total", Help: "Calls refused because memory ran out.",
		}),
	}
	for _, reason := range []string{"handshake", "full", "peer_full"} {
		m.refused.WithLabelValues(reason)
	}
	if reg == nil {
		return m, nil
	}
	for _, c := range []prometheus.Collector{m.calls, m.seconds, m.panics, m.connections, m.refused, m.shed} {
		if err := reg.Register(c); err != nil {
			return nil, err
		}
	}
	return m, nil
}

// observe counts a call. Methods come from the registered services, so their
// number is bounded.
func (m *metrics) observe(method string, err error, took time.Duration) {
	m.calls.WithLabelValues(method, status.Code(err).String()).Inc()
	m.seconds.WithLabelValues(method).Observe(took.Seconds())
}
