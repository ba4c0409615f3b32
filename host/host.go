package host

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"runtime/debug"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/spiffe/go-spiffe/v2/spiffeid"
	"google.golang.org/grpc"
	"google.golang.org/grpc/health"
	"google.golang.org/grpc/health/grpc_health_v1"

	"github.com/dodona-project/dodona/host/api"
	"github.com/dodona-project/dodona/host/audit"
	"github.com/dodona-project/dodona/host/check"
	"github.com/dodona-project/dodona/host/config"
	"github.com/dodona-project/dodona/host/delivery"
	"github.com/dodona-project/dodona/host/identity"
	"github.com/dodona-project/dodona/host/pool"
	"github.com/dodona-project/dodona/host/pool/supply"
	"github.com/dodona-project/dodona/host/rollout"
	"github.com/dodona-project/dodona/host/service"
	"github.com/dodona-project/dodona/host/session"
	"github.com/dodona-project/dodona/host/snapshot"
	"github.com/dodona-project/dodona/host/store"
	"github.com/dodona-project/dodona/host/store/datadir"
	"github.com/dodona-project/dodona/host/telemetry"
	"github.com/dodona-project/dodona/plugins"
	"github.com/dodona-project/dodona/plugins/analysis"
)

// Version of the host, as it tells plugins and operators.
const Version = "0.1.0"

const (
	drainTime = 2 * time.Second // for streams and calls under way at a stop
	flushTime = time.Second     // for telemetry that was not sent yet
)

// Host is one control plane over one store. Make it with New, run it once.
type Host struct {
	config *config.Config
	log    hclog.Logger
	id     string

	store    store.Store
	ledger   *audit.Log
	signer   *audit.Signer
	scrub    *audit.Scrub
	plane    *service.Plane
	plugins  *plugins.Host
	sessions *session.Registry
	feeds    *snapshot.Feeds
	rollouts *rollout.Controller
	delivery *delivery.Controller
	control  *api.ControlPlane
	planner  *service.Planner
	checks   *check.Broker
	checker  *check.Checker
	pool     *pool.Pool
	supply   *supply.Supplier
	extract  http.Handler // of extractions over HTTP; nil while the host waits for its store
	strategy *strategies
	issuer   *identity.Issuer // nil: no identities are issued here, or not yet
	grpc     *grpc.Server
	http     *http.Server
	health   *health.Server
	metrics  *prometheus.Registry
	export   *telemetry.Exporter

	stopping chan struct{}
	fatal    chan error // the store gave up
	alarms   alarms

	saidReplicas atomic.Bool // what this host's hard writes wait for is in the store

	process string                 // tells this life of the host from its others
	joined  int64                  // when it came to the others, ms of the store's clock; beMember alone
	waits   atomic.Pointer[string] // why the host still waits for its store; nil = it does not
	lost    func() snapshot.Gap    // what a fault of the store may have taken after clients have seen it

	grpcListener, httpListener net.Listener

	identity      api.Identity // this host's own; nil = nobody here has one
	domain        spiffeid.TrustDomain
	own           *own // the same, when this host issues it
	closeIdentity func() error
	reloads       *prometheus.CounterVec // of its files

	aside []*aside // more that is served, for people on this machine

	bootstrap         *grpc.Server // with the issuer, as its listener
	bootstrapListener net.Listener
}

