package host

import (
	"fmt"
	"net"
	"net/http"

	"github.com/prometheus/client_golang/prometheus"
)

// aside is a server for people and programs on this machine, beside the host's work:
// it is up before the store is, and ends last.
type aside struct {
	name     string // in host.json
	server   *http.Server
	listener net.Listener
	over     chan struct{}
}

// serveAside starts those that are configured.
func (h *Host) serveAside() error {
	if at := h.config.OpsListen; at != "" {
		listener, err := net.Listen("tcp", at)
		if err != nil {
			return fmt.Errorf("http.ops_listen: %w; choose another address with --http-ops-listen", err)
		}
		server := h.newHTTP()
		server.TLSConfig = nil
		h.start(&aside{name: "ops", server: server, listener: listener})
	}
	if path := h.config.DebugSocket; path != "" {
		server, listener, err := newDebug(path)
		if err != nil {
			return err
		}
		h.start(&aside{name: "debug", server: server, listener: listener})
	}
	return nil
}

func (h *Host) start(a *aside) {
	a.over = make(chan struct{})
	h.aside = append(h.aside, a)
	go func() { defer close(a.over); _ = a.server.Serve(a.listener) }()
}

func (h *Host) endAside() {
	for _, a := range h.aside {
		_ = a.server.Close()
		<-a.over
	}
}

// forgetIdentity ends the following of this host's identity.
func (h *Host) forgetIdentity() {
	if h.closeIdentity != nil {
		_ = h.closeIdentity()
	}
}

func newReloads(reg prometheus.Registerer) *prometheus.CounterVec {
	c := prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "dona_identity_reloads_total", Help: "Changes of the files in identity.dir, by result: ok, or failed (what was there before goes on).",
	}, []string{"result"})
	for _, result := range []string{"ok", "failed"} {
		c.WithLabelValues(result)
	}
	reg.MustRegister(c)
	return c
}
