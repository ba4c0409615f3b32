package host

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	donav1 "github.com/dodona-project/dodona/proto/dona/v1"
	pluginv1 "github.com/dodona-project/dodona/proto/plugin/v1"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/dodona-project/dodona/builtin"
	"github.com/dodona-project/dodona/host/audit"
	"github.com/dodona-project/dodona/host/check"
	"github.com/dodona-project/dodona/host/limits"
	"github.com/dodona-project/dodona/host/refusal"
	"github.com/dodona-project/dodona/host/service"
	"github.com/dodona-project/dodona/host/store"
	"github.com/dodona-project/dodona/plugins"
	"github.com/dodona-project/dodona/plugins/external"
	"github.com/dodona-project/dodona/plugins/probe"
	"github.com/dodona-project/dodona/plugins/strategy"
	"github.com/dodona-project/dodona/sdk/plugin"
)

// newPlugins makes the plugin host from the configuration. What happens to
// plugins goes into the host's own audit chain.
func (h *Host) newPlugins() (*plugins.Host, error) {
	o := plugins.Options{
		Logger: h.log.Named("plugins"), HostVersion: Version, Builtins: builtin.All(), Registerer: h.metrics,
		Backoff: plugins.Backoff{Min: h.config.PluginBackoff.Min, Max: h.config.PluginBackoff.Max},
		Plugins: map[plugins.ID]plugins.PluginConfig{},
		OnEvent: h.record,
	}
	for id, p := range h.config.Plugins {
		kind, name, _ := strings.Cut(id, "/")
		o.Plugins[plugins.ID{Kind: plugins.Kind(kind), Name: name}] = plugins.PluginConfig{
			Required: p.Required, Env: p.Env, Deadline: p.Deadline, MaxConcurrency: p.MaxConcurrency, OverrideBuiltin: p.OverrideBuiltin,
			AddressSpace: p.AddressSpace, Restricted: p.Restricted,
		}
	}
	if h.config.Dev {
		allowLoopback(o)
	}
	for text, socket := range h.config.Attach {
		kind, name, _ := strings.Cut(text, "/")
		if o.Attached == nil {
			o.Attached = map[plugins.ID]string{}
		}
		o.Attached[plugins.ID{Kind: plugins.Kind(kind), Name: name}] = socket
	}
	if h.config.PluginDir == "" {
		return plugins.New(o)
	}
	dir, err := external.Open(external.Options{Dir: h.config.PluginDir, Logger: h.log.Named("plugin-dir"), Named: files(o), Unpinned: h.config.Dev})
	if err != nil {
		return nil, err
	}
	o.Catalog = dir
	return plugins.New(o)
}

// allowLoopback lets the built-in probes check this machine, where the services of
// a development host are, unless the configuration says what they may check.
func allowLoopback(o plugins.Options) {
	for _, b := range o.Builtins {
		id := builtinID(b)
		c := o.Plugins[id]
		if _, said := c.Env[builtin.ProbeAllow]; said || id.Kind != plugins.KindProbe {
			continue
		}
		c.Env = maps.Clone(c.Env)
		if c.Env == nil {
			c.Env = map[string]string{}
		}
		c.Env[builtin.ProbeAllow] = "loopback"
		o.Plugins[id] = c
	}
}

func builtinID(b *plugin.Plugin) plugins.ID {
	kind, _ := plugins.KindOf(b.Kind())
	return plugins.ID{Kind: kind, Name: b.Name()}
}

// files are the plugins with settings that have to be files: those that are not
// built in, and those that replace what is.
func files(o plugins.Options) (ids []plugins.ID) {
	for id, p := range o.Plugins {
		builtin := slices.ContainsFunc(o.Builtins, func(b *plugin.Plugin) bool { return builtinID(b) == id })
		if !builtin || p.OverrideBuiltin {
			ids = append(ids, id)
		}
	}
	return ids
}

