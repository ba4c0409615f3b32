package main

import (
	"net/http"
	"strconv"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/dodona-project/dodona/cmd/internal/startup"
	"github.com/dodona-project/dodona/sdk/worker"
)

// adminHandler serves /healthz, /readyz and /metrics.
func (g *gateway) adminHandler() http.Handler {
	registry := prometheus.NewRegistry()
	registry.MustRegister(metrics{g})
	return startup.Admin(g.notReady, registry)
}

// notReady says why no traffic should come here, empty when it should.
func (g *gateway) notReady() string {
	if g.leaving.Load() {
		return "draining: this gateway ends"
	}
	switch s := g.worker.State(); {
	case s == worker.Starting:
		return "starting: no snapshot from the control plane yet"
	case s != worker.Serving:
		return s.String() + ": no valid snapshot from the control plane"
	case !g.listening.Load():
		return "starting: nobody listens for clients yet"
	}
	return ""
}

// metrics shows what the gateway counts anyway. Names are in docs/gateway.md.
type metrics struct{ *gateway }

func describe(name, help string, labels ...string) *prometheus.Desc {
	return prometheus.NewDesc("proxy_gateway_"+name, help, labels, nil)
}

var (
	descConnections = describe("client_connections", "Connections of clients that are open.")
	descTunnels     = describe("tunnels", "Tunnels that are open.")
	descWaiting     = describe("waiting_requests", "Requests that wait for a proxy.")
	descInUse       = describe("leases", "Places on proxies that are reserved or in use.")
	descProxies     = describe("proxies", "Proxies of the snapshot that can be used.")
	descSnapshot    = describe("snapshot_version", "Version of the snapshot that is used, 0 before the first.")
	descState       = describe("state", "1 for what this gateway may do by the age of its snapshot.", "state")
	descRequests    = describe("requests_total", "Heads of requests that were read.")
	descAnswers     = describe("answers_total", "Answers to clients, a tunnel as 200; own = made by the gateway.", "code", "own")
	descRetried     = describe("retries_total", "Attempts through another proxy.")
	descDirect      = describe("direct_total", "Requests that went to their target without a proxy.")
	descReused      = describe("reused_connections_total", "Requests on an upstream connection that was kept.")
	descPanics      = describe("panics_total", "Bugs that ended a connection; the log has each of them.")
	descBytes       = describe("tunnel_bytes_total", "Bytes of tunnels; up = from clients.", "direction")
	descReported    = describe("outcomes_reported_total", "Outcomes that the control plane has.")
	descDropped     = describe("outcomes_dropped_total", "Outcomes that found the queue full.")
	descSessions    = describe("sessions_total", "Registrations with the control plane.")
	descRefused     = describe("snapshots_refused_total", "Snapshots that did not hold.")
)

// Describe implements prometheus.Collector.
func (m metrics) Describe(to chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{descConnections, descTunnels, descWaiting, descInUse, descProxies, descSnapshot, descState, descRequests, descAnswers, descRetried, descDirect, descReused, descPanics, descBytes, descReported, descDropped, descSessions, descRefused} {
		to <- d
	}
}

// Collect implements prometheus.Collector.
func (m metrics) Collect(to chan<- prometheus.Metric) {
	gauge := func(d *prometheus.Desc, v float64, labels ...string) {
		to <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, labels...)
	}
	counter := func(d *prometheus.Desc, v float64, labels ...string) {
		to <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, v, labels...)
	}
	s, w := &m.server.Stats, m.worker.Stats()
	gauge(descConnections, float64(s.Connections.Load()))
	gauge(descTunnels, float64(s.Tunnels.Load()))
	gauge(descWaiting, float64(s.Waiting.Load()))
	gauge(descInUse, float64(m.worker.InUse()))
	version, usable := 0.0, 0.0
	if v := m.worker.View(); v != nil {
		version, usable = float64(v.Version()), float64(v.Proxies())
	}
	gauge(descProxies, usable)
	gauge(descSnapshot, version)
	for now, each := m.worker.State(), worker.Starting; each <= worker.Ended; each++ {
		v := 0.0
		if each == now {
			v = 1
		}
		gauge(descState, v, each.String())
	}
	counter(descRequests, float64(s.Requests.Load()))
	for code := range s.Led {
		if n := s.Led[code].Load(); n > 0 {
			counter(descAnswers, float64(n), strconv.Itoa(code), "false")
		}
		if n := s.Own[code].Load(); n > 0 {
			counter(descAnswers, float64(n), strconv.Itoa(code), "true")
		}
	}
	counter(descRetried, float64(s.Retried.Load()))
	counter(descDirect, float64(s.Direct.Load()))
	counter(descReused, float64(s.Reused.Load()))
	counter(descPanics, float64(s.Panics.Load()))
	counter(descBytes, float64(s.Up.Load()), "up")
	counter(descBytes, float64(s.Down.Load()), "down")
	counter(descReported, float64(w.Reported))
	counter(descDropped, float64(w.Dropped))
	counter(descSessions, float64(w.Sessions))
	counter(descRefused, float64(w.Refused))
}
