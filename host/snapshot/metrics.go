package snapshot

import "github.com/prometheus/client_golang/prometheus"

type metrics struct {
	fullEncodings      prometheus.Counter
	deltaEncodings     prometheus.Counter
	unchangedEncodings prometheus.Counter
	published          prometheus.Counter
	failures           prometheus.Counter
	rewinds            prometheus.Counter
	cut                prometheus.Counter
	watchers           prometheus.Gauge
	feeds              prometheus.Gauge
}

func newMetrics(reg prometheus.Registerer) (*metrics, error) {
	counter := func(name, help string) prometheus.Counter {
		return prometheus.NewCounter(prometheus.CounterOpts{Namespace: "dona", Subsystem: "snapshot", Name: name, Help: help})
	}
	gauge := func(name, help string) prometheus.Gauge {
		return prometheus.NewGauge(prometheus.GaugeOpts{Namespace: "dona", Subsystem: "snapshot", Name: name, Help: help})
	}
	encodings := prometheus.NewCounterVec(prometheus.CounterOpts{
		Namespace: "dona", Subsystem: "snapshot", Name: "encodings_total",
		Help: "Frames encoded, by form. One full a version and one delta a pair of versions, however many watch.",
	}, []string{"form"})
	m := &metrics{
		fullEncodings:      encodings.WithLabelValues("full"),
		deltaEncodings:     encodings.WithLabelValues("delta"),
		unchangedEncodings: encodings.WithLabelValues("unchanged"),
		published:          counter("published_total", "Versions published."),
		failures:           counter("failures_total", "Looks at the store, builds and encodings that failed and are tried again, and deltas that could not be made."),
		rewinds:            counter("rewinds_total", "Signs of a store that lost or rewound data."),
		cut:                counter("cut_total", "Streams ended because a send was blocked for too long."),
		watchers:           gauge("watchers", "Subscriptions that are open."),
		feeds:              gauge("feeds", "Names that are kept ready."),
	}
	if reg == nil {
		return m, nil
	}
	for _, c := range []prometheus.Collector{encodings, m.published, m.failures, m.rewinds, m.cut, m.watchers, m.feeds} {
		if err := reg.Register(c); err != nil {
			return nil, err
		}
	}
	return m, nil
}
