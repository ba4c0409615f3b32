package main

import (
	"fmt"
	"net/http"

	controlplanev1 "github.com/dodona-project/dodona/proto/controlplane/v1"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
)

// adminHandler serves /healthz, /readyz and /metrics.
func (c *checker) adminHandler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) { _, _ = fmt.Fprintln(w, "ok") })
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, _ *http.Request) {
		if why := c.notReady(); why != "" {
			http.Error(w, why, http.StatusServiceUnavailable)
			return
		}
		_, _ = fmt.Fprintln(w, "ok")
	})
	c.registry.MustRegister(metrics{c}, collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	mux.Handle("GET /metrics", promhttp.HandlerFor(c.registry, promhttp.HandlerOpts{}))
	return mux
}

// notReady says why this checker checks nothing, empty when it does.
func (c *checker) notReady() string {
	missing := c.plugins.Missing()
	switch {
	case c.leaving.Load():
		return "draining: this checker ends"
	case len(missing) > 0:
		return fmt.Sprintf("required probes are not ready: %v", missing)
	case !c.session.Connected():
		return "the control plane gives no tasks"
	}
	return ""
}

// metrics shows what the session counts anyway. Names are in docs/checker.md.
type metrics struct{ *checker }

func describe(name, help string, labels ...string) *prometheus.Desc {
	return prometheus.NewDesc("proxy_checker_"+name, help, labels, nil)
}

var (
	descConnected     = describe("connected", "1 while the control plane has this checker on a stream.")
	descRunning       = describe("checks_running", "Checks that are being made.")
	descChecks        = describe("checks_total", "Checks that were made, by result.", "result")
	descReported      = describe("observations_reported_total", "Observations that the control plane took.")
	descRefused       = describe("observations_refused_total", "Observations that it refused: their lease was over.")
	descLost          = describe("observations_lost_total", "Observations that could not be reported in time.")
	descSurplus       = describe("tasks_surplus_total", "Tasks beyond what was asked for, which are left to run out.")
	descRegistrations = describe("registrations_total", "Registrations, one for each stream and each change of the probes.")
)

// Describe implements prometheus.Collector.
func (m metrics) Describe(to chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{descConnected, descRunning, descChecks, descReported, descRefused, descLost, descSurplus, descRegistrations} {
		to <- d
	}
}

var resultWords = map[controlplanev1.HealthObservation_Result]string{
	controlplanev1.HealthObservation_RESULT_SUCCESS:      "success",
	controlplanev1.HealthObservation_RESULT_FAILURE:      "failure",
	controlplanev1.HealthObservation_RESULT_INCONCLUSIVE: "inconclusive",
}

// Collect implements prometheus.Collector.
func (m metrics) Collect(to chan<- prometheus.Metric) {
	s := m.session
	connected := 0.0
	if s.Connected() {
		connected = 1
	}
	to <- prometheus.MustNewConstMetric(descConnected, prometheus.GaugeValue, connected)
	to <- prometheus.MustNewConstMetric(descRunning, prometheus.GaugeValue, float64(s.Running.Load()))
	for result, word := range resultWords {
		to <- prometheus.MustNewConstMetric(descChecks, prometheus.CounterValue, float64(s.Results[result].Load()), word)
	}
	for desc, n := range map[*prometheus.Desc]int64{
		descReported: s.Reported.Load(), descRefused: s.Refused.Load(), descLost: s.Lost.Load(), descSurplus: s.Surplus.Load(), descRegistrations: s.Registrations.Load(),
	} {
		to <- prometheus.MustNewConstMetric(desc, prometheus.CounterValue, float64(n))
	}
}
