package host

import (
	"fmt"
	"net/http"
	"runtime"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/dodona-project/dodona/host/service"
	"github.com/dodona-project/dodona/host/snapshot"
	"github.com/dodona-project/dodona/plugins"
)

// newHTTP serves /metrics, /healthz (the process answers) and /readyz (it can do
// its work; when not, each reason on a line).
func (h *Host) newHTTP() *http.Server {
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", known(h.identity, promhttp.HandlerFor(h.metrics, promhttp.HandlerOpts{Registry: h.metrics})))
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) { _, _ = fmt.Fprintln(w, "ok") })
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, _ *http.Request) {
		if reasons := h.notReady(); len(reasons) > 0 {
			http.Error(w, strings.Join(reasons, "\n"), http.StatusServiceUnavailable)
			return
		}
		_, _ = fmt.Fprintln(w, "ready")
	})
	if h.extract != nil {
		mux.Handle("/v1/", h.extract)
	}
	s := &http.Server{
		Handler: mux, ReadHeaderTimeout: 5 * time.Second, ReadTimeout: 10 * time.Second,
		WriteTimeout: 30 * time.Second, IdleTimeout: 2 * time.Minute, MaxHeaderBytes: 8 << 10,
		ErrorLog: h.log.Named("http").StandardLogger(&hclog.StandardLoggerOptions{ForceLevel: hclog.Debug}), // of handshakes that fail, one a line
	}
	if h.identity != nil {
		s.TLSConfig = h.httpTLS()
	}
	return s
}

// notReady says what keeps the host from its work. It does not wait for
// endpoints to come back: snapshots are served from the start.
func (h *Host) notReady() (reasons []string) {
	select {
	case <-h.stopping:
		reasons = append(reasons, "the host is stopping")
	default:
	}
	if state := h.store.Info().State; state != "ready" {
		reasons = append(reasons, "store: "+state)
	} else if why := h.waits.Load(); why != nil {
		reasons = append(reasons, "the host waits for its store: "+*why)
	}
	missing := h.plugins.Missing()
	if !h.plugins.Ready(plugins.KindStrategy, service.DefaultStrategy) {
		if id := (plugins.ID{Kind: plugins.KindStrategy, Name: service.DefaultStrategy}); !slices.Contains(missing, id) {
			missing = append(missing, id)
		}
	}
	for _, id := range missing {
		reasons = append(reasons, "plugin "+id.String()+" is not ready")
	}
	return reasons
}

func buildInfo() prometheus.Collector {
	g := prometheus.NewGauge(prometheus.GaugeOpts{
		Name: "dona_build_info", Help: "1; the labels say what runs.",
		ConstLabels: prometheus.Labels{"version": Version, "go": runtime.Version()},
	})
	g.Set(1)
	return g
}

// alarms keeps what people should know of, for the host's status.
type alarms struct {
	mu    sync.Mutex
	lines []string
}

const maxAlarms = 20

// rewind notes a sign of a rewound store.
func (a *alarms) rewind(r snapshot.Rewind) {
	a.add(fmt.Sprintf("the store may have lost data: a client of %s has seen version %d, the store is at %d", r.Name, r.Seen, r.Ours))
}

func (a *alarms) add(line string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if !slices.Contains(a.lines, line) && len(a.lines) < maxAlarms {
		a.lines = append(a.lines, line)
	}
}

// alarmList is what is wrong with this host's state, for its status.
func (h *Host) alarmList() []string {
	lines := slices.Concat(h.ledger.Damaged(), h.alarms.list(), h.feeds.Alarms(), h.checks.Alarms(), h.supply.Problems())
	if h.issuer != nil {
		lines = append(h.issuer.Alarms(), lines...)
	}
	return lines[:min(len(lines), maxAlarms)]
}

func (a *alarms) list() []string {
	a.mu.Lock()
	defer a.mu.Unlock()
	return slices.Clone(a.lines)
}