// New opens the store and wires everything; nothing is served before Run. An
// error that wraps store.ErrRefused means that the data directory must not be
// used as it is; a *config.Error, that a setting does not hold.
func New(c *config.Config, log hclog.Logger) (h *Host, err error) {
	h = &Host{
		config: c, log: log, stopping: make(chan struct{}), fatal: make(chan error, 1), metrics: prometheus.NewRegistry(),
		ledger: audit.New(c.TrustDomain), health: health.NewServer(), process: rand.Text(),
	}
	h.health.SetServingStatus("", grpc_health_v1.HealthCheckResponse_NOT_SERVING)
	made := h // a return of nil forgets h before what is deferred runs
	h.reloads = newReloads(h.metrics)
	// Before the store, which would be made: wrong settings change nothing.
	exported, err := telemetry.Read(os.Getenv)
	if err != nil {
		return nil, &config.Error{Problems: []config.Problem{{Where: "environment", Text: err.Error()}}}
	}
	if err := h.openIdentity(); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			made.forgetIdentity()
		}
	}()
	if c.MemoryLimit > 0 {
		debug.SetMemoryLimit(c.MemoryLimit)
	}
	if h.plugins, err = h.newPlugins(); err != nil {
		return nil, &config.Error{Problems: []config.Problem{{Where: "plugins", Text: err.Error()}}}
	}
	if h.store, err = openStore(c, log.Named("store"), func(err error) { h.fatal <- err }); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			_ = made.store.Close()
		}
	}()
	if h.id, err = hostID(c.DataDir); err != nil {
		return nil, err
	}
	h.metrics.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}), buildInfo())
	if h.export, err = telemetry.Start(context.Background(), exported, telemetry.Host{ID: h.id, Version: Version}, h.metrics, log.Named("telemetry")); err != nil {
		return nil, &config.Error{Problems: []config.Problem{{Where: "environment", Text: err.Error()}}}
	}
	defer func() {
		if err != nil {
			made.flush()
		}
	}()
	log.Info("host", "id", h.id, "version", Version, "store", c.Store, "data_dir", c.DataDir, "durability", h.store.Info().Durability)
	if err := h.ask(context.Background()); err != nil {
		if !h.passes(err) {
			return nil, err
		}
		h.waitFor(err)
		return h, nil
	}
	return h, h.wire()
}

// wire makes what needs what ask has found, and asks the store nothing.
func (h *Host) wire() (err error) {
	h.strategy = newStrategies(h.plugins)
	measure := analysis.New(h.plugins)

	actions := audit.Guard(h.store) // what acts goes through here
	h.plane = service.New(actions, h.ledger, h.id)
	every := 10 * time.Minute
	if h.shared() {
		every = time.Hour // each host reads all of it over the network
	}
	if h.scrub, err = audit.NewScrub(audit.ScrubOptions{
		Every: every, Store: h.store, Log: h.ledger, Chains: h.plane.Services, Logger: h.log.Named("audit"), Registerer: h.metrics,
	}); err != nil {
		return err
	}
	h.planner = service.NewPlanner(h.plane, h.strategy, h.log.Named("planner"))
	probes := newProbes(h.plugins)
	if err := h.openPool(actions, probes); err != nil {
		return err
	}
	h.checks = check.New(check.Options{
		Store: h.store, Planes: map[string]check.Plane{service.CheckPlane: h.plane, pool.CheckPlane: h.pool},
		Rules: check.DefaultRules(h.config.CheckInterval, h.config.CheckTimeout), Window: h.config.ControlPlane.MaxCheckClaim,
		Logger: h.log.Named("checks"), Registerer: h.metrics,
	})
	h.checker = check.NewChecker(h.checks, probes, check.InsidePrefix+h.id)
	h.sessions, err = session.New(session.Options{
		Store: h.store, Plane: h.plane, PlaneName: "service", Host: h.id, Shared: h.shared(),
		Heartbeat: h.config.Heartbeat, Restart: h.config.RestartGrace,
		Logger: h.log.Named("session"), Registerer: h.metrics,
	})
	if err != nil {
		return err
	}
	h.feeds, err = snapshot.New(snapshot.Options{
		Store: h.store, Source: h.plane.Source(), OnRewind: h.alarms.rewind,
		Lost: h.lost, Grace: h.config.RestartGrace,
		OnLost: func(service string) error { return h.plane.Renew(context.Background(), service) },
		Logger: h.log.Named("snapshot"), Registerer: h.metrics,
	})
	if err != nil {
		return err
	}
	h.rollouts = rollout.New(rollout.Options{
		Store: actions, Service: h.plane, Audit: h.ledger, Analyzer: rollout.OverPlugins(measure, measure.OwnVerdict), HostID: h.id,
		Heartbeat: h.config.Heartbeat, Logger: h.log, Registerer: h.metrics,
		Ended: func(tx store.Tx, service string, end rollout.End) error {
			return h.delivery.RolloutEnded(tx, service, end)
		},
	})
	h.delivery = delivery.New(delivery.Options{
		Store: actions, Plane: h.plane, Audit: h.ledger, Rollouts: h.rollouts, HostID: h.id, Logger: h.log, Registerer: h.metrics,
	})
	h.control = &api.ControlPlane{
		Store: h.store, Audit: h.ledger, Plane: h.plane, Sessions: h.sessions, Feeds: h.feeds, Rollouts: h.rollouts, Delivery: h.delivery,
		Reports:  service.NewReports(h.plane, h.rollouts, time.Now, h.metrics),
		Attester: &audit.Attester{Store: actions, Log: h.ledger, Signer: h.signer},
		Checks:   h.checks, Strategy: h.strategy.check, Probe: probes.check, Wall: time.Now, Stopping: h.stopping,
	}
	edge := h.edge()
	edge.ControlPlane, edge.Checkers = h.control, &api.CheckerControlPlane{Tasks: h.checks, Stopping: h.stopping}
	edge.Workers, edge.PoolAdmin = &api.WorkerControlPlane{Fleet: h.pool, Stopping: h.stopping}, &api.PoolAdmin{Pool: h.pool}
	edge.Published = h.pool.Environment
	edge.Registerer, edge.Calls = h.metrics, h.export.Calls
	h.grpc, err = api.New(edge)
	return err
}