func (h *Host) record(e plugins.Event) {
	entry := audit.Entry{Kind: string(e.Kind), Actor: "host:" + h.id, Detail: map[string]string{
		"plugin_kind": string(e.Plugin.Kind), "name": e.Plugin.Name, "version": e.Version, "digest": e.Digest,
		"generation": strconv.FormatUint(e.Generation, 10), "reason": e.Reason, "exit": e.Exit, "stderr_sha256": e.StderrSHA256,
	}}
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
	defer cancel()
	err := h.store.Update(ctx, store.Hard, func(tx store.Tx) error { return h.ledger.Append(tx, audit.HostChain, entry) })
	if err != nil && !errors.Is(err, store.ErrClosed) {
		h.log.Error("cannot write the audit entry of a plugin's event", "event", string(e.Kind), "plugin", e.Plugin.String(), "error", err)
	}
}

// strategies is the planner's way to strategy plugins.
type strategies struct {
	facade  *strategy.Facade
	host    *plugins.Host
	changed <-chan struct{}
	cancel  func()
}

var _ service.Compiler = (*strategies)(nil)

func newStrategies(p *plugins.Host) *strategies {
	s := &strategies{facade: strategy.New(p), host: p}
	s.changed, s.cancel = p.Watch()
	return s
}

func (s *strategies) close()                   { s.cancel() }
func (s *strategies) Changed() <-chan struct{} { return s.changed }

func (s *strategies) Compile(ctx context.Context, name string, config *structpb.Struct, req *pluginv1.CompileRequest) (*donav1.Plan, time.Duration, error) {
	// Started at its first use; until it is ready the last good plan serves.
	if err := s.host.Ensure(plugins.KindStrategy, name); err != nil {
		return nil, 0, err
	}
	result, err := s.facade.CompileWith(ctx, name, config, req)
	return result.Plan, result.RefreshAfter, err
}

// check judges the strategy that a policy names, and its config.
func (s *strategies) check(ctx context.Context, name string, config *structpb.Struct) error {
	return judged("strategy", name, s.facade.Validate(ctx, name, config))
}

// probes is the checker's way to probe plugins.
type probes struct {
	facade *probe.Facade
	host   *plugins.Host
}

var _ check.Prober = (*probes)(nil)

func newProbes(p *plugins.Host) *probes { return &probes{facade: probe.New(p), host: p} }

func (p *probes) Check(ctx context.Context, name string, config *structpb.Struct, req *pluginv1.CheckRequest) (probe.Observation, error) {
	// Started at its first use; until it is ready its checks are inconclusive.
	if err := p.host.Ensure(plugins.KindProbe, name); err != nil {
		return probe.Observation{}, err
	}
	return p.facade.Check(ctx, name, config, req)
}

// Names implements check.Namer.
func (p *probes) Names() []string { return p.host.Names(plugins.KindProbe) }

// check judges the probe that a policy names, and its config.
func (p *probes) check(ctx context.Context, name string, config *structpb.Struct) error {
	return judged("probe", name, p.facade.Validate(ctx, name, config))
}

// checkAnywhere is check for what checkers outside may do alone: a probe that is no plugin
// of this host is taken as it is. While nobody has it, an alarm says so.
func (p *probes) checkAnywhere(ctx context.Context, name string, config *structpb.Struct) error {
	err := p.facade.Validate(ctx, name, config)
	if errors.Is(err, plugins.ErrUnknown) {
		return nil
	}
	return judged("probe", name, err)
}

// judged turns what a facade says of a plugin of a kind and its config into a
// refusal; nil stays nil.
func judged(kind, name string, err error) error {
	var bad *plugins.ConfigError
	switch {
	case err == nil:
		return nil
	case errors.Is(err, plugins.ErrUnknown):
		return refusal.Field(kind, "is %s: there is no such %s plugin; dona plugin list shows those there are", limits.Quote(name), kind)
	case errors.As(err, &bad):
		return refusal.Field(kind+"_config"+bad.Violations[0].Path, "is refused by %s: %s", limits.Quote(name), bad.Violations[0].Message)
	}
	return &refusal.Error{Kind: refusal.Unavailable, Reason: "plugin", Cause: err,
		Text: fmt.Sprintf("%s plugin %s is away and was never seen, so its config cannot be checked; try again", kind, limits.Quote(name))}
}
