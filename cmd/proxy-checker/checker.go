package main

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/dodona-project/dodona/builtin"
	"github.com/dodona-project/dodona/cmd/internal/startup"
	"github.com/dodona-project/dodona/cmd/proxy-checker/internal/session"
	"github.com/dodona-project/dodona/cmd/proxy-checker/internal/settings"
	"github.com/dodona-project/dodona/plugins"
	"github.com/dodona-project/dodona/plugins/external"
	"github.com/dodona-project/dodona/sdk/dona/identity"
	"github.com/dodona-project/dodona/sdk/plugin"
)

const adminGrace = time.Second // for the last scrape

// checker is the wiring: probe plugins, and a session that has them check.
type checker struct {
	settings *settings.Settings
	log      *slog.Logger
	plugins  *plugins.Host
	probes   *probes
	session  *session.Session
	registry *prometheus.Registry

	admin   net.Listener // nil = nowhere
	leaving atomic.Bool
}

// newChecker listens and is ready to run. After an error nothing is left open.
func newChecker(s *settings.Settings, log *slog.Logger, stderr io.Writer) (_ *checker, err error) {
	c := &checker{settings: s, log: log, registry: prometheus.NewRegistry()}
	if s.AdminListen != "" {
		if c.admin, err = net.Listen("tcp", s.AdminListen); err != nil {
			return nil, err
		}
		defer func() {
			if err != nil {
				_ = c.admin.Close()
			}
		}()
	}
	logger := hclog.New(&hclog.LoggerOptions{Name: "plugins", Level: hclog.LevelFromString(s.LogLevel), Output: stderr})
	o := plugins.Options{Logger: logger, HostVersion: startup.Version(), Builtins: builtinProbes(), Plugins: s.Plugins, Registerer: c.registry}
	if s.PluginDir != "" {
		if o.Catalog, err = external.Open(external.Options{Dir: s.PluginDir, Logger: logger.Named("dir"), Named: files(o)}); err != nil {
			return nil, err
		}
	}
	if c.plugins, err = plugins.New(o); err != nil {
		return nil, err
	}
	c.probes = newProbes(c.plugins)
	config := session.Config{
		Addresses: s.Addresses, CheckerID: s.CheckerID, InstanceID: s.InstanceID, Levels: s.Levels, MaxInFlight: s.MaxInFlight,
		Credentials: insecure.NewCredentials(), Prober: c.probes, Log: log,
	}
	if s.TLS != nil {
		config.Credentials = credentials.NewTLS(identity.ClientTLS(s.TLS))
	}
	c.session = session.New(config)
	return c, nil
}

// builtinProbes are the built-in plugins that check.
func builtinProbes() (all []*plugin.Plugin) {
	for _, b := range builtin.All() {
		if kind, _ := plugins.KindOf(b.Kind()); kind == plugins.KindProbe {
			all = append(all, b)
		}
	}
	return all
}

// files are the probes with settings that have to be files: those that are not built in,
// and those that replace what is.
func files(o plugins.Options) (ids []plugins.ID) {
	builtins := map[string]bool{}
	for _, b := range o.Builtins {
		builtins[b.Name()] = true
	}
	for id, p := range o.Plugins {
		if !builtins[id.Name] || p.OverrideBuiltin {
			ids = append(ids, id)
		}
	}
	return ids
}

// run checks until ctx ends, and then drains. An error is one that no retry changes.
func (c *checker) run(ctx context.Context) error {
	var work sync.WaitGroup
	defer work.Wait()
	admin := &http.Server{Handler: c.adminHandler(), ReadHeaderTimeout: 10 * time.Second}
	if c.admin != nil {
		defer func() {
			bounded, cancel := context.WithTimeout(context.Background(), adminGrace)
			defer cancel()
			_ = admin.Shutdown(bounded)
		}()
		work.Go(func() {
			if err := admin.Serve(c.admin); !errors.Is(err, http.ErrServerClosed) {
				c.log.Error("the admin listener ends", "error", err)
			}
		})
		c.log.Info("admin", "listen", c.admin.Addr())
	}
	if err := c.plugins.Start(ctx); err != nil {
		return err
	}
	defer c.plugins.Stop(context.Background())
	life, end := context.WithCancel(context.Background())
	defer end()
	work.Go(func() { c.probes.watch(life) })
	c.probes.await(ctx)
	stop := context.AfterFunc(ctx, func() {
		c.leaving.Store(true)
		c.log.Info("draining", "limit", c.settings.DrainLimit)
	})
	defer stop()
	err := c.session.Run(ctx, c.settings.DrainLimit)
	end()
	return err
}
