package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc/credentials"

	"github.com/dodona-project/dodona/cmd/internal/startup"
	"github.com/dodona-project/dodona/cmd/proxy-gateway/internal/clients"
	"github.com/dodona-project/dodona/cmd/proxy-gateway/internal/forward"
	"github.com/dodona-project/dodona/cmd/proxy-gateway/internal/settings"
	"github.com/dodona-project/dodona/sdk/dona/identity"
	"github.com/dodona-project/dodona/sdk/worker"
	"github.com/dodona-project/dodona/sdk/worker/target"
	"github.com/dodona-project/dodona/sdk/worker/upstream"
)

const (
	reloadEvery = 10 * time.Second       // password files
	lookEvery   = 250 * time.Millisecond // at the view's age, once the session has ended for good
	adminGrace  = time.Second            // for the last scrape
)

// gateway is the wiring: a worker's session and the data path that goes by its view.
type gateway struct {
	settings *settings.Settings
	log      *slog.Logger
	worker   *worker.Worker
	server   *forward.Server
	clients  *clients.Set // nil = nobody is asked

	door    *door
	admin   net.Listener // may be nil
	start   sync.Once
	started chan struct{} // closed with the first valid snapshot
	// listening is set once clients can come, and leaving when no more are to.
	listening, leaving atomic.Bool
}

// newGateway is ready to run. After an error nothing is left open.
func newGateway(s *settings.Settings, log *slog.Logger) (_ *gateway, err error) {
	g := &gateway{settings: s, log: log, started: make(chan struct{})}
	defer func() {
		if err != nil {
			g.closeListeners()
		}
	}()
	if len(s.Clients) > 0 {
		if g.clients, err = clients.Load(s.Clients); err != nil {
			return nil, err
		}
	}
	dialer := &upstream.Dialer{Allow: s.AllowUpstream, KeepAlive: -1}
	if s.UpstreamCA != "" {
		if dialer.TLS, err = trusting(s.UpstreamCA); err != nil {
			return nil, fmt.Errorf("gateway.upstreams.ca: %w", err)
		}
	}
	if g.door, err = newDoor(s.Listen); err != nil {
		return nil, err
	}
	if s.AdminListen != "" {
		if g.admin, err = net.Listen("tcp", s.AdminListen); err != nil {
			return nil, err
		}
	}
	own, err := g.own()
	if err != nil {
		return nil, err
	}
	config := worker.Config{
		Target: s.ControlPlane, ClusterID: s.ClusterID, WorkerID: s.WorkerID, InstanceID: s.InstanceID, Zone: s.Zone, Build: startup.Version(),
		MaxConnections: uint32(s.Limits.Connections), Own: own, Log: log,
		OnView:  func(_, _ *worker.View) { g.server.Changed() },
		OnState: g.stateChanged,
	}
	if s.TLS != nil {
		config.Credentials = credentials.NewTLS(identity.ClientTLS(s.TLS))
	}
	if g.worker, err = worker.New(config); err != nil {
		return nil, err
	}
	o := forward.Options{Routes: routes{g.worker}, Dialer: dialer, Limits: s.Limits, Report: g.worker.Report, Log: log}
	if g.clients != nil {
		o.Clients = g.clients
	}
	g.server = forward.New(o)
	return g, nil
}

// trusting makes a configuration of TLS that trusts what a file has.
func trusting(file string) (*tls.Config, error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(text) {
		return nil, fmt.Errorf("%s has no certificate", file)
	}
	return &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12}, nil
}

// own is where this process listens, and so where nobody is led.
func (g *gateway) own() (target.Own, error) {
	var own target.Own
	listens := []net.Addr{g.door.address}
	if g.admin != nil {
		listens = append(listens, g.admin.Addr())
	}
	for _, l := range listens {
		a, err := netip.ParseAddrPort(l.String())
		if err != nil {
			return own, err
		}
		own.Listeners = append(own.Listeners, a)
	}
	addresses, err := net.InterfaceAddrs()
	if err != nil {
		return own, err
	}
	for _, a := range addresses {
		if p, err := netip.ParsePrefix(a.String()); err == nil {
			own.Local = append(own.Local, p.Addr())
		}
	}
	return own, nil
}

func (g *gateway) closeListeners() {
	if g.door != nil {
		g.door.close()
	}
	if g.admin != nil {
		_ = g.admin.Close()
	}
}

// stateChanged lets clients in once there is something to go by, and ends what the view
// does not vouch for any more. Readiness follows by itself, and so does that nothing is
// led anywhere.
func (g *gateway) stateChanged(s worker.State) {
	switch s {
	case worker.Serving:
		g.start.Do(func() { close(g.started) })
	case worker.Ended:
		g.server.Cut()
	}
}

// run serves until ctx ends, and then drains. An error is one that no retry changes.
func (g *gateway) run(ctx context.Context) error {
	session, end := context.WithCancel(context.Background())
	defer end()
	var work sync.WaitGroup
	defer work.Wait()
	defer end()
	fatal := make(chan error, 1)
	work.Go(func() { fatal <- g.worker.Run(session) })
	work.Go(func() { g.reload(session) })
	served := make(chan error, 1)
	work.Go(func() { served <- g.serve(session) })
	admin := &http.Server{Handler: g.adminHandler(), ReadHeaderTimeout: 10 * time.Second}
	if g.admin != nil {
		work.Go(func() {
			if err := admin.Serve(g.admin); !errors.Is(err, http.ErrServerClosed) {
				g.log.Error("the admin listener ends", "error", err)
			}
		})
	}
	g.log.Info("waiting for the first snapshot", "control_plane", g.settings.ControlPlane, "worker", g.settings.WorkerID)
	var err error
	select {
	case <-ctx.Done():
	case err = <-served:
	case err = <-fatal:
		g.log.Error("the control plane does not take this worker; what the view allows goes on", "error", err)
		g.outlast(ctx)
	}
	g.leave()
	end()
	bounded, cancel := context.WithTimeout(context.Background(), adminGrace)
	defer cancel()
	_ = admin.Shutdown(bounded)
	return err
}

// outlast waits until the view is not valid any more.
func (g *gateway) outlast(ctx context.Context) {
	tick := time.NewTicker(lookEvery)
	defer tick.Stop()
	for g.worker.State() == worker.Serving {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
	}
}

// leave takes no new clients, and lets what runs come to its end.
func (g *gateway) leave() {
	g.leaving.Store(true)
	g.door.close() // before the control plane hears of it, and gives its proxies to others
	g.worker.Drain()
	g.log.Info("draining", "limit", g.settings.DrainLimit)
	g.server.Drain(g.settings.DrainLimit)
	g.log.Info("drained", "in_use", g.worker.InUse())
}

// reload reads the password files again from time to time.
func (g *gateway) reload(ctx context.Context) {
	if g.clients == nil {
		return
	}
	tick := time.NewTicker(reloadEvery)
	defer tick.Stop()
	for last := ""; ; {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
		text := ""
		if err := g.clients.Reload(); err != nil {
			text = err.Error()
		}
		if text != last && text != "" {
			g.log.Warn("passwords stay as they were", "error", text)
		}
		last = text
	}
}
