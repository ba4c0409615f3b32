// Package pool keeps the state of the egress plane: proxies and who owns them, workers
// and what they were sent, drains, extractions and the published configuration. Every
// rule of who may own what lies in host/pool/ownership; this package reads and writes
// its records in transactions.
//
// host/api calls [Pool] for workers and operators, and [Pool.Watch] pushes a worker's
// snapshots. [Pool.Run] is the loop that shares proxies out, ends what is over and has
// plans compiled; it may run on every host of a store, and re-reads what is before it
// changes anything. Checks make proxies available through [Pool.Find], and nothing
// else does.
//
// Safe for concurrent use. Secrets are held by [Secrets] alone: no record, error or
// log of this package has one.
package pool

import (
	"cmp"
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	donav1 "github.com/dodona-project/dodona/proto/dona/v1"
	pluginv1 "github.com/dodona-project/dodona/proto/plugin/v1"
	"github.com/hashicorp/go-hclog"
	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/dodona-project/dodona/host/audit"
	"github.com/dodona-project/dodona/host/limits"
	"github.com/dodona-project/dodona/host/pool/ownership"
	"github.com/dodona-project/dodona/host/pool/poolconfig"
	"github.com/dodona-project/dodona/host/pool/secret"
	"github.com/dodona-project/dodona/host/store"
)

// Secrets knows the material of credentials, in memory.
type Secrets interface {
	// Credential is the material of a reference in a version; ok is false where this
	// host does not have that one.
	Credential(ref string, version uint32) (c secret.Credential, ok bool)
}

// A Compiler has a strategy plugin turn candidates into a plan that was checked.
type Compiler interface {
	// Compile returns the plan and when to ask again (0 = on change only).
	Compile(ctx context.Context, strategy string, config *structpb.Struct, req *pluginv1.CompileRequest) (*donav1.Plan, time.Duration, error)
}

// PluginCheck judges a plugin's name and configuration; nil where they hold, and
// otherwise a refusal.
type PluginCheck func(ctx context.Context, name string, config *structpb.Struct) error

// Options of a pool.
type Options struct {
	Store           store.Store // what acts goes through here: see audit.Guard
	Audit           *audit.Log
	HostID          string        // names this host in audit entries
	Secrets         Secrets       // nil = there are none
	Compiler        Compiler      // nil = every routing has round robin
	Strategy        PluginCheck   // nil = every strategy is taken
	Probe           PluginCheck   // the same of probes
	Checks          Checks        // nil = outcomes hurry no check
	CheckInterval   time.Duration // between two BASIC checks of a proxy that is well; 0 = 30 s
	RuntimeInterval time.Duration
	MaxCounters     int // proxies that a worker owns, and counters of a report; 0 = limits.RuntimeCounters
	Coalesce        time.Duration
	Logger          hclog.Logger
	Registerer      prometheus.Registerer // nil = no metrics
}

// Defaults and fixed figures.
const (
	runtimeInterval = 2 * time.Second
	reportTTL       = 10 * time.Second
	coalesce        = 50 * time.Millisecond // changes within are one snapshot
	sweepEvery      = time.Second
	allocateEvery   = 2 * time.Second
	batch           = 128 // proxies that one transaction moves
	evictAfter      = 30 * time.Minute
	keepExpired     = time.Minute    // that people see it
	keepAnswers     = 24 * time.Hour // of extractions
	shortfallFor    = time.Minute
)

// Pool is the egress plane over a store.
type Pool struct {
	o         Options
	actor     string // of what the host does by itself
	log       hclog.Logger
	metrics   *metrics
	published atomic.Pointer[published] // read last
	reading   sync.Mutex                // held by who reads what is published
	offered   *published                // under reading: was parsed to be published here last
	poke      chan struct{}             // share out now

	mu     sync.Mutex
	silent map[string]silence // workers that are not heard of; the sweep's
}

// silence is since when a host has not heard anything new of a worker, by the store's
// clock. Only a whole silence that this host was there for counts: what the store says
// may be older than what other hosts had written, after a fail-over.
type silence struct{ heard, since int64 }

// New returns the pool over a store.
func New(o Options) *Pool {
	if o.Logger == nil {
		o.Logger = hclog.NewNullLogger()
	}
	o.RuntimeInterval = cmp.Or(o.RuntimeInterval, runtimeInterval)
	o.CheckInterval = cmp.Or(o.CheckInterval, checkInterval)
	o.MaxCounters = cmp.Or(o.MaxCounters, limits.RuntimeCounters)
	o.Coalesce = cmp.Or(o.Coalesce, coalesce)
	return &Pool{o: o, actor: "host:" + o.HostID, log: o.Logger, metrics: newMetrics(o.Registerer), poke: make(chan struct{}, 1), silent: map[string]silence{}}
}

// wake has proxies shared out at once.
func (p *Pool) wake() {
	select {
	case p.poke <- struct{}{}:
	default:
	}
}

// Run shares proxies out, ends what is over and has plans compiled, until ctx ends. It
// returns nil: what fails now is tried again.
func (p *Pool) Run(ctx context.Context) error {
	var planner sync.WaitGroup
	defer planner.Wait()
	planner.Go(func() { p.plan(ctx) })
	if p.o.Registerer != nil {
		planner.Go(func() { p.counting(ctx) })
	}
	notice := p.o.Store.Watch(ctx, proxyPrefix)
	sweep, allocate := time.NewTicker(sweepEvery), time.NewTicker(allocateEvery)
	defer sweep.Stop()
	defer allocate.Stop()
	for {
		share := true
		select {
		case <-ctx.Done():
			return nil
		case <-sweep.C:
			share = false
			p.report("end what is over", p.Sweep(ctx))
		case <-allocate.C:
		case <-p.poke:
		case _, open := <-notice:
			if !open {
				return nil
			}
		}
		if !share {
			continue
		}
		began := time.Now()
		p.report("share proxies out", p.Allocate(ctx))
		// A look reads every proxy, and any change of one is a notice: so that looks take
		// a twentieth of the time, whatever their number.
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(min(max(p.o.Coalesce, 20*time.Since(began)), allocateEvery)):
		}
	}
}

func (p *Pool) report(what string, err error) {
	if err != nil && !errors.Is(err, context.Canceled) {
		p.log.Warn("cannot "+what+"; it is tried again", "error", err)
	}
}

// published is a configuration as it is in force: with what operators switched.
type published struct {
	record   []byte // what it was read from, which nobody changes
	revision uint64
	document string
	written  *poolconfig.Config // the document, as it was published
	config   *poolconfig.Config
	times    ownership.Times
}

// timesOf are the figures of a configuration.
func timesOf(c *poolconfig.Config) ownership.Times {
	a := c.Allocation
	return ownership.Times{
		SessionTTL: a.SessionTTL, Validity: a.SnapshotValidity, MaxStaleAge: a.MaxStaleAge, SafetyMargin: a.SafetyMargin, ReportTTL: reportTTL,
	}
}