// admin is the part of the API that is about the host itself.
func (h *Host) admin() *api.HostAdmin {
	alarms := h.waiting
	if h.checks != nil { // there are none while the host waits for its store
		alarms = h.alarmList
	}
	return &api.HostAdmin{
		HostID: h.id, Version: Version, Store: h.store, Actions: audit.Guard(h.store), Audit: h.ledger, Sessions: h.sessions,
		Plugins: h.plugins, Alarms: alarms, Stopping: h.stopping, Operate: h.storeOperations(),
		Identities: h.issuer,
	}
}

// Run serves until ctx ends, then drains and stops within 5 s. It returns nil
// after a stop that was asked for, and otherwise what went wrong; an error that
// wraps store.ErrRefused says that the store broke its promise and closed.
func (h *Host) Run(ctx context.Context) error {
	defer func() { _ = h.store.Close() }()
	defer h.flush()
	defer h.forgetIdentity()
	if err := h.listen(); err != nil {
		return err
	}
	defer h.endAside()
	if err := h.serveAside(); err != nil {
		return err
	}
	if h.waits.Load() != nil {
		if goOn, err := h.standBy(ctx); err != nil || !goOn {
			return err
		}
		if err := h.wire(); err != nil {
			return err
		}
	}
	if err := h.listenBootstrap(); err != nil {
		return err
	}
	if err := h.plugins.Start(ctx); err != nil {
		return fmt.Errorf("start the plugins: %w", err)
	}
	defer h.plugins.Stop(context.Background())
	if err := h.patiently(ctx, h.sessions.Start); err != nil {
		if ctx.Err() != nil {
			h.withdraw()
			return nil
		}
		return fmt.Errorf("start the sessions: %w", err)
	}
	if err := h.plugins.Ensure(plugins.KindStrategy, service.DefaultStrategy); err != nil {
		return fmt.Errorf("start the default strategy: %w", err)
	}
	defer h.strategy.close()

	work, cancel := context.WithCancel(ctx)
	defer cancel()
	failed := make(chan error, 32)
	var loops sync.WaitGroup
	loop := func(name string, run func(context.Context) error) {
		loops.Go(func() {
			if err := run(work); err != nil && work.Err() == nil {
				failed <- fmt.Errorf("%s: %w", name, err)
			}
		})
	}
	loop("sessions", h.sessions.Run)
	loop("rollouts", h.rollouts.Run)
	loop("deployments", h.delivery.Run)
	loop("sharing", h.control.EndShutOut)
	loop("planner", h.planner.Run)
	loop("checks", h.checks.Run)
	loop("checker", h.checker.Run)
	loop("pool", h.pool.Run)
	loop("supply", h.supply.Run)
	loop("collector", h.collect)
	loop("gap", h.closeGap)
	loop("members", h.beMember)
	loop("adoptions", h.recordAdoptions)
	loop("replicas", h.recordReplicas)
	loop("attestation key", h.recordSigner)
	loop("scrub", h.scrub.Run)
	loop("retention", h.retention().Run)
	go func() { failed <- h.grpc.Serve(h.grpcListener) }()
	h.http = h.newHTTP() // with the identity that there is by now
	go func() { failed <- h.serveHTTP(h.httpListener) }()
	if h.own != nil {
		loop("own identity", h.own.run)
	}
	if h.issuer != nil {
		loop("identities", h.issuer.Run)
		go func() { failed <- h.bootstrap.Serve(h.bootstrapListener) }()
	}
	if err := h.announce(); err != nil {
		return err
	}
	h.health.SetServingStatus("", grpc_health_v1.HealthCheckResponse_SERVING)
	h.log.Info("serving", "grpc", h.grpcListener.Addr().String(), "http", h.httpListener.Addr().String())

	var err error
	select {
	case <-ctx.Done():
		h.log.Info("stopping")
	case err = <-failed:
		h.log.Error("stopping: a part failed", "error", err)
	case cause := <-h.fatal:
		err = fmt.Errorf("%w: the store closed itself: %w", store.ErrRefused, cause)
		h.log.Error("stopping: the store closed itself", "error", cause)
	}
	h.stop(cancel, &loops)
	return err
}

