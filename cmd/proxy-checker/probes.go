package main

import (
	"context"
	"slices"
	"strings"
	"sync"
	"time"

	controlplanev1 "github.com/dodona-project/dodona/proto/controlplane/v1"
	pluginv1 "github.com/dodona-project/dodona/proto/plugin/v1"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/dodona-project/dodona/cmd/proxy-checker/internal/session"
	"github.com/dodona-project/dodona/host/limits"
	"github.com/dodona-project/dodona/plugins"
	"github.com/dodona-project/dodona/plugins/probe"
)

const (
	lookEvery = time.Second      // at the plugin directory
	startWait = 10 * time.Second // for the probes that are there at the start
)

// probes are the probe plugins of this process. All of them are started, so that what is
// announced has proved to work.
type probes struct {
	facade *probe.Facade
	host   *plugins.Host

	mu      sync.Mutex
	ready   []*controlplanev1.ProbePlugin
	changed chan struct{} // one slot
}

var _ session.Prober = (*probes)(nil)

func newProbes(h *plugins.Host) *probes {
	return &probes{facade: probe.New(h), host: h, changed: make(chan struct{}, 1)}
}

// Probes implements session.Prober.
func (p *probes) Probes() []*controlplanev1.ProbePlugin {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.ready
}

// Changed implements session.Prober.
func (p *probes) Changed() <-chan struct{} { return p.changed }

// Check implements session.Prober.
func (p *probes) Check(ctx context.Context, name string, config *structpb.Struct, req *pluginv1.CheckRequest) (probe.Observation, error) {
	return p.facade.Check(ctx, name, config, req)
}

// watch looks for probes that come, go and become ready, until ctx ends.
func (p *probes) watch(ctx context.Context) {
	changed, cancel := p.host.Watch()
	defer cancel()
	tick := time.NewTicker(lookEvery)
	defer tick.Stop()
	for {
		p.look()
		select {
		case <-ctx.Done():
			return
		case <-changed:
		case <-tick.C:
		}
	}
}

// look starts what is new and notes what is ready. A probe that restarts stays announced:
// its tasks are inconclusive meanwhile, and it is back sooner than others would hear of
// it.
func (p *probes) look() {
	var ready []*controlplanev1.ProbePlugin
	before := p.Probes()
	for _, s := range p.host.List() {
		if s.Kind != string(plugins.KindProbe) || len(ready) == limits.Probes {
			continue
		}
		_ = p.host.Ensure(plugins.KindProbe, s.Name) // it was listed
		known := slices.ContainsFunc(before, func(b *controlplanev1.ProbePlugin) bool { return b.Name == s.Name })
		switch s.State {
		case "ready":
		case "starting", "backoff", "draining":
			if !known {
				continue
			}
		default:
			continue
		}
		m := &controlplanev1.ProbePlugin{Name: s.Name, Version: s.Version}
		if limits.Version(m.Version) != nil {
			m.Version = ""
		}
		ready = append(ready, m)
	}
	slices.SortFunc(ready, func(a, b *controlplanev1.ProbePlugin) int { return strings.Compare(a.Name, b.Name) })
	if slices.EqualFunc(before, ready, func(a, b *controlplanev1.ProbePlugin) bool { return a.Name == b.Name && a.Version == b.Version }) {
		return
	}
	p.mu.Lock()
	p.ready = ready
	p.mu.Unlock()
	select {
	case p.changed <- struct{}{}:
	default:
	}
}

// await gives the probes that are there at the start time to be ready, so that the first
// registration has them.
func (p *probes) await(ctx context.Context) {
	limited, cancel := context.WithTimeout(ctx, startWait)
	defer cancel()
	for _, s := range p.host.List() {
		if s.Kind == string(plugins.KindProbe) {
			_ = p.host.Await(limited, plugins.KindProbe, s.Name) // the others go on without it
		}
	}
	p.look()
}