// stop tells every stream to move, gives calls under way a moment, and ends the
// loops. Plugins and the store end after it, in Run's defers.
func (h *Host) stop(cancel context.CancelFunc, loops *sync.WaitGroup) {
	h.health.Shutdown()
	close(h.stopping)
	h.sessions.Drain()
	h.feeds.Close()
	drain(h.grpc, drainTime)
	if h.bootstrap != nil {
		h.bootstrap.Stop()
	}
	_ = h.http.Close()
	cancel()
	loops.Wait()
	h.withdraw()
	h.log.Info("stopped")
}

// drain takes no more calls, gives those under way until limit, and cuts the rest.
func drain(server *grpc.Server, limit time.Duration) {
	drained := make(chan struct{})
	go func() { server.GracefulStop(); close(drained) }()
	select {
	case <-drained:
	case <-time.After(limit):
		server.Stop()
		<-drained
	}
}

// flush sends what telemetry is left, and stops exporting. A receiver that is away
// holds no stop up for long.
func (h *Host) flush() {
	ctx, cancel := context.WithTimeout(context.Background(), flushTime)
	defer cancel()
	if err := h.export.Shutdown(ctx); err != nil {
		h.log.Warn("the last telemetry was not exported", "error", err)
	}
}

func (h *Host) listen() (err error) {
	if h.grpcListener, err = net.Listen("tcp", h.config.GRPCListen); err != nil {
		return fmt.Errorf("grpc.listen: %w; choose another address with --grpc-listen", err)
	}
	if h.httpListener, err = net.Listen("tcp", h.config.HTTPListen); err != nil {
		_ = h.grpcListener.Close()
		return fmt.Errorf("http.listen: %w; choose another address with --http-listen", err)
	}
	h.http = h.newHTTP()
	return nil
}

// announce writes where this host listens beside its data, for tools on this
// machine that let it choose the ports.
func (h *Host) announce() error {
	where := map[string]any{
		"grpc": h.grpcListener.Addr().String(), "http": h.httpListener.Addr().String(), "pid": os.Getpid(),
	}
	for _, a := range h.aside {
		where[a.name] = a.listener.Addr().String()
	}
	if h.bootstrapListener != nil {
		where["bootstrap"] = h.bootstrapListener.Addr().String()
	}
	text, err := json.Marshal(where)
	if err != nil {
		return err
	}
	return datadir.WriteFile(filepath.Join(h.config.DataDir, "host.json"), append(text, '\n'))
}

// withdraw takes back what announce wrote.
func (h *Host) withdraw() { _ = os.Remove(filepath.Join(h.config.DataDir, "host.json")) }

// collect removes what is left of past services, once an hour.
func (h *Host) collect(ctx context.Context) error {
	tick := time.NewTicker(time.Hour)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
			if n, err := h.plane.Collect(ctx); err != nil && ctx.Err() == nil {
				h.log.Warn("cannot remove past services", "error", err)
			} else if n > 0 {
				h.log.Info("removed past services", "services", n)
			}
		}
	}
}

// hostID names this host in audit entries and leases. It stays with the data
// directory.
func hostID(dataDir string) (string, error) {
	name := filepath.Join(dataDir, "host.id")
	text, err := os.ReadFile(name)
	if err == nil {
		id := strings.TrimSpace(string(text))
		if _, err := hex.DecodeString(id); err != nil || len(id) != 16 {
			return "", fmt.Errorf("%w: %s does not hold a host id of 16 hex digits; remove it to have a new one made", store.ErrRefused, name)
		}
		return id, nil
	}
	if !errors.Is(err, fs.ErrNotExist) {
		return "", err
	}
	var b [8]byte
	if _, err := rand.Read(b[:]); err != nil {
		return "", err
	}
	id := hex.EncodeToString(b[:])
	return id, datadir.WriteFile(name, []byte(id+"\n"))
}
